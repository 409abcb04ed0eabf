#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Fetches Debian's Prometheus and promtool for `make test-prometheus`, into build/prometheus: unpacked, not installed, so
# that no daemon of it ever starts by itself. Nothing to do when they are there, or when $PATH has them.
set -euo pipefail
cd "$(dirname "$0")/.."
if [ -x build/prometheus/prometheus ] && [ -x build/prometheus/promtool ]; then
  exit 0
fi
mkdir -p build/prometheus
if command -v prometheus >/dev/null 2>&1 && command -v promtool >/dev/null 2>&1; then
  ln -sf "$(command -v prometheus)" "$(command -v promtool)" build/prometheus/
  exit 0
fi
if ! command -v apt-get >/dev/null 2>&1; then
  echo "== Prometheus: this is no Debian; put 'prometheus' and 'promtool' of 2.42 or later into \$PATH" >&2
  exit 1
fi
echo "== Prometheus: fetching Debian's (20 MB)"
cd build/prometheus
rm -rf unpacked prometheus_*.deb
if ! apt-get download -qq prometheus >/dev/null; then
  echo "== Prometheus: apt-get cannot fetch it: run 'apt-get update', or put 'prometheus' and 'promtool' into \$PATH" >&2
  exit 1
fi
dpkg -x prometheus_*.deb unpacked
ln -sf unpacked/usr/bin/prometheus unpacked/usr/bin/promtool .
rm -f prometheus_*.deb
