# SPDX-License-Identifier: Apache-2.0
"""vLLM on a GPU, with kvcove's connector: engines.py DIRECTORY [PART...]. Needs vLLM for CUDA.

Parts: `parity` (what is computed on KV from the pool is what is computed on the engine's own, for
attention kernels, types of KV, schedulers and layouts), `ttft` (the first token behind a prefix of
8,192 tokens: computed, from the pool, from vLLM's OffloadingConnector; and a step that decodes).
Models have random weights. $KVCOVE_ENGINES names some of a part's engines, $KVCOVE_AT_ONCE runs so
many of `parity` at once.
A line for each check, and a line of JSON for each figure. Ends with 1 if a check fails.
"""

from __future__ import annotations

import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from run import FAILED, check, figure

HERE = Path(__file__).parent
ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_ALLOW_INSECURE_SERIALIZATION": "1",
    "HF_HUB_OFFLINE": "1",
}
PROMPTS = [[(7 * i + 31 * j + j * j) % 900 + 10 for j in range(1500)] for i in range(4)]


COMMON: dict[str, Any] = {
    "vocab_size": 1024,
    "hidden_size": 512,
    "intermediate_size": 1024,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "max_position_embeddings": 16384,
    "initializer_range": 0.3,
}


def save(kind: Any, config: Any, path: Path) -> None:
    import torch

    torch.manual_seed(3)
    kind(config).to(torch.bfloat16).save_pretrained(path)


def make_llama(path: Path) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(**COMMON, num_key_value_heads=2, head_dim=128, tie_word_embeddings=False)
    save(LlamaForCausalLM, config, path)


def make_windows(path: Path) -> None:
    """Sliding windows between full attention."""
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig

    config = Gemma3TextConfig(
        **COMMON,
        num_key_value_heads=2,
        head_dim=128,
        query_pre_attn_scalar=128,
        sliding_window=256,
        layer_types=["sliding_attention", "full_attention"] * 2,
    )
    save(Gemma3ForCausalLM, config, path)


def make_mla(path: Path) -> None:
    from transformers import DeepseekV2Config, DeepseekV2ForCausalLM

    config = DeepseekV2Config(
        **{**COMMON, "num_attention_heads": 16},
        num_key_value_heads=16,
        kv_lora_rank=512,
        q_lora_rank=None,
        qk_nope_head_dim=128,
        qk_rope_head_dim=64,
        v_head_dim=128,
        first_k_dense_replace=4,
        n_routed_experts=2,
        n_shared_experts=1,
        num_experts_per_tok=1,
        moe_intermediate_size=256,
        tie_word_embeddings=False,
    )
    save(DeepseekV2ForCausalLM, config, path)


MODELS: dict[str, Callable[[Path], None]] = {
    "llama": make_llama,
    "windows": make_windows,
    "mla": make_mla,
}
# Model, vLLM's options, the connector's.
ENGINES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "flash": ("llama", {"attention_backend": "FLASH_ATTN"}, {}),
    "flash-engine-layout": ("llama", {"attention_backend": "FLASH_ATTN"}, {"kv_layout": "engine"}),
    "flash-fp8": ("llama", {"attention_backend": "FLASH_ATTN", "kv_cache_dtype": "fp8"}, {}),
    "triton": ("llama", {"attention_backend": "TRITON_ATTN"}, {}),
    "flashinfer": ("llama", {"attention_backend": "FLASHINFER"}, {}),
    "flashinfer-fp8": (
        "llama",
        {"attention_backend": "FLASHINFER", "kv_cache_dtype": "fp8"},
        {},
    ),
    "mla": ("mla", {"attention_backend": "FLASHMLA"}, {}),
    "mla-triton": ("mla", {"attention_backend": "TRITON_MLA"}, {}),
    "mla-fp8": ("mla", {"attention_backend": "FLASHMLA", "kv_cache_dtype": "fp8"}, {}),
    "windows": ("windows", {}, {}),
    "graphs": ("llama", {"enforce_eager": False}, {}),
    "synchronous": ("llama", {"async_scheduling": False}, {"load_async": False}),
    "by-layers": (
        "llama",
        {"async_scheduling": False},
        {"load_async": False, "load_layers": 4},
    ),
    "by-layers-graphs": (
        "llama",
        {"enforce_eager": False, "async_scheduling": False},
        {"load_async": False, "load_layers": 4},
    ),
    "speculation": (
        "llama",
        {
            "speculative_config": {
                "method": "ngram",
                "num_speculative_tokens": 3,
                "prompt_lookup_max": 4,
            }
        },
        {},
    ),
    "sleep": ("llama", {"enable_sleep_mode": True}, {}),
    "async": ("llama", {"async_scheduling": True}, {}),
}


