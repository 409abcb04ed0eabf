# SPDX-License-Identifier: Apache-2.0
"""An installation into which the original and this package ``mooncake`` went, one over the other.

Wheels overwrite each other's files without a word, and Python takes the original's store, which is an
extension or a package, before a module ``store.py``. A program would then talk to a kvcove master with
the original's store, which waits for a minute and fails.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

__all__ = ["check_commands", "check_package"]

_STORES = ("store.so", "store.*.so", "_store*.so", "store/__init__.py")


def _original_in(package: Path) -> list[Path]:
    return [path for pattern in _STORES for path in sorted(package.glob(pattern))]


def _owner(file: Path) -> str:
    """Return the distribution that has the file, or what to put in its place."""
    site = file.parent.parent if file.parent.name == "mooncake" else file.parents[2]
    line = file.relative_to(site).as_posix() + ","
    for record in site.glob("*.dist-info/RECORD"):
        if line in record.read_text(encoding="utf-8", errors="replace"):
            return record.parent.name.partition("-")[0].replace("_", "-")
    return "mooncake-transfer-engine"


def _said(found: Path, package: Path) -> str:
    original = _owner(found)
    return (
        f"{package} has the store of {original} ({found.relative_to(package)}) beside kvcove's package "
        f"'mooncake', and Python takes the former: 'pip uninstall kvcove-mooncake {original}', then "
        "install one of them; with the original alone, 'python -m kvcove.mooncake run COMMAND' runs "
        "single commands on kvcove"
    )


def check_package(package: Path) -> None:
    """Refuse to be imported from a directory that has the original's store, too.

    Raises
    ------
    ImportError
        It has; the message says what to do.
    """
    if found := _original_in(package):
        raise ImportError(_said(found[0], package))


def check_commands() -> str:
    """Return what is wrong with the package ``mooncake`` that programs of this environment import."""
    spec = importlib.util.find_spec("mooncake")
    if spec is None or spec.origin is None:
        return ""
    init = Path(spec.origin)
    if "kvcove" not in init.read_text(encoding="utf-8", errors="replace"):
        return ""  # the original's alone: a command of ours was asked for by its own name
    found = _original_in(init.parent)
    return _said(found[0], init.parent) if found else ""
