#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs the tests of a built preset: test.sh PRESET [--busy N] [ctest arguments]
# --busy N runs N endless loops beside them, which no test may fail for.
# Prints the ten slowest tests and the skipped ones; in CI a skip that tests/allowed_skips.txt does not list is an error.
set -euo pipefail
cd "$(dirname "$0")/.."
preset=$1
shift
busy=0
if [ "${1:-}" = --busy ]; then
  busy=$2
  shift 2
fi
build=build/$preset
. scripts/symbolizer.sh
echo "== Testing ($preset)"
loops=()
trap '[ ${#loops[@]} -eq 0 ] || kill "${loops[@]}" 2>/dev/null || true' EXIT
for ((i = 0; i < busy; ++i)); do
  (while :; do :; done) &
  loops+=($!)
done
[ "$busy" -eq 0 ] || echo "== $busy endless loops run beside the tests"
export KVCOVE_SKIPS=$PWD/$build/skips.tsv
: >"$KVCOVE_SKIPS"
status=0
# Tests wait for processes, leases and disks for longer than they compute: three times as many as there are cores.
ctest --test-dir "$build" --output-on-failure -j "${JOBS:-$(($(nproc) * 3))}" --no-tests=error \
  --output-junit ctest.xml "$@" || status=$?
python3 scripts/ci_report.py tests "$build/ctest.xml" --skips "$KVCOVE_SKIPS" || status=$?
exit $status
