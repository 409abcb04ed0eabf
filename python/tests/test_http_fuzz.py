# SPDX-License-Identifier: Apache-2.0
"""The HTTP interfaces of master, owner, `serve`, `run` and the drop-in's REST service, attacked.

``KVCOVE_FUZZ_SECONDS=600 KVCOVE_FUZZ_SEED=7 scripts/python.sh test -k http_fuzz`` searches longer. A failure prints its seed and request.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from conftest import Program, command_path, free_port, guarded_cluster, wait_until
from http_attacks import Answer, Attack, Attacks, Case, answers_of, exchange
from kvcove.mooncake import rest

import kvcove

#: Of all interfaces together.
SECONDS = float(os.environ.get("KVCOVE_FUZZ_SECONDS", "10"))
SEED = int(os.environ.get("KVCOVE_FUZZ_SEED", "0")) or random.SystemRandom().randrange(1, 2**32)
SPACE = "fuzz/kept@1"  # whose values nothing may touch
VALUES = {f"key-{i}".encode(): bytes([i]) * (1000 + i) for i in range(16)}
STALLS = 8

_WHERE: dict[str, Any] = {"namespace": "fuzz/prey@1", "version": "v1"}
_PAGE = ("points_from", "points_of", "owners_from", "owners_find", "namespaces_from",
         "namespaces_find", "engines_from", "engines_find")  # fmt: skip
_COPY = {**_WHERE, "from": "127.0.0.1:1", "to": "127.0.0.1:2", "prefix": "p"}
#: What each route takes. A route that is not here, and one that is nowhere, fails the test.
CASES: dict[tuple[str, str], Case] = {
    **{
        ("GET", path): Case()
        for path in (
            *("/", "/page.css", "/page.js", "/page.svg", "/healthz", "/readyz", "/metrics"),
            *("/v1/status", "/v1/segments", "/v1/namespaces", "/v1/tasks", "/v1/members"),
            *("/v1/masters", "/v1/stat", "/v1/login"),
        )
    },
    ("GET", "/v1/versions"): Case(_WHERE),
    ("GET", "/v1/engines"): Case({"limit": "10"}),
    ("GET", "/v1/keys"): Case({**_WHERE, "prefix": "p", "limit": "10", "after": "0.0.0.0.0"}),
    ("GET", "/v1/key"): Case({**_WHERE, "key": "k"}),
    ("GET", "/v1/page"): Case(dict.fromkeys(_PAGE, "1")),
    ("POST", "/v1/prefix"): Case(
        {"namespace": "fuzz/prey@1", "version": "v1", "block_hashes": ["00", "01"], "tags": ["g0"],
         "adapter": "a", "hashes_per_chunk": 1},
        own_body=True,
    ),
    ("POST", "/v1/reset"): Case({**_WHERE, "timeout_ms": "500"}),
    ("POST", "/v1/prune"): Case({"namespace": "fuzz/prey@1", "before": "v1", "timeout_ms": "500"}),
    ("POST", "/v1/remove"): Case({**_WHERE, "prefix": "p"}),
    ("POST", "/v1/pin"): Case({**_WHERE, "prefix": "p", "seconds": "1"}),
    ("POST", "/v1/unpin"): Case({**_WHERE, "key": "k"}),
    ("POST", "/v1/forget"): Case({"owner": "nobody"}),
    ("POST", "/v1/drain-master"): Case({"master": "nobody:1", "undo": "true"}),
    ("POST", "/v1/drain"): Case({"owner": "127.0.0.1:1"}),
    ("POST", "/v1/copy"): Case(_COPY),
    ("POST", "/v1/move"): Case(_COPY),
    ("POST", "/v1/repair"): Case(),
    ("POST", "/v1/cancel"): Case({"id": "1000000"}),
    ("POST", "/v1/login"): Case({"bearer": "kvcove1.none"}),
    ("POST", "/v1/logout"): Case(),
}  # fmt: skip
_PART = {"size": 0, "offset": 0, "protocol": "tcp", "location": "cpu:0"}
_SEGMENTS = {"segment_ids": ["none"], "grace_period_seconds": 0}
REST_CASES: dict[tuple[str, str], Case] = {
    ("POST", "/api/reconfigure"): Case({"mode": "decode", "path": "/dev/shm/no-such", **_PART}),
    ("POST", "/api/mount_shm"): Case({"name": "no-such", **_PART}),
    ("POST", "/api/unmount_shm"): Case(_SEGMENTS),
    ("POST", "/api/mount"): Case({"size": 0, "protocol": "tcp", "location": "cpu:0"}),
    ("POST", "/api/unmount"): Case(_SEGMENTS),
    ("POST", "/api/unmount_local_disk"): Case({"grace_period_seconds": 0}),
    ("PUT", "/api/put"): Case({"key": "k", "value": "v"}),
    ("GET", "/api/get/*"): Case(),
    ("GET", "/api/exist/*"): Case(),
    ("DELETE", "/api/remove/*"): Case(),
    ("DELETE", "/api/remove_all"): Case(harmful=True),
    ("GET", "/health"): Case(),
}


@dataclass
class Target:
    """A server that is attacked."""

    name: str
    pid: int
    where: tuple[str, int] | str  # TCP, or the path of a Unix socket
    cases: dict[tuple[str, str], Case]
    header: str = ""
    rest: bool = False

    def connect(self) -> socket.socket:
        if isinstance(self.where, str):
            connection = socket.socket(socket.AF_UNIX)
            connection.connect(self.where)
            return connection
        return socket.create_connection(self.where)

    @property
    def host(self) -> str:
        return "localhost" if isinstance(self.where, str) else f"127.0.0.1:{self.where[1]}"

    def ask(self, method: str, path: str) -> Answer:
        raw = f"{method} {path} HTTP/1.1\r\nHost: {self.host}\r\n{self.header}\r\n"
        (answer,) = answers_of(exchange(self.connect, raw.encode()))
        return answer

    def used(self) -> tuple[int, int]:
        """Return how many descriptors and threads its process has."""
        process = Path(f"/proc/{self.pid}")
        return len(list((process / "fd").iterdir())), len(list((process / "task").iterdir()))


def routes_of(target: Target) -> set[tuple[str, str]]:
    """Return the routes of a kvcove process: it names them where a path is not there."""
    answer = target.ask("GET", "/v1/no-such-path")
    assert answer.status == 404
    method_and_path = [tuple(route.split(" ", 1)) for route in json.loads(answer.body)["paths"]]
    return {(method, path) for method, path in method_and_path}


def of_kvcove(name: str, pid: int, where: tuple[str, int] | str, header: str = "") -> Target:
    target = Target(name, pid, where, {}, header)
    routes = routes_of(target)
    unknown = routes - set(CASES)
    assert not unknown, f"{name} has routes without a case in CASES: {sorted(unknown)}"
    target.cases = {route: CASES[route] for route in routes}
    return target


# ---- what must hold


def is_documented(target: Target, attack: Attack, answer: Answer) -> bool:
    """Whether an answer that says that a server failed is one of those that the documents name."""
    text = answer.body.decode(errors="replace")
    if target.rest:  # docs/mooncake.md: as that program, whose 500 is a code of the store
        chunked = answer.status == 501 and b"transfer-encoding" in attack.raw.lower()
        return chunked or (answer.status == 500 and "failed" in text)
    # docs/operating.md, reset: a time that is too short for the proof.
    return answer.status == 504 and ("not proven" in text or '"timeout"' in text)


def wrong_with(target: Target, attack: Attack, raw: bytes) -> str | None:
    """Return what an attack's answer should not be, or None."""
    try:
        answers = answers_of(raw)
    except ValueError as error:
        return str(error)
    if not answers:
        return None if attack.silent else "no answer"
    for i, answer in enumerate(answers):
        if i < attack.before:
            if answer.status != 200:
                return f"the request before it is answered {answer.status}"
            continue
        if answer.status >= 500:
            if is_documented(target, attack, answer):
                continue
            return f"{answer.status}: {answer.body[:300]!r}"
        if answer.status < 400:
            if attack.refused:
                return f"{answer.status}, not refused: {answer.body[:300]!r}"
            continue
        try:
            body = json.loads(answer.body)
        except ValueError:
            return f"{answer.status} without JSON: {answer.body[:300]!r}"
        said = body.get("error" if target.rest else "detail") if isinstance(body, dict) else None
        if not said or not isinstance(said, str):
            return f"{answer.status} without a reason: {body!r}"
        if attack.names not in said and answer.status == 400:
            return f"{answer.status} does not name {attack.names!r}: {said!r}"
        if len(answer.body) > 64 << 10:
            return f"an error of {len(answer.body)} bytes"
    if len(answers) <= attack.before:
        return f"{len(answers)} answers"
    return None


