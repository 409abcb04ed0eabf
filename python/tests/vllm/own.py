# SPDX-License-Identifier: Apache-2.0
"""One engine with kvcove's own connector, in a process of its own: own.py ROLE MODEL OUT.

Roles: `engine` (all phases), `peer` (a second engine on the same pool: finds, resets), `multi` (as a
child of MultiConnector). $KVCOVE_EXTRA is the connector's extra configuration. Writes JSON to OUT.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import weights
from driver import PROMPTS, Engine, say, start


class OwnEngine(Engine):
    def __init__(self, model: str, multi: bool = False, **options: Any) -> None:
        from vllm.config import KVTransferConfig

        extra = json.loads(os.environ.get("KVCOVE_EXTRA", "{}"))
        common = {"kv_role": "kv_both", "kv_load_failure_policy": "recompute"}
        if multi:
            children = [
                {"kv_connector": "KvcoveConnector", "kv_connector_extra_config": each, **common}
                for each in ({**extra, "namespace": "one"}, {**extra, "namespace": "two"})
            ]
            transfer = KVTransferConfig(
                kv_connector="MultiConnector",
                kv_connector_extra_config={"connectors": children},
                **common,
            )
        else:
            transfer = KVTransferConfig(
                kv_connector="KvcoveConnector",
                kv_connector_module_path="kvcove.vllm",
                kv_connector_extra_config=extra,
                **common,
            )
        self.llm = start(model, kv_transfer_config=transfer, **options)

    def stats(self) -> dict[str, int]:
        """The connector's counters, where the engine is in this process."""
        core = getattr(self.llm.llm_engine.engine_core, "engine_core", None)
        if core is None:
            return {}
        connector = core.scheduler.connector
        counts: Counter[str] = Counter()
        for each in getattr(connector, "_connectors", [connector]):
            counts.update(each._scheduler.role.stats())
        return dict(counts)

    def settle(self, key_count: int = 44) -> None:
        """Wait until what was computed is stored; then the own cache is reset."""
        for _ in range(100):
            self.run([[5, 6, 7]])
            time.sleep(0.1)
            if self.stats().get("pinned_blocks", 0) == 0:
                break
        time.sleep(0 if self.stats() else 0.3)
        assert self.reset(connector=False)

    def reset(self, connector: bool) -> bool:
        """Reset at the first attempt, whatever is being saved."""
        return bool(self.llm.reset_prefix_cache(reset_connector=connector))


def steps_of(engine: OwnEngine) -> list[float]:
    """The seconds that the connector adds to each step of a decoding batch (in process)."""
    core = engine.llm.llm_engine.engine_core.engine_core
    connector = core.scheduler.connector
    times: list[float] = []
    for name in ("build_connector_meta", "update_connector_output"):
        inner = getattr(connector, name)

        def timed(*args: Any, inner: Any = inner) -> Any:
            began = time.perf_counter()
            try:
                return inner(*args)
            finally:
                times.append(time.perf_counter() - began)

        setattr(connector, name, timed)
    return times


