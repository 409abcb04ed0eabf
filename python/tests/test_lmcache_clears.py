# SPDX-License-Identifier: Apache-2.0
"""What clears and resets void of LMCache's stores. LMCache need not be there: few of its names stand for it here."""

from __future__ import annotations

import asyncio
import ctypes
import dataclasses
import importlib
import signal
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import Program, command_path, wait_until

import kvcove


@dataclasses.dataclass(frozen=True)
class Key:
    chunk_hash: bytes
    model_name: str = "m"
    kv_rank: int = 0x01000100
    object_group_id: int = 0
    cache_salt: str = ""


class Object:
    """A buffer of LMCache's."""

    def __init__(self, value: bytes) -> None:
        self._bytes = ctypes.create_string_buffer(value, len(value))
        self.data_ptr = ctypes.addressof(self._bytes)
        self.metadata = types.SimpleNamespace(fmt="kv", shapes=[(len(value),)], dtypes=["uint8"])
        self.references = 1

    def get_size(self) -> int:
        return len(self._bytes)

    def ref_count_down(self) -> None:
        self.references -= 1

    @property
    def value(self) -> bytes:
        return self._bytes.raw


class Bits:
    def __init__(self, size: int, ones: int = 0) -> None:
        self.found = [place < ones for place in range(size)]

    def batched_set(self, places: list[int]) -> None:
        for place in places:
            self.found[place] = True


class Base:
    """LMCache's interface of L2 adapters, and its count of bytes."""

    def __init__(self, max_capacity_bytes: int = 0) -> None:
        self.counted: dict[str, int] = {}

    def _notify_keys_stored(self, keys: list[Key], sizes: list[int]) -> None:
        for key, size in zip(keys, sizes, strict=True):
            self.counted[key.cache_salt] = self.counted.get(key.cache_salt, 0) + size

    def _notify_keys_deleted(self, keys: list[Key], sizes: list[int]) -> None:
        self._notify_keys_stored(keys, [-size for size in sizes])

    def _notify_keys_accessed(self, keys: list[Key]) -> None:
        pass


class Manager:
    """The storage manager of LMCache's server."""

    def __init__(self) -> None:
        self._l2_adapters: dict[int, Any] = {}

    def reserve_write(self, keys: list[Key], layout: Any) -> dict[Key, Any]:
        return dict.fromkeys(keys)

    def clear(self, force: bool = False) -> None:
        pass


class Backend:
    """The remote backend of LMCache's engine in process."""

    def __init__(self, connector: Any) -> None:
        self.connection = types.SimpleNamespace(getWrappedConnector=lambda: connector)
        self.waiting: list[Callable[[], Any]] = []

    def batched_submit_put_task(self, keys: list[Any], objects: list[Any]) -> None:
        connector = self.connection.getWrappedConnector()
        self.waiting.append(lambda: connector.batched_put(keys, objects))


def _module(patch: pytest.MonkeyPatch, name: str, **names: Any) -> None:
    module = types.ModuleType(name)
    module.__path__ = []  # type: ignore[attr-defined]
    module.__dict__.update(names)
    patch.setitem(sys.modules, name, module)


