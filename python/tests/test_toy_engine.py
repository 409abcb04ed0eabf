# SPDX-License-Identifier: Apache-2.0
"""The engine of examples/engine does what its text says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from kvcove import engines

TOY = Path(__file__).resolve().parents[2] / "examples/engine/toy.py"
PRINTED = """\
first engine: 179, 0 of 100 tokens loaded
second engine: 179, 96 of 100 tokens loaded
with other weights: 197, 0 of 100 tokens loaded
with the first ones again: 179, 96 of 100 tokens loaded
"""


def run_toy(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-B", str(TOY), *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_two_toy_engines_share(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    own = engines.Embedded(tmp_path / "toy.sock", 64 << 20)
    try:
        assert run_toy(own.address) == PRINTED
    finally:
        own.close()


def test_toy_engines_have_a_pool_of_their_own(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KVCOVE_SOCKET", raising=False)
    assert run_toy() == PRINTED
    assert not list(run_dir.rglob("*.sock"))
