# SPDX-License-Identifier: Apache-2.0
"""KV heads: into how many parts tensor parallelism cuts the blocks of a group of layers.

Ranks whose bytes are equal store each block once, and load what another of them has stored. So a group
that has more heads than is believed would be given those of other ranks.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kvcove.vllm._compat import AttentionSpec, KVCacheSpec, MLAAttentionSpec, VllmConfig

__all__ = ["heads_of"]

# By which names the configurations of models tell them, those of some of their layers among them
# ("swa_num_key_value_heads", "num_global_key_value_heads").
_NAMES = (
    *("key_value_heads", "kv_heads", "kv_n_heads", "head_kv"),
    *("attention_groups", "query_group_num"),
)
# A sibling's layers, which have no KV in a cache of the language model.
_OTHERS = ("vision", "audio")


def heads_of(spec: KVCacheSpec, vllm_config: VllmConfig, drafting: Any = None) -> int:
    """Return the KV heads of a group's layers in all ranks; 1 where every rank has the same bytes.

    The scheduler's process knows one layer of each group, and each rank those of its own pipeline stage:
    all of them come to the same number.

    Parameters
    ----------
    spec : KVCacheSpec
        Of the group's first layer.
    vllm_config : VllmConfig
        The engine's.
    drafting : ModelConfig, optional
        Of the model that drafts; its layers may be in the group.
    """
    if not isinstance(spec, AttentionSpec):
        return 1
    parallel = vllm_config.parallel_config
    ranks = int(parallel.tensor_parallel_size)
    plain = _plain_beside_latents(vllm_config.model_config, drafting)
    if plain is not None:
        # vLLM puts the layers of both into one group, of which the scheduler's process knows one layer, of
        # either model. What a rank stores then has its heads of the plain one in it.
        shared = min(ranks, max(1, *_told_by(plain)))
        return shared if ranks % shared == 0 else ranks
    if isinstance(spec, MLAAttentionSpec):
        return 1
    own, shards = int(spec.num_kv_heads), getattr(spec, "max_tp_shards", None)
    if own == 1 and shards is not None:  # of a window over latents: 1
        return min(int(shards), ranks)
    staged = int(parallel.pipeline_parallel_size) > 1  # other stages may begin with another layer
    if not staged and (own > 1 or ranks == 1):
        # vLLM gives a rank more than one head only where each head is on one rank.
        return own * ranks
    # One head may be one rank's alone, or that of several. What the configuration says of the whole model
    # need not be right for this group: its layers may differ (MiMo V2: 4 heads, and 8 in its windows).
    # More heads than there are cost room in the pool, fewer would give wrong KV.
    models = [vllm_config.model_config, *([drafting] if drafting is not None else [])]
    most = max(1, *(count for model in models for count in _told_by(model)))
    if own > 1:  # whatever the configuration says, no two ranks have equal bytes
        most = max(most, own * ranks)
    heads = most if staged else min(ranks, most)
    return heads if heads % ranks == 0 or ranks % heads == 0 else ranks


def _plain_beside_latents(model: Any, drafting: Any) -> Any | None:
    """Return the one of two models that has KV heads, where the other has latents (MLA)."""
    if drafting is None:
        return None
    latent = bool(getattr(model, "use_mla", False))
    if latent == bool(getattr(drafting, "use_mla", False)):
        return None
    return drafting if latent else model


def _told_by(model: Any) -> Iterator[int]:
    """Yield all numbers of KV heads that a model's configuration names."""
    yield int(model.get_total_num_kv_heads())
    config = getattr(model, "hf_text_config", None)
    if config is not None:
        facts = config.to_dict()
        queries = facts.get("num_attention_heads")
        yield from _counts_in(facts, queries if isinstance(queries, int) else 0)


def _counts_in(value: Any, queries: int) -> Iterator[int]:
    if isinstance(value, list):
        for each in value:
            yield from _counts_in(each, queries)
    if not isinstance(value, dict):
        return
    for name, inner in value.items():
        if any(other in str(name) for other in _OTHERS):
            continue
        numbers = [
            each
            for each in (inner if isinstance(inner, list) else [inner])
            if isinstance(each, int) and not isinstance(each, bool) and each > 0
        ]
        if any(part in str(name) for part in _NAMES):
            yield from numbers
        elif name == "n_heads_in_group":  # of queries (Nemotron)
            yield from (queries // each for each in numbers)
        else:
            yield from _counts_in(inner, queries)
