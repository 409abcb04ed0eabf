# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# Sourced. step NAME BUDGET_S begins a step: prints its heading, and notes it for the table that .ci/run prints (ci_report.py).
step() {
  printf '\n== %s\n' "$1"
  if [ -n "${KVCOVE_STEPS:-}" ]; then
    printf '%s\t%s\t%s\n' "$(date +%s)" "$2" "$1" >>"$KVCOVE_STEPS"
  fi
}

# begin_background runs the tasks of scripts/check.sh in turn, at idle priority: they take what the steps leave idle, as tests wait for
# as long as they compute. finish_task then waits for one of them; stop_background ends them all.
background=${KVCOVE_BACKGROUND:-} # its process; that of .ci/run serves the scripts that it calls, too
results=build/background
begin_background() {
  rm -rf "$results"
  mkdir -p "$results"
  KVCOVE_STEPS='' chrt --idle 0 scripts/check.sh background &
  background=$!
  export KVCOVE_BACKGROUND=$background
}

# finish_task TASK waits until it has ended, with its last line; of one that failed it prints the log's end, and fails with it.
finish_task() {
  local log=$results/$1.log status=$results/$1.status
  while [ ! -s "$status" ]; do
    if ! kill -0 "$background" 2>/dev/null && [ ! -s "$status" ]; then
      echo "what runs beside the steps has ended before $1"
      return 1
    fi
    # Nothing else of this script needs the cores now. Others on the machine may.
    prioritise --other
    sleep 1
  done
  prioritise --idle
  if [ "$(cat "$status")" -eq 0 ]; then
    tail -n 1 "$log"
  else
    tail -n 200 "$log"
  fi
  return "$(cat "$status")"
}

# The background's process and all below it. (ninja gives each command a process group of its own.)
background_processes() {
  sed -n 's/^\([0-9]*\) (.*) . \([0-9]*\) .*/\1 \2/p' /proc/[0-9]*/stat 2>/dev/null | awk -v top="$background" '
    { parent[$1] = $2 }
    END { for (each in parent) { for (up = each; up in parent && up != top;) up = parent[up]; if (up == top) print each } }'
}

# Some systems let only root raise a priority; what waits for nobody else runs at full speed anyway.
prioritise() {
  local process
  for process in $(background_processes); do
    chrt "$1" --pid 0 "$process" 2>/dev/null || true
  done
}

stop_background() {
  [ -n "$background" ] || return 0
  # shellcheck disable=SC2046  # one word for each process
  kill $(background_processes) 2>/dev/null || true
  wait "$background" 2>/dev/null || true
  background=
}
