# SPDX-License-Identifier: Apache-2.0
"""Tensors over several axes and several writers: which key has which part, and what is refused."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import differs, until

torch = pytest.importorskip("torch")
pytestmark = until("0.3.14")
MANIFEST = "__parallelism_manifest"


def axis(kind: str, rank: int, size: int, dim: int | None = None, **more: int) -> Any:
    from mooncake.store import ParallelAxis

    made = ParallelAxis()
    made.kind, made.rank, made.size, made.split_dim = kind, rank, size, dim
    for name, value in more.items():
        setattr(made, name, value)
    return made


def axes(*several: Any) -> Any:
    from mooncake.store import TensorParallelism

    made = TensorParallelism()
    made.axes = list(several)
    return made


def target(mode: str, *several: Any) -> Any:
    from mooncake.store import ReadTarget

    made = ReadTarget()
    made.mode = mode
    if several:
        made.parallelism = axes(*several)
    return made


def writer(rank: int, size: int, dim: int) -> Any:
    return SimpleNamespace(rank=rank, size=size, split_dim=dim)


def whole() -> Any:
    return torch.arange(64, dtype=torch.float32).reshape(8, 8)


GOOD: dict[str, tuple[Any, dict[str, int]]] = {
    "a_tp_1": (("tp", 1, 2, 1), {}),
    "a__dp_0of2": (("dp", 0, 2), {}),
    "a__pp_1of2_sid1": (("pp", 1, 2), {"stage_id": 1}),
    "a__ep_1of4_eid1": (("ep", 1, 4), {"expert_id": 1}),
    "a_tp_0": (("TP", 0, 3, 0), {}),
}


@pytest.mark.parametrize("key", GOOD)
def test_one_axis_has_one_key(store: Any, key: str) -> None:
    words, more = GOOD[key]
    assert store.put_tensor_with_parallelism("a", whole(), axes(axis(*words, **more))) == 0
    assert store.is_exist(key) == 1
    assert store.is_exist("a" + MANIFEST) == ("_tp_" in key)
    assert torch.equal(store.get_tensor(key), whole())


def test_several_axes_stand_in_one_order(store: Any) -> None:
    parallelism = axes(
        axis("pp", 0, 2, stage_id=3),
        axis("ep", 1, 2, expert_id=7),
        axis("tp", 1, 2, 1),
        axis("dp", 0, 2),
    )
    assert store.put_tensor_with_parallelism("a", whole(), parallelism) == 0
    assert store.is_exist("a__dp_0of2__tp_1of2_sd1__ep_1of2_eid7__pp_0of2_sid3") == 1
    assert store.is_exist("a" + MANIFEST) == 1


BAD = {
    "no axes": lambda: axes(),
    "no such kind": lambda: axes(axis("cp", 0, 2, 0)),
    "tp does not say where": lambda: axes(axis("tp", 0, 2)),
    "dp splits nothing": lambda: axes(axis("dp", 0, 2, 0)),
    "pp splits nothing": lambda: axes(axis("pp", 0, 2, 0, stage_id=0)),
    "pp without a stage": lambda: axes(axis("pp", 0, 2)),
    "ep without an expert": lambda: axes(axis("ep", 0, 2)),
    "ep splits nothing": lambda: axes(axis("ep", 1, 4, 0, expert_id=1)),
    "one kind twice": lambda: axes(axis("dp", 0, 2), axis("dp", 1, 2)),
    "rank beyond": lambda: axes(axis("tp", 2, 2, 0)),
    "no size": lambda: axes(axis("tp", 0, 0, 0)),
    "no such dimension": lambda: axes(axis("tp", 0, 2, 5)),
    "before the first dimension": lambda: axes(axis("tp", 0, 2, -1)),
    "a word": lambda: "tp",
    "a number": lambda: 1,
}


@pytest.mark.parametrize("bad", BAD)
def test_what_is_refused(store: Any, bad: str) -> None:
    assert store.put_tensor_with_parallelism("a", whole(), BAD[bad]()) == -600
    assert store.upsert_tensor_with_parallelism("a", whole(), BAD[bad]()) == -600
    assert store.remove_all(True) == 0


def test_parts_are_read_as_others_split(store: Any) -> None:
    parts = whole().chunk(2)
    for rank in range(2):
        answer = store.put_tensor_with_parallelism("a", parts[rank], axes(axis("tp", rank, 2, 0)))
        assert answer == 0
    read = store.get_tensor_with_parallelism
    assert read("a") is None
    assert read("a", target("as_stored")) is None
    assert read("a", target("full")) is None
    assert read("a", target("shard")) is None
    assert torch.equal(read("a", target("full", axis("tp", 0, 2, 0))), whole())
    assert torch.equal(read("a", target("shard", axis("tp", 1, 2, 0))), parts[1])
    assert torch.equal(read("a", target("shard", axis("tp", 3, 4, 0))), whole()[6:])
    assert torch.equal(read("a", target("shard", axis("tp", 0, 1, 0))), whole())
    assert read("a", target("shard", axis("tp", 2, 3, 0))) is None
    assert read("a", target("shard", axis("dp", 0, 2), axis("tp", 0, 2, 0))) is None
    assert store.batch_get_tensor_with_parallelism(["a"], target("full")) == [None]
    assert store.batch_get_tensor_with_parallelism(["a", "b"], [target("full")]) == [None, None]
    both = [target("shard", axis("tp", 1, 2, 0)), target("full", axis("tp", 0, 2, 0))]
    one, other = store.batch_get_tensor_with_parallelism(["a", "a"], both)
    assert torch.equal(one, parts[1]) and torch.equal(other, whole())


@differs("a part along another dimension")
def test_a_part_along_another_dimension_is_that_part(store: Any) -> None:
    for rank, part in enumerate(whole().chunk(2)):
        assert store.put_tensor_with_parallelism("a", part, axes(axis("tp", rank, 2, 0))) == 0
    read = store.get_tensor_with_parallelism("a", target("shard", axis("tp", 1, 2, 1)))
    assert torch.equal(read, whole()[:, 4:])


def test_axes_beside_the_one_that_splits_must_fit(store: Any) -> None:
    parts = whole().chunk(2)
    for rank in range(2):
        how = axes(axis("dp", 1, 2), axis("tp", rank, 2, 0))
        assert store.put_tensor_with_parallelism("a", whole(), how) == 0  # cut by the call
    read = store.get_tensor_with_parallelism
    mine = axis("dp", 1, 2)
    assert torch.equal(read("a", target("shard", mine, axis("tp", 1, 2, 0))), parts[1])
    assert torch.equal(read("a", target("shard", mine, axis("tp", 3, 4, 0))), whole()[6:])
    assert torch.equal(read("a", target("full", mine, axis("tp", 1, 2, 0))), whole())
    assert read("a", target("shard", axis("tp", 1, 2, 0))) is None
    assert read("a", target("full", mine)) is None
    assert read("a", target("shard", axis("dp", 0, 2), axis("tp", 1, 2, 0))) is None


def _at(store: Any, tensor: Any) -> tuple[Any, int, int]:
    assert store.put_tensor("encoded", tensor) == 0
    content = store.get("encoded")
    assert store.remove("encoded", True) == 0
    buffer = ctypes.create_string_buffer(content, len(content))
    assert store.register_buffer(ctypes.addressof(buffer), len(content)) == 0
    return buffer, ctypes.addressof(buffer), len(content)


def test_a_whole_tensor_in_memory_becomes_all_parts(store: Any) -> None:
    buffer, address, size = _at(store, whole())
    put = store.put_tensor_with_parallelism_from
    assert put("a", address, size, axes(axis("tp", 0, 2, 0))) == 0
    assert [store.is_exist(k) for k in ("a_tp_0", "a_tp_1", "a" + MANIFEST)] == [1, 1, 0]
    read = store.get_tensor_with_parallelism
    assert torch.equal(read("a", target("shard", axis("tp", 1, 2, 0))), whole()[4:])
    assert torch.equal(read("a", target("shard", axis("tp", 3, 4, 0))), whole()[6:])
    assert torch.equal(read("a", target("full", axis("tp", 0, 2, 0))), whole())
    assert put("b", address, size, axes(axis("dp", 1, 2), axis("tp", 0, 2, 0))) == 0
    assert store.batch_is_exist([f"b__dp_1of2__tp_{r}of2_sd0" for r in range(2)]) == [1, 1]
    assert put("c", address, size, axes(axis("pp", 1, 2, stage_id=1))) == 0
    assert torch.equal(store.get_tensor("c__pp_1of2_sid1"), whole())
    assert put("d", address, size, None, _config(), writer(1, 2, 0)) == 0
    assert torch.equal(store.get_tensor("d__writer_1of2_sd0"), whole()[4:])
    assert store.unregister_buffer(address) == 0
    del buffer


def _config() -> Any:
    from mooncake.store import ReplicateConfig

    return ReplicateConfig()


def test_several_writers_of_one_tensor(store: Any) -> None:
    put, read = store.put_tensor_with_parallelism, store.get_tensor_with_parallelism
    for rank in range(2):
        assert put("a", whole(), None, _config(), writer(rank, 2, 0)) == 0
    names = ["a__writer_0of2_sd0", "a__writer_1of2_sd0", "a__writer_manifest"]
    assert store.batch_is_exist(names) == [1, 1, 1]
    assert torch.equal(store.get_tensor(names[1]), whole()[4:])
    assert torch.equal(read("a", target("full")), whole())
    assert torch.equal(read("a", target("shard", axis("tp", 1, 2, 0))), whole()[4:])
    assert read("a") is None
    assert read("a", target("as_stored")) is None
    assert len(store.get(names[2])) == 96


def test_writers_that_are_refused(store: Any) -> None:
    put = store.put_tensor_with_parallelism
    for bad in (
        1,
        "x",
        (0, 2, 0),
        {"rank": 0, "size": 2, "split_dim": 0},
        SimpleNamespace(rank=0, size=2),
        writer(2, 2, 0),
        writer(0, 3, 0),
        writer(0, 2, 9),
        axes(axis("tp", 0, 2, 0)),
    ):
        assert put("a", whole(), None, _config(), bad) == -600, bad
    both = axes(axis("tp", 0, 2, 0))
    assert put("a", whole(), both, _config(), writer(0, 2, 0)) == -600
    assert store.remove_all(True) == 0
    many = store.batch_put_tensor_with_parallelism
    two, tensors = ["a", "b"], [whole(), whole()]
    assert many(two, tensors, None, _config(), [writer(0, 2, 0)]) == [-600, -600]
    assert many(two, tensors, both) == [-600, -600]
    assert many(two, tensors, [both]) == [-600, -600]
    assert many(two, tensors, [both, None]) == [0, 0]
    assert store.batch_is_exist(["a_tp_0", "b"]) == [1, 1]


def test_batches_of_unequal_length(store: Any) -> None:
    two = ["a", "b"]
    assert store.batch_put_tensor(two, [whole()]) == [-600, -600]
    assert store.batch_put_tensor_from(two, [1], [1]) == [-600, -600]
    assert store.batch_upsert_tensor_from(two, [1], [1]) == [-600, -600]
    assert store.batch_get_tensor_into(two, [1], [1]) == [-600, -600]
    assert store.batch_get_tensor_with_tp_into(two, [1], [1], 0, 2) == [-600, -600]
    assert store.batch_get_tensor_with_parallelism_into(two, [1], [1], [target("full")]) == [
        None,
        None,
    ]


def test_a_header_has_both_shapes(store: Any) -> None:
    assert store.put_tensor_with_tp("a", whole(), 0, 2, 0) == 0
    import struct

    for rank in range(2):
        content = store.get(f"a_tp_{rank}")
        assert struct.unpack_from("<8q", content, 40) == (8, 8, *[-1] * 6)
        assert struct.unpack_from("<8q", content, 104) == (4, 8, *[-1] * 6)


def test_helpers_of_tensors(store: Any) -> None:
    from mooncake import store as module

    assert module._tensor_metadata_size() == 304
    for tensor in (whole(), whole().t(), torch.tensor(3.0), torch.zeros(0, 3)):
        head, address, size, owner = module._serialize_tensor(tensor)
        assert (len(head), size) == (304, tensor.numel() * tensor.element_size())
        content = head + (ctypes.string_at(address, size) if size else b"")
        shaped = tensor if tensor.dim() else tensor.reshape(1)
        assert torch.equal(module._deserialize_tensor(content), shaped)
        assert owner is not None
        assert store.put_tensor("t", tensor) == 0
        assert torch.equal(store.get_tensor("t"), shaped)
        assert store.remove("t", True) == 0
    for bad in (5, torch.zeros(2, dtype=torch.complex64)):
        with pytest.raises(ValueError, match="unsupported tensor"):
            module._serialize_tensor(bad)
    for content in (b"", b"abc", module._serialize_tensor(whole())[0] + b"ab"):
        with pytest.raises(ValueError, match="invalid serialized"):
            module._deserialize_tensor(content)
