# SPDX-License-Identifier: Apache-2.0
"""The calls of real engines, in their order and with their arguments, on the drop-in.

vLLM's MooncakeStoreConnector (also run for real by ``make test-vllm``), SGLang's HiCache backend,
LMCache's connector.
"""

from __future__ import annotations

import ctypes
import json
import threading
from pathlib import Path
from typing import Any

import pytest
from conftest import MIB, new_store


def memory(size: int) -> tuple[Any, int]:
    buffer = ctypes.create_string_buffer(size)
    return buffer, ctypes.addressof(buffer)


def test_vllms_connector(cluster: Any, run_dir: Path) -> None:
    from mooncake.store import MooncakeDistributedStore, ReplicateConfig

    store = MooncakeDistributedStore()
    assert (
        store.setup("127.0.0.1", "P2PHANDSHAKE", 256 * MIB, 64 * MIB, "tcp", "", cluster.address)
        == 0
    )
    config = ReplicateConfig()
    assert hasattr(config, "group_ids")
    config.preferred_segment = store.get_hostname()
    kv, base = memory(16 * MIB)
    assert store.register_buffer(base, 16 * MIB) == 0
    keys = [f"tiny-llama@tp_rank:0@pcp0@dcp0@pp_rank:0@group:0@{i:064x}" for i in range(11)]
    piece = 128 << 10
    addresses = [[base + (4 * i + j) * piece for j in range(4)] for i in range(11)]
    sizes = [[piece] * 4] * 11
    for i in range(11):
        ctypes.memset(base + 4 * i * piece, i + 1, 4 * piece)
    assert store.batch_is_exist(keys) == [0] * 11
    config.group_ids = [f"vllm-mooncake-store:tiny@{i}" for i in range(11)]
    assert store.batch_put_from_multi_buffers(keys, addresses, sizes, config) == [0] * 11
    assert store.batch_is_exist(keys) == [1] * 11
    ctypes.memset(base, 0, 16 * MIB)
    assert store.batch_get_into_multi_buffers(keys, addresses, sizes) == [4 * piece] * 11
    for i in range(11):
        assert kv.raw[4 * i * piece : 4 * (i + 1) * piece] == bytes([i + 1]) * 4 * piece
    described = store.batch_get_replica_desc(keys)
    assert all(described[key][0].is_memory_replica() for key in keys)
    assert store.remove_all(force=True) == 11
    assert store.batch_is_exist(keys) == [0] * 11
    assert store.batch_get_into_multi_buffers(keys, addresses, sizes) == [-704] * 11
    store.close()


def test_sglangs_backend(cluster: Any, run_dir: Path) -> None:
    from mooncake.store import MooncakeDistributedStore, ReplicateConfig

    store = MooncakeDistributedStore()
    code = store.setup(
        "127.0.0.1",
        "P2PHANDSHAKE",
        "256MB" if False else 256 * MIB,
        16 * MIB,
        "tcp",
        "",
        cluster.address,
        None,
        enable_ssd_offload=False,
        ssd_offload_path="",
        tenant_id="default",
    )
    assert code == 0
    # The warm-up.
    key, value = "sglang_mooncake_store_warmup_key" + store.get_hostname(), bytes(4 << 10)
    assert store.put(key, value) == 0
    assert store.is_exist(key) == 1
    assert store.get(key) == value
    pages, base = memory(128 * 8192)
    assert store.register_buffer(base, 128 * 8192) == 0
    keys = [f"{i:064x}_0_{part}" for i in range(64) for part in ("k", "v")]
    addresses = [base + i * 8192 for i in range(128)]
    sizes = [8192] * 128
    for i in range(128):
        ctypes.memset(addresses[i], i, 8192)
    exist = store.batch_is_exist(keys)
    assert sum(1 for e in exist if e == 1) == 0
    config = ReplicateConfig()
    config.session_ids = ["request-1"] * 128
    assert store.batch_put_from(keys, addresses, sizes, config) == [0] * 128
    assert store.batch_put_from(keys, addresses, sizes) == [0] * 128
    ctypes.memset(base, 0, 128 * 8192)
    got = store.batch_get_into(
        [*keys[:10], "missing"], [*addresses[:10], addresses[10]], sizes[:11]
    )
    assert got == [8192] * 10 + [-704]
    assert pages.raw[9 * 8192 : 10 * 8192] == bytes([9]) * 8192
    # clear()
    assert store.remove_all() >= 0
    store.close()