def stalled(target: Target) -> list[socket.socket]:
    """Begin requests that never end."""
    begun = (b"", b"G", b"GET /", b"GET / HTTP/1.1\r\nHost: ", b"POST /x HTTP/1.1\r\n\r",
             b"POST /v1/reset HTTP/1.1\r\nHost: %b\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{"
             % target.host.encode())  # fmt: skip
    connections = []
    for i in range(STALLS):
        connection = target.connect()
        connection.settimeout(60)
        connection.sendall(begun[i % len(begun)])
        connections.append(connection)
    return connections


def attack(target: Target, seconds: float) -> int:
    attacks = Attacks(target.cases, SEED, target.host, target.header)
    until = time.monotonic() + seconds
    count = 0
    # Each route is attacked some times, however slow the machine is.
    while time.monotonic() < until or count < 4 * len(target.cases):
        made = attacks.next()
        count += 1
        try:
            wrong = wrong_with(target, made, exchange(target.connect, made.raw))
        except OSError as error:
            wrong = f"{type(error).__name__}: {error}"
        assert wrong is None, (
            f"{target.name}, KVCOVE_FUZZ_SEED={SEED}, attack {count} ({made.why}): {wrong}\n"
            f"{made.raw[:1000]!r}"
        )
    return count


def check_whole(target: Target, seconds: float, *, stalls: bool = False) -> None:
    """Attack a server, which must then be as before; beside requests that stall, for 5 s and more."""
    health = "/health" if target.rest else "/healthz"
    assert target.ask("GET", health).status == 200
    waiting = stalled(target) if stalls else []
    count = attack(target, seconds)
    began = time.monotonic()
    for connection in waiting:
        try:
            while connection.recv(1 << 16):
                pass
        except ConnectionResetError:
            pass
        connection.close()
    assert time.monotonic() - began < 30, "a stalled request keeps its connection"
    assert target.ask("GET", health).status == 200
    assert os.path.exists(f"/proc/{target.pid}"), "it has ended"
    # From here on nothing may grow.
    assert wait_until(lambda: settled(target)), f"{target.name} keeps {target.used()}"
    before = target.used()
    attack(target, 0)
    assert wait_until(lambda: all(n <= b for n, b in zip(target.used(), before, strict=True))), (
        f"{target.name} had {before} descriptors and threads, and has {target.used()}"
    )
    print(f"{target.name}: {count} attacks")


