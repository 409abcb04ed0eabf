# SPDX-License-Identifier: Apache-2.0
"""``explain MODEL [POOL]`` of an engine's adapter: why those that serve a model share, or do not."""

from __future__ import annotations

import itertools
import sys

import kvcove
from kvcove.engines._facts import FACTS, advice_of, differences, left
from kvcove.engines._pool import named_pool

__all__ = ["explain"]


def _text_of(found: list[dict[str, str]]) -> str:
    """Return what people read of the facts of several kinds of engines."""
    lines = []
    for number, facts in enumerate(found, 1):
        width = max(map(len, facts))
        lines.append(f"== kind {number} of engines")
        lines += [f"  {name.ljust(width)}  {fact}" for name, fact in facts.items()]
    for (one, first), (two, second) in itertools.combinations(enumerate(found, 1), 2):
        lines.append(f"engines of kinds {one} and {two} do not share:")
        lines += [
            f"  {fact}: {there} and {here}; {advice_of(fact)}"
            for fact, there, here in differences(second, first)
        ]
    lines.append("Engines of one kind share, as far as their weights are equal.")
    return "\n".join(lines)


def explain(words: list[str], usage: str) -> int:
    """Run the command.

    Parameters
    ----------
    words : list of str
        Its arguments.
    usage : str
        What ``--help`` prints.
    """
    if "--help" in words or len(words) not in (2, 3) or words[0] != "explain":
        print(usage)
        return 0 if "--help" in words else 2
    try:
        address = words[2] if len(words) == 3 else named_pool()[0]
        with kvcove.open(address) as pool, pool.session(FACTS) as session:
            found = left(session, words[1])
    except (kvcove.Error, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    if not found:
        print(f"no engine of {words[1]} has used this pool", file=sys.stderr)
        return 1
    print(_text_of(found))
    return 0
