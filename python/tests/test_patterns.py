# SPDX-License-Identifier: Apache-2.0
"""Regular expressions of remove_by_regex as the pool's patterns."""

from __future__ import annotations

import itertools
import re

import pytest
from kvcove.mooncake._patterns import patterns_of

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
