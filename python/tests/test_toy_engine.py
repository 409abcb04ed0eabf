# SPDX-License-Identifier: Apache-2.0
"""The engine of examples/engine does what its text says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from kvcove import engines

TOY = Path(__file__).resolve().parents[2] / "examples/engine/toy.py"


def test_two_toy_engines_share(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    own = engines.Embedded(tmp_path / "toy.sock", 64 << 20)
    try:
        done = subprocess.run(
            [sys.executable, str(TOY), own.address],
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        loaded = [line.rsplit(", ", 1)[1] for line in done.stdout.splitlines()]
        found = "96 of 100 tokens loaded"
        assert loaded == ["0 of 100 tokens loaded", found, "0 of 100 tokens loaded", found]
    finally:
        own.close()
