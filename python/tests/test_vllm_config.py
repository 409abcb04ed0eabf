# SPDX-License-Identifier: Apache-2.0
"""The connector's configuration and roles, without vLLM (with it: python/tests/vllm)."""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import socket
import tempfile
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import kvcove
from kvcove import _native, engines


def module_of(name: str) -> ModuleType:
    return importlib.import_module(f"kvcove.vllm.{name}")


def test_known_keys_are_taken() -> None:
    config = module_of("_config").Config.of(
        {"pool": "unix:/x", "save_decoded": "true", "threads": 3}
    )
    assert (config.pool, config.save_decoded, config.threads) == ("unix:/x", True, 3)
    assert config.weight_version_source == "fingerprint"
    module_of("_config").Config.of({"preferred_segment": "node-1:7410,[::1]:7410"})


def test_the_environment_names_the_pool_where_the_configuration_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = module_of("_config").Config
    monkeypatch.setenv("KVCOVE_POOL", "unix:/y")
    assert config.of({}).pool == "unix:/y"
    assert config.of({"memory": "8GiB"}).pool == "unix:/y"
    assert config.of({"pool": "embedded"}).pool == "embedded"
    monkeypatch.setenv("KVCOVE_POOL", "somewhere")
    with pytest.raises(ValueError, match=r"\$KVCOVE_POOL: 'somewhere': give unix:/PATH"):
        config.of({})


