# SPDX-License-Identifier: Apache-2.0
"""``mooncake.async_store``: every method of the store with ``async_`` before its name."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable
from typing import Any

from kvcove.mooncake.store import MooncakeDistributedStore

__all__ = ["MooncakeDistributedStore", "MooncakeDistributedStoreAsync"]


class MooncakeDistributedStoreAsync(MooncakeDistributedStore):
    """The store, with coroutines that run its methods on the event loop's threads.

    >>> import asyncio
    >>> async def main():
    ...     store = MooncakeDistributedStoreAsync()
    ...     await store.async_setup("localhost", "P2PHANDSHAKE", 64 << 20, 1 << 20, "tcp", "", "embedded:")
    ...     await store.async_put("key", b"value")
    ...     return await store.async_get("key"), await store.async_close()
    >>> asyncio.run(main())
    (b'value', 0)
    """

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        """Return the coroutine function of ``async_<method>``."""
        if name.startswith("async_"):
            method = getattr(type(self), name.removeprefix("async_"), None)
            if callable(method):
                bound = functools.partial(method, self)

                @functools.wraps(method)
                async def run(*args: Any, **kwargs: Any) -> Any:
                    return await asyncio.to_thread(bound, *args, **kwargs)

                self.__dict__[name] = run
                return run
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
