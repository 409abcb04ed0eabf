# SPDX-License-Identifier: Apache-2.0
"""The admin interface of embedded pools, which the extension brings."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from conftest import command_path

import kvcove
from kvcove import _native

MIB = 1 << 20


def endpoints(pid: int) -> list[str]:
    """Return the abstract names of a process's embedded pools."""
    wanted = f"@kvcove/{os.getuid()}/embedded-{pid}-"
    names = {line.split()[-1] for line in Path("/proc/net/unix").read_text().splitlines()}
    return sorted(name for name in names if name.startswith(wanted))


class _Connection(http.client.HTTPConnection):
    def __init__(self, name: str) -> None:
        super().__init__("localhost", timeout=60)
        self._name = name

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(60)
        self.sock.connect("\0" + self._name.removeprefix("@"))


def ask(name: str, path: str) -> Any:
    connection = _Connection(name)
    connection.request("GET", path)
    answer = connection.getresponse()
    assert answer.status == 200
    return json.loads(answer.read())


def run(*words: str, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [command_path(), *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env=os.environ | (environment or {}),
    )


def test_an_embedded_pool_is_in_view() -> None:
    before = endpoints(os.getpid())
    with kvcove.open("embedded:?memory=16MiB") as pool:
        (name,) = set(endpoints(os.getpid())) - set(before)
        session = pool.session("acme/llama")
        session.put(["k"], [b"value" * 100])
        status = ask(name, "/v1/status")
        assert (status["role"], status["pid"]) == ("embedded", os.getpid())
        assert ask(name, "/v1/namespaces")["namespaces"][0]["namespace"] == "acme/llama"
        admin = ["--admin", "unix:" + name]
        keys = json.loads(run("keys", *admin, "--json").stdout)["keys"]
        assert [(key["key"], key["bytes"], key["tier"]) for key in keys] == [("k", 500, "memory")]
        assert run("reset", "acme/llama", *admin).returncode == 0
        assert "no such keys" in run("keys", *admin).stdout
        assert "role" in run("status", *admin).stdout
    assert set(endpoints(os.getpid())) == set(before)


def test_a_pool_may_be_without() -> None:
    before = endpoints(os.getpid())
    with kvcove.open("embedded:?memory=16MiB&admin=0"):
        assert endpoints(os.getpid()) == before


def test_a_killed_process_leaves_nothing(tmp_path: Path) -> None:
    code = (
        "import kvcove, sys, time\n"
        "pool = kvcove.open('embedded:?memory=16MiB')\n"
        "print('open', flush=True)\n"
        "time.sleep(600)\n"
    )
    environment = os.environ | {"XDG_RUNTIME_DIR": str(tmp_path)}
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        (name,) = endpoints(process.pid)
        assert ask(name, "/v1/status")["pid"] == process.pid
        process.send_signal(signal.SIGKILL)
        process.wait(60)
    assert endpoints(process.pid) == []
    assert list(tmp_path.iterdir()) == []


def test_the_owner_of_an_engine_is_in_view(tmp_path: Path) -> None:
    before = endpoints(os.getpid())
    socket_path = tmp_path / "own" / "pool.sock"
    owner = _native.open_owner(
        master="", memory=16 * MIB, listen="127.0.0.1:0", socket_path=str(socket_path)
    )
    (name,) = set(endpoints(os.getpid())) - set(before)
    (segment,) = ask(name, "/v1/segments")["segments"]
    assert segment["address"] == str(socket_path)
    assert [entry.name for entry in socket_path.parent.iterdir()] == ["pool.sock"]
    owner.close()
    assert set(endpoints(os.getpid())) == set(before)


def test_several_pools_are_listed_and_none_is_taken(tmp_path: Path) -> None:
    alone = {"XDG_RUNTIME_DIR": str(tmp_path), "KVCOVE_POOL": ""}
    with kvcove.open("embedded:?memory=16MiB"), kvcove.open("embedded:?memory=16MiB"):
        ended = run("keys", environment=alone)
        assert ended.returncode == 2
        for name in endpoints(os.getpid()):
            assert f"--admin unix:{name}" in ended.stderr
