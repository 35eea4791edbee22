{{/* What no schema of values can say. Each ends the rendering with what to do. */}}
{{- define "prefixlb.checks" -}}
{{- $redis := .Values.redis -}}
{{- $given := list -}}
{{- if $redis.enabled }}{{ $given = append $given "redis.enabled" }}{{ end -}}
{{- if $redis.existing.url }}{{ $given = append $given "redis.existing.url" }}{{ end -}}
{{- if $redis.existing.secretName }}{{ $given = append $given "redis.existing.secretName" }}{{ end -}}
{{- if ne (len $given) 1 }}
  {{- fail (printf "\n\nexactly one of redis.enabled, redis.existing.url and redis.existing.secretName says where Redis is; given: %s" ($given | join ", " | default "none")) }}
{{- end -}}
{{- with .Values.tls.client -}}
  {{- if and .enabled (not .existingSecret) (not .certManager.issuerRef) }}
    {{- fail "\n\ntls.client.enabled needs tls.client.existingSecret or tls.client.certManager.issuerRef" }}
  {{- end -}}
  {{- if and .requireClientCertificate (not .enabled) }}
    {{- fail "\n\ntls.client.requireClientCertificate needs tls.client.enabled" }}
  {{- end -}}
{{- end -}}
{{- with .Values.tls.replica -}}
  {{- $secrets := and .existingSecret .existingRouterSecret -}}
  {{- if and .enabled (not .certManager.enabled) (not $secrets) }}
    {{- fail "\n\ntls.replica.enabled needs tls.replica.certManager.enabled, or both tls.replica.existingSecret and tls.replica.existingRouterSecret" }}
  {{- end -}}
{{- end -}}
{{- with .Values.replica.model -}}
  {{- if and .volume .volumeClaimTemplate }}
    {{- fail "\n\nreplica.model.volume and replica.model.volumeClaimTemplate exclude each other" }}
  {{- end -}}
{{- end -}}
{{- end -}}
