# SPDX-License-Identifier: Apache-2.0
"""KV events of owners: what a router believes that has nothing but them, beside what there is."""

from __future__ import annotations

import re
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import Program, command_path, free_port, wait_until

import kvcove

msgspec = pytest.importorskip("msgspec")
zmq = pytest.importorskip("zmq")

NAME = "test/model@1"
VALUE = b"v" * 100_000
END = (-1).to_bytes(8, "big", signed=True)


class KVCacheEvent(msgspec.Struct, omit_defaults=True, gc=False, tag=True):  # type: ignore[misc, call-arg]
    """As vLLM's."""


class BlockStored(KVCacheEvent):
    block_hashes: list[bytes | int]
    parent_block_hash: bytes | int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[tuple[Any, ...] | None] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None
    locality: str | None = None


class BlockRemoved(KVCacheEvent):
    block_hashes: list[bytes | int]
    medium: str | None
    group_idx: int | None = None
    locality: str | None = None


class AllBlocksCleared(KVCacheEvent):
    pass


class KVEventBatch(msgspec.Struct, array_like=True, omit_defaults=True, gc=False):  # type: ignore[misc, call-arg]
    ts: float
    events: list[BlockStored | BlockRemoved | AllBlocksCleared]
    data_parallel_rank: int | None = None


_batches = msgspec.msgpack.Decoder(type=KVEventBatch)


def key(block: int, group: int = 0) -> str:
    return f"g{group}.h0of1@{block:016x}"


class Router:
    """Keeps an index by the owner's sockets, as vLLM's subscribers do."""

    def __init__(self, events: int, replay: int, most_waiting: int = 0) -> None:
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.SUB)
        if most_waiting:
            self._socket.setsockopt(zmq.RCVHWM, most_waiting)
        self._socket.setsockopt(zmq.RECONNECT_IVL, 20)
        self._socket.connect(f"tcp://127.0.0.1:{events}")
        self._socket.setsockopt_string(zmq.SUBSCRIBE, "")
        self._replay = f"tcp://127.0.0.1:{replay}"
        self.next = 0
        self.starts = 0
        self.blocks: dict[tuple[int, int], set[str]] = {}
        self.topics: set[bytes] = set()

    def close(self) -> None:
        self._context.destroy(linger=0)

    def on(self, medium: str) -> set[tuple[int, int]]:
        return {block for block, media in self.blocks.items() if medium in media}

    def hear(self) -> None:
        while self._socket.poll(0):
            topic, number, payload = self._socket.recv_multipart()
            self.topics.add(topic)
            at = int.from_bytes(number, "big")
            if at == 0:
                self.next = 0  # an owner that was started again has nothing of before
            if at > self.next:
                self.catch_up()
            self._take(at, payload)

    def hear_all(self) -> Router:
        """Take what comes, whatever its number is."""
        while self._socket.poll(0):
            _, number, payload = self._socket.recv_multipart()
            self.next = int.from_bytes(number, "big")
            self._take(self.next, payload)
        return self

    def catch_up(self) -> None:
        dealer = self._context.socket(zmq.DEALER)
        dealer.connect(self._replay)
        dealer.send_multipart([b"", self.next.to_bytes(8, "big")])
        while True:
            assert dealer.poll(20_000), "no end of the replay"
            _, number, payload = dealer.recv_multipart()
            if number == END:
                break
            at = int.from_bytes(number, "big")
            assert at >= self.next
            self.next = at  # a snapshot stands for what is gone
            self._take(at, payload)
        dealer.close(linger=0)

    def _take(self, at: int, payload: bytes) -> None:
        if at != self.next:
            return  # it came with a replay
        self.next = at + 1
        batch = _batches.decode(payload)
        assert batch.ts > 1e9
        assert batch.data_parallel_rank == 0
        for event in batch.events:
            if isinstance(event, AllBlocksCleared):
                self.blocks.clear()
                self.starts += 1
                continue
            assert event.locality == "LOCAL"
            assert event.medium in {"CPU", "STORAGE"}
            for each in event.block_hashes:
                block = (event.group_idx, each)
                media = self.blocks.setdefault(block, set())
                if isinstance(event, BlockStored):
                    assert (event.token_ids, event.block_size, event.parent_block_hash) == (
                        [],
                        0,
                        None,
                    )
                    media.add(event.medium)
                else:
                    media.discard(event.medium)
                if not media:
                    del self.blocks[block]

    def hears(self, condition: Callable[[], bool]) -> bool:
        asked = time.monotonic()

        def look() -> bool:
            nonlocal asked
            self.hear()
            # The subscription may have reached the owner behind its last batch.
            if time.monotonic() > asked + 2:
                asked = time.monotonic()
                self.catch_up()
            return condition()

        return wait_until(look)


