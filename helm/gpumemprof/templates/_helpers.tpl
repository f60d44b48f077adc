{{/* Chart's name, for app.kubernetes.io/name. */}}
{{- define "gpumemprof.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{/* Base of all names, short enough that the longest suffix, -profiling, still fits a DNS label. */}}
{{- define "gpumemprof.fullname" -}}
{{- default .Release.Name .Values.fullnameOverride | trunc 53 | trimAll "-." -}}
{{- end -}}

{{/* The switch: which namespaces are on. */}}
{{- define "gpumemprof.switch" -}}
{{- include "gpumemprof.fullname" . }}-profiling
{{- end -}}

{{/* Cluster-wide names carry the namespace: releases of one name may be in several. */}}
{{- define "gpumemprof.clusterName" -}}
{{- printf "gpumemprof:%s:%s" .Release.Namespace (include "gpumemprof.fullname" .) -}}
{{- end -}}

{{- define "gpumemprof.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "gpumemprof.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "gpumemprof.selectorLabels" -}}
app.kubernetes.io/name: {{ include "gpumemprof.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "gpumemprof.labels" -}}
{{ include "gpumemprof.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimAll "-_." }}
{{- end -}}

{{- define "gpumemprof.image" -}}
{{- $image := .Values.image -}}
{{- if not $image.repository -}}
{{- fail "image.repository is not set: where the nodes pull gpumemprof's image from, e.g. --set image.repository=myregistry.azurecr.io/gpumemprof (make image builds it)" -}}
{{- end -}}
{{- if $image.digest -}}
{{ $image.repository }}@{{ $image.digest }}
{{- else -}}
{{ $image.repository }}:{{ default .Chart.AppVersion $image.tag }}
{{- end -}}
{{- end -}}

{{/* Name of the Secret with Pyroscope's credentials; empty where there are none. */}}
{{- define "gpumemprof.secret" -}}
{{- $p := .Values.pyroscope -}}
{{- if $p.existingSecret -}}
{{- if or $p.password $p.token -}}
{{- fail "pyroscope.password and pyroscope.token exclude pyroscope.existingSecret" -}}
{{- end -}}
{{ $p.existingSecret }}
{{- else if or $p.password $p.token -}}
{{ include "gpumemprof.fullname" . }}-pyroscope
{{- end -}}
{{- end -}}

{{/* Setting of the agent → key of the Secret, as JSON; those that are used. */}}
{{- define "gpumemprof.secretKeys" -}}
{{- $p := .Values.pyroscope -}}
{{- $keys := dict -}}
{{- if $p.existingSecret -}}
{{- range $name, $key := $p.secretKeys -}}
{{- if $key -}}{{- $_ := set $keys (printf "%s_file" $name) $key -}}{{- end -}}
{{- end -}}
{{- if not $keys -}}
{{- fail "pyroscope.existingSecret needs pyroscope.secretKeys: which of its keys to use" -}}
{{- end -}}
{{- else -}}
{{- if $p.password -}}{{- $_ := set $keys "password_file" "password" -}}{{- end -}}
{{- if $p.token -}}{{- $_ := set $keys "token_file" "token" -}}{{- end -}}
{{- end -}}
{{- toJson $keys -}}
{{- end -}}

{{/* The agent's configuration file. Text values only: the agent checks them and names the key. */}}
{{- define "gpumemprof.config" -}}
{{- $v := .Values -}}
{{- $pyroscope := dict "url" $v.pyroscope.url
      "format" $v.pyroscope.format "tenant" $v.pyroscope.tenant "user" $v.pyroscope.user
      "insecure" $v.pyroscope.insecure "timeout" $v.pyroscope.timeout
      "jitter" $v.pyroscope.jitter "labels" $v.pyroscope.labels -}}
{{- if and $v.pyroscope.url (include "gpumemprof.secret" .) -}}
{{- range $setting, $key := include "gpumemprof.secretKeys" . | fromJson -}}
{{- $_ := set $pyroscope $setting (printf "/etc/gpumemprof/pyroscope/%s" $key) -}}
{{- end -}}
{{- end -}}
{{- $config := dict
      "kubernetes" "on"
      "switch" (include "gpumemprof.switch" .)
      "interval" $v.interval
      "loader" $v.loader
      "log_level" $v.logLevel
      "record" (dict "frames" $v.record.frames "stack_bytes" $v.record.stackBytes)
      "limits" (dict "containers" $v.limits.containers "held" $v.limits.held)
      "pyroscope" $pyroscope
      "metrics" (dict "listen" (printf "0.0.0.0:%d" (int $v.metrics.port)) "max_series" $v.metrics.maxSeries)
      "page" (dict "listen" (printf "127.0.0.1:%d" (int $v.page.port)))
      "store" (dict "path" (ternary "/var/lib/gpumemprof" "" $v.store.enabled) "max_bytes" $v.store.maxBytes) -}}
{{- toYaml (mergeOverwrite $config $v.extraConfig) -}}
{{- end -}}

{{/* Each dashboard's file as a key. */}}
{{- define "gpumemprof.dashboards" -}}
{{- range $path, $_ := .Files.Glob "dashboards/*.json" }}
{{ base $path }}: |-
{{ $.Files.Get $path | trim | indent 2 }}
{{- end -}}
{{- end -}}
