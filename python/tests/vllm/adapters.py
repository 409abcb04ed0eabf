# SPDX-License-Identifier: Apache-2.0
"""LoRA adapters whose tensors change under one name and path: adapters.py adapters MODEL OUT.

$KVCOVE_TP ranks. vLLM's block hash has an adapter's name and path only, so what tells old KV from new
is the connector's alone. Writes JSON to OUT.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from driver import PROMPTS, say
from own import OwnEngine

CONFIG = {
    "peft_type": "LORA",
    "task_type": "CAUSAL_LM",
    "base_model_name_or_path": "model",
    "r": 8,
    "lora_alpha": 16,
    "target_modules": ["q_proj", "v_proj"],
    "bias": "none",
}


def tensors_of(model: str, seed: int) -> dict[str, Any]:
    import torch

    facts = json.loads((Path(model) / "config.json").read_text())
    hidden, heads = facts["hidden_size"], facts["num_attention_heads"]
    value = hidden // heads * facts["num_key_value_heads"]
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for layer in range(facts["num_hidden_layers"]):
        for name, width in (("q_proj", hidden), ("v_proj", value)):
            path = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            tensors[f"{path}.lora_A.weight"] = torch.randn(8, hidden, generator=generator)
            tensors[f"{path}.lora_B.weight"] = torch.randn(width, 8, generator=generator)
    return tensors


def write(path: Path, model: str, seed: int) -> None:
    """Put an adapter where another one may be."""
    from safetensors.torch import save_file

    path.mkdir(exist_ok=True)
    save_file(tensors_of(model, seed), path / "adapter_model.safetensors")
    (path / "adapter_config.json").write_text(json.dumps(CONFIG))


def load_tensors(worker: Any, number: int, model: str, seed: int) -> None:
    """Replace an adapter inside of a worker, by tensors that no file has: what trainers do."""
    from vllm.lora.lora_model import LoRAModel
    from vllm.lora.peft_helper import PEFTHelper

    manager = worker.model_runner.lora_manager
    adapter = LoRAModel.from_lora_tensors(
        number,
        tensors_of(model, seed),
        PEFTHelper.from_dict(CONFIG),
        "cpu",
        manager.lora_config.lora_dtype,
    )
    manager._adapter_manager.remove_adapter(number)
    manager._adapter_manager.add_adapter(adapter)
    manager._adapter_manager.activate_adapter(number)


def adapters(model: str, out: str) -> dict[str, Any]:
    from vllm.lora.request import LoRARequest

    tp = int(os.environ["KVCOVE_TP"])
    ranks = {"tensor_parallel_size": tp, "distributed_executor_backend": "mp"} if tp > 1 else {}
    engine = OwnEngine(model, enable_lora=True, max_loras=1, max_lora_rank=8, **ranks)
    core = engine.llm.llm_engine
    path, other = Path(out).parent / f"adapter-{tp}", Path(out).parent / f"other-adapter-{tp}"
    tuned = LoRARequest("tuned", 1, str(path))
    again = LoRARequest("tuned", 1, str(path), load_inplace=True)
    elsewhere = LoRARequest("elsewhere", 2, str(other))
    seen: dict[str, Any] = {}

    def run(what: str, lora: Any = tuned) -> None:
        from vllm import SamplingParams

        sampling = SamplingParams(temperature=0.0, max_tokens=12, detokenize=False, ignore_eos=True)
        before = engine.external_hits()
        outputs = engine.llm.generate(
            [{"prompt_token_ids": prompt} for prompt in PROMPTS],
            sampling,
            use_tqdm=False,
            lora_request=lora,
        )
        seen[what] = [list(output.outputs[0].token_ids) for output in outputs]
        seen[f"{what} hits"] = engine.external_hits() - before
        say(f"{what}: {seen[f'{what} hits']} tokens")
        engine.settle()

    write(path, model, 1)
    write(other, model, 2)
    run("one")
    run("one, warm")
    run("base", None)
    # Other tensors under the same name, number and path.
    write(path, model, 2)
    core.remove_lora(1)
    core.add_lora(tuned)
    run("two")
    run("two, warm")
    run("two, elsewhere", elsewhere)
    write(path, model, 1)
    core.add_lora(again)
    run("one, in place")
    # Nobody is told: there is room for one adapter, and the first one is loaded again later.
    run("two, elsewhere, warm", elsewhere)
    write(path, model, 2)
    run("two, evicted")
    write(path, model, 1)
    engine.llm.collective_rpc("remove_lora", args=(1,))
    engine.llm.collective_rpc("add_lora", args=(tuned,))
    run("one, by rpc")
    engine.llm.collective_rpc(load_tensors, args=(1, model, 2))
    run("two, of tensors")
    engine.llm.collective_rpc(load_tensors, args=(1, model, 3))
    run("three, of tensors")
    seen["stats"] = engine.stats()
    return seen


def main() -> None:
    _, model, out = sys.argv[1:4]
    Path(out).write_text(json.dumps(adapters(model, out)))


if __name__ == "__main__":
    main()
