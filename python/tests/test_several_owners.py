# SPDX-License-Identifier: Apache-2.0
"""A host with an owner on each NUMA node is one pool."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import MIB, Program, command_path

import kvcove


@pytest.fixture
def two_nodes(tmp_path: Path) -> Path:
    """A kernel's tree of two nodes, as a host with two sockets has it."""
    nodes = tmp_path / "sys" / "devices" / "system" / "node"
    for node in range(2):
        (nodes / f"node{node}").mkdir(parents=True)
        (nodes / f"node{node}" / "cpulist").write_text("0-63\n")
        lines = [f"Node {node} {name}: {1 << 20} kB" for name in ("MemTotal", "MemFree")]
        (nodes / f"node{node}" / "meminfo").write_text("\n".join(lines) + "\n")
    (nodes / "online").write_text("0-1\n")
    return tmp_path / "sys"


@pytest.fixture
def socket(tmp_path: Path, two_nodes: Path) -> Iterator[Path]:
    path = tmp_path / "several" / "kvcove.sock"
    path.parent.mkdir(mode=0o700)
    command = [command_path(), "serve", "--socket", str(path), "--memory", "32MiB"]
    command += ["--numa", "all", "--sysfs", str(two_nodes)]
    program = Program(command, tmp_path / "several.log")
    program.wait_for("NUMA node 1 at unix:")
    yield path
    assert program.stop() == 0


def objects_by_owner(socket: Path) -> list[int]:
    out = subprocess.run(
        [command_path(), "status", "--json", "--socket", str(socket)],
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    owners = json.loads(out.stdout)["owners"]
    assert [owner["node"] for owner in owners] == [0, 1]
    return [int(owner["objects"]) for owner in owners]


def test_two_owners_are_one_pool(socket: Path) -> None:
    with kvcove.open(f"unix:{socket}") as pool, kvcove.open(f"unix:{socket}") as other:
        assert pool.stat().payload_bytes == 32 * MIB
        writer, reader = pool.session("test/model@1"), other.session("test/model@1")
        # More than one owner has: the other one takes what the near one would have to evict for.
        keys = [f"key-{i}" for i in range(20)]
        for key in keys:
            assert writer.put([key], [key.encode() * (MIB // len(key))]).all_ok
        assert all(count > 0 for count in objects_by_owner(socket))
        assert reader.exists(keys).all_ok
        assert all(value is not None for value in reader.get(keys))
        writer.reset()
        assert reader.exists(keys).ok_count == 0
