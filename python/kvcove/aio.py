# SPDX-License-Identifier: Apache-2.0
"""The calls of a session with ``await``.

>>> import asyncio, kvcove, kvcove.aio
>>> async def main():
...     with kvcove.open("embedded:?memory=64MiB") as pool:
...         session = kvcove.aio.AsyncSession(pool.session("acme/llama"))
...         await session.put(["a"], [b"1"])
...         buffer = bytearray(1)
...         results = await session.get_into(["a"], [buffer])
...         return results.all_ok, bytes(buffer)
>>> asyncio.run(main())
(True, b'1')

A call that is cancelled goes on by itself until its deadline; the library keeps its buffers alive
until nothing can land in them any more.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any, NoReturn, cast
from weakref import WeakKeyDictionary

from kvcove import _errors
from kvcove._native import Hints, Queue, Results, Session, Token

__all__ = ["AsyncSession"]

Key = str | bytes
_CAPTURE_SECONDS = 0.2  # for which the event loop waits for the pool at once


class _LoopQueue:
    """The completions of one event loop. Belongs to that loop's thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._queue = Queue(4096)
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        loop.add_reader(self._queue.fileno(), self._take)

    @property
    def native(self) -> Queue:
        return self._queue

    def _take(self) -> None:
        while (completion := self._queue.next(0.0)) is not None:
            tag, answer, _final = completion
            future = self._waiting.pop(tag, None)
            if future is None or future.done():
                continue
            if isinstance(answer, _errors.Error):
                future.set_exception(answer)
            else:
                future.set_result(answer)

    async def wait(self, tag: int) -> Any:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[tag] = future
        return await future


_queues: WeakKeyDictionary[asyncio.AbstractEventLoop, _LoopQueue] = WeakKeyDictionary()


def _queue() -> _LoopQueue:
    loop = asyncio.get_running_loop()
    queue = _queues.get(loop)
    if queue is None:
        queue = _queues[loop] = _LoopQueue(loop)
    return queue


