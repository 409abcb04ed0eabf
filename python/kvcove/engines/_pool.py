# SPDX-License-Identifier: Apache-2.0
"""Where an engine's pool is: what the environment names, or one in the engine itself."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import kvcove
from kvcove import _native
from kvcove.mooncake._config import master_in, pool_of
from kvcove.mooncake._offload import DiskPlace, Offload

__all__ = ["ADDRESSES", "Embedded", "directory", "named_pool", "no_pool", "refusals"]

ADDRESSES = ("unix:", "kvcove://")


def named_pool() -> tuple[str, str]:
    """Return the pool that the environment names, else ``auto``, and by what it does.

    Raises
    ------
    ValueError
        A variable is set and names none.
    """
    named = os.environ.get("KVCOVE_POOL", "auto") or "auto"
    if named != "auto":
        if not named.startswith(ADDRESSES):
            raise ValueError(
                f"$KVCOVE_POOL: {named!r}: give unix:/PATH, kvcove://HOST:7400 or "
                "kvcove://etcd://HOST:2379/PREFIX"
            )
        return named, "$KVCOVE_POOL"
    # As a Mooncake store does: its file, else the master's own variable.
    variable, value = "MOONCAKE_CONFIG_PATH", os.environ.get("MOONCAKE_CONFIG_PATH", "")
    if not value:
        variable, value = "MOONCAKE_MASTER", os.environ.get("MOONCAKE_MASTER", "")
    if not value:
        return "auto", ""
    try:
        pool, _ = pool_of(master_in(value) if variable == "MOONCAKE_CONFIG_PATH" else value, 0)
        if pool != "auto" and not pool.startswith(ADDRESSES):
            raise ValueError(
                f'{pool!r} would be a pool of each process; set "pool": "embedded" in '
                "kv_connector_extra_config"
            )
    except ValueError as error:
        raise ValueError(f"${variable}={value}: {error}") from error
    return pool, f"${variable}={value}"


def no_pool(error: kvcove.Error) -> bool:
    """Whether an error of :func:`kvcove.open` says that no pool is there.

    Nobody answers, another server does, or one of another version. A token that is refused is not
    among these: it is a mistake of whoever configured the engine.
    """
    nobody = (kvcove.UnavailableError, kvcove.TimedOutError, kvcove.IncompatibleError)
    return isinstance(error, nobody) or error.code == _native.Code.CORRUPT.value


def refusals(pool: Any, *, finds: bool, stores: bool) -> list[str]:
    """Return what the pool will refuse this engine, one line for each scope that its token lacks.

    Parameters
    ----------
    pool : Pool
        What the engine has opened. Makes no call.
    finds, stores : bool
        Whether the engine looks up and loads, and whether it saves. Every engine resets.

    Returns
    -------
    list of str
        Empty where the token may do all that the engine does.
    """
    scopes = pool.scopes()
    effects = {
        "read": "finds nothing" if finds else "",
        "write": "stores nothing" if stores else "",
        "reset": "cannot reset: the first reset fails, voids nothing, and from then on this engine "
        "neither finds nor stores anything",
    }
    return [
        f'this engine\'s token lacks the scope "{scope}", so it {effect}; add "{scope}" to the '
        "scopes of its tenant in the --credentials file of the masters and owners, which read it "
        "again by themselves"
        for scope, effect in effects.items()
        if scopes and effect and scope not in scopes
    ]


def directory() -> Path:
    """Return where the sockets of this user's pool and engines are."""
    return Path(_native.default_socket_path()).parent


class Embedded:
    """A pool in this process that its ranks, in processes of their own, reach through a socket."""

    def __init__(self, socket: Path, memory: int, disk: str = "") -> None:
        """Start it.

        Parameters
        ----------
        socket : Path
            Where the ranks find it.
        memory : int
            Bytes.
        disk : str
            ``DIRECTORY`` or ``DIRECTORY:SIZE``, for what memory evicts; empty: none.
        """
        self._disk: DiskPlace | None = Offload.parse(disk).take("") if disk else None
        self._owner: Any = _native.open_owner(
            master="",
            memory=memory,
            listen="",
            socket_path=str(socket),
            disk=self._disk.spec if self._disk else "",
            data=self._disk.data if self._disk else "",
        )
        self.address = f"unix:{socket}"

    def close(self) -> None:
        """End it. What its memory holds is gone."""
        self._owner.close()
        if self._disk is not None:
            self._disk.close()
