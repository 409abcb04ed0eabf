#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# `make test`: sets up, builds, and runs every test that needs no GPU.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/step.sh
step "Set-up" 20
make --no-print-directory setup
scripts/etcd.sh
step "Build of the product (release)" 260
scripts/build.sh release kvcove kvcove_static kvcove_shared kvcove_server_static
step "Build of the tests (release)" 240
scripts/build.sh release
step "Tests of the core (release)" 330
scripts/test.sh release
scripts/python.sh test
echo
echo "Done: all tests of the core and of the Python packages passed"
