# SPDX-License-Identifier: Apache-2.0
"""Keys that ``inference.kv_cache_offload`` had once, and what says the same now."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kvcove.launch._document import KeyPath

__all__ = ["Change", "changes", "migrated"]


@dataclass(frozen=True)
class Change:
    """A key that is gone.

    Attributes
    ----------
    path : tuple of str
        Below the block.
    becomes : tuple of str
        What has its value now; empty where nothing needs it any more.
    why : str
        Of a key that nothing needs.
    """

    path: KeyPath
    becomes: KeyPath
    why: str


_CHANGES = (
    Change(("cpu_bytes",), ("cpu", "num_bytes"), "it is cpu.num_bytes now"),
    Change(
        ("disk", "num_bytes"),
        (),
        "it is gone: nothing ever kept to it, and the disk tier has what the file system at "
        "disk.path has",
    ),
    Change(
        ("metadata_server",),
        (),
        "it is gone: the metadata server runs beside the master, on the head node",
    ),
    Change(
        ("master_server_address",),
        (),
        "it is gone: the master runs on the first inference node, and its address follows from that",
    ),
)


def changes(block: Mapping[str, Any]) -> list[Change]:
    """Return the outdated keys that a block has."""
    return [change for change in _CHANGES if _has(block, change.path)]


def migrated(block: Mapping[str, Any]) -> dict[str, Any]:
    """Return a block without outdated keys, in the order in which it is best read.

    Raises
    ------
    ValueError
        It has an old key and the new one: which of them is meant, only its author knows. Or a
        table is none.
    """
    new: dict[str, Any] = {
        key: dict(value) if isinstance(value, Mapping) else value for key, value in block.items()
    }
    for change in changes(block):
        value = _take(new, change.path)
        if not change.becomes:
            continue
        if _has(new, change.becomes):
            raise ValueError(
                f"{'.'.join(change.path)} and {'.'.join(change.becomes)} are both there; remove "
                f"{'.'.join(change.path)}"
            )
        table = new.setdefault(change.becomes[0], {})
        if not isinstance(table, dict):
            raise ValueError(f"{change.becomes[0]}: {table!r} is no table of keys and values")
        table[change.becomes[1]] = value
    # What only had memory was vLLM's own; what named Mooncake's servers was Mooncake's.
    servers = {"metadata_server", "master_server_address"} & set(block)
    kind = new.pop("type", "mooncake" if servers else "native")
    order = ("cpu", "disk")
    plain = {key: value for key, value in new.items() if key not in order}
    return {"type": kind, **plain, **{key: new[key] for key in order if key in new}}


def _has(block: Mapping[str, Any], path: KeyPath) -> bool:
    for key in path:
        if not isinstance(block, Mapping) or key not in block:
            return False
        block = block[key]
    return True


def _take(block: dict[str, Any], path: KeyPath) -> Any:
    if len(path) == 1:
        return block.pop(path[0])
    value = _take(block[path[0]], path[1:])
    if not block[path[0]]:
        del block[path[0]]
    return value
