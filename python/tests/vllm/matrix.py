# SPDX-License-Identifier: Apache-2.0
"""What each version of vLLM was seen to do on kvcove: matrix.py [--write FILE] DIRECTORY...

Each DIRECTORY is one in which run.py has worked. Prints a table in Markdown: a row for each part, a column for each version, with
the days of its runs. With --write the table is merged into the one between the marks in FILE (docs/connector.md): what was not run
keeps its cell.
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
    "overhead": "",
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


FIGURES = ("overhead",)  # parts whose checks have figures behind their last colon

Checks = list[list[Any]]


def cell(checks: Checks | None, figures: bool = False) -> str:
    """Return what a part did: its checks that held, or those that did not; or its figure."""
    if checks is None:
        return ""
    if (
        figures and len(checks) == 1 and name_of(checks[0]) not in FIGURES
    ):  # else the part ended early
        right, text = checks[0]
        return str(text).rpartition(": ")[2] + ("" if right else ", too much")
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


# The cells of a table: by row, then by version; and by version the first and the last day.
Cells = dict[str, dict[str, str]]
Days = dict[str, tuple[str, str]]


def made(results: list[dict[str, Any]]) -> tuple[Cells, Days]:
    """Return what runs have found."""
    cells: Cells = {}
    for part, text in PARTS.items():
        of_part = [each["parts"].get(part) for each in results]
        for row, of_row in rows(text, of_part):
            found = {
                each["vllm"]: cell(checks, part in FIGURES)
                for each, checks in zip(results, of_row, strict=True)
                if checks is not None
            }
            if any(found.values()):
                cells[row] = found
        if (
            not text
        ):  # a run that ended early has a row with the part's name, which this one takes back
            ended = {each["vllm"]: "" for each in results if each["parts"].get(part)}
            cells[part] = {**ended, **cells.get(part, {})}
    return cells, {each["vllm"]: (each["date"], each["date"]) for each in results}


def read(lines: list[str]) -> tuple[Cells, Days]:
    """Return the cells of a table that :func:`written` has made."""
    parts = [[each.strip() for each in line.split("|")[1:-1]] for line in lines if line[:1] == "|"]
    if not parts:
        return {}, {}
    heads = [head.split() for head in parts[0][1:]]
    versions = [head[0].rstrip(",") for head in heads]
    days = {version: (head[1], head[-1]) for version, head in zip(versions, heads, strict=True)}
    return {row: dict(zip(versions, cells, strict=True)) for row, *cells in parts[2:]}, days


def merged(before: tuple[Cells, Days], now: tuple[Cells, Days]) -> tuple[Cells, Days]:
    """Return the cells of a table with those of later runs."""
    cells, last = dict(before[0]), ""
    for row, found in now[0].items():
        if row not in cells:  # behind the row that it follows
            order = list(cells)
            order.insert(order.index(last) + 1 if last else 0, row)
            cells = {each: cells.get(each, {}) for each in order}
        cells[row] = {**cells[row], **found}
        last = row
    days = dict(before[1])
    for version, (first, newest) in now[1].items():
        days[version] = (days.get(version, (first, ""))[0], newest)
    return cells, days


def written(cells: Cells, days: Days) -> str:
    """Return the table, the newest version first."""
    versions = sorted(days, key=lambda each: [-int(n) for n in each.split(".")])
    heads = [f"{each}, {' to '.join(dict.fromkeys(days[each]))}" for each in versions]
    lines = [
        "| | " + " | ".join(heads) + " |",
        "| --- |" + " --- |" * len(versions),
    ]
    for row, found in cells.items():
        if not any(found.values()):
            continue
        lines.append(f"| {row} | " + " | ".join(found.get(each, "") for each in versions) + " |")
    return "\n".join([*lines, "", "Made by `python/tests/vllm/matrix.py`."])


def main(words: list[str]) -> int:
    target = None
    if words[:1] == ["--write"]:
        target, words = Path(words[1]), words[2:]
    if not words:
        raise SystemExit(__doc__)
    now = made([json.loads(Path(each, "results.json").read_text()) for each in words])
    if target is None:
        print(written(*now))
        return 0
    before, found, rest = target.read_text().partition(BEGIN)
    old, ended, after = rest.partition(END)
    if not found or not ended:
        raise SystemExit(f"{target} has no {BEGIN} ... {END}")
    text = written(*merged(read(old.splitlines()), now))
    print(text)
    target.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
