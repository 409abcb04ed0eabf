# SPDX-License-Identifier: Apache-2.0
"""Five cycles around verl's own rollout servers: server.py MODEL OUT.

verl's classes do all of it: its configuration, vLLMHttpServer in Ray, and ServerAdapter, by which its
workers sleep, wake and update a server. Two servers have the connector of $KVCOVE_TRANSFER, a third one
has none and says what outputs must be. Each cycle: weights in the order of verl's synchronous trainer, a
first turn on one of the two, a second turn with the same prompts on the other one, and an abort of what
runs. Writes JSON to OUT.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import ray
import torch

import kvcove

CYCLES = 5
TOKENS = 12
PROMPTS = [[(7 * i + 31 * j + j * j) % 900 + 10 for j in range(1000)] for i in range(3)]
_T0 = time.monotonic()


def say(text: str) -> None:
    print(f"    [{time.monotonic() - _T0:5.1f} s] {text}", flush=True)


def configurations(model: str, transfer: dict[str, Any] | None) -> tuple[Any, Any]:
    """Return verl's configuration of rollout and of model, composed of its own files."""
    from configuration import composed

    rollout = "actor_rollout_ref.rollout"
    arguments = [
        f"actor_rollout_ref.model.path={model}",
        f"{rollout}.name=vllm",
        f"{rollout}.tensor_model_parallel_size=1",
        f"{rollout}.dtype=float32",
        f"{rollout}.prompt_length=1500",
        f"{rollout}.response_length=500",
        f"{rollout}.max_model_len=2048",
        f"{rollout}.max_num_batched_tokens=2048",
        f"{rollout}.max_num_seqs=16",
        f"{rollout}.enforce_eager=True",
        # vLLM for CPUs has no sleep mode; the calls are made all the same.
        f"+{rollout}.enable_sleep_mode=False",
        f"{rollout}.checkpoint_engine.update_weights_bucket_megabytes=64",
    ]
    if transfer is not None:
        from kvcove.launch import hydra, verl

        arguments.append(f"+{verl.TARGET}={hydra.quote(transfer)}")
    made = composed(arguments).actor_rollout_ref
    return made.rollout, made.model


class Weights:
    """The weights of the trainer's actor. Each step adds noise that depends on nothing but the number of the step."""

    def __init__(self, model: str) -> None:
        from transformers import AutoModelForCausalLM

        self._state = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).state_dict()
        self._step = 0

    def next(self) -> list[tuple[str, torch.Tensor]]:
        generator = torch.Generator().manual_seed(self._step)
        self._step += 1
        for tensor in self._state.values():
            tensor.add_(torch.randn(tensor.shape, generator=generator) * 0.05)
        return list(self._state.items())


class Replica:
    """One of verl's servers, and the adapter of the worker beside it."""

    def __init__(self, rank: int, rollout: Any, model: Any) -> None:
        from verl.workers.rollout.replica import RolloutMode
        from verl.workers.rollout.vllm_rollout.vllm_async_server import vLLMHttpServer
        from verl.workers.rollout.vllm_rollout.vllm_rollout import ServerAdapter

        self.server = (
            ray.remote(vLLMHttpServer)
            .options(name=f"vllm_server_{rank}_0", max_concurrency=64, num_cpus=0)
            .remote(
                config=rollout,
                model_config=model,
                rollout_mode=RolloutMode.HYBRID,
                workers=[],
                replica_rank=rank,
                node_rank=0,
                gpus_per_node=1,
                nnodes=1,
                cuda_visible_devices="",
            )
        )
        self.adapter = ServerAdapter(rollout, model, device_mesh=None, replica_rank=rank)
        self._requests = 0

    async def generate(self, prompt: list[int], tokens: int = TOKENS) -> Any:
        self._requests += 1
        return await self.server.generate.remote(
            prompt_ids=list(prompt),
            sampling_params={"temperature": 0.0, "max_tokens": tokens, "ignore_eos": True},
            request_id=f"request-{self._requests}",
        )

    async def roll_out(self) -> tuple[list[list[int]], int]:
        """Return the outputs, and the tokens of all prompts that were cached."""
        done = await asyncio.gather(*(self.generate(prompt) for prompt in PROMPTS))
        cached = sum(each.extra_fields["num_cached_tokens"] or 0 for each in done)
        return [list(each.token_ids) for each in done], cached

    async def update(self, weights: list[tuple[str, torch.Tensor]], step: int) -> None:
        """Sleep, wake up, new weights, wake up: as verl's worker does (verl/workers/engine_workers.py)."""
        await self.adapter.release()
        await self.adapter.resume(tags=["weights"])
        await self.adapter.update_weights(iter(weights), global_steps=step)
        await self.adapter.resume(tags=["kv_cache"])

    async def abort(self) -> int:
        """Abort requests that run; return of how many verl says so."""
        running = [asyncio.create_task(self.generate([*p[:600], 5, 6, 7], 400)) for p in PROMPTS]
        await asyncio.sleep(0.5)
        told = await self.server.abort_all_requests.remote()
        ended = await asyncio.gather(*running)
        assert all(each.stop_reason == "aborted" for each in ended), ended
        await self.server.resume_generation.remote()
        return int(told["aborted_count"])


async def settled(pool: Any) -> None:
    """Wait until nothing is saved any more: saves go on beside and behind the requests."""
    before, count = -1, int(pool.stat().objects)
    while count != before:
        await asyncio.sleep(1)
        before, count = count, int(pool.stat().objects)


async def cycles(model: str, transfer: dict[str, Any]) -> dict[str, Any]:
    pooled = [Replica(rank, *configurations(model, transfer)) for rank in range(2)]
    plain = Replica(2, *configurations(model, None))
    replicas = [*pooled, plain]
    await asyncio.gather(*(each.server.launch_server.remote() for each in replicas))
    say("three servers of verl are there")
    weights = Weights(model)
    pool = kvcove.open(transfer["kv_connector_extra_config"]["pool"])
    seen: dict[str, Any] = {"tokens": sum(map(len, PROMPTS))}
    seen |= {name: [] for name in ("plain", "first", "stale", "again", "cached", "aborted")}
    for cycle in range(CYCLES):
        step = weights.next()
        for each in replicas:
            await each.update(step, cycle)
        seen["plain"].append((await plain.roll_out())[0])
        first, stale = await pooled[cycle % 2].roll_out()
        await settled(pool)
        again, cached = await pooled[(cycle + 1) % 2].roll_out()
        seen["first"].append(first)
        seen["stale"].append(stale)
        seen["again"].append(again)
        seen["cached"].append(cached)
        seen["aborted"].append(sum([await each.abort() for each in replicas]))
        say(f"cycle {cycle}: {stale} tokens cached at first, {cached} in the second turn")
    return seen


def main() -> None:
    model, out = sys.argv[1:3]
    transfer = json.loads(os.environ["KVCOVE_TRANSFER"])
    ray.init(
        num_cpus=4,
        num_gpus=1,
        include_dashboard=False,
        _node_ip_address="127.0.0.1",
        object_store_memory=256 << 20,
    )
    try:
        seen = asyncio.run(cycles(model, transfer))
    finally:
        ray.shutdown()
    Path(out).write_text(json.dumps(seen))


if __name__ == "__main__":
    main()
