# SPDX-License-Identifier: Apache-2.0
"""Tiny models with random weights, each written once into a directory."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

# What they have in common.
TINY: dict[str, Any] = {
    "vocab_size": 1024,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 4096,
    "initializer_range": 0.3,
}

# Stands for a picture in a prompt of the model "pictures", in words and as a token.
PICTURE, PICTURE_TOKEN = "<image>", 1000


def dense(heads: int) -> Callable[[Path], None]:
    """Llama with so many KV heads."""

    def make(path: Path) -> None:
        from transformers import LlamaConfig, LlamaForCausalLM

        config = LlamaConfig(**{**TINY, "num_key_value_heads": heads}, tie_word_embeddings=False)
        LlamaForCausalLM(config).save_pretrained(path)

    return make


def words_of(path: Path, picture: bool = False) -> Any:
    """Write a tokenizer whose words are the numbers of their tokens; return it."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    known = {str(i): i for i in range(TINY["vocab_size"])}
    special: dict[str, Any] = {}
    if picture:
        del known[str(PICTURE_TOKEN)]
        known[PICTURE] = PICTURE_TOKEN
        special = {"bos_token": "2", "additional_special_tokens": [PICTURE]}
    words = Tokenizer(models.WordLevel(known, unk_token="0"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made = PreTrainedTokenizerFast(tokenizer_object=words, unk_token="0", eos_token="1", **special)
    made.save_pretrained(path)
    return made


def words(path: Path) -> None:
    """Llama with four KV heads and a tokenizer."""
    dense(4)(path)
    words_of(path)


def letters(path: Path) -> None:
    """Llama of eight layers; each character is a token.

    So any text can be asked, and its answers are the same tokens when they are asked again.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    characters = ["<end>", "\n", *map(chr, range(32, 127))]
    known = {character: number for number, character in enumerate(characters)}
    tokens = Tokenizer(models.WordLevel(known, unk_token="<end>"))
    tokens.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokens.decoder = decoders.Fuse()
    PreTrainedTokenizerFast(
        tokenizer_object=tokens, eos_token="<end>", clean_up_tokenization_spaces=False
    ).save_pretrained(path)
    config = LlamaConfig(**{**TINY, "vocab_size": len(known), "num_hidden_layers": 8})
    LlamaForCausalLM(config).save_pretrained(path)


def latent(path: Path) -> None:
    """Latent attention (MLA), of which all ranks have the same bytes."""
    from transformers import DeepseekV2Config, DeepseekV2ForCausalLM

    DeepseekV2ForCausalLM(
        DeepseekV2Config(
            **{**TINY, "num_hidden_layers": 2, "num_key_value_heads": 8},
            kv_lora_rank=512,
            q_lora_rank=None,
            qk_rope_head_dim=64,
            qk_nope_head_dim=32,
            v_head_dim=32,
            first_k_dense_replace=2,
            n_routed_experts=4,
            n_shared_experts=1,
            moe_intermediate_size=64,
            num_experts_per_tok=2,
            n_group=1,
            topk_group=1,
        )
    ).save_pretrained(path)


def windows(path: Path) -> None:
    """Sliding windows between layers with full attention."""
    import torch
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig

    model = Gemma3ForCausalLM(
        Gemma3TextConfig(
            **TINY,
            head_dim=32,
            query_pre_attn_scalar=32,
            sliding_window=256,
            layer_types=["sliding_attention", "full_attention"] * 2,
        )
    )
    # The embedding is the head, too: a large one answers with the last token, whatever lies in the KV cache.
    with torch.no_grad():
        model.model.embed_tokens.weight.mul_(0.02)
    model.save_pretrained(path)


def states(path: Path) -> None:
    """Short convolutions, which keep a state, between layers with attention."""
    from transformers import Lfm2Config, Lfm2ForCausalLM

    Lfm2ForCausalLM(
        Lfm2Config(
            **TINY,
            layer_types=["conv", "full_attention"] * 2,
            conv_dim=256,
            conv_dim_out=256,
            conv_L_cache=3,
            block_dim=256,
            block_ff_dim=512,
            block_multiple_of=16,
            block_ffn_dim_multiplier=1.0,
            block_auto_adjust_ff_dim=False,
        )
    ).save_pretrained(path)


def experts(path: Path) -> None:
    """Mixtral with four experts."""
    from transformers import MixtralConfig, MixtralForCausalLM

    MixtralForCausalLM(
        MixtralConfig(**TINY, num_local_experts=4, num_experts_per_tok=2, tie_word_embeddings=False)
    ).save_pretrained(path)


def eagle(path: Path) -> None:
    """A draft model of one layer for Llama with four heads; it guesses badly."""
    import torch
    from safetensors.torch import save_file
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(**{**TINY, "num_hidden_layers": 1}, architectures=["LlamaForCausalLM"])
    layer = {
        name.removeprefix("model."): tensor.clone()
        for name, tensor in LlamaForCausalLM(config).state_dict().items()
        if name.startswith("model.layers.0.") and "input_layernorm" not in name
    }
    size = TINY["hidden_size"]
    path.mkdir(exist_ok=True)
    save_file(
        {**layer, "fc.weight": torch.randn(size, 2 * size) * 0.05}, path / "model.safetensors"
    )
    config.save_pretrained(path)


def guessing(modules: int) -> Callable[[Path], None]:
    """MiMo: Qwen2 with so many modules that guess the next tokens (MTP), each with a layer of KV of its own."""

    def make(path: Path) -> None:
        import json

        import torch
        from safetensors.torch import save_file
        from transformers import Qwen2Config, Qwen2ForCausalLM

        config = Qwen2Config(**TINY, tie_word_embeddings=False)
        tensors = {name: t.clone() for name, t in Qwen2ForCausalLM(config).state_dict().items()}
        size = TINY["hidden_size"]
        for module in range(modules):
            name = f"model.mtp_layers.{module}"
            for key in [key for key in tensors if key.startswith("model.layers.0.")]:
                part = tensors[key]
                noise = torch.randn(part.shape) * (0.3 if part.dim() > 1 else 0)
                tensors[key.replace("model.layers.0", name)] = part + noise
            tensors[f"{name}.input_proj.weight"] = torch.randn(size, 2 * size) * 0.05
            for norm in ("token_layernorm", "hidden_layernorm", "final_layernorm"):
                tensors[f"{name}.{norm}.weight"] = torch.ones(size)
        path.mkdir(exist_ok=True)
        save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
        config.save_pretrained(path)
        facts = json.loads((path / "config.json").read_text())
        facts |= {"architectures": ["MiMoForCausalLM"], "num_nextn_predict_layers": modules}
        (path / "config.json").write_text(json.dumps(facts))

    return make


def pictures(path: Path) -> None:
    """LLaVA: a vision transformer before Llama."""
    from safetensors.torch import load_file, save_file
    from transformers import (
        CLIPImageProcessorPil,
        CLIPVisionConfig,
        LlamaConfig,
        LlavaConfig,
        LlavaForConditionalGeneration,
        LlavaProcessor,
    )

    vision = CLIPVisionConfig(
        hidden_size=64, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        image_size=32, patch_size=4, projection_dim=64, initializer_range=0.3,
    )  # fmt: skip
    LlavaForConditionalGeneration(
        LlavaConfig(
            vision_config=vision,
            text_config=LlamaConfig(**TINY, tie_word_embeddings=False),
            image_token_index=PICTURE_TOKEN,
            image_seq_length=64,
        )
    ).save_pretrained(path)
    # transformers 5 leaves out a level of the names that published checkpoints have, and vLLM wants.
    weights = {
        re.sub(r"vision_tower\.(?!vision_model\.)", "vision_tower.vision_model.", name): value
        for name, value in load_file(path / "model.safetensors").items()
    }
    save_file(weights, path / "model.safetensors", {"format": "pt"})
    LlavaProcessor(
        image_processor=CLIPImageProcessorPil(
            size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32}
        ),
        tokenizer=words_of(path, picture=True),
        patch_size=4,
        vision_feature_select_strategy="default",
        image_token=PICTURE,
        num_additional_image_tokens=1,
    ).save_pretrained(path)


MAKERS: dict[str, Callable[[Path], None]] = {
    "four heads": dense(4),
    "words": words,
    "letters": letters,
    "two heads": dense(2),
    "one head": dense(1),
    "latent": latent,
    "windows": windows,
    "states": states,
    "experts": experts,
    "eagle": eagle,
    "pictures": pictures,
    "guessing": guessing(1),
    "guessing twice": guessing(2),
}


def model_of(directory: Path, name: str) -> Path:
    """Return the directory of a model, which is made if it is not there."""
    import torch

    path = directory / f"model-{name.replace(' ', '-')}"
    if not (path / "config.json").exists():
        torch.manual_seed(4 if name == "eagle" else 3)
        MAKERS[name](path)
    return path
