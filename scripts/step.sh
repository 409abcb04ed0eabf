# SPDX-License-Identifier: Apache-2.0
# Sourced. step NAME BUDGET_S begins a step: prints its heading, and notes it for the table that .ci/run prints (ci_report.py).
step() {
  printf '\n== %s\n' "$1"
  if [ -n "${KVCOVE_STEPS:-}" ]; then
    printf '%s\t%s\t%s\n' "$(date +%s)" "$2" "$1" >>"$KVCOVE_STEPS"
  fi
}

# in_background LOG COMMAND...: runs it at idle priority until stop_background, or to its end. What it did not do is done when
# a later step asks for it: builds go on where they were stopped.
background=
in_background() {
  local log=$1
  shift
  set -m
  KVCOVE_STEPS='' chrt --idle 0 "$@" >>"$log" 2>&1 &
  background=$!
  set +m
}
stop_background() {
  [ -n "$background" ] || return 0
  kill -- "-$background" 2>/dev/null || true
  wait "$background" || true
  background=
}