def settled(target: Target) -> bool:
    """Whether its descriptors and threads have not changed for a while."""
    before = target.used()
    time.sleep(0.3)
    return target.used() == before


def put_values(address: str) -> kvcove.Pool:
    pool = kvcove.open(address)
    # The attacks may change what is in the second one.
    with pool.session(SPACE) as session, pool.session("fuzz/prey@1") as prey:
        prey.capture("v1", timeout=10.0)
        assert prey.put(["p1", "p2"], [b"1", b"2"], timeout=10.0).all_ok
        assert session.put(list(VALUES), list(VALUES.values()), timeout=10.0).all_ok
    return pool


def values_are_kept(pool: kvcove.Pool) -> bool:
    with pool.session(SPACE) as session:
        return bool(session.get(list(VALUES), timeout=5.0) == list(VALUES.values()))


# ---- the interfaces


def test_serve(tmp_path: Path) -> None:
    path = tmp_path / "s" / "kvcove.sock"
    path.parent.mkdir(mode=0o700)
    port = free_port()
    program = Program(
        [
            command_path(),
            "serve",
            "--socket",
            str(path),
            "--memory",
            "64MiB",
            "--admin",
            f"127.0.0.1:{port}",
        ],
        tmp_path / "serve.log",
    )
    program.wait_for("serving")
    with put_values(f"unix:{path}") as pool:
        pid = program.process.pid
        check_whole(of_kvcove("serve", pid, ("127.0.0.1", port)), SECONDS / 6, stalls=True)
        check_whole(of_kvcove("serve's socket", pid, str(path.parent / "admin-kvcove.sock")), 0)
        assert wait_until(lambda: values_are_kept(pool), 10)
    assert program.stop() == 0