def transfer(**extra: Any) -> Any:
    from vllm.config import KVTransferConfig

    return KVTransferConfig(
        kv_connector="KvcoveConnector",
        kv_connector_module_path="kvcove.vllm",
        kv_role="kv_both",
        kv_load_failure_policy="recompute",
        kv_connector_extra_config=extra,
    )


class Engine:
    def __init__(self, model: Path, **options: Any) -> None:
        from vllm import LLM

        self.llm = LLM(
            **{
                "model": str(model),
                "skip_tokenizer_init": True,
                "dtype": "bfloat16",
                "max_model_len": 4096,
                "max_num_batched_tokens": 8192,
                "enforce_eager": True,
                "gpu_memory_utilization": 0.3,
                "kv_cache_memory_bytes": 1 << 30,
                "seed": 0,
                "disable_log_stats": False,
                **options,
            }
        )

    def run(self, prompts: list[list[int]], tokens: int = 12) -> list[list[int]]:
        from vllm import SamplingParams

        sampling = SamplingParams(
            temperature=0.0, max_tokens=tokens, detokenize=False, ignore_eos=True
        )
        outputs = self.llm.generate(
            [{"prompt_token_ids": prompt} for prompt in prompts], sampling, use_tqdm=False
        )
        return [list(output.outputs[0].token_ids) for output in outputs]

    def each(self, prompts: list[list[int]]) -> list[list[int]]:
        """One after the other: kernels round by what else is in their batch."""
        return [self.run([prompt])[0] for prompt in prompts]

    def hits(self) -> int:
        """Tokens that came from a connector so far."""
        for metric in self.llm.get_metrics():
            if metric.name == "vllm:external_prefix_cache_hits":
                return int(metric.value)
        return -1

    def stats(self) -> dict[str, int]:
        core = self.llm.llm_engine.engine_core.engine_core
        return dict(core.scheduler.connector._scheduler.role.stats())

    def settle(self) -> None:
        """Wait until what was computed is stored; then the own cache is reset."""
        until = time.monotonic() + 30
        self.run([[5, 6, 7]], 2)
        while self.stats()["pinned_blocks"] > 0 and time.monotonic() < until:
            self.run([[5, 6, 7]], 2)
            time.sleep(0.02)
        assert self.llm.reset_prefix_cache()

    def until_pinned(self, least: int) -> None:
        """Wait until so many bytes of the pool are pinned for the GPU."""
        until = time.monotonic() + 60
        while self.stats()["device_segment_pinned_bytes"] < least and time.monotonic() < until:
            self.run(PROMPTS[:1], 2)
            self.llm.reset_prefix_cache()
            time.sleep(0.02)


