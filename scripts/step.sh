# SPDX-License-Identifier: Apache-2.0
# Sourced. step NAME BUDGET_S begins a step: prints its heading, and notes it for the table that .ci/run prints (ci_report.py).
step() {
  printf '\n== %s\n' "$1"
  if [ -n "${KVCOVE_STEPS:-}" ]; then
    printf '%s\t%s\t%s\n' "$(date +%s)" "$2" "$1" >>"$KVCOVE_STEPS"
  fi
}