@pytest.fixture
def lmcache(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The adapters on one pool of this process."""
    log = types.SimpleNamespace(
        **dict.fromkeys(("debug", "info", "warning", "error"), lambda *_: None)
    )
    manager, backend = type("Manager", (Manager,), {}), type("Backend", (Backend,), {})
    manager.clear, manager.reserve_write = Manager.clear, Manager.reserve_write
    nothing = types.SimpleNamespace
    for name, names in {
        "lmcache": {},
        "lmcache.lmcache_native": {"Bitmap": Bits},
        "lmcache.logging": {"init_logger": lambda _: log},
        "lmcache.v1": {},
        "lmcache.v1.exceptions": {"IrrecoverableException": RuntimeError},
        "lmcache.v1.distributed": {},
        "lmcache.v1.distributed.api": dict.fromkeys(
            ("EncodedObjectKey", "KeyEntry", "KeyListPage"), nothing
        ),
        "lmcache.v1.distributed.internal_api": {"L2StoreResult": lambda *result: result},
        "lmcache.v1.distributed.l2_adapters": {},
        "lmcache.v1.distributed.l2_adapters.base": {"L2AdapterInterface": Base},
        "lmcache.v1.distributed.storage_manager": {"StorageManager": manager},
        "lmcache.v1.memory_management": {
            "MemoryFormat": nothing(BINARY="binary", BINARY_BUFFER="buffer")
        },
        "lmcache.v1.storage_backend": {},
        "lmcache.v1.storage_backend.connector": {"ConnectorAdapter": object},
        "lmcache.v1.storage_backend.connector.base_connector": {"RemoteConnector": object},
        "lmcache.v1.storage_backend.remote_backend": {"RemoteBackend": backend},
    }.items():
        _module(monkeypatch, name, **names)
    for name in ("_l2", "_connector"):
        monkeypatch.delitem(sys.modules, f"kvcove.lmcache.{name}", raising=False)
    from kvcove.lmcache import _clear

    monkeypatch.setattr(_clear, "_wrapped", set())
    with kvcove.open("embedded:?memory=16MiB&populate=0") as pool:
        monkeypatch.setattr(kvcove, "open", lambda _: pool)
        yield types.SimpleNamespace(
            l2=importlib.import_module("kvcove.lmcache._l2"),
            connector=importlib.import_module("kvcove.lmcache._connector"),
            clear=_clear,
            manager=manager,
            backend=backend,
            pool=pool,
        )
    for name in ("_l2", "_connector"):
        sys.modules.pop(f"kvcove.lmcache.{name}", None)


class Server:
    """A server of LMCache, as far as the adapter knows it."""

    def __init__(self, lmcache: Any) -> None:
        self.adapter = lmcache.l2.KvcoveL2Adapter({"pool": "unix:/tmp/nobody.sock"})
        self.manager = lmcache.manager()
        self.manager._l2_adapters[0] = self.adapter

    def write(self, *keys: Key) -> None:
        self.manager.reserve_write(list(keys), None)

    def store(self, *keys: Key) -> bool:
        """Store what was written."""
        self.adapter.submit_store_task(list(keys), [Object(key.chunk_hash) for key in keys])
        return bool(_until(self.adapter.pop_completed_store_tasks).popitem()[1][0])

    def find(self, *keys: Key) -> list[bool]:
        """Look keys up."""
        layouts = {0: types.SimpleNamespace(shapes=[(len(keys[0].chunk_hash),)], dtypes=["uint8"])}
        self.adapter._told.add("m")
        task = self.adapter.submit_lookup_and_lock_task(list(keys), layouts)
        return list(_until(lambda: self.adapter.query_lookup_and_lock_result(task)).found)


def _until(ask: Callable[[], Any]) -> Any:
    until = time.monotonic() + 120
    while not (answer := ask()):
        assert time.monotonic() < until
        time.sleep(0.001)
    return answer


ONE, TWO = Key(b"one"), Key(b"two", cache_salt="acme")


def test_kv_that_was_written_before_another_servers_clear_is_not_stored_after_it(
    lmcache: Any,
) -> None:
    first, other = Server(lmcache), Server(lmcache)
    first.write(ONE)
    other.manager.clear()
    assert not first.store(ONE)
    assert first.find(ONE) == other.find(ONE) == [False]
    first.write(ONE)
    assert first.store(ONE)
    assert other.find(ONE) == [True]


def test_a_store_that_a_clear_overtakes_at_its_begin_stores_nothing(lmcache: Any) -> None:
    server = Server(lmcache)
    server.write(ONE)
    at = server.adapter._spaces.at

    def late(*args: Any, **proven: bool) -> Any:
        server.adapter._spaces.at = at
        server.manager.clear()
        return at(*args, **proven)

    server.adapter._spaces.at = late
    assert not server.store(ONE)
    assert server.find(ONE) == [False]


def test_a_reset_of_one_salt_voids_what_was_written_before_it(lmcache: Any) -> None:
    server = Server(lmcache)
    server.write(ONE, TWO)
    with lmcache.pool.session("lmcache/m@acme", follow_always=True) as session:
        session.reset(all_void=True)
    assert not server.store(ONE, TWO)
    assert server.find(ONE, TWO) == [True, False]


def test_a_write_that_nobody_has_begun_is_not_stored_twice_or_ever(lmcache: Any) -> None:
    server = Server(lmcache)
    assert not server.store(ONE)
    server.write(ONE)
    assert server.store(ONE, ONE)
    assert not server.store(ONE)


def test_writes_that_never_end_take_no_room_without_bound(
    lmcache: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lmcache.l2, "_MOST_WRITES", 8)
    server = Server(lmcache)
    server.write(*(Key(b"%d" % i) for i in range(64)))
    assert len(server.adapter._begun) == 8


def test_two_clears_follow_each_other(lmcache: Any) -> None:
    server = Server(lmcache)
    held, go = threading.Event(), threading.Event()

    def first() -> None:
        with server.adapter.clearing():
            held.set()
            assert go.wait(120)

    threads = [threading.Thread(target=first), threading.Thread(target=server.manager.clear)]
    threads[0].start()
    assert held.wait(120)
    threads[1].start()
    server.write(ONE)
    assert not server.store(ONE)
    go.set()
    for thread in threads:
        thread.join(120)
    server.write(ONE)
    assert server.store(ONE)


def test_what_another_servers_clear_has_voided_is_counted_no_more(lmcache: Any) -> None:
    first, other = Server(lmcache), Server(lmcache)
    first.write(ONE, TWO)
    assert first.store(ONE, TWO)
    assert first.adapter.counted == {"": 3, "acme": 3}
    other.manager.clear()
    assert first.find(ONE) == [False]
    first.adapter.delete([TWO])
    assert first.adapter.counted == {"": 0, "acme": 0}


def test_a_pool_that_cannot_answer_has_lost_nothing(lmcache: Any) -> None:
    reasons = kvcove.MissReason.LEASE, kvcove.MissReason.EVICTED
    results = types.SimpleNamespace(codes=[kvcove.Code.MISS] * 2, reasons=reasons)
    assert lmcache.l2._gone([ONE, TWO], results) == [TWO]


def test_a_salt_without_an_open_session_is_counted(
    lmcache: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kvcove.lmcache import _spaces

    monkeypatch.setattr(_spaces, "_MOST", 1)
    server = Server(lmcache)
    for key in (TWO, ONE):
        server.write(key)
        assert server.store(key)
    server.adapter.delete([TWO])
    assert server.adapter.counted == {"": 3, "acme": 0}


def test_evicted_objects_that_nobody_asks_for_are_counted_no_more(
    lmcache: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lmcache.l2, "_CHECKED_FROM", 8)
    server = Server(lmcache)
    for i in range(64):
        key = Key(b"%03d" % i)
        server.write(key)
        assert server.store(key)
        with lmcache.pool.session("lmcache/m", follow_always=True) as session:
            session.remove([each.key for each in session.stored()])
    assert len(server.adapter._account) <= 10


def test_beside_a_frozen_owner_nothing_is_found_that_another_servers_clear_has_voided(
    cluster: Any, tmp_path: Path
) -> None:
    from kvcove.lmcache import _config, _spaces

    owners = []
    for host in ("near", "far"):
        words = [command_path(), "owner", "--master", cluster.address, "--listen", "127.0.0.1:0"]
        words += ["--memory", "64MiB", "--admin", "off", "--socket", str(tmp_path / host / "o")]
        owners.append(Program(words, tmp_path / f"{host}.log", KVCOVE_HOST_ID=host))
        owners[-1].wait_for("knows this owner as number")

    def spaces(host: str) -> Any:
        pool = f"kvcove://{cluster.address}?host={host}"
        return _spaces.Spaces(_config.Config.of({"pool": pool}, "adapter_params"))

    def finds(one: Any) -> bool:
        found = one.at("m", "acme")
        return found is not None and found[0].session.exists([found[1] + b"k"]).all_ok

    near, far, clearing = (spaces(host) for host in ("near", "far", "elsewhere"))
    space, epoch = far.at("m", "acme")
    assert space.session.put([epoch + b"k"], [b"kv"]).all_ok
    assert finds(near) and finds(far)
    owners[0].process.send_signal(signal.SIGSTOP)
    try:
        # This server knows no such salt, so it resets the root alone. The frozen owner's table still shows the root's
        # generation of before.
        clearing.reset()
        assert not finds(far)
        assert not finds(near)
        # The master proves the generation in the frozen owner's place.
        assert near.at("m", "acme")[1] == far.at("m", "acme")[1] != epoch
    finally:
        owners[0].process.send_signal(signal.SIGCONT)
        for one in (near, far, clearing):
            one.close()
        for owner in owners:
            owner.stop()


def test_while_the_master_is_away_nothing_is_found_and_stores_go_on(
    cluster: Any, tmp_path: Path
) -> None:
    from kvcove.lmcache import _config, _spaces

    words = [command_path(), "owner", "--master", cluster.address, "--listen", "127.0.0.1:0"]
    words += ["--memory", "64MiB", "--admin", "off", "--socket", str(tmp_path / "host" / "o")]
    owner = Program(words, tmp_path / "owner.log", KVCOVE_HOST_ID="host")
    owner.wait_for("knows this owner as number")
    pool = f"kvcove://{cluster.address}?host=host"
    one = _spaces.Spaces(_config.Config.of({"pool": pool}, "adapter_params"))
    try:
        before = one.begin("m", "acme")
        assert before is not None
        cluster.kill()
        assert wait_until(lambda: one.at("m", "acme") is None), "no lease proves the epoch"
        assert one.begin("m", "acme") == before
        space, epoch = one.at("m", "acme", proven=False)
        assert epoch == before.epoch
        assert space.session.put([epoch + b"k"], [b"kv"], token=before.token).all_ok
    finally:
        one.close()
        owner.stop()


def test_objects_of_two_sizes_of_tensor_parallelism_are_deleted(lmcache: Any) -> None:
    server = Server(lmcache)
    keys = [Key(b"one"), Key(b"three", kv_rank=0x02000200)]
    for key in keys:
        server.write(key)
        assert server.store(key)
    server.adapter.delete(keys)
    assert server.adapter.list_l2_keys().entries == ()
    assert server.adapter.counted == {"": 0}


def test_a_clear_gives_memory_back_as_long_as_there_is_time(
    lmcache: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server(lmcache)
    for i in range(8):
        server.write(Key(b"one", cache_salt=f"{i}"))
    tenant = server.adapter._spaces._others
    monkeypatch.setattr(tenant, "_config", types.SimpleNamespace(reset_timeout_ms=200.0))
    asked: list[float] = []

    def slow(space: Any) -> Any:
        def reset(all_void: bool, timeout: float) -> None:
            asked.append(timeout)
            time.sleep(timeout)
            raise kvcove.TimedOutError("slow")

        return types.SimpleNamespace(name=space.name, session=types.SimpleNamespace(reset=reset))

    spaces = [(model, salt, slow(space)) for model, salt, space in tenant.spaces()]
    monkeypatch.setattr(tenant, "spaces", lambda: spaces)
    tenant.reset()
    assert len(asked) == 1


def test_keys_of_an_engine_in_process_are_in_no_servers_list(lmcache: Any) -> None:
    server = Server(lmcache)
    server.write(ONE)
    assert server.store(ONE)
    found = server.adapter._spaces.at("m", "")
    assert found[0].session.put([found[1] + b"p2x3 uint8.1.0.ab"], [b"kv"]).all_ok
    assert len(server.adapter.list_l2_keys().entries) == 1


def _connector(lmcache: Any) -> Any:
    from kvcove.lmcache import _config, _spaces

    connector = object.__new__(lmcache.connector.KvcoveConnector)
    connector.config = _config.Config.of({"pool": "unix:/tmp/nobody.sock"}, "extra_config")
    connector._spaces = _spaces.Spaces(connector.config)
    connector._layout = "3 uint8"
    connector._clears = 0
    connector._memory = types.SimpleNamespace(clears=0)
    connector._memory.clear = lambda: None
    connector._calls = lmcache.connector._Calls(asyncio.get_running_loop())
    connector.full_chunk_size_bytes, connector.single_token_size = 3, 1
    connector.reshape_partial_chunk = lambda each, _: each
    lmcache.clear.observe_engine()
    return connector


CHUNK = types.SimpleNamespace(
    model_name="m", tags=None, world_size=1, worker_id=0, chunk_hash_hex="ab"
)


def test_a_put_that_another_engines_clear_overtakes_in_the_loop_stores_nothing(
    lmcache: Any,
) -> None:
    async def run() -> None:
        first, other = _connector(lmcache), _connector(lmcache)
        backend = lmcache.backend(first)
        for overtaken in (True, False):
            backend.batched_submit_put_task([CHUNK], [Object(b"one")])
            if overtaken:
                await asyncio.to_thread(lmcache.backend(other).clear)
            await backend.waiting.pop()()
            assert await first.exists(CHUNK) is not overtaken

    asyncio.run(run())


def test_a_load_in_process_that_a_clear_overtakes_brings_nothing(lmcache: Any) -> None:
    async def run() -> None:
        connector = _connector(lmcache)
        await connector.batched_put([CHUNK], [Object(b"one")])
        for overtaken in (False, True):
            buffer = Object(b"\0\0\0")

            def allocated(count: int, buffer: Object = buffer, clear: bool = overtaken) -> Any:
                if clear:
                    connector._clears += 1
                return [buffer]

            connector._allocated = allocated
            (found,) = await connector.batched_get([CHUNK])
            assert (found is None) == overtaken
            assert buffer.references == (0 if overtaken else 1)
            assert overtaken or found.value == b"one"

    asyncio.run(run())


def test_a_connector_closes_when_no_call_is_under_way(lmcache: Any) -> None:
    async def run() -> None:
        connector = _connector(lmcache)
        call = asyncio.ensure_future(connector.batched_put([CHUNK], [Object(b"one")]))
        await asyncio.sleep(0)
        await connector.close()
        assert not connector._calls._waiting
        await call

    asyncio.run(run())
