# SPDX-License-Identifier: Apache-2.0
"""A program that loads the extension may set any locale; sizes and addresses mean the same."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

_PROBE = """
import locale, sys
import kvcove
from kvcove import _native

locale.setlocale(locale.LC_ALL, sys.argv[1])
assert _native.parse_size("1.5GiB") == 3 << 29
assert _native.parse_size("64MIB") == 64 << 20
with kvcove.open("embedded:?memory=1.5MiB&populate=0"):
    pass
"""


@pytest.mark.parametrize("name", ["de_DE", "tr_TR"])
def test_the_locale_of_the_program_changes_nothing(tmp_path: Path, name: str) -> None:
    made = f"{name}.UTF-8"
    if maker := shutil.which("localedef"):
        command = [maker, "-i", name, "-f", "UTF-8", str(tmp_path / made)]
        subprocess.run(command, check=False, capture_output=True)
    if not (tmp_path / made).exists():
        pytest.skip("localedef, or the sources of locales, are not installed")
    ended = subprocess.run(
        [sys.executable, "-c", _PROBE, made],
        env={**os.environ, "LOCPATH": str(tmp_path)},
        check=False,
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stderr
