# SPDX-License-Identifier: Apache-2.0
"""``@ FILE...`` and ``--dry-run``, as prime-rl's command line has them."""

from __future__ import annotations

import itertools
import sys
import tomllib
from pathlib import Path
from typing import Any


def cli(model: Any) -> Any:
    words = sys.argv[1:]
    data: dict[str, Any] = {"dry_run": "--dry-run" in words}
    for sign, name in itertools.pairwise(words):
        if sign == "@":
            data |= tomllib.loads(Path(name).read_text(encoding="utf-8"))
    return model.model_validate(data)
