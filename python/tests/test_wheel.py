# SPDX-License-Identifier: Apache-2.0
"""What is installed: what it needs, what it shows, how fast it is there."""

from __future__ import annotations

import importlib.metadata
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from conftest import command_path, python

import kvcove
from kvcove import _native

WHEEL = os.environ.get("KVCOVE_TEST_WHEEL", "")


def dynamic(path: str, flag: str) -> str:
    return subprocess.run(
        ["objdump", flag, path], capture_output=True, text=True, check=True
    ).stdout


@pytest.mark.parametrize("which", ["extension", "command"])
def test_it_needs_the_c_and_cpp_runtimes_only(which: str) -> None:
    path = str(_native.__file__) if which == "extension" else command_path()
    needed = set(re.findall(r"NEEDED\s+(\S+)", dynamic(path, "-p")))
    assert needed <= {
        *("libstdc++.so.6", "libm.so.6", "libgcc_s.so.1", "libc.so.6", "ld-linux-x86-64.so.2"),
        *("ld-linux-aarch64.so.1", "libpthread.so.0", "libdl.so.2"),
    }


def test_it_shows_its_entry_point_only() -> None:
    table = dynamic(str(_native.__file__), "-T")
    shown = [
        line.split()[-1]
        for line in table.splitlines()
        if " .text" in line or " .data" in line or " .bss" in line or " .rodata" in line
    ]
    assert shown == ["PyInit__native"]


@pytest.mark.skipif(not WHEEL, reason="KVCOVE_TEST_WHEEL names no wheel")
def test_the_wheel_runs_on_manylinux_2_28() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "auditwheel", "show", WHEEL],
        capture_output=True,
        text=True,
        check=False,
    )
    tag = re.search(r"manylinux_2_(\d+)_", ended.stdout.replace("\n", " "))
    assert tag, ended.stdout + ended.stderr
    assert int(tag[1]) <= 28


@pytest.mark.skipif(not WHEEL, reason="KVCOVE_TEST_WHEEL names no wheel")
def test_the_laboratory_is_in_the_command_alone() -> None:
    names = zipfile.ZipFile(WHEEL).namelist()
    assert [name for name in names if re.search(r"kvcove_lab|compare|differences", name)] == []
    mark = b"N6kvcove3lab"  # of a class's name
    assert mark in Path(command_path()).read_bytes()
    assert mark not in Path(str(_native.__file__)).read_bytes()


def test_the_package_says_what_it_is() -> None:
    assert importlib.metadata.version("kvcove") == kvcove.__version__
    assert (Path(kvcove.__file__).parent / "py.typed").exists()
    assert (Path(kvcove.__file__).parent / "_native.pyi").exists()
    told = subprocess.run(
        [sys.executable, "-m", "kvcove", "--help"], capture_output=True, text=True, check=False
    )
    assert told.returncode == 0
    assert "doctor" in told.stdout


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="stubs are made with Python 3.11")
def test_the_stubs_are_those_of_the_extension(tmp_path: Path) -> None:
    pytest.importorskip("nanobind")
    made = tmp_path / "_native.pyi"
    subprocess.run(
        [sys.executable, "-m", "nanobind.stubgen", "-m", "kvcove._native", "-o", str(made), "-q"],
        check=True,
    )
    subprocess.run([sys.executable, "-m", "ruff", "format", "-q", str(made)], check=True)
    kept = (Path(kvcove.__file__).parent / "_native.pyi").read_text()

    def plain(text: str) -> str:
        text = re.sub(r"(?m)^(from|import) .*$", "", text)
        return re.sub(r"\s+|,(?=\s*[)\]])", "", text)

    assert plain(made.read_text()) == plain(kept), "python -m nanobind.stubgen -m kvcove._native"


def test_it_is_imported_at_once() -> None:
    code = (
        "import time; began = time.perf_counter(); import kvcove;print(time.perf_counter() - began)"
    )
    assert min(float(python(code).stdout) for _ in range(5)) < 0.06
