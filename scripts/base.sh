#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Prints the commit that checks of what changed compare with: $KVCOVE_BASE, else where this branch left origin/main, else the commit
# before this one, else the empty tree.
set -euo pipefail
cd "$(dirname "$0")/.."
base=${KVCOVE_BASE:-$(git merge-base HEAD origin/main 2>/dev/null || true)}
if [ -z "$base" ] || [ "$(git rev-parse "$base")" = "$(git rev-parse HEAD)" ]; then
  base=$(git rev-parse --verify --quiet HEAD~1 || git hash-object -t tree /dev/null)
fi
echo "$base"
