#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the unit tests of segment, wire and policy for aarch64 and runs them under qemu-user.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh --aarch64
build=build/aarch64
mkdir -p build
echo "== Building (aarch64)"
cmake -S tests/aarch64 -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release \
  -DCMAKE_TOOLCHAIN_FILE="$PWD/cmake/aarch64.cmake" >"$build.log" 2>&1 || {
  cat "$build.log"
  exit 1
}
cmake --build "$build" -j "${JOBS:-$(nproc)}"
echo "== Unit tests of segment, wire and policy under qemu-aarch64"
ctest --test-dir "$build" -R '^(segment|wire|policy)_' -j "${JOBS:-$(nproc)}" --output-on-failure
