# SPDX-License-Identifier: Apache-2.0
"""SSD offload of the drop-in: what evicts comes back, and the stores say where it is.

The tests named `recorded` make the calls of Mooncake's own SSD tests (test_local_disk_get,
test_offload_on_eviction, test_promotion_on_hit, test_prefetch_on_exist, test_ssd_offload_regression,
test_ssd_offload_in_evict), waiting for what they sleep for.
"""

from __future__ import annotations

import ctypes
import dataclasses
import hashlib
import json
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import MIB, Program, free_port, http, new_store, wait_until
from kvcove.mooncake import _offload

import kvcove

SIZE = 256 * MIB


def value_of(key: str, size: int = MIB) -> bytes:
    digest = hashlib.sha256(key.encode()).digest()
    return (digest * (size // len(digest) + 1))[:size]


def types(store: Any, key: str) -> list[str]:
    """As Mooncake's tests tell replicas apart."""
    found = []
    for one in store.batch_get_replica_desc([key]).get(key, []):
        kinds = ("memory", "local_disk", "disk")
        found.append(next(kind for kind in kinds if getattr(one, f"is_{kind}_replica")()))
    return found


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_dir: Path) -> Path:
    """A directory that can have a disk."""
    path = tmp_path / "ssd"
    try:
        kvcove.open(f"embedded:?memory=1MiB&populate=0&disk={tmp_path}/try:64MiB").close()
    except kvcove.Error as error:
        if "O_DIRECT" in str(error) or "tmpfs" in str(error):
            pytest.skip(str(error))
        raise
    monkeypatch.setenv("MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES", str(SIZE))
    return path


class Master:
    """`mooncake_master` with flags."""

    def __init__(self, directory: Path, *flags: str) -> None:
        self.address = f"127.0.0.1:{(port := free_port())}"
        self.admin = f"http://127.0.0.1:{(metrics := free_port())}"
        command = [sys.executable, "-m", "kvcove.mooncake.master", f"-rpc_port={port}"]
        command += [f"-metrics_port={metrics}", f"-data={directory / 'master'}", *flags]
        self.program = Program(command, directory / f"master-{port}.log")
        self.program.wait_for("serving at")


@pytest.fixture
def masters(tmp_path: Path, disk: Path) -> Iterator[Any]:
    """Makes masters, and stops them."""
    made: list[Master] = []

    def make(*flags: str) -> Master:
        made.append(Master(tmp_path, "-default_kv_lease_ttl=500", *flags))
        return made[-1]

    yield make
    for master in made:
        assert master.program.stop() == 0


def opened(master: Master, segment: int = 32 * MIB, local: int = 64 * MIB, **more: Any) -> Any:
    store = new_store()
    arguments = ("localhost", "P2PHANDSHAKE", segment, local, "tcp", "", master.address)
    assert store.setup(*arguments, **more) == 0
    return store


def fill(store: Any, count: int, prefix: str = "key") -> dict[str, bytes]:
    """Put as fast as it goes; what is answered 0 must be there from then on."""
    stored = {}
    for i in range(count):
        key = f"{prefix}-{i}"
        if store.put(key, value_of(key)) == 0:
            stored[key] = value_of(key)
    assert stored
    return stored


def cold_keys(store: Any, keys: Any, owner: str = "") -> list[str]:
    """Return keys that lie on this store's own disk alone, or on that of ``owner``."""
    found: list[str] = []

    def look() -> bool:
        descs = store.batch_get_replica_desc(list(keys))
        found[:] = [
            key
            for key, (one, *more) in descs.items()
            if not more and one.is_local_disk_replica()
            if one.get_disk_descriptor().transport_endpoint == (owner or store.get_hostname())
        ]
        return bool(found)

    assert wait_until(look), "nothing lies on the disk alone"
    return found


def cold_key(store: Any, keys: Any, owner: str = "") -> str:
    return cold_keys(store, keys, owner)[0]


# ---- Mooncake's own sequences


def test_recorded_local_disk_get(masters: Any, disk: Path) -> None:
    master = masters("--enable_offload=true", f"--root_fs_dir={disk}")
    store = new_store()
    arguments = ("localhost", "P2PHANDSHAKE", 32 * MIB, 64 * MIB, "tcp", "", master.address)
    assert store.setup(*arguments, None, True) == 0
    stored = fill(store, 64)
    assert len(stored) == 64, "puts wait until the disk has made room"
    for key, value in stored.items():
        assert store.get(key) == value, key
    store.close()


def test_recorded_offload_on_eviction(
    masters: Any, disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    master = masters("--enable_offload=true", "--offload_on_evict=true")
    monkeypatch.setenv("MOONCAKE_OFFLOAD_FILE_STORAGE_PATH", str(disk))
    store = opened(master, 128 * MIB, 128 * MIB, engine=None, enable_ssd_offload=True)
    keys = [f"small-{i}" for i in range(16)]
    for key in keys:
        assert store.put(key, value_of(key, 1024)) == 0
    assert {key: types(store, key) for key in keys} == {key: ["memory"] for key in keys}
    for key in keys:
        assert store.get(key) == value_of(key, 1024)
    store.close()


def test_recorded_promotion_on_hit(masters: Any, disk: Path) -> None:
    master = masters(
        f"--root_fs_dir={disk}",
        "--enable_offload=true",
        "--offload_on_evict=true",
        "--promotion_on_hit=true",
        "--promotion_admission_threshold=1",
        "--promotion_max_per_heartbeat=16",
    )
    store = opened(master, engine=None, enable_ssd_offload=True)
    again = opened(master, engine=None, enable_ssd_offload=True)  # as its second class has it
    stored = fill(store, 96)
    cold = cold_key(store, stored)
    assert store.get_offload_rpc_read_count() == 0
    for _ in range(4):
        assert store.get(cold) == stored[cold]
    assert store.get_offload_rpc_read_count() == 1
    assert wait_until(lambda: "memory" in types(store, cold))
    assert store.get(cold) == stored[cold]
    assert store.get_offload_rpc_read_count() == 1, "the second time it is in memory"
    again.close()
    store.close()


def test_recorded_prefetch_on_exist(masters: Any, disk: Path) -> None:
    from mooncake.store import ExistOptions

    master = masters("--enable_offload=true", "--promotion_on_hit=false", f"--root_fs_dir={disk}")
    store = new_store()
    config = {
        "local_hostname": "127.0.0.1",
        "metadata_server": "P2PHANDSHAKE",
        "global_segment_size": str(32 * MIB),
        "local_buffer_size": str(64 * MIB),
        "protocol": "tcp",
        "rdma_devices": "",
        "master_server_addr": master.address,
        "enable_ssd_offload": "true",
        "ssd_offload_path": str(disk),
    }
    assert store.setup(config) == 0
    stored = fill(store, 96)
    cold = cold_key(store, stored)
    no, yes = ExistOptions(), ExistOptions()
    yes.prefetch_to_memory = True
    assert (store.is_exist(cold), store.is_exist(cold, no)) == (1, 1)
    # What comes up comes within milliseconds; a read of another key is behind it in the queue.
    other = next(key for key in cold_keys(store, stored) if key != cold)
    assert store.get(other) == stored[other]
    assert types(store, cold) == ["local_disk"]
    assert store.is_exist(cold, yes) == 1
    assert wait_until(lambda: types(store, cold) == ["memory"])
    assert store.get(cold) == stored[cold]
    store.close()


def test_recorded_ssd_offload_regression(masters: Any, disk: Path) -> None:
    master = masters("--enable_offload=true", "--offload_on_evict=true")
    store = opened(
        master, 32 * MIB, 16 * MIB, engine=None, enable_ssd_offload=True, ssd_offload_path=str(disk)
    )
    keys = [f"regression-{i}" for i in range(150)]
    for key in keys:
        assert wait_until(lambda key=key: store.put(key, value_of(key)) == 0), key
    for key in keys:
        assert store.get(key) == value_of(key), key
    for key in keys:
        store.remove(key, force=True)
    assert store.batch_is_exist(keys) == [0] * len(keys)
    store.close()


def test_recorded_ssd_offload_in_evict(masters: Any, disk: Path) -> None:
    """The clients say nothing: the master's -root_fs_dir is enough."""
    store = opened(masters(f"--root_fs_dir={disk}"), 32 * MIB, 32 * MIB)
    assert sorted(each.name for each in disk.iterdir()) == ["kvcove-0"]
    keys = [f"k_{i}" for i in range(80)]
    wrong: list[str] = []

    def work() -> None:
        for key in keys:
            code = store.put(key, value_of(key))
            if code != 0:
                wrong.append(f"put {key}: {code}")
        for key in keys:
            if store.get(key) != value_of(key):
                wrong.append(f"get {key}")

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    store.close()


# ---- every call, and what ends values


@pytest.fixture
def store(masters: Any, disk: Path) -> Iterator[Any]:
    """A store with 32 MiB of memory and a disk; -promotion_on_hit=false keeps look-ups from reading."""
    made = opened(
        masters("-enable_offload", "-promotion_on_hit=false"),
        enable_ssd_offload=True,
        ssd_offload_path=str(disk),
    )
    yield made
    made.close()


def test_each_call_reads_what_lies_on_the_disk(store: Any) -> None:
    stored = fill(store, 96)
    into = (ctypes.c_char * (2 * MIB))()
    at = ctypes.addressof(into)
    assert store.register_buffer(at, 2 * MIB) == 0

    def whole(key: str) -> bytes:
        return store.get(key)

    def batch(key: str) -> bytes:
        return store.get_batch([key])[0]

    def buffer(key: str) -> bytes:
        return bytes(store.get_buffer(key))

    def address(key: str) -> bytes:
        assert store.get_into(key, at, 2 * MIB) == MIB
        return into.raw[:MIB]

    def pieces(key: str) -> bytes:
        half = MIB // 2
        got = store.batch_get_into_multi_buffers([key], [[at, at + half]], [[half, half]])
        assert got == [MIB]
        return into.raw[:MIB]

    def ranges(key: str) -> bytes:
        assert store.get_into_ranges([at], [[key]], [[[0]]], [[[0]]], [[[MIB]]]) == [[[MIB]]]
        return into.raw[:MIB]

    for number, read in enumerate((whole, batch, buffer, address, pieces, ranges), start=1):
        key = cold_key(store, stored)
        assert store.get_size(key) == MIB
        (replica,) = store.get_replica_desc(key)
        told = replica.get_disk_descriptor()
        assert (told.object_size, told.transport_endpoint) == (MIB, store.get_hostname())
        with pytest.raises(RuntimeError, match="no memory descriptor"):
            replica.get_memory_descriptor()
        assert types(store, key) == ["local_disk"], "asking has not brought it up"
        assert read(key) == stored[key], read.__name__
        assert store.get_offload_rpc_read_count() == number
        assert wait_until(lambda key=key: types(store, key) == ["memory"])


def test_removals_and_resets_end_what_lies_on_the_disk(store: Any) -> None:
    stored = fill(store, 96)
    cold = cold_key(store, stored)
    assert store.remove(cold, force=True) == 0
    assert (store.is_exist(cold), store.get(cold), store.get_size(cold)) == (0, b"", -704)
    assert types(store, cold) == []
    assert store.remove_all(force=True) >= 0
    assert store.batch_is_exist(list(stored)) == [0] * len(stored)
    assert all(store.get(key) == b"" for key in list(stored)[:8])
    assert store.put(cold, b"new") == 0
    assert store.get(cold) == b"new"


def test_the_master_says_which_tier_has_a_key(masters: Any, disk: Path) -> None:
    master = masters("-enable_offload", "-promotion_on_hit=false")
    store = opened(master, enable_ssd_offload=True, ssd_offload_path=str(disk))
    stored = fill(store, 96)
    cold = cold_key(store, stored)
    warm = next(key for key in reversed(stored) if types(store, key) == ["memory"])
    status, told = http(f"{master.admin}/batch_query_keys?keys={cold},{warm},nothing")
    assert status == 200
    data = told["data"]
    assert data[cold]["values"] == []
    assert data[cold]["local_disk_values"] == [
        {
            "client_id": store.get_hostname(),
            "object_size": MIB,
            "transport_endpoint": store.get_hostname(),
        }
    ]
    assert data[warm]["local_disk_values"] is None
    assert [one["size_"] for one in data[warm]["values"]] == [MIB]
    assert (data["nothing"]["ok"], data["nothing"]["local_disk_values"]) == (False, None)
    store.close()


def test_a_client_that_comes_back_finds_its_disk(masters: Any, disk: Path) -> None:
    master = masters("-enable_offload", "-promotion_on_hit=false")
    more = {"enable_ssd_offload": True, "ssd_offload_path": str(disk)}
    store, other = opened(master, **more), opened(master, **more)
    assert sorted(each.name for each in disk.iterdir()) == ["kvcove-0", "kvcove-1"]
    stored = fill(store, 96)
    cold, removed = cold_keys(store, stored)[:2]
    assert store.remove(removed, force=True) == 0
    store.close()
    assert wait_until(lambda: other.is_exist(cold) != 1)
    store = opened(master, **more)
    assert not (disk / "kvcove-2").exists(), "the place is taken again"
    assert wait_until(lambda: other.is_exist(cold) == 1)
    # Its address is another one; requesters hear of that a moment later.
    assert wait_until(lambda: other.get(cold) == stored[cold])
    assert other.is_exist(removed) == 0
    # Another host's disk is as good as one's own.
    assert other.get_offload_rpc_read_count() == 1
    store.close()
    other.close()


def test_a_disk_of_another_pool_starts_empty_and_says_so(
    masters: Any, disk: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    more = {"enable_ssd_offload": True, "ssd_offload_path": str(disk)}
    store = opened(masters("-enable_offload"), **more)
    stored = fill(store, 64)
    cold_key(store, stored)
    store.close()
    other = tmp_path / "other"
    other.mkdir()
    master = Master(other, "-enable_offload")
    store = opened(master, **more)
    assert "kvcove-0 starts empty: it is of another pool" in caplog.text
    assert store.batch_is_exist(list(stored)) == [0] * len(stored)
    assert fill(store, 64, "new")
    store.close()
    assert master.program.stop() == 0


def test_a_disk_that_is_unmounted_starts_empty_at_the_next_setup(masters: Any, disk: Path) -> None:
    master = masters("-enable_offload", "-promotion_on_hit=false")
    more = {"enable_ssd_offload": True, "ssd_offload_path": str(disk)}
    store = opened(master, **more)
    stored = fill(store, 96)
    cold = cold_key(store, stored)
    warm = next(key for key in reversed(stored) if types(store, key) == ["memory"])
    assert store.unmount_local_disk_segment(-1) == -600
    assert store.unmount_local_disk_segment() == 0
    assert wait_until(lambda: store.is_exist(cold) != 1)
    assert store.get(cold) == b""
    assert store.get(warm) == stored[warm]
    assert store.put("later", b"value") == 0
    store.close()
    store = opened(master, **more)
    assert store.is_exist(cold) != 1
    again = fill(store, 96)
    cold = cold_key(store, again)
    assert store.get(cold) == again[cold]
    store.close()


def test_an_embedded_pool_keeps_a_disk(disk: Path) -> None:
    def embedded() -> Any:
        store = new_store()
        config = ("localhost", "P2PHANDSHAKE", 16 * MIB, 16 * MIB, "tcp", "", "embedded:")
        assert store.setup(*config, enable_ssd_offload=True, ssd_offload_path=str(disk)) == 0
        return store

    store = embedded()
    stored = fill(store, 64)
    assert len(stored) == 64
    cold = cold_key(store, stored)
    assert store.get_size(cold) == MIB
    assert store.get(cold) == stored[cold]
    cold = cold_key(store, stored)
    assert store.unmount_local_disk_segment() == -1012
    store.close()
    store = embedded()
    assert bytes(store.get_buffer(cold)) == stored[cold]
    store.close()


def test_a_client_program_with_a_disk(masters: Any, disk: Path, tmp_path: Path) -> None:
    master = masters("-enable_offload")
    port = free_port()
    segment = f"127.0.0.1:{free_port()}"
    command = [sys.executable, "-m", "kvcove.mooncake.client", f"-port={port}", f"-host={segment}"]
    command += [f"-master_server_address={master.address}", "-global_segment_size=32MB"]

    def client() -> Program:
        program = Program(
            [*command, "--enable_offload=true"],
            tmp_path / "client.log",
            MOONCAKE_OFFLOAD_FILE_STORAGE_PATH=str(disk),
        )
        assert wait_until(lambda: _answers(f"http://127.0.0.1:{port}/health") == 200)
        return program

    program = client()
    store = new_store()
    assert store.setup_dummy(0, 16 * MIB, f"127.0.0.1:{port}") == 0
    stored = fill(store, 96)
    assert len(stored) == 96, "a thin client's puts wait, too"
    cold = cold_key(store, stored, segment)
    assert program.stop() == 0
    program = client()
    assert wait_until(lambda: store.get(cold) == stored[cold])
    store.close()
    assert program.stop() == 0


def _answers(url: str) -> int:
    try:
        return http(url)[0]
    except OSError:
        return 0


# ---- configuration


def test_the_environment_and_files_ask_for_it(
    masters: Any, disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mooncake.mooncake_config import MooncakeConfig

    master = masters("-enable_offload")
    monkeypatch.setenv("MOONCAKE_OFFLOAD_FILE_STORAGE_PATH", str(disk))
    for name in ("MOONCAKE_OFFLOAD_ENABLED", "MOONCAKE_ENABLE_OFFLOAD"):
        monkeypatch.setenv(name, "true")
        store = opened(master)
        assert (disk / "kvcove-0" / "kvcove.disk").stat().st_size == SIZE
        store.close()
        monkeypatch.delenv(name)
    file = tmp_path / "mooncake.json"
    file.write_text(
        json.dumps(
            {
                "local_hostname": "localhost",
                "metadata_server": "P2PHANDSHAKE",
                "master_server_address": master.address,
                "enable_ssd_offload": True,
                "ssd_offload_path": str(tmp_path / "of the file"),
                "global_segment_size": 16 * MIB,
            }
        )
    )
    config = MooncakeConfig.from_file(str(file))
    store = opened(
        master,
        enable_ssd_offload=config.enable_ssd_offload,
        ssd_offload_path=config.ssd_offload_path,
    )
    assert (tmp_path / "of the file" / "kvcove-0").is_dir()
    store.close()


@pytest.mark.parametrize(
    ("more", "variables", "told"),
    [
        ({"ssd_offload_path": "relative"}, {}, "an absolute path is wanted"),
        ({"ssd_offload_path": "/a/../b"}, {}, "an absolute path is wanted"),
        ({"ssd_offload_path": "/proc/nothing"}, {}, "/proc/nothing"),
        ({}, {}, "has no directory: give ssd_offload_path"),
        (
            {"ssd_offload_path": "/tmp/x"},
            {"MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES": "2TB"},
            "MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES=2TB is no number of bytes",
        ),
        (
            {"ssd_offload_path": "/tmp/x"},
            {"MOONCAKE_OFFLOAD_BUCKET_MAX_TOTAL_SIZE": "1000"},
            "MOONCAKE_OFFLOAD_BUCKET_MAX_TOTAL_SIZE=1000: a disk has 67108864 bytes",
        ),
    ],
)
def test_what_cannot_be_is_told(
    more: dict[str, Any],
    variables: dict[str, str],
    told: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    store = new_store()
    config = ("localhost", "P2PHANDSHAKE", MIB, MIB, "tcp", "", "embedded:")
    assert store.setup(*config, enable_ssd_offload=True, **more) == -600
    assert told in caplog.text


def test_what_is_not_there_is_warned_of_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("MOONCAKE_OFFLOAD_DISABLE_SSD_EVICTION", "true")
    monkeypatch.setenv("MOONCAKE_OFFLOAD_STORAGE_BACKEND_DESCRIPTOR", "distributed_storage_backend")
    _offload.Offload.of(str(tmp_path))
    assert "MOONCAKE_OFFLOAD_DISABLE_SSD_EVICTION=true: a disk that is full frees" in caplog.text
    assert "distributed_storage_backend: each owner has a log on a disk of its own" in caplog.text


def test_the_smallest_limit_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES", str(1 << 41))
    monkeypatch.setenv("MOONCAKE_OFFLOAD_BUCKET_MAX_TOTAL_SIZE", "0")
    monkeypatch.setenv("MOONCAKE_BUCKET_MAX_TOTAL_SIZE", str(300 * MIB))
    offload = _offload.Offload.of(str(tmp_path))
    assert offload.limit == 300 * MIB
    place = offload.take("")
    assert place.spec == f"{tmp_path}/kvcove-0:{300 * MIB}"
    # One that is in use is not taken twice; one that is free again is taken first.
    second = offload.take("")
    assert second.home.name == "kvcove-1"
    place.close()
    assert offload.take("").home.name == "kvcove-0"


def test_without_a_limit_a_disk_gets_a_quarter_of_what_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Found:
        f_bavail, f_frsize = 1 << 20, 4096

    monkeypatch.setattr(_offload.os, "statvfs", lambda _: Found)
    assert _offload.Offload(tmp_path, None).take("").size == 1 << 30
    assert _offload.Offload(tmp_path / "limited", 1 << 40).take("").size == 3686 * MIB
    Found.f_bavail = 1000
    with pytest.raises(ValueError, match="it needs 67108864"):
        _offload.Offload(tmp_path / "small", None).take("")


def test_expressions_remove_what_lies_on_the_disk_only(masters: Any, disk: Path) -> None:
    # Leases that a slow disk does not outlast.
    master = masters("-enable_offload", "-promotion_on_hit=false", "-default_kv_lease_ttl=60000")
    store = opened(master, enable_ssd_offload=True, ssd_offload_path=str(disk))
    stored = fill(store, 96)
    cold = cold_keys(store, stored)
    ends = sorted(key for key in stored if key[-1] in "3456")
    assert set(ends) & set(cold) and set(ends) - set(cold)
    assert store.remove_by_regex("^key-.*[3-6]$", True) == len(ends)
    assert store.batch_is_exist(ends) == [0] * len(ends)
    assert all(store.get(key) == b"" for key in ends)
    left = sorted(set(stored) - set(ends))
    assert store.batch_is_exist(left) == [1] * len(left)
    # What is read is leased, and kept without force; its neighbours on the disk are not named then.
    assert store.get(left[0]) == stored[left[0]]
    assert store.remove_by_regex("^key", False) >= 0
    assert store.get(left[0]) == stored[left[0]]
    assert store.remove_by_regex("^key", True) > 0
    assert store.batch_is_exist(left) == [0] * len(left)
    store.close()


def test_what_was_leased_stays_though_its_lease_ends_meanwhile(store: Any) -> None:
    """A disk may be slow to forget what the first pass removes."""
    removed: list[bytes] = []

    @dataclasses.dataclass
    class Stored:
        key: bytes
        tier: str
        held: bool = False
        hard_pinned: bool = False
        soft_pinned: bool = False

    class Session:
        lists = iter(
            (
                [Stored(b"leased", "memory", held=True), Stored(b"cold", "disk")],
                [Stored(b"leased", "memory"), Stored(b"moved", "disk")],
                [],
            )
        )

        def stored(self, timeout: float) -> list[Stored]:
            return next(self.lists)

        def stat(self, keys: list[bytes], timeout: float) -> list[None]:
            return [None] * len(keys)

        def remove(self, keys: list[bytes], timeout: float) -> SimpleNamespace:
            removed.extend(keys)
            return SimpleNamespace(ok_count=len(keys))

        def remove_matching(self, pattern: str, timeout: float) -> int:
            raise AssertionError("it would remove what is leased")

    now = store._now
    store._now = SimpleNamespace(session=Session())
    try:
        assert store.remove_by_regex(".*", False) == 2
    finally:
        store._now = now
    assert removed == [b"cold", b"moved"]


def test_expressions_that_are_no_patterns_do_so_too(store: Any) -> None:
    stored = fill(store, 96)
    cold = cold_keys(store, stored)
    ends = sorted(key for key in stored if len(key) == 6 and key[-1] in "3456")
    assert set(ends) & set(cold)
    assert store.remove_by_regex(r"^key-\d(?=[3-6])\w$", True) == len(ends)
    assert store.batch_is_exist(ends) == [0] * len(ends)
    left = sorted(set(stored) - set(ends))
    assert store.batch_is_exist(left) == [1] * len(left)
    # Without force, too; what is leased stays.
    time.sleep(0.6)  # look-ups leased them, too
    began = time.monotonic()
    assert store.get(left[0]) == stored[left[0]]
    removed = store.remove_by_regex(r"^\w+-\d+", False)
    if removed == len(left):
        assert time.monotonic() - began > 0.4, "its lease had not ended"
    else:
        assert removed == len(left) - 1
        assert store.batch_is_exist(left) == [1] + [0] * (len(left) - 1)


def test_everything_without_a_lease_goes_from_the_disk_too(store: Any) -> None:
    stored = fill(store, 96)
    assert cold_keys(store, stored)
    removed = 0

    def gone() -> bool:
        # This must not look values up, because a look-up leases them anew.
        nonlocal removed
        removed += store.remove_all()
        return removed == len(stored)

    assert wait_until(gone), f"{removed} of {len(stored)}"
    assert store.batch_get_replica_desc(list(stored)) == {}
