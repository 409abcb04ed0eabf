# SPDX-License-Identifier: Apache-2.0
"""Regular expressions of remove_by_regex as the pool's patterns."""

from __future__ import annotations

import itertools
import re
import threading
import time

import pytest
from kvcove.mooncake._matching import found_in
from kvcove.mooncake._patterns import patterns_of
from kvcove.mooncake.store import MooncakeDistributedStore

KNOWN = {
    "": ["*"],
    ".*": ["*"],
    "^": ["*"],
    "^.*$": ["*"],
    "abc": ["*abc*"],
    "^abc": ["abc*"],
    "abc$": ["*abc"],
    "^abc$": ["abc"],
    r"^model\.layer/7@": ["model.layer/7@*"],
    "^k00[4-6]$": ["k004", "k005", "k006"],
    "^(?:a|bc)x": ["ax*", "bcx*"],
    "^a|b$": ["*b", "a*"],
    "^a.+b$": ["a?*b"],
    "^ab?c$": ["abc", "ac"],
    "^a.{2}": ["a??*"],
    "^a.{0,2}b$": ["a??b", "a?b", "ab"],
    r"^k\d$": [f"k{i}" for i in range(10)],
    "^ä": ["ä*"],
}


@pytest.mark.parametrize("expression", KNOWN)
def test_what_patterns_can_say(expression: str) -> None:
    assert patterns_of(expression.encode()) == KNOWN[expression]


@pytest.mark.parametrize(
    "expression",
    [r"\*", r"a\?", "[^a]", r"\d+", "(a)\\1", "a(?=b)", "a^b", "a$b", "[0-9][0-9]", "(?i)a", "[ä]"],
)
def test_what_they_cannot_say(expression: str) -> None:
    assert patterns_of(expression.encode()) is None


def test_patterns_match_what_the_expression_is_found_in() -> None:
    """Every short key of a small alphabet, against every short expression of it."""
    keys = ["".join(one) for n in range(5) for one in itertools.product("ab\n", repeat=n)]
    parts = ["a", "b", ".", "^", "$", ".*", "a?", "[ab]", "(?:a|bb)", "b{2}"]
    said = 0
    for n in range(4):
        for expression in map("".join, itertools.product(parts, repeat=n)):
            patterns = patterns_of(expression.encode())
            if patterns is None:
                continue
            said += 1
            # `$` is the end alone, and `.` any byte, as patterns have it.
            exact = re.compile(expression.replace("$", r"\Z").encode(), re.DOTALL)
            globs = [
                re.compile(
                    b"".join({"*": b".*", "?": b"."}.get(c, re.escape(c.encode())) for c in one),
                    re.DOTALL,
                )
                for one in patterns
            ]
            for key in map(str.encode, keys):
                found = exact.search(key) is not None
                assert found == any(one.fullmatch(key) for one in globs), (expression, key)
    assert said > 300


ENDLESS = ["^(a+)+$", "(a|a)*b", "(a*)*b", "^(?:.*a){40}$", "(?=(a+)+$)b"]


@pytest.mark.parametrize("expression", ENDLESS)
def test_an_expression_that_never_ends_is_stopped(expression: str) -> None:
    """Its keys are matched outside, so other threads go on."""
    keys = [b"a" * 60 + b"c"]
    ticks = 0
    stopped = threading.Event()

    def tick() -> None:
        nonlocal ticks
        while not stopped.wait(0.01):
            ticks += 1

    thread = threading.Thread(target=tick)
    thread.start()
    begin = time.monotonic()
    with pytest.raises(TimeoutError, match=r"longer than 1 s: write .* without a repetition"):
        found_in(expression.encode(), keys, 1.0)
    stopped.set()
    thread.join()
    assert time.monotonic() - begin < 60
    assert ticks > 10


def test_keys_are_matched_outside_as_here() -> None:
    keys = [bytes(one) for n in range(3) for one in itertools.product(b"ab\n\xff\0", repeat=n)]
    for expression in (b"a", b"^a.$", rb"\xff", b"", b"(a)\\1", b"(?i)A", b"a(?=b)", b"[^a]"):
        wanted = [re.compile(expression, re.DOTALL).search(key) is not None for key in keys]
        assert found_in(expression, keys) == wanted
    assert found_in(b"(", []) == []
    with pytest.raises(OSError, match="ended with 1"):
        found_in(b"(", [b"a"])


def test_a_store_refuses_an_expression_that_never_ends(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = MooncakeDistributedStore()
    assert store.setup("localhost", "P2PHANDSHAKE", 16 << 20, 1 << 20, "tcp", "", "embedded:") == 0
    keys = ["a" * 60 + "c", "aa"]
    assert store.put_batch(keys, [b"x"] * 2) == 0
    monkeypatch.setattr(
        "kvcove.mooncake.store.found_in", lambda one, all_: found_in(one, all_, 1.0)
    )
    assert store.remove_by_regex("^(a+)+$", True) == -600
    assert "without a repetition inside a repetition" in caplog.text
    assert store.batch_is_exist(keys) == [1, 1]
    assert store.remove_by_regex("^(a)+$", True) == 1
    assert store.remove_by_regex("(", True) == -600
    store.close()
