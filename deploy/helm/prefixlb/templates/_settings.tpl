{{/* Names of the router's settings that change without a restart. They go into a file that it follows; the
others into its environment, so that a change of one of them makes new pods. */}}
{{- define "prefixlb.changeableSettings" -}}
balance_abs_threshold balance_rel_threshold breaker_failures breaker_max_open_s breaker_open_s breaker_window_s
cache_threshold decode_weight load_factor log_level max_inflight policy queue_size queue_timeout_s retries
retry_budget uncached_weight
{{- end -}}

{{- define "prefixlb.routerSettingsFile" -}}
{{- $changeable := splitList " " (include "prefixlb.changeableSettings" . | replace "\n" " ") -}}
{{- range $name, $value := .Values.router.settings }}
{{- if has $name $changeable }}
{{ $name }} = {{ toJson $value }}
{{- end }}
{{- end }}
{{- end -}}

{{/* Numbers as JSON writes them: Go would write 1.073741824e+09. */}}
{{- define "prefixlb.settingText" -}}
{{- if kindIs "string" . }}{{ . | quote }}{{ else }}{{ toJson . | quote }}{{ end -}}
{{- end -}}

{{- define "prefixlb.routerSettingsEnv" -}}
{{- $changeable := splitList " " (include "prefixlb.changeableSettings" . | replace "\n" " ") -}}
{{- range $name, $value := .Values.router.settings }}
{{- if not (has $name $changeable) }}
- {name: ROUTER_{{ upper $name }}, value: {{ include "prefixlb.settingText" $value }}}
{{- end }}
{{- end }}
{{- end -}}

{{- define "prefixlb.replicaSettingsEnv" -}}
{{- range $name, $value := .Values.replica.settings }}
- {name: REPLICA_{{ upper $name }}, value: {{ include "prefixlb.settingText" $value }}}
{{- end }}
{{- end -}}

{{/* Where traces go, and of which requests: a list of the context, and ROUTER or REPLICA. */}}
{{- define "prefixlb.tracingEnv" -}}
{{- $root := index . 0 -}}
{{- with $root.Values.tracing -}}
{{- if .endpoint -}}
- {name: {{ index $ 1 }}_OTLP_TRACES_ENDPOINT, value: {{ .endpoint | quote }}}
- {name: OTEL_TRACES_SAMPLER, value: parentbased_traceidratio}
- {name: OTEL_TRACES_SAMPLER_ARG, value: {{ include "prefixlb.settingText" .ratio }}}
- name: POD_NAME
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
- name: NODE_NAME
  valueFrom: {fieldRef: {fieldPath: spec.nodeName}}
- name: OTEL_RESOURCE_ATTRIBUTES
  value: k8s.namespace.name={{ $root.Release.Namespace }},k8s.pod.name=$(POD_NAME),k8s.node.name=$(NODE_NAME)
{{- end -}}
{{- end -}}
{{- end -}}

{{/* The variable that says where Redis is: a list of the context and its name. */}}
{{- define "prefixlb.redisUrl" -}}
{{- $root := index . 0 -}}{{- $redis := $root.Values.redis -}}
- name: {{ index . 1 }}
  {{- if $redis.enabled }}
  valueFrom: {secretKeyRef: {name: {{ include "prefixlb.fullname" $root }}-redis, key: url}}
  {{- else if $redis.existing.secretName }}
  valueFrom: {secretKeyRef: {name: {{ $redis.existing.secretName }}, key: {{ $redis.existing.secretKey }}}}
  {{- else }}
  value: {{ $redis.existing.url | quote }}
  {{- end }}
{{- end -}}
