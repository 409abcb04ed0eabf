# SPDX-License-Identifier: Apache-2.0
"""The comparison with the original: what it counts, and that docs/mooncake.md explains the rest."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from kvcove_lab import suite as _suite
from kvcove_lab.compare import EVICTED, EXPLAINED, WHALE, differences
from kvcove_lab.differences import explains, table

from kvcove import _lab

DOCS = Path(__file__).parents[2] / "docs" / "mooncake.md"
CALLS = Path(differences.__code__.co_filename).with_name("calls.py")
RIVAL = os.environ.get("KVCOVE_RIVAL_PYTHON", "")
SUITE = Path(__file__).with_name("conformance")


@pytest.mark.skipif(not DOCS.exists(), reason="the documentation is not beside the tests")
def test_the_table_is_what_compare_knows() -> None:
    assert table() in DOCS.read_text()


def test_each_explained_difference_is_in_the_table() -> None:
    reasons = {reason for _, _, reason in EXPLAINED} | {EVICTED}
    assert [reason for reason in reasons if not explains(reason)] == []
    marked = re.findall(r'@differs\("(.*)"\)', "".join(p.read_text() for p in SUITE.glob("*.py")))
    assert len(marked) > 20
    assert [row for row in marked if not explains(row)] == []


def _suite_of(directory: Path, text: str) -> Path:
    directory.mkdir(exist_ok=True)
    (directory / "conftest.py").write_text(
        "import os, pytest\n"
        "RIVAL = os.environ.get('KVCOVE_TEST_RIVAL', '')\n"
        "def differs(row):\n"
        "    return pytest.mark.skipif(RIVAL not in ('', 'all'), reason='differs: ' + row)\n"
        "@pytest.fixture\ndef broken(): assert not RIVAL\n"
        "def own(why):\n"
        "    return pytest.mark.skipif(bool(RIVAL), reason='kvcove\\'s own: ' + why)\n"
    )
    head = "import os\nfrom conftest import RIVAL, differs, own\n"
    (directory / "test_one.py").write_text(head + text)
    return directory


def test_a_suite_is_alike_or_explained_or_told(tmp_path: Path) -> None:
    suite = _suite_of(
        tmp_path / "suite",
        "def test_alike(): pass\n"
        "def test_fails_there(): assert not RIVAL\n"
        "def test_fails_here(): assert RIVAL\n"
        "@own('it is')\ndef test_own(): pass\n"
        "@differs('`setup` twice')\ndef test_differs(): assert not RIVAL\n"
        "@differs('a strided memoryview')\ndef test_ends_it(): os._exit(9) if RIVAL else None\n"
        "@differs('`setup` twice')\ndef test_marked_though_alike(): pass\n"
        "@differs('`setup` twice')\ndef test_never_begins(broken): pass\n"
        "@differs('nothing that is known')\ndef test_without_a_row(): assert not RIVAL\n",
    )
    result = _suite.compare(sys.executable, suite, "")
    assert result.alike == 1
    assert result.explained == {"`setup` twice": 1, "a strided memoryview": 1}
    assert result.one_sided == {"it is": 1, "failed here, passed there": 1}
    told = sorted(text.partition("::")[2].partition(":")[0] for text in result.unexplained)
    assert told == [
        "test_fails_here",
        "test_fails_there",
        "test_marked_though_alike",
        "test_never_begins",
        "test_without_a_row",
    ]


def test_a_suite_that_does_not_run_says_why(tmp_path: Path) -> None:
    suite = _suite_of(tmp_path / "suite", "")
    with pytest.raises(SystemExit, match="no-python"):
        _suite.compare(str(tmp_path / "no-python"), suite, "")


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
            timeout=300,
            check=True,
        )
        return ended.stdout.splitlines()

    first = rows()
    assert first == rows()
    assert json.loads(first[-1]) == "done"
    answers = {json.dumps(json.loads(row)[3]) for row in first[:-1]}
    assert len(answers) > 20, "the calls do not come to anything"


@pytest.mark.parametrize(
    "words", [["kvcove.mooncake", "compare"], ["kvcove.bench", "--rival", sys.executable]]
)
def test_a_wheel_says_where_the_comparison_is(words: list[str], tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", *words],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=tmp_path,
        check=False,
    )
    assert ended.returncode == 1
    command = " ".join(words[:2])
    assert ended.stderr == (
        f"python -m {command} is in python/lab of kvcove's sources and in no wheel: "
        "run it in a checkout\n"
    )


@pytest.mark.skipif(not DOCS.exists(), reason="the tests are in no checkout")
def test_a_checkout_has_the_comparison(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "kvcove.mooncake", "compare", "--table"],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=DOCS.parents[1],
        check=True,
    )
    assert ended.stdout == table()
    monkeypatch.chdir(DOCS.parents[1])
    with pytest.raises(SystemExit, match="there is no mooncake_master beside"):
        _lab.load("rival", "").rows(str(tmp_path / "python"))


@pytest.mark.skipif(not RIVAL, reason="KVCOVE_RIVAL_PYTHON names no interpreter with the original")
def test_nothing_differs_without_a_reason() -> None:
    command = [sys.executable, "-m", "kvcove.mooncake", "compare", "--rival", RIVAL]
    ended = subprocess.run(
        [*command, "--sequences", "300"], capture_output=True, text=True, timeout=300, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
