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

    LMCache empties its L1 only. A clear that is not proven raises, so that the caller is told. The adapters also learn
    when each write into L1 begins: LMCache stores its bytes in L2 later, with nothing that says of when they are.
    """
    from lmcache.v1.distributed.storage_manager import StorageManager

    if "server" in _wrapped:
        return
    _wrapped.add("server")
    clear, reserve = StorageManager.clear, StorageManager.reserve_write

    @functools.wraps(clear)
    def observed(self: Any, *args: Any, **kwargs: Any) -> Any:
        with ExitStack() as stack:
            for adapter in _adapters_of(self):
                stack.enter_context(adapter.clearing())
            return clear(self, *args, **kwargs)

    @functools.wraps(reserve)
    def begun(self: Any, keys: Any, *args: Any, **kwargs: Any) -> Any:
        writes = [(adapter, adapter.begin_writes(keys)) for adapter in _adapters_of(self)]
        answer = reserve(self, keys, *args, **kwargs)
        for adapter, write in writes:
            adapter.note_writes(answer, write)  # of keys that nobody else writes at this moment
        return answer

    StorageManager.clear = observed
    StorageManager.reserve_write = begun


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


def observe_engine() -> None:
    """Let ``LMCacheEngine.clear`` of an engine in process void what its remote backend has in the pool.

    LMCache asks each backend for a ``clear``, which its remote backend lacks. The connector also learns when LMCache
    is asked for a put, which its loop begins later.
    """
    from lmcache.v1.storage_backend.remote_backend import RemoteBackend

    if "engine" in _wrapped:
        return
    _wrapped.add("engine")
    clear = getattr(
        RemoteBackend, "clear", None
    )  # of an LMCache that is newer than those that are known
    submit = RemoteBackend.batched_submit_put_task

    def observed(self: Any) -> int:
        cleared = 0 if clear is None else int(clear(self))
        void = getattr(_connector_of(self), "clear", None)
        return cleared if void is None else cleared + int(void())

    @functools.wraps(submit)
    def asked(self: Any, keys: Any, *args: Any, **kwargs: Any) -> Any:
        stamp = getattr(_connector_of(self), "asked_to_put", None)
        return submit(self, keys if stamp is None else stamp(keys), *args, **kwargs)

    RemoteBackend.clear = observed
    RemoteBackend.batched_submit_put_task = asked


def _connector_of(backend: Any) -> Any:
    inner = getattr(backend.connection, "getWrappedConnector", None)
    return None if inner is None else inner()
