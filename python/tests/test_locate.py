# SPDX-License-Identifier: Apache-2.0
"""Where a prefix is: as a router asks, by a session and at a master's admin endpoint."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import Program, command_path, http, wait_until

import kvcove
from kvcove import engines

HASHES = [bytes([i, 0xAB]) for i in range(8)]


def shape_of(*groups: tuple[str, int, int, int, str]) -> engines.EngineShape:
    return engines.EngineShape(
        space="",
        model_name="m",
        model="abc",
        kv_dtype="bf16",
        hashing="sha256",
        hash_tokens=16,
        tp=2,
        pp=1,
        pcp=1,
        dcp=1,
        interleave=1,
        layers="",
        store_tp=0,
        groups=groups or (("full", 32, 0, 8, "HNC"),),
    )


@pytest.fixture
def owner(cluster: Any, tmp_path: Path) -> Iterator[str]:
    words = [command_path(), "owner", "--master", cluster.address, "--listen", "127.0.0.1:0"]
    words += ["--memory", "64MiB", "--admin", "off", "--socket", str(tmp_path / "s" / "o")]
    program = Program(words, tmp_path / "owner.log")
    program.wait_for("knows this owner as number")
    yield f"kvcove://{cluster.address}"
    program.stop()


def test_keys_of_block_hashes() -> None:
    shape = shape_of()
    assert shape.prefix_tags() == (["g0.h0of2", "g0.h1of2"], 2)
    keys = shape.prefix_keys(HASHES[:5])
    assert keys == [b"g0.h0of2@01ab", b"g0.h1of2@01ab", b"g0.h0of2@03ab", b"g0.h1of2@03ab"]
    assert shape.prefix_keys(HASHES[:2], adapter="d")[0] == b"g0.h0of2@01ab+d"
    with pytest.raises(TypeError, match="bytes"):
        shape.prefix_keys(["01ab"])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="no KV group has full attention"):
        shape_of(("state", 32, 0, 1, "")).prefix_tags()


def test_a_prefix_of_one_host() -> None:
    with kvcove.open("embedded:?memory=16MiB") as pool, pool.session("test/model@1") as session:
        assert session.put(["a", "b", "d"], [b"1"] * 3).all_ok
        located = session.locate(["a", "b", "c", "d"])
        assert (located.keys, located.reason.name) == (2, "NEVER_PUT")
        (owner,) = located.owners
        assert (owner.owner, owner.prefix, owner.memory_prefix) == ("local", 2, 2)
        assert (owner.memory, owner.disk) == (2, 0)
        assert session.locate(["a"]).reason is kvcove.MissReason.NONE
        assert session.locate([]).owners == []
        with pytest.raises(kvcove.InvalidError):
            session.locate(["a", ""])


def test_a_prefix_of_a_cluster(cluster: Any, owner: str) -> None:
    shape = shape_of()
    with kvcove.open(owner) as pool, pool.session(shape.namespace) as session:
        keys = shape.prefix_keys(HASHES)
        assert session.put(keys[:5], [b"kv"] * 5).all_ok
        # A master that is late lists a value after its put has returned.
        assert wait_until(lambda: session.locate(keys).keys == 5)
        located = session.locate(keys)
        (place,) = located.owners
        assert place.memory_prefix == 5
        tags, hashes = shape.prefix_tags()
        asked = {
            "namespace": shape.namespace,
            "block_hashes": [block.hex() for block in HASHES],
            "tags": tags,
            "hashes_per_chunk": hashes,
        }
        status, answer = http(f"http://127.0.0.1:{cluster.admin_port}/v1/prefix", asked)
        assert status == 200, answer
        assert answer["chunks"] == 2, answer
        assert answer["owners"][0]["owner"] == place.owner
        assert answer["owners"][0]["memory_prefix_chunks"] == 2
        assert answer["owners"][0]["memory"] == 5
