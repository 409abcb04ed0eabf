#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Fetches Debian's etcd for the tests of several masters, into build/etcd: unpacked, not installed, so
# that no daemon of it ever starts by itself. Nothing to do when it is there, or when $PATH has one.
set -euo pipefail
cd "$(dirname "$0")/.."
if [ -x build/etcd/etcd ]; then
  exit 0
fi
mkdir -p build/etcd
if command -v etcd >/dev/null 2>&1; then
  ln -sf "$(command -v etcd)" build/etcd/etcd
  exit 0
fi
if ! command -v apt-get >/dev/null 2>&1; then
  echo "== etcd: this is no Debian; put an 'etcd' of 3.4 or later into \$PATH for the tests of several masters"
  exit 0
fi
echo "== etcd: fetching Debian's etcd-server for the tests"
(
  cd build/etcd
  if ! apt-get download -qq etcd-server >/dev/null 2>&1; then
    echo "== etcd: 'apt-get download etcd-server' failed; the tests of several masters are skipped"
    exit 0
  fi
  rm -rf unpacked
  dpkg -x etcd-server_*.deb unpacked
  ln -sf unpacked/usr/bin/etcd etcd
  rm -f etcd-server_*.deb
)
