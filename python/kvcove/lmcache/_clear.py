# SPDX-License-Identifier: Apache-2.0
"""LMCache's clears, which reach no storage behind its own memory, reach the pool, too."""

from __future__ import annotations

import functools
from contextlib import ExitStack
from typing import Any

__all__ = ["observe_engine", "observe_server"]

_wrapped: set[str] = set()


def observe_server() -> None:
    """Let ``POST /cache/clear``, and the CLEAR of engines, void what the server's L2 adapters have in the pool.

    LMCache empties its L1 only. A clear that is not proven raises, so that the caller is told.
    """
    from lmcache.v1.distributed.storage_manager import StorageManager

    if "server" in _wrapped:
        return
    _wrapped.add("server")
    clear = StorageManager.clear

    @functools.wraps(clear)
    def observed(self: Any, *args: Any, **kwargs: Any) -> Any:
        left: set[Any] = set()
        with ExitStack() as stack:
            for adapter in _adapters_of(self):
                stack.enter_context(adapter.clearing(left))
            answer = clear(self, *args, **kwargs)
            left |= _left_in(self)
        return answer

    StorageManager.clear = observed


def _adapters_of(manager: Any) -> list[Any]:
    """Return kvcove's adapters among a storage manager's, also those inside of LMCache's wrappers."""
    from kvcove.lmcache._l2 import KvcoveL2Adapter

    found = []
    for outer in list(manager._l2_adapters.values()):
        adapter = outer
        while adapter is not None and not isinstance(adapter, KvcoveL2Adapter):
            adapter = getattr(adapter, "_inner", None)
        if adapter is not None:
            found.append(adapter)
    return found


def _left_in(manager: Any) -> set[Any]:
    """Return the keys that a storage manager's L1 still has. 0.5.6 has several L1s, and keeps writes apart."""
    l1s = list(getattr(manager, "_l1_managers_by_id", {}).values()) or [manager._l1_manager]
    return {key for l1 in l1s for key in (*l1._objects, *getattr(l1, "_staging", ()))}


def observe_engine() -> None:
    """Let ``LMCacheEngine.clear`` of an engine in process void what its remote backend has in the pool.

    LMCache asks each backend for a ``clear``, which its remote backend lacks.
    """
    from lmcache.v1.storage_backend.remote_backend import RemoteBackend

    if "engine" in _wrapped or hasattr(RemoteBackend, "clear"):
        return
    _wrapped.add("engine")

    def clear(self: Any) -> int:
        if self.connection is None:
            return 0
        void = getattr(self.connection.getWrappedConnector(), "clear", None)
        return 0 if void is None else int(void())

    RemoteBackend.clear = clear
