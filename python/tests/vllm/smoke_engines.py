# SPDX-License-Identifier: Apache-2.0
"""The engines of smoke.py, which starts this: smoke_engines.py DIRECTORY.

One engine has both roles in this process, the other has them in processes of its own; they share the pool of
`kvcove serve`, which has little memory and a disk. What each part sees goes to the pipe $KVCOVE_SMOKE_REPORT.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import queued
import weights
from cascade import Replica
from driver import PROMPTS
from own import OwnEngine
from run import Master, configuration
from tiny_models import TINY
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1

import kvcove

TOKENS = sum((len(prompt) - 1) // 128 * 128 for prompt in PROMPTS)
LAYERS = 2
Outputs = list[list[int]]


class Report:
    """Lines of JSON to smoke.py: a part with its deadline begins, or something was checked."""

    def __init__(self) -> None:
        self._out = os.fdopen(int(os.environ["KVCOVE_SMOKE_REPORT"]), "w")

    def _say(self, **line: Any) -> None:
        print(json.dumps(line), file=self._out, flush=True)

    def part(self, name: str, limit: float) -> None:
        self._say(part=name, limit=limit)

    def check(self, right: bool, text: str) -> None:
        self._say(right=bool(right), text=text)

    def end(self, error: str = "") -> None:
        self._say(end=error)


def make_model(path: Path) -> None:
    """Write a tiny Llama with random weights, without the seconds that importing transformers takes."""
    import numpy
    from safetensors.numpy import save_file

    path.mkdir()
    size, inner, words = TINY["hidden_size"], TINY["intermediate_size"], TINY["vocab_size"]
    kv = size // TINY["num_attention_heads"] * TINY["num_key_value_heads"]
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (words, size),
        "model.norm.weight": (size,),
        "lm_head.weight": (words, size),
    }
    for layer in range(LAYERS):
        shapes |= {
            f"model.layers.{layer}.{name}.weight": shape
            for name, shape in {
                "self_attn.q_proj": (size, size),
                "self_attn.k_proj": (kv, size),
                "self_attn.v_proj": (kv, size),
                "self_attn.o_proj": (size, size),
                "mlp.gate_proj": (inner, size),
                "mlp.up_proj": (inner, size),
                "mlp.down_proj": (size, inner),
                "input_layernorm": (size,),
                "post_attention_layernorm": (size,),
            }.items()
        }
    random = numpy.random.default_rng(3)
    tensors = {
        name: numpy.ones(shape, "f4")
        if len(shape) == 1
        else (0.3 * random.standard_normal(shape)).astype("f4")
        for name, shape in shapes.items()
    }
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    facts = {
        **TINY,
        "num_hidden_layers": LAYERS,
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    (path / "config.json").write_text(json.dumps(facts))


def transfer(pool: str) -> dict[str, Any]:
    return {
        "kv_connector": "KvcoveConnector",
        "kv_connector_module_path": "kvcove.vllm",
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {"pool": pool, "load_when": "always"},
    }


class Listener:
    """Hears an engine's KV events."""

    def __init__(self, address: str) -> None:
        import zmq

        self._socket = zmq.Context.instance().socket(zmq.SUB)
        self._socket.connect(address)
        self._socket.setsockopt_string(zmq.SUBSCRIBE, "")

    def heard(self) -> list[Any]:
        """Return the events since the last call, when none has come for a while."""
        import msgspec
        from vllm.distributed.kv_events import KVEventBatch

        events: list[Any] = []
        while self._socket.poll(300):
            message = self._socket.recv_multipart()[-1]
            events += msgspec.msgpack.decode(message, type=KVEventBatch).events
        return events


def named(events: list[Any], kind: str, medium: str | None = None) -> list[Any]:
    return [
        event
        for event in events
        if type(event).__name__ == kind and (medium is None or event.medium == medium)
    ]


