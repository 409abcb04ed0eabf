# SPDX-License-Identifier: Apache-2.0
"""The calls of trainers and of LMCache's remote connector, in their order and with their arguments.

verl (TransferQueue, and its rollout data on batches of rows), slime, miles and ROLL. Each test makes the
calls that the program's released source makes, with what it passes and what it relies on.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import MIB, new_store

numpy = pytest.importorskip("numpy")


def configuration(master: str, **more: Any) -> dict[str, Any]:
    return {
        "local_hostname": "127.0.0.1",
        "metadata_server": "P2PHANDSHAKE",
        "global_segment_size": 128 * MIB,
        "local_buffer_size": 16 * MIB,
        "protocol": "tcp",
        "rdma_devices": "",
        "master_server_addr": master,
        **more,
    }


@pytest.fixture
def stores(cluster: Any, run_dir: Path) -> Any:
    """A writer with memory and a reader without, as two processes of a trainer have."""
    made = [new_store(), new_store()]
    assert made[0].setup(configuration(cluster.address)) == 0
    assert made[1].setup(configuration(cluster.address, global_segment_size=0)) == 0
    yield made
    for store in made:
        assert store.close() == 0


# ---- verl's TransferQueue


def test_transfer_queue(stores: Any) -> None:
    """Batches of 200 puts; a batch that does not fit in local_buffer_size is halved until it does."""
    writer, reader = stores
    keys = [f"{i}@field" for i in range(400)]
    values = [bytes([i % 251]) * (64 << 10) for i in range(400)]
    size, at, halved = 200, 0, 0
    while at < len(keys):
        code = writer.put_batch(keys[at : at + size], values[at : at + size])
        if code == -600 and size > 1:
            size, halved = size // 2, halved + 1
            continue
        assert code == 0
        at += size
    assert writer.put_batch(["empty", "after"], [b"", b"x"]) == -600

    def get(batch: list[str]) -> list[bytes]:
        return list(reader.get_batch(batch))

    # Sixteen threads, batches of a thousand at most.
    with ThreadPoolExecutor(16) as pool:
        found = [one for part in pool.map(get, [keys[i::16] for i in range(16)]) for one in part]
    assert sorted(found) == sorted(values)
    assert reader.get_batch(["0@field", "absent"]) == [values[0], b""]
    # The next step's values replace these.
    assert writer.upsert_batch(keys[:2], [b"new", b"newer"]) == 0
    assert reader.get_batch(keys[:2]) == [b"new", b"newer"]
    assert set(writer.batch_remove(keys, True)) == {0}
    assert writer.batch_is_exist(keys) == [0] * 400
    assert writer.remove("absent") == -704


def test_transfer_queue_without_copies(stores: Any) -> None:
    """Zero copy: one registered buffer, batch_upsert_from and batch_get_into of 500 at most."""
    writer, reader = stores
    size, count = 4 << 10, 500
    sides = [ctypes.create_string_buffer(size * count) for _ in range(2)]
    at = [ctypes.addressof(side) for side in sides]
    for store, address in zip(stores, at, strict=True):
        assert store.register_buffer(address, size * count) == 0
    keys = [f"{i}@tensor" for i in range(count)]
    for i in range(count):
        ctypes.memset(at[0] + i * size, i % 251, size)
    pieces = [[one + i * size for i in range(count)] for one in at]
    for call in (writer.batch_put_from, writer.batch_upsert_from):
        assert call(keys, pieces[0], [size] * count) == [0] * count
    assert reader.batch_get_into(keys, pieces[1], [size] * count) == [size] * count
    assert sides[0].raw == sides[1].raw
    for store, address in zip(stores, at, strict=True):
        assert store.unregister_buffer(address) == 0
    assert writer.batch_remove(keys, force=True) == [0] * count


def test_transfer_queues_tensors(stores: Any) -> None:
    torch = pytest.importorskip("torch")
    writer, reader = stores
    tensors = [torch.arange(i + 1, dtype=torch.bfloat16) for i in range(20)]
    keys = [f"t{i}" for i in range(20)]
    assert writer.batch_put_tensor(keys, tensors) == [0] * 20
    got = reader.batch_get_tensor([*keys, "absent"])
    assert got[-1] is None
    assert all(torch.equal(a, b) for a, b in zip(got[:-1], tensors, strict=True))
    assert writer.batch_upsert_tensor(keys[:1], [torch.ones(3)]) == [0]
    assert torch.equal(reader.get_tensor("t0"), torch.ones(3))


# ---- LMCache's remote connector


def test_lmcaches_remote_connector(cluster: Any, run_dir: Path) -> None:
    """``exists``, ``batched_put`` and ``batched_get`` in both modes, from an event loop's threads."""
    from mooncake.store import MooncakeDistributedStore, ReplicateConfig

    store = MooncakeDistributedStore()
    store.setup("127.0.0.1", "P2PHANDSHAKE", 128 * MIB, 16 * MIB, "tcp", "", cluster.address)
    config = ReplicateConfig()
    config.replica_num = 1
    config.preferred_segment = store.get_hostname()
    arena = ctypes.create_string_buffer(8 * MIB)
    base = ctypes.addressof(arena)
    assert store.register_buffer(base, 8 * MIB) == 0
    keys = [f"vllm@meta-llama/Llama-3.1-8B@1@0@{i:x}" for i in range(8)]
    size = 256 << 10
    at = [base + i * size for i in range(8)]
    for i in range(8):
        ctypes.memset(at[i], i + 1, size)

    async def run() -> None:
        assert not store.is_exist(keys[0])
        # save_chunk_meta=False: shape and dtype are known, so only bytes go.
        put = await asyncio.to_thread(store.batch_put_from, keys[:4], at[:4], [size] * 4, config)
        assert put == [0] * 4
        assert store.is_exist(keys[3])
        into = [base + 4 * MIB + i * size for i in range(5)]
        asked = [*keys[:4], "absent"]
        got = await asyncio.to_thread(store.batch_get_into, asked, into, [size] * 5)
        assert got == [size] * 4 + [-704]
        assert arena.raw[4 * MIB : 4 * MIB + 4 * size] == arena.raw[: 4 * size]
        # save_chunk_meta=True: 28 bytes of metadata in front.
        head = bytes(range(28))
        for i in range(4, 8):
            view = memoryview(arena)[i * size : (i + 1) * size]
            assert await asyncio.to_thread(store.put_parts, keys[i], head, view) == 0
        found = await asyncio.to_thread(store.batch_get_buffer, [keys[4], "absent", keys[7]])
        assert found[1] is None
        for i, one in ((4, found[0]), (7, found[2])):
            value = memoryview(one)
            assert bytes(value[:28]) == head
            assert bytes(value[28:]) == bytes([i + 1]) * size

    asyncio.run(run())
    assert store.unregister_buffer(base) == 0
    assert store.close() == 0


