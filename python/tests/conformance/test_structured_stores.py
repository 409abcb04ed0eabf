# SPDX-License-Identifier: Apache-2.0
"""What the structured store asks of a store and of a buffer pool, and what it refuses."""

from __future__ import annotations

import ctypes
import json
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import RIVAL, differs, own

numpy = pytest.importorskip("numpy")


def batch(**parts: Any) -> Any:
    empty: dict[str, Any] = {"batch": {}, "non_tensor_batch": {}, "meta_info": {}}
    return SimpleNamespace(**(empty | parts))


def nothing_left(store: Any) -> bool:
    return bool(store.remove_by_regex("^t/", True) == 0)


class Counting:
    """A store that counts the calls of each of its methods."""

    def __init__(self, store: Any) -> None:
        self.store = store
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        self.calls.append(name)
        return getattr(self.store, name)


# ---- removals


@differs("batches of a removal")
def test_a_bundle_is_removed_with_one_batch(module: Any, store: Any) -> None:
    batches: list[list[str]] = []

    class Watched(Counting):
        def batch_remove(self, keys: list[str], force: bool = False) -> list[int]:
            batches.append(keys)
            return list(self.store.batch_remove(keys, force))

    transfer = module.MooncakeBundleTransfer(Watched(store), key_prefix="t")
    ref = transfer.put_bundle(b"m", {"a": b"x" * 9, "b": b"y"}, chunk_bytes=4)
    transfer.remove_bundle(ref)
    assert len(batches) == 1
    assert len(set(batches[0])) == len(batches[0]) >= 5
    assert nothing_left(store)


def test_a_key_that_a_batch_does_not_remove_gets_a_second_attempt(module: Any, store: Any) -> None:
    class Busy(Counting):
        def batch_remove(self, keys: list[str], force: bool = False) -> list[int]:
            return [-1, *self.store.batch_remove(keys[1:], force)]

    transfer = module.MooncakeBundleTransfer(Busy(store), key_prefix="t")
    transfer.remove_bundle(transfer.put_bundle(b"m", {"a": b"x", "b": b"y"}))
    assert nothing_left(store)


@own("the original forgets the manifest, too")
def test_a_bundle_of_which_a_part_cannot_be_removed_keeps_its_manifest(
    module: Any, transfer: Any, store: Any
) -> None:
    class Stuck(Counting):
        def batch_remove(self, keys: list[str], force: bool = False) -> list[int]:
            return [-1, *self.store.batch_remove(keys[1:], force)]

        def remove(self, key: str, force: bool = False) -> int:
            return -1

    stuck = module.MooncakeBundleTransfer(Stuck(store), key_prefix="t")
    ref = stuck.put_bundle(b"m", {"a": b"x", "b": b"y"})
    with pytest.raises(RuntimeError, match="failed to remove 1 Mooncake keys"):
        stuck.remove_bundle(ref)
    transfer.remove_bundle({"manifest_key": ref.manifest_key})
    assert nothing_left(store)


# ---- reads


@differs("a store that registers no memory")
def test_a_store_that_registers_no_memory_is_read_value_by_value(module: Any, store: Any) -> None:
    class Unregistered(Counting):
        register_buffer = unregister_buffer = None

    unregistered = Unregistered(store)
    transfer = module.MooncakeBundleTransfer(unregistered, key_prefix="t")
    value = numpy.arange(60, dtype=numpy.int16)
    ref = transfer.put(batch(non_tensor_batch={"n": value}), chunk_bytes=50)
    unregistered.calls.clear()
    assert transfer.get(ref)["non_tensor_batch"]["n"].tolist() == value.tolist()
    rows = transfer.get(ref, rows=[59, 0, 24, 25])["non_tensor_batch"]["n"]
    assert rows.tolist() == [59, 0, 24, 25]
    assert not {"get_into", "batch_get_into", "get_into_ranges"} & set(unregistered.calls)


# ---- buffer pools


class Lease:
    def __init__(self, pool: Pool, size: int) -> None:
        self.pool = pool
        self.memory = ctypes.create_string_buffer(size)
        self.ptr = ctypes.addressof(self.memory)

    @property
    def buffer(self) -> memoryview:
        return memoryview(self.memory)

    def release(self) -> None:
        self.pool.released.append(self)


class Pool:
    """A pool of a few lines: its acquire has no other argument than the size."""

    def __init__(self) -> None:
        self.acquired: list[Lease] = []
        self.released: list[Lease] = []

    def acquire(self, size: int) -> Lease:
        self.acquired.append(Lease(self, size))
        return self.acquired[-1]


@differs("arrays in a buffer pool")
def test_any_pool_with_leases_will_do(module: Any, store: Any) -> None:
    pool = Pool()
    transfer = module.MooncakeBundleTransfer(store, key_prefix="t", buffer_pool=pool)
    value = numpy.arange(24, dtype=numpy.int32).reshape(6, 4)
    ref = transfer.put_object({"x": value})
    pool.acquired.clear()
    read = transfer.get_object(ref)
    assert numpy.array_equal(read["x"], value)
    assert read["x"].ctypes.data == pool.acquired[-1].ptr
    row = read["x"][3]
    transfer.release_result(read)
    assert read == {"x": None}
    assert not pool.released  # a row is in use
    assert row.tolist() == value[3].tolist()
    del row
    assert pool.released == pool.acquired
    transfer.remove_bundle(ref)