class First(OwnEngine):
    """The engine whose roles are both in this process."""

    def roll_out(self) -> tuple[Outputs, int]:
        """Return the outputs, and how many tokens of the prompts were not computed."""
        from vllm import SamplingParams

        sampling = SamplingParams(temperature=0.0, max_tokens=12, detokenize=False, ignore_eos=True)
        done = self.llm.generate(
            [{"prompt_token_ids": prompt} for prompt in PROMPTS], sampling, use_tqdm=False
        )
        outputs = [list(output.outputs[0].token_ids) for output in done]
        return outputs, sum(int(output.num_cached_tokens or 0) for output in done)

    def roll_out_from_pool(self) -> tuple[Outputs, int]:
        """As `roll_out`, with nothing in the engine's own cache."""
        self.reset(connector=False)
        return self.roll_out()

    def reset_beside_loads(self, steps: int) -> tuple[bool, Outputs, list[str]]:
        """Reset everything after so many steps of requests whose KV is in the pool alone.

        Return whether it was proven, the requests' outputs, and what they were doing then.
        """
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        self.reset(connector=False)
        engine = self.llm.llm_engine
        core = engine.engine_core.engine_core
        sampling = SamplingParams(
            temperature=0.0,
            max_tokens=12,
            detokenize=False,
            ignore_eos=True,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        names = [f"beside {steps} {i}" for i in range(len(PROMPTS))]
        for name, prompt in zip(names, PROMPTS, strict=True):
            engine.add_request(name, {"prompt_token_ids": prompt}, sampling)
        for _ in range(steps):
            engine.step()
        doing = sorted(str(request.status) for request in core.scheduler.requests.values())
        proven = bool(core.reset_prefix_cache(reset_running_requests=True, reset_connector=True))
        done: dict[str, list[int]] = {}
        while engine.has_unfinished_requests():
            for output in engine.step():
                if output.finished:
                    done[output.request_id] = list(output.outputs[0].token_ids)
        return proven, [done[name] for name in names], doing

    def by_source(self) -> dict[str, int]:
        return {
            metric.labels["source"]: int(metric.value)
            for metric in self.llm.get_metrics()
            if metric.name == "vllm:prompt_tokens_cached_by_source"
        }


class Second(Replica):
    """The engine whose roles are in processes of their own."""

    async def roll_out_from_pool(self) -> tuple[Outputs, int]:
        await self.engine.reset_prefix_cache()
        return await self.roll_out()

    async def others(self, tokens: int) -> list[asyncio.Task[tuple[list[int], int]]]:
        """Begin requests whose prompts have nothing in common with PROMPTS."""
        tasks = [
            asyncio.create_task(self.generate([i + 1, *prompt[700::-1]], tokens))
            for i, prompt in enumerate(PROMPTS)
        ]
        await asyncio.sleep(0.3)
        return tasks


class Log:
    """What this process and its children have logged since the last call."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._at = 0

    def tiers(self) -> list[dict[str, int]]:
        """Return the counts of each line "Mooncake load tier summary"."""
        with self._path.open("rb") as log:
            log.seek(self._at)
            text = log.read().decode(errors="replace")
            self._at = log.tell()
        return [
            {name: int(count) for name, count in re.findall(r"(\w+)=(\d+)", line)}
            for line in text.splitlines()
            if "Mooncake load tier summary" in line
        ]


async def parts(directory: Path, report: Report) -> None:
    check = report.check
    report.part("first engine starts", 150)
    model = directory / "model"
    make_model(model)
    pool = f"unix:{os.environ['KVCOVE_SMOKE_POOL']}"
    os.environ["KVCOVE_EXTRA"] = json.dumps(transfer(pool)["kv_connector_extra_config"])
    from vllm.config import KVEventsConfig

    events_address = f"ipc://{directory}/events"
    listener = Listener(events_address)
    first = First(
        str(model),
        kv_events_config=KVEventsConfig(
            enable_kv_cache_events=True, publisher="zmq", endpoint=events_address
        ),
    )
    store = kvcove.open(pool)
    log = Log(directory / "engines.log")

    report.part("a prompt is saved", 60)
    w0, cached = first.roll_out()
    first.settle()
    check(
        cached == 0 and len({tuple(tokens) for tokens in w0}) > 1,
        "the first engine computes all of the prompts",
    )
    events = listener.heard()
    stored = named(events, "BlockStored", "CPU")
    told = {
        tuple(event.token_ids[at : at + event.block_size])
        for event in stored
        for at in range(0, len(event.token_ids), event.block_size)
    }
    chunks = {
        tuple(prompt[at : at + 128])
        for prompt in PROMPTS
        for at in range(0, len(prompt) - 1 - 127, 128)
    }
    check(
        told == chunks and len(chunks) == TOKENS // 128,
        f"KV events: {len(told)} of {len(chunks)} blocks are stored in memory, with their tokens",
    )
    # All of them are less than the pool's memory: what was found can be brought back together. Other
    # values take their place in memory meanwhile.
    filler = store.session("filler")
    until = time.monotonic() + 20
    for i in range(400):
        if store.stat().disk_puts >= 12 or time.monotonic() > until:
            break
        filler.put([f"filler {i}"], [bytes(256 << 10)])
        await asyncio.sleep(0.01)
    check(store.stat().disk_puts >= 12, f"then {store.stat().disk_puts} of them go to the disk")

    report.part("its own load, from both tiers", 60)
    log.tiers()
    outputs, cached = first.roll_out_from_pool()
    first.run([[5, 6, 7]])  # a step takes the last counts to vLLM's metrics
    check(
        outputs == w0 and cached == TOKENS,
        f"after a reset of its own cache alone: {cached} of {TOKENS} tokens, the same outputs",
    )
    lines = log.tiers()
    keys = {
        tier: sum(line[f"{tier}_keys"] for line in lines)
        for tier in ("memory", "disk", "unknown", "success", "failed")
    }
    check(
        keys["disk"] > 0
        and keys["success"] == cached // 128
        and keys["memory"] + keys["disk"] == keys["success"]
        and keys["failed"] == keys["unknown"] == 0,
        f"tier lines: {len(lines)} loads, {keys['memory']} keys from memory, {keys['disk']} from the disk",
    )
    sources = first.by_source()
    if hasattr(KVConnectorBase_V1, "get_external_cache_hit_sources"):  # 0.32 and later
        check(
            sources.get("disk", 0) > 0 and sources.get("host", 0) + sources["disk"] == cached,
            f"vLLM's metrics name the same tiers: {sources}",
        )
    check(
        bool(named(listener.heard(), "BlockStored", "STORAGE")),
        "KV events: blocks that a look-up finds on the disk",
    )

    report.part("resets beside its loads", 60)
    for steps in (1, 2, 3):
        first.roll_out()
        first.settle()
        proven, outputs, doing = first.reset_beside_loads(steps)
        check(
            proven and outputs == w0,
            f"after {steps} steps ({', '.join(sorted(set(doing)))}): proven, the same outputs",
        )
        first.settle()
        blocks = first.llm.llm_engine.engine_core.engine_core.scheduler.kv_cache_manager.block_pool
        check(
            blocks.get_num_free_blocks() == blocks.num_gpu_blocks - 1,
            f"all {blocks.get_num_free_blocks()} blocks are free again",
        )
    first.roll_out()
    first.settle()

    report.part("second engine starts", 180)
    second = Second(str(model), transfer(pool))
    try:
        await with_second(report, first, second, listener, log, w0)
    finally:
        second.engine.shutdown()
    report.part("MooncakeStoreConnector's queue and a reset", 60)
    master = Master(directory)
    os.environ["MOONCAKE_CONFIG_PATH"] = configuration(directory, master, "16MB")
    for right, text in queued.checks(queued.both(first.llm.llm_engine.vllm_config)):
        check(right, text)
    master.stop()
    report.part("the end", 60)
    first.llm.llm_engine.engine_core.shutdown()
    store.close()


async def with_second(
    report: Report, first: First, second: Second, listener: Listener, log: Log, w0: Outputs
) -> None:
    check = report.check
    # From the second engine's start on nothing but own caches is reset until the first pause below.
    report.part("another engine loads it", 60)
    log.tiers()
    outputs, cached = await second.roll_out()
    lines = log.tiers()
    loaded = sum(line["success_keys"] for line in lines)
    check(
        outputs == w0 and cached == TOKENS and loaded == cached // 128,
        f"{cached} of {TOKENS} tokens ({loaded} keys) from the pool, the same outputs",
    )

    report.part("a pause alone voids", 90)
    running = await second.others(400)
    await second.engine.pause_generation(mode="abort", clear_cache=True)
    await asyncio.gather(*running, return_exceptions=True)
    # Of the pool, so for the other engine, too; before anything is computed anew.
    outputs, cached = first.roll_out_from_pool()
    check(outputs == w0 and cached == 0, f"abort: the other engine is served {cached} old tokens")
    first.settle()
    await second.engine.resume_generation()
    outputs, cached = await second.turn_again()
    check(
        outputs == w0 and cached > 0,
        f"abort: what is saved after it is found, {cached} tokens: nothing stays closed",
    )
    running = await second.others(60)
    quiet = [task.result() for task in (await asyncio.wait(running))[0]]
    running = await second.others(60)
    await second.engine.pause_generation(mode="keep", clear_cache=True)
    await second.engine.resume_generation()
    kept = [task.result() for task in (await asyncio.wait(running))[0]]
    check(
        sorted(tokens for tokens, _ in kept) == sorted(tokens for tokens, _ in quiet),
        f"keep: {len(kept)} requests go on with the same outputs",
    )
    outputs, cached = await second.roll_out()
    check(outputs == w0 and cached == 0, f"keep: the same engine is served {cached} old tokens")
    await second.turn_again()
    await second.engine.pause_generation(mode="abort", clear_cache=False)
    await second.engine.resume_generation()
    outputs, cached = await second.roll_out_from_pool()
    check(outputs == w0 and cached > 0, f"clear_cache=False keeps the KV: {cached} tokens")

    report.part("sleep alone voids", 60)
    await second.engine.sleep(level=1)
    await second.engine.wake_up()
    outputs, cached = await second.roll_out()
    check(outputs == w0 and cached == 0, f"after it the engine is served {cached} old tokens")
    outputs, cached = await second.turn_again()
    check(outputs == w0 and cached > 0, f"awake, it saves and loads again: {cached} tokens")

    report.part("reset_cache", 60)
    # The first engine hears of the other's resets now: loads that these void are computed, not looked up once more.
    outputs, _ = first.roll_out_from_pool()
    check(outputs == w0, "loads that the other engine's resets void are computed")
    outputs, cached = first.roll_out_from_pool()
    check(outputs == w0 and cached > 0, f"before it: {cached} tokens")
    listener.heard()
    check(first.reset(connector=True), "the reset is proven")
    outputs, cached = await second.roll_out_from_pool()
    check(outputs == w0 and cached == 0, f"the other engine is served {cached} old tokens")
    first.run([[5, 6, 7]])
    check(bool(named(listener.heard(), "AllBlocksCleared")), "KV events: all blocks are cleared")

    report.part("weights' fingerprints", 90)
    _, cached = await second.turn_again()
    check(cached > 0, f"the pool has {cached} tokens of these weights")
    first.llm.apply_model(weights.change_and_remember)
    w1, cached = first.roll_out_from_pool()
    check(w1 != w0 and cached == 0, f"other weights: {cached} tokens, other outputs")
    first.settle()
    outputs, cached = first.roll_out_from_pool()
    check(outputs == w1 and cached > 0, f"they find their own KV: {cached} tokens")
    outputs, cached = await second.roll_out_from_pool()
    check(
        outputs == w0 and cached > 0,
        f"the other engine, with the old weights, finds theirs: {cached} tokens",
    )
    await second.engine.collective_rpc("apply_model", args=(weights.change,))
    outputs, cached = await second.roll_out_from_pool()
    check(
        outputs == w1 and cached > 0,
        f"the same update there: equal weights find the first engine's KV, {cached} tokens",
    )
    first.llm.apply_model(weights.restore)
    outputs, cached = first.roll_out_from_pool()
    check(outputs == w0 and cached > 0, f"changed back: the old weights' KV, {cached} tokens")


def main() -> None:
    report = Report()
    try:
        asyncio.run(parts(Path(sys.argv[1]), report))
    except BaseException:
        traceback.print_exc()
        report.end(traceback.format_exc(limit=-3))
        raise
    report.end()


if __name__ == "__main__":
    main()