class Owner:
    """`kvcove serve` with KV events, in 8 MiB."""

    def __init__(self, directory: Path, *options: str) -> None:
        self.events, self.replay, self.metrics = free_port(), free_port(), free_port()
        directory.joinpath("s").mkdir(mode=0o700)
        self.socket = directory / "s" / "kvcove.sock"
        self._log = directory / "serve.log"
        self._command = [command_path(), "serve", "--socket", str(self.socket), "--memory", "8MiB"]
        self._command += ["--kv-events", f"127.0.0.1:{self.events}"]
        self._command += ["--kv-events-replay", f"127.0.0.1:{self.replay}"]
        self._command += ["--metrics", f"127.0.0.1:{self.metrics}", *options]
        self.start()

    def start(self) -> None:
        self._log.unlink(missing_ok=True)
        self.program = Program(self._command, self._log)
        self.program.wait_for("serving")

    def router(self, **options: int) -> Router:
        made = Router(self.events, self.replay, **options)
        made.catch_up()
        return made

    def metric(self, name: str) -> float:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.metrics}/metrics", timeout=20) as text:
            found = re.search(rf"^{name}(?:\{{[^}}]*\}})? (\S+)$", text.read().decode(), re.M)
        assert found, name
        return float(found.group(1))


@pytest.fixture
def owner(tmp_path: Path) -> Iterator[Owner]:
    made = Owner(tmp_path)
    yield made
    assert made.program.stop() == 0


def put(session: kvcove.Session, blocks: range, group: int = 0) -> None:
    for block in blocks:
        assert session.put([key(block, group)], [VALUE], timeout=20).all_ok


def there(session: kvcove.Session, count: int) -> set[tuple[int, int]]:
    found = session.exists([key(block) for block in range(count)], timeout=20)
    return {(0, block) for block, code in enumerate(found.codes) if code == 0}


def test_what_memory_evicts_is_told(owner: Owner) -> None:
    router = owner.router()
    with kvcove.open(f"unix:{owner.socket}") as pool, pool.session(NAME) as session:
        put(session, range(10))
        put(session, range(3), group=1)
        assert router.hears(lambda: len(router.on("CPU")) == 13)
        assert {block for block in router.blocks if block[0] == 1} == {(1, 0), (1, 1), (1, 2)}
        put(session, range(10, 300))
        assert router.hears(
            lambda: {b for b in router.on("CPU") if b[0] == 0} == there(session, 300)
        )
        assert 10 < len(router.blocks) < 100, "most were evicted"
        late = owner.router()

        def same() -> bool:
            router.hear()
            return late.blocks == router.blocks

        assert late.hears(same)
        assert session.remove([key(block) for block in range(300)], timeout=20).codes
        assert router.hears(lambda: not any(group == 0 for group, _ in router.blocks))
        late.close()
    assert owner.metric("kvcove_owner_kv_events_subscribers") >= 1
    assert owner.metric("kvcove_owner_kv_events_replays_total") >= 2
    assert owner.metric("kvcove_owner_kv_events_dropped_total") == 0
    router.close()


