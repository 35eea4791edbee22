{{/* The restricted PodSecurity level, and a root file system that nobody writes. */}}
{{- define "prefixlb.podSecurity" -}}
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  {{- with .Values.runAsUser }}
  runAsUser: {{ int64 . }}
  {{- end }}
  {{- with .Values.runAsGroup }}
  runAsGroup: {{ int64 . }}
  fsGroup: {{ int64 . }}
  {{- end }}
  seccompProfile: {type: RuntimeDefault}
{{- with .Values.image.pullSecrets }}
imagePullSecrets: {{ toJson . }}
{{- end }}
{{- end -}}

{{- define "prefixlb.containerSecurity" -}}
{runAsNonRoot: true, allowPrivilegeEscalation: false, readOnlyRootFilesystem: true, capabilities: {drop: [ALL]}, seccompProfile: {type: RuntimeDefault}}
{{- end -}}

{{/* Where its pods may run: a list of the context, router or replica, and whether
its pods are counted by their revision. */}}
{{- define "prefixlb.placement" -}}
{{- $root := index . 0 -}}{{- $part := index . 1 -}}{{- $byHash := index . 2 -}}
{{- $values := index $root.Values $part -}}
{{- with $values.nodeSelector }}
nodeSelector: {{ toJson . }}
{{- end }}
{{- with $values.affinity }}
affinity: {{ toJson . }}
{{- end }}
{{- with $values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with $values.topologySpreadConstraints }}
topologySpreadConstraints:
  {{- range . }}
  {{- $counted := dict "labelSelector" (dict "matchLabels" (include "prefixlb.selector" (list $root $part) | fromYaml)) }}
  {{- if $byHash }}
  {{- $_ := set $counted "matchLabelKeys" (list "pod-template-hash") }}
  {{- end }}
  - {{ toJson (merge $counted .) }}
  {{- end }}
{{- end }}
{{- end -}}

{{/* Annotations of its pods: a list of the context and router or replica. */}}
{{- define "prefixlb.podAnnotations" -}}
{{- $root := index . 0 -}}{{- $part := index . 1 -}}
{{- if $root.Values.monitoring.scrapeAnnotations }}
prometheus.io/scrape: "true"
prometheus.io/path: /metrics
prometheus.io/port: {{ ternary "29000" "29001" (eq $part "router") | quote }}
{{- end }}
{{- with (index $root.Values $part).podAnnotations }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* A probe: a list of what to ask in clear by gRPC, and whether TLS is spoken there, so that the metrics
page is asked instead: Kubernetes' own gRPC probes speak none. */}}
{{- define "prefixlb.probe" -}}
{{- $part := index . 0 -}}{{- $service := index . 1 -}}{{- $path := index . 2 -}}{{- $tls := index . 3 -}}
{{- if $tls -}}
httpGet: {port: metrics, path: {{ $path }}}
{{- else -}}
grpc: {port: {{ ternary 30000 30001 (eq $part "router") }}, service: {{ $service | quote }}}
{{- end -}}
{{- end -}}

{{/* The source of a volume with one file: a list of a Secret, its key, and the file's name. 288 is 0440: the
pod's group reads it, and nobody else. */}}
{{- define "prefixlb.secretFile" -}}
{secretName: {{ index . 0 }}, defaultMode: 288, items: [{key: {{ index . 1 }}, path: {{ index . 2 }}}]}
{{- end -}}
