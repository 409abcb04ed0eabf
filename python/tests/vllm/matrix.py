# SPDX-License-Identifier: Apache-2.0
"""What each version of vLLM was seen to do on kvcove: matrix.py [--write FILE] DIRECTORY...

Each DIRECTORY is one in which run.py has worked. Prints a table in Markdown: a row for each part, a column for each version. With
--write the table takes the place of what stands between the marks in FILE (docs/connector.md).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

BEGIN, END = "<!-- matrix: begin -->", "<!-- matrix: end -->"
# What each part of run.py is, for people; of one without text each layout has a row: what stands before the colon of its checks.
PARTS = {
    "own": "load, save, reset, other weights: in process, own process, on a pool, by layers, twice in a MultiConnector",
    "served": "`vllm serve`, resets over HTTP",
    "cascade": "five cycles in verl's order",
    "trainers": "sleep and wake, pause, weights that nobody tells of",
    "pauses": "100 pauses, sleeps and awakenings beside loads",
    "hybrid": "sliding windows, states",
    "layouts": "n-gram and EAGLE speculation, beside NIXL, kv_producer and kv_consumer",
    "disaggregated": "prefill and decode in two engines, NIXL between them",
    "experts": "two data-parallel engines, with and without experts",
    "ranks": "TP 2, and TP 1 and 2 that share",
    "adapters": "LoRA adapters, TP 1",
    "refused": "a token that may not reset, a preferred segment that is no owner's",
    "router": "routers that know the KV events alone: late, slow, started again; evictions, other weights, resets",
    "features": "KV events, metrics, salts, an owner killed and frozen, no pool",
    "disk": "a pool with a disk",
    "hints": "hints for eviction",
    "explain": "`explain`",
    "slurm": "a job of two nodes",
    "shapes": "",
    "kinds": "",
    "queued": "MooncakeStoreConnector: a put that is queued at a reset",
    "mooncake": "MooncakeStoreConnector on the drop-in",
}


Checks = list[list[Any]]


def cell(checks: Checks | None) -> str:
    """Return what a part did: its checks that held, or those that did not."""
    if checks is None:
        return ""
    failed = sum(not right for right, _ in checks)
    if failed:
        return f"{failed} of {len(checks)} failed"
    if checks and all("refused at the start" in text for _, text in checks):
        return "refused"
    if checks and all(": not on CPUs: " in text for _, text in checks):
        return "not on CPUs"
    return str(len(checks)) if checks else "not on CPUs"


def rows(text: str, of_part: list[Checks | None]) -> Iterator[tuple[str, list[Checks | None]]]:
    """Yield the rows of a part: what each is, and its checks with each version."""
    if text:
        yield text, of_part
        return
    names = [name_of(check) for checks in of_part for check in checks or ()]
    for name in dict.fromkeys(names):
        yield (
            name,
            [
                [check for check in checks or () if name_of(check) == name] or None
                for checks in of_part
            ],
        )


def name_of(check: list[Any]) -> str:
    return str(check[1]).partition(":")[0]


def table(results: list[dict[str, Any]]) -> str:
    """Return the table, the newest version first."""
    results = sorted(results, key=lambda each: [-int(n) for n in each["vllm"].split(".")])
    lines = [
        "| | " + " | ".join(each["vllm"] for each in results) + " |",
        "| --- |" + " --- |" * len(results),
    ]
    for part, text in PARTS.items():
        of_part = [each["parts"].get(part) for each in results]
        for row, of_row in rows(text, of_part):
            cells = [cell(checks) for checks in of_row]
            if any(cells):
                lines.append(f"| {row} | " + " | ".join(cells) + " |")
    dates = sorted({each["date"] for each in results})
    lines += [
        "",
        f"Made by `python/tests/vllm/matrix.py`, {' to '.join({dates[0]: 0, dates[-1]: 0})}.",
    ]
    return "\n".join(lines)


def main(words: list[str]) -> int:
    target = None
    if words[:1] == ["--write"]:
        target, words = Path(words[1]), words[2:]
    if not words:
        raise SystemExit(__doc__)
    made = table([json.loads(Path(each, "results.json").read_text()) for each in words])
    print(made)
    if target is not None:
        before, _, rest = target.read_text().partition(BEGIN)
        _, found, after = rest.partition(END)
        if not found:
            raise SystemExit(f"{target} has no {BEGIN} ... {END}")
        target.write_text(f"{before}{BEGIN}\n{made}\n{END}{after}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