@differs("arrays in a buffer pool")
def test_rows_of_columns_lie_in_the_pool_until_they_are_released(module: Any, store: Any) -> None:
    from mooncake.buffer_pool import BufferPool

    pool = BufferPool(store, min_size_class=1 << 16, alignment=4096)
    transfer = module.MooncakeBundleTransfer(store, key_prefix="t", buffer_pool=pool)
    arrays = [numpy.arange(i + 1, dtype=numpy.int32) for i in range(4)]
    data = {"tokens": arrays, "uid": ["a", "b", "c", None], "step": {"s": numpy.ones(2)}}
    ref = transfer.put(data, type="dict")

    for rows in (None, [3, 1, 0]):
        result = transfer.get(ref, type="dict", rows=rows)
        wanted = arrays if rows is None else [arrays[i] for i in rows]
        assert all(map(numpy.array_equal, result["tokens"], wanted))
        with pytest.raises(RuntimeError, match="active leases"):
            pool.close()
        column = numpy.empty(1, dtype=object)
        column[0] = result["tokens"][2]
        result["deep"] = {"pair": (result["tokens"][1], 5), "column": column}
        transfer.release_result(result)
        assert result["tokens"] == [None] * len(wanted)
        assert result["deep"]["pair"] == (None, 5)
        assert column[0] is None
        assert result["step"]["s"].tolist() == [1, 1]  # metadata lies in no pool
        assert result["uid"][:1] == (["a"] if rows is None else [None])
    listed = transfer.get(ref, type="dict", fields=["tokens"])["tokens"]
    transfer.release_result(listed)
    assert listed == [None] * 4
    pool.close()
    transfer.cleanup_dataproto(ref)


@differs("arrays in a buffer pool")
def test_tensors_in_columns_and_jagged_ones_are_released(module: Any, store: Any) -> None:
    torch = pytest.importorskip("torch")
    from mooncake.buffer_pool import BufferPool

    pool = BufferPool(store, min_size_class=1 << 16, alignment=4096)
    transfer = module.MooncakeBundleTransfer(store, key_prefix="t", buffer_pool=pool)
    column = numpy.empty(2, dtype=object)
    column[:] = [torch.ones(2), torch.zeros(3)]
    jagged = torch.nested.nested_tensor([torch.ones(2), torch.zeros(3)], layout=torch.jagged)
    ref = transfer.put(batch(batch={"j": jagged}, non_tensor_batch={"r": column}))
    result = transfer.get(ref)
    transfer.release_result(result)
    assert result["batch"]["j"] is None
    assert result["non_tensor_batch"]["r"].tolist() == [None, None]
    pool.close()
    transfer.cleanup_dataproto(ref)


# ---- appends


def test_metadata_alone_is_appended_without_a_call_of_the_store(module: Any, store: Any) -> None:
    counting = Counting(store)
    transfer = module.MooncakeBundleTransfer(counting, key_prefix="t")
    empty = transfer.put(batch(meta_info={"step": 1}))
    counting.calls.clear()
    more = transfer.append_dataproto_fields(
        module.export_ref(empty), batch(meta_info={"loss": 2}), stage="late"
    )
    assert counting.calls == []
    assert transfer.get(more)["meta_info"] == {"step": 1, "loss": 2}
    assert (
        module.export_ref(more)["storage_group_id"] == module.export_ref(empty)["storage_group_id"]
    )


@own("the original compares the numbers of rows")
def test_metadata_is_appended_to_rows(transfer: Any, store: Any) -> None:
    rows = transfer.put(batch(batch={"x": numpy.arange(3)}, meta_info={"step": 1}))
    more = transfer.append_dataproto_fields(rows, batch(meta_info={"loss": 2}), stage="late")
    assert transfer.get(more)["meta_info"] == {"step": 1, "loss": 2}
    assert set(more.stage_refs) == set(rows.stage_refs)
    assert transfer.get(more)["batch"]["x"].tolist() == [0, 1, 2]
    with pytest.raises(ValueError, match="must include existing fields"):
        transfer.append_dataproto_fields(rows, batch(), stage="default", overwrite=True)
    transfer.cleanup_dataproto(more)
    assert nothing_left(store)


# ---- what is refused


def test_a_manifest_with_parts_that_are_not_known_is_refused(transfer: Any, store: Any) -> None:
    assert store.put("other/object", b"abcdef") == 0
    ref = transfer.put_bundle(b"meta", {"payload": b"abcdef"})
    manifest = {**ref.manifest, "cleanup_keys": ["other/object"]}
    assert store.upsert(ref.manifest_key, json.dumps(manifest).encode()) == 0
    with pytest.raises(ValueError, match="cleanup_keys"):
        transfer.remove_bundle({"manifest_key": ref.manifest_key})
    assert store.get("other/object") == b"abcdef"
    assert store.is_exist(ref.manifest["buffers"]["payload"]["key"]) == 1