def test_lmcaches_connector(cluster: Any, run_dir: Path) -> None:
    store = new_store()
    code = store.setup(
        {
            "local_hostname": "127.0.0.1",
            "metadata_server": "P2PHANDSHAKE",
            "global_segment_size": str(128 * MIB),
            "local_buffer_size": str(16 * MIB),
            "protocol": "tcp",
            "rdma_devices": "",
            "master_server_addr": cluster.address,
        }
    )
    assert code == 0
    assert ":" in store.get_hostname()
    arena, base = memory(4 * MIB)
    assert store.register_buffer(base, 4 * MIB) == 0
    metadata = json.dumps({"shape": [2, 16, 256], "dtype": "bf16", "fmt": 2}).encode()
    head, head_at = memory(len(metadata))
    head.raw = metadata
    ctypes.memset(base, 5, MIB)
    assert store.put_from_with_metadata("chunk", base, head_at, MIB, len(metadata)) == 0
    value = store.get_buffer("chunk")
    assert bytes(memoryview(value)[: len(metadata)]) == metadata
    assert value.size() == len(metadata) + MIB
    results = store.batch_get_into(["chunk", "nothing"], [base + MIB, base], [2 * MIB, MIB])
    assert results == [len(metadata) + MIB, -704]
    assert arena.raw[MIB : MIB + len(metadata)] == metadata
    assert store.unregister_buffer(base) == 0
    store.close()


def test_a_trainers_queue(cluster: Any, run_dir: Path) -> None:
    """What TransferQueue and the like depend on: absent, leased, replaced."""
    store = new_store()
    assert (
        store.setup("127.0.0.1", "P2PHANDSHAKE", 64 * MIB, 16 * MIB, "tcp", "", cluster.address)
        == 0
    )
    assert store.remove("absent") == -704
    store.put("sample", b"1")
    assert store.get("sample") == b"1"
    assert store.remove("sample") == -706
    assert store.batch_remove(["sample", "absent"], force=True) == [0, -704]
    assert store.upsert("sample", b"2") == 0
    assert store.upsert("sample", b"3") == 0
    assert store.get("sample") == b"3"
    store.close()


def test_two_engines_share_and_a_reset_is_for_both(cluster: Any, run_dir: Path) -> None:
    """Resets race with the saves of two engines: what comes after a reset is found, what was begun
    before it never."""
    stores = [new_store(), new_store()]
    for store in stores:
        assert (
            store.setup("127.0.0.1", "P2PHANDSHAKE", 64 * MIB, 16 * MIB, "tcp", "", cluster.address)
            == 0
        )
    version = [0]
    lock = threading.Lock()
    stop = threading.Event()
    old: list[str] = []

    def save(store: Any) -> None:
        while not stop.is_set():
            # As an engine whose worker captures at the call: the lock is its step.
            with lock:
                store.put(f"k{version[0]}", version[0].to_bytes(4, "little"))

    savers = [threading.Thread(target=save, args=(store,)) for store in stores]
    for saver in savers:
        saver.start()
    for _ in range(30):
        with lock:
            assert stores[version[0] % 2].remove_all(force=True) >= 0
            version[0] += 1
        for store in stores:
            for before in range(version[0]):
                if store.is_exist(f"k{before}") == 1:
                    old.append(f"k{before} after reset {version[0]}")
    stop.set()
    for saver in savers:
        saver.join()
    assert old == []
    for store in stores:
        store.close()


@pytest.mark.parametrize("key", ["local_hostname", "metadata_server", "master_server_address"])
def test_the_configuration_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    from mooncake.mooncake_config import MooncakeConfig

    fields = {
        "local_hostname": "node1",
        "metadata_server": "P2PHANDSHAKE",
        "master_server_address": "master:50051",
        "global_segment_size": "3GB",
        "protocol": "RDMA",
        "enable_ssd_offload": "false",
    }
    path = tmp_path / "mooncake.json"
    path.write_text(json.dumps(fields))
    monkeypatch.setenv("MOONCAKE_CONFIG_PATH", str(path))
    config = MooncakeConfig.load_from_env()
    assert (config.global_segment_size, config.local_buffer_size) == (3 << 30, 1 << 30)
    assert (config.protocol, config.enable_ssd_offload, config.tenant_id) == (
        "rdma",
        False,
        "default",
    )
    path.write_text(json.dumps({k: v for k, v in fields.items() if k != key}))
    with pytest.raises(ValueError, match=key):
        MooncakeConfig.from_file(str(path))
    path.write_text(json.dumps({**fields, key: " "}))
    with pytest.raises(ValueError, match=key):
        MooncakeConfig.from_file(str(path))
    monkeypatch.delenv("MOONCAKE_CONFIG_PATH")
    with pytest.raises(ValueError, match="MOONCAKE_MASTER"):
        MooncakeConfig.load_from_env()
    monkeypatch.setenv("MOONCAKE_MASTER", "m:1")
    monkeypatch.setenv("MOONCAKE_GLOBAL_SEGMENT_SIZE", "1.5 GB")
    assert MooncakeConfig.load_from_env().global_segment_size == 3 << 29
