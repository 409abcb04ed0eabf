#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs what is missing to build and test kvcove. Needs no network when nothing is missing.
set -euo pipefail
cd "$(dirname "$0")/.."

# package -> what it is for
packages=(
  "g++:C++23 compiler (g++ 12 or later)"
  "cmake:build system (3.25 or later)"
  "ninja-build:build tool"
  "ccache:compiler cache"
  "pkg-config:finding libraries"
  "libboost1.81-dev:Boost 1.81 (Asio; headers only)"
  "libfmt-dev:fmt 9"
  "libflatbuffers-dev:FlatBuffers 2.0"
  "flatbuffers-compiler:flatc, the FlatBuffers compiler"
  "libxxhash-dev:xxHash 0.8.1"
  "liburing-dev:liburing 2.1, reading and writing disks"
  "libibverbs-dev:libibverbs 44, the header; the library is opened at run time"
  "libzmq5:ZeroMQ 4.2 or later, opened at run time: KV events, and their tests"
  "libcli11-dev:CLI11 2.1"
  "nlohmann-json3-dev:nlohmann-json 3.11"
  "openssl:certificates for the tests of TLS"
  "xfsprogs:file systems that fail, for the tests of disks"
  "btrfs-progs:file systems that fail, for the tests of disks"
  "iproute2:network namespaces for the tests of several hosts"
  "libssl-dev:OpenSSL 3"
  "libtomlplusplus-dev:toml++ 3.3"
  "python3:Python 3.11 or later"
  "python3-dev:building the Python extension"
  "python3-venv:the Python tests' environment"
  "libgtest-dev:GoogleTest 1.12"
  "libgmock-dev:GoogleMock 1.12"
  "libbenchmark-dev:Google Benchmark 1.7"
  "gdb:the stacks of tests that crash or hang"
  "shellcheck:checking the jobs that are rendered for SLURM"
)
if [ "${1:-}" = "--checks" ]; then
  packages+=(
    "clang-19:second compiler, sanitizers, thread-safety analysis"
    "libclang-rt-19-dev:sanitizers' and libFuzzer's runtime"
    "lld-19:linker of the sanitized builds"
    "clang-format-19:format check"
    "clang-tidy-19:static analysis"
    "git:finding what changed"
  )
fi

if [ "${1:-}" = "--aarch64" ]; then
  packages+=(
    "g++-aarch64-linux-gnu:cross compiler for aarch64"
    "qemu-user:running its tests"
  )
fi

if [ "${1:-}" = "--ui" ]; then
  packages+=("chromium:the page of the admin endpoint, for its tests")
fi

if [ "${1:-}" = "--docs" ]; then
  packages+=("doxygen:the reference of the C++ API")
fi

if [ "${1:-}" = "--slurm" ]; then
  packages+=(
    "slurmctld:SLURM itself, for its jobs' tests"
    "slurmd:the same"
    "slurm-client:the same"
    "munge:the same"
  )
fi

if ! command -v dpkg-query >/dev/null 2>&1; then
  echo "This is no Debian: install these by your system's names for them, then go on:"
  printf '  %s\n' "${packages[@]#*:}"
  echo "Going on; CMake says what it does not find."
  exit 0
fi

missing=()
for entry in "${packages[@]}"; do
  name=${entry%%:*}
  if [ "$(dpkg-query -W -f='${db:Status-Status}' "$name" 2>/dev/null)" != installed ]; then
    missing+=("$name")
  fi
done
if [ ${#missing[@]} -eq 0 ]; then
  echo "== Set-up: everything needed is installed"
  exit 0
fi

install="apt-get install -y --no-install-recommends ${missing[*]}"
if [ "$(id -u)" -eq 0 ]; then
  as_root=()
elif command -v sudo >/dev/null 2>&1 && sudo -n true 2>/dev/null; then
  as_root=(sudo)
else
  echo "These packages are missing and this user may not install them. Run as root, then call make again:"
  echo
  echo "  apt-get update && $install"
  exit 1
fi
echo "== Set-up: installing ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
"${as_root[@]}" apt-get update -qq
# shellcheck disable=SC2086
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive $install -qq >/dev/null
echo "== Set-up: done"
