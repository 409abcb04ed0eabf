# SPDX-License-Identifier: Apache-2.0
"""``lmcache server`` as a process on the pool, with LMCache's own client (of ``lmcache bench server``)."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("lmcache")

from lmcache_storage import Owner, spec_of, wait_for

# 0.5.4 has its client within its command.
client_of = pytest.importorskip("lmcache.cli.commands.bench.server_bench.client")
config_of = pytest.importorskip("lmcache.cli.commands.bench.server_bench.config")
# LMCache's client gives a call 10 s, which a machine that does other work exceeds.
calls = pytest.importorskip("lmcache.cli.commands.bench.server_bench.helpers")
calls._wait_for_result.__defaults__ = (120.0, *calls._wait_for_result.__defaults__[1:])

CHUNKS = 4


@pytest.fixture
def owner() -> Iterator[Owner]:
    with tempfile.TemporaryDirectory(prefix="kvl-", dir="/tmp") as made:
        started = Owner(Path(made) / "pool.sock")
        yield started
        started.kill()


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


class Server:
    def __init__(self, pool: str, log: Path) -> None:
        self.port, self.http = free_port(), f"http://127.0.0.1:{(port := free_port())}"
        words = [
            *(sys.executable, "-m", "lmcache.cli.main", "server"),
            *("--host", "127.0.0.1", "--port", str(self.port)),
            *("--http-host", "127.0.0.1", "--http-port", str(port)),
            *("--l1-size-gb", "0.1", "--no-l1-use-lazy", "--chunk-size", "16"),
            *("--eviction-policy", "LRU", "--disable-observability"),
            *("--supported-transfer-mode", "auto"),
            *("--l2-adapter", json.dumps(spec_of(pool))),
        ]
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                words, stdout=output, stderr=output, start_new_session=True
            )
        wait_for(self.answers, 240)

    def answers(self) -> bool:
        assert self.process.poll() is None
        try:
            return bool(self.ask("/status"))
        except (urllib.error.URLError, ConnectionError):
            return False

    def ask(self, path: str, method: str = "GET") -> Any:
        request = urllib.request.Request(self.http + path, method=method)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.loads(answer.read())

    def stop(self) -> None:
        self.process.send_signal(signal.SIGINT)  # it removes its shared memory
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


@contextmanager
def server(pool: str, log: Path) -> Iterator[tuple[Server, Any]]:
    """A server and a client, whose KV caches hold random bytes."""
    made = Server(pool, log)
    try:
        config = config_of.BenchConfig(
            rpc_url=f"tcp://127.0.0.1:{made.port}",
            http_url=made.http,
            mode="cpu",
            transfer_mode="engine_driven",
            tp_size=1,
            use_mla=False,
            num_tokens=16 * CHUNKS,
            kvcache_shape_spec="(2,64,16,2,8):float16:3",
            num_blocks=64,
            block_size=16,
        )
        client = client_of.ServerBenchClient(config, lambda _: None)
        client.start()
        try:
            yield made, client
        finally:
            client.close()
    finally:
        made.stop()


def test_a_server_that_starts_again_finds_its_kv_and_clears_it(
    owner: Owner, tmp_path: Path
) -> None:
    with server(owner.address, tmp_path / "first.log") as (first, client):
        request = client.create_request(1, "one", "cold")
        assert request.total_chunks == CHUNKS
        assert client.lookup(request).is_full_miss
        assert client.store(request, 0, request.num_full_tokens).succeeded
        sums = client.compute_checksums(request, 0, request.num_full_tokens)
        wait_for(lambda: f"'stored_objects': {CHUNKS}" in str(first.ask("/status")))
    with server(owner.address, tmp_path / "second.log") as (second, client):
        again = client.create_request(1, "two", "warm")
        assert client.lookup(again).is_full_hit
        client.zero_destination(again, 0, again.num_full_tokens)
        assert client.retrieve(again, 0, again.num_full_tokens).succeeded
        assert client.compute_checksums(again, 0, again.num_full_tokens) == sums
        client.end_session(again)
        assert second.ask("/cache/clear", "POST")["status"] == "ok"
        assert client.lookup(client.create_request(1, "three", "cleared")).is_full_miss
