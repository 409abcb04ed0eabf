# SPDX-License-Identifier: Apache-2.0
"""Bundles, structured objects and batches on a store: what slime, miles, ROLL and verl call."""

from __future__ import annotations

import json
import pickle
import threading
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import RIVAL, differs, own, setup

numpy = pytest.importorskip("numpy")


def objects(*rows: Any) -> Any:
    column = numpy.empty(len(rows), dtype=object)
    for i, row in enumerate(rows):
        column[i] = row
    return column


def batch(**parts: Any) -> Any:
    empty: dict[str, Any] = {"batch": {}, "non_tensor_batch": {}, "meta_info": {}}
    return SimpleNamespace(**(empty | parts))


def same(a: Any, b: Any) -> bool:
    if isinstance(a, numpy.ndarray) and a.dtype != object:
        return bool(numpy.array_equal(a, b) and a.dtype == b.dtype)
    if hasattr(a, "data_ptr"):
        return bool(a.dtype == b.dtype and a.shape == b.shape and (a == b).all())
    if isinstance(a, Mapping):
        return set(a) == set(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple | numpy.ndarray):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return bool(a == b)


def nothing_left(store: Any) -> bool:
    return bool(store.remove_by_regex("^t/", True) == 0)


# ---- structured objects


def test_members_come_back_whole_and_in_slices(module: Any, transfer: Any, store: Any) -> None:
    tokens = numpy.arange(24, dtype=numpy.int32).reshape(6, 4)
    payload = module.StructuredObjectPayload({"step": 7}, {"tokens": tokens, "ids": b"xyz"})
    ref = transfer.put_structured_object(payload, chunk_bytes=10)
    result = transfer.materialize(transfer.read_spec(ref))
    assert result.metadata["step"] == 7
    assert same(result.objects["tokens"], tokens)
    assert bytes(result.objects["ids"]) == b"xyz"
    if not RIVAL:
        ids = result.objects["ids"]
        assert ids == b"xyz"
        assert ids != b"xy"
        assert (ids == numpy.frombuffer(b"xya", numpy.uint8)).tolist() == [True, True, False]
        assert type(pickle.loads(pickle.dumps(ids))) is numpy.ndarray
    spec = transfer.read_spec(ref).select_members(["tokens"])
    for start, end, step in ((2, 5, 1), (0, 6, 2), (4, 9, 1), (5, 2, 1), (-2, 6, 1)):
        sliced = transfer.materialize(spec.slice_member("tokens", 0, start, end, step))
        assert same(sliced.objects["tokens"], tokens[start:end:step]), (start, end, step)
    into = numpy.empty((3, 4), dtype=numpy.int32)
    result = transfer.materialize_into(spec.slice_member("tokens", 0, 2, 5), {"tokens": into})
    assert result.objects["tokens"] is into
    assert same(into, tokens[2:5])
    transfer.remove_bundle(ref)
    transfer.remove_bundle(ref)
    assert nothing_left(store)


def test_what_does_not_fit_is_refused(module: Any, transfer: Any) -> None:
    tokens = numpy.arange(24, dtype=numpy.int32).reshape(6, 4)
    payload = module.StructuredObjectPayload({}, {"tokens": tokens, "ids": b"xyz"})
    spec = transfer.read_spec(transfer.put_structured_object(payload))
    for kind, wanted, into in (
        (KeyError, spec.select_members(["nope"]), None),
        (ValueError, spec.select_members([]), None),
        (ValueError, spec.slice_member("tokens", 1, 0, 2), None),
        (ValueError, spec.slice_member("tokens", 0, 0, 6, -1), None),
        (ValueError, spec.slice_member("ids", 0, 0, 1), None),
        (ValueError, spec, {"tokens": numpy.empty((6, 5), numpy.int32)}),
        (ValueError, spec, {"tokens": numpy.empty((6, 4), numpy.int64)}),
        (ValueError, spec, {"ids": bytearray(3)}),
    ):
        with pytest.raises(kind):
            transfer.materialize_into(wanted, into)
    for kind, arguments in (
        (TypeError, ("text", {})),
        (TypeError, (b"m", {"a": "text"})),
        (TypeError, (b"m", {"a": None})),
        (ValueError, (b"m", {"": b"x"})),
        (ValueError, (b"m", {"a/b": b"x"})),
        (ValueError, (b"m", {"a": b"x"}, "")),
        (ValueError, (b"m", {"a": b"x"}, "x/y")),
        (ValueError, (b"m", {"a": b"x"}, "p", 0)),
    ):
        with pytest.raises(kind):
            transfer.put_bundle(*arguments)
    with pytest.raises(ValueError, match="key_prefix"):
        module.MooncakeBundleTransfer(transfer.store, key_prefix="")
    locked = numpy.empty((6, 4), numpy.int32)
    locked.flags.writeable = False
    for into, says in (
        (locked, "writeable"),
        (numpy.empty((6, 8), numpy.int32)[:, ::2], "C-contig"),
    ):
        with pytest.raises(ValueError, match=says):
            transfer.materialize_into(spec, {"tokens": into})
    for kind, metadata, says in (
        (TypeError, ["not", "a", "mapping"], "mapping"),
        (TypeError, {"bad": object()}, "JSON-serializable"),
        (ValueError, {module.STRUCTURED_FIELD_SPECS_KEY: {}}, "reserved"),
    ):
        with pytest.raises(kind, match=says):
            transfer.put_structured_object(module.StructuredObjectPayload(metadata, {"a": b"x"}))


