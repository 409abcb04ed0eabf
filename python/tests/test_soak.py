# SPDX-License-Identifier: Apache-2.0
"""A short soak of one store under eight threads; ``make soak`` runs ten minutes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SOAK = Path(__file__).with_name("soak.py")
SECONDS = float(os.environ.get("KVCOVE_SOAK_SECONDS", "5"))


@pytest.mark.parametrize("form", ["embedded", "cluster"])
def test_a_store_under_eight_threads_stays_flat(
    request: pytest.FixtureRequest, form: str, run_dir: Path
) -> None:
    master = "embedded:" if form == "embedded" else request.getfixturevalue("cluster").address
    ended = subprocess.run(
        [sys.executable, str(SOAK), master, str(SECONDS)],
        capture_output=True,
        text=True,
        timeout=SECONDS + 240,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr[-4000:]
    assert int(ended.stdout.split()[0]) > 100 * SECONDS, "the calls do not come to anything"
