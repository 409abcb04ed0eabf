#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The long runs: a million verified reads under torture, and a thousand seeds of the simulation.
set -euo pipefail
cd "$(dirname "$0")/.."
echo "== Soak: torture"
build/release/bin/torture --kvcove build/release/bin/kvcove --reads 1000000 --at-least 240 --seconds 900
echo "== Soak: simulation"
KVCOVE_SIM_SEEDS=2000 build/release/bin/sim
echo "Soak: done"