def test_a_tensor_object_buffer_without_rows_is_refused(module: Any, transfer: Any) -> None:
    memory = ctypes.create_string_buffer(400)
    for size in (128, 400):
        buffer = module.tensor_object_buffer(ctypes.addressof(memory), size, memory)
        with pytest.raises(TypeError, match="batch_size"):
            transfer.put(batch(batch={"x": buffer}))


def test_keys_of_tensor_dicts_that_are_refused(module: Any, transfer: Any, store: Any) -> None:
    torch = pytest.importorskip("torch")

    def put(row: Any, **metadata: Any) -> None:
        schema = module.FieldSchema("ragged_tensor_dict", metadata=metadata)
        transfer.put({"x": [row]}, type="dict", field_schemas={"x": schema})

    for key in ("", "a.b", "a/b", "a\\b") if RIVAL else ("", "a.b", "a/b", "a\\b", 1):
        with pytest.raises(ValueError, match="must not"):
            put({key: torch.ones(1)})
        with pytest.raises(ValueError, match="must not"):
            put({}, keys=[key])
    assert nothing_left(store)


def test_tensors_of_two_dtypes_are_refused_under_their_codec(module: Any) -> None:
    torch = pytest.importorskip("torch")
    leaves: list[Any] = []
    module.infer_structure("x", [torch.ones(1), torch.ones(1, dtype=torch.int64)], leaves, [])
    assert (leaves[0].decision.accepted, leaves[0].decision.codec) == (False, "ragged_tensor")


# ---- what a manifest view says


@differs("jagged tensors")
def test_jagged_tensors_of_which_another_dimension_differs(transfer: Any, store: Any) -> None:
    torch = pytest.importorskip("torch")
    for shapes in ([(2, 3), (2, 5), (2, 1)], [(3, 2), (5, 2), (1, 2)], [(3,), (0,), (1,)]):
        rows = [torch.arange(torch.Size(shape).numel()).reshape(shape) for shape in shapes]
        jagged = torch.nested.as_nested_tensor(rows, layout=torch.jagged)
        ref = transfer.put(batch(batch={"j": jagged}))
        for chosen in (None, slice(1, 3), [2, 0], [1], []):
            got = transfer.get(ref, rows=chosen)["batch"]["j"]
            numbers = chosen if isinstance(chosen, list) else range(3)[chosen or slice(None)]
            wanted = [rows[i] for i in numbers]
            assert got.layout == torch.jagged
            assert got.dtype == jagged.dtype
            assert [row.tolist() for row in got.unbind()] == [row.tolist() for row in wanted]
            if wanted:
                assert got._ragged_idx == jagged._ragged_idx
        spec = transfer.dataproto_manifest_view(ref)["batch_fields"]["j"]["spec"]
        assert (spec["encoding"], spec["dtype"], spec["nested"]) == (
            "torch_tensor",
            "torch.int64",
            True,
        )
        assert spec["format"] == "tensor_parts"
        assert spec["part_bytes"][1] == sum(row.nbytes for row in rows)
        transfer.cleanup_dataproto(ref)
    assert nothing_left(store)


@own("the layout is its own")
def test_jagged_tensors_that_were_stored_before_are_read(transfer: Any, store: Any) -> None:
    torch = pytest.importorskip("torch")
    rows = [torch.ones(2, 3), torch.zeros(1, 3)]
    ref = transfer.put(batch(batch={"j": torch.nested.nested_tensor(rows, layout=torch.jagged)}))
    stage = ref.stage_refs["default"].manifest["meta"]
    meta = json.loads(store.get(stage["key"]))
    del meta["__mooncake_structured_fields__"]["batch.j"]["ragged"]
    text = json.dumps(meta).encode()
    assert store.upsert(stage["key"], text) == 0
    stage["bytes"] = stage["chunks"][0]["bytes"] = len(text)
    for chosen in (None, [1]):
        got = transfer.get(ref, rows=chosen)["batch"]["j"].unbind()
        assert [row.tolist() for row in got] == [
            row.tolist() for row in (rows if chosen is None else rows[1:])
        ]
    transfer.cleanup_dataproto(ref)


def test_a_view_says_where_the_numbers_of_a_column_lie(module: Any, transfer: Any) -> None:
    rows = [numpy.arange(3, dtype=numpy.int32), None, numpy.ones((2, 2), dtype=numpy.int32)]
    ref = transfer.put(
        {"x": rows, "i": [0, 1, 2]},
        type="dict",
        field_schemas={"x": module.FieldSchema("typed_ragged")},
    )
    assert ref.encoded_non_tensor["x"]["metadata"]["physical_layout"] == "contiguous_flat"
    view = transfer.dataproto_manifest_view(ref)
    described = view["non_tensor_fields"]["x"]["spec"]["payload_specs"]["data"]
    assert described["shape"] == [7]
    transfer.cleanup_dataproto(ref)
