# SPDX-License-Identifier: Apache-2.0
"""``python -m kvcove.sglang explain MODEL [POOL]``: why engines of a model share, or do not.

Each engine leaves in the pool what must be equal. SGLang need not be there.
"""

from __future__ import annotations

import itertools
import sys

import kvcove
from kvcove import engines
from kvcove.sglang._config import FACTS

_USAGE = """\
python -m kvcove.sglang explain MODEL [POOL]

  MODEL  last part of --model-path or of the model's name
  POOL   address of the pool; by default what $KVCOVE_POOL names, else this host's owner"""


def text_of(found: list[dict[str, str]]) -> str:
    """Return what people read of the facts of several kinds of engines."""
    lines = []
    for number, facts in enumerate(found, 1):
        width = max(map(len, facts))
        lines.append(f"== kind {number} of engines")
        lines += [f"  {name.ljust(width)}  {fact}" for name, fact in facts.items()]
    for (one, first), (two, second) in itertools.combinations(enumerate(found, 1), 2):
        lines.append(f"engines of kinds {one} and {two} do not share:")
        lines += [
            f"  {fact}: {there} and {here}; {engines.advice_of(fact)}"
            for fact, there, here in engines.differences(second, first)
        ]
    lines.append("Engines of one kind share, as far as their weights are equal.")
    return "\n".join(lines)


def main(words: list[str]) -> int:
    """Run the command."""
    if "--help" in words or len(words) not in (2, 3) or words[0] != "explain":
        print(_USAGE)
        return 0 if "--help" in words else 2
    try:
        address = words[2] if len(words) == 3 else engines.named_pool()[0]
        with kvcove.open(address) as pool, pool.session(FACTS) as session:
            found = engines.left(session, words[1])
    except (kvcove.Error, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    if not found:
        print(f"no engine of {words[1]} has used this pool", file=sys.stderr)
        return 1
    print(text_of(found))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
