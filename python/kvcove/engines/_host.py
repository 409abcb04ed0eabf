# SPDX-License-Identifier: Apache-2.0
"""What memory this host can give an embedded pool."""

from __future__ import annotations

from pathlib import Path

__all__ = ["affordable", "available_memory"]

_LEAST = 64 << 20
_MIB = 1 << 20


def _number(path: Path) -> int | None:
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None  # "max": no limit


def _group(root: Path) -> Path:
    """Return the control group of this process (version 2), else the outermost one."""
    base = root / "sys/fs/cgroup"
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return base
    name = next((line[3:] for line in lines if line.startswith("0::")), "")
    group = base / name.lstrip("/")
    # Inside a container the name may be that of outside.
    return group if group.is_dir() else base


def available_memory(root: Path = Path("/")) -> int | None:
    """Return how many bytes this process could still use, None where nothing says it.

    The least of what the kernel calls available and of what the limits of all its control groups
    leave.
    """
    found: list[int] = []
    try:
        for line in (root / "proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                found.append(int(line.split()[1]) << 10)
    except OSError:
        pass
    base = root / "sys/fs/cgroup"
    group = _group(root)
    for each in (group, *(parent for parent in group.parents if parent.is_relative_to(base))):
        most, used = _number(each / "memory.max"), _number(each / "memory.current")
        if most is not None and used is not None:
            found.append(max(most - used, 0))
    return min(found, default=None)


def affordable(asked: int, available: int | None) -> int:
    """Return `asked`, or half of what there is where the rest of the host would not be left a fifth.

    A pool's memory is taken page by page, so one that is too large ends the engine long after its
    start.
    """
    if available is None or asked <= available * 4 // 5:
        return asked
    return min(asked, max(available // 2 // _MIB * _MIB, _LEAST))