# ---- slime and miles


def test_slime(stores: Any) -> None:
    """A rollout as a flat dict; its reference goes through Ray as JSON."""
    from mooncake.structured_object_store import (
        FieldSchema,
        MooncakeBundleTransfer,
        export_ref,
        import_ref,
    )

    put, get = (MooncakeBundleTransfer(one, key_prefix="slime-rollout") for one in stores)
    ragged = FieldSchema(codec="typed_ragged", nullable=False)
    data = {
        "tokens": [[1, 2, 3], [4, 5]],
        "response_lengths": [3, 2],
        "rewards": [0.5, 1.0],
        "truncated": [0, 0],
        "loss_masks": [[1, 1, 1], [1, 0]],
        "prompt": ["a", "b"],
        "rollout_id": 7,
    }
    schemas = {name: ragged for name in ("tokens", "loss_masks")}
    ref = put.put_legacy_dict(
        data, namespace="slime", partition="7", stage="rollout", field_schemas=schemas
    )
    sent = json.loads(json.dumps(export_ref(ref)))
    result = get.get_legacy_dict(import_ref(sent))
    get.release_result(result)
    assert result == data
    get.remove_legacy_dict(import_ref(sent))
    assert stores[0].remove_by_regex("^slime-rollout/", True) == 0


def test_miles(stores: Any) -> None:
    torch = pytest.importorskip("torch")
    from mooncake.structured_object_store import (
        FieldSchema,
        MooncakeBundleTransfer,
        export_ref,
        import_ref,
    )

    put, get = (MooncakeBundleTransfer(one, key_prefix="miles-object-store") for one in stores)
    tokens = [torch.tensor([1, 2, 3], dtype=torch.int32), torch.tensor([4, 5], dtype=torch.int32)]
    data = {"tokens": tokens, "rewards": [0.5, 1.0], "partition": [0, 1, 2], "step": 3}
    schemas = {
        name: FieldSchema(codec=codec, nullable=False, metadata=metadata)
        for name, codec, metadata in (
            ("tokens", "ragged_tensor", {"section": "non_tensor_batch"}),
            ("rewards", "ndarray", {"section": "non_tensor_batch", "dtype": "float32"}),
            ("partition", "auto", {"section": "meta_info"}),
        )
    }
    ref = export_ref(
        put.put(
            data,
            type="dict",
            namespace="miles",
            chunk_bytes=None,
            config=None,
            field_schemas=schemas,
        )
    )
    value = get.get(import_ref(json.loads(json.dumps(ref))), type="dict")
    assert all(torch.equal(a, b) for a, b in zip(value["tokens"], tokens, strict=True))
    assert (value["rewards"], value["partition"], value["step"]) == ([0.5, 1.0], [0, 1, 2], 3)
    MooncakeBundleTransfer.release_result(value)
    get.cleanup_dataproto(import_ref(ref))


