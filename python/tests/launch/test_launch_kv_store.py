# SPDX-License-Identifier: Apache-2.0
"""verl's kv_store block, and what it is to a trainer."""

from __future__ import annotations

import dataclasses
import json
import logging
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kvcove.launch import _shared, embed, verl
from kvcove.launch._document import parse
from pydantic import ValidationError

from kvcove import launch


def test_defaults() -> None:
    assert dataclasses.asdict(launch.KVStoreConfig()) == {
        "enable": False,
        "kv_connector": "auto",
        "kv_role": "kv_both",
        "config_path": None,
        "extra_config": {},
        "on_failure": "fallback",
    }


@pytest.mark.parametrize(
    ("block", "version", "connector"),
    [
        ({}, "0.24.0", "KvcoveConnector"),
        ({}, "v0.33.1", "KvcoveConnector"),
        ({}, "0.35.0", "KvcoveConnector"),  # it is tried, with a warning
        ({}, "0.1.dev7+gabcdef", "KvcoveConnector"),  # a checkout without tags
        ({}, "0.23.1", "MooncakeStoreConnector"),
        ({"config_path": "/m.json"}, "0.24.0", "MooncakeStoreConnector"),
        (
            {"extra_config": {"kv_connector_extra_config": {"mooncake_config_path": "/m.json"}}},
            "0.24.0",
            "MooncakeStoreConnector",
        ),
        ({"kv_connector": "KvcoveConnector"}, "0.23.1", "KvcoveConnector"),
        ({"kv_connector": "MooncakeStoreConnector"}, "0.33.0", "MooncakeStoreConnector"),
    ],
)
def test_the_connector_that_the_engines_version_has(
    block: dict[str, Any], version: str, connector: str
) -> None:
    config = launch.KVStoreConfig(enable=True, **block)
    assert config.connector(version) == connector
    made = launch.build_kv_transfer_config(config, vllm_version=version)
    assert made is not None and made["kv_connector"] == connector


def test_the_version_of_this_environment_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    for version, connector in (
        (None, "KvcoveConnector"),
        ("0.26.0", "KvcoveConnector"),
        ("0.20.0", "MooncakeStoreConnector"),
    ):
        monkeypatch.setattr(
            "kvcove.launch._vllm.installed_version", lambda version=version: version
        )
        assert launch.KVStoreConfig(enable=True).connector() == connector


def test_it_is_a_mapping_to_read_from() -> None:
    config = launch.KVStoreConfig(enable=True)
    assert config.get("enable", False) is True
    assert config.get("nothing", 7) == 7
    assert config.get("config_path") is None
    assert config["kv_role"] == "kv_both"
    assert "enable" in config and "nothing" not in config
    assert dict(config) == dict(config.items()) == {**config} == dataclasses.asdict(config)
    assert len(config) == 6
    with pytest.raises(KeyError):
        config["nothing"]


@pytest.mark.parametrize(
    ("block", "told"),
    [
        ("enabled: true", "v.yaml:3: kv_store.enabled: unknown key; did you mean 'enable'?"),
        (
            "enable: perhaps",
            "v.yaml:3: kv_store.enable: 'perhaps': input should be a valid boolean",
        ),
        (
            "kv_connector: KvCoveConnector",
            "v.yaml:3: kv_store.kv_connector: 'KvCoveConnector' is not known; did you mean "
            "'KvcoveConnector'?",
        ),
        (
            "kv_role: both",
            "v.yaml:3: kv_store.kv_role: 'both' is not known; did you mean 'kv_both'?",
        ),
        (
            "on_failure: ignore",
            "v.yaml:3: kv_store.on_failure: 'ignore' is not known; known: fallback, crash",
        ),
        (
            "extra_config: {load_async: true}",
            "v.yaml:3: kv_store.extra_config: 'load_async' is no field of --kv-transfer-config; a "
            "key of the connector's own goes into "
            "extra_config.kv_connector_extra_config.load_async",
        ),
        ("extra_config: 5", "v.yaml:3: kv_store.extra_config: 5 is no table of keys and values"),
        (
            "kv_connector: KvcoveConnector\n  config_path: /a.json",
            "v.yaml:4: kv_store.config_path: MooncakeStoreConnector takes it; for KvcoveConnector name "
            "the pool in extra_config.kv_connector_extra_config.pool, or set MOONCAKE_CONFIG_PATH "
            "where the engines run",
        ),
        (
            "kv_connector: KvcoveConnector\n"
            "  extra_config: {kv_connector_extra_config: {polo: auto}}",
            "v.yaml:4: kv_store.extra_config.kv_connector_extra_config: unknown key 'polo'; did you "
            "mean 'pool'?",
        ),
        (
            "kv_connector: KvcoveConnector\n  extra_config: {kv_load_failure_policy: fail}",
            "v.yaml:4: kv_store.extra_config.kv_load_failure_policy: 'fail': a block that is evicted "
            "between its look-up and its load would end a user's request; give 'recompute'",
        ),
    ],
)
def test_what_is_wrong_is_told_where_it_is(block: str, told: str) -> None:
    document = parse(f"\nkv_store:\n  {block}\n", "yaml", "v.yaml")
    with pytest.raises(launch.ConfigError) as caught:
        verl.load(document)
    assert str(caught.value).startswith(told)