def test_objects(transfer: Any) -> None:
    raw = numpy.frombuffer(b"raw", numpy.uint8)
    for value, got in (
        (b"raw", raw),  # bytes come back as an array, no bytes as bytes
        (b"", b""),
        (numpy.arange(6).reshape(2, 3), numpy.arange(6).reshape(2, 3)),
        ({"x": b"raw", "y": numpy.ones(3)}, {"x": raw, "y": numpy.ones(3)}),
        ({}, {}),
    ):
        assert same(got, transfer.get_object(transfer.put_object(value)))
    for wrong in ([1, 2], "text", None, {"x": [1]}):
        with pytest.raises(TypeError):
            transfer.put_object(wrong)


@pytest.mark.parametrize("mode", ["auto", "batch", "parallel"])
def test_chunks(module: Any, transfer: Any, store: Any, mode: str) -> None:
    value = numpy.arange(100_000, dtype=numpy.int64)
    policy = module.BundleTransferPolicy(put_mode=mode, max_inflight_put=3)
    ref = transfer.put(batch(non_tensor_batch={"n": value}), chunk_bytes=30_000, policy=policy)
    assert same(transfer.get(ref)["non_tensor_batch"]["n"], value)
    rows = [99_999, 0, 3750, 3749, 3750]
    got = transfer.get(ref, rows=rows)["non_tensor_batch"]["n"]
    assert same(got, value[rows])
    transfer.cleanup_dataproto(ref)
    assert nothing_left(store)


