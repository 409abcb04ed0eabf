#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs an engine with this host's owner around it, under the names that Mooncake's launchers use: a thin
# shell over `kvcove run`.
#
#   run_vllm_with_mooncake_owner.sh COMMAND...
#
# `vllm serve` without --kv-transfer-config gets KvcoveConnector, or MooncakeStoreConnector where vLLM is
# older than 0.24 (MC_CONNECTOR: kvcove, mooncake or none); a command that brings one keeps it. Other
# variables: those of start_mooncake_owner.sh, and MOONCAKE_CONFIG_PATH, a JSON file of the store's
# (default: one is written for the master, with no memory of the engines' own).
set -euo pipefail
# shellcheck source=common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

[[ ${1:-} != -h && ${1:-} != --help ]] || { sed -n '3,11s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" && exit 0; }
[[ -n ${MC_OWNER_CPU_MEM_GIB:-} ]] || fail "MC_OWNER_CPU_MEM_GIB must be set."
[[ $# -gt 0 ]] || fail "usage: $0 COMMAND..."
disk=$(disk_arguments "${MC_OWNER_DISK_PATH:-}" "${MC_OWNER_DISK_GIB:-}")
find_master
text=$(owner_arguments "$MC_OWNER_CPU_MEM_GIB" "${MC_OWNER_HOST:-}" \
  "${MC_OWNER_RPC_PORT:-50052}" "${MC_OWNER_SEGMENT_PORT:-50053}")
mapfile -t arguments <<<"$text${disk:+$'\n'$disk}"

python=${KVCOVE_PYTHON:-python3}
if [[ -z ${MOONCAKE_CONFIG_PATH:-} ]]; then
  MOONCAKE_CONFIG_PATH=$(run_directory)/config.json
  write_config "$MOONCAKE_CONFIG_PATH" "$MOONCAKE_MASTER" "${MOONCAKE_TE_META_DATA_SERVER:-P2PHANDSHAKE}" 0
  export MOONCAKE_CONFIG_PATH
fi

connector=${MC_CONNECTOR:-}
if [[ -z $connector ]]; then
  connector=$("$python" -c 'from kvcove.vllm import _versions
print("kvcove" if _versions.serves(_versions.installed_version()) else "mooncake")')
fi
exec "$python" -m kvcove run "${arguments[@]}" --connector "$connector" -- "$@"
