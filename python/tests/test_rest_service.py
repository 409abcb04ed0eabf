# SPDX-License-Identifier: Apache-2.0
"""``MooncakeStoreService``: a store behind the handlers of its REST service."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import MIB, Program, free_port, http, wait_until
from kvcove.mooncake import rest
from mooncake import mooncake_store_service
from mooncake.mooncake_store_service import MooncakeStoreService

FIELDS = {
    "local_hostname": "localhost",
    "metadata_server": "P2PHANDSHAKE",
    "master_server_address": "embedded:",
    "global_segment_size": "64MB",
    "local_buffer_size": "16MB",
}


class Asked:
    """A request as aiohttp makes them."""

    def __init__(self, body: Any = None, key: str = "") -> None:
        self._body = body
        self.match_info = {"key": key}

    async def json(self) -> Any:
        return json.loads(self._body) if isinstance(self._body, str) else self._body


class Segments:
    """What the service calls of a store for segments; chosen calls fail."""

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.fail_mount = False
        self.stuck: set[str] = set()

    def mount_segment(self, *arguments: Any) -> dict[str, Any]:
        self.calls.append(arguments)
        if self.fail_mount:
            return {"ret": -1, "segment_ids": []}
        return {"ret": 0, "segment_ids": [f"s{len(self.calls)}"]}

    def unmount_segment(self, names: list[str], _grace: int) -> int:
        self.calls.append(names)
        return -1 if set(names) & self.stuck else 0

    def close(self) -> int:
        return 0


def ask(service: MooncakeStoreService, name: str, body: Any = None, key: str = "") -> Any:
    answer = asyncio.run(getattr(service, f"handle_{name}")(Asked(body, key)))
    if answer.content_type != "application/json":
        return answer.status, bytes(answer.body)
    return answer.status, json.loads(answer.text)


def test_a_store_is_set_up_and_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    setup = rest.MooncakeDistributedStore.setup
    monkeypatch.setattr(
        rest.MooncakeDistributedStore,
        "setup",
        lambda self, fields: asked.append(fields) or setup(self, fields),
    )
    service = MooncakeStoreService(None, {**FIELDS, "tenant_id": "blue"})
    assert asyncio.run(service.start_store_service(10))
    assert asked[0]["tenant_id"] == "blue"
    assert asked[0]["global_segment_size"] == 64 * MIB
    assert asked[0]["enable_ssd_offload"] is False
    assert ask(service, "put", {"key": "k", "value": "text"}) == (200, {"status": "success"})
    assert ask(service, "get", key="k") == (200, b"text")
    assert ask(service, "exist", key="k") == (200, {"exists": True})
    assert ask(service, "get", key="other") == (404, {"error": "Key not found"})
    assert ask(service, "remove", key="other")[0] == 500
    for wrong in ({"key": "k"}, {"key": "", "value": "v"}, {"key": 1, "value": "v"}, [], "no JSON"):
        assert ask(service, "put", wrong)[0] == 400, wrong
    status, said = ask(service, "put", {"key": "k", "value": "v", "vlaue": "w"})
    assert (status, "did you mean 'value'?" in said["error"]) == (400, True)
    assert ask(service, "put", {"key": "\ud800", "value": "v"})[0] == 400
    assert ask(service, "put", {"key": "k" * 2000, "value": "long"})[0] == 200
    assert ask(service, "get", key="k" * 2000) == (200, b"long")
    for name in ("get", "exist", "remove"):
        assert ask(service, name, key="")[0] == 400
    for wrong in (True, "30", 1.5, -1, 3601):
        assert ask(service, "unmount_local_disk", {"grace_period_seconds": wrong})[0] == 400, wrong
    for wrong in (0, -1, 1.5, "1024", None):
        assert ask(service, "mount", {"size": wrong})[0] == 400, wrong
    for wrong in ("", ".", "..", "/", "/..", "../passwd", "a/b", None, 1):
        assert ask(service, "mount_shm", {"name": wrong, "size": MIB})[0] == 400, wrong
    asyncio.run(service.stop())
    asyncio.run(service.stop())
    assert ask(service, "get", key="k")[0] == 500


def test_an_empty_answer_is_no_value() -> None:
    class Changing:
        def __init__(self, values: list[Any], found: list[int]) -> None:
            self.values, self.found = values, found

        def get(self, _key: str) -> Any:
            return self.values.pop(0)

        def is_exist(self, _key: str) -> int:
            return self.found.pop(0)

    service = MooncakeStoreService(None, dict(FIELDS))
    for values, found, status in (
        ([b"", b"new"], [1], 200),  # put in between
        ([b"", b""], [1, 0], 404),  # put and removed
        ([b""], [-1], 500),
        ([None], [], 500),
        ([b"", b"", b""], [1, 1, 1], 500),
    ):
        service.store = Changing(values, found)
        assert ask(service, "get", key="k")[0] == status


def test_segments_stay_until_others_are_there() -> None:
    service = MooncakeStoreService(None, dict(FIELDS))
    service.store = store = Segments()
    decode = {"mode": "decode", "path": "/dev/shm/a", "size": 4096}
    store.fail_mount = True
    status, said = ask(service, "reconfigure", decode)
    assert (status, said["mode"]) == (500, "prefill")
    assert "rolled back to prefill" in said["error"]
    store.fail_mount = False
    assert ask(service, "reconfigure", decode)[1]["segment_ids"] == ["s2"]
    store.fail_mount = True
    status, said = ask(service, "reconfigure", {**decode, "path": "/dev/shm/b"})
    assert (status, said["mode"], service.mounted_segment_ids) == (500, "decode", ["s2"])
    assert "keeping previous decode segments" in said["error"]
    assert service.last_mount_info["path"] == "/dev/shm/a"
    store.fail_mount = False
    store.stuck = {"s2"}
    assert ask(service, "reconfigure", decode)[0] == 200
    assert store.calls[-2:] == [("/dev/shm/a", 4096, 0, "tcp", ""), ["s2"]]
    assert service.mounted_segment_ids == ["s4", "s2"]
    status, said = ask(service, "reconfigure", {"mode": "prefill"})
    assert (status, said["failed_segment_ids"]) == (500, ["s2"])
    assert (service.mounted_segment_ids, service.current_mode) == (["s2"], "decode")
    store.stuck = set()
    assert ask(service, "unmount_shm", {"segment_ids": "s2"})[0] == 200
    assert (service.mounted_segment_ids, service.current_mode) == ([], "prefill")
    for wrong in ({}, {"segment_ids": []}, {"segment_ids": [1]}):
        assert ask(service, "unmount_shm", wrong)[0] == 400
    for wrong in ({}, {"mode": 1}, {"mode": "decode", "size": 1}, {**decode, "offset": -1}):
        assert ask(service, "reconfigure", wrong)[0] == 400


def test_a_name_that_is_replaced_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing:
        def setup(self, *_: Any) -> int:
            raise RuntimeError("not today")

    monkeypatch.setattr("mooncake.mooncake_store_service.MooncakeDistributedStore", Failing)
    assert mooncake_store_service is rest
    service = MooncakeStoreService(None, dict(FIELDS))
    stopped = asyncio.Event()

    async def start() -> bool:
        asyncio.get_running_loop().call_later(0.05, stopped.set)
        return await service.start_store_service(3600, stopped)

    assert not asyncio.run(asyncio.wait_for(start(), 60))
    assert service.store is None


def test_a_configuration_says_what_is_wrong_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("MOONCAKE_CONFIG_PATH", "MOONCAKE_MASTER"):
        monkeypatch.delenv(name, raising=False)
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**FIELDS, "tenant_id": "file"}))
    assert MooncakeStoreService(str(file), {"tenant_id": "over"}).config.tenant_id == "over"
    for text, over, says in (
        ("{}", {}, "Missing required config field: local_hostname"),
        ("[]", {}, "no JSON object"),
        ("{", {}, "is no JSON"),
        (json.dumps(FIELDS), {"tenant": "x"}, "tenant is no field.*tenant_id"),
    ):
        file.write_text(text)
        with pytest.raises(ValueError, match=says):
            MooncakeStoreService(str(file), over)
    with pytest.raises(ValueError, match="MOONCAKE_MASTER"):
        MooncakeStoreService()


def serve(tmp_path: Path, *arguments: str) -> Program:
    fields = [f"-D{name}={value}" for name, value in FIELDS.items()]
    command = [sys.executable, "-m", "mooncake.mooncake_store_service", *fields, *arguments]
    return Program(command, tmp_path / "service.log")


def test_the_service_is_served_and_ends_with_a_signal(tmp_path: Path) -> None:
    port = free_port()
    program = serve(tmp_path, f"--port={port}")
    program.wait_for("serving at")
    url = f"http://127.0.0.1:{port}"
    assert http(f"{url}/health") == (200, {"status": 0})
    assert http(f"{url}/api/put", {"key": "k", "value": "v" * MIB}, "PUT")[0] == 200
    assert http(f"{url}/api/get/k") == (200, b"v" * MIB)
    assert program.stop() == 0


def test_a_service_without_a_master_ends_with_a_signal_or_its_time(tmp_path: Path) -> None:
    nobody = f"-Dmaster_server_address=127.0.0.1:{free_port()}"
    program = serve(tmp_path, nobody, "--max-wait-time=3600")
    program.wait_for("trying again")
    program.process.send_signal(signal.SIGTERM)
    assert wait_until(lambda: program.process.poll() is not None)
    assert program.process.returncode == 0
    program = serve(tmp_path, nobody, "--max-wait-time=0")
    try:
        assert program.process.wait(60) == 1
    except subprocess.TimeoutExpired:
        program.kill()
        raise
    assert "mc_store_rest_server: no store at 127.0.0.1:" in program.log.read_text()


class AskedOfMetadata:
    """A request of aiohttp for ``/metadata``."""

    def __init__(self, method: str, key: str | None, body: bytes = b"", shown: str = "") -> None:
        self.method, self._body = method, body
        self.query = {} if key is None else {"key": key}
        self.headers = {"Authorization": shown}

    async def read(self) -> bytes:
        return self._body


def test_metadata_answers_requests_of_aiohttp_before_it_listens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from mooncake.http_metadata_server import KVBootstrapServer

    def said(server: Any, *request: Any) -> tuple[int, bytes]:
        answer = asyncio.run(server._handle_metadata(AskedOfMetadata(*request)))
        return answer.status, answer.body

    server = KVBootstrapServer(port=0)
    for method in ("GET", "PUT", "DELETE"):
        for key in (None, "", "   "):
            assert said(server, method, key, b"v")[0] == 400
    assert said(server, "PUT", "  a/&=b ", b"v")[0] == 200
    assert server.store == {"a/&=b": b"v"}
    assert said(server, "GET", "a/&=b") == (200, b"v")
    monkeypatch.setenv("MC_METADATA_HTTP_TOKEN", "x")
    closed = KVBootstrapServer(port=0)
    assert said(closed, "GET", "a")[0] == 401
    assert said(closed, "GET", "a", b"", "Bearer x")[0] == 404
    server.run()
    assert http(f"http://127.0.0.1:{server.port}/metadata?key=a/%26%3Db") == (200, b"v")
    server.close()