def test_a_reset_removes_all(owner: Owner) -> None:
    router = owner.router()
    with kvcove.open(f"unix:{owner.socket}") as pool, pool.session(NAME) as session:
        put(session, range(30))
        assert router.hears(lambda: len(router.blocks) == 30)
        with pool.session("test/other@1") as other:
            put(other, range(20, 40))
            assert router.hears(lambda: len(router.blocks) == 40)
            session.reset(timeout=20)
            assert router.hears(lambda: router.blocks.keys() == {(0, b) for b in range(20, 40)})
        put(session, range(5))
        assert router.hears(lambda: len(router.blocks) == 25)
    router.close()


def test_a_slow_subscriber_catches_up(owner: Owner) -> None:
    slow = owner.router(most_waiting=1)
    with kvcove.open(f"unix:{owner.socket}") as pool, pool.session(NAME) as session:
        for begin in range(0, 600, 50):
            put(session, range(begin, begin + 50))
        slow.catch_up()
        assert slow.hears(lambda: slow.on("CPU") == there(session, 600))
    slow.close()


def test_an_owner_that_was_killed_begins_anew(owner: Owner) -> None:
    router = owner.router()
    with kvcove.open(f"unix:{owner.socket}") as pool, pool.session(NAME) as session:
        put(session, range(20))
        assert router.hears(lambda: len(router.blocks) == 20)
    owner.program.kill()
    starts = router.starts
    owner.start()
    # The subscription reaches the new owner after its first batches, so the router asks for them.
    with kvcove.open(f"unix:{owner.socket}") as pool, pool.session(NAME) as session:
        router.next = 0
        router.catch_up()
        assert router.starts > starts
        assert not router.blocks
        put(session, range(7))
        assert router.hears(lambda: router.on("CPU") == {(0, block) for block in range(7)})
    router.close()


def test_a_router_without_replays_forgets_an_owner_that_was_killed(owner: Owner) -> None:
    router = owner.router()
    with kvcove.open(f"unix:{owner.socket}") as pool, pool.session(NAME) as session:
        put(session, range(20))
        assert router.hears(lambda: len(router.blocks) == 20)
    owner.program.kill()
    starts = router.starts
    owner.start()
    with kvcove.open(f"unix:{owner.socket}") as pool, pool.session(NAME) as session:
        put(session, range(30, 33))
        assert wait_until(lambda: router.hear_all().starts > starts)
        assert wait_until(lambda: router.hear_all().on("CPU") == {(0, b) for b in range(30, 33)})
    router.close()


def test_a_disk_is_told_also_after_a_restart(tmp_path: Path) -> None:
    options = ["--disk", f"{tmp_path}/disk:256MiB", "--disk-admit", "all"]
    owner = Owner(tmp_path, *options)
    router = owner.router()
    with kvcove.open(f"unix:{owner.socket}") as pool, pool.session(NAME) as session:
        for block in range(300):
            put(session, range(block, block + 1))
            stat = pool.stat()
            assert wait_until(
                lambda: (
                    pool.stat().evictions
                    == pool.stat().disk_puts
                    + pool.stat().disk_dropped_full
                    + pool.stat().disk_not_worth
                )
            ), stat
        assert router.hears(lambda: set(router.blocks) == there(session, 300))
        assert len(router.on("STORAGE")) > 100
        assert len(router.on("CPU")) < 100
        assert session.remove([key(block) for block in range(20)], timeout=20).codes
        assert router.hears(lambda: set(router.blocks) == there(session, 300))
    assert owner.program.stop() == 0
    owner.start()
    with kvcove.open(f"unix:{owner.socket}") as pool, pool.session(NAME) as session:
        router.next = 0
        router.catch_up()
        assert there(session, 300), "the disk's values are back"
        assert router.hears(lambda: set(router.blocks) == there(session, 300))
        assert router.on("STORAGE")
        session.reset(timeout=20)
        assert router.hears(lambda: not router.blocks)
    assert owner.program.stop() == 0
    router.close()


