# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# Names a symbolizer to the sanitizers, so that their stacks have functions and lines: clang-19 looks for one of its own, which
# Debian has in another package, and finds no other by itself.
if symbolizer=$(command -v llvm-symbolizer-19 || command -v llvm-symbolizer || command -v addr2line); then
  for options in ASAN_OPTIONS UBSAN_OPTIONS TSAN_OPTIONS; do
    [[ ${!options:-} == *external_symbolizer_path* ]] || export "$options=external_symbolizer_path=$symbolizer${!options:+:${!options}}"
  done
fi
