# SPDX-License-Identifier: Apache-2.0
"""The build backend: flit's, after a look at who owns ``mooncake/`` where this is to be installed.

pip runs this with the interpreter that it installs for, so that its site-packages are known here.
"""

from __future__ import annotations

import os
import sysconfig
from pathlib import Path
from typing import Any

from flit_core import buildapi

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
]

get_requires_for_build_wheel = buildapi.get_requires_for_build_wheel
get_requires_for_build_sdist = buildapi.get_requires_for_build_sdist
get_requires_for_build_editable = buildapi.get_requires_for_build_editable
build_sdist = buildapi.build_sdist


def _owner() -> str | None:
    """Return the other distribution that has files in ``mooncake/``, if there is one."""
    for name in {"purelib", "platlib"}:
        for record in Path(sysconfig.get_path(name)).glob("*.dist-info/RECORD"):
            owner = record.parent.name.removesuffix(".dist-info")
            if owner.lower().replace("-", "_").startswith("kvcove_mooncake"):
                continue
            with record.open(encoding="utf-8", errors="replace") as lines:
                if any(line.startswith("mooncake/") for line in lines):
                    return owner
    return None


def _check() -> None:
    owner = None if os.environ.get("KVCOVE_MOONCAKE_ANYWAY") else _owner()
    if owner is not None:
        raise SystemExit(
            f"kvcove-mooncake: the package 'mooncake' belongs to {owner} here and is not "
            "overwritten. Uninstall that first, or leave it and run single commands on kvcove: "
            "python -m kvcove.mooncake run COMMAND"
        )


def build_wheel(directory: str, settings: Any = None, metadata: str | None = None) -> str:
    """Build the wheel, unless it would overwrite another distribution's package."""
    _check()
    return buildapi.build_wheel(directory, settings, metadata)


def build_editable(directory: str, settings: Any = None, metadata: str | None = None) -> str:
    """Build the editable wheel, unless it would shadow another distribution's package."""
    _check()
    return buildapi.build_editable(directory, settings, metadata)
