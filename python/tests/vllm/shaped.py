# SPDX-License-Identifier: Apache-2.0
"""One engine of a layout, for shapes.py: shaped.py ROLE MODEL OUT.

Roles: `plain` (without connector: what is right), `pooled` (all phases), `fresh` (a second engine on the same pool, later).
$KVCOVE_OPTIONS are options of vLLM in JSON, $KVCOVE_EXTRA is the connector's extra configuration. Writes JSON to OUT.
"""

from __future__ import annotations

import json
import os
import random
import sys
from pathlib import Path
from typing import Any

import numpy as np
import weights
from driver import Engine, say, start, warm_up
from own import OwnEngine, under_load

import kvcove

OPTIONS: dict[str, Any] = json.loads(os.environ["KVCOVE_OPTIONS"])
STAGES = OPTIONS.get("pipeline_parallel_size", 1)
if OPTIONS.get("tensor_parallel_size", 1) * STAGES > 1:
    OPTIONS["distributed_executor_backend"] = "mp"


def keep_latent_cache() -> None:
    """Let vLLM cache prefixes of MLA on CPUs, too, where it says that it does not.

    A reference must compute a second request's end as an engine with a pool does: on KV that is there. In 16
    bits that differs from a prompt that is computed whole.
    """
    from vllm.platforms.cpu import CpuPlatform

    update = CpuPlatform.check_and_update_config.__func__

    def updated(cls: Any, config: Any) -> None:
        asked = config.cache_config.enable_prefix_caching
        update(cls, config)
        config.cache_config.enable_prefix_caching = asked

    CpuPlatform.check_and_update_config = classmethod(updated)


def numbers_of(value: bytes) -> np.ndarray:
    """Return the numbers of a value of KV; numpy has no bfloat16, which is the upper half of float32."""
    if OPTIONS.get("dtype") != "bfloat16":
        return np.frombuffer(value, np.float32)
    high = np.frombuffer(value, np.uint16).astype(np.uint32)
    return (high << 16).view(np.float32)


class Plain(Engine):
    """An engine without connector."""

    def __init__(self, model: str) -> None:
        keep_latent_cache()
        self.llm = start(model, **OPTIONS)
        if STAGES > 1:
            self.llm.collective_rpc(warm_up)


class Pooled(OwnEngine):
    def __init__(self, model: str) -> None:
        super().__init__(model, **OPTIONS)
        if STAGES > 1:
            self.llm.collective_rpc(warm_up)


def plain(model: str) -> dict[str, Any]:
    engine = Plain(model)
    seen: dict[str, Any] = {"first": engine.run(), "own": engine.run()}
    engine.llm.apply_model(weights.change)
    assert engine.llm.reset_prefix_cache()
    seen["other"], seen["other_own"] = engine.run(), engine.run()
    return seen


class Thief:
    """Removes values between their look-up and their load, as an eviction or an owner that restarts would."""

    def __init__(self, engine: OwnEngine) -> None:
        core = engine.llm.llm_engine.engine_core.engine_core
        self._side = core.scheduler.connector._scheduler
        self._allocated = self._side.allocated
        pool = kvcove.open(json.loads(os.environ["KVCOVE_EXTRA"])["pool"])
        self._session = pool.session(
            self._side.shape.namespace, follow_always=True, assume_weights=True
        )
        self.random = random.Random(1)
        self.share = 0.3
        self.taken = 0

    def _take(self, request: Any, blocks: Any, external: int) -> None:
        if external > 0:
            version = self._side.role.version
            keys = [each.key for each in self._session.stored(version=version)]
            keys = [key for key in sorted(keys) if self.random.random() < self.share]
            self.taken += self._session.remove(keys, version=version).ok_count
        self._allocated(request, blocks, external)

    def values(self) -> dict[bytes, np.ndarray]:
        """Return what the pool has, as numbers."""
        version = self._side.role.version
        keys = [each.key for each in self._session.stored(version=version)]
        values = self._session.get(keys, version=version, timeout=10.0)
        return {
            key: numbers_of(value)
            for key, value in zip(keys, values, strict=True)
            if value is not None
        }

    def drift(self, before: dict[bytes, np.ndarray]) -> float:
        """Return how far a value is from what its key had before, at most: 0 is equal, 1 has nothing in common.

        What failed to load is computed from there on, in other pieces than a whole prompt, so in 16 bits the
        last bits differ. A value of other tokens differs as a whole.
        """
        after = self.values()
        both = before.keys() & after.keys()
        assert both, "nothing is there twice"
        return max(
            float(np.linalg.norm(after[key] - before[key]) / np.linalg.norm(before[key]))
            for key in both
        )

    def __enter__(self) -> Thief:
        self._side.allocated = self._take
        return self

    def __exit__(self, *args: object) -> None:
        self._side.allocated = self._allocated


