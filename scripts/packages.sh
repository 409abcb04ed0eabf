#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes the .deb, the tarball and the container image of the command, and tests them in clean systems: packages.sh [PART...]
#
#   build      both, from the release build, into build/packages                            (a minute where that is built)
#   debian     in a smallest Debian: install, run, upgrade, purge; shells; manual pages     (two minutes, and a download of 60 MB once)
#   services   the units below a systemd of their own: kill, watchdog, hot upgrade          (four minutes, and a download of 70 MB once)
#   container  the image: its form, and each role in Debian's runc                          (two minutes, and a download of 30 MB once)
#   python     wheels and sdists in fresh environments                                      (three minutes)
#   compat     the last release and this build in one pool: upgrades, roll-backs            (three minutes)
#
# All parts without a name. `debian` and `services` want root and Debian's mmdebstrap, `container` root and Debian's runc.
# $KVCOVE_LAST_RELEASE names the tarball of the last release for `compat`; without it, this build is upgraded to itself. Nothing of the
# host is changed, except that mmdebstrap and runc are installed where they are missing, and control groups that exist while tests run.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/step.sh
work=build/packages
python=build/venv/bin/python
parts=("$@")
[ $# -gt 0 ] || parts=(build debian services container python compat)

fail() {
  echo "packages.sh: $*" >&2
  exit 1
}

# The one file of a kind in $work.
only() {
  local found
  mapfile -t found < <(find "$work" -maxdepth 1 -name "$1")
  [ ${#found[@]} -eq 1 ] || fail "there must be one $work/$1; run 'scripts/packages.sh build' first"
  echo "${found[0]}"
}

build() {
  step "Packages: build" 120
  # Configured again, as a build directory may be older than cmake/packages.cmake.
  [ ! -f build/release/build.ninja ] || cmake --preset release >/dev/null
  scripts/build.sh release packaged
  rm -rf "$work"/{_CPack_Packages,*.deb,*.tar.gz,*.oci.tar}
  cpack --config build/release/CPackConfig.cmake -G 'DEB;TGZ' -B "$work" >"$work.log" 2>&1 || {
    cat "$work.log"
    exit 1
  }
  ls -l "$(only '*.deb')" "$(only 'kvcove-*-linux-*.tar.gz')"
}

# install_missing COMMAND WHY: Debian's package of that name, if this host has no such command.
install_missing() {
  command -v "$1" >/dev/null 2>&1 && return
  command -v apt-get >/dev/null 2>&1 || fail "$2"
  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$1" >/dev/null
}

# root NAME PACKAGE...: build/packages/roots/NAME.tar, a Debian of this host's release with these packages.
root() {
  local tar=$work/roots/$1.tar suite
  [ -s "$tar" ] && return
  [ "$(id -u)" -eq 0 ] || fail "clean systems are made and used by root"
  # shellcheck disable=SC1091
  suite=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
  install_missing mmdebstrap "clean systems are made by Debian's mmdebstrap"
  mkdir -p "$work/roots"
  step "Packages: a clean system ($1)" 120
  shift
  mmdebstrap --quiet --mode=root --format=tar --variant=minbase --include="$(IFS=, && echo "$*")" "${suite:-bookworm}" "$tar.part"
  mv "$tar.part" "$tar"
}

debian() {
  root base adduser
  root shells adduser bash-completion zsh man-db
  step "Packages: in clean systems" 180
  PYTHONDONTWRITEBYTECODE=1 python3 tests/package/debian_test.py "$(only '*.deb')" "$(only 'kvcove-*-linux-*.tar.gz')" \
    "$work/roots/base.tar" "$work/roots/shells.tar"
}

services() {
  root systemd adduser systemd python3
  step "Packages: services" 300
  PYTHONDONTWRITEBYTECODE=1 python3 tests/package/services_test.py "$(only '*.deb')" "$work/roots/systemd.tar"
}

# The packages of the image, with all that they need, in $work/debian. None of them is installed: apt takes this host for an empty one.
image_packages() {
  [ ! -e "$work/debian/.whole" ] || return 0
  command -v apt-get >/dev/null 2>&1 || fail "the image is made of Debian's packages, which apt-get downloads"
  step "Packages: Debian's, for the image" 60
  rm -rf "$work/debian"
  mkdir -p "$work/debian/partial"
  : >"$work/debian/status"
  apt-get update -qq
  apt-get install -qq -y --download-only --no-install-recommends -o "Dir::State::status=$PWD/$work/debian/status" \
    -o "Dir::Cache::archives=$PWD/$work/debian" -o APT::Sandbox::User=root \
    base-files libc6 libgcc-s1 ibverbs-providers libzmq5 tzdata >"$work/debian/log" 2>&1 || {
    cat "$work/debian/log"
    exit 1
  }
  touch "$work/debian/.whole"
}

container() {
  local deb image
  deb=$(only '*.deb')
  image=${deb%.deb}.oci.tar
  image_packages
  step "Packages: the image, in runc" 180
  rm -f "$work"/*.oci.tar
  SOURCE_DATE_EPOCH=$(git log -1 --format=%ct) python3 scripts/image.py "$deb" "$work/debian" "$image" --revision "$(git rev-parse HEAD)"
  [ "$(id -u)" -eq 0 ] || fail "containers are tested by root"
  install_missing runc "containers run in Debian's runc"
  PYTHONDONTWRITEBYTECODE=1 python3 tests/package/container_test.py "$image" "$deb" "$work/debian" traces/conversation_trace.jsonl
}

# An sdist of kvcove by its build backend, which `wheel` has installed.
sdist() {
  "$python" - "$PWD/$work" <<'PYTHON'
import sys
from scikit_build_core.build import build_sdist
print(build_sdist(sys.argv[1]))
PYTHON
}

# Installs a file into a fresh environment and stores a value with it. Dependencies are PyPI's.
try_python() {
  local fresh
  fresh=$(mktemp -d)
  python3 -m venv "$fresh"
  "$fresh/bin/pip" install -q "$1"
  (cd "$fresh" && bin/python -c '
import kvcove
with kvcove.open("embedded:?memory=16MiB") as pool, pool.session("release", engine="e") as session:
    session.put(["key"], [b"value"])
    assert session.get(["key"])[0][:] == b"value"
print(f"kvcove {kvcove.__version__} works")')
  "$fresh/bin/kvcove" --version
  rm -rf "$fresh"
}

python() {
  step "Packages: Python" 300
  find "$work" -maxdepth 1 \( -name '*.whl' -o -name '*.tar.gz' ! -name '*-linux-*' \) -delete
  scripts/python.sh wheel
  cp build/wheels/*.whl "$work"
  sdist
  echo "== the wheel, in a fresh environment"
  try_python "$(only 'kvcove-*.whl')"
}

compat() {
  local new
  new=$(only 'kvcove-*-linux-*.tar.gz')
  scripts/etcd.sh
  step "Packages: two builds in one pool" 240
  PYTHONDONTWRITEBYTECODE=1 python3 tests/integration/command_line_test.py build/release/packaged/kvcove_packaged --all
  scripts/compat.sh "${KVCOVE_LAST_RELEASE:-$new}" "$new"
}

mkdir -p "$work"
for part in "${parts[@]}"; do
  case $part in
    build | debian | services | container | python | compat) "$part" ;;
    *) fail "'$part' is no part; there are: build debian services container python compat" ;;
  esac
done
