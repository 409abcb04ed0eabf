# SPDX-License-Identifier: Apache-2.0
"""What a read holds, from when, for how long, and which look-ups hold nothing."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import (
    MIB,
    RIVAL,
    Program,
    differs,
    free_port,
    http,
    new_store,
    setup,
    until,
    wait_until,
)

MASTER = ["mooncake_master"] if RIVAL else [sys.executable, "-m", "kvcove.mooncake.master"]

LEASED = -706
TTL = 0.6  # seconds


class _Master:
    """mooncake_master with a lease of its own."""

    def __init__(self, directory: Path, ttl_ms: int) -> None:
        self.port, self.metrics = free_port(), free_port()
        self.address = f"127.0.0.1:{self.port}"
        self.program = Program(
            [
                *MASTER,
                f"-rpc_port={self.port}",
                f"-metrics_port={self.metrics}",
                f"-default_kv_lease_ttl={ttl_ms}",
            ],
            directory / f"master-{ttl_ms}.log",
        )
        assert wait_until(self._answers)

    def _answers(self) -> bool:
        try:
            return http(f"http://127.0.0.1:{self.metrics}/health")[0] == 200
        except OSError:
            assert self.program.process.poll() is None, self.program.log.read_text()
            return False


@pytest.fixture
def held_long(run_dir: Path, tmp_path: Path) -> Iterator[Any]:
    """A store whose reads hold for longer than a test lasts."""
    master = _Master(tmp_path, 3_600_000)
    store = new_store()
    assert setup(store, master.address) == 0
    yield store
    store.close()
    master.program.stop()


@pytest.fixture
def two(run_dir: Path, tmp_path: Path) -> Iterator[tuple[Any, Any]]:
    """Two stores on one master, whose reads hold for TTL."""
    master = _Master(tmp_path, int(TTL * 1000))
    stores = new_store(), new_store()
    assert [setup(store, master.address) for store in stores] == [0, 0]
    yield stores
    for store in stores:
        store.close()
    master.program.stop()


LOOKS: dict[str, tuple[Any, int]] = {
    "is_exist": (lambda store, key: store.is_exist(key), LEASED),
    "batch_is_exist": (lambda store, key: store.batch_is_exist([key]), LEASED),
    "get": (lambda store, key: store.get(key), LEASED),
    "get_buffer": (lambda store, key: store.get_buffer(key), LEASED),
    "get_size": (lambda store, key: store.get_size(key), LEASED),
    "get_replica_desc": (lambda store, key: store.get_replica_desc(key), LEASED),
    "batch_get_replica_desc": (lambda store, key: store.batch_get_replica_desc([key]), LEASED),
    "put again": (lambda store, key: store.put(key, b"other"), 0),
    "upsert": (lambda store, key: store.upsert(key, b"other"), 0),
    "a move from nowhere": (lambda store, key: store.create_move_task(key, "h:1", "h:2"), 0),
    "a copy to nowhere": (lambda store, key: store.create_copy_task(key, ["h:1"]), 0),
    "replicas at nowhere": (lambda store, key: store.batch_replica_clear([key], "h:1"), 0),
}


def while_leased(once: Callable[[int], bool]) -> None:
    """Look until it is true; another time only where one took longer than the lease of its read."""
    for number in range(100):
        begun = time.monotonic()
        if once(number):
            return
        assert time.monotonic() - begun > TTL
    pytest.fail("the machine stands still for longer than a lease each time")


@pytest.mark.parametrize(
    "look",
    [pytest.param(each, marks=[until("0.3.14")] if each == "put again" else []) for each in LOOKS],
)
def test_what_a_look_holds(held_long: Any, look: str) -> None:
    call, code = LOOKS[look]
    assert held_long.put(look, b"value") == 0
    call(held_long, look)
    assert held_long.remove(look) == code


def test_a_read_holds_from_the_read_on(two: tuple[Any, Any]) -> None:
    store = two[0]
    until = 0.0

    def held(key: str) -> bool:
        nonlocal until
        assert store.put(key, b"value") == 0
        assert store.get(key) == b"value"
        until = time.monotonic() + TTL
        return bool(store.remove(key) == LEASED)

    for i in range(3):
        key = f"from the read on {i}"
        while_leased(lambda _, key=key: held(key))
        assert wait_until(lambda: time.monotonic() > until + 0.01)
        # Not a moment later, whenever its owner has heard of the read.
        assert store.remove(key) == 0


def test_the_master_says_for_how_long(run_dir: Path, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.delenv("KVCOVE_MASTER_ADMIN", raising=False)
    stores, masters = [], []
    # Two masters of one host: neither is at the port that one might guess.
    for ttl_ms in (80, 3_600_000):
        masters.append(_Master(tmp_path, ttl_ms))
        stores.append(new_store())
        assert setup(stores[-1], masters[-1].address) == 0
    short, long = stores
    for store in stores:
        assert store.put("key", b"value") == 0
        assert store.get("key") == b"value"
    # Before the end of what a lease is where nobody says it: 5 s.
    assert wait_until(lambda: short.remove("key") == 0, 4.0)
    assert long.remove("key") == LEASED
    for store, master in zip(stores, masters, strict=True):
        store.close()
        master.program.stop()


@differs("`-default_kv_lease_ttl` beyond 24 h")
def test_a_lease_beyond_what_the_pool_holds_is_refused_by_name(tmp_path: Path) -> None:
    program = Program(
        [*MASTER, "-rpc_port=0", "-metrics_port=0", "-default_kv_lease_ttl=25h"],
        tmp_path / "log",
    )
    assert program.process.wait(60) != 0
    text = program.log.read_text()
    assert "default_kv_lease_ttl=25h" in text and "24 h" in text


def _places(store: Any, key: str) -> list[str]:
    return [
        replica.get_memory_descriptor().buffer_descriptor.transport_endpoint
        for replica in store.get_replica_desc(key)
    ]


def _ended(store: Any, create: Callable[[], tuple[tuple[int, int], int]]) -> str:
    # Where the machine stood still, a segment has no lease for a moment, and is none.
    tasks: list[Any] = []
    assert wait_until(lambda: tasks.append(create()) or tasks[-1][1] == 0), tasks[-1]
    task = tasks[-1]
    assert wait_until(lambda: store.query_task(task[0])[0].status.name in ("SUCCESS", "FAILED"))
    answer = store.query_task(task[0])[0]
    return f"{answer.status.name}: {answer.message}"


@pytest.fixture
def segments(two: tuple[Any, Any], monkeypatch: Any) -> tuple[Any, str, str]:
    """A store, its segment, and another one; nothing but the connection names the master."""
    from mooncake.store import ReplicateConfig

    monkeypatch.delenv("KVCOVE_MASTER_ADMIN", raising=False)
    one = two[0]
    config = ReplicateConfig()
    names = []
    for store in two:
        config.preferred_segment = store.get_hostname()
        assert one.put(f"at {config.preferred_segment}", b"x", config) == 0
        names.append(_places(one, f"at {config.preferred_segment}")[0])
    assert names[0] != names[1]
    return one, names[0], names[1]


@differs("segments in descriptors and tasks")
def test_copies_and_moves_have_codes_of_their_own(segments: tuple[Any, str, str]) -> None:
    store, here, there = segments
    key = f"at {here}"
    assert _ended(store, lambda: store.create_copy_task(key, [there])).startswith("SUCCESS")
    assert sorted(_places(store, key)) == sorted((here, there))
    # One that is there already is done.
    assert _ended(store, lambda: store.create_copy_task(key, [there])).startswith("SUCCESS")
    assert _ended(store, lambda: store.create_copy_task(key, [here, there])).startswith("SUCCESS")
    nothing = (0, 0)
    assert store.create_copy_task(key, ["nowhere:1"]) == (nothing, -600)
    assert store.create_copy_task(key, []) == (nothing, -600)
    assert store.create_copy_task("missing", [there]) == (nothing, -704)
    assert store.create_move_task(key, "nowhere:1", there) == (nothing, -600)
    assert store.create_move_task(key, here, here) == (nothing, -600)
    assert store.create_move_task(key, "", there) == (nothing, -600)
    assert store.create_move_task("missing", here, there) == (nothing, -704)
    assert store.create_move_task(f"at {there}", here, there) == (nothing, -600)
    assert store.query_task((1, 2)) == (None, -1400)
    # A move to where the value is already leaves that one.
    assert _ended(store, lambda: store.create_move_task(key, here, there)).startswith("SUCCESS")
    assert wait_until(lambda: _places(store, key) == [there])
    assert store.get(key) == b"x"


@differs("segments in descriptors and tasks")
def test_one_replica_of_several_is_cleared(segments: tuple[Any, str, str]) -> None:
    from mooncake.store import ReplicateConfig

    store, here, there = segments
    config = ReplicateConfig()
    config.replica_num = 2
    key = ""

    def held(number: int) -> bool:
        nonlocal key
        key = f"both {number}"
        assert store.put(key, b"value", config) == 0
        assert wait_until(lambda: len(_places(store, key)) == 2)
        # Those looks hold the replica that they met, and so the value as a whole.
        cleared = [store.batch_replica_clear([key], place) for place in (there, here)]
        return cleared == [[], []] and store.batch_remove([key]) == [LEASED]

    while_leased(held)
    assert wait_until(lambda: store.batch_replica_clear([key, "missing"], there) == [key])
    assert wait_until(lambda: _places(store, key) == [here])
    assert store.get(key) == b"value"
    assert store.batch_replica_clear([key], there) == []
    assert store.batch_replica_clear([key], "nowhere:1") == []
    assert wait_until(lambda: store.batch_replica_clear([key, key], here) == [key])
    assert _places(store, key) == []


def test_a_lease_on_either_replica_counts(
    segments: tuple[Any, str, str], two: tuple[Any, Any]
) -> None:
    """Each store reads the replica in its own memory; the lease there keeps the other one, too."""
    from mooncake.store import ReplicateConfig

    config = ReplicateConfig()
    config.replica_num = 2
    for number, reader in enumerate(two):
        key = f"read by {number}"

        def held(_: int, key: str = key, reader: Any = reader) -> bool:
            assert two[0].put(key, b"value", config) == 0
            # Asking where it is would hold it; this does not.
            assert reader.get(key) == b"value"
            removed = [other.remove(key) for other in two]
            cleared = two[0].batch_replica_clear([key], segments[2])
            return removed == [LEASED, LEASED] and cleared == []

        while_leased(held)
        assert wait_until(lambda key=key: two[1].remove(key) == 0)


@differs("segments in descriptors and tasks")
def test_all_preferred_segments_count(segments: tuple[Any, str, str]) -> None:
    from mooncake.store import ReplicateConfig

    store, here, there = segments
    for wanted, first in (
        ([there, here], there),
        (["127.0.0.1:1", there], there),
        (["127.0.0.1:1", here], here),
    ):
        config = ReplicateConfig()
        config.preferred_segments = wanted
        key = "|".join(wanted)
        assert store.put(key, b"x", config) == 0
        assert _places(store, key) == [first]


@differs("segments in descriptors and tasks")
def test_every_replica_is_told_of(
    segments: tuple[Any, str, str], two: tuple[Any, Any], run_dir: Path
) -> None:
    from mooncake.store import ReplicateConfig

    store = segments[0]
    more = store.allocate_and_mount_segment(16 * MIB)
    assert more["ret"] == 0
    config = ReplicateConfig()
    config.replica_num = 3

    def three() -> bool:
        key = f"three {os.urandom(4).hex()}"
        assert store.put(key, b"x", config) == 0
        return len(set(_places(store, key))) == 3

    assert wait_until(three)
    assert store.unmount_and_free_segment(more["segment_ids"]) == 0
