#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The long runs: a million verified reads under torture, the same of a cluster, and thousands of seeds of the
# simulations.
set -euo pipefail
cd "$(dirname "$0")/.."
echo "== Soak: torture"
build/release/bin/torture --kvcove build/release/bin/kvcove --reads 1000000 --at-least 240 --seconds 900
echo "== Soak: torture of a cluster"
build/release/bin/torture --cluster 1 --kvcove build/release/bin/kvcove --reads 200000 --at-least 240 --seconds 900
echo "== Soak: torture of hosts with a network between them"
status=0
build/release/bin/torture --hosts 1 --kvcove build/release/bin/kvcove --reads 200000 --at-least 240 --seconds 900 || status=$?
[ $status -eq 0 ] || [ $status -eq 77 ] || exit $status
echo "== Soak: simulation"
KVCOVE_SIM_SEEDS=2000 build/release/bin/sim
echo "Soak: done"
