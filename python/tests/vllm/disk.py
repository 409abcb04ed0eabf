# SPDX-License-Identifier: Apache-2.0
"""Engines whose pool has little memory and a disk, one after the other: disk.py ROLE MODEL OUT.

Roles: `fill` (computes and stores), `warm` (a restarted engine; then other weights, then a reset),
`after` (restarted again: nothing is left). $KVCOVE_EXTRA names the disk. Writes JSON to OUT.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import weights
from driver import say
from own import OwnEngine


class DiskEngine(OwnEngine):
    def pool_stat(self) -> dict[str, int]:
        """What the owner in the engine's process counts."""
        connector = self.llm.llm_engine.engine_core.engine_core.scheduler.connector
        stat = connector._scheduler._pool.stat()
        names = ("disk_objects", "disk_puts", "disk_hits", "disk_dropped_full", "disk_errors")
        return {name: int(getattr(stat, name)) for name in ("evictions", *names)}

    def counters(self) -> dict[str, int]:
        """The connector's metrics, and vLLM's own of where prefixes came from."""
        found: dict[str, int] = {}
        for metric in self.llm.get_metrics():
            if metric.name.startswith("vllm:kvcove_"):
                found[metric.name] = int(getattr(metric, "value", 0))
            elif metric.name == "vllm:prompt_tokens_cached_by_source":
                found[f"from {metric.labels['source']}"] = int(metric.value)
        return found

    def end(self) -> None:
        core = self.llm.llm_engine.engine_core.engine_core
        core.scheduler.connector.shutdown()


def fill(model: str) -> dict[str, Any]:
    engine = DiskEngine(model)
    seen: dict[str, Any] = {}
    seen["cold"], seen["hits"], _ = engine.measured()
    engine.settle()
    seen["pool"] = engine.pool_stat()
    say(f"stored: {seen['pool']}")
    engine.end()
    return seen


def warm(model: str) -> dict[str, Any]:
    engine = DiskEngine(model)
    seen: dict[str, Any] = {"found": engine.pool_stat()}
    seen["warm"], seen["hits"], seen["seconds"] = engine.measured()
    seen["stats"] = engine.stats()
    seen["counters"] = engine.counters()
    seen["pool"] = engine.pool_stat()
    say(f"restarted: {seen['hits']} tokens from the pool, {seen['pool']['disk_hits']} disk reads")
    engine.settle()
    engine.llm.apply_model(weights.change_and_remember)
    engine.reset(connector=False)
    seen["w1"], seen["w1_hits"], _ = engine.measured()
    engine.settle()
    engine.llm.apply_model(weights.restore)
    engine.reset(connector=False)
    seen["back"], seen["back_hits"], _ = engine.measured()
    engine.settle()
    seen["reset"] = engine.reset(connector=True)
    seen["after_reset"], seen["after_reset_hits"], _ = engine.measured()
    say(
        f"other weights: {seen['w1_hits']}, back: {seen['back_hits']}; after a reset: "
        f"{seen['after_reset_hits']}"
    )
    # So that all that lies on the disk when this engine ends is of before a reset.
    engine.settle()
    seen["reset"] &= engine.reset(connector=True)
    engine.end()
    return seen


def after(model: str) -> dict[str, Any]:
    engine = DiskEngine(model)
    seen: dict[str, Any] = {}
    seen["outputs"], seen["hits"], _ = engine.measured()
    say(f"restarted after the reset: {seen['hits']} tokens from the pool")
    engine.end()
    return seen


def main() -> None:
    role, model, out = sys.argv[1:4]
    seen = {"fill": fill, "warm": warm, "after": after}[role](model)
    Path(out).write_text(json.dumps(seen))


if __name__ == "__main__":
    main()