def test_run(tmp_path: Path) -> None:
    path = tmp_path / "s" / "kvcove.sock"
    path.parent.mkdir(mode=0o700)
    port = free_port()
    program = Program(
        [
            command_path(),
            "run",
            "--socket",
            str(path),
            "--memory",
            "64MiB",
            "--admin",
            f"127.0.0.1:{port}",
            "--",
            "sh",
            "-c",
            "echo begun; exec sleep 600",
        ],
        tmp_path / "run.log",
    )
    program.wait_for("begun")
    target = Target("run", 0, ("127.0.0.1", port), {})
    pid = int(
        json.loads(target.ask("GET", "/v1/status").body)["pid"]
    )  # its owner is a process of its own
    with put_values(f"unix:{path}") as pool:
        check_whole(of_kvcove("run", pid, ("127.0.0.1", port)), SECONDS / 6)
        assert wait_until(lambda: values_are_kept(pool), 10)
    program.process.send_signal(signal.SIGTERM)
    program.process.wait(60)


@pytest.fixture
def cluster_owner(cluster: Any, tmp_path: Path) -> Iterator[tuple[Program, int]]:
    port = free_port()
    words = [command_path(), "owner", "--master", cluster.address, "--listen", "127.0.0.1:0"]
    words += [
        "--memory",
        "64MiB",
        "--admin",
        f"127.0.0.1:{port}",
        "--socket",
        str(tmp_path / "s" / "o"),
    ]
    program = Program(words, tmp_path / "owner.log")
    program.wait_for("knows this owner as number")
    yield program, port
    program.stop()


def test_master_and_owner(cluster: Any, cluster_owner: tuple[Program, int]) -> None:
    owner, port = cluster_owner
    with put_values(f"kvcove://{cluster.address}") as pool:
        master = cluster.program.process.pid
        check_whole(of_kvcove("master", master, ("127.0.0.1", cluster.admin_port)), SECONDS / 6)
        check_whole(of_kvcove("owner", owner.process.pid, ("127.0.0.1", port)), SECONDS / 6)
        assert wait_until(lambda: values_are_kept(pool), 10)


def bearer_of(file: Path) -> str:
    return subprocess.run(
        [command_path(), "token", "--bearer", str(file)],
        check=True, capture_output=True, text=True, timeout=20,
    ).stdout.strip()  # fmt: skip


