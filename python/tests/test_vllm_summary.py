# SPDX-License-Identifier: Apache-2.0
"""The lines that say what the pool brings to an engine."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from kvcove.vllm._summary import Summary, chunks_text, size_line


def test_a_chunk_of_several_groups_reads_as_text() -> None:
    assert chunks_text([524288]) == "524,288"
    assert chunks_text([524288, 4096]) == "524,288 + 4,096"


def test_a_pool_that_adds_nothing_says_so() -> None:
    gib = 1 << 30
    text, warns = size_line(gib, 4096.0, 262144, alone=True)
    assert text.startswith(
        "the pool holds about 262,144 tokens of this model (1.0 GiB, 4,096 bytes"
    )
    assert "own cache 262,144: as it is this engine's alone, it adds nothing" in text
    assert warns
    text, warns = size_line(gib, 4096.0, 262144, alone=False)
    assert text.endswith("for one engine it adds nothing, only for several that share it")
    assert not warns
    text, warns = size_line(4 * gib, 4096.0, 262144, alone=True)
    assert text.endswith("this engine's own cache 262,144")
    assert not warns


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_line_a_minute_where_something_happened_and_one_at_the_end() -> None:
    lines: list[str] = []
    clock = Clock()
    summary = Summary(lines.append, clock)
    step = {
        "lookups": 2,
        "asked_tokens": 1000,
        "hit_tokens": 750,
        "hit_memory_keys": 3,
        "hit_disk_keys": 1,
        "cost_compute_token_ns": 2_000_000,
        "loaded_bytes": 1_500_000_000,
        "saved_bytes": 20_000_000,
        "lookup_missed_never_put": 2,
        "lookup_missed_evicted": 5,
        "lookup_seconds_le_0.001": 2,
    }
    clock.now += 59
    summary.add(step)
    assert lines == []
    clock.now += 2
    summary.add({"saved_keys": 1})
    assert lines == [
        "the last 61 s: 750 of 1,000 tokens looked up were found (75 %); 75 % in memory of this host, "
        "25 % in disks; about 1.5 s of computing saved; loaded 1.50 GB, stored 0.02 GB; "
        "keys missed: 5 evicted, 2 never put"
    ]
    clock.now += 61
    summary.add({"asked_again": 1})
    assert len(lines) == 1, "an idle engine says nothing"
    clock.now += 10
    summary.add({**step, "loads_failed": 1, "failed_disk_keys": 2, "stale_keys": 3})
    summary.end()
    assert len(lines) == 2
    assert lines[1].startswith(
        "all 132 s of this engine: 1,500 of 2,000 tokens looked up were found"
    )
    assert "about 3.0 s of computing saved" in lines[1]
    assert (
        "1 loads failed; 2 values on disks not loaded; "
        "3 values refused, as they were computed before a reset"
    ) in lines[1]


def test_an_engine_that_did_nothing_ends_without_a_line() -> None:
    lines: list[str] = []
    summary = Summary(lines.append)
    summary.add({"epochs": 1, "asked_tokens": 0})
    summary.end()
    assert lines == []


def test_the_command_that_started_the_engine_is_told_what_there_was(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    clock = Clock()
    summary = Summary(lambda line: None, clock, tell=str(path))
    clock.now += 61
    summary.add({"lookups": 1, "asked_tokens": 10, "hit_tokens": 5})  # nobody reads: it is lost
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    clock.now += 61
    summary.add({"lookups": 1, "asked_tokens": 10, "hit_tokens": 5})
    clock.now += 61
    summary.add({})
    clock.now += 1
    summary.end()
    lines = os.read(reader, 1 << 16).decode().splitlines()
    os.close(reader)
    assert len(lines) == 2, "an idle minute is not told"
    names = {line.partition(" ")[0] for line in lines}
    assert len(names) == 1 and names.pop().startswith(f"{os.getpid()}-")
    assert "all 122 s of this engine: 10 of 20 tokens looked up were found" in lines[0]
    assert "all 184 s of this engine: 10 of 20 tokens looked up were found" in lines[1]
    assert Summary(lambda line: None)._name != Summary(lambda line: None)._name


def test_what_is_no_pipe_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("somebody's")
    summary = Summary(lambda line: None, tell=str(path))
    summary.add({"lookups": 1, "asked_tokens": 10})
    summary.end()
    assert path.read_text() == "somebody's"


def test_a_pipe_that_is_full_or_gone_holds_no_engine_up(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    writer = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writer, b"x" * 4096)
    for place in (path, tmp_path / "none"):
        summary = Summary(lambda line: None, tell=str(place))
        summary.add({"lookups": 1, "asked_tokens": 10})
        summary.end()
    os.close(writer)
    os.close(reader)
