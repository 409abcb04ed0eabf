# SPDX-License-Identifier: Apache-2.0
"""``python -m kvcove.vllm explain ENGINE_ARGS... [-- ENGINE_ARGS...]``.

Prints the namespace, the groups of layers, the layout and the bytes a token of an engine that
``vllm serve ENGINE_ARGS...`` would start; of several engines, divided by ``--``, also which of them
share, and why the others do not. Nothing is started, and no weights are read.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import subprocess
import sys
from typing import Any

_USAGE = """\
python -m kvcove.vllm explain [--json] ENGINE_ARGS... [-- ENGINE_ARGS...]

  ENGINE_ARGS  as `vllm serve` takes them, --kv-transfer-config among them
  --           begins another engine: which of them share, and why others do not
  --json       for programs"""


def _engines_in(words: list[str]) -> list[list[str]]:
    """Return the arguments of each engine."""
    return [
        list(group)
        for divider, group in itertools.groupby(words, lambda word: word == "--")
        if not divider
    ]


def _told(arguments: list[str]) -> dict[str, Any]:
    """Explain an engine in a process of its own: vLLM has one configuration a process."""
    ran = subprocess.run(
        [sys.executable, "-m", "kvcove.vllm", "explain", "--json", *arguments],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if ran.returncode != 0:
        raise SystemExit(ran.returncode)
    found: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return found


def main(words: list[str]) -> int:
    """Run the command."""
    if not words or words[0] != "explain" or len(words) == 1 or "--help" in words:
        print(_USAGE)
        return 0 if "--help" in words else 2
    as_json = words[1] == "--json"
    asked = _engines_in(words[2:] if as_json else words[1:])
    # vLLM's own lines go to where the answer goes.
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    try:
        from kvcove.vllm import _explain
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "vllm":
            raise
        print(
            f"explain plans an engine with vLLM, which {sys.executable} does not have: "
            "run it with the Python of the engine",
            file=sys.stderr,
        )
        return 1

    if len(asked) == 1:
        try:
            one = _explain.explain(asked[0])
        except ValueError as error:
            print(error, file=sys.stderr)
            return 1
        print(json.dumps(dataclasses.asdict(one)) if as_json else _explain.text_of(one))
        return 0
    found = [_explain.Explained(**_told(arguments)) for arguments in asked]
    pairs = [
        (first + 1, second + 1, _explain.differences(found[first], found[second]))
        for first, second in itertools.combinations(range(len(found)), 2)
    ]
    if as_json:
        told = [
            {"engines": [first, second], "shares": not why, "differences": why}
            for first, second, why in pairs
        ]
        print(json.dumps({"engines": [dataclasses.asdict(one) for one in found], "pairs": told}))
        return 0
    for number, one in enumerate(found, 1):
        print(f"== engine {number}\n{_explain.text_of(one)}\n")
    for first, second, why in pairs:
        print(f"engines {first} and {second} {'do not share:' if why else 'share'}")
        for fact, one_has, other_has, advice in why:
            print(f"  {fact}: {one_has} and {other_has}; {advice}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
