# SPDX-License-Identifier: Apache-2.0
"""The way to python/lab, which is in kvcove's sources and in no wheel."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

__all__ = ["load"]


def load(name: str, command: str) -> Any:
    """Return the module ``name`` of kvcove_lab; ends the process, with a line, where there is none.

    It is sought in the checkout that this process works in, or that this package is part of. ``command``
    is what needs it.
    """
    for root in (Path.cwd(), Path(__file__).parents[2]):
        if (root / "python" / "lab" / "kvcove_lab").is_dir():
            sys.path.insert(0, str(root / "python" / "lab"))
            return importlib.import_module(f"kvcove_lab.{name}")
    raise SystemExit(
        f"{command} is in python/lab of kvcove's sources and in no wheel: run it in a checkout"
    )
