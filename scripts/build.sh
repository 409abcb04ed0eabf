#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Configures a preset if need be and builds it, with an estimate of the time that is left: build.sh PRESET [TARGET...]
set -euo pipefail
cd "$(dirname "$0")/.."
preset=$1
shift
build=build/$preset
if [ ! -f "$build/build.ninja" ]; then
  echo "== Configuring ($preset)"
  log=$(mktemp)
  cmake --preset "$preset" >"$log" 2>&1 || {
    cat "$log"
    rm -f "$log"
    echo "Configuring failed; scripts/setup.sh lists what is needed."
    exit 1
  }
  rm -f "$log"
fi
echo "== Building ($preset)"
clock() { printf '%d:%02d' $(($1 / 60)) $(($1 % 60)); }
# ninja counts its steps; each is taken to last as long as the average of those that are done. (awk would read ahead.)
NINJA_STATUS='%f %t %e ' cmake --build "$build" -j "${JOBS:-$(nproc)}" ${1:+--target "$@"} | while IFS= read -r line; do
  if [[ $line =~ ^([0-9]+)\ ([0-9]+)\ ([0-9]+)[0-9.]*\ (.*)$ ]]; then
    steps=${BASH_REMATCH[1]} all=${BASH_REMATCH[2]} seconds=${BASH_REMATCH[3]} left=
    if [ "$steps" -gt 0 ] && [ "$steps" -lt "$all" ] && [ "$seconds" -ge 5 ]; then left=", about $(clock $((seconds * (all - steps) / steps))) left"; fi
    line="[$steps of $all, $(clock "$seconds")$left] ${BASH_REMATCH[4]}"
  fi
  printf '%s\n' "$line"
done