class AsyncSession:
    """The calls of a :class:`kvcove.Session` as coroutines; arguments and answers are the same.

    Parameters
    ----------
    session : kvcove.Session
        Its blocking calls may be used beside these. ``async with`` closes it at the end.

    Notes
    -----
    :meth:`put` without a token captures the generation before it returns to the event loop. Where the
    session does not know it (its first call, the first one after a reset, and each one in a cluster
    without an owner on this host) it asks the pool, and the loop stands still until the pool answers,
    for 0.2 s at a time. ``token = await asyncio.to_thread(session.capture)`` avoids that.
    """

    def __init__(self, session: Session) -> None:
        if not isinstance(session, Session):
            raise _errors.InvalidError(
                f"AsyncSession: a kvcove.Session is wanted (pool.session(...)), not {type(session).__name__}"
            )
        self._session = session

    def __repr__(self) -> str:
        return f"<kvcove.aio.AsyncSession of {self._session!r}>"

    async def __aenter__(self) -> AsyncSession:
        return self

    async def __aexit__(self, *args: object) -> None:
        # It may end a call of the pool, which waits.
        await asyncio.to_thread(self._session.close)

    def __enter__(self) -> NoReturn:
        raise _errors.InvalidError("an AsyncSession is used with 'async with', not with 'with'")

    def __exit__(self, *args: object) -> None: ...

    @property
    def session(self) -> Session:
        """The session with the blocking calls."""
        return self._session

    async def put(
        self,
        keys: Sequence[Key],
        values: Sequence[Any],
        *,
        token: Token | None = None,
        after: Key | Sequence[Key] | None = None,
        hints: Hints | Sequence[Hints] | None = None,
        timeout: float = 1.0,
    ) -> Results:
        """Store values; see :meth:`kvcove.Session.put`."""
        queue = _queue()
        if token is None:
            until = time.monotonic() + timeout
            token = await self._captured(until)
            timeout = max(until - time.monotonic(), 0.0)
        tag = queue.native.start_put(self._session, keys, values, token, after, hints, timeout)
        return cast(Results, await queue.wait(tag))

    async def _captured(self, until: float) -> Token:
        """Return a token, or raise TimedOutError; other tasks and signals have a turn each 0.2 s."""
        while True:
            left = until - time.monotonic()
            try:
                return self._session.capture(timeout=max(min(left, _CAPTURE_SECONDS), 0.0))
            except _errors.TimedOutError:
                if left <= _CAPTURE_SECONDS:
                    raise
            await asyncio.sleep(0)

    async def get_into(
        self,
        keys: Sequence[Key],
        buffers: Sequence[Any],
        *,
        version: str = "",
        timeout: float = 1.0,
    ) -> Results:
        """Read values into buffers; see :meth:`kvcove.Session.get_into`."""
        queue = _queue()
        tag = queue.native.start_get_into(self._session, keys, buffers, version, timeout)
        return cast(Results, await queue.wait(tag))

    async def _keys(
        self, kind: str, keys: Sequence[Key], seconds: float | None, version: str, timeout: float
    ) -> Results:
        queue = _queue()
        tag = queue.native.start_keys(self._session, kind, keys, seconds, version, timeout)
        return cast(Results, await queue.wait(tag))

    async def get(
        self, keys: Sequence[Key], *, version: str = "", timeout: float = 1.0
    ) -> list[bytes | None]:
        """Return values as bytes; see :meth:`kvcove.Session.get`."""
        found = await self.exists(keys, version=version, timeout=timeout)
        which = [i for i, code in enumerate(found.codes) if code == 0]
        buffers = [bytearray(found[i].nbytes) for i in which]
        results = await self.get_into(
            [keys[i] for i in which], buffers, version=version, timeout=timeout
        )
        values: list[bytes | None] = [None] * len(keys)
        for k, i in enumerate(which):
            if results[k].ok and results[k].nbytes == len(buffers[k]):
                values[i] = bytes(buffers[k])
        return values

    async def exists(
        self, keys: Sequence[Key], *, version: str = "", timeout: float = 1.0
    ) -> Results:
        """Look keys up; see :meth:`kvcove.Session.exists`."""
        return await self._keys("exists", keys, None, version, timeout)

    async def longest_prefix(
        self, keys: Sequence[Key], *, version: str = "", timeout: float = 1.0
    ) -> int:
        """Return the length of the leading run of keys that are there."""
        queue = _queue()
        tag = queue.native.start_longest_prefix(self._session, keys, version, timeout)
        return cast(int, await queue.wait(tag))

    async def hold(
        self, keys: Sequence[Key], seconds: float = 5.0, *, version: str = "", timeout: float = 1.0
    ) -> Results:
        """Keep what is there from being evicted; see :meth:`kvcove.Session.hold`."""
        return await self._keys("hold", keys, seconds, version, timeout)

    async def pin(
        self,
        keys: Sequence[Key],
        seconds: float | None = None,
        *,
        hard: bool = False,
        version: str = "",
        timeout: float = 1.0,
    ) -> Results:
        """Pin objects; see :meth:`kvcove.Session.pin`."""
        return await self._keys("pin_hard" if hard else "pin", keys, seconds, version, timeout)

    async def unpin(
        self, keys: Sequence[Key], *, version: str = "", timeout: float = 1.0
    ) -> Results:
        """Undo :meth:`pin`."""
        return await self._keys("unpin", keys, None, version, timeout)

    async def remove(
        self, keys: Sequence[Key], *, version: str = "", timeout: float = 2.5
    ) -> Results:
        """Remove objects; see :meth:`kvcove.Session.remove`."""
        return await self._keys("remove", keys, None, version, timeout)

    async def remove_matching(
        self, pattern: str, *, version: str = "", timeout: float = 2.5
    ) -> int:
        """Remove what matches; see :meth:`kvcove.Session.remove_matching`."""
        queue = _queue()
        tag = queue.native.start_remove_matching(self._session, pattern, version, timeout)
        return cast(int, await queue.wait(tag))

    async def reset(
        self, version: str | None = None, *, all_void: bool = False, timeout: float = 2.5
    ) -> None:
        """Void what was stored; see :meth:`kvcove.Session.reset`."""
        queue = _queue()
        tag = queue.native.start_reset(self._session, version, all_void, timeout)
        await queue.wait(tag)

    async def prune(self, before: str, *, timeout: float = 2.5) -> int:
        """Declare older weight versions dead; see :meth:`kvcove.Session.prune`."""
        queue = _queue()
        tag = queue.native.start_prune(self._session, before, timeout)
        return cast(int, await queue.wait(tag))
