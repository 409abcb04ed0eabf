# SPDX-License-Identifier: Apache-2.0
"""Engines as trainers and clusters run them: layouts.py ROLE MODEL OUT.

Roles: `sleeps` (both levels, with other weights), `paused` (requests that go on behind a pause), `guesses`
(speculation: n-grams, or the EAGLE head in $KVCOVE_EAGLE; $KVCOVE_PLAIN: without connector), `transport` (beside a P/D transport: NIXL with
$KVCOVE_NIXL, else a stand-in; $KVCOVE_ORDER: which is first), `one-way` ($KVCOVE_ROLE: kv_producer, kv_consumer), `unseen` (weights that nobody tells
of), `experts` (two data-parallel engines, with $KVCOVE_EXPERTS those of one model). $KVCOVE_EXTRA is the connector's
extra configuration. Writes JSON to OUT.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import weights
from cascade import Replica
from driver import PROMPTS, SMALL, say, start
from own import OwnEngine

EXTRA = json.loads(os.environ.get("KVCOVE_EXTRA", "{}"))
GUESSES: dict[str, Any] = {
    "method": "ngram",
    "num_speculative_tokens": 3,
    "prompt_lookup_max": 4,
}
if "KVCOVE_EAGLE" in os.environ:
    GUESSES = {"method": "eagle", "model": os.environ["KVCOVE_EAGLE"], "num_speculative_tokens": 2}


def transfer(role: str = "kv_both") -> dict[str, Any]:
    return {
        "kv_connector": "KvcoveConnector",
        "kv_connector_module_path": "kvcove.vllm",
        "kv_role": role,
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": EXTRA,
    }


class Made(OwnEngine):
    """An engine with any transfer configuration, None among them."""

    def __init__(self, model: str, transfer: dict[str, Any] | None, **options: Any) -> None:
        from vllm.config import KVTransferConfig

        if transfer is not None:
            options["kv_transfer_config"] = KVTransferConfig(**transfer)
        self.llm = start(model, **options)


def sleeps(model: str) -> dict[str, Any]:
    engine = OwnEngine(model)
    seen: dict[str, Any] = {"cold": engine.measured()[0]}
    engine.settle()
    engine.llm.sleep(level=1)
    engine.llm.wake_up()
    seen["same"], seen["same_hits"], _ = engine.measured()  # sleep has reset the pool's KV
    engine.settle()
    seen["same_warm"], seen["same_warm_hits"], _ = engine.measured()
    engine.llm.sleep(level=0)  # the scheduler alone rests
    engine.llm.wake_up(tags=["scheduling"])
    engine.settle()
    seen["kept"], seen["kept_hits"], _ = engine.measured()
    engine.llm.sleep(level=2)
    engine.llm.apply_model(weights.change_and_remember)
    engine.llm.wake_up()
    seen["other"], seen["other_hits"], _ = engine.measured()
    engine.settle()
    seen["other_warm"], seen["other_warm_hits"], _ = engine.measured()
    say(f"sleep: {seen['same_hits']}, {seen['same_warm_hits']}, other {seen['other_hits']}")
    return seen


async def pausing(model: str, extra: bool) -> dict[str, Any]:
    replica = Replica(model, transfer() if extra else None)
    seen: dict[str, Any] = {}
    try:
        await replica.roll_out()
        await replica.turn_again()
        await replica.engine.reset_prefix_cache()
        for mode in ("keep", "wait"):
            running = [asyncio.create_task(replica.generate(prompt)) for prompt in PROMPTS]
            await asyncio.sleep(0.05)
            await replica.engine.pause_generation(mode=mode, clear_cache=False)
            await asyncio.sleep(0.5)
            await replica.engine.resume_generation()
            seen[mode] = [tokens for tokens, _ in await asyncio.gather(*running)]
            await replica.engine.reset_prefix_cache()
    finally:
        replica.engine.shutdown()
    return seen


def guesses(model: str) -> dict[str, Any]:
    plain = bool(os.environ.get("KVCOVE_PLAIN"))
    engine = Made(model, None if plain else transfer(), speculative_config=GUESSES)
    if plain:
        return {"cold": engine.run()}
    seen: dict[str, Any] = {}
    seen["cold"], _, _ = engine.measured()
    engine.settle()
    seen["warm"], seen["warm_hits"], _ = engine.measured()
    return seen


def beside_transport(model: str) -> dict[str, Any]:
    import transport

    ours = transfer()
    other = {"kv_role": "kv_both", "kv_load_failure_policy": "recompute"}
    if os.environ.get("KVCOVE_NIXL"):
        other |= {"kv_connector": "NixlConnector", "kv_buffer_device": "cpu"}
    else:
        other |= {
            "kv_connector": "TransportConnector",
            "kv_connector_module_path": "transport",
        }
    children = [ours, other] if os.environ["KVCOVE_ORDER"] == "ours" else [other, ours]
    engine = Made(
        model,
        {
            "kv_connector": "MultiConnector",
            "kv_role": "kv_both",
            "kv_load_failure_policy": "recompute",
            "kv_connector_extra_config": {"connectors": children},
        },
    )
    connectors = engine.llm.llm_engine.engine_core.engine_core.scheduler.connector._connectors
    mine = next(each for each in connectors if type(each).__name__ == "KvcoveConnector")
    engine.stats = lambda: mine._scheduler.role.stats()  # type: ignore[method-assign]
    seen: dict[str, Any] = {"children": [type(each).__name__ for each in connectors]}
    seen["cold"], _, _ = engine.measured()
    engine.settle()
    seen["warm"], seen["warm_hits"], _ = engine.measured()
    seen["shaken"] = transport.TransportConnector.shaken
    say(f"{seen['children']}: {seen['warm_hits']} tokens from the pool")
    return seen


def one_way(model: str) -> dict[str, Any]:
    engine = Made(model, transfer(os.environ["KVCOVE_ROLE"]))
    seen: dict[str, Any] = {}
    seen["first"], seen["first_hits"], _ = engine.measured()
    engine.settle()
    seen["second"], seen["second_hits"], _ = engine.measured()
    engine.settle()
    seen["stats"] = engine.stats()
    return seen


def unseen(model: str) -> dict[str, Any]:
    """Weights are written past vLLM: the check finds it."""
    engine = OwnEngine(model)
    seen: dict[str, Any] = {"cold": engine.measured()[0]}
    engine.settle()
    seen["warm_hits"] = engine.measured()[1]
    core = engine.llm.llm_engine.engine_core.engine_core
    role = core.scheduler.connector._scheduler.role
    before = role.version
    executor = core.model_executor
    worker = getattr(executor, "driver_worker", None)
    worker = getattr(worker, "worker", worker)
    weights.change_and_remember(worker.model_runner.get_model())
    until = time.monotonic() + 60
    while role.version == before and time.monotonic() < until:
        time.sleep(0.2)
        engine.run([[5, 6, 7]])  # a step asks the ranks
    seen["other_version"] = role.version != before
    engine.reset(connector=False)
    seen["other"], seen["other_hits"], _ = engine.measured()
    weights.restore(worker.model_runner.get_model())
    return seen


async def expert_engines(model: str) -> dict[str, Any]:
    """Two engines of one data-parallel group; the second finds what the first has stored."""
    from vllm import SamplingParams
    from vllm.config import KVTransferConfig
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.sampling_params import RequestOutputKind
    from vllm.v1.engine.async_llm import AsyncLLM

    pooled = not os.environ.get("KVCOVE_PLAIN")
    options: dict[str, Any] = (
        {"kv_transfer_config": KVTransferConfig(**transfer())} if pooled else {}
    )
    engine = AsyncLLM.from_engine_args(
        AsyncEngineArgs(
            model=model,
            data_parallel_size=2,
            enable_expert_parallel=bool(os.environ.get("KVCOVE_EXPERTS")),
            **SMALL,
            **options,
        )
    )
    sampling = SamplingParams(
        temperature=0.0, max_tokens=12, detokenize=False, ignore_eos=True,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )  # fmt: skip

    async def ask(rank: int, turn: str) -> tuple[list[list[int]], int]:
        outputs, cached = [], 0
        for at, prompt in enumerate(PROMPTS):
            async for output in engine.generate(
                {"prompt_token_ids": prompt}, sampling, f"{turn}-{at}", data_parallel_rank=rank
            ):
                outputs.append(list(output.outputs[0].token_ids))
                cached += int(output.num_cached_tokens or 0)
        return outputs, cached

    seen: dict[str, Any] = {}
    try:
        seen["first"], seen["first_cached"] = await ask(0, "first")
        seen["second"], seen["second_cached"] = [], 0
        for turn in range(20 if pooled else 1):
            await asyncio.sleep(0.5)  # saves go on
            await engine.reset_prefix_cache()
            seen["second"], seen["second_cached"] = await ask(1, f"second-{turn}")
            if seen["second_cached"]:
                break
        if pooled:
            await engine.collective_rpc("apply_model", args=(weights.change,))
            await engine.reset_prefix_cache()
            seen["other"], seen["other_cached"] = await ask(0, "other")
    finally:
        engine.shutdown()
    return seen


def main() -> None:
    role, model, out = sys.argv[1:4]
    seen = {
        "sleeps": lambda: sleeps(model),
        "paused": lambda: asyncio.run(pausing(model, True)),
        "guesses": lambda: guesses(model),
        "transport": lambda: beside_transport(model),
        "one-way": lambda: one_way(model),
        "unseen": lambda: unseen(model),
        "experts": lambda: asyncio.run(expert_engines(model)),
    }[role]()
    Path(out).write_text(json.dumps(seen))
    if os.environ.get("KVCOVE_NIXL"):
        os._exit(0)  # NIXL's libraries (libnl) crash when a process that has no GPU unloads them


if __name__ == "__main__":
    main()
