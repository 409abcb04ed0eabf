# SPDX-License-Identifier: Apache-2.0
"""Five cycles of a trainer around one engine, in verl's order: cascade.py ROLE MODEL OUT.

Each cycle: roll out, then abort what runs, reset, sleep, other weights, wake up, reset. Roles: `plain`
(no connector), `pooled` (what kvcove.launch makes of $KVCOVE_STORE, a `kv_store` block). Writes JSON to OUT.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import weights
from driver import PROMPTS, SMALL, say

CYCLES = 5


class Replica:
    """A rollout engine, asked as verl's adapter asks it."""

    def __init__(self, model: str, transfer: dict[str, Any] | None) -> None:
        from vllm.config import KVTransferConfig
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM

        options: dict[str, Any] = {}
        if transfer is not None:
            options["kv_transfer_config"] = KVTransferConfig(**transfer)
        self.engine = AsyncLLM.from_engine_args(AsyncEngineArgs(model=model, **SMALL, **options))
        self._requests = 0

    async def generate(self, prompt: list[int], tokens: int = 12) -> tuple[list[int], int]:
        """Return the output and how many tokens of the prompt were cached."""
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        self._requests += 1
        sampling = SamplingParams(
            temperature=0.0,
            max_tokens=tokens,
            detokenize=False,
            ignore_eos=True,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        outputs = [
            output
            async for output in self.engine.generate(
                {"prompt_token_ids": prompt}, sampling, f"request-{self._requests}"
            )
        ]
        return list(outputs[-1].outputs[0].token_ids), int(outputs[-1].num_cached_tokens or 0)

    async def roll_out(self) -> tuple[list[list[int]], int]:
        """Return the outputs, and the tokens of all prompts that were cached."""
        done = await asyncio.gather(*(self.generate(prompt) for prompt in PROMPTS))
        return [tokens for tokens, _ in done], sum(cached for _, cached in done)

    async def turn_again(self) -> tuple[list[list[int]], int]:
        """Roll the same prompts out once more, with nothing in the engine's own cache."""
        outputs: list[list[int]] = []
        cached = 0
        for _ in range(20):  # saves go on beside the requests
            await asyncio.sleep(0.1)
            await self.engine.reset_prefix_cache()
            outputs, cached = await self.roll_out()
            if cached:
                break
        return outputs, cached

    async def update(self) -> bool:
        """Abort, reset, sleep, weights, wake up, reset; whether the resets were proven."""
        running = [
            asyncio.create_task(self.generate([*prompt[:600], 5, 6, 7], 400)) for prompt in PROMPTS
        ]
        await asyncio.sleep(0.3)
        await self.engine.pause_generation(mode="abort", clear_cache=True)
        await asyncio.gather(*running, return_exceptions=True)
        proven = await self.engine.reset_prefix_cache(reset_connector=True)
        await self.engine.sleep(level=2)
        await self.engine.collective_rpc("apply_model", args=(weights.change,))
        await self.engine.wake_up()
        await self.engine.resume_generation()
        return bool(await self.engine.reset_prefix_cache(reset_connector=True)) and proven


async def cycles(model: str, transfer: dict[str, Any] | None) -> dict[str, Any]:
    replica = Replica(model, transfer)
    seen: dict[str, Any] = {"first": [], "stale": [], "again": [], "cached": [], "proven": []}
    try:
        for cycle in range(CYCLES):
            first, stale = await replica.roll_out()
            again, cached = await replica.turn_again() if transfer else (first, 0)
            seen["first"].append(first)
            seen["stale"].append(stale)
            seen["again"].append(again)
            seen["cached"].append(cached)
            seen["proven"].append(await replica.update())
            say(f"cycle {cycle}: {stale} tokens cached at first, {cached} in the second turn")
    finally:
        replica.engine.shutdown()
    return seen


def main() -> None:
    role, model, out = sys.argv[1:4]
    transfer = None
    if role == "pooled":
        from kvcove import launch

        transfer = launch.for_verl(json.loads(os.environ["KVCOVE_STORE"]))
        assert transfer is not None
    Path(out).write_text(json.dumps(asyncio.run(cycles(model, transfer))))


if __name__ == "__main__":
    main()