# ---- ROLL


def test_roll(stores: Any) -> None:
    from mooncake.structured_object_store import BundleTransferPolicy, MooncakeBundleTransfer

    put, get = (MooncakeBundleTransfer(one, key_prefix="roll") for one in stores)
    policy = BundleTransferPolicy(max_inflight_put=4, put_mode="parallel")
    data = SimpleNamespace(
        batch={"ids": numpy.arange(12).reshape(4, 3), "mask": numpy.ones((4, 3), bool)},
        non_tensor_batch={"uid": numpy.array(["a", "b", "c", "d"], dtype=object)},
        meta_info={"roll_row_ids": ["0", "1", "2", "3"]},
    )
    ref = put.put(data, type="dataproto", partition="default", policy=policy)
    got = get.get(
        ref, type="dataproto", batch_fields=["ids"], non_tensor_fields=["uid"], data_cls=dict
    )
    assert numpy.array_equal(got.get("batch", {})["ids"], data.batch["ids"])
    assert list(got.get("non_tensor_batch", {})["uid"]) == ["a", "b", "c", "d"]
    put.cleanup_dataproto(ref)


# ---- verl's rollout data


class Rows(SimpleNamespace):
    """What verl's DataProto is to the catalog: three sections and a length."""

    def __len__(self) -> int:
        return len(next(iter(self.batch.values())))