def test_the_policy_fail_may_be_asked_for() -> None:
    launch.KVStoreConfig(
        kv_connector="KvcoveConnector",
        extra_config={
            "kv_load_failure_policy": "fail",
            "kv_connector_extra_config": {"allow_load_failure_policy_fail": True},
        },
    )


def test_as_a_field_of_a_trainers_own_dataclass() -> None:
    omegaconf = pytest.importorskip("omegaconf")

    @dataclasses.dataclass
    class Rollout:
        name: str = "vllm"
        kv_store: launch.KVStoreConfig = dataclasses.field(default_factory=launch.KVStoreConfig)

    Rollout.__annotations__ = {"name": str, "kv_store": launch.KVStoreConfig}
    made = omegaconf.OmegaConf.structured(Rollout)
    made.kv_store.enable = True
    assert made.kv_store.get("enable", False) is True
    rollout = omegaconf.OmegaConf.to_object(made)
    assert rollout.kv_store == launch.KVStoreConfig(enable=True)
    with pytest.raises(omegaconf.errors.OmegaConfBaseException):
        made.kv_store.enabled = True
    made.kv_store.on_failure = "ignore"
    with pytest.raises(ValidationError, match="on_failure"):
        omegaconf.OmegaConf.to_object(made)


def test_a_block_of_omegaconf_becomes_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    omegaconf = pytest.importorskip("omegaconf")
    monkeypatch.setenv("KVCOVE_TEST_RUN", "run-7")
    options = {"namespace": "${oc.env:KVCOVE_TEST_RUN}", "pool": "auto"}
    block = {
        "enable": True,
        "kv_connector": "KvcoveConnector",
        "extra_config": {"kv_connector_extra_config": options},
    }
    made = launch.for_verl(omegaconf.OmegaConf.create(block))
    assert made is not None
    assert json.loads(launch.to_json(made))["kv_connector_extra_config"] == {
        "on_unreachable": "fallback",
        "namespace": "run-7",
        "pool": "auto",
    }


# --- The pool is asked once.


@pytest.fixture
def master() -> Iterator[int]:
    """Something that takes connections, as Mooncake's master does."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.fixture
def nobody() -> int:
    """A port at which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def mooncake(path: Path, port: int) -> dict[str, Any]:
    file = path / "mooncake.json"
    file.write_text(json.dumps({"master_server_address": f"127.0.0.1:{port}"}))
    return {"enable": True, "config_path": str(file)}


def kvcove_pool(pool: str) -> dict[str, Any]:
    options = {"kv_connector_extra_config": {"pool": pool}}
    return {"enable": True, "kv_connector": "KvcoveConnector", "extra_config": options}


def test_a_master_that_answers(tmp_path: Path, master: int) -> None:
    made = launch.for_verl(mooncake(tmp_path, master))
    assert made is not None and made["kv_connector"] == "MooncakeStoreConnector"


def test_without_a_master_the_engines_decide(
    tmp_path: Path, nobody: int, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "kvcove.launch"):
        made = launch.for_verl(mooncake(tmp_path, nobody), tensor_parallel_size=1)
    assert made is not None
    assert made["kv_connector_extra_config"]["on_unreachable"] == "fallback"
    record = caplog.records[0]
    assert record.levelname == "WARNING"
    assert f"the master at 127.0.0.1:{nobody} does not answer: " in record.getMessage()
    assert "Each engine asks again where it runs" in record.getMessage()