@pytest.mark.parametrize(
    ("extra", "told"),
    [
        ({"polo": "auto"}, "did you mean 'pool'"),
        ({"nonsense": 1}, "known: pool"),
        ({"threads": "many"}, "threads"),
        ({"threads": 0}, "give 1 to 64"),
        ({"load_async": "perhaps"}, "load_async"),
        ({"weight_version_source": "fingerprnt"}, "give one of fingerprint"),
        ({"on_unreachable": "ignore"}, "give 'fallback' or 'crash'"),
        ({"on_reset_failure": True}, "give 'false' or 'closed'"),
        ({"priority": "urgent"}, "give 'low', 'normal' or 'high'"),
        ({"preferred_segment": "10.0.0.1"}, "'10.0.0.1': give an owner's HOST:PORT"),
        ({"preferred_segment": "a:1,b:0"}, "'b:0': give an owner's HOST:PORT"),
        ({"preferred_segment": "::1:7000"}, "'::1:7000': give an owner's HOST:PORT"),
        ({"device_pin": "all"}, "device_pin: 'all': give 'auto' or 'off' or a size from 67108864"),
        ({"device_pin": "1MiB"}, "give 'auto' or 'off' or a size from 67108864"),
        ({"device_ring": "off"}, "device_ring: 'off': give a size from 1048576"),
        ({"discard_partial_chunks": False}, "partial chunk"),
        ({"lookup_budget_ms": 0}, "give 1 to 600000"),
        ({"save_wait_ms": -1}, r"give 0 \(no wait\) to 600000"),
        # A pool in every process, which is what kvcove.open makes of these, shares nothing.
        ({"pool": "embedded:"}, r'write "pool": "embedded"$'),
        (
            {"pool": "embedded:?memory=8GiB"},
            r'write "pool": "embedded", "memory": "8GiB"$',
        ),
        ({"pool": "auto?memory=8GiB"}, r'write "pool": "auto", "memory": "8GiB"$'),
        ({"pool": "embedded:?policy=lru"}, "'policy' can't be set here"),
        ({"pool": "embeded"}, "did you mean 'embedded'"),
        ({"pool": "host:7400"}, "kvcove://HOST:7400"),
        ({"memory": "4 gigs"}, "memory: '4 gigs': .*4GiB"),
        ({"memory": "1KiB"}, "give 1MiB to 16TiB"),
        ({"memory": "17TiB", "pool": "embedded"}, "give 1MiB to 16TiB"),
        ({"memory": "8GiB", "pool": "unix:/x"}, "the pool at unix:/x has memory of its own"),
        ({"memory": "8GiB", "pool": "kvcove://h:7400"}, 'leave it out, or give "pool": "embedded"'),
    ],
)
def test_what_is_wrong_is_told(extra: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        module_of("_config").Config.of(extra)


@pytest.mark.parametrize(("given", "taken"), [("auto", -1), ("off", 0), ("8GiB", 8 << 30)])
def test_what_is_pinned_of_the_pool_can_be_bounded(given: str, taken: int) -> None:
    assert module_of("_config").Config.of({"device_pin": given}).device["device_pin"] == taken


@pytest.mark.parametrize("pool", ["auto", "embedded"])
def test_a_pool_of_the_engines_own_has_memory(pool: str) -> None:
    config = module_of("_config").Config.of({"pool": pool, "memory": "512MiB"})
    assert (config.pool, config.memory) == (pool, "512MiB")


def test_tier_log_by_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    config = module_of("_config").Config()
    assert not config.wants_tier_log
    monkeypatch.setenv("VLLM_MOONCAKE_STORE_TIER_LOG", "1")
    assert config.wants_tier_log


def shape(**changes: Any) -> Any:
    facts: dict[str, Any] = {
        **{"space": "", "model_name": "m", "model": "f", "kv_dtype": "bf16", "hashing": "sha256"},
        **{"hash_tokens": 4, "tp": 1, "pp": 1, "pcp": 1, "dcp": 1, "store_tp": 0},
        **{"interleave": 1, "layers": "kv"},
        "groups": [("full", 4, 0, 1, "HNC")],
    }
    return _native.EngineShape(**{**facts, **changes})


def test_a_shape_that_does_not_fit_is_refused() -> None:
    assert shape().world == 1
    with pytest.raises(kvcove.InvalidError, match="chunk of 6 tokens"):
        shape(groups=[("full", 6, 0, 1, "HNC")])
    with pytest.raises(ValueError, match="full, window or state"):
        shape(groups=[("half", 4, 0, 1, "HNC")])


class Role:
    """A scheduler's role that knows no adapter until a report comes."""

    def __init__(self) -> None:
        self.reports: list[bytes] = []

    def has_adapter(self, adapter: int) -> bool:
        return b"adapter %d" % adapter in self.reports

    def on_report(self, report: bytes) -> None:
        self.reports.append(report)


def test_adapters_are_loaded_and_told_before_their_requests_are_looked_up() -> None:
    adapters = module_of("_adapters")
    roles = [Role(), Role()]
    loaded: list[int] = []

    class Executor:
        def collective_rpc(self, method: Any, args: Any) -> list[Any]:
            return [method(None, *args)]  # one rank, in this process

    class Core:
        vllm_config = SimpleNamespace(
            lora_config=object(), kv_transfer_config=SimpleNamespace(engine_id="e")
        )
        model_executor = Executor()

        def add_lora(self, lora: Any) -> bool:
            if lora.lora_int_id == 13:
                raise ValueError("there is no such adapter")
            loaded.append(lora.lora_int_id)
            return True

        def remove_lora(self, lora: int) -> bool:
            loaded.remove(lora)
            return True

        def add_request(self, request: Any, wave: int = 0) -> tuple[Any, int]:
            return request, wave

    def request(number: int) -> Any:
        return SimpleNamespace(lora_request=SimpleNamespace(lora_int_id=number, lora_name="a"))

    def told() -> bytes | None:
        return b"adapter %d" % loaded[-1] if loaded else None

    adapters.offer_reports("e", roles[0], told)
    adapters.offer_reports("e", roles[1], lambda: None)
    adapters.offer_reports("another", roles[1], told)
    adapters.observe(Core, lambda core: roles)
    core = Core()
    plain = SimpleNamespace(lora_request=None)
    assert core.add_request(plain, 3) == (plain, 3)
    assert not loaded
    assert core.add_request(request(7))[1] == 0
    assert loaded == [7]
    assert [role.reports for role in roles] == [[b"adapter 7"], []]
    roles[1].reports = [b"adapter 7"]
    core.add_request(request(7))
    assert loaded == [7], "it is known"
    core.add_request(request(13))  # vLLM tells its user
    assert loaded == [7]
    core.add_lora(SimpleNamespace(lora_int_id=8))
    assert roles[0].has_adapter(8)
    adapters.forget_rank("e", roles[0])
    core.remove_lora(8)
    assert roles[0].reports[-1] == b"adapter 8"


def test_a_request_through_both_roles(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    socket = str(tmp_path / "pool.sock")
    owner = _native.open_owner(master="", memory=64 << 20, listen="", socket_path=socket)
    pool = kvcove.open(f"unix:{socket}")
    scheduler = _native.SchedulerRole(
        shape(),
        pool,
        engine="e",
        pool_address=f"unix:{socket}",
        versions="fingerprint",
        lookup_budget=0.005,
        lookup_timeout=1.0,
        hold=60.0,
        reset_timeout=2.5,
        load_async=True,
        lookup=True,
        save=True,
        save_decoded=False,
        events=True,
        closed_on_reset_failure=False,
        assume_weights=False,
        blocks=16,
    )
    worker = _native.WorkerRole(
        shape(),
        **{"tp": 0, "pp": 0, "pcp": 0},
        engine="e",
        threads=1,
        timeout=1.0,
        fingerprints=True,
        tier_log=False,
        preferred_segment="",
    )
    memory = ctypes.create_string_buffer(16 * 64)
    worker.register([("kv", 0, ctypes.addressof(memory), 64, [("block", 16, 64)])])
    hashes = [bytes([i]) * 32 for i in range(3)]

    def step() -> tuple[list[str], list[int], list[str]]:
        plan, _ = scheduler.build_plan()
        if worker.begin(plan):
            worker.set_fingerprint("w")
        worker.finish_step(None)
        ended = worker.take_ended()
        report = worker.take_report()
        if report is not None:
            scheduler.on_report(report)
        return ended or ([], [], [])

    def matched(request: str) -> tuple[int | None, bool]:
        # An answer that takes longer than a step's budget is asked for again, as vLLM does.
        while (answer := scheduler.matched(request, 13, 13, "", hashes, 0))[0] is None:
            step()
        return answer

    step()
    assert scheduler.version.startswith("w")
    memory[64:256] = b"a" * 64 + b"b" * 64 + b"c" * 64
    matched("r")
    scheduler.schedule("r", 13, 13, "", hashes, 0, 13, True, lambda: [[1, 2, 3, 4]])
    while scheduler.pending():
        step()
        scheduler.take_unpins()
    scheduler.finished("r")
    assert matched("s") == (12, True)
    assert sum(scheduler.tiers("s")) == 3
    scheduler.allocated("s", 12, lambda: [[5, 6, 7, 8]])
    loaded: list[str] = []
    while not loaded:
        loaded, failed, _ = step()
        assert not failed
    assert scheduler.load_ended("s")
    assert memory[320:512] == memory[64:256]
    told = scheduler.take_events()
    assert [(event[0], event[6]) for event in told] == [("stored", "memory")]
    assert scheduler.reset()
    assert matched("t") == (0, False)
    news = scheduler.take_stats()
    stats = scheduler.stats()
    assert news == {k: v for k, v in stats.items() if v or k in _native.SchedulerRole.gauges()}
    assert scheduler.take_stats() is None
    assert stats["loaded_bytes"] == stats["saved_bytes"] == 192
    worker.close()
    scheduler.close()
    pool.close()
    owner.close()


def test_the_file_of_a_mooncake_store_names_the_pool(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = module_of("_config").Config
    for name in ("KVCOVE_POOL", "MOONCAKE_MASTER"):
        monkeypatch.delenv(name, raising=False)
    file = tmp_path / "mooncake.json"
    monkeypatch.setenv("MOONCAKE_CONFIG_PATH", str(file))
    for master, pool in (
        ("head", "kvcove://head:50051"),
        ("head:7", "kvcove://head:7"),
        ("kvcove://head:7400", "kvcove://head:7400"),
        ("[::1]:7", "kvcove://[::1]:7"),
        ("etcd://a;b:7", "kvcove://etcd://a:2379,b:7/kvcove-mooncake/mooncake_cluster"),
    ):
        file.write_text(json.dumps({"master_server_address": master, "mode": "standalone-store"}))
        assert config.of({}).pool == config.of({"pool": "auto"}).pool == pool
        assert module_of("_config").named_pool()[1] == f"$MOONCAKE_CONFIG_PATH={file}"
    assert config.of({"pool": "embedded"}).pool == "embedded"
    monkeypatch.setenv("KVCOVE_POOL", "unix:/y")
    assert config.of({}).pool == "unix:/y"
    monkeypatch.delenv("KVCOVE_POOL")
    for content, told in (
        ("{", "mooncake.json:1: this is no JSON"),
        ("{}", "master_server_address is missing"),
        ('{"master_server_address": "redis://a:6379"}', "masters are found through etcd"),
        ('{"master_server_address": "embedded:"}', "would be a pool of each process"),
    ):
        file.write_text(content)
        with pytest.raises(ValueError, match=rf"^\$MOONCAKE_CONFIG_PATH=.*{told}"):
            config.of({})
    file.unlink()
    with pytest.raises(ValueError, match="cannot be read: No such file"):
        config.of({})
    config.of({"pool": "embedded"})
    monkeypatch.delenv("MOONCAKE_CONFIG_PATH")
    monkeypatch.setenv("MOONCAKE_MASTER", "head:50052")
    assert config.of({}).pool == "kvcove://head:50052"
    monkeypatch.setenv("MOONCAKE_MASTER", "head:x")
    with pytest.raises(ValueError, match=r"\$MOONCAKE_MASTER=head:x: .* is no port"):
        config.of({})


def test_sockets_of_killed_engines_are_removed() -> None:
    remove_dead = engines.remove_dead
    with tempfile.TemporaryDirectory() as made, socket.socket(socket.AF_UNIX) as listener:
        directory = Path(made)

        def bound(name: str, age_s: float) -> Path:
            path = directory / name
            with socket.socket(socket.AF_UNIX) as left:
                left.bind(str(path))
            os.utime(path, (path.stat().st_atime, path.stat().st_mtime - age_s))
            return path

        dead = [bound("engine-a-1.sock", 60), bound("pool-a-1.sock", 60)]
        bound("engine-b-2.sock", 0)  # perhaps between bind and listen
        bound("kvcove.sock", 60)  # no engine's
        (directory / "engine-c-3.sock").touch()  # no socket
        os.utime(directory / "engine-c-3.sock", (0, 0))
        listener.bind(str(directory / "engine-d-4.sock"))
        listener.listen(1)
        os.utime(directory / "engine-d-4.sock", (0, 0))

        assert sorted(remove_dead(directory)) == sorted(dead)
        assert {path.name for path in directory.iterdir()} == {
            "engine-b-2.sock",
            "kvcove.sock",
            "engine-c-3.sock",
            "engine-d-4.sock",
        }
