{{- /* SPDX-License-Identifier: Apache-2.0 */ -}}

{{- /* The labels of an object. Its argument: (dict "root" $ "component" NAME). */ -}}
{{- define "kvcove.labels" -}}
{{ include "kvcove.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
{{- end -}}

{{- define "kvcove.selector" -}}
app.kubernetes.io/name: kvcove
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{- define "kvcove.image" -}}
{{ required "image.repository: name your registry's kvcove; docs/container.md says how to make it" .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}

{{- /* The masters' addresses, as every client writes them. A client follows a leader to an address of its list only. */ -}}
{{- define "kvcove.masters" -}}
{{- range $i := until (int .Values.master.replicas) -}}
{{- if $i }},{{ end }}{{ $.Release.Name }}-master-{{ $i }}.{{ $.Release.Name }}-master.{{ $.Release.Namespace }}.svc:7400
{{- end -}}
{{- end -}}

{{- /* The name of a volume of the nodes. Volumes belong to no namespace, so the release's is in the name. */ -}}
{{- define "kvcove.volume" -}}
{{ .Release.Namespace }}-{{ .Release.Name }}
{{- end -}}

{{- /* Refuses values that contradict each other, or lack something. */ -}}
{{- define "kvcove.check" -}}
{{- if and (not .Values.credentials.secret) (not .Values.insecure) -}}
{{- fail "name a secret with servers.toml in credentials.secret, or say insecure: true where networkPolicy keeps strangers out" -}}
{{- end -}}
{{- if and .Values.credentials.secret .Values.insecure -}}
{{- fail "insecure: true and credentials.secret exclude each other; take one out" -}}
{{- end -}}
{{- if and (gt (int .Values.master.replicas) 1) (not .Values.master.etcd.endpoints) -}}
{{- fail "master.replicas: more than one master needs etcd; name its members in master.etcd.endpoints" -}}
{{- end -}}
{{- range .Values.engines.namespaces -}}
{{- if eq . $.Release.Namespace -}}
{{- fail "engines.namespaces: the release's own namespace has its claim anyway; take it out" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- /* Of a pod: the user of the image, and groups that may read secrets. Files of a volume that has its group already stay as they are: kvcove
       refuses files that others may write. */ -}}
{{- define "kvcove.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "kvcove.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}

{{- /* Options, mounts and volumes of the files that masters and owners have alike. */ -}}
{{- define "kvcove.accessArgs" -}}
{{- if .Values.insecure }}
- --insecure
{{- else }}
- --credentials=/etc/kvcove/credentials/servers.toml
{{- end }}
{{- if .Values.tls.secret }}
- --tls-authority=/etc/kvcove/tls/ca.crt
- --tls-certificate=/etc/kvcove/tls/tls.crt
- --tls-key=/etc/kvcove/tls/tls.key
{{- end }}
{{- end -}}

{{- define "kvcove.accessMounts" -}}
{{- if .Values.credentials.secret }}
- {name: credentials, mountPath: /etc/kvcove/credentials, readOnly: true}
{{- end }}
{{- if .Values.tls.secret }}
- {name: tls, mountPath: /etc/kvcove/tls, readOnly: true}
{{- end }}
{{- end -}}

{{- define "kvcove.accessVolumes" -}}
{{- with .Values.credentials.secret }}
- name: credentials
  secret: {secretName: {{ . }}, defaultMode: 0440}
{{- end }}
{{- with .Values.tls.secret }}
- name: tls
  secret: {secretName: {{ . }}, defaultMode: 0440}
{{- end }}
{{- end -}}

{{- /* Probes. Its argument: the port of the admin endpoint, which listens in the pod's loopback alone and is no TLS port. It is named: an owner that
       serves all tenants has no socket, and the socket's directory is the node's. */ -}}
{{- define "kvcove.probes" -}}
startupProbe:
  exec: {command: [/usr/bin/kvcove, health, "--admin=127.0.0.1:{{ . }}"]}
  periodSeconds: 2
  timeoutSeconds: 5
  failureThreshold: 150
livenessProbe:
  exec: {command: [/usr/bin/kvcove, health, "--admin=127.0.0.1:{{ . }}"]}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
readinessProbe:
  exec: {command: [/usr/bin/kvcove, health, --ready, "--admin=127.0.0.1:{{ . }}"]}
  periodSeconds: 5
  timeoutSeconds: 5
{{- end -}}

{{- /* Where its pods may be. Its argument: .Values.master or .Values.owner. */ -}}
{{- define "kvcove.placement" -}}
{{- with .nodeSelector }}
nodeSelector:
{{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations:
{{- toYaml . | nindent 2 }}
{{- end }}
{{- with .affinity }}
affinity:
{{- toYaml . | nindent 2 }}
{{- end }}
{{- with .priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- end -}}
