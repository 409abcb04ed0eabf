#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Configures a preset if need be and builds it, with an estimate of the time that is left: build.sh PRESET [TARGET...]
# With KVCOVE_WERROR=ON in the environment warnings are errors, from then on in this build directory.
set -euo pipefail
cd "$(dirname "$0")/.."
preset=$1
shift
build=build/$preset
if [ ! -f "$build/build.ninja" ] ||
  { [ -n "${KVCOVE_WERROR:-}" ] && ! grep -qx "KVCOVE_WERROR:BOOL=$KVCOVE_WERROR" "$build/CMakeCache.txt"; }; then
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
# ninja counts its steps; each is taken to last as long as the average of those that are done.
# Line by line: a pipe is a buffer otherwise, and the progress comes in leaps.
NINJA_STATUS='%f %t %e ' stdbuf -oL cmake --build "$build" -j "${JOBS:-$(nproc)}" ${1:+--target "$@"} | awk '
  function clock(s) { return sprintf("%d:%02d", s / 60, s % 60) }
  /^[0-9]+ [0-9]+ [0-9.]+ / {
    done = $1; all = $2; seconds = $3
    sub(/^[0-9]+ [0-9]+ [0-9.]+ /, "")
    left = done < all && seconds >= 5 ? ", about " clock(seconds / done * (all - done)) " left" : ""
    printf "[%d of %d, %s%s] %s\n", done, all, clock(seconds), left, $0
    fflush()
    next
  }
  { print; fflush() }'