@differs("`put` that the store refused in part")
def test_a_put_that_the_store_refuses_leaves_nothing(
    module: Any, transfer: Any, store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[str] = []
    batch_put = store.batch_put_from_multi_buffers

    class Refusing:
        def __getattr__(self, name: str) -> Any:
            return getattr(store, name)

        def batch_put_from_multi_buffers(self, keys: list[str], *more: Any) -> list[int]:
            codes = batch_put(keys, *more)
            written.extend(keys)
            return [*codes[:-1], -200]

    refusing = module.MooncakeBundleTransfer(Refusing(), key_prefix="t")
    with pytest.raises(RuntimeError, match=r"put failed for t/.*: -200"):
        refusing.put_bundle(b"m", {"a": b"x", "b": b"y"})
    assert len(written) == 3
    # The one that was refused, too: the store kept it here.
    assert store.batch_is_exist(written) == [0, 0, 0]


@own("it gives a store no configuration")
@pytest.mark.parametrize("batches", [True, False], ids=["batches", "one by one"])
def test_a_put_in_which_the_store_raises_leaves_nothing(
    module: Any, transfer: Any, store: Any, batches: bool
) -> None:
    class Raising:
        put_before = 0

        def __getattr__(self, name: str) -> Any:
            if not batches and name.startswith(("batch_", "get_into")):
                raise AttributeError(name)
            return getattr(store, name)

        def put(self, key: str, value: Any, config: Any = None) -> int:
            self.put_before += 1
            if self.put_before == 3:
                raise OSError("the store raises")
            return int(store.put(key, value, config))

    class RaisingBatches(Raising):
        def batch_put_from_multi_buffers(self, keys: list[str], *more: Any) -> list[int]:
            assert store.batch_put_from_multi_buffers(keys, *more) == [0] * len(keys)
            raise OSError("the store raises")

    kind = RaisingBatches if batches else Raising
    raising = module.MooncakeBundleTransfer(kind(), key_prefix="t")
    with pytest.raises(OSError, match="the store raises"):
        raising.put_bundle(b"m", {"a": b"x" * 9, "b": b"y" * 9}, chunk_bytes=4)
    assert nothing_left(store)


def test_a_chunk_that_was_evicted_is_an_error_with_its_key(transfer: Any, store: Any) -> None:
    ref = transfer.put_object({"a": b"0123456789"}, chunk_bytes=4)
    chunk = ref.manifest["buffers"]["a"]["chunks"][1]["key"]
    assert store.remove(chunk, True) == 0
    with pytest.raises(RuntimeError, match=chunk):
        transfer.materialize(transfer.read_spec(ref))


@differs("a manifest that lies")
def test_a_manifest_that_lies_reads_and_writes_nothing(transfer: Any) -> None:
    ref = transfer.put_object(numpy.arange(8))
    entry = ref.manifest["buffers"]["value"]
    entry["bytes"] = 8
    with pytest.raises(RuntimeError, match="does not cover"):
        transfer.get_object(ref)
    entry["bytes"] = 1 << 40
    with pytest.raises(RuntimeError, match="does not cover"):
        transfer.get_object(ref)


def test_a_manifest_that_names_what_others_have_put_removes_nothing(
    transfer: Any, store: Any
) -> None:
    assert store.put("other/object", b"abcdef") == 0
    ref = transfer.put_bundle(b"meta", {"payload": b"abcdef"})
    handle = {"manifest_key": ref.manifest_key}
    text = store.get(ref.manifest_key)
    lying = text.replace(
        ref.manifest["buffers"]["payload"]["chunks"][0]["key"].encode(), b"other/object"
    )
    assert lying != text
    assert store.remove(ref.manifest_key, True) == 0
    assert store.put(ref.manifest_key, lying) == 0
    for call in (transfer.remove_bundle, lambda one: transfer.materialize(transfer.read_spec(one))):
        with pytest.raises(ValueError, match="outside the bundle namespace"):
            call(handle)
    elsewhere = ref.manifest_key.replace("/manifest", "-2/manifest")
    with pytest.raises(ValueError, match="manifest_key"):
        transfer.remove_bundle({"manifest_key": elsewhere, "manifest": ref.manifest})
    assert store.get("other/object") == b"abcdef"


def test_a_store_of_a_few_lines_is_enough(module: Any) -> None:
    class Store:
        batch_put_from_multi_buffers = batch_get_into = get_into_ranges = None

        def __init__(self) -> None:
            self.values: dict[str, bytes] = {}

        def put(self, key: str, value: Any, config: Any = None) -> int:
            self.values[key] = bytes(value)
            return 0

        def get(self, key: str) -> bytes:
            return self.values.get(key, b"")

        def is_exist(self, key: str) -> int:
            return int(key in self.values)

        def remove(self, key: str, force: bool = False) -> int:
            return 0 if self.values.pop(key, None) is not None else -704

    store = Store()
    transfer = module.MooncakeBundleTransfer(store)
    data = {"x": ["a", "b", None], "n": numpy.arange(3), "step": 4}
    ref = transfer.put(data, type="dict", chunk_bytes=5)
    assert same(transfer.get(module.export_ref(ref), type="dict"), data)
    assert same(transfer.get(ref, type="dict", rows=slice(1, 3))["x"], ["b", None])
    transfer.cleanup_dataproto(module.export_ref(ref))
    assert store.values == {}
    with pytest.raises(RuntimeError, match="zero-copy put"):
        transfer.put_bundle(
            b"m", {"a": b"x"}, policy=module.BundleTransferPolicy(copy_mode="zero_copy")
        )
    assert store.values == {}


# ---- batches


def test_a_batch_comes_back_in_fields_and_rows(module: Any, transfer: Any, store: Any) -> None:
    n, uid = numpy.arange(4.0), objects("a", "b", None, "d")
    ref = transfer.put(
        batch(batch={"n": n}, non_tensor_batch={"uid": uid}, meta_info={"step": 3, "x": 1}),
        stage="rollout",
        partition="train",
    )
    assert ref.batch_size == 4
    assert ref.field_index["n"].section == "batch"
    handle = json.loads(json.dumps(module.export_ref(ref)))
    assert module.is_dataproto_ref_handle(handle)
    for one in (ref, handle):
        got = transfer.get(one)
        assert same(numpy.asarray(got["batch"]["n"]), n)
        assert same(list(got["non_tensor_batch"]["uid"]), list(uid))
        assert got["meta_info"] == {"step": 3, "x": 1}
    assert set(transfer.get(ref, fields=["uid"])["batch"]) == set()
    assert transfer.get(ref, fields=["n"], meta_info_keys=["x"])["meta_info"] == {"x": 1}
    got = transfer.get(ref, batch_fields=["n"], non_tensor_fields=[], rows=slice(1, 3))
    assert same(numpy.asarray(got["batch"]["n"]), n[1:3])
    view = transfer.dataproto_manifest_view(handle)
    assert (view["batch_size"], view["partition"]) == (4, "train")
    assert set(view["stages"]) == {"rollout"}
    for kind, what in (
        (KeyError, {"fields": ["zz"]}),
        (ValueError, {"fields": ["n"], "batch_fields": ["n"]}),
        (IndexError, {"rows": [4]}),
        (TypeError, {"rows": 2}),
        (ValueError, {"rows": slice(3, None, -1)}),
        (ValueError, {"rows": module.StructuredMemberSlice(1, 0, 1)}),
        (ValueError, {"type": "zz"}),
    ):
        with pytest.raises(kind):
            transfer.get(ref, **what)
    transfer.cleanup_dataproto(handle)
    transfer.cleanup_dataproto(ref)
    assert nothing_left(store)


COLUMNS = {
    "text": ["a", "bé", None],
    "bytes": [b"a", None, b""],
    "int": [1, 2, None],
    "bool": [True, None, False],
    "float": [1.5, 2.0, None],
    "lists": [[1, 2], None, [3]],
    "arrays": [numpy.array([[1, 2], [3, 4]], numpy.int16), numpy.array([[5]], numpy.int16), None],
    "dicts": [{"k": 1, "s": "x"}, {}, None],
    "messages": [{"m": [{"r": "u", "c": "hi"}]}, {"m": []}, {"m": [{"r": "a", "c": None}]}],
    "strings": [["a", "b"], ["c"], []],
    "media": [[b"img1", b"img2"], [b"x"], []],
    "nothing": [[], [], []],
}


@pytest.mark.parametrize("kind", COLUMNS)
def test_columns(module: Any, transfer: Any, kind: str) -> None:
    rows = COLUMNS[kind]
    ref = transfer.put({"x": rows, "i": [0, 1, 2]}, type="dict")
    assert same(transfer.get(ref, type="dict"), {"x": rows, "i": [0, 1, 2]})
    for chosen in (slice(1, 3), slice(0, 0), slice(2, 3)):
        assert same(transfer.get(ref, type="dict", rows=chosen)["x"], rows[chosen])
    if not RIVAL:  # which refuses these
        got = transfer.get(ref, type="dict", rows=[2, 0, 2])["x"]
        assert same(got, [rows[2], rows[0], rows[2]])


@pytest.mark.parametrize(
    "rows", [[1, "a"], [{1}, {2}], [1j, 2j], [None, None], [object(), object()], ["a", b"b"]]
)
def test_columns_that_no_codec_holds(transfer: Any, store: Any, rows: list[Any]) -> None:
    with pytest.raises(ValueError, match="unsupported structured non-tensor field"):
        transfer.put({"x": rows}, type="dict")
    assert nothing_left(store)


def test_schemas(module: Any, transfer: Any) -> None:
    def schema(codec: str, nullable: bool = True, **metadata: Any) -> Any:
        return module.FieldSchema(codec=codec, nullable=nullable, metadata=metadata)

    def back(value: Any, one: Any) -> Any:
        ref = transfer.put({"x": value}, type="dict", field_schemas={"x": one})
        return transfer.get(ref, type="dict")["x"]

    assert back([{"a": 1}], schema("json_ragged")) == [{"a": 1}]
    assert back([[1.5, 2], [3]], schema("typed_ragged", dtype="float32")) == [[1.5, 2.0], [3.0]]
    assert back([1.5, 2], schema("ndarray", dtype="float32")) == [1.5, 2.0]
    assert back([7, 8, 9], schema("auto", section="meta_info")) == [7, 8, 9]
    for value, one in (
        ([1, None], schema("typed_ragged", False)),
        ([1, 2], schema("zz")),
        ([1, 2], schema("auto", section="zz")),
        (5, schema("auto", section="non_tensor_batch")),
    ):
        with pytest.raises(ValueError, match=r"FieldSchema|must be sized"):
            back(value, one)


def test_a_schema_of_another_section_is_refused(module: Any, transfer: Any) -> None:
    def schemas(section: str, codec: str = "auto") -> Any:
        return {"x": module.FieldSchema(codec=codec, metadata={"section": section})}

    x = numpy.arange(3)
    for put in (
        lambda: transfer.put(batch(batch={"x": x}), field_schemas=schemas("non_tensor_batch")),
        lambda: transfer.append_dataproto_fields(
            transfer.put(batch(batch={"y": x})),
            batch(batch={"x": x}),
            stage="two",
            field_schemas=schemas("meta_info"),
        ),
    ):
        with pytest.raises(
            ValueError, match=r"declares section .* but data contains it in 'batch'"
        ):
            put()
    # One of this name in each of two sections: the schema is the one's that it names.
    ref = transfer.put(
        batch(non_tensor_batch={"x": objects("a", "b")}, meta_info={"x": [1, 2, 3]}),
        field_schemas=schemas("meta_info", "ndarray"),
    )
    got = transfer.get(ref)
    assert list(got["non_tensor_batch"]["x"]) == ["a", "b"]
    assert got["meta_info"] == {"x": [1, 2, 3]}


def test_names_in_two_sections_are_no_flat_dict(transfer: Any) -> None:
    ref = transfer.put_dataproto({"batch": {"uid": numpy.arange(2)}, "meta_info": {"uid": "m"}})
    assert transfer.get(ref)["meta_info"] == {"uid": "m"}
    with pytest.raises(
        ValueError, match=r"Duplicate keys found across DataProto sections: \['uid'\]"
    ):
        transfer.get(ref, type="dict")
    assert transfer.get(ref, type="dict", meta_info_keys=[])["uid"].tolist() == [0, 1]


def test_fields_may_have_the_names_of_sections(transfer: Any) -> None:
    ref = transfer.put_dataproto({"batch": numpy.arange(2), "meta_info": numpy.arange(2) + 1})
    got = transfer.get(ref)
    assert {name: value.tolist() for name, value in got["batch"].items()} == {
        "batch": [0, 1],
        "meta_info": [1, 2],
    }
    assert got["meta_info"] == {}


@differs("values without dimensions")
def test_values_without_dimensions_come_back(transfer: Any) -> None:
    assert float(transfer.get_object(transfer.put_object({"s": numpy.array(2.5)}))["s"]) == 2.5
    torch = pytest.importorskip("torch")
    back = transfer.get_object(transfer.put_object({"s": torch.tensor(3.5)}))["s"]
    assert (back.shape, float(back)) == (torch.Size([]), 3.5)


def test_flat_dicts(transfer: Any) -> None:
    def back(data: Any) -> Any:
        return transfer.get(transfer.put(data, type="dict"), type="dict")

    assert back({"raw": 5, "s": "text", "x": [1, 2]}) == {"raw": 5, "s": "text", "x": [1, 2]}
    assert back({}) == {}
    assert back({"n": numpy.ones((2, 2)), "x": [1, 2, 3]})["x"] == [1, 2, 3]
    for wrong in ({"a": [1, 2], "b": [1, 2, 3]}, {"a": numpy.ones(2), "b": numpy.ones(3)}):
        with pytest.raises(ValueError, match="ambiguous batch sizes"):
            back(wrong)
    for none in ([1, 2], None):
        with pytest.raises(TypeError, match="mapping"):
            back(none)


def test_inconsistent_batches(transfer: Any) -> None:
    two, three = numpy.ones(2), numpy.ones(3)
    for wrong in (
        batch(batch={"x": two}, non_tensor_batch={"y": three}),
        batch(batch={"x": two}, non_tensor_batch={"x": two}),
    ):
        with pytest.raises(ValueError, match=r"inconsistent batch sizes|overlap"):
            transfer.put(wrong)


def test_appended_fields(module: Any, transfer: Any, store: Any) -> None:
    uid = objects("a", "b", "c")
    first = transfer.put(
        batch(batch={"x": numpy.arange(3)}, non_tensor_batch={"u": uid}, meta_info={"s": 1}),
        stage="one",
    )

    def append(ref: Any, stage: str, overwrite: bool = False, **fields: Any) -> Any:
        return transfer.append_dataproto_fields(
            ref, batch(batch=fields, meta_info={"q": 3}), stage=stage, overwrite=overwrite
        )

    second = append(first, "two", y=numpy.ones(3))
    assert set(first.field_index) == {"x", "u"}
    assert set(transfer.get(second)["batch"]) == {"x", "y"}
    assert transfer.get(second)["meta_info"] == {"s": 1, "q": 3}
    # The same stage again: beside its fields.
    third = append(second, "two", z=numpy.zeros(3))
    got = transfer.get(module.export_ref(third))["batch"]
    assert same(numpy.asarray(got["y"]), numpy.ones(3))
    assert same(numpy.asarray(got["z"]), numpy.zeros(3))
    with pytest.raises(ValueError, match="already exist"):
        append(third, "three", x=numpy.ones(3))
    with pytest.raises(ValueError, match="must include existing fields"):
        append(third, "two", True, y=numpy.ones(3))
    with pytest.raises(ValueError, match="batch size"):
        append(third, "three", w=numpy.ones(2))
    fourth = append(third, "three", True, x=numpy.full(3, 9))
    assert same(numpy.asarray(transfer.get(fourth)["batch"]["x"]), numpy.full(3, 9))
    # An append that nobody learns of is taken back; what was there stays.
    transfer.cleanup_dataproto_append(third, fourth)
    assert same(numpy.asarray(transfer.get(third)["batch"]["x"]), numpy.arange(3))
    transfer.cleanup_dataproto_append(second, third)
    assert same(numpy.asarray(transfer.get(second)["batch"]["y"]), numpy.ones(3))
    transfer.cleanup_dataproto(second)
    if not RIVAL:
        assert nothing_left(store)


def test_a_stage_that_grew_is_removed_as_a_whole(transfer: Any, store: Any) -> None:
    ref = transfer.put(batch(batch={"x": numpy.arange(3)}), stage="one")
    for name in ("a", "b", "c"):
        fields = batch(batch={name: numpy.arange(3)})
        ref = transfer.append_dataproto_fields(ref, fields, stage="one")
    transfer.cleanup_dataproto(ref)
    assert nothing_left(store)


def test_data_classes(transfer: Any) -> None:
    class Made:
        def __init__(self, batch: Any, non_tensor_batch: Any, meta_info: Any) -> None:
            self.parts = (batch, non_tensor_batch, meta_info)

    class FromDict(Made):
        @classmethod
        def from_dict(
            cls, tensors: Any = None, non_tensors: Any = None, meta_info: Any = None
        ) -> Any:
            return cls(tensors, non_tensors, meta_info)

    ref = transfer.put(batch(batch={"x": numpy.arange(3)}, meta_info={"s": 1}))
    for kind in (Made, FromDict):
        got = transfer.get(ref, data_cls=kind)
        assert isinstance(got, kind)
        assert got.parts[2] == {"s": 1}
        assert same(numpy.asarray(got.parts[0]["x"]), numpy.arange(3))

    class Other:
        def __init__(self, tensors: Any) -> None: ...

    with pytest.raises(TypeError, match=r"Other.* cannot be constructed from batch"):
        transfer.get(ref, data_cls=Other)


def test_handles_of_others(module: Any, transfer: Any) -> None:
    ref = transfer.put(batch(batch={"x": numpy.arange(3)}))
    handle = module.export_ref(ref)
    assert module.import_ref(handle).batch_size == 3
    for wrong in (
        {},
        None,
        {**handle, "kind": "zz"},
        {**handle, "version": 3},
        {**handle, "stage_refs": 5},
        {**handle, "stage_refs": {"a": {}}},
        {**handle, "field_index": {"a": {}}},
        {**handle, "batch_size": "x"},
        {**handle, "field_index": {"x": {**handle["field_index"]["x"], "stage": "missing"}}},
        {**handle, "field_index": {"x": {**handle["field_index"]["x"], "member": ""}}},
        {**handle, "global_indexes": ["a"]},
        {**handle, "storage_group_id": ""},
    ):
        with pytest.raises(ValueError, match=r"handle|section|int"):
            module.import_ref(wrong)
    with pytest.raises(TypeError, match="row indices must be integers"):
        transfer.get(ref, rows=["a"])
    arrays = transfer.put(
        batch(batch={"x": numpy.arange(3)}, meta_info={"a": numpy.arange(2), 1: 2})
    )
    assert module.export_ref(arrays)["meta_info"] == {"a": [0, 1], "1": 2}
    for none in (5, {}):
        with pytest.raises(TypeError, match="DataProto"):
            transfer.get(none)
    ref.meta_info["o"] = object()
    with pytest.raises(TypeError, match="JSON-safe"):
        module.export_ref(ref)


def test_groups(module: Any, transfer: Any) -> None:
    from mooncake.store import ReplicateConfig

    config = ReplicateConfig()
    config.group_ids = ["g"]
    ref = transfer.put(batch(batch={"x": numpy.arange(3)}), config=config)
    assert same(numpy.asarray(transfer.get(ref)["batch"]["x"]), numpy.arange(3))
    assert list(config.group_ids) == ["g"]
    config.group_ids = ["g", "h"]
    with pytest.raises(ValueError, match="exactly one"):
        transfer.put(batch(batch={"x": numpy.arange(3)}), config=config)
    config.group_ids = ["h"]
    more = batch(batch={"y": numpy.arange(3)})
    with pytest.raises(ValueError, match="conflicts with the DataProto storage group"):
        transfer.append_dataproto_fields(ref, more, stage="two", config=config)
    config.group_ids = ["g"]
    assert (
        "y" in transfer.append_dataproto_fields(ref, more, stage="two", config=config).field_index
    )
    with pytest.raises(ValueError, match="exactly one"):
        config.group_ids = ["g", "h"]
        transfer.put_object({"a": b"x"}, config=config)
    for groups in (["g"], [], None):
        # A store refuses a put whose groups are not as many as its keys.
        config.group_ids = groups
        assert (
            bytes(transfer.get_object(transfer.put_object({"a": b"x"}, config=config))["a"]) == b"x"
        )
        assert config.group_ids == groups
    config.group_ids = ["g"]
    empty = transfer.put({"meta_info": {"step": 1}}, config=config)
    assert module.export_ref(empty)["storage_group_id"] == "g"
    config.group_ids = [""]
    alone = transfer.put(batch(batch={"x": numpy.arange(3)}), config=config)
    assert "storage_group_id" not in module.export_ref(alone)
    assert transfer.get(alone)["batch"]["x"].tolist() == [0, 1, 2]


@own("the bytes are in the pool as its own")
def test_a_member_that_is_described_otherwise_says_so(transfer: Any, store: Any) -> None:
    ref = transfer.put_object({"x": numpy.arange(3)})
    key = ref.manifest["meta"]["key"]
    meta = json.loads(store.get(key))
    for described, says in (
        ({"encoding": "ndarray"}, "lacks"),
        ({"encoding": "zz"}, "unsupported"),
    ):
        meta["__mooncake_structured_fields__"] = {"x": described}
        text = json.dumps(meta).encode()
        assert store.upsert(key, text) == 0
        ref.manifest["meta"].update(bytes=len(text))
        ref.manifest["meta"]["chunks"][0]["bytes"] = len(text)
        with pytest.raises(ValueError, match=says):
            transfer.get_object(ref)


def test_readers_on_another_host_and_eight_threads(module: Any, cluster: Any, run_dir: Any) -> None:
    from conftest import new_store

    writer, reader = new_store(), new_store()
    assert setup(writer, cluster.address) == 0
    assert setup(reader, cluster.address, segment=0) == 0
    put, get = (module.MooncakeBundleTransfer(one, key_prefix="t") for one in (writer, reader))
    wrong: list[Any] = []

    def work(number: int) -> None:
        for i in range(10):
            value = numpy.full(1000 + i, number * 100 + i)
            data = {"v": [value, value[:3]], "s": [str(number), None], "n": number}
            ref = module.export_ref(put.put(data, type="dict", chunk_bytes=999))
            if not same(get.get(ref, type="dict"), data):
                wrong.append((number, i))
            put.cleanup_dataproto(ref)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert nothing_left(reader)
    reader.close()
    writer.close()


# ---- with torch


def test_batches_of_tensors(module: Any, transfer: Any, store: Any) -> None:
    torch = pytest.importorskip("torch")
    x = torch.arange(12).reshape(4, 3)
    f = torch.ones(4, 2, dtype=torch.bfloat16)
    jagged = torch.nested.nested_tensor(
        [torch.ones(2), torch.zeros(3), torch.ones(1), torch.zeros(0)], layout=torch.jagged
    )
    ref = transfer.put(batch(batch={"x": x, "f": f, "j": jagged, "t": x.t()[:0].t()}))
    got = transfer.get(module.export_ref(ref))["batch"]
    assert same(got["x"], x)
    assert same(got["f"], f)
    assert all(same(a, b) for a, b in zip(got["j"].unbind(), jagged.unbind(), strict=True))
    assert got["t"].shape == (4, 0)
    for rows in (slice(1, 3), [3, 0], slice(0, 0)):
        got = transfer.get(ref, fields=["x", "f"], rows=rows)["batch"]
        assert same(got["x"], x[rows])
        assert same(got["f"], f[rows])
    got = transfer.get(ref, fields=["j"], rows=[2, 0])["batch"]["j"]
    assert [row.tolist() for row in got.unbind()] == [[1.0], [1.0, 1.0]]
    # A tensor object in memory of the caller: as a value, and as a destination.
    memory = torch.zeros(400, dtype=torch.uint8)
    assert store.register_buffer(memory.data_ptr(), 400) == 0
    buffer = module.tensor_object_buffer(memory.data_ptr(), 400, memory, 4)
    got = transfer.get(ref, fields=["x"], destinations={"x": buffer})["batch"]["x"]
    assert same(got, x)
    again = transfer.put(batch(batch={"x": buffer}))
    assert same(transfer.get(again)["batch"]["x"], x)
    with pytest.raises(ValueError, match="only supports"):
        transfer.get(ref, fields=["x"], destinations={"x": torch.empty(4, 3, dtype=torch.int64)})
    store.unregister_buffer(memory.data_ptr())


@differs("`raw_destination`")
def test_what_only_kvcove_takes(module: Any, transfer: Any) -> None:
    torch = pytest.importorskip("torch")
    x = torch.arange(12).reshape(4, 3)
    memory = torch.zeros(128, dtype=torch.uint8)
    ref = transfer.put(batch(batch={"x": x}))
    into = module.raw_destination(memory.data_ptr(), 96, memory)
    got = transfer.get(ref, destinations={"x": into})["batch"]["x"]
    assert same(got, x)
    assert got.data_ptr() == memory.data_ptr()
    small = module.raw_destination(memory.data_ptr(), 95, memory)
    with pytest.raises(ValueError, match="96 are needed"):
        transfer.get(ref, destinations={"x": small})
    bf = [torch.ones(1, dtype=torch.bfloat16), torch.zeros(2, 2, dtype=torch.bfloat16), None]
    tree = [{"a": torch.ones(2), "n": [1, "x"]}, {"a": torch.ones(1, requires_grad=True)}, None]
    lists = [[torch.ones(1)], [], [torch.ones(2), torch.ones(1)]]
    data = {"bf": bf, "tree": tree, "lists": lists}
    assert same(transfer.get(transfer.put(data, type="dict"), type="dict"), data)
    with pytest.raises(ValueError, match="tensor_object_buffer"):
        policy = module.BundleTransferPolicy(copy_mode="zero_copy")
        transfer.put(batch(batch={"x": x}), policy=policy)


def test_columns_of_tensors(module: Any, transfer: Any) -> None:
    torch = pytest.importorskip("torch")
    ragged = [torch.ones(2), torch.zeros(3), None]
    dicts = [{"a": torch.ones(2)}, {"a": torch.zeros(1), "b": torch.ones(1, 2)}, None]
    data = {"ragged": ragged, "dicts": dicts, "scalars": [torch.tensor(1.0)] * 3}
    schemas = {"dicts": module.FieldSchema("ragged_tensor_dict")}
    ref = transfer.put(data, type="dict", field_schemas=schemas)
    assert same(transfer.get(ref, type="dict"), data)
    assert same(transfer.get(ref, type="dict", rows=slice(1, 3))["dicts"], dicts[1:])
    with pytest.raises(ValueError, match="mixed tensor dtype"):
        transfer.put({"x": [torch.ones(1), torch.ones(1, dtype=torch.int32)]}, type="dict")
    declared = {"dicts": module.FieldSchema("ragged_tensor_dict", metadata={"keys": ["a"]})}
    with pytest.raises(ValueError, match=r"keys not declared.*'b'"):
        transfer.put(data, type="dict", field_schemas=declared)
    with pytest.raises(TypeError, match="explicit None"):
        transfer.put({"dicts": [{"a": None}]}, type="dict", field_schemas=declared)


@own("it patches kvcove's module")
def test_dicts_without_msgpack(transfer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from kvcove.mooncake.structured import inference

    monkeypatch.setattr(inference, "object_codec", lambda: "json_ragged")
    rows = [{"a": [1, "x"]}, {}, None]
    ref = transfer.put({"x": rows, "big": [2**70, 1, 2]}, type="dict")
    assert ref.encoded_non_tensor["x"]["codec"] == "json_ragged"
    assert transfer.get(ref, type="dict") == {"x": rows, "big": [2**70, 1, 2]}
    with pytest.raises(ValueError, match="no codec matched"):
        transfer.put({"x": [{1: 2}]}, type="dict")  # JSON would make text of the key


@differs("arrays in a buffer pool")
def test_what_is_read_lies_in_the_buffer_pool(store: Any) -> None:
    from mooncake.buffer_pool import BufferPool
    from mooncake.structured_object_store import MooncakeBundleTransfer

    pool = BufferPool(store, max_bytes=1 << 20, min_size_class=1 << 20)
    transfer = MooncakeBundleTransfer(store, key_prefix="pooled", buffer_pool=pool)
    rows = numpy.arange(4096, dtype=numpy.int64).reshape(64, 64)
    ref = transfer.put({"rows": rows}, type="dict")
    lent = transfer.get(ref, type="dict")["rows"]
    at = lent.ctypes.data
    # The pool has no second buffer: this one is not waited for, and not given away.
    own = transfer.get(ref, type="dict", rows=slice(1, 3))["rows"]
    transfer.release_result({"rows": lent})
    with pytest.raises(RuntimeError, match="active leases"):
        pool.close()
    assert numpy.array_equal(lent, rows) and numpy.array_equal(own, rows[1:3])
    del lent
    again = transfer.get(ref, type="dict", rows=[5, 0])
    assert again["rows"].ctypes.data == at and numpy.array_equal(again["rows"], rows[[5, 0]])
    transfer.release_result(again)
    assert again == {"rows": None}
    pool.close()
    assert numpy.array_equal(transfer.get(ref, type="dict")["rows"], rows)
    transfer.cleanup_dataproto(ref)
