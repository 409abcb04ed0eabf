#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Configures a preset if need be and builds it: build.sh PRESET [TARGET...]
# With KVCOVE_WERROR=ON in the environment warnings are errors, from then on in this build directory.
set -euo pipefail
cd "$(dirname "$0")/.."
# Another build of the same tree (pip's) finds these objects in the cache.
export CCACHE_BASEDIR=$PWD
# Tests share precompiled headers, in which nothing depends on macros of their users or on the time.
export CCACHE_SLOPPINESS=pch_defines,time_macros
preset=$1
shift
if [ ! -f "build/$preset/build.ninja" ] ||
  { [ -n "${KVCOVE_WERROR:-}" ] && ! grep -qx "KVCOVE_WERROR:BOOL=$KVCOVE_WERROR" "build/$preset/CMakeCache.txt"; }; then
  echo "== Configuring ($preset)"
  cmake --preset "$preset" >"/tmp/kvcove-configure-$$.log" 2>&1 || {
    cat "/tmp/kvcove-configure-$$.log"
    rm -f "/tmp/kvcove-configure-$$.log"
    echo "Configuring failed; scripts/setup.sh lists what is needed."
    exit 1
  }
  rm -f "/tmp/kvcove-configure-$$.log"
fi
echo "== Building ($preset)"
if [ $# -gt 0 ]; then
  cmake --build "build/$preset" -j "${JOBS:-$(nproc)}" --target "$@"
else
  cmake --build "build/$preset" -j "${JOBS:-$(nproc)}"
fi