def test_an_owner_of_a_cluster_tells_its_own(cluster: Any, tmp_path: Path) -> None:
    events, replay = free_port(), free_port()
    words = [command_path(), "owner", "--master", cluster.address, "--listen", "127.0.0.1:0"]
    words += ["--memory", "8MiB", "--admin", "off", "--socket", str(tmp_path / "s" / "o")]
    words += ["--kv-events", f"127.0.0.1:{events}", "--kv-events-replay", f"127.0.0.1:{replay}"]
    program = Program([*words, "--kv-events-topic", "kv@pod@model"], tmp_path / "owner.log")
    program.wait_for("knows this owner as number")
    router = Router(events, replay)
    router.catch_up()
    with kvcove.open(f"kvcove://{cluster.address}") as pool, pool.session(NAME) as session:
        put(session, range(200))
        assert router.hears(lambda: router.on("CPU") == there(session, 200))
        assert 10 < len(router.blocks) < 100
        assert router.topics == {b"kv@pod@model"}
        session.reset(timeout=20)
        assert router.hears(lambda: not router.blocks)
    router.close()
    assert program.stop() == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--kv-events", "0.0.0.0:5557"], "--insecure"),
        (["--kv-events", "example.org:5557"], "is no IP address"),
        (["--kv-events", "127.0.0.1"], "--kv-events: '127.0.0.1' names no port"),
        (["--kv-events-replay", "127.0.0.1:5558"], "--kv-events"),
        (["--kv-events-topic", "kv@pod@model"], "--kv-events-topic: there are no events"),
        (["--kv-events-hashes", "bytes"], "--kv-events-hashes: there are no events"),
        (["--kv-events", "127.0.0.1:0", "--kv-events-hashes", "hex"], "int or bytes"),
        (["--kv-events", "127.0.0.1:0", "--kv-events-form", "json"], "map or array"),
        (["--kv-events", "127.0.0.1:0", "--kv-events-blocks", "0"], "1 at least"),
        (["--kv-events", "127.0.0.1:0", "--kv-events-blocks", "-1"], "1 at least"),
        (["--kv-events", "127.0.0.1:77", "--kv-events-replay", "127.0.0.1:77"], "give port 78"),
    ],
)
def test_wrong_options_say_what_is_right(tmp_path: Path, options: list[str], message: str) -> None:
    command = [command_path(), "serve", "--socket", str(tmp_path / "s" / "o"), "--memory", "8MiB"]
    answer = subprocess.run(
        [*command, *options], capture_output=True, text=True, timeout=60, check=False
    )
    assert answer.returncode != 0
    assert message in answer.stderr
    assert answer.stderr.strip().count("\n") == 0, answer.stderr


def test_a_port_in_use_is_named(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        command = [command_path(), "serve", "--socket", str(tmp_path / "s" / "o")]
        command += ["--memory", "8MiB", "--kv-events", f"127.0.0.1:{port}"]
        answer = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert answer.returncode != 0
    assert f"tcp://127.0.0.1:{port}" in answer.stderr


def test_hashes_and_events_in_other_forms(tmp_path: Path) -> None:
    owner = Owner(tmp_path, "--kv-events-hashes", "bytes", "--kv-events-form", "array")
    with kvcove.open(f"unix:{owner.socket}") as pool, pool.session(NAME) as session:
        put(session, range(3, 4))
        context = zmq.Context()
        found: list[Any] = []

        def told() -> bool:
            dealer = context.socket(zmq.DEALER)
            dealer.connect(f"tcp://127.0.0.1:{owner.replay}")
            dealer.send_multipart([b"", bytes(8)])
            found.clear()
            while dealer.poll(20_000):
                _, number, payload = dealer.recv_multipart()
                if number == END:
                    break
                found.extend(msgspec.msgpack.decode(payload)[1])
            dealer.close(linger=0)
            return len(found) > 1

        assert wait_until(told)
        context.destroy(linger=0)
    block = (3).to_bytes(8, "big")
    assert found[0] == ["AllBlocksCleared"]
    assert found[1] == ["BlockStored", [block], None, [], 0, None, "CPU", None, None, 0, None, None]
    assert owner.program.stop() == 0
