#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs the tests of a built preset: test.sh PRESET [ctest arguments]
set -euo pipefail
cd "$(dirname "$0")/.."
preset=$1
shift
echo "== Testing ($preset)"
# Tests wait for processes, leases and disks longer than they compute: half as many more as there are cores.
ctest --test-dir "build/$preset" --output-on-failure -j "${JOBS:-$(($(nproc) * 3 / 2))}" --no-tests=error "$@"
