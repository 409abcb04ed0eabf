# SPDX-License-Identifier: Apache-2.0
"""The comparison with the original: what it counts, and that docs/mooncake.md explains the rest."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from kvcove.mooncake._compare import EVICTED, EXPLAINED, WHALE, differences

DOCS = Path(__file__).parents[2] / "docs" / "mooncake.md"
CALLS = Path(differences.__code__.co_filename).with_name("_calls.py")
RIVAL = os.environ.get("KVCOVE_RIVAL_PYTHON", "")


@pytest.mark.skipif(not DOCS.exists(), reason="the documentation is not beside the tests")
def test_each_explained_difference_is_in_the_table() -> None:
    rows = [line for line in DOCS.read_text().splitlines() if line.startswith("|")]
    for reason in (*(reason for _, _, reason in EXPLAINED), EVICTED):
        assert any(reason in row for row in rows), reason


def test_what_differs_is_explained_or_told() -> None:
    there = [
        [0, "get", ["k"], 1],
        [0, "get", ["k"], 2],
        [1, "put_parts", ["k"], 0],
        [2, "x", [], 5],
    ]
    here = [
        [0, "get", ["k"], 1],
        [0, "get", ["k"], 3],
        [1, "put_parts", ["k"], -600],
        [2, "x", [], 5],
    ]
    compared, explained, unexplained = differences(iter([*there, "done"]), iter([*here, "done"]))
    assert compared == 4
    assert explained == {"parts of nothing": 1}
    assert unexplained == ["sequence 0: get['k']: 2 there, 3 here"]


def test_what_a_large_value_evicted_is_explained_behind_it_only() -> None:
    large = [0, WHALE, ["k", 64 << 20], [0, [64 << 20]]]
    there = [large, [0, "get_size", ["j"], -704], [1, "get_size", ["j"], -704], [2, "get", [], 7]]
    here = [large, [0, "get_size", ["j"], 304], [1, "get_size", ["j"], 304], [2, "get", [], 7]]
    compared, explained, unexplained = differences(iter(there), iter(here))
    assert (compared, explained) == (4, {EVICTED: 1})
    assert unexplained == ["sequence 1: get_size['j']: -704 there, 304 here"]
    # The other way round it is no eviction of the original's.
    assert len(differences(iter(here), iter(there))[2]) == 2


def test_only_the_first_difference_of_a_sequence_counts() -> None:
    there = [[0, "a", [], 1], [0, "b", [], 1], [1, "c", [], 1]]
    here = [[0, "a", [], 2], [0, "b", [], 2], [1, "c", [], 1]]
    compared, _, unexplained = differences(iter(there), iter(here))
    assert (compared, len(unexplained)) == (2, 1)


def test_other_calls_are_not_compared() -> None:
    with pytest.raises(SystemExit, match="other calls"):
        differences(iter([[0, "a", [], 1]]), iter([[0, "b", [], 1]]))


def test_the_same_seed_makes_the_same_calls(run_dir: Path) -> None:
    def rows() -> list[str]:
        ended = subprocess.run(
            [sys.executable, "-P", str(CALLS), "embedded:", "5", "0", "40"],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        return ended.stdout.splitlines()

    first = rows()
    assert first == rows()
    assert json.loads(first[-1]) == "done"
    answers = {json.dumps(json.loads(row)[3]) for row in first[:-1]}
    assert len(answers) > 20, "the calls do not come to anything"


@pytest.mark.skipif(not RIVAL, reason="KVCOVE_RIVAL_PYTHON names no interpreter with the original")
def test_nothing_differs_without_a_reason() -> None:
    command = [sys.executable, "-m", "kvcove.mooncake", "compare", "--rival", RIVAL]
    ended = subprocess.run(
        [*command, "--sequences", "300"], capture_output=True, text=True, timeout=300, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
