#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The long runs, about an hour: torture of a host, of a cluster, of hosts with a network between them, and with disks,
# 200 kills of an owner with a disk and 200 of a leader among three masters, thousands of seeds of the simulations, and beside them two clusters that must hold after 30 minutes what they held after ten seconds.
set -euo pipefail
cd "$(dirname "$0")/.."
bin=build/release/bin
logs=$(mktemp -d)
# What runs beside has a process group of its own, so that nothing of it stays behind.
trap 'for run in $(jobs -p); do kill -- "-$run" 2>/dev/null || true; done; rm -rf "$logs"' EXIT
# Waits for a run beside this one, shows what it said last, and fails with it.
finish() {
  local name=$1 pid=$2 status=0
  wait "$pid" || status=$?
  echo "== Soak: $name"
  tail -n 40 "$logs/$name"
  [ $status -eq 0 ]
}

echo "== Soak: flat for ${KVCOVE_FLAT_SECONDS:=1800} s, beside what follows"
KVCOVE_FLAT_SECONDS=$KVCOVE_FLAT_SECONDS setsid $bin/process_tests --tests_of=flat_test.cc >"$logs/flat" 2>&1 &
flat=$!
if [ -x build/venv/bin/python ] && build/venv/bin/python -c 'import mooncake.store' 2>/dev/null; then
  echo "== Soak: one store under eight threads, ${KVCOVE_SOAK_SECONDS:=600} s"
  build/venv/bin/python python/tests/soak.py embedded: "$KVCOVE_SOAK_SECONDS"
fi
echo "== Soak: a project that adds kvcove, built whole"
KVCOVE_WHOLE=1 python3 tests/package/package_test.py "$PWD" "$PWD/build/release"  # no limit: it compiles the product
echo "== Soak: torture"
$bin/torture --kvcove $bin/kvcove --reads 1000000 --at-least 240 --seconds 900
echo "== Soak: torture of a cluster"
$bin/torture --cluster 1 --kvcove $bin/kvcove --reads 200000 --at-least 240 --seconds 900
echo "== Soak: torture of hosts with a network between them"
status=0
$bin/torture --hosts 1 --kvcove $bin/kvcove --reads 200000 --at-least 240 --seconds 900 || status=$?
[ $status -eq 0 ] || [ $status -eq 77 ] || exit $status
echo "== Soak: torture with disks, of a host and of a cluster"
$bin/torture --disk 1 --kvcove $bin/kvcove --reads 100000 --at-least 120 --seconds 900
$bin/torture --cluster 1 --disk 1 --kvcove $bin/kvcove --reads 100000 --at-least 120 --seconds 900
echo "== Soak: 200 kills of an owner with a disk"
KVCOVE_KILLS=200 $bin/integration_tests --gtest_filter='DiskKillTest.*' --gtest_brief=1
echo "== Soak: 200 kills of a leader of three masters"
KVCOVE_KILLS=200 $bin/process_tests --tests_of=masters_test.cc --gtest_filter='*Killed*' --gtest_brief=1
echo "== Soak: simulation of a host"
KVCOVE_SIM_SEEDS=2000 $bin/sim_tests --tests_of=tests/sim/sim_test.cc --gtest_brief=1
echo "== Soak: simulation of an owner with a disk, 10,000,000 operations"
KVCOVE_SIM_OPERATIONS=5000000 setsid $bin/sim_tests --tests_of=tier_sim_test.cc >"$logs/tier_sim" 2>&1 &
half=$!
KVCOVE_SIM_OPERATIONS=5000000 $bin/sim_tests --tests_of=tier_sim_test.cc --gtest_brief=1
finish tier_sim $half
echo "== Soak: simulation of a cluster, ${KVCOVE_SOAK_SEEDS:=20000} seeds"
KVCOVE_SIM_SEEDS=$((KVCOVE_SOAK_SEEDS / 2)) setsid $bin/sim_tests --tests_of=cluster_sim_test.cc --gtest_filter='*KeepsItsPromises*' >"$logs/cluster_sim" 2>&1 &
half=$!
KVCOVE_SIM_SEEDS=$((KVCOVE_SOAK_SEEDS / 2)) $bin/sim_tests --tests_of=cluster_sim_test.cc --gtest_filter='*KeepsItsPromises*' --gtest_brief=1
finish cluster_sim $half
finish flat $flat
echo "Soak: done"
