#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests whether two builds of the command work in one pool: compat.sh OLD NEW [TEST...]
#
# Each is a command `kvcove`, or the tarball of a release. Servers are upgraded from OLD to NEW in the order of docs/upgrade.md, and
# rolled back, while engines of both builds read and store: no byte may be wrong, and no acknowledged value lost. Three minutes.
# The tests of several masters want etcd (scripts/etcd.sh).
set -euo pipefail
[ $# -ge 2 ] || {
  echo "usage: scripts/compat.sh OLD NEW [TEST...], such as kvcove-0.1.0-linux-x86_64.tar.gz build/release/bin/kvcove" >&2
  exit 2
}
PYTHONDONTWRITEBYTECODE=1 exec python3 "$(dirname "$0")/../tests/package/compat_test.py" "$@"
