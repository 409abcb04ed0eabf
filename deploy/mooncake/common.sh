# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# What the three scripts share. Sourced, with errexit on.

fail() {
  echo "Error: $*" >&2
  exit 1
}

# Logs, pids and the file that names the master: a directory that only this user may enter.
run_directory() {
  local path=${MC_RUN_DIR:-${XDG_RUNTIME_DIR:-/tmp/kvcove-$(id -u)}/kvcove-mooncake}
  (umask 077 && mkdir -p "$path")
  [[ -O $path && ! -L $path && $(stat -c %a "$path") == 700 ]] ||
    fail "$path is not a directory of this user's alone (mode 700): remove it, or set MC_RUN_DIR"
  echo "$path"
}

# The value of an option that has one.
value_of() {
  [[ $# -ge 2 && -n $2 ]] || fail "$1 needs a value"
  echo "$2"
}

port_of() {
  [[ $2 =~ ^[0-9]{1,5}$ && $2 -ge 1 && $2 -le 65535 ]] || fail "$1: '$2' is no port"
  echo "$2"
}

joined() {
  if [[ $1 == *:* ]]; then echo "[$1]:$2"; else echo "$1:$2"; fi
}

# Which process a pid is: the pid alone may be another one's by now.
started_at() {
  local line
  local -a fields
  line=$(cat "/proc/$1/stat" 2>/dev/null) || return 1
  read -ra fields <<<"${line##*) }"  # behind the name, which may hold anything
  [[ ${fields[0]} != Z ]] && echo "${fields[19]}"
}

remember() {
  echo "$2 $(started_at "$2")" >"$1"
}

# Whether the process that a pid file names is there; its pid.
running() {
  local pid began
  [[ -r $1 ]] && read -r pid began <"$1" && [[ $(started_at "$pid") == "$began" ]] && echo "$pid"
}

# Ends the process that a pid file names: TERM, 10 s, KILL.
stop() {
  local pid
  if ! pid=$(running "$1"); then
    rm -f "$1"
    echo "$2 is not running."
    return 0
  fi
  kill -TERM "$pid" 2>/dev/null || true
  for _ in {1..100}; do
    running "$1" >/dev/null || break
    sleep 0.1
  done
  running "$1" >/dev/null && kill -KILL "$pid" 2>/dev/null
  rm -f "$1"
  echo "$2 has ended."
}

# Waits until a process is ready (a command says so); else the end of its log.
wait_ready() {
  local what=$1 pid_file=$2 log=$3 seconds=$4
  shift 4
  local until=$((SECONDS + seconds))
  until "$@" 2>/dev/null; do
    if ! running "$pid_file" >/dev/null; then
      echo "$what exited before becoming ready; the end of $log:" >&2
    elif ((SECONDS < until)); then
      sleep 0.1
      continue
    else
      echo "$what was not ready within $seconds s; the end of $log:" >&2
    fi
    tail -n 50 "$log" >&2
    stop "$pid_file" "$what" >/dev/null
    return 1
  done
}

# Where the master is: MOONCAKE_MASTER, else what start_mooncake_master.sh wrote.
find_master() {
  [[ -z ${MOONCAKE_MASTER:-} ]] || return 0
  local file=${MC_MASTER_ENV_FILE:-$(run_directory)/master.env}
  [[ -r $file ]] || fail "no master is named and $file is not there: set MOONCAKE_MASTER=host:port, or run start_mooncake_master.sh"
  # shellcheck disable=SC1090
  source "$file"
  [[ -n ${MOONCAKE_MASTER:-} ]] || fail "$file does not set MOONCAKE_MASTER"
}

# The arguments of `kvcove run` for this host's owner, one a line.
owner_arguments() {
  local memory=$1 host=$2 rpc_port segment_port
  rpc_port=$(port_of "the owner's RPC port" "$3") || return
  segment_port=$(port_of "the owner's segment port" "$4") || return
  [[ $memory =~ ^[1-9][0-9]*$ ]] || fail "the memory of the owner is '$memory': give a number of GiB"
  local listen=$host
  if [[ -z $host ]]; then
    # The owner finds out which of this host's addresses the master's hosts reach.
    case $MOONCAKE_MASTER in
      127.* | localhost:* | '[::1]:'*) listen=127.0.0.1 ;;
      *) listen=0.0.0.0 ;;
    esac
  fi
  printf '%s\n' --master "$MOONCAKE_MASTER" --memory "${memory}GiB" \
    --listen "$(joined "$listen" "$segment_port")" --admin "127.0.0.1:$rpc_port"
  [[ -z ${MC_OWNER_DEVICE:-} ]] || printf '%s\n' --rdma-device "$MC_OWNER_DEVICE"
  [[ ${MOONCAKE_PROTOCOL:-tcp} != rdma ]] || printf '%s\n' --transport auto
  [[ ${KVCOVE_INSECURE:-0} != 1 ]] || echo --insecure
  [[ -z ${KVCOVE_SOCKET:-} ]] || printf '%s\n' --socket "$KVCOVE_SOCKET"
  printf '%s\n' --ready-timeout "${MC_OWNER_READY_TIMEOUT_S:-120}"
}

# `--disk PATH:SIZE`, one word a line; nothing without a path and a size. PATH is made.
disk_arguments() {
  local path=$1 size=$2
  [[ -n $path$size ]] || return 0
  [[ $path == /* && $path != *:* ]] ||
    fail "the disk of the owner is at '$path' (MC_OWNER_DISK_PATH, --disk-path): give an absolute path without ':'"
  [[ $size =~ ^[1-9][0-9]*$ ]] ||
    fail "the disk of the owner has '$size' (MC_OWNER_DISK_GIB, --disk-size): give a number of GiB"
  mkdir -p "$path" || fail "cannot make $path"
  printf '%s\n' --disk "$path:${size}GiB"
}

# Writes the JSON that MOONCAKE_CONFIG_PATH names: where the master is, and how much memory each rank of an engine gives.
write_config() {
  local path=$1 master=$2 metadata=$3 segment=$4
  "${KVCOVE_PYTHON:-python3}" - "$path" "$master" "$metadata" "$segment" <<'PY'
import json
import os
import sys

from kvcove.mooncake._config import parse_size

path, master, metadata, segment = sys.argv[1:]
try:
    size = parse_size(segment)
except ValueError as error:
    sys.exit(f"Error: the memory of each rank (--segment-size): {error}")
made = f"{path}.{os.getpid()}"
with open(made, "w", encoding="utf-8") as file:
    json.dump(
        {
            "mode": "embedded" if size else "standalone-store",
            "local_hostname": "localhost",
            "metadata_server": metadata,
            "master_server_address": master,
            "global_segment_size": size,
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
}
