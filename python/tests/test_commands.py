# SPDX-License-Identifier: Apache-2.0
"""The drop-in's commands, its HTTP paths, the overlay, and the distribution's own check."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from conftest import MIB, Program, free_port, http, new_store, python, setup, wait_until
from kvcove.mooncake import _address, _config, client
from kvcove.mooncake._http import HttpServer, json_answer
from kvcove.mooncake.master import AdminHttp

import kvcove

PYTHON = Path(__file__).resolve().parents[1]


def command(name: str) -> list[str]:
    module = {
        "mooncake_master": "master",
        "mooncake_client": "client",
        "mooncake_http_metadata_server": "metadata",
        "mc_store_rest_server": "rest",
    }[name]
    return [sys.executable, "-m", f"kvcove.mooncake.{module}"]


class Master:
    def __init__(self, directory: Path, *flags: str) -> None:
        self.port, self.admin, self.metadata = free_port(), free_port(), free_port()
        self.address = f"127.0.0.1:{self.port}"
        self.url = f"http://127.0.0.1:{self.admin}"
        self.program = Program(
            [
                *command("mooncake_master"),
                f"-rpc_port={self.port}",
                f"--metrics_port={self.admin}",
                "-enable_http_metadata_server",
                "-http_metadata_server_port",
                str(self.metadata),
                "-default_kv_lease_ttl=700ms",
                "-eviction_ratio=0.1",
                *flags,
            ],
            directory / "mooncake_master.log",
        )
        self.program.wait_for("serving at")


@pytest.fixture
def master(tmp_path: Path, run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Master]:
    made = Master(tmp_path)
    monkeypatch.setenv("KVCOVE_MASTER_ADMIN", made.url)
    yield made
    assert made.program.stop() == 0


def test_the_master_serves_that_programs_paths(master: Master) -> None:
    store = new_store()
    assert setup(store, master.address, local=16 * MIB) == 0
    segment = store.get_hostname()
    store.put_batch(["k", "a b"], [b"123", b"4567"])
    url = master.url
    assert http(f"{url}/health") == (
        200,
        {
            "status": "ok",
            "role": "leader",
            "ha_state": "serving",
            "service_ready": True,
            "leader_address": None,
            "view_version": None,
        },
    )
    assert http(f"{url}/role") == (200, b"leader")
    assert http(f"{url}/ha_status") == (200, b"serving")
    assert http(f"{url}/leader")[1]["present"] is False
    assert http(f"{url}/kv_events/status")[1]["enabled"] is False
    status, found = http(f"{url}/query_key?key=k")
    assert (status, found["success"]) == (200, True)
    assert found["data"][0]["size_"] == 3
    assert found["data"][0]["transport_endpoint_"] == segment
    status, missing = http(f"{url}/query_key?key=nothing")
    assert (status, missing["error_code"]) == (404, -704)
    batch = http(f"{url}/batch_query_keys?keys=k,nothing")[1]["data"]
    assert (batch["k"]["ok"], batch["nothing"]["error"]) == (True, "OBJECT_NOT_FOUND")
    assert http(f"{url}/batch_query_keys")[0] == 400
    assert sorted(http(f"{url}/get_all_keys")[1].decode().splitlines()) == ["a b", "k"]
    assert http(f"{url}/get_all_segments")[1].decode() == f"{segment}\n"
    text = http(f"{url}/query_segment?segment={segment}")[1].decode()
    assert f"Capacity(bytes) : {64 * MIB}" in text
    assert http(f"{url}/query_segment?segment=x")[0] == 500
    detail = http(f"{url}/get_segments_detail")[1]
    assert (detail["total_segments"], detail["segments"][0]["segment_name"]) == (1, segment)
    state = http(f"{url}/api/v1/segments/status?segment={segment}")[1]
    assert (state["status_name"], state["error_code"]) == ("OK", 0)
    assert http(f"{url}/api/v1/segments/status")[0] == 400
    assert http(f"{url}/api/v1/segments/status?segment=x")[0] == 404
    assert http(f"{url}/api/v1/tenant_quotas")[0] == 409
    metrics = http(f"{url}/metrics")[1].decode()
    assert f'segment_total_capacity_bytes{{segment="{segment}"}} {64 * MIB}' in metrics
    assert "# TYPE master_key_count gauge" in metrics
    # Owners tell their counts with their leases.
    put = re.compile(r"^master_put_end_requests_total [1-9]", re.MULTILINE)
    assert wait_until(lambda: put.search(http(f"{url}/metrics")[1].decode()) is not None)
    assert "kvcove_master_owner_live" in metrics
    assert "service_ready=true" in http(f"{url}/metrics/summary")[1].decode()
    assert http(f"{url}/nothing")[0] == 404
    long = "l" * 2000
    assert store.put(long, b"long") == 0
    batch = http(f"{url}/batch_query_keys?keys={long},{long}x,k")[1]["data"]
    assert [batch[key]["ok"] for key in (long, long + "x", "k")] == [True, False, True]
    # What would be ignored would remove the values of all tenants.
    status, said = http(f"{url}/api/v1/remove_all?tenant=blue", b"", "POST")
    assert (status, "did you mean 'tenant_id'?" in said["error"]) == (400, True)
    assert http(f"{url}/api/v1/remove_all?force=yes", b"", "POST")[0] == 400
    assert http(f"{url}/query_key?key=")[0] == 400
    assert store.is_exist("k") == 1
    removed = http(f"{url}/api/v1/remove_all?force=true", b"", "POST")
    assert (removed[0], removed[1]["success"]) == (200, True)
    assert removed[1]["removed_count"] >= 2
    assert store.batch_is_exist(["k", "a b"]) == [0, 0]
    store.close()


def test_leases_last_as_long_as_the_master_says(master: Master) -> None:
    store = new_store()
    assert setup(store, master.address) == 0
    taken = 0.0

    def refused() -> bool:
        # Where the machine stands still for longer than the lease, it is removed, and put again.
        nonlocal taken
        assert store.put("k", b"1") == 0
        taken = time.monotonic()
        store.get("k")
        return store.remove("k") == -706

    def lasts() -> float:
        assert wait_until(refused)
        assert wait_until(lambda: store.remove("k") == 0)
        return time.monotonic() - taken

    times = [lasts()]
    while min(times) >= 2.5 and len(times) < 8:  # half of what a lease is where nobody says it
        times.append(lasts())
    assert 0.4 < min(times) < 2.5
    store.close()


def test_a_drain_over_that_programs_paths(master: Master, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVCOVE_HOST_ID", "one")
    one, two = new_store(), new_store()
    assert setup(one, master.address) == 0
    monkeypatch.setenv("KVCOVE_HOST_ID", "two")
    assert setup(two, master.address) == 0
    for i in range(20):
        one.put(f"k{i}", bytes(1000))
    body = {"segments": [one.get_hostname()], "max_concurrency": 4}
    assert http(f"{master.url}/api/v1/drain_jobs", {"segments": ["x"]})[0] == 404
    assert http(f"{master.url}/api/v1/drain_jobs", {"segments": []})[0] == 400
    status, job = http(f"{master.url}/api/v1/drain_jobs", body)
    assert (status, job["status"]) == (200, "CREATED")
    query = f"{master.url}/api/v1/drain_jobs/query?job_id={job['job_id']}"
    assert wait_until(lambda: http(query)[1]["status_name"] == "SUCCEEDED")
    assert http(f"{master.url}/api/v1/drain_jobs/query?job_id=x")[0] == 404
    assert two.batch_is_exist([f"k{i}" for i in range(20)]) == [1] * 20
    one.close()
    assert two.batch_is_exist([f"k{i}" for i in range(20)]) == [1] * 20
    two.close()


def test_whoever_stops_a_drained_host_loses_nothing(
    master: Master, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    owners, segments = [], []
    for name in ("one", "two"):
        program = Program(
            [
                *command("mooncake_client"),
                f"-master_server_address={master.address}",
                f"-port={free_port()}",
                "-global_segment_size=64MB",
            ],
            tmp_path / f"{name}.log",
            KVCOVE_HOST_ID=name,
        )
        program.wait_for("thin clients")
        owners.append(program)
        segments.append(http(f"{master.url}/get_all_segments")[1].decode().split())
    store = new_store()
    assert setup(store, master.address, segment=0) == 0
    from mooncake.store import ReplicateConfig

    (first,) = segments[0]
    there = ReplicateConfig()
    there.preferred_segment = first
    stored: list[str] = []
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            key = f"k{len(stored)}"
            if store.put(key, key.encode() * 100, there) == 0:
                stored.append(key)

    status = f"{master.url}/api/v1/segments/status?segment={first}"
    assert http(f"{master.url}/api/v1/drain_jobs", {"segments": [first]})[0] == 200
    # Engines go on while a host is drained: it takes objects until it has heard of it.
    writer = threading.Thread(target=write)
    writer.start()
    assert wait_until(lambda: http(status)[1]["status_name"] == "DRAINED")
    assert wait_until(lambda: len(stored) > 20)
    owners[0].kill()
    stop.set()
    writer.join()
    assert wait_until(lambda: first.encode() not in http(f"{master.url}/get_all_segments")[1])
    assert [key for key in stored if store.get(key) != key.encode() * 100] == []
    store.close()
    assert owners[1].stop() == 0


class Admin:
    """An admin endpoint of kvcove that says what it is told to."""

    def __init__(self) -> None:
        self.segment = {"address": "a:1", "state": "draining", "objects": 0, "capacity_bytes": 1}
        self.tasks: list[dict[str, Any]] = []
        self.server = HttpServer(
            "127.0.0.1",
            0,
            {
                ("GET", "/v1/segments"): lambda _: json_answer(
                    {"segments": [{**self.segment, "free_bytes": 0}]}
                ),
                ("GET", "/v1/tasks"): lambda _: json_answer({"tasks": self.tasks}),
            },
        )


def test_drained_is_what_a_drain_has_done_with() -> None:
    admin = Admin()
    shown = AdminHttp("127.0.0.1", 0, f"http://127.0.0.1:{admin.server.port}")
    url = f"http://127.0.0.1:{shown.port}"

    def status(*states: str, left: int = 0, kind: str = "drain", of: str = "a:1") -> str:
        admin.tasks = [{"kind": kind, "from": of, "state": s, "left": left} for s in states]
        name = http(f"{url}/api/v1/segments/status?segment=a:1")[1]["status_name"]
        assert http(f"{url}/get_segments_detail")[1]["segments"][0]["status"] == name
        return str(name)

    for state in ("queued", "running", "failed", "cancelled"):
        assert status(state) == "DRAINING", state
        assert status(state, "done") == "DRAINING", state  # an older one says nothing
    assert status("done") == "DRAINED"
    assert status() == "DRAINING"
    assert status("done", "failed") == "DRAINED"
    assert status("done", left=1) == status("failed", left=1) == "DRAINING"
    assert status("done", kind="move") == status("done", of="b:1") == "DRAINING"
    admin.segment["objects"] = 1  # one came late
    assert status("done") == "DRAINING"
    admin.segment.update(state="live", objects=0)
    assert status("done") == "OK"
    shown.close()
    admin.server.close()


def send(port: int, line: str, *fields: str) -> int:
    """The status of a request as a browser would send it."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        lines = [f"{line} HTTP/1.1", *fields, "Content-Length: 2", "\r\n"]
        connection.sendall("\r\n".join(lines).encode() + b"{}")
        return int(connection.recv(100).split(b" ")[1])


