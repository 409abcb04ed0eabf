#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The checks behind the tests: format, layers, tidy on what changed, sanitizers, fuzzers. `check.sh TASK` does one of those that need
# nobody's attention; `check.sh background` does them all, for finish_task (scripts/step.sh). KVCOVE_FUZZ_SECONDS shortens or lengthens
# the fuzzers' time.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/step.sh

build_asan() { scripts/build.sh asan instrumented_tests; }
build_tsan() {
  scripts/build.sh tsan kvcove torture integration_tests \
    {base,connector,http,master,master_server,owner,pool,requester,rpc,segment,server,transport,uring}_tests
}
build_fuzzers() { scripts/build.sh asan fuzzers; }
tidy() { scripts/tidy.py; }
tasks=(build_asan build_tsan tidy build_fuzzers)
case ${1:-} in
  '') ;;
  background)
    for task in "${tasks[@]}"; do
      status=0
      scripts/check.sh "$task" >"$results/$task.log" 2>&1 || status=$?
      echo "$status" >"$results/$task.status"
    done
    exit
    ;;
  build_asan | build_tsan | tidy | build_fuzzers)
    "$1"
    exit
    ;;
  *)
    echo "check.sh [${tasks[*]}]" >&2
    exit 2
    ;;
esac

step "Set-up for the checks" 10
scripts/setup.sh --checks
# .ci/run has begun them beside the tests.
if [ -z "$background" ]; then
  trap stop_background EXIT
  begin_background
fi

step "Format (clang-format-19)" 15
git ls-files '*.cc' '*.h' | xargs clang-format-19 --dry-run -Werror
echo "format: clean"

step "ruff and mypy" 30
scripts/python.sh check

step "Wheel of the limited API" 60
scripts/python.sh abi3

step "Layers" 5
scripts/check_layers.sh

step "Build with asan + ubsan, thread-safety as errors (clang-19)" 140
finish_task build_asan
step "Tests under asan + ubsan" 240
export ASAN_OPTIONS=detect_leaks=1:abort_on_error=0
export UBSAN_OPTIONS=print_stacktrace=1
. scripts/symbolizer.sh
# The filter leaves out simulations that must notice a broken rule: they test the oracle, not memory. Instrumented tests
# compute for longer than those of the release, so fewer of them run at a time.
JOBS=$(($(nproc) * 3 / 2)) GTEST_FILTER='-*.Notices*:ShardsSimTest.*IsNoticed' KVCOVE_SIM_SEEDS=5 KVCOVE_SIM_LOADS=2500 \
  scripts/test.sh asan -L 'unit|integration|fault' -LE release
step "Tortures under asan + ubsan" 50
build/asan/bin/torture --kvcove build/asan/bin/kvcove --reads 20000 --at-least 20
build/asan/bin/torture --cluster 1 --kvcove build/asan/bin/kvcove --reads 5000 --at-least 20

step "Build with tsan (clang-19)" 90
finish_task build_tsan
# Cores and the log of a disk have none: simulations run them in one, and uring_tests have the threads of a disk's device. Programs with
# processes of their own run in the release and under asan; here the tortures stand for them.
# Unit tests of one thread are not even built (ONE_THREAD in each module's CMakeLists.txt).
threads='^(base|connector|http|master|owner|pool|requester|rpc|segment|server|transport|uring)_.*_test$|^(borrow|cluster|connector|pool)_behaviour$|^(disk_retry|disk_tasks|etcd|operations|security|several_owners)$'
step "Tests of what has threads under tsan" 100
export TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1:die_after_fork=0
. scripts/symbolizer.sh
JOBS=$(($(nproc) * 2)) scripts/test.sh tsan -R "$threads"
step "Tortures under tsan" 50
build/tsan/bin/torture --kvcove build/tsan/bin/kvcove --reads 5000 --at-least 20
build/tsan/bin/torture --cluster 1 --kvcove build/tsan/bin/kvcove --reads 1000 --at-least 20

step "Tidy (clang-tidy-19) on what changed" 30
finish_task tidy

step "Fuzzers (libFuzzer): ${KVCOVE_FUZZ_SECONDS:=15} s each where what they exercise has changed" 70
finish_task build_fuzzers
base=$(scripts/base.sh)
# Each says what it exercises in its source. Where nothing of that has changed, its corpus is replayed.
fuzz() {
  local name=${1##*/fuzz_} paths length new
  mapfile -t paths < <(sed -n 's/^\/\/ Fuzzes: //p' "tests/fuzz/fuzz_$name.cc" | tr ' ' '\n')
  if ! git ls-files --error-unmatch -- "${paths[@]:-no line}" >/dev/null; then
    echo "tests/fuzz/fuzz_$name.cc: a line \`// Fuzzes: PATH...\` must name the sources and folders that it exercises"
    return 1
  fi
  if git diff --quiet "$base" -- "tests/fuzz/fuzz_$name.cc" "tests/fuzz/corpus/$name" "${paths[@]}"; then
    length=-runs=0
  else
    length=-max_total_time=$KVCOVE_FUZZ_SECONDS
  fi
  new=$(mktemp -d)
  # Of a crash the stack and the input, as base64: a reader of the log may have nothing else.
  "$1" "$length" -max_len=4096 -print_final_stats=1 -rss_limit_mb=2048 -artifact_prefix="$new/" "$new" "tests/fuzz/corpus/$name" 2>&1 |
    grep -E 'stat::number_of_executed_units|ERROR|SUMMARY|^ +#[0-9]|Base64' | sed "s/^/$name: /"
  rm -rf "$new"
}
export -f fuzz
export KVCOVE_FUZZ_SECONDS base
printf '%s\n' build/asan/bin/fuzz_* | xargs -P "$(nproc)" -I{} bash -euo pipefail -c 'fuzz {}'
echo
echo "Checks: all passed"
