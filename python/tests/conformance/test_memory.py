# SPDX-License-Identifier: Apache-2.0
"""No byte outside a registered buffer is touched, whatever addresses and sizes say."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from conftest import own

pytestmark = own("it needs a pool of kvcove's")

FUZZ = Path(__file__).parents[1] / "memory_fuzz.py"
SEED = int(os.environ.get("KVCOVE_FUZZ_SEED", "1"))
SECONDS = float(os.environ.get("KVCOVE_FUZZ_SECONDS", "4"))


def test_random_addresses_and_sizes(run_dir: Path) -> None:
    ended = subprocess.run(
        [sys.executable, str(FUZZ), "embedded:", str(SEED), str(SECONDS)],
        capture_output=True,
        text=True,
        timeout=SECONDS + 60,
        check=False,
    )
    assert ended.returncode == 0, f"{ended.returncode}: {ended.stderr[-4000:]}"
    assert "steps" in ended.stdout