def test_pages_in_a_browser_reach_no_server(master: Master, tmp_path: Path, run_dir: Path) -> None:
    rest, client, own = free_port(), free_port(), free_port()
    programs = [
        Program(
            [
                *command("mooncake_client"),
                f"-master_server_address={master.address}",
                f"-port={client}",
                "-global_segment_size=64MB",
            ],
            tmp_path / "client.log",
        ),
        Program(
            [
                *command("mc_store_rest_server"),
                f"--port={rest}",
                "-Dlocal_hostname=127.0.0.1",
                "-Dmetadata_server=P2PHANDSHAKE",
                f"-Dmaster_server_address={master.address}",
                "-Dglobal_segment_size=64MB",
            ],
            tmp_path / "rest.log",
        ),
    ]
    programs[0].wait_for("thin clients")
    programs[1].wait_for("serving at")
    store = new_store()
    assert setup(store, master.address, enable_client_http_server=True, client_http_port=own) == 0
    assert store.put("k", b"value") == 0
    assert http(f"http://127.0.0.1:{master.metadata}/metadata?key=m", b"v", "PUT")[0] == 200
    segments = http(f"{master.url}/get_all_segments")[1]
    kind = "Content-Type: text/plain"
    for port, line in (
        (master.admin, "POST /api/v1/remove_all?force=true"),
        (master.admin, "POST /api/v1/drain_jobs"),
        (master.admin, "POST /v1/reset"),
        (master.admin, "POST /v1/prune"),
        (master.admin, "POST /v1/pin"),
        (master.admin, "GET /get_all_keys"),
        (master.metadata, "DELETE /metadata?key=m"),
        (master.metadata, "PUT /metadata?key=m"),
        (rest, "DELETE /api/remove_all"),
        (rest, "POST /api/mount"),
        (rest, "GET /api/get/k"),
        (client, "GET /v1/pool"),
        (own, "GET /metrics"),
    ):
        host = f"Host: 127.0.0.1:{port}"
        for foreign in ("Origin: http://evil.com", "Origin: null", "Sec-Fetch-Site: cross-site"):
            assert send(port, line, host, foreign, kind) == 403, (line, foreign)
        for name in ("evil.com", "127.evil.com", "localhost.evil.com"):
            assert send(port, line, f"Host: {name}:{port}", kind) == 403, (line, name)
    assert store.get("k") == b"value"
    assert http(f"http://127.0.0.1:{master.metadata}/metadata?key=m")[1] == b"v"
    assert http(f"{master.url}/get_all_segments")[1] == segments
    store.close()
    for program in programs:
        assert program.stop() == 0