def one(name: str, directory: Path) -> int:
    """One engine: KV from the pool beside the engine's own."""
    model, options, extra = ENGINES[name]
    began = time.monotonic()
    engine = Engine(
        directory / model,
        kv_transfer_config=transfer(memory="1GiB", load_when="always", **extra),
        **options,
    )
    started = time.monotonic() - began
    cold = engine.each(PROMPTS)
    own = engine.each(PROMPTS)  # on the engine's own KV
    engine.settle()
    before = engine.hits()
    pool = engine.each(PROMPTS)
    hits = engine.hits() - before
    again = engine.each(PROMPTS)
    seen = engine.stats()
    moved = {
        each: seen[f"device_load_{each}_bytes"]
        for each in ("batched", "staged", "mapped", "in_place")
        if seen[f"device_load_{each}_bytes"]
    }
    wanted = 4 * (1500 // 64 * 64)  # MLA's blocks have 64 tokens
    check(
        pool == own and again == own and hits >= wanted and len({tuple(each) for each in own}) > 1,
        f"{name}: {hits} tokens from the pool, tokens as on the engine's own KV "
        f"(computed: {'the same' if cold == own else 'others, by rounding'}; {moved}; start {started:.0f} s)",
    )
    if pool != own:
        print(f"    own {own}\n    pool {pool}", flush=True)
    if name == "sleep":
        engine.llm.sleep(level=1)
        engine.llm.wake_up()
        before = engine.hits()
        slept = engine.each(PROMPTS)
        check(slept == own, f"sleep: the same after sleep and wake ({engine.hits() - before} hits)")
    # A reset, then the same again: computed anew.
    assert engine.llm.reset_prefix_cache(reset_connector=True)
    before = engine.hits()
    check(
        engine.each(PROMPTS) == cold and engine.hits() == before,
        f"{name}: after a reset all is computed again",
    )
    return 1 if FAILED else 0


def parity(directory: Path) -> None:
    print("== parity", flush=True)
    for model, make in MODELS.items():
        if not (directory / model / "config.json").exists():
            make(directory / model)
    chosen = os.environ.get("KVCOVE_ENGINES", "").split() or list(ENGINES)
    with ThreadPoolExecutor(int(os.environ.get("KVCOVE_AT_ONCE", "1"))) as pool:
        list(pool.map(lambda name: inside("--one", name, directory), chosen))


def inside(role: str, name: str, directory: Path) -> None:
    """A role in a process of its own; its log is kept, what it says of checks and figures is shown."""
    log = directory / f"{role[2:]}-{name}.log"
    with log.open("wb") as out:
        try:
            ended = subprocess.run(
                [sys.executable, str(HERE / "engines.py"), role, name, str(directory)],
                stdout=out,
                stderr=subprocess.STDOUT,
                check=False,
                timeout=240,
                env={**os.environ, **ENVIRONMENT},
            ).returncode
        except subprocess.TimeoutExpired:
            ended = -1
    text = log.read_text(errors="replace")
    for line in re.findall(r"^(?:  (?:ok  |FAIL)|    own|    pool|\{\"what).*$", text, re.M):
        print(line, flush=True)
    if "No module named 'flashinfer" in text or "FlashInfer is not" in text:
        print(f"  left out: {name} (FlashInfer is not installed)", flush=True)
    elif ended != 0:
        FAILED.append(name)
        errors = re.findall(r"^.*(?:Error|error).*$", text, re.M)[-4:]
        print(f"  FAIL  {name} ended with {ended}; {log}", *errors, sep="\n    ", flush=True)


# 8B of parameters, as Llama 3's; random, never written to a file.
LARGE: dict[str, Any] = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 32768,
}
PREFIX = 8192
FIRST_TOKEN: dict[str, dict[str, Any]] = {
    "no-connector": {},
    "kvcove": {},
    "kvcove-engine-layout": {"kv_layout": "engine"},
    "kvcove-synchronous": {"load_async": False},
    "kvcove-by-layers": {"load_async": False, "load_layers": 8},
    "offloading": {},
}