def test_verls_rollout_data(stores: Any) -> None:
    """Workers put fragments under keys, a trainer reads some keys and fields, rows are removed."""
    from mooncake.buffer_pool import BufferPool
    from mooncake.dataproto_catalog import DataProtoCatalog, DataProtoCatalogTransfer
    from mooncake.structured_object_store import MooncakeBundleTransfer

    catalog = DataProtoCatalog()

    def call(method: str, *args: Any, **kwargs: Any) -> Any:
        return getattr(catalog, method)(*args, **kwargs)

    pools = [BufferPool(store, max_bytes=8 * MIB) for store in stores]
    transfers = [
        MooncakeBundleTransfer(
            store, key_prefix="verl-rollout", default_chunk_bytes=64 * MIB, buffer_pool=pool
        )
        for store, pool in zip(stores, pools, strict=True)
    ]
    worker, trainer = (DataProtoCatalogTransfer(one, call) for one in transfers)
    for part in range(3):
        keys = [f"s{part}-{i}" for i in range(4)]
        rows = Rows(
            batch={"ids": numpy.arange(8).reshape(4, 2) + 100 * part},
            non_tensor_batch={"uid": numpy.array(keys, dtype=object)},
            meta_info={"step": part},
        )
        told = worker.put(
            rows,
            partition="train",
            keys=keys,
            tags=[{"status": "running"}] * 4,
            namespace="verl",
            stage="rollout",
            chunk_bytes=None,
            field_schemas=None,
            config=None,
        )
        assert told["fields"] == ["ids", "uid"]
    # Another stage's fields for one fragment.
    plan = trainer.resolve("train", [f"s0-{i}" for i in range(4)])
    (fragment,) = plan["handles"]
    more = Rows(batch={"reward": numpy.arange(4.0)}, non_tensor_batch={}, meta_info={})
    trainer.append(
        fragment,
        plan["handles"][fragment],
        more,
        partition="train",
        keys=plan["keys"],
        stage="reward",
    )
    trainer.release_read(plan["read_token"])
    wanted = ["s1-2", "s0-3", "s0-1"]
    plan = trainer.resolve("train", wanted, ["ids", "uid"])
    rows_of: dict[str, list[int]] = {}
    for group in plan["field_groups"]:
        for name, row in group["locations"]:
            rows_of.setdefault(name, [])
            if row not in rows_of[name]:
                rows_of[name].append(row)
    seen = {}
    results = []
    for name, rows in rows_of.items():
        got = transfers[1].get(
            plan["handles"][name], type="dataproto", fields=plan["fields"], rows=rows
        )
        results.append(got)
        for i, uid in enumerate(got["non_tensor_batch"]["uid"]):
            seen[uid] = got["batch"]["ids"][i].tolist()
    trainer.release_read(plan["read_token"])
    output = SimpleNamespace()
    trainer.attach_results(output, results)
    trainer.release_result(output)
    assert seen == {"s1-2": [104, 105], "s0-3": [6, 7], "s0-1": [2, 3]}
    got = transfers[1].get(catalog.resolve("train", ["s0-0"])["handles"][fragment])
    assert got["batch"]["reward"].tolist() == [0.0, 1.0, 2.0, 3.0]
    transfers[1].release_result(got)
    trainer.remove("train", [f"s1-{i}" for i in range(4)])
    assert set(trainer.list()["train"]) == {f"s{part}-{i}" for part in (0, 2) for i in range(4)}
    worker.close()
    trainer.drain()
    for pool in pools:
        pool.close()
    assert stores[0].remove_by_regex("^verl-rollout/", True) == 0


def test_many_workers_of_verl_at_once(stores: Any) -> None:
    """Eight workers publish, read and remove on one catalog: nothing is left, nothing is mixed up."""
    from mooncake.dataproto_catalog import DataProtoCatalog, DataProtoCatalogTransfer
    from mooncake.structured_object_store import MooncakeBundleTransfer

    catalog = DataProtoCatalog()
    wrong: list[str] = []

    def work(number: int) -> None:
        client = DataProtoCatalogTransfer(
            MooncakeBundleTransfer(stores[number % 2], key_prefix="v"),
            lambda method, *args, **kwargs: getattr(catalog, method)(*args, **kwargs),
        )
        for turn in range(8):
            keys = [f"{number}-{i}" for i in range(3)]
            value = numpy.full((3, 4), 10 * number + turn)
            client.put(
                Rows(batch={"x": value}, non_tensor_batch={}, meta_info={}),
                partition="p",
                keys=keys,
            )
            plan = client.resolve("p", keys)
            (handle,) = plan["handles"].values()
            if not numpy.array_equal(client.transfer.get(handle)["batch"]["x"], value):
                wrong.append(f"worker {number}, turn {turn}")
            client.release_read(plan["read_token"])
        client.remove("p", keys)
        client.close()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert catalog.drain() == {"retired_handles": []}
    assert stores[0].remove_by_regex("^v/", True) == 0
