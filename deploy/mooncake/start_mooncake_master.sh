#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Starts kvcove's master under the names that Mooncake's launchers use.
#
#   start_mooncake_master.sh [--bg] [--host ADDRESS] [--env-file FILE] [--config FILE [--segment-size SIZE]]
#                            [--enable-offload] | --stop
#
#   --bg        in the background, ready when this returns; --stop ends it
#   --host      where it listens (MC_MASTER_HOST; default 127.0.0.1: this host alone)
#   --enable-offload  puts wait while the disks of owners make room
#   --env-file  a copy of what owners and engines source (MOONCAKE_MASTER, MOONCAKE_TE_META_DATA_SERVER)
#   --config    writes the JSON that MOONCAKE_CONFIG_PATH names, for engines with MooncakeStoreConnector
#   --segment-size  memory that each rank of such an engine gives, such as 16GiB (default 0: owners give it)
#
# MC_RPC_PORT 50051, MC_HTTP_PORT 8080, MC_METRICS_PORT 9003, MC_LEASE_TTL 30000 (ms).
# MC_RUN_DIR: where its log, its pid and master.env are.
set -euo pipefail
# shellcheck source=common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

background=false
stopping=false
host=${MC_MASTER_HOST:-127.0.0.1}
env_file=
config=
segment=0
offload=()
while [[ $# -gt 0 ]]; do
  case $1 in
    --bg) background=true ;;
    --stop) stopping=true ;;
    --enable-offload) offload=(-enable_offload) ;;
    --host) host=$(value_of "$@"); shift ;;
    --env-file) env_file=$(value_of "$@"); shift ;;
    --config) config=$(value_of "$@"); shift ;;
    --segment-size) segment=$(value_of "$@"); shift ;;
    -h | --help) sed -n '3,17s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" && exit 0 ;;
    *) fail "unknown option '$1'; --help lists them" ;;
  esac
  shift
done

directory=$(run_directory)
pid_file=$directory/master.pid
log=$directory/master.log
if $stopping; then
  stop "$pid_file" "The master"
  rm -f "$directory/master.env"
  exit 0
fi
if pid=$(running "$pid_file"); then fail "the master runs already (pid $pid); --stop ends it"; fi

case $host in
  0.0.0.0 | :: | '[::]') fail "--host $host (MC_MASTER_HOST): master.env names the master by it, and nobody reaches it there; give the address of this host that others use" ;;
esac
rpc_port=$(port_of MC_RPC_PORT "${MC_RPC_PORT:-50051}")
http_port=$(port_of MC_HTTP_PORT "${MC_HTTP_PORT:-8080}")
metrics_port=$(port_of MC_METRICS_PORT "${MC_METRICS_PORT:-9003}")
command=("${KVCOVE_PYTHON:-python3}" -m kvcove.mooncake.master "-rpc_address=$host" "-rpc_port=$rpc_port"
  -enable_http_metadata_server "-http_metadata_server_host=$host" "-http_metadata_server_port=$http_port"
  "-metrics_port=$metrics_port"
  "-default_kv_lease_ttl=${MC_LEASE_TTL:-30000}" "-data=$directory/master"
  ${offload[@]+"${offload[@]}"})

tell_where() {
  local file
  for file in "$directory/master.env" ${env_file:+"$env_file"}; do
    printf 'export MOONCAKE_MASTER=%q\nexport MOONCAKE_TE_META_DATA_SERVER=%q\n' \
      "$(joined "$host" "$rpc_port")" "http://$(joined "$host" "$http_port")/metadata" >"$file"
  done
}
[[ -z $config ]] ||
  write_config "$config" "$(joined "$host" "$rpc_port")" "http://$(joined "$host" "$http_port")/metadata" "$segment"

if ! $background; then
  tell_where
  remember "$pid_file" $$
  exec "${command[@]}"
fi
setsid "${command[@]}" >"$log" 2>&1 </dev/null &
remember "$pid_file" $!
listens() { grep -q "serving at" "$log" && (: <"/dev/tcp/$host/$rpc_port"); }
wait_ready "The master" "$pid_file" "$log" 30 listens
tell_where
grep -h 'without credentials: whoever' "$log" | head -n 1 >&2 || true
echo "The master serves at $(joined "$host" "$rpc_port") (pid $(running "$pid_file")); log: $log"
[[ -z $config ]] || echo "For its engines: export MOONCAKE_CONFIG_PATH=$(realpath "$config")"
