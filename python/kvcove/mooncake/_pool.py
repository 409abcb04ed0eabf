# SPDX-License-Identifier: Apache-2.0
"""A pool of registered buffers: acquire one, use its address in a put or a get, release it."""

from __future__ import annotations

import ctypes
import threading
import time
import weakref
from types import TracebackType
from typing import Any

from kvcove import _native

__all__ = ["BufferLease", "BufferPool", "RegisteredBufferPool"]


_LARGEST = 2**64 - 1
_TOO_LARGE = "requested buffer size exceeds pool capacity"


def _checked(name: str, value: Any) -> int:
    """Return a number that 64 bits can hold; raises TypeError for anything else."""
    if not isinstance(value, int) or not 0 <= value <= _LARGEST:
        raise TypeError(f"{name}: {value!r} is no number from 0 to 2**64 - 1")
    return int(value)


class BufferLease:
    """A buffer that is lent. A context manager: its end releases the buffer.

    A view of the bytes keeps the lease, and the lease keeps the pool: what is dropped without
    :meth:`release` comes back when the last view has gone, and no memory is lent twice before.
    """

    def __init__(self, pool: BufferPool, address: int, size: int, size_class: int) -> None:
        self._pool: BufferPool | None = pool
        self._lock = threading.Lock()
        # Every view holds this array, and nothing else does: it lives while one of them lives.
        self._viewed: weakref.ref[Any] | None = None
        self._address = address
        self._size = size
        self._class = size_class

    @property
    def size(self) -> int:
        """The bytes that were asked for."""
        return self._size

    @property
    def ptr(self) -> int:
        """The address."""
        if self._pool is None:
            raise RuntimeError("buffer lease is closed")
        return self._address

    @property
    def buffer(self) -> memoryview:
        """The bytes, writable. The buffer cannot be released while a view of them exists."""
        with self._lock:
            if self._pool is None:
                raise BufferError("buffer lease is closed")
            array = self._viewed() if self._viewed is not None else None
            if array is None:
                array = (ctypes.c_ubyte * self._class).from_address(self._address)
                vars(array)["lease"] = self
                self._viewed = weakref.ref(array)
            return memoryview(array).cast("B")[: self._size]

    def release(self) -> None:
        """Give the buffer back. May be called again.

        Raises
        ------
        RuntimeError
            A view of its bytes exists: a memoryview, or what was made from one.
        """
        with self._lock:
            if self._viewed is not None and self._viewed() is not None:
                raise RuntimeError("cannot release buffer while exported views exist")
            pool, self._pool = self._pool, None
        if pool is not None:
            pool._take_back(self._address, self._class)

    def __enter__(self) -> BufferLease:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()

    def __del__(self) -> None:
        if self.__dict__.get("_pool") is not None:
            self.release()


