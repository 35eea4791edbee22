{{- define "prefixlb.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{/* At most 40 characters, so that the names made from it stay names of pods and Services. */}}
{{- define "prefixlb.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains (include "prefixlb.name" .) .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "prefixlb.name" .) | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* Of every pod of the release; never changes over upgrades. */}}
{{- define "prefixlb.releaseLabels" -}}
app.kubernetes.io/name: {{ include "prefixlb.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{/* Of one part's pods: a list of the context and router, replica, redis or test. */}}
{{- define "prefixlb.selector" -}}
{{ include "prefixlb.releaseLabels" (index . 0) }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end -}}

{{/* Of every pod: the same list. Nothing of the chart, as a new version of it alone is to make no new pods. */}}
{{- define "prefixlb.podLabels" -}}
{{ include "prefixlb.selector" . }}
app.kubernetes.io/version: {{ (index . 0).Chart.AppVersion | quote }}
app.kubernetes.io/part-of: prefixlb
{{- end -}}

{{/* Of every object: the same list. */}}
{{- define "prefixlb.labels" -}}
{{- $root := index . 0 -}}
{{ include "prefixlb.podLabels" . }}
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_" }}
{{- end -}}

{{/* A list of the context, values of an image, and the tag that an empty one means. */}}
{{- define "prefixlb.image" -}}
{{- $root := index . 0 -}}{{- $image := index . 1 -}}
{{- with $root.Values.image.registry }}{{ trimSuffix "/" . }}/{{ end -}}
{{ $image.repository }}:{{ $image.tag | default (index . 2) }}
{{- with $image.digest }}@{{ . }}{{ end -}}
{{- end -}}

{{- define "prefixlb.routerImage" -}}
{{ include "prefixlb.image" (list . .Values.router.image .Chart.AppVersion) }}
{{- end -}}

{{- define "prefixlb.replicaImage" -}}
{{- $tag := printf "%s-%s" .Chart.AppVersion (ternary "cuda" "cpu" .Values.replica.gpu.enabled) -}}
{{ include "prefixlb.image" (list . .Values.replica.image $tag) }}
{{- end -}}

{{/* What clients dial. */}}
{{- define "prefixlb.routerHost" -}}
{{ include "prefixlb.fullname" . }}-router.{{ .Release.Namespace }}.svc
{{- end -}}

{{- define "prefixlb.cluster" -}}
{{ .Values.cluster | default (printf "%s.%s" .Release.Namespace (include "prefixlb.fullname" .)) }}
{{- end -}}

{{- define "prefixlb.hashSecretName" -}}
{{ .Values.hashSecret.existingSecret | default (printf "%s-hash" (include "prefixlb.fullname" .)) }}
{{- end -}}

{{- define "prefixlb.replicaTlsSecret" -}}
{{ .Values.tls.replica.existingSecret | default (printf "%s-replica-tls" (include "prefixlb.fullname" .)) }}
{{- end -}}

{{- define "prefixlb.routerToReplicaTlsSecret" -}}
{{ .Values.tls.replica.existingRouterSecret | default (printf "%s-router-to-replica-tls" (include "prefixlb.fullname" .)) }}
{{- end -}}

{{- define "prefixlb.clientTlsSecret" -}}
{{ .Values.tls.client.existingSecret | default (printf "%s-router-tls" (include "prefixlb.fullname" .)) }}
{{- end -}}

{{/* Every address of a pod. */}}
{{- define "prefixlb.anyHost" -}}
{{ ternary "::" "0.0.0.0" (eq .Values.ipFamily "IPv6") }}
{{- end -}}

{{- define "prefixlb.anyGrpcHost" -}}
{{ ternary "[::]" "0.0.0.0" (eq .Values.ipFamily "IPv6") }}
{{- end -}}