def losing(engine: OwnEngine) -> dict[str, Any]:
    """Loads that fail in part: what the requests then compute, what the own cache has of it, what the pool."""
    before = engine.stats().get("loads_failed", 0)
    outputs: list[Any] = []
    with Thief(engine) as thief:
        were, drifts = thief.values(), []
        for share in (0.05, 0.3, 0.9):
            thief.share = share
            outputs.append(engine.run())
            with_own = engine.run()
            engine.settle()
            outputs += [with_own]
            drifts.append(thief.drift(were))
    outputs.append(engine.measured()[0])
    engine.settle()
    return {
        "outputs": outputs,
        "drift": max(drifts),
        "taken": thief.taken,
        "failed": engine.stats()["loads_failed"] - before,
        "pinned": engine.stats()["pinned_blocks"],
    }


def pooled(model: str) -> dict[str, Any]:
    engine = Pooled(model)
    seen: dict[str, Any] = {}
    seen["first"], seen["first_hits"], _ = engine.measured()
    seen["own"] = engine.run()
    engine.settle()
    seen["warm"], seen["warm_hits"], _ = engine.measured()
    engine.settle()
    say(f"{OPTIONS}: {seen['warm_hits']} tokens from the pool")
    seen["losing"] = losing(engine)
    say(f"{seen['losing']['taken']} values taken away, {seen['losing']['failed']} loads failed")
    seen["loaded"] = under_load(engine, requests=4, turns=2)
    seen["reset"] = engine.reset(connector=True)
    seen["after"], seen["after_hits"], _ = engine.measured()
    engine.settle()
    engine.llm.apply_model(weights.change_and_remember)
    engine.reset(connector=False)
    seen["other"], seen["other_hits"], _ = engine.measured()
    seen["other_own"] = engine.run()
    engine.settle()
    seen["other_warm"], seen["other_warm_hits"], _ = engine.measured()
    engine.llm.apply_model(weights.restore)
    engine.reset(connector=False)
    seen["back"], seen["back_hits"], _ = engine.measured()
    engine.settle()
    say(f"{seen['after_hits']} after a reset, {seen['other_hits']} with other weights")
    return seen


def fresh(model: str) -> dict[str, Any]:
    engine = Pooled(model)
    seen: dict[str, Any] = {}
    seen["warm"], seen["warm_hits"], _ = engine.measured()
    engine.settle()
    seen["losing"] = losing(engine)
    say(f"a fresh engine: {seen['warm_hits']} tokens, {seen['losing']['failed']} loads failed")
    # The next engine finds what a whole prompt gives, to the last bit, not what was computed in pieces.
    engine.reset(connector=True)
    engine.run()
    engine.settle()
    return seen


def main() -> None:
    role, model, out = sys.argv[1:4]
    seen = {"plain": plain, "pooled": pooled, "fresh": fresh}[role](model)
    Path(out).write_text(json.dumps(seen))


if __name__ == "__main__":
    main()