def test_metadata_is_kept(master: Master) -> None:
    url = f"http://127.0.0.1:{master.metadata}/metadata"
    assert http(f"{url}?key=a/b", b'{"x":1}', "PUT") == (200, b"metadata updated")
    assert http(f"{url}?key=a/b") == (200, {"x": 1})
    assert http(f"{url}?key=a/b", method="DELETE") == (200, b"metadata deleted")
    assert http(f"{url}?key=a/b") == (404, b"metadata not found")
    assert http(f"{url}?key=")[0] == 400
    assert http(f"http://127.0.0.1:{master.metadata}/health") == (200, b"OK")


def test_an_engines_place_is_not_taken_by_another(master: Master) -> None:
    url = f"http://127.0.0.1:{master.metadata}/metadata?key=mooncake/rpc_meta/a"
    assert http(url, b"x", "PUT") == (200, b"metadata updated")
    assert http(url, b"x", "PUT") == (200, b"metadata unchanged")
    assert http(url, b"y", "PUT") == (400, b"Duplicate rpc_meta key not allowed")
    assert http(url) == (200, b"x")
    assert http(url, method="DELETE")[0] == 200
    assert http(url, b"y", "PUT")[0] == 200


def test_the_metadata_server_wants_its_token(monkeypatch: pytest.MonkeyPatch) -> None:
    from kvcove.mooncake.metadata import MetadataServer

    monkeypatch.setenv("MC_METADATA_HTTP_TOKEN", "secret")
    monkeypatch.setenv("MC_METADATA_MAX_KEYS", "1")
    monkeypatch.setenv("MC_METADATA_MAX_BODY_BYTES", "4")
    server = MetadataServer("127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.port}/metadata?key="

    def ask(key: str, token: str, body: bytes | None = None) -> int:
        request = urllib.request.Request(url + key, data=body, method="PUT" if body else "GET")
        request.add_header("Authorization", token)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code

    assert http(url + "k", b"v", "PUT") == (401, b"unauthorized")
    assert http(url + "k")[0] == 401
    for wrong in ("Bearer other", "secret", "Basic secret", "Bearer"):
        assert ask("k", wrong, b"v") == 401
    assert ask("k", "Bearer secret", b"v") == 200
    assert ask("k", "bearer secret") == 200
    assert ask("k", "Bearer secret", b"12345") == 413
    assert ask("l", "Bearer secret", b"v") == 507
    assert http(f"http://127.0.0.1:{server.port}/health")[0] == 200
    server.close()
    monkeypatch.setenv("MC_METADATA_MAX_KEYS", "many")
    with pytest.raises(ValueError, match="MC_METADATA_MAX_KEYS=many"):
        MetadataServer("127.0.0.1", 0)


@pytest.mark.parametrize(
    ("variable", "starts"),
    [
        ("", False),
        ("MC_METADATA_HTTP_TOKEN", True),
        ("MC_METADATA_HTTP_ALLOW_INSECURE", True),
        ("KVCOVE_INSECURE", True),
    ],
)
def test_the_metadata_server_lets_no_strangers_in_unasked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str, starts: bool
) -> None:
    for name in ("MC_METADATA_HTTP_TOKEN", "MC_METADATA_HTTP_ALLOW_INSECURE", "KVCOVE_INSECURE"):
        monkeypatch.setenv(name, "1" if name == variable else "")
    program = Program(
        [
            *command("mooncake_http_metadata_server"),
            "--host",
            "0.0.0.0",
            "--port",
            str(free_port()),
        ],
        tmp_path / "metadata.log",
    )
    if starts:
        program.wait_for("serving at")
        assert program.stop() == 0
        return
    assert program.process.wait(60) == 2
    assert "set MC_METADATA_HTTP_TOKEN" in program.log.read_text()
    from mooncake.http_metadata_server import KVBootstrapServer

    with pytest.raises(PermissionError, match="MC_METADATA_HTTP_ALLOW_INSECURE=1"):
        KVBootstrapServer(free_port(), "0.0.0.0").run()


