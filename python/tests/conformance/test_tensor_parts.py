# SPDX-License-Identifier: Apache-2.0
"""Whole tensors that lie at addresses and are stored as the parts of all ranks."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import pytest
from conftest import until

torch = pytest.importorskip("torch")

ROOM = 1 << 16


@pytest.fixture
def lay(store: Any) -> Callable[[Any], tuple[int, int]]:
    """Lay a tensor with its header at a registered address: (address, size)."""
    memory = torch.zeros(ROOM, dtype=torch.uint8)
    address = memory.data_ptr()
    assert store.register_buffer(address, ROOM) == 0

    def lay(tensor: Any) -> tuple[int, int]:
        assert memory.numel() == ROOM
        assert store.put_tensor("laid", tensor) == 0
        size = store.get_size("laid")
        assert store.get_tensor_into("laid", address, size) is not None
        assert store.remove("laid", force=True) == 0
        return address, size

    return lay


def parts(store: Any, key: str, count: int = 4) -> list[Any]:
    """The parts that are there, and nothing but them."""
    assert store.is_exist(key) == 0
    names = [f"{key}_tp_{rank}" for rank in range(count)]
    found = store.batch_is_exist(names)
    return [store.get_tensor(name) for name, there in zip(names, found, strict=True) if there]


def same(got: list[Any], wanted: list[Any]) -> bool:
    return len(got) == len(wanted) and all(
        one.dtype == two.dtype and torch.equal(one, two)
        for one, two in zip(got, wanted, strict=True)
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool])
def test_a_tensor_at_an_address_is_split(store: Any, lay: Callable[..., Any], dtype: Any) -> None:
    value = torch.arange(72).reshape(4, 6, 3).to(dtype)
    address, length = lay(value)
    put = store.put_tensor_with_tp_from
    for size, dim in ((2, 0), (4, 0), (2, 1), (3, 1), (3, 2)):
        wanted = list(value.chunk(size, dim))
        for rank in range(size):  # whichever rank stores it
            key = f"{size} {dim} {rank}"
            assert put(key, address, length, rank, size, dim) == 0
            assert same(parts(store, key), wanted)
            assert torch.equal(store.get_tensor_with_tp(key, rank, size, dim), wanted[rank])
        assert store.put_tensor_with_tp("as", value, 0, size, dim) == 0
        assert store.get("as_tp_1") == store.get(f"{key}_tp_1")
        store.batch_remove([f"as_tp_{rank}" for rank in range(size)], force=True)
    for size, dim in ((1, 0), (1, 7), (0, 9), (-1, 0)):
        assert put(f"whole {size} {dim}", address, length, 0, size, dim) == 0
        assert torch.equal(store.get_tensor(f"whole {size} {dim}"), value)


def test_what_cannot_be_split_is_not_stored(store: Any, lay: Callable[..., Any]) -> None:
    value = torch.arange(24, dtype=torch.float32).reshape(4, 6)
    address, length = lay(value)
    for n, (at, size, tp, dim) in enumerate(
        [
            (address, length, 3, 0),  # 4 rows among 3
            (address, length, 8, 1),
            (address, length, 2, -1),
            (address, length, 2, 2),
            (address, length + 8, 2, 0),
            (address, length - 1, 2, 0),
            (address, 304, 2, 0),
            (address, 0, 2, 0),
            (address + 4096, length, 2, 0),
            (address + ROOM - 304, length, 2, 0),
            (0, length, 2, 0),
        ]
    ):
        assert store.put_tensor_with_tp_from(f"t{n}", at, size, 0, tp, dim) == -600, n
        assert store.batch_put_tensor_with_tp_from([f"t{n}"], [at], [size], 0, tp, dim) == [-600]
        assert parts(store, f"t{n}", 9) == [], n
    for size in (length + 8, length - 1):
        assert store.put_tensor_from("whole", address, size) == -600
        assert store.upsert_tensor_from("whole", address, size) == -600
        assert store.batch_put_tensor_from(["whole"], [address], [size]) == [-600]
    assert store.is_exist("whole") == 0
    for tp, dim in ((3, 0), (8, 1), (2, -1), (2, 2)):
        assert store.put_tensor_with_tp("tensor", value, 0, tp, dim) == -600
    assert parts(store, "tensor", 9) == []
    assert store.put_tensor_with_tp("one", value, 0, 0, 0) == 0
    assert store.is_exist("one") == 1


def test_several_tensors_at_addresses_are_split(store: Any, lay: Callable[..., Any]) -> None:
    value = torch.arange(24, dtype=torch.int32).reshape(4, 6)
    address, length = lay(value)
    put = store.batch_put_tensor_with_tp_from
    assert put(["a", "bad"], [address, address + 4096], [length] * 2, 1, 2, 1) == [0, -600]
    assert same(parts(store, "a"), [value[:, :3], value[:, 3:]])
    assert put(["x", "y"], [address], [length], 0, 2, 1) == [-600, -600]
    assert put(["x", "y"], [address] * 2, [length], 0, 2, 1) == [-600, -600]
    assert put([], [], [], 0, 2, 1) == []
    assert put(["p", "q"], [address] * 2, [length] * 2, 0, 1, 1) == [0, 0]
    assert torch.equal(store.get_tensor("q"), value)
    # A part is a tensor like any other, with a shape of its own.
    one = store.get("a_tp_1")
    ctypes.memmove(address, one, len(one))
    assert store.put_tensor_with_tp_from("half", address, len(one), 0, 2, 0) == 0
    assert same(parts(store, "half"), [value[:2, 3:], value[2:, 3:]])
    # What is there stays.
    other, length = lay(value + 100)
    assert store.put_tensor_with_tp_from("a", other, length, 0, 2, 1) == 0
    assert same(parts(store, "a"), [value[:, :3], value[:, 3:]])


def axis(rank: int, size: int = 2, dim: int = 1) -> Any:
    from mooncake.store import ParallelAxis, TensorParallelism

    one, split = ParallelAxis(), TensorParallelism()
    one.kind, one.rank, one.size, one.split_dim = "tp", rank, size, dim
    split.axes = [one]
    return split


def target(mode: str, rank: int = 0, size: int = 2, dim: int = 1) -> Any:
    from mooncake.store import ReadTarget

    made = ReadTarget()
    made.mode, made.parallelism = mode, axis(rank, size, dim)
    return made


@until("0.3.14")
def test_a_parallel_tensor_at_an_address_is_split(store: Any, lay: Callable[..., Any]) -> None:
    value = torch.arange(24, dtype=torch.float32).reshape(4, 6)
    halves = [value[:, :3], value[:, 3:]]
    address, length = lay(value)
    for rank in range(2):
        put = store.put_tensor_with_parallelism_from
        assert put(f"t{rank}", address, length, axis(rank)) == 0
        assert same(parts(store, f"t{rank}"), halves)
        read = store.get_tensor_with_parallelism
        assert torch.equal(read(f"t{rank}", target("shard", 1)), halves[1])
        assert torch.equal(read(f"t{rank}", target("full")), value)
    for split in (axis(0, 5), axis(0, 2, -1), axis(0, 2, 2), axis(5)):
        assert put("bad", address, length, split) == -600
    assert put("bad", address, length + 8, axis(0)) == -600
    assert parts(store, "bad") == []
    batch = store.batch_put_tensor_with_parallelism_from
    assert batch(["a", "b"], [address] * 2, [length] * 2, [axis(0), axis(1, 3)]) == [0, 0]
    assert same(parts(store, "a"), halves)
    assert same(parts(store, "b"), list(value.chunk(3, 1)))
    address, length = lay(value + 100)
    assert put("a", address, length, axis(0)) == 0
    assert same(parts(store, "a"), halves)
    assert store.upsert_tensor_with_parallelism_from("a", address, length, axis(0)) == 0
    assert same(parts(store, "a"), [half + 100 for half in halves])
    upsert = store.batch_upsert_tensor_with_parallelism_from
    assert upsert(["t0", "new"], [address] * 2, [length] * 2, [axis(0), axis(1)]) == [0, 0]
    assert same(parts(store, "t0"), [half + 100 for half in halves])
    assert same(parts(store, "new"), [half + 100 for half in halves])
