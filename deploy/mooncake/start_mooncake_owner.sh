#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Starts this host's owner under the names that Mooncake's launchers use: a thin shell over `kvcove run`.
#
#   start_mooncake_owner.sh [--bg] [--cpu-mem-size GIB] [--host ADDRESS] [--rpc-port PORT]
#                           [--segment-port PORT] [--device NAMES] [--disk-path PATH --disk-size GIB]
#                           | --stop
#
# MC_OWNER_CPU_MEM_GIB (required), MC_OWNER_HOST, MC_OWNER_RPC_PORT 50052 (its admin endpoint, on
# loopback), MC_OWNER_SEGMENT_PORT 50053 (its data), MC_OWNER_READY_TIMEOUT_S 120, MC_OWNER_DEVICE,
# MC_OWNER_DISK_PATH and MC_OWNER_DISK_GIB (a directory for what memory evicts, and how large).
# MOONCAKE_MASTER or MC_MASTER_ENV_FILE name the master. KVCOVE_CREDENTIALS, or KVCOVE_INSECURE=1 for a
# network that is trusted, where other hosts reach the owner. MC_RUN_DIR: where its log and its pid are.
set -euo pipefail
# shellcheck source=common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

background=false
stopping=false
memory=${MC_OWNER_CPU_MEM_GIB:-}
host=${MC_OWNER_HOST:-}
rpc_port=${MC_OWNER_RPC_PORT:-50052}
segment_port=${MC_OWNER_SEGMENT_PORT:-50053}
disk_path=${MC_OWNER_DISK_PATH:-}
disk_size=${MC_OWNER_DISK_GIB:-}
while [[ $# -gt 0 ]]; do
  case $1 in
    --bg) background=true ;;
    --stop) stopping=true ;;
    --cpu-mem-size) memory=$(value_of "$@"); shift ;;
    --host) host=$(value_of "$@"); shift ;;
    --rpc-port) rpc_port=$(value_of "$@"); shift ;;
    --segment-port) segment_port=$(value_of "$@"); shift ;;
    --device) export MC_OWNER_DEVICE; MC_OWNER_DEVICE=$(value_of "$@"); shift ;;
    --disk-size) disk_size=$(value_of "$@"); shift ;;
    --disk-path) disk_path=$(value_of "$@"); shift ;;
    -h | --help) sed -n '3,14s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" && exit 0 ;;
    *) fail "unknown option '$1'; --help lists them" ;;
  esac
  shift
done

directory=$(run_directory)
pid_file=$directory/owner.pid
log=$directory/owner.log
if $stopping; then
  stop "$pid_file" "The owner"
  exit 0
fi
[[ -n $memory ]] || fail "MC_OWNER_CPU_MEM_GIB must be set."
if pid=$(running "$pid_file"); then fail "the owner runs already (pid $pid); --stop ends it"; fi
disk=$(disk_arguments "$disk_path" "$disk_size")
find_master
text=$(owner_arguments "$memory" "$host" "$rpc_port" "$segment_port")
mapfile -t arguments <<<"$text${disk:+$'\n'$disk}"
kvcove=("${KVCOVE_PYTHON:-python3}" -m kvcove run "${arguments[@]}")

if ! $background; then
  remember "$pid_file" $$
  exec "${kvcove[@]}" -- sleep infinity
fi
ready=$directory/owner.ready
rm -f "$ready"
# shellcheck disable=SC2016  # for the shell inside
setsid "${kvcove[@]}" -- sh -c ': >"$1"; exec sleep infinity' sh "$ready" >"$log" 2>&1 </dev/null &
remember "$pid_file" $!
wait_ready "The owner" "$pid_file" "$log" $((${MC_OWNER_READY_TIMEOUT_S:-120} + 10)) test -e "$ready"
rm -f "$ready"
echo "The owner is ready (pid $(running "$pid_file")); log: $log"