def test_the_metadata_server_alone(tmp_path: Path) -> None:
    port = free_port()
    program = Program(
        [*command("mooncake_http_metadata_server"), "--port", str(port)], tmp_path / "metadata.log"
    )
    program.wait_for("serving at")
    assert http(f"http://127.0.0.1:{port}/metadata?key=k", b"v", "PUT")[0] == 200
    assert program.stop() == 0


HA = ["-enable_ha=true", "-etcd_endpoints=127.0.0.1:2379", "-rpc_address=127.0.0.1"]


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["-enable_ha=true", "-rpc_address=127.0.0.1"], "-etcd_endpoints is missing"),
        (["-enable_ha=true", "-etcd_endpoints=h:2379"], "an address of this host is wanted"),
        ([*HA, "-rpc_address=0.0.0.0"], "-rpc_address=0.0.0.0: clients and the other masters"),
        ([*HA, "-rpc_address=[::]"], "an address of this host is wanted"),
        ([*HA, "-ha_backend_type=redis"], "-ha_backend_type=etcd -etcd_endpoints=HOST:2379"),
        ([*HA, "-ha_backend_type=k8s"], "through etcd alone"),
        ([*HA, "-ha_backend_connstring=redis://h:6379"], "redis:// is no etcd"),
        ([*HA, "-etcd_endpoints=h:x"], "'x' is no port"),
        ([*HA, "-etcd_endpoints=https://h:2379"], "KVCOVE_STORE_TLS_AUTHORITY"),
        ([*HA, "-etcd_endpoints=h:2379/p", "-cluster_id=a"], "-cluster_id=a is another one"),
        ([*HA, "-cluster_id=a/b"], "the cluster id 'a/b' (-cluster_id, MC_STORE_CLUSTER_ID): 1 to"),
        ([*HA, "-data=/tmp/x"], "with -enable_ha facts are in etcd"),
        (["-rpc_prot=1"], "did you mean -rpc_port"),
        (["-rpc_port=x"], "a port is wanted"),
        (["stray"], "is no flag"),
        (["-default_kv_lease_ttl=soon"], "is no time"),
    ],
)
def test_flags_that_would_mislead_are_refused(flags: list[str], says: str) -> None:
    ended = subprocess.run(
        [*command("mooncake_master"), *flags],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert ended.returncode == 2
    assert says in ended.stderr


@pytest.mark.parametrize(
    ("named", "place"),
    [
        ("etcd://10.0.0.1:2379;10.0.0.2:2379", "10.0.0.1:2379,10.0.0.2:2379/kvcove-mooncake/mine"),
        ("etcd://a,b:7, [::1]:8;b:7", "a:2379,b:7,[::1]:8/kvcove-mooncake/mine"),
        ("etcd://http://a:2379;http://b:2379/", "a:2379,b:2379/kvcove-mooncake/mine"),
        ("etcd://a;etcd://b", "a:2379,b:2379/kvcove-mooncake/mine"),
        ("etcd://a;b/kvcove/prod", "a:2379,b:2379/kvcove/prod"),
        ("kvcove://etcd://a:2379/kvcove/prod", "a:2379/kvcove/prod"),
    ],
)
def test_stores_find_masters_through_etcd(
    named: str, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MC_STORE_CLUSTER_ID", "mine/")
    assert _config.pool_of(named, 0) == (f"kvcove://etcd://{place}", f"etcd://{place}")


@pytest.mark.parametrize(
    ("named", "says"),
    [
        ("etcd://", "none is named"),
        ("etcd://;", "none is named"),
        ("etcd://a:x", "'x' is no port"),
        ("etcd://:2379", "names no host"),
        ("etcd://a/p;b", "the prefix '/p' stands last"),
        ("etcd://redis://a", "redis:// is no etcd"),
        ("etcd://a/p?token=/t", "options are for kvcove://etcd://HOST:2379/PREFIX?..."),
        ("redis://a:6379", "not through redis"),
        ("k8s://mooncake", "not through k8s"),
        ("etcd://a", "the cluster id 'a b'"),
    ],
)
def test_what_names_no_masters(named: str, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MC_STORE_CLUSTER_ID", "a b")
    with pytest.raises(ValueError, match=re.escape(says)):
        _config.pool_of(named, 0)


def test_a_client_waits_for_a_leader_whatever_it_is_called() -> None:
    nobody = f"etcd://127.0.0.1:{free_port()}/kvcove-mooncake/mine"
    with pytest.raises(OSError, match=r"names no leader: .*Connection refused"):
        client._place("192.0.2.1", nobody, time.monotonic())


def test_one_known_master_of_a_list_is_enough_for_an_owners_place() -> None:
    place = _address.place("0.0.0.0", "no-such-host.invalid:7400,127.0.0.1:7400")
    assert place.advertise == "127.0.0.1"
    with pytest.raises(OSError, match=r"no-such-host\.invalid"):
        _address.place("0.0.0.0", "no-such-host.invalid:7400")


def test_a_store_takes_a_list_of_masters() -> None:
    pool = "kvcove://a:1,b?checksum=0"
    assert _config.pool_of(pool, 0) == (pool, "a:1,b:7400")


def test_help_is_there() -> None:
    for name in ("mooncake_master", "mooncake_client", "mooncake_http_metadata_server"):
        ended = subprocess.run(
            [*command(name), "--help"], capture_output=True, text=True, check=False, timeout=30
        )
        assert ended.returncode == 0
        assert "port" in ended.stdout


def test_thin_clients_use_a_clients_pool(master: Master, tmp_path: Path) -> None:
    port = free_port()
    program = Program(
        [
            *command("mooncake_client"),
            f"-master_server_address={master.address}",
            f"-port={port}",
            "-global_segment_size=64MB",
            "-protocol=tcp",
        ],
        tmp_path / "client.log",
    )
    program.wait_for("thin clients")
    assert http(f"http://127.0.0.1:{port}/health")[0] == 200
    store = new_store()
    assert store.setup_dummy(16 * MIB, 16 * MIB, f"127.0.0.1:{port}") == 0
    address = store.alloc_from_mem_pool(4096)
    assert address % 4096 == 0
    import ctypes

    ctypes.memmove(address, b"12345678", 8)
    assert store.put_from("k", address, 8) == 0
    assert store.get_into("k", address + 100, 8) == 8
    assert store.alloc_from_mem_pool(64 * MIB) == 0
    assert store.get("k") == b"12345678"
    # Neither behind what was allocated nor behind a part that was registered.
    small = store.alloc_from_mem_pool(32)
    behind = store.alloc_from_mem_pool(32)
    ranges = lambda at, to: store.get_into_ranges(  # noqa: E731
        [at], [["k"]], [[[to]]], [[[0]]], [[[4]]]
    )
    assert store.register_buffer(small, 32) == 0
    assert (ranges(small, 28), ranges(small, 30)) == ([[[4]]], [[[-600]]])
    assert ranges(small, behind - small) == [[[-600]]]
    assert store.get_into("k", small + 28, 10) == -600
    for part in (address, address + 32):
        assert store.register_buffer(part, 32) == 0
        assert store.register_buffer(part, 32) == 0
    assert store.register_buffer(address + 16, 32) == -600
    assert (ranges(address, 28), ranges(address, 30)) == ([[[4]]], [[[-600]]])
    assert store.get_into("k", address + 28, 8) == -600
    assert store.batch_get_into(["k", "k"], [address + 100, address + 28], [8, 8]) == [8, -600]
    assert store.unregister_buffer(address) == 0
    assert store.get_into("k", address + 20, 8) == 8
    assert store.unregister_buffer(address + 32) == 0
    assert store.unregister_buffer(address) == 0
    assert ctypes.string_at(behind, 32) == bytes(32)
    store.close()
    assert new_store().setup_dummy(MIB, MIB, "127.0.0.1:1") == -1
    assert program.stop() == 0


def test_a_store_over_http(master: Master, tmp_path: Path) -> None:
    port = free_port()
    program = Program(
        [
            *command("mc_store_rest_server"),
            f"--port={port}",
            "-Dlocal_hostname=127.0.0.1",
            "-Dmetadata_server=P2PHANDSHAKE",
            f"-Dmaster_server_address={master.address}",
            "-Dglobal_segment_size=64MB",
            "-Dlocal_buffer_size=16MB",
        ],
        tmp_path / "rest.log",
    )
    program.wait_for("serving at")
    url = f"http://127.0.0.1:{port}/api"
    assert http(f"{url}/put", {"key": "a/b", "value": "text"}, "PUT") == (
        200,
        {"status": "success"},
    )
    name = urllib.parse.quote("a/b", safe="")
    assert http(f"{url}/get/{name}") == (200, b"text")
    assert http(f"{url}/exist/{name}") == (200, {"exists": True})
    assert http(f"{url}/exist/nothing") == (200, {"exists": False})
    assert http(f"{url}/get/nothing")[0] == 404
    assert http(f"{url}/put", {"key": "k"}, "PUT")[0] == 400
    assert http(f"{url}/put", b"no json", "PUT")[0] == 400
    assert http(f"{url}/remove/{name}", method="DELETE")[0] == 500  # leased
    assert http(f"{url}/put", {"key": "k", "value": "v"}, "PUT")[0] == 200
    assert http(f"{url}/remove/k", method="DELETE")[0] == 200
    assert http(f"{url}/remove_all", method="DELETE")[1]["status"].startswith("success removed")
    status, mounted = http(f"{url}/mount", {"size": 16 * MIB})
    assert (status, mounted["allocated_size"]) == (200, 16 * MIB)
    assert http(f"{url}/unmount", {"segment_ids": mounted["segment_ids"]})[0] == 200
    assert http(f"{url}/unmount", {"segment_ids": ["x"]})[0] == 500
    assert http(f"{url}/mount", {"size": 0})[0] == 400
    assert http(f"{url}/mount_shm", {"name": "../x", "size": 10})[0] == 400
    assert http(f"{url}/unmount_local_disk", {"grace_period_seconds": 4000})[0] == 400
    assert http(f"{url}/reconfigure", {"mode": "bad"})[0] == 400
    assert http(f"{url}/reconfigure", {"mode": "prefill"})[0] == 200
    assert program.stop() == 0


def test_a_stores_own_http(cluster: Any, run_dir: Path) -> None:
    port = free_port()
    store = new_store()
    assert setup(store, cluster.address, enable_client_http_server=True, client_http_port=port) == 0
    assert http(f"http://127.0.0.1:{port}/health") == (200, {"status": "healthy", "code": 0})
    assert b"kvcove_pool_capacity_bytes" in http(f"http://127.0.0.1:{port}/metrics")[1]
    assert http(f"http://127.0.0.1:{port}/metrics/summary")[0] == 200
    store.close()


def test_a_master_that_goes_away(cluster: Any, run_dir: Path) -> None:
    store = new_store()
    assert setup(store, cluster.address) == 0
    store.put("k", b"1")
    cluster.kill()
    began = time.monotonic()
    assert store.remove_all(force=True) < 0
    assert time.monotonic() - began < 30
    time.sleep(1.2)  # no lease is left
    times = [time.monotonic()]
    for _ in range(20):
        assert store.is_exist("k") <= 0
        times.append(time.monotonic())
    assert times[-1] - times[0] < 15, "less than one call's timeout"
    assert min(after - before for before, after in pairwise(times)) < 0.1
    assert store.health_check() == 2
    assert store.remove_all(force=True) < 0
    cluster.start()
    assert wait_until(lambda: store.put("after", b"2") == 0 and store.get("after") == b"2")
    # The reset that could not be proven was repeated: what was before it is gone.
    assert store.is_exist("k") == 0
    store.close()


def test_a_failover_during_setup_is_waited_for(
    cluster: Any, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    real = kvcove.open

    def open_pool(address: str) -> Any:
        opened.append(address)
        if len(opened) == 2:  # once the store has its owner
            raise kvcove.UnavailableError("nobody leads")
        return real(address)

    asked: list[Any] = []
    stat = kvcove.Pool.stat

    def ask(pool: Any, *arguments: Any, **named: Any) -> Any:
        asked.append(pool)
        if len(asked) == 1:
            raise kvcove.TimedOutError("the leader is frozen")
        return stat(pool, *arguments, **named)

    monkeypatch.setattr(kvcove, "open", open_pool)
    monkeypatch.setattr(kvcove.Pool, "stat", ask)
    store = new_store()
    assert setup(store, cluster.address) == 0
    assert len(opened) >= 4
    assert len(asked) >= 2
    assert store.put("k", b"1") == 0
    store.close()


# ---- where sockets and data are kept


def test_a_private_directory_is_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    path = tmp_path / f"kvcove-{os.getuid()}"
    for _ in range(2):
        assert _config.private_directory() == path
        assert path.stat().st_mode & 0o777 == 0o700
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    assert _config.private_directory() == tmp_path / "run" / "kvcove"
    assert (tmp_path / "run").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("made", ["0777", "0750", "link", "file", "stranger's"])
def test_a_directory_that_another_made_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made: str
) -> None:
    path = tmp_path / f"kvcove-{os.getuid()}"
    if made == "link":
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        path.symlink_to(tmp_path / "elsewhere")
        says = "is a link"
    elif made == "file":
        path.touch(mode=0o700)
        says = "is no directory"
    else:
        path.mkdir(mode=0o700)
        says = f"has mode {made}"
    if made.startswith("0"):
        path.chmod(int(made, 8))
    elif made == "stranger's":
        if os.getuid() != 0:
            pytest.skip("only root can make another's directory")
        os.chown(path, 12345, 12345)
        says = "belongs to uid 12345"
    before = path.lstat()
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    environment.pop("XDG_RUNTIME_DIR", None)
    for name, flag in (("mooncake_master", "-rpc_port"), ("mooncake_client", "-port")):
        ended = subprocess.run(
            [*command(name), f"{flag}={free_port()}"],
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
            env=environment,
        )
        assert ended.returncode == 2
        assert f"{path} {says}" in ended.stderr
        assert "XDG_RUNTIME_DIR" in ended.stderr
        assert "chmod" not in ended.stderr
    after = path.lstat()
    assert (after.st_mode, after.st_uid) == (before.st_mode, before.st_uid)
    assert path.is_symlink() or path.is_file() or not list(path.iterdir())
    assert not (tmp_path / "elsewhere").exists() or not list((tmp_path / "elsewhere").iterdir())


# ---- packaging


STORES = [
    "store.so",
    "store.cpython-311-x86_64-linux-gnu.so",
    "_store.cpython-311-x86_64-linux-gnu.so",
    "store/__init__.py",
]


@pytest.mark.parametrize("store", STORES)
def test_a_package_that_went_over_the_original_says_so(tmp_path: Path, store: str) -> None:
    package = tmp_path / "mooncake"
    shutil.copytree(PYTHON / "mooncake" / "mooncake", package)
    (package / store).parent.mkdir(exist_ok=True)
    (package / store).write_text("")
    info = tmp_path / "mooncake_transfer_engine_non_cuda-0.3.13.dist-info"
    info.mkdir()
    (info / "RECORD").write_text(f"mooncake/__init__.py,,\nmooncake/{store},sha256=x,1\n")
    says = "'pip uninstall kvcove-mooncake mooncake-transfer-engine-non-cuda'"
    ended = python("import mooncake.store", PYTHONPATH=str(tmp_path))
    assert "ImportError" in ended.stderr
    assert says in ended.stderr
    assert "python -m kvcove.mooncake run COMMAND" in ended.stderr
    for name in ("mooncake_master", "mooncake_client"):
        said = subprocess.run(
            command(name),
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
            env={**os.environ, "PYTHONPATH": str(tmp_path)},
        )
        assert said.returncode == 2
        assert f"{name}: {package} has the store of" in said.stderr
        assert says in said.stderr
    (package / store).unlink()
    assert python("import mooncake.store", PYTHONPATH=str(tmp_path)).returncode == 0


def test_names_that_an_overlaid_module_lacks_are_the_originals(tmp_path: Path) -> None:
    package = tmp_path / "mooncake"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "http_metadata_server.py").write_text(
        "from mooncake.store import MooncakeDistributedStore as Store\n"
        "class Another: store = Store\n"
        "def main(): raise SystemExit('the original')\n"
    )
    (package / "store.py").write_text("class EngramStore: pass\n")
    (package / "async_store.py").write_text("import a_module_that_is_not_there\n")
    code = (
        "from mooncake.http_metadata_server import Another, main\n"
        "import mooncake.store as store\n"
        "print(Another.store.__module__, main.__module__, store.EngramStore.__module__)\n"
        "print(hasattr(store, 'nothing'), store.MooncakeDistributedStore.__module__)\n"
        "import mooncake.async_store as lacking\n"
        "try: lacking.nothing\n"
        "except AttributeError as error: print(str(error).partition(': ')[2])\n"
    )
    said = subprocess.run(
        [sys.executable, "-m", "kvcove.mooncake", "run", sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )
    assert said.stdout == (
        "kvcove.mooncake.store kvcove.mooncake.metadata mooncake.store\nFalse kvcove.mooncake.store\n"
        "No module named 'a_module_that_is_not_there'\n"
    ), said.stderr


def test_the_overlay_is_for_one_command_only(tmp_path: Path) -> None:
    rival = tmp_path / "site" / "mooncake"
    rival.mkdir(parents=True)
    (rival / "__init__.py").write_text("")
    (rival / "store.py").write_text("WHO = 'another'\n")
    (rival / "engine.py").write_text("WHO = 'its engine'\n")
    code = (
        "import mooncake.store as s; import mooncake.engine as e;"
        "print(s.MooncakeDistributedStore.__module__, e.WHO)"
    )
    environment = {**os.environ, "PYTHONPATH": str(rival.parent)}
    run = [sys.executable, "-m", "kvcove.mooncake", "run", "python", "-c", code]
    with_overlay = subprocess.run(
        run, capture_output=True, text=True, env=environment, check=False, timeout=60
    )
    assert with_overlay.stdout == "kvcove.mooncake.store its engine\n", with_overlay.stderr
    without = subprocess.run(
        [sys.executable, "-c", "import mooncake.store as s; print(s.WHO)"],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
        timeout=300,
    )
    assert without.stdout == "another\n"
    ended = subprocess.run(
        [sys.executable, "-m", "kvcove.mooncake", "run", "mooncake_master", "-help"],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert "on kvcove" in ended.stdout
    for words in (["--help"], ["run", "--help"]):
        asked = subprocess.run(
            [sys.executable, "-m", "kvcove.mooncake", *words],
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        assert (asked.returncode, asked.stderr) == (0, "")
        assert "run COMMAND" in asked.stdout
    bad = subprocess.run(
        [sys.executable, "-m", "kvcove.mooncake"], capture_output=True, check=False, timeout=60
    )
    assert bad.returncode == 2


def test_another_distributions_package_is_not_overwritten(tmp_path: Path) -> None:
    site = tmp_path / "site"
    info = site / "another_store-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "RECORD").write_text("mooncake/store.py,,\n")
    code = (
        f"import sys; sys.path.insert(0, {str(PYTHON / 'mooncake' / 'backend')!r})\n"
        "import sysconfig\n"
        f"sysconfig.get_path = lambda name: {str(site)!r}\n"
        "import checked_build\n"
        f"checked_build.build_wheel({str(tmp_path)!r})\n"
    )
    ended = python(code)
    assert ended.returncode == 1
    assert "belongs to another_store-1.0" in ended.stderr
    assert "python -m kvcove.mooncake run" in ended.stderr


def test_the_metadata_servers_class() -> None:
    from mooncake.http_metadata_server import KVBootstrapServer

    port = free_port()
    server = KVBootstrapServer(port)
    server.run()
    assert http(f"http://127.0.0.1:{port}/metadata?key=k", b"v", "PUT")[0] == 200
    assert http(f"http://127.0.0.1:{port}/metadata?key=k") == (200, b"v")
    server.close()


def test_a_store_that_is_let_go_leaves_nothing(run_dir: Path, cluster: Any) -> None:
    store = new_store()
    assert setup(store, cluster.address) == 0
    assert list(run_dir.rglob("*.sock"))
    del store
    assert not list(run_dir.rglob("*.sock"))


def test_a_forked_store_answers_a_code(run_dir: Path) -> None:
    store = new_store()
    assert setup(store, "embedded:") == 0
    assert store.put("k", b"1") == 0
    child = os.fork()
    if child == 0:
        codes = [store.is_exist("k"), store.put("q", b"1"), len(store.get("k")), store.close()]
        os._exit(0 if codes[0] < 0 and codes[1] < 0 and codes[2] == 0 else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert store.get("k") == b"1"
    store.close()
