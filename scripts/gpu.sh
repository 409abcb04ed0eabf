#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# `make test-gpu`: bytes to and from a GPU, what compute-sanitizer says of it, the order of loads, saves and steps, and vLLM.
# Skipped without a GPU.
set -euo pipefail
cd "$(dirname "$0")/.."
kvcove=build/release/bin/kvcove
mkdir -p out
echo "== Runs of 4 KiB to 1 MiB beside one pinned copy, both ways, submission"
status=0
"$kvcove" bench gpu --json | tee out/gpu.jsonl || status=$?
if [ "$status" = 77 ]; then
  echo "Skipped: there is no GPU here, so nothing was measured"
  exit 0
fi
[ "$status" = 0 ] || exit "$status"
if command -v compute-sanitizer >/dev/null; then
  echo "== The same under compute-sanitizer"
  compute-sanitizer --error-exitcode 1 "$kvcove" bench gpu --json --seconds 0.01 >/dev/null
else
  echo "No compute-sanitizer here (it is part of CUDA's toolkit): left out"
fi
scripts/python.sh gpu out/gpu
echo "Done: out/gpu.jsonl; what the figures mean is in docs/device.md"