def engine_phases(model: str, out: str) -> dict[str, Any]:
    engine = OwnEngine(model)
    seen: dict[str, Any] = {}
    seen["cold"], seen["cold_hits"], _ = engine.measured()
    engine.settle()
    seen["warm"], seen["warm_hits"], _ = engine.measured()
    say(f"after a local reset: {seen['warm_hits']} tokens from the pool")
    # Warm from the pool against the engine's own cache, several times each.
    pool_seconds, own_seconds = [], []
    for _ in range(12):
        engine.settle()
        pool_seconds.append(engine.measured()[2])
        own_seconds.append(engine.measured()[2])
    seen["pool_seconds"], seen["own_seconds"] = min(pool_seconds), min(own_seconds)
    if os.environ.get("KVCOVE_PEER"):
        peer = subprocess.run(
            [sys.executable, __file__, "peer", model, out + ".peer"], check=False, timeout=300
        )
        seen["peer_status"] = peer.returncode
        # The peer has reset it: with equal weights that is for all of them.
        engine.settle()
        _, seen["after_peers_reset_hits"], _ = engine.measured()
    seen["reset"] = engine.reset(connector=True)
    seen["after_reset"], seen["after_reset_hits"], _ = engine.measured()
    engine.settle()
    say(f"after a reset of the connector: {seen['after_reset_hits']} tokens")

    # Other weights, with only the engine's own cache reset: the fingerprint sees it.
    engine.llm.apply_model(weights.change_and_remember)
    engine.reset(connector=False)
    seen["w1"], seen["w1_hits"], _ = engine.measured()
    engine.settle()
    seen["w1_warm"], seen["w1_warm_hits"], _ = engine.measured()
    engine.llm.apply_model(weights.restore)
    engine.reset(connector=False)
    seen["back"], seen["back_hits"], _ = engine.measured()
    say(f"other weights: {seen['w1_hits']}, then {seen['w1_warm_hits']}; back: {seen['back_hits']}")

    # Weights change under an engine whose own cache is not reset: what it then computes on old
    # blocks must not reach the pool. A reset of its own cache later shows what the pool has.
    tails = [prompt + [11, 12, 13] * 100 for prompt in PROMPTS]
    engine.llm.apply_model(weights.change_and_remember)
    engine.run(tails)
    engine.settle()
    seen["poisoned"] = engine.run(tails)
    engine.llm.apply_model(weights.restore)
    engine.reset(connector=False)

    races = []
    for _ in range(5):
        outputs = engine.run()
        done = engine.reset(connector=True)
        races.append({"reset": done, "equal": outputs == seen["cold"]})
    seen["races"] = races
    seen["after_races"], _, _ = engine.measured()
    say("resets raced with saves")

    if hasattr(engine.llm.llm_engine.engine_core, "engine_core"):
        seen["loaded"] = under_load(engine)
        times = steps_of(engine)
        engine.run([[5, 6, 7]] * 8)
        times.sort()
        seen["step_us"] = 2e6 * times[len(times) // 2]
        seen["stats"] = engine.stats()
    return seen


def under_load(engine: OwnEngine, requests: int = 10, turns: int = 3) -> dict[str, Any]:
    """Aborts and preemptions while loads and saves run: the outputs stay those of a quiet engine."""
    from vllm import SamplingParams

    core = engine.llm.llm_engine
    sampling = SamplingParams(temperature=0.0, max_tokens=12, detokenize=False, ignore_eos=True)
    prompts = [[(13 * i + 29 * j + j * j) % 900 + 10 for j in range(900)] for i in range(requests)]
    quiet = engine.run(prompts)
    engine.settle()
    outputs: dict[str, list[int]] = {}
    for turn in range(turns):
        for i, prompt in enumerate(prompts):
            core.add_request(f"{turn}-{i}", {"prompt_token_ids": prompt}, sampling)
        step = 0
        while core.has_unfinished_requests():
            step += 1
            for output in core.step():
                if output.finished:
                    outputs[output.request_id] = list(output.outputs[0].token_ids)
            if step % 3 == 0 and step // 3 <= requests // 2:  # half of them
                core.abort_request([f"{turn}-{(step // 3 * 7) % requests}"])
            if step == 5:
                # All that run are preempted; loads under way are not.
                try:
                    engine.llm.reset_prefix_cache(reset_running_requests=True)
                except RuntimeError as error:
                    assert "remote KV" in str(error), error
    # A trainer's order: abort what runs (saving, loading), then reset, once.
    first_resets = []
    for turn in range(turns + 1):
        for i, prompt in enumerate(prompts):
            core.add_request(f"r{turn}-{i}", {"prompt_token_ids": prompt}, sampling)
        for _ in range(2 + turn):
            core.step()
        core.abort_request([f"r{turn}-{i}" for i in range(len(prompts))])
        first_resets.append(
            bool(engine.llm.reset_prefix_cache(reset_running_requests=True, reset_connector=True))
        )
    engine.settle()
    return {
        "finished": len(outputs),
        "first_resets": first_resets,
        "equal": all(quiet[int(k.split("-")[1])][: len(v)] == v for k, v in outputs.items()),
        "stats": engine.stats(),
    }


def peer(model: str) -> dict[str, Any]:
    engine = OwnEngine(model)
    outputs, hits, seconds = engine.measured()
    say(f"a second engine: {hits} tokens from the pool")
    reset = engine.reset(connector=True)
    after, after_hits, _ = engine.measured()
    return {
        **{"outputs": outputs, "hits": hits, "seconds": seconds},
        **{"reset": reset, "after": after, "after_hits": after_hits},
    }


def multi(model: str) -> dict[str, Any]:
    engine = OwnEngine(model, multi=True)
    seen: dict[str, Any] = {}
    seen["cold"], _, _ = engine.measured()
    engine.settle()
    seen["warm"], seen["warm_hits"], _ = engine.measured()
    seen["reset"] = engine.reset(connector=True)
    seen["after"], seen["after_hits"], _ = engine.measured()
    return seen


def main() -> None:
    role, model, out = sys.argv[1:4]
    seen = {"engine": lambda: engine_phases(model, out), "peer": lambda: peer(model)}.get(
        role, lambda: multi(model)
    )()
    Path(out).write_text(json.dumps(seen))


if __name__ == "__main__":
    main()
