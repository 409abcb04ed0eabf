# SPDX-License-Identifier: Apache-2.0
"""The rows of ``python -m kvcove.bench``, on the original: ``--rival PYTHON``."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

from kvcove.bench import _free_port, _run, _wait_for

__all__ = ["rows"]


def rows(python: str) -> dict[str, dict[str, Any]]:
    """Measure the original of an interpreter, with a master of its own."""
    port = _free_port()
    program = shutil.which("mooncake_master", path=str(Path(python).parent))
    if program is None:
        raise SystemExit(f"there is no mooncake_master beside {python}")
    master = subprocess.Popen(
        [program, f"-rpc_port={port}", f"-metrics_port={_free_port()}"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        _wait_for(port)
        return _run(python, f"127.0.0.1:{port}", f"127.0.0.1:{port}", [])
    finally:
        master.terminate()
        master.wait()
