# SPDX-License-Identifier: Apache-2.0
"""``on_unreachable: fallback``: whether a pool is there is decided in the engine's process."""

from __future__ import annotations

import json
import logging
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kvcove.vllm import _fallback
from kvcove.vllm._plugin import check_early

import kvcove
from kvcove import engines


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_fallback, "_WAIT_S", 0.0)
    for name in ("MOONCAKE_CONFIG_PATH", "MOONCAKE_MASTER"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def nobody() -> int:
    """A port at which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@pytest.fixture(params=[b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\xff" * 64, b""])
def another(request: pytest.FixtureRequest) -> Iterator[int]:
    """The port of a server that is no master: it answers something, or ends the connection."""

    def answer() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            with connection:
                if request.param:
                    connection.recv(64)
                    connection.sendall(request.param)

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=answer, daemon=True).start()
        yield int(server.getsockname()[1])
        server.shutdown(socket.SHUT_RDWR)


class Configuration:
    """A VllmConfig, as far as the plugin looks at it."""

    def __init__(self, connector: str, nnodes: int = 1, **extra: Any) -> None:
        self.kv_transfer_config: Any = SimpleNamespace(
            kv_connector=connector, kv_connector_extra_config=extra
        )
        self.parallel_config = SimpleNamespace(nnodes=nnodes)
        self.__post_init__()

    def __post_init__(self) -> None:
        self.seen = self.kv_transfer_config


check_early(Configuration)


def mooncake(directory: Path, address: str, nnodes: int = 1, **extra: Any) -> Configuration:
    file = directory / "mooncake.json"
    file.write_text(json.dumps({"master_server_address": address}))
    extra = {"mooncake_config_path": str(file), "on_unreachable": "fallback", **extra}
    return Configuration("MooncakeStoreConnector", nnodes, **extra)


def test_a_server_that_is_no_pool(another: int) -> None:
    with pytest.raises(kvcove.Error) as caught:
        kvcove.open(f"kvcove://127.0.0.1:{another}", timeout=2)
    assert engines.no_pool(caught.value)
    assert not engines.no_pool(kvcove.DeniedError("is the token file right?"))


def test_without_a_master_vllm_sees_no_connector(
    nobody: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    falls_back(nobody, tmp_path, caplog)


def test_neither_where_another_server_answers(
    another: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("mooncake")
    falls_back(another, tmp_path, caplog)


def falls_back(port: int, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        made = mooncake(tmp_path, f"127.0.0.1:{port}")
    assert made.kv_transfer_config is None and made.seen is None
    (record,) = caplog.records
    assert f"there is no master at 127.0.0.1:{port}" in record.getMessage()
    assert "runs without a connector" in record.getMessage()


def test_with_a_master_it_stays(cluster: Any, tmp_path: Path, monkeypatch: Any) -> None:
    made = mooncake(tmp_path, cluster.address, load_async=True)
    assert set(made.seen.kv_connector_extra_config) == {"mooncake_config_path", "load_async"}
    # vLLM 0.32 and older know the file by its variable alone.
    monkeypatch.setenv("MOONCAKE_CONFIG_PATH", str(tmp_path / "mooncake.json"))
    assert Configuration("MooncakeStoreConnector", on_unreachable="fallback").seen is not None


def test_a_master_that_is_about_to_start_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reasons = iter(["there is no master", "there is no master", None])
    monkeypatch.setattr(_fallback, "_WAIT_S", 60.0)
    monkeypatch.setattr(_fallback, "_ask_kvcove", lambda *_: next(reasons))
    monkeypatch.setattr(_fallback, "_is_kvcoves", lambda: True)
    began = time.monotonic()
    assert mooncake(tmp_path, "127.0.0.1:1").seen is not None
    assert time.monotonic() - began < 30


def test_the_master_of_the_original_is_only_connected_to(
    nobody: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_fallback, "_is_kvcoves", lambda: False)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert mooncake(tmp_path, f"127.0.0.1:{port}").seen is not None
        members = f"etcd://127.0.0.1:{nobody};127.0.0.1:{port}"
        assert mooncake(tmp_path, members).seen is not None
    assert mooncake(tmp_path, f"127.0.0.1:{nobody}").seen is None
    assert mooncake(tmp_path, f"etcd://127.0.0.1:{nobody}").seen is None


def test_an_engine_on_several_hosts_ends(nobody: int, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="an engine on several hosts cannot fall back"):
        mooncake(tmp_path, f"127.0.0.1:{nobody}", nnodes=2)


def test_what_did_not_ask_for_it_stays_as_it_is(nobody: int, tmp_path: Path) -> None:
    address = f"127.0.0.1:{nobody}"
    assert mooncake(tmp_path, address, on_unreachable="crash").seen is not None
    other = Configuration("NixlConnector", on_unreachable="fallback")
    assert other.seen.kv_connector_extra_config == {"on_unreachable": "fallback"}
    # Nothing says where the master is: the store says that better.
    assert Configuration("MooncakeStoreConnector", on_unreachable="fallback").seen is not None
    assert mooncake(tmp_path, "embedded:").seen is not None
