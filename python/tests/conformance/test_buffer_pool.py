# SPDX-License-Identifier: Apache-2.0
"""Buffers that are lent: nobody else gets the bytes while somebody can see them."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable
from typing import Any

import pytest

VIEWED = "cannot release buffer while exported views exist"


@pytest.fixture
def pool(store: Any) -> Any:
    from mooncake.store import BufferPool

    return BufferPool(store, alignment=4096)


def _numpy(view: memoryview) -> Any:
    return pytest.importorskip("numpy").frombuffer(view, dtype="u1")


def _torch(view: memoryview) -> Any:
    torch = pytest.importorskip("torch")
    return torch.frombuffer(view, dtype=torch.float32)


@pytest.mark.parametrize(
    "export",
    [
        lambda view: view,
        lambda view: view[10:20],
        lambda view: view.cast("I"),
        lambda view: (ctypes.c_char * 8).from_buffer(view),
        _numpy,
        _torch,
    ],
    ids=["memoryview", "slice", "cast", "ctypes", "numpy", "torch"],
)
def test_a_buffer_is_not_released_under_a_view(
    pool: Any, export: Callable[[memoryview], Any]
) -> None:
    lease = pool.acquire(1024)
    address, seen = lease.ptr, export(lease.buffer)
    for _ in range(2):
        with pytest.raises(RuntimeError, match=VIEWED):
            lease.release()
    assert lease.ptr == address  # it is as if nobody had asked
    lease.buffer[:3] = b"abc"
    with pool.acquire(1024) as other:
        assert other.ptr != address
    with pytest.raises(RuntimeError, match="active leases"):
        pool.close()
    del seen
    lease.release()
    lease.release()
    with pytest.raises(RuntimeError, match="closed"):
        _ = lease.ptr
    with pytest.raises(BufferError):
        _ = lease.buffer
    pool.close()


def test_a_block_that_leaves_a_view_behind_fails(pool: Any) -> None:
    kept = []
    with pytest.raises(RuntimeError, match=VIEWED), pool.acquire(64) as lease:
        kept.append(lease.buffer)
    kept.clear()
    lease.release()
    pool.close()


def test_a_view_keeps_what_it_shows(pool: Any) -> None:
    lease = pool.acquire(64)
    address, view = lease.ptr, lease.buffer
    view[:3] = b"abc"
    del lease
    gc.collect()
    other = pool.acquire(64)
    assert other.ptr != address
    other.buffer[:3] = b"xyz"
    assert bytes(view[:3]) == b"abc"
    other.release()
    with pytest.raises(RuntimeError, match="active leases"):
        pool.close()
    view.release()
    pool.close()


def test_a_view_outlives_the_pool_it_came_from(store: Any) -> None:
    from mooncake.store import BufferPool

    pool = BufferPool(store, alignment=4096)
    lease = pool.acquire(1 << 20)
    view = lease.buffer
    del pool, lease
    gc.collect()
    view[:] = bytes([7]) * len(view)
    assert view[-1] == 7
    view.release()
    gc.collect()


def test_a_closed_pool_lends_nothing(pool: Any) -> None:
    pool.acquire(64).release()
    pool.close()
    pool.close()
    for call in (pool.acquire, pool.buffer):
        with pytest.raises(RuntimeError, match="buffer pool is closed"):
            call(64)


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        ({"alignment": 0}, "min_size_class and alignment must be positive"),
        ({"min_size_class": 0}, "min_size_class and alignment must be positive"),
        ({"alignment": 3}, "alignment must be a power of two and at least"),
        ({"alignment": 4}, "alignment must be a power of two and at least"),
    ],
)
def test_a_pool_says_what_it_cannot_be(store: Any, bad: dict[str, int], says: str) -> None:
    from mooncake.store import BufferPool

    with pytest.raises(RuntimeError, match=says):
        BufferPool(store, **bad)
    for name in bad:
        for wrong in (-8, 2**64):
            with pytest.raises(TypeError):
                BufferPool(store, **{name: wrong})


def test_sizes_that_no_pool_has(store: Any) -> None:
    from mooncake.store import BufferPool

    for alignment in (4096, 1 << 62):
        pool = BufferPool(store, alignment=alignment)
        for size in (2**45, 2**60, 2**63, 2**64 - 1):
            with pytest.raises(RuntimeError, match="requested buffer size exceeds pool capacity"):
                pool.acquire(size)
        for size in (-1, 2**64, 1.5, "1"):
            with pytest.raises(TypeError):
                pool.acquire(size)
        pool.close()
    pool = BufferPool(store, alignment=4096)
    with pool.acquire(0) as nothing:
        assert (nothing.size, len(nothing.buffer)) == (0, 0)
    pool.close()


def test_a_pool_that_has_lent_everything(store: Any) -> None:
    from mooncake.store import BufferPool

    pool = BufferPool(store, alignment=4096, max_regions=1)
    lease = pool.acquire(64)
    with pytest.raises(RuntimeError, match="buffer pool is exhausted"):
        pool.acquire(64, block=False)
    with pytest.raises(RuntimeError, match="timed out waiting for buffer"):
        pool.acquire(64, timeout=0.02)
    with pytest.raises(RuntimeError, match="timeout must be non-negative"):
        pool.acquire(64, timeout=-1)
    lease.release()
    pool.acquire(64).release()
    pool.close()