def test_a_master_with_credentials(tmp_path: Path) -> None:
    master = guarded_cluster(
        tmp_path, cluster="owner", boss="admin", watch="metrics", engine="read,write,reset"
    )
    try:
        where = ("127.0.0.1", master.admin_port)
        pid = master.program.process.pid
        header = f"Authorization: Bearer {bearer_of(tmp_path / 'boss.toml')}\r\n"
        boss = of_kvcove("a guarded master", pid, where, header)
        check_whole(boss, SECONDS / 6)
        # Of the others nobody gets in, whatever the request is like. Wrong bearers are answered late,
        # so they ask together.
        open_paths = ("/", "/healthz", "/readyz", "/page.css", "/page.js", "/page.svg",
                      "/v1/login", "/v1/logout")  # fmt: skip
        for who in ("nobody", "watch", "engine", "guess"):
            line = ""
            if who == "guess":
                line = "Authorization: Bearer " + "x" * 40 + "\r\n"
            elif who != "nobody":
                line = f"Authorization: Bearer {bearer_of(tmp_path / f'{who}.toml')}\r\n"
            stranger = Target(who, pid, where, boss.cases, line)

            def refused(
                route: tuple[str, str], stranger: Target = stranger, line: str = line
            ) -> Answer:
                method, path = route
                raw = f"{method} {path}?a=%zz HTTP/1.1\r\nHost: {stranger.host}\r\n{line}"
                raw += "Content-Type: application/json\r\nContent-Length: 60002\r\n\r\n"
                deep = b"[" * 30_001 + b"]" * 30_001
                return answers_of(exchange(stranger.connect, raw.encode() + deep))[0]

            routes = [route for route in sorted(boss.cases) if route[1] not in open_paths]
            with ThreadPoolExecutor(16) as several:
                for route, answer in zip(routes, several.map(refused, routes), strict=True):
                    may = who == "watch" and route[1] == "/metrics"
                    assert answer.status == (400 if may else 401), (who, route, answer)
                    assert "detail" in json.loads(answer.body)
        assert boss.ask("GET", "/v1/status").status == 200
    finally:
        assert master.program.stop() == 0


def test_the_rest_service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fields = {"local_hostname": "localhost", "metadata_server": "P2PHANDSHAKE",
              "master_server_address": "embedded:", "global_segment_size": "64MB", "local_buffer_size": "16MB"}  # fmt: skip
    seen: list[Any] = []

    class Routes:
        port = 0

        def __init__(self, _host: str, _port: int, routes: Any) -> None:
            seen.append(set(routes))

    monkeypatch.setattr(rest, "HttpServer", Routes)
    assert asyncio.run(rest.MooncakeStoreService(None, dict(fields)).start_http_service())
    assert seen == [set(REST_CASES)], "REST_CASES has other routes than the service"
    port = free_port()
    words = [sys.executable, "-m", "mooncake.mooncake_store_service", f"--port={port}"]
    words += [f"-D{name}={value}" for name, value in fields.items()]
    program = Program(words, tmp_path / "rest.log")
    program.wait_for("serving at")
    url = f"http://127.0.0.1:{port}/api"
    for key, value in VALUES.items():
        body = json.dumps(
            {"key": f"kept-{key.decode()}", "value": value.decode("latin-1")}
        ).encode()
        request = urllib.request.Request(f"{url}/put", body, method="PUT")
        assert urllib.request.urlopen(request, timeout=60).status == 200
    target = Target("rest", program.process.pid, ("127.0.0.1", port), REST_CASES, rest=True)
    check_whole(target, SECONDS / 6, stalls=True)
    for key, value in VALUES.items():
        with urllib.request.urlopen(f"{url}/get/kept-{key.decode()}", timeout=60) as answer:
            assert answer.read().decode() == value.decode("latin-1")
    assert program.stop() == 0


def test_all_cases_are_of_routes(cluster: Any, cluster_owner: tuple[Program, int]) -> None:
    """A case of a route that has gone would be attacked nowhere."""
    _, port = cluster_owner
    routes = routes_of(Target("master", 0, ("127.0.0.1", cluster.admin_port), {}))
    routes |= routes_of(Target("owner", 0, ("127.0.0.1", port), {}))
    assert routes == set(CASES)
