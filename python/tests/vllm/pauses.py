# SPDX-License-Identifier: Apache-2.0
"""A hundred pauses, sleeps and awakenings of one engine, while requests load from the pool: pauses.py ROLE MODEL OUT.

Each cycle pauses in another mode beside requests whose KV is in the pool alone, sleeps at another level, wakes up by other tags,
and now and then has other weights. Role: `cycles`. $KVCOVE_EXTRA is the connector's extra configuration. Writes JSON to OUT.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import weights
from cascade import Replica
from driver import PROMPTS, say
from layouts import transfer

CYCLES = 100
SETTLED = 20  # cycles, behind which nothing grows
TAGS: tuple[list[list[str] | None], ...] = (
    [None],
    [["weights"], ["kv_cache"], ["scheduling"]],
    [None, None],
    [["weights"], None],
)


def descendants() -> list[int]:
    """Return this process and all that descend from it."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(path.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        children.setdefault(parent, []).append(int(path.parent.name))
    found = [os.getpid()]
    for each in found:
        found += children.get(each, [])
    return found


def resources() -> dict[str, int]:
    """Descriptors, threads and bytes of anonymous memory, of all processes of this engine."""
    total = {"descriptors": 0, "threads": 0, "bytes": 0}
    for pid in descendants():
        total["descriptors"] += len(os.listdir(f"/proc/{pid}/fd"))
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("Threads:"):
                total["threads"] += int(line.split()[1])
            if line.startswith("RssAnon:"):
                total["bytes"] += int(line.split()[1]) << 10
    return total


async def beside(replica: Replica, mode: str, clear: bool, delay: float) -> list[list[int]] | str:
    """Pause beside requests that load; go on; return what they were answered, or what a pause raised."""
    running = [asyncio.create_task(replica.generate(prompt)) for prompt in PROMPTS]
    await asyncio.sleep(delay)
    raised = ""
    try:
        await replica.engine.pause_generation(mode=mode, clear_cache=clear)
    except Exception as error:  # the cycle goes on: it is told at the end
        raised = f"{mode}, clear_cache={clear}: {error}"
    await replica.engine.resume_generation()
    done = await asyncio.gather(*running, return_exceptions=True)
    if raised:
        return raised
    return [each[0] for each in done if isinstance(each, tuple) and len(each[0]) == 12]


async def cycles(model: str) -> dict[str, Any]:
    replica = Replica(model, transfer())
    engine = replica.engine
    chance = random.Random(1)
    seen: dict[str, Any] = {"w0": [], "w1": [], "beside": [], "raised": [], "cached": 0, "used": []}
    changed = False
    try:
        await replica.roll_out()
        for cycle in range(CYCLES):
            _, cached = await replica.turn_again()
            seen["cached"] += cached > 0
            await engine.reset_prefix_cache()
            mode = ("abort", "wait", "keep")[cycle % 3]
            answers = await beside(
                replica, mode, cycle % 2 == 0, chance.choice((0, 0.005, 0.02, 0.05))
            )
            if isinstance(answers, str):
                seen["raised"].append(answers)
            else:
                seen["beside"] += [[changed, answer] for answer in answers]
            other = cycle % 5 == 4
            try:
                await engine.sleep(level=1 + cycle % 2, mode=mode)
                if cycle % 7 == 6:
                    await engine.sleep(level=1)  # twice
            except Exception as error:
                seen["raised"].append(f"sleep, {mode}: {error}")
            if other:
                await engine.collective_rpc(
                    "apply_model",
                    args=(weights.restore if changed else weights.change_and_remember,),
                )
                changed = not changed
            for tags in TAGS[cycle % len(TAGS)]:
                await engine.wake_up(tags)
            await engine.resume_generation()
            outputs, _ = await replica.roll_out()
            seen["w1" if changed else "w0"].append(outputs)
            if cycle + 1 in (SETTLED, CYCLES):
                seen["used"].append(resources())
            if cycle % 20 == 19:
                say(f"cycle {cycle}: {seen['used'][-1:]}, raised {seen['raised'][-1:]}")
    finally:
        engine.shutdown()
    return seen


def checks(seen: dict[str, Any], ref: dict[str, Any]) -> Iterator[tuple[bool, str]]:
    right = (ref["w0"], ref["w1"])
    wrong = [sum(outputs != ref[name] for outputs in seen[name]) for name in ("w0", "w1")]
    yield (
        wrong == [0, 0] and len(seen["w0"]) + len(seen["w1"]) == CYCLES,
        f"cycles: {CYCLES} pauses and sleeps, {wrong} outputs behind them are wrong with the first and the other weights",
    )
    stale = sum(answer not in right[changed] for changed, answer in seen["beside"])
    yield (
        stale == 0 and len(seen["beside"]) > 0,
        f"cycles: {len(seen['beside'])} requests went on beside a pause, {stale} with a wrong answer",
    )
    yield not seen["raised"], f"cycles: pauses that raised: {seen['raised'][:3]}"
    yield seen["cached"] == CYCLES, f"cycles: {seen['cached']} of {CYCLES} had KV from the pool"
    before, after = seen["used"]
    yield (
        after["descriptors"] <= before["descriptors"]
        and after["threads"] <= before["threads"]
        and after["bytes"] - before["bytes"] < 64 << 20,
        f"cycles: after {SETTLED} {before}, after {CYCLES} {after}",
    )


def run_pauses(
    directory: Path,
    model: Path,
    ref: dict[str, Any],
    check: Callable[[bool, str], None],
    drive: Callable[..., dict[str, Any]],
) -> None:
    print(f"== {CYCLES} pauses, sleeps and awakenings")
    seen = drive(
        "cycles",
        model,
        directory / "pauses.json",
        driver="pauses.py",
        KVCOVE_EXTRA=json.dumps({"memory": "256MiB", "load_when": "always"}),
        VLLM_ENABLE_V1_MULTIPROCESSING="1",
    )
    for right, text in checks(seen, ref):
        check(right, text)


def main() -> None:
    _, model, out = sys.argv[1:4]
    Path(out).write_text(json.dumps(asyncio.run(cycles(model))))


if __name__ == "__main__":
    main()
