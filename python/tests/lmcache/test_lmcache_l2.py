# SPDX-License-Identifier: Apache-2.0
"""The L2 adapter beneath the real storage of LMCache's server: who shares, what a clear voids, what faults cost."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import kvcove

pytest.importorskip("torch")
pytest.importorskip("lmcache")

from kvcove.lmcache.__main__ import main
from lmcache_storage import CHUNK_BYTES, MODEL, Owner, expected, keys_of, storage, wait_for

PROMPT = keys_of("prompt")


@pytest.fixture
def directory() -> Iterator[Path]:
    """For sockets, whose paths must be short."""
    with tempfile.TemporaryDirectory(prefix="kvl-", dir="/tmp") as made:
        yield Path(made)


@pytest.fixture
def owner(directory: Path) -> Iterator[Owner]:
    made = Owner(directory / "pool.sock")
    yield made
    made.kill()


@pytest.fixture
def pool(owner: Owner) -> str:
    return owner.address


# ---- who shares


def test_another_server_finds_what_one_stored(pool: str) -> None:
    with storage(pool) as first, storage(pool) as other:
        assert other.fetch(PROMPT) == 0
        first.store(PROMPT)
        assert other.fetch(PROMPT) == len(PROMPT)
        assert other.counts()["loaded_objects"] == len(PROMPT)


def test_a_prefix_is_found_as_far_as_it_is_there(pool: str) -> None:
    with storage(pool) as first, storage(pool) as other:
        first.store(PROMPT[:3])
        assert other.fetch(PROMPT) == 3


def test_salts_models_and_ranks_share_nothing(pool: str) -> None:
    with storage(pool) as first, storage(pool) as other:
        first.store(keys_of("prompt", salt="acme"))
        assert other.fetch(keys_of("prompt")) == 0
        assert other.fetch(keys_of("prompt", salt="acme2")) == 0
        assert other.fetch(keys_of("prompt", salt="acme", model="another")) == 0
        assert other.fetch(keys_of("prompt", salt="acme", rank=0x02000200)) == 0
        assert other.fetch(keys_of("prompt", salt="acme")) == 8


def test_a_salt_is_a_namespace(pool: str) -> None:
    with storage(pool, namespace="team") as first:
        first.store(keys_of("prompt", salt="acme"))
        first.store(keys_of("prompt", salt="other"))
        with kvcove.open(pool) as plain:
            name = f"team/lmcache/{MODEL}@acme"
            with plain.session(name, follow_always=True) as session:
                assert len(session.stored()) == 8
                session.reset(all_void=True)
        first.forget()
        assert first.fetch(keys_of("prompt", salt="acme")) == 0
        assert first.fetch(keys_of("prompt", salt="other")) == 8


def test_servers_of_other_namespaces_share_nothing(pool: str) -> None:
    with storage(pool, namespace="a") as first, storage(pool, namespace="b") as other:
        first.store(PROMPT)
        assert other.fetch(PROMPT) == 0


# ---- clears


def test_a_clear_voids_every_salt_also_those_that_a_server_has_not_seen(pool: str) -> None:
    salted = keys_of("prompt", salt="acme")
    with storage(pool) as first, storage(pool) as other:
        first.store(PROMPT)
        first.store(salted)
        other.manager.clear()
        for each in (first, other):
            each.forget()
            assert each.fetch(PROMPT) == 0
            assert each.fetch(salted) == 0
        first.store(PROMPT)
        assert other.fetch(PROMPT) == len(PROMPT)


def test_a_put_that_ends_after_a_clear_stores_nothing(pool: str) -> None:
    """A store that was begun before a clear, and whose bytes come after it."""
    with storage(pool) as first, storage(pool) as other:
        begin, begun, go = first.adapter._stores.submit, threading.Event(), threading.Event()

        def held(keys: Any, objects: Any, clears: int, parts: Any, start: Any) -> int:
            begun.set()
            assert go.wait(120)
            return begin(keys, objects, clears, parts, start)

        first.adapter._stores.submit = held  # type: ignore[method-assign]
        before = first.counts()
        first.end(first.begin(PROMPT))
        assert begun.wait(120)
        other.manager.clear()
        go.set()
        first.settle(before)
        assert other.fetch(PROMPT) == 0


def test_kv_that_is_written_while_a_clear_comes_is_not_stored(pool: str) -> None:
    """LMCache keeps in L1 what is being written; it is of before the clear."""
    with storage(pool) as first, storage(pool) as other:
        reserved = first.begin(PROMPT)
        first.manager.clear()
        before = first.counts()
        first.end(reserved)
        first.settle(before)
        assert first.counts()["stale_stores"] == len(PROMPT)
        assert other.fetch(PROMPT) == 0
        fresh = keys_of("fresh")
        first.store(fresh)
        assert other.fetch(fresh) == len(fresh)


def test_a_load_that_a_clear_overtakes_brings_nothing(pool: str) -> None:
    with storage(pool) as first, storage(pool) as other:
        first.store(PROMPT)
        take, once = other.adapter._loads.take, threading.Event()

        def late() -> Any:
            if not once.is_set():
                once.set()
                other.manager.clear()
            return take()

        other.adapter._loads.take = late  # type: ignore[method-assign]
        assert other.fetch(PROMPT) == 0
        assert other.counts()["failed_loads"] == len(PROMPT)


def test_a_clear_that_is_not_proven_is_an_error_and_closes(owner: Owner) -> None:
    with storage(owner.address, reset_timeout_ms=200, lookup_timeout_ms=200) as first:
        first.store(PROMPT)
        owner.kill()
        with pytest.raises(kvcove.Error):
            first.manager.clear()
        assert first.fetch(PROMPT) == 0


# ---- faults


def test_an_owner_that_is_killed_during_a_load_is_a_miss(owner: Owner) -> None:
    with storage(owner.address) as first, storage(owner.address, timeout_ms=2000) as other:
        first.store(PROMPT)
        free = other.l1_bytes()
        begin, killed = other.adapter.submit_load_task, threading.Event()

        def kill(*args: Any) -> int:
            owner.kill()
            killed.set()
            return begin(*args)

        other.adapter.submit_load_task = kill  # type: ignore[method-assign]
        assert other.fetch(PROMPT) == 0
        assert killed.is_set()
        wait_for(lambda: other.l1_bytes() == free)
        assert other.adapter.report_status()["is_healthy"] is False
        other.end(other.begin(keys_of("more")))  # nobody stores it, and the server goes on


def test_a_damaged_object_on_disk_is_a_miss(directory: Path) -> None:
    disk, data = directory / "disk", str(directory / "data")
    many = keys_of("many", 64)  # four times the memory

    def start() -> Owner:
        return Owner(directory / "pool.sock", 1 << 20, f"{disk}:64MiB", data)

    def found() -> int:
        with storage(started.address) as other:
            return sum(other.fetch([key]) for key in many)

    started = start()
    with storage(started.address) as first:
        for at in range(0, len(many), 4):
            first.store(many[at : at + 4])
    started.stop()
    started = start()
    whole = found()
    started.stop()
    assert whole > 16  # more than memory holds
    content = bytearray(disk.read_bytes())
    for key in many[:32]:
        at = content.find(expected(key).numpy().tobytes()[:4096])
        if at >= 0:
            content[at + 1000] ^= 0xFF
    disk.write_bytes(content)
    started = start()
    left = found()  # which compares all bytes
    started.kill()
    assert 0 < left < whole


def test_memory_that_is_exhausted_costs_hits_only(directory: Path) -> None:
    owner = Owner(directory / "small.sock", 1 << 20)
    many = keys_of("many", 64)
    with storage(owner.address) as first, storage(owner.address) as other:
        for at in range(0, len(many), 8):
            first.store(many[at : at + 8])
        assert 0 < sum(other.fetch([key]) for key in many) < len(many)
        full = keys_of("large", 48)  # more than there is in one batch
        before = first.counts()
        first.end(first.begin(full))
        first.settle(before)
        first.forget()
        assert first.fetch(full) <= len(full)
    owner.kill()


def test_an_l1_without_room_loses_nothing(pool: str) -> None:
    many = keys_of("many", 32)
    with storage(pool) as first, storage(pool, l1_bytes=8 * CHUNK_BYTES) as small:
        first.store(many)
        assert small.fetch(many) <= 8
        wait_for(lambda: small.fetch(many[:2]) == 2)


# ---- quotas


def test_a_quota_of_lmcache_removes_what_is_over_it(pool: str) -> None:
    evict = {
        "eviction": {
            "eviction_policy": "IsolatedLRU",
            "trigger_watermark": 0.9,
            "eviction_ratio": 0.5,
        }
    }
    with storage(pool, outer=evict) as first, storage(pool) as other:
        first.manager.quota_manager.set_quota("acme", 1 << 30)
        first.manager.quota_manager.set_quota("small", 2 * CHUNK_BYTES)
        for salt in ("acme", "small"):
            first.store(keys_of("prompt", salt=salt))
        usage = first.adapter.get_usage().bytes_by_cache_salt
        assert usage["acme"] == 8 * CHUNK_BYTES
        wait_for(
            lambda: first.adapter.get_usage().bytes_by_cache_salt.get("small", 0) <= 2 * CHUNK_BYTES
        )
        assert other.fetch(keys_of("prompt", salt="acme")) == 8
        assert sum(other.fetch([key]) for key in keys_of("prompt", salt="small")) <= 2


def test_what_the_pool_has_evicted_counts_in_no_quota(directory: Path) -> None:
    owner = Owner(directory / "small.sock", 1 << 20)
    many = keys_of("many", 64, salt="acme")
    with storage(owner.address) as first:
        for at in range(0, len(many), 8):
            first.store(many[at : at + 8])
        first.forget()
        there = sum(first.fetch([key]) for key in many)
        used = first.adapter.get_usage().bytes_by_cache_salt["acme"]
        assert there * CHUNK_BYTES <= used < len(many) * CHUNK_BYTES
    owner.kill()


def test_stored_keys_are_listed_in_pages(pool: str) -> None:
    with storage(pool) as first:
        first.store(keys_of("prompt", salt="acme"))
        first.store(PROMPT)
        found, cursor = [], None
        while True:
            page = first.adapter.list_l2_keys(MODEL, page_size=5, cursor=cursor)
            found += [each.key.to_object_key() for each in page.entries]
            assert all(each.size_bytes == CHUNK_BYTES for each in page.entries)
            cursor = page.next_page_token
            if cursor is None:
                break
        assert sorted(map(repr, found)) == sorted(
            map(repr, [*PROMPT, *keys_of("prompt", salt="acme")])
        )
        assert first.adapter.list_l2_keys("another").entries == ()


# ---- settings


def test_a_serde_of_lmcache_is_taken(pool: str) -> None:
    outer = {"serde": {"type": "fp8"}}
    with storage(pool, outer=outer) as first:
        assert first.fetch(PROMPT) == 0  # says which layout the bytes are of
        first.store(PROMPT)
        assert first.counts()["stored_bytes"] < len(PROMPT) * CHUNK_BYTES


def test_a_pool_that_is_not_there_is_an_error_or_a_warning(directory: Path) -> None:
    address = f"unix:{directory}/nobody.sock"
    with pytest.raises(Exception, match="nobody"):
        storage(address).__enter__()
    with storage(address, on_unreachable="fallback") as alone:
        alone.store(PROMPT)
        alone.forget()
        assert alone.fetch(PROMPT) == 0
        alone.manager.clear()


def test_servers_that_do_not_share_are_told_why(
    pool: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with storage(pool) as first, storage(pool, namespace="others") as other:
        first.fetch(PROMPT)
        with kvcove.open(pool) as plain, plain.session("kvcove-facts") as session:
            wait_for(lambda: session.exists([f"facts of {MODEL}, 0"]).all_ok)
            other.fetch(PROMPT)
            wait_for(lambda: session.exists([f"facts of {MODEL}, 1"]).all_ok)
    assert main(["explain", MODEL, pool]) == 0
    text = capsys.readouterr().out
    assert "kinds 1 and 2 do not share:" in text
    assert "namespace setting" in text
    assert "2x4x16x256 bfloat16" in text
    assert main(["explain", "nobody", pool]) == 1