def test_one_member_of_etcd_is_enough(
    tmp_path: Path, master: int, nobody: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MOONCAKE_MASTER", f"etcd://127.0.0.1:{nobody};127.0.0.1:{master}")
    monkeypatch.delenv("MOONCAKE_CONFIG_PATH", raising=False)
    config = launch.KVStoreConfig(enable=True, kv_connector="MooncakeStoreConnector")
    assert launch.probe(config) is None
    monkeypatch.setenv("MOONCAKE_MASTER", f"etcd://127.0.0.1:{nobody}")
    assert f"etcd at 127.0.0.1:{nobody} does not answer: " in str(launch.probe(config))


def test_without_a_master_a_run_ends_if_it_shall(tmp_path: Path, nobody: int) -> None:
    block = {**mooncake(tmp_path, nobody), "on_failure": "crash"}
    with pytest.raises(embed.PoolUnreachable, match=r"does not answer: .* on_failure=fallback"):
        launch.for_verl(block)


def test_pools_of_kvcoves_that_answer(serve: str, cluster: Any) -> None:
    for pool in (f"unix:{serve}", f"kvcove://{cluster.address}"):
        made = launch.for_verl({**kvcove_pool(pool), "on_failure": "crash"})
        assert made is not None and made["kv_connector_extra_config"] == {
            "on_unreachable": "crash",
            "pool": pool,
        }


@pytest.mark.parametrize("on_failure", ["fallback", "crash"])
def test_without_a_pool_of_kvcoves(nobody: int, on_failure: str) -> None:
    for pool in (f"kvcove://127.0.0.1:{nobody}", "unix:/nowhere/kvcove.sock"):
        block = {**kvcove_pool(pool), "on_failure": on_failure}
        if on_failure == "fallback":
            made = launch.for_verl(block)
            assert made is not None
            assert made["kv_connector_extra_config"]["on_unreachable"] == "fallback"
            continue
        with pytest.raises(embed.PoolUnreachable, match="unavailable"):
            launch.for_verl(block)


def test_a_master_that_is_silent_is_waited_for_once(master: int) -> None:
    # It takes the connection and says nothing: the deadline ends it.
    config = launch.KVStoreConfig(**kvcove_pool(f"kvcove://127.0.0.1:{master}"))
    assert launch.probe(config, timeout=0.2) is not None


def test_a_name_that_takes_its_time_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    end = threading.Event()

    def slow(*_: Any) -> None:
        end.wait(10)
        raise OSError("too late")

    monkeypatch.setattr(socket, "create_connection", slow)
    config = launch.KVStoreConfig(**mooncake(tmp_path, 50051))
    told = launch.probe(config, timeout=0.05)
    end.set()
    assert told == "127.0.0.1:50051 does not answer within 0.05 s"


def test_an_address_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(launch.LaunchError, match=r"master_server_address: .*'99999' is no port"):
        launch.for_verl(mooncake(tmp_path, 99999))


@pytest.mark.parametrize("pool", ["auto", "embedded"])
def test_a_pool_that_engines_open_themselves_is_not_asked(pool: str) -> None:
    assert launch.for_verl({**kvcove_pool(pool), "on_failure": "crash"}) is not None


def test_where_mooncakes_master_is(
    tmp_path: Path, master: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    block = {"enable": True, "kv_connector": "MooncakeStoreConnector"}
    for name in ("MOONCAKE_CONFIG_PATH", "MOONCAKE_MASTER"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(launch.LaunchError, match="set MOONCAKE_CONFIG_PATH"):
        launch.for_verl(block)
    monkeypatch.setenv("MOONCAKE_MASTER", f"127.0.0.1:{master}")
    assert launch.for_verl(block) is not None
    file = tmp_path / "mooncake.json"
    monkeypatch.setenv("MOONCAKE_CONFIG_PATH", str(file))
    for content, told in (
        (None, "cannot be read"),
        ("{", ":1: this is no JSON"),
        ("{}", "master_server_address is missing"),
    ):
        if content is not None:
            file.write_text(content)
        with pytest.raises(launch.LaunchError, match=told):
            launch.for_verl(block)


def test_nothing_is_asked_where_nothing_is_enabled() -> None:
    assert launch.for_verl(None) is None
    assert launch.for_verl({}) is None
    assert launch.for_verl(launch.KVStoreConfig(on_failure="crash")) is None


# --- Engines on several hosts.

CLUSTER = "kvcove://10.0.0.7:7400"


@pytest.mark.parametrize(
    ("pool", "hosts", "told"),
    [
        ("auto", 1, ""),
        (
            "auto",
            2,
            "2 hosts, and the pool 'auto' is of one host: engines of different hosts share",
        ),
        (
            "unix:/run/kvcove.sock",
            3,
            "3 hosts, and the pool 'unix:/run/kvcove.sock' is of one host",
        ),
        ("embedded", 2, "a pool 'embedded' is one engine's alone"),
        ("kvcove://127.0.0.1:7400", 2, "kvcove://127.0.0.1:7400, which is another place on each"),
        ("kvcove://localhost:7400,[::1]:7400", 2, "which is another place on each"),
        ("kvcove://127.0.0.1:7400", 1, ""),
        (CLUSTER, 2, ""),
        ("kvcove://head:7400,127.0.0.1:7400", 2, ""),
        ("kvcove://etcd://head:2379/pool", 2, ""),
    ],
)
def test_where_hosts_share_nothing(
    pool: str,
    hosts: int,
    told: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    for name in ("KVCOVE_POOL", "MOONCAKE_CONFIG_PATH", "MOONCAKE_MASTER"):
        monkeypatch.delenv(name, raising=False)
    _shared.tell(launch.KVStoreConfig(**kvcove_pool(pool)), hosts, source="v.yaml")
    if told:
        (record,) = caplog.records
        assert record.getMessage().startswith("v.yaml: ") and told in record.getMessage()
    else:
        assert not caplog.records


def test_a_master_of_mooncakes_on_loopback(
    tmp_path: Path, master: int, caplog: pytest.LogCaptureFixture
) -> None:
    assert launch.for_verl(mooncake(tmp_path, master), nnodes=2) is not None
    assert f"the pool is at 127.0.0.1:{master}, which is another place" in caplog.text
