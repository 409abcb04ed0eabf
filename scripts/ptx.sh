#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes kvcove/transport/cuda/kernels_ptx.h of kernels.h with clang 19: no part of CUDA is needed.
# With --check it compares instead; 77 (skipped) where that clang is missing.
set -euo pipefail
cd "$(dirname "$0")/../kvcove/transport/cuda"
made=$(mktemp)
trap 'rm -f "$made" "$made.ptx"' EXIT
if ! command -v clang++-19 >/dev/null; then
  echo "skipped: no clang++-19, which makes the GPU's code (Debian's package clang-19)"
  exit 77
fi
# PTX 6.3 for sm_70: every GPU since Volta takes it, with a driver since 2018. The compiler proper is called, as
# clang's driver would raise the version to that of a CUDA that happens to be installed.
clang++-19 -cc1 -triple nvptx64-nvidia-cuda -target-cpu sm_70 -target-feature +ptx63 -std=c++20 -O3 -ffreestanding \
  -nostdsysteminc -Wall -Wextra -Werror -Wno-pragma-once-outside-header -x c++ -S -o "$made.ptx" kernels.h
{
  echo "// SPDX-License-Identifier: Apache-2.0"
  echo "// Made by scripts/ptx.sh of kernels.h; a test compares them."
  echo "#pragma once"
  echo
  echo "namespace kvcove::transport::cuda {"
  echo
  echo "inline constexpr char kKernelsPtx[] = R\"ptx("
  grep -v '^//' "$made.ptx" | sed '/./,$!d'
  echo ")ptx\";"
  echo
  echo "}  // namespace kvcove::transport::cuda"
} >"$made"
if [ "${1:-}" = --check ]; then
  diff -u kernels_ptx.h "$made" && echo "kernels_ptx.h is what clang makes of kernels.h"
else
  cp "$made" kernels_ptx.h
fi
