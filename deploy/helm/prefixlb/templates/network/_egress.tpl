{{- define "prefixlb.redisEgress" -}}
{{- if .Values.redis.enabled -}}
- ports: [{protocol: TCP, port: 6379}]
  to:
    - podSelector:
        matchLabels: {{- include "prefixlb.selector" (list . "redis") | nindent 10 }}
{{- else -}}
- ports:
    {{- range .Values.networkPolicy.redis.ports }}
    - {protocol: TCP, port: {{ . }}}
    {{- end }}
  {{- with .Values.networkPolicy.redis.to }}
  to: {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end -}}
{{- end -}}

{{- define "prefixlb.collectorEgress" -}}
{{- if .Values.tracing.endpoint -}}
- ports:
    {{- range .Values.networkPolicy.collector.ports }}
    - {protocol: TCP, port: {{ . }}}
    {{- end }}
  {{- with .Values.networkPolicy.collector.to }}
  to: {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end -}}
{{- end -}}

{{- define "prefixlb.dnsEgress" -}}
- ports:
    {{- range .Values.networkPolicy.dns.ports }}
    - {protocol: UDP, port: {{ . }}}
    - {protocol: TCP, port: {{ . }}}
    {{- end }}
  {{- with .Values.networkPolicy.dns.to }}
  to: {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end -}}