def first_token(name: str, directory: Path) -> int:
    """Milliseconds to the first token behind a prefix, computed and from a connector."""
    from vllm.config import KVTransferConfig

    kvcove = name.startswith("kvcove")
    offloading = KVTransferConfig(
        kv_connector="OffloadingConnector",
        kv_role="kv_both",
        kv_connector_extra_config={"cpu_bytes_to_use": 16 << 30},
    )
    connector = transfer(memory="16GiB", **FIRST_TOKEN[name]) if kvcove else offloading
    # Loads in the step need steps one at a time.
    steps = {} if FIRST_TOKEN[name].get("load_async", True) else {"async_scheduling": False}
    engine = Engine(
        directory / "large",
        load_format="dummy",
        max_model_len=PREFIX + 1024,
        max_num_batched_tokens=PREFIX + 1024,
        kv_cache_memory_bytes=12 << 30,
        gpu_memory_utilization=0.5,
        enforce_eager=False,
        **({} if name == "no-connector" else {"kv_transfer_config": connector}),
        **steps,
        compilation_config={"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY"},
    )

    def prompt(number: int) -> list[int]:
        return [(13 * number + 7 * j + j * j) % 31000 + 10 for j in range(PREFIX + 32)]

    def timed(number: int) -> float:
        began = time.monotonic()
        engine.run([prompt(number)], 1)
        return (time.monotonic() - began) * 1e3

    def forget() -> None:
        """The engine's own cache is empty, and what it computed is stored."""
        for _ in range(200):
            engine.run([[5, 6, 7]], 2)
            time.sleep(0.01)
            if engine.llm.reset_prefix_cache():
                break
        time.sleep(0.3)
        engine.llm.reset_prefix_cache()

    timed(0)
    forget()
    if kvcove:
        until = time.monotonic() + 60
        while engine.stats()["device_segment_pinned_bytes"] < 15 << 30 and time.monotonic() < until:
            engine.run([[5, 6, 7]], 2)
            time.sleep(0.05)
    cold = [timed(number) for number in range(1, 8)]
    forget()
    warm = []
    before = engine.hits()
    for _ in range(3):
        warm += [timed(number) for number in range(1, 8)]
        forget()
    hits = engine.hits() - before
    timed(1)
    own = [timed(1) for _ in range(9)]
    # A step that decodes behind so many tokens, in the layout of KV that the connector asks for.
    began = time.monotonic()
    engine.run([prompt(1)], 201)
    decode = (time.monotonic() - began) * 1e3 - statistics.median(own)
    result: dict[str, Any] = {
        "computed_ms": round(statistics.median(cold), 1),
        "connector_ms": round(statistics.median(warm), 1),
        "least_connector_ms": round(min(warm), 1),
        "own_cache_ms": round(statistics.median(own), 1),
        "decode_ms": round(decode / 200, 3),
        "tokens_from_connector": hits,
    }
    if kvcove:
        seen = engine.stats()
        result["load_GBps"] = round(
            sum(seen[f"device_load_{each}_bytes"] for each in ("batched", "staged", "mapped"))
            / max(seen["device_load_ns"], 1),
            1,
        )
        result["in_place_GB"] = round(seen["device_load_in_place_bytes"] / 1e9, 2)
        result["declined_tokens"] = seen["declined_tokens"]
    figure(f"first token behind {PREFIX} tokens, 8B, {name}", **result)
    return 0


def ttft(directory: Path) -> None:
    from transformers import LlamaConfig

    print("== ttft", flush=True)
    LlamaConfig(**LARGE, architectures=["LlamaForCausalLM"]).save_pretrained(directory / "large")
    for name in os.environ.get("KVCOVE_ENGINES", "").split() or FIRST_TOKEN:
        inside("--ttft", name, directory)


PARTS: dict[str, Callable[[Path], None]] = {"parity": parity, "ttft": ttft}


def main() -> int:
    arguments = sys.argv[1:]
    if arguments[:1] == ["--one"]:
        return one(arguments[1], Path(arguments[2]))
    if arguments[:1] == ["--ttft"]:
        return first_token(arguments[1], Path(arguments[2]))
    if not arguments:
        print(__doc__)
        return 2
    directory = Path(arguments[0])
    directory.mkdir(parents=True, exist_ok=True)
    for part in arguments[1:] or PARTS:
        began = time.monotonic()
        PARTS[part](directory)
        print(f"-- {part}: {time.monotonic() - began:.1f} s", flush=True)
    print(f"FAILED: {', '.join(FAILED)}" if FAILED else "all checks passed")
    return 1 if FAILED else 0


if __name__ == "__main__":
    sys.exit(main())