class BufferPool:
    """Buffers in classes of size, each twice the one below; registered with a store once.

    Parameters
    ----------
    store : MooncakeDistributedStore
        Where buffers are registered.
    max_bytes : int
        Most bytes together; 0: no bound.
    min_size_class, max_size_class : int
        Bytes of the smallest and the largest class; a larger buffer has its own size.
    alignment : int
        Of addresses, in bytes; a power of two, 8 or more.
    block_on_exhaustion : bool
        Wait for a buffer to come back, up to ``default_timeout`` seconds (None: for ever).
    max_regions : int, optional
        Most buffers together.
    prewarm_size, prewarm_count : int
        Buffers to make at once.

    Raises
    ------
    TypeError
        A number is none, or negative.
    RuntimeError
        A number is not usable.
    """

    def __init__(
        self,
        store: Any,
        max_bytes: int = 0,
        min_size_class: int = 65536,
        max_size_class: int | None = None,
        alignment: int = 8388608,
        block_on_exhaustion: bool = True,
        default_timeout: float | None = None,
        max_regions: int | None = None,
        prewarm_size: int | None = None,
        prewarm_count: int = 0,
    ) -> None:
        self._max_bytes = _checked("max_bytes", max_bytes)
        self._min = _checked("min_size_class", min_size_class)
        if self._min == 0 or _checked("alignment", alignment) == 0:
            raise RuntimeError("min_size_class and alignment must be positive")
        if alignment < 8 or alignment & (alignment - 1):
            raise RuntimeError("alignment must be a power of two and at least sizeof(void*)")
        self._store = store
        self._max = max_size_class
        self._alignment = alignment
        self._block = block_on_exhaustion
        self._timeout = default_timeout
        self._max_regions = max_regions
        self._changed = threading.Condition()
        self._free: dict[int, list[int]] = {}
        self._memory: dict[int, tuple[int, int]] = {}  # by aligned address: what was allocated
        self._bytes = 0
        self._lent = 0
        self._closed = False
        if prewarm_size is not None and prewarm_count > 0:
            self.prewarm(prewarm_size, prewarm_count)

    def _class_of(self, size: int) -> int:
        size_class = self._min
        while size_class < size:
            size_class *= 2
        if self._max is not None and size_class > self._max:
            return max(size, 1)
        return size_class

    def _make(self, size_class: int) -> int | None:
        """Return the address of a new buffer, None where a bound is reached. Needs the lock."""
        if self._max_bytes and self._bytes + size_class > self._max_bytes:
            # What nobody uses in other classes makes room.
            for other in sorted(self._free, reverse=True):
                while self._free[other] and self._bytes + size_class > self._max_bytes:
                    self._drop(self._free[other].pop(), other)
            if self._bytes + size_class > self._max_bytes:
                return None
        if self._max_regions is not None and len(self._memory) >= self._max_regions:
            return None
        total = size_class + self._alignment
        base = _native.allocate_memory(total) if total <= _LARGEST else 0
        if base == 0:
            raise RuntimeError(_TOO_LARGE)
        address = (base + self._alignment - 1) // self._alignment * self._alignment
        if self._store.register_buffer(address, size_class) != 0:
            _native.free_memory(base, total)
            raise RuntimeError("the store does not register a buffer; is it set up?")
        self._memory[address] = (base, total)
        self._bytes += size_class
        return address

    def _drop(self, address: int, size_class: int) -> None:
        self._store.unregister_buffer(address)
        _native.free_memory(*self._memory.pop(address))
        self._bytes -= size_class

    def _take_back(self, address: int, size_class: int) -> None:
        with self._changed:
            self._free.setdefault(size_class, []).append(address)
            self._lent -= 1
            self._changed.notify_all()

    def acquire(
        self, size: int, block: bool | None = None, timeout: float | None = None
    ) -> BufferLease:
        """Lend a buffer of at least ``size`` bytes.

        Raises
        ------
        TypeError
            The size is no size.
        RuntimeError
            The pool is closed; no such buffer can ever be had; there is none, and ``block`` is
            false; there was none in time.
        """
        size = _checked("size", size)
        size_class = self._class_of(size)
        block = self._block if block is None else block
        timeout = self._timeout if timeout is None else timeout
        if timeout is not None and timeout < 0:
            raise RuntimeError("timeout must be non-negative")
        if self._max_bytes and size_class > self._max_bytes:
            raise RuntimeError(_TOO_LARGE)
        until = None if timeout is None else time.monotonic() + timeout
        with self._changed:
            while True:
                if self._closed:
                    raise RuntimeError("buffer pool is closed")
                free = self._free.get(size_class)
                address = free.pop() if free else self._make(size_class)
                if address is not None:
                    self._lent += 1
                    return BufferLease(self, address, size, size_class)
                if not block:
                    raise RuntimeError("buffer pool is exhausted")
                left = None if until is None else until - time.monotonic()
                if left is not None and left <= 0:
                    raise RuntimeError("timed out waiting for buffer")
                self._changed.wait(left)

    def buffer(
        self, size: int, block: bool | None = None, timeout: float | None = None
    ) -> BufferLease:
        """Lend a buffer for a ``with`` block."""
        return self.acquire(size, block, timeout)

    def prewarm(self, size: int, count: int) -> None:
        """Make ``count`` buffers of ``size`` bytes now."""
        leases = [self.acquire(size, block=False) for _ in range(count)]
        for lease in leases:
            lease.release()

    def close(self) -> None:
        """Give all memory back and lend nothing any more. May be called again.

        Raises
        ------
        RuntimeError
            Buffers are lent, or views of their bytes exist.
        """
        with self._changed:
            if self._lent:
                raise RuntimeError("cannot close buffer pool with active leases")
            for size_class, addresses in self._free.items():
                for address in addresses:
                    self._drop(address, size_class)
            self._free.clear()
            self._closed = True
            self._changed.notify_all()

    def __del__(self) -> None:
        # What is lent holds the pool; where a lease is in the same garbage, its memory stays.
        if self.__dict__.get("_lent") == 0:
            self.close()


RegisteredBufferPool = BufferPool
