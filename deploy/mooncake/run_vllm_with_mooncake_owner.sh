#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs an engine with this host's owner around it, under the names that Mooncake's launchers use: a thin
# shell over `kvcove run`.
#
#   run_vllm_with_mooncake_owner.sh COMMAND...
#
# `vllm serve` without --kv-transfer-config gets MooncakeStoreConnector; a command that brings one keeps
# it. Variables: those of start_mooncake_owner.sh, and MOONCAKE_CONFIG_PATH, a JSON file of the store's
# (default: one is written for the master, with no memory of the engines' own).
set -euo pipefail
# shellcheck source=common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

[[ ${1:-} != -h && ${1:-} != --help ]] || { sed -n '3,10s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" && exit 0; }
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
  "$python" - "$MOONCAKE_CONFIG_PATH" "$MOONCAKE_MASTER" "${MOONCAKE_TE_META_DATA_SERVER:-P2PHANDSHAKE}" <<'PY'
import json
import os
import sys

path, master, metadata = sys.argv[1:]
made = f"{path}.{os.getpid()}"
with open(made, "w", encoding="utf-8") as file:
    json.dump(
        {
            "mode": "standalone-store",
            "local_hostname": "localhost",
            "metadata_server": metadata,
            "master_server_address": master,
            "global_segment_size": 0,
            "local_buffer_size": 4294967296,
            # Data goes over TCP, and over shared memory on one host.
            "protocol": os.environ.get("MOONCAKE_PROTOCOL", "tcp"),
            "device_name": os.environ.get("MOONCAKE_DEVICE", ""),
            "enable_offload": bool(os.environ.get("MC_OWNER_DISK_PATH")),
        },
        file,
        indent=2,
    )
os.replace(made, path)
PY
  export MOONCAKE_CONFIG_PATH
fi

exec "$python" -m kvcove run "${arguments[@]}" --connector mooncake -- "$@"
