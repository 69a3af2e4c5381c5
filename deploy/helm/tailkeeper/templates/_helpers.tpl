{{/* Labels that find the pods of a part, called with its name. */}}
{{- define "tailkeeper.selector" -}}
app.kubernetes.io/name: tailkeeper
app.kubernetes.io/component: {{ . }}
{{- end }}

{{/* Labels of every object, called with the release. */}}
{{- define "tailkeeper.labels" -}}
app.kubernetes.io/part-of: tailkeeper
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/instance: {{ .Release.Name }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{/* An image, called with (list RELEASE NAME). */}}
{{- define "tailkeeper.image" -}}
{{- $root := index . 0 -}}
image: {{ printf "%stailkeeper/%s:%s" $root.Values.image.registry (index . 1) ($root.Values.image.tag | default $root.Chart.AppVersion) }}
imagePullPolicy: {{ $root.Values.image.pullPolicy }}
{{- end }}

{{/* Nothing of ours is root or needs to become it. */}}
{{- define "tailkeeper.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "tailkeeper.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{/* Whether the program answers, and nothing of the fleet: a restart heals no engine. */}}
{{- define "tailkeeper.liveness" -}}
startupProbe:
  httpGet: {path: /livez, port: http}
  periodSeconds: 2
  failureThreshold: 30
livenessProbe:
  httpGet: {path: /livez, port: http}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
{{- end }}

{{- define "tailkeeper.readiness" -}}
readinessProbe:
  httpGet: {path: {{ . }}, port: http}
  periodSeconds: 5
  timeoutSeconds: 3
{{- end }}

{{/* Half a minute tells a lost node from a slow one. */}}
{{- define "tailkeeper.lostNode" -}}
- {key: node.kubernetes.io/not-ready, operator: Exists, effect: NoExecute, tolerationSeconds: 30}
- {key: node.kubernetes.io/unreachable, operator: Exists, effect: NoExecute, tolerationSeconds: 30}
{{- end }}

{{/* Of a claim for the ledger, called with (list RELEASE MODE). */}}
{{- define "tailkeeper.stateVolume" -}}
{{- $storage := (index . 0).Values.watchdog.storage -}}
accessModes: [{{ index . 1 }}]
{{- with $storage.storageClassName }}
storageClassName: {{ . }}
{{- end }}
resources: {requests: {storage: {{ $storage.size }}}}
{{- end }}

{{- define "tailkeeper.pullSecrets" -}}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- end }}

{{- define "tailkeeper.tokenSecret" -}}
{{- .Values.token.existingSecret | default "tailkeeper-token" -}}
{{- end }}

{{- define "tailkeeper.discovery" -}}
discovery:
  - kind: kubernetes
    namespace: {{ .Values.engines.namespace }}
    selector: {{ .Values.engines.selector | quote }}
    port: {{ .Values.engines.port }}
    engine: {{ .Values.engines.engine }}
    in_cluster: true
{{- end }}

{{/* What the chart sets in the watchdog's configuration. */}}
{{- define "tailkeeper.config" -}}
{{- if eq .Values.exporter.mode "daemonset" }}
defaults:
  engine: {{ .Values.engines.engine }}
  gpus: {{ toJson .Values.exporter.gpus }}
{{- else }}
{{ include "tailkeeper.discovery" . }}
{{- end }}
watchdog:
  listen: 0.0.0.0:8088
  state: /var/lib/tailkeeper/tailkeeper.db
  token_file: /run/tailkeeper/token
  leader: {namespace: {{ .Release.Namespace }}, name: tailkeeper, in_cluster: true}
  {{- if eq .Values.exporter.mode "discovery" }}
  tick_s: {{ .Values.watchdog.tickSeconds }}
  source: {kind: exporter, urls: ["http://tailkeeper-exporter:9400"]}
  {{- else if .Values.exporter.urls }}
  tick_s: {{ .Values.watchdog.tickSeconds }}
  source: {kind: exporter, urls: {{ toJson .Values.exporter.urls }}}
  {{- else }}
  {{- /* New numbers come every 5 s, so a quicker tick has nothing to look at. */}}
  tick_s: {{ max 5 .Values.watchdog.tickSeconds }}
  source: {kind: prometheus, url: {{ .Values.prometheus.url | quote }}, interval_s: 5}
  {{- end }}
  {{- with .Values.prometheus.alertmanagerUrl }}
  alertmanager: {url: {{ . | quote }}}
  {{- end }}
{{- end }}

{{/* What the chart sets in the exporter's. */}}
{{- define "tailkeeper.exporterConfig" -}}
{{- if eq .Values.exporter.mode "daemonset" }}
defaults:
  engine: {{ .Values.engines.engine }}
  quantization: {{ dig "defaults" "quantization" "unknown" .Values.config }}
  gpus: {{ toJson .Values.exporter.gpus }}
discovery:
  - {kind: file_sd, files: [/run/target/engine.json]}
exporter: {listen: "0.0.0.0:9400", gpu: {source: nvml}}
{{- else }}
defaults:
  quantization: {{ dig "defaults" "quantization" "unknown" .Values.config }}
{{ include "tailkeeper.discovery" . }}
exporter: {listen: "0.0.0.0:9400", gpu: {source: none}}
{{- end }}
{{- end }}
