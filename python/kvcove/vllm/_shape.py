# SPDX-License-Identifier: Apache-2.0
"""What vLLM says of its KV cache, in the connector's terms.

A layer's tensor has the axes (block, head, token, content) by vLLM's contract, whatever order they
lie in; a block that the kernels see as several has one more token axis. Nothing is guessed from
strides.
"""

from __future__ import annotations

import copy
import hashlib
import json
import os
from fractions import Fraction
from pathlib import Path
from typing import Any

from kvcove._native import EngineShape
from kvcove.vllm import _compat
from kvcove.vllm._compat import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheSpec,
    MambaSpec,
    SlidingWindowSpec,
    VllmConfig,
    cacheable_groups,
    one_spec_of,
)
from kvcove.vllm._config import Config
from kvcove.vllm._heads import heads_of
from kvcove.vllm._layout import natural

__all__ = [
    "draft_config_of",
    "drops_last_block",
    "facts_of",
    "group_facts",
    "hashing_of",
    "kv_dtype_of",
    "layers_of",
    "model_fingerprint",
    "rank_of",
    "shape_of",
    "tokens_of",
]

_DRAFTS_WITHOUT_KV = frozenset({"medusa", "mlp_speculator"})

Layer = tuple[str, int, int, int, list[tuple[str, int, int]]]


def _window_of(spec: SlidingWindowSpec) -> int:
    """Return the tokens whose blocks a hit needs: the window, and those that vLLM keeps before it.

    A draft model of several modules computes the last tokens again. vLLM allocates the blocks of all
    of these tokens for a hit, and gives them their hashes: one that is not loaded would be found in
    the engine's own cache with what it held before.
    """
    window = int(spec.sliding_window) + int(getattr(spec, "extra_retained_tokens", 0))
    # Where vLLM says itself how many tokens it keeps before the next one (0.33).
    return max(window, int(getattr(spec, "num_retained_tokens", 0)) + 1)


def _kind(spec: KVCacheSpec) -> tuple[str, int]:
    """Return kind and window of a group."""
    if isinstance(spec, MambaSpec):
        return "state", 0
    if isinstance(spec, SlidingWindowSpec):
        return "window", _window_of(spec)
    if isinstance(spec, ChunkedLocalAttentionSpec):
        return "window", spec.attention_chunk_size
    if isinstance(spec, FullAttentionSpec):
        return "full", 0
    raise ValueError(
        f"kvcove: KV caches of {type(spec).__name__} are not known; use full attention, MLA, "
        "sliding window, chunked local attention or Mamba"
    )


def tokens_of(spec: KVCacheSpec, vllm_config: VllmConfig) -> int:
    """Return the tokens of one chunk: of a block, times DCP where that splits it."""
    spec = one_spec_of(spec)
    return int(spec.block_size) * _compat.dcp_ranks_of(spec, vllm_config)


def hashing_of(vllm_config: VllmConfig) -> str:
    """Return algorithm and seed of the block hashes: engines with others never share.

    As vLLM resolves the seed: $PYTHONHASHSEED, else a fixed one, or for xxHash a random one; before
    0.29 always a random one.
    """
    algorithm = str(vllm_config.cache_config.prefix_caching_hash_algo)
    seed = os.environ.get("PYTHONHASHSEED")
    if seed is None and (algorithm.startswith("xxhash") or not _compat.FIXED_HASH_SEED):
        seed = f"random:{vllm_config.kv_transfer_config.engine_id}"
    return f"{algorithm}:{'fixed' if seed is None else seed}"


def draft_config_of(vllm_config: VllmConfig) -> Any | None:
    """Return the configuration of the model that drafts, if it may have KV of its own."""
    speculative = vllm_config.speculative_config
    draft = getattr(speculative, "draft_model_config", None)
    # Those that look for n-grams or suffixes have the target's.
    if draft is None or draft is vllm_config.model_config:
        return None
    if draft is speculative.target_model_config or speculative.method in _DRAFTS_WITHOUT_KV:
        return None
    return draft


def drops_last_block(vllm_config: VllmConfig) -> bool:
    """Return whether a hit ends one block early, as in vLLM's own cache.

    An EAGLE or MTP head has written KV of a look-ahead token behind a chunk's end, and that token
    may not follow in another request.
    """
    speculative = vllm_config.speculative_config
    return speculative is not None and _compat.use_eagle_block_drop(speculative)


def _described(model: Any) -> dict[str, Any]:
    described = model.hf_config.to_dict()
    for name in ("_name_or_path", "transformers_version", "architectures_path"):
        described.pop(name, None)
    return {
        "config": described,
        "dtype": str(model.dtype),
        "quantization": str(model.quantization),
    }


def model_fingerprint(vllm_config: VllmConfig, config: Config) -> str:
    """Return a hash of what the model is, and the one that drafts for it, their weights aside."""
    model = vllm_config.model_config
    facts = _described(model)
    draft = draft_config_of(vllm_config)
    if draft is not None:
        facts["draft"] = {"method": str(vllm_config.speculative_config.method), **_described(draft)}
        if config.weight_version_source != "fingerprint":
            facts["draft"]["model"] = [str(draft.model), str(draft.revision)]
    if config.weight_version_source != "fingerprint":
        # Nothing else says which weights these are.
        path = Path(str(model.model))
        index = path / "model.safetensors.index.json"
        facts["model"] = [str(model.model), str(model.revision)]
        if index.is_file():
            facts["index"] = hashlib.sha256(index.read_bytes()).hexdigest()
    text = json.dumps(facts, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def _interleave(vllm_config: VllmConfig, kv_cache_config: KVCacheConfig) -> int:
    """Return how many consecutive tokens a context-parallel rank keeps before the next one's turn.

    Workers settle it when their connector is made, the scheduler's process never does: both have
    to come to the same number here.
    """
    settled = copy.copy(vllm_config)
    settled.parallel_config = copy.copy(vllm_config.parallel_config)
    _compat.settle_interleave(settled, kv_cache_config)
    return int(settled.parallel_config.cp_kv_cache_interleave_size or 1)


# Names of one type.
_DTYPES = {"half": "float16", "float": "float32", "fp8": "fp8_e4m3"}


def kv_dtype_of(vllm_config: VllmConfig) -> str:
    """Return the type of what KV blocks hold, by one name for each."""
    name = str(vllm_config.cache_config.cache_dtype)
    if name == "auto":
        name = str(vllm_config.model_config.dtype)
    name = name.removeprefix("torch.")
    return _DTYPES.get(name, name)


def _layer_names(vllm_config: VllmConfig, kv_cache_config: KVCacheConfig) -> str:
    """Return the layers of all groups, a drafting model's among them, in the order of an object.

    With pipeline stages nobody knows more than its own: there the models' configurations say it.
    """
    if vllm_config.parallel_config.pipeline_parallel_size > 1:
        return "by number"
    return "|".join(
        ",".join(sorted(group.layer_names, key=natural))
        for group in cacheable_groups(kv_cache_config)
    )


def shape_of(
    vllm_config: VllmConfig, kv_cache_config: KVCacheConfig, config: Config
) -> EngineShape:
    """Return what must be equal for two engines to share.

    Raises
    ------
    ValueError
        For a KV cache that is not known, and sizes that do not fit.
    """
    parallel = vllm_config.parallel_config
    order = _compat.inner_order(kv_cache_config, vllm_config)
    groups = []
    # The others hold what a request needs while it runs, under no hash: scratch and copies.
    for group in cacheable_groups(kv_cache_config):
        spec = one_spec_of(group.kv_cache_spec)
        kind, window = _kind(spec)
        heads = _heads_of(group, vllm_config)
        layout = _layout_of(group, order, vllm_config)
        groups.append((kind, tokens_of(spec, vllm_config), window, heads, layout))
    smallest = min(group[1] for group in groups)
    return EngineShape(
        space=config.namespace,
        model_name=Path(str(vllm_config.model_config.model)).name or "model",
        model=f"{model_fingerprint(vllm_config, config)} in vLLM {_compat.release()}",
        kv_dtype=kv_dtype_of(vllm_config),
        hashing=hashing_of(vllm_config),
        hash_tokens=_compat.hash_tokens_of(kv_cache_config, vllm_config, smallest),
        tp=parallel.tensor_parallel_size,
        pp=parallel.pipeline_parallel_size,
        pcp=getattr(parallel, "prefill_context_parallel_size", 1),
        dcp=parallel.decode_context_parallel_size,
        interleave=_interleave(vllm_config, kv_cache_config),
        layers=_layer_names(vllm_config, kv_cache_config),
        store_tp=config.store_tp,
        groups=groups,
    )


def _heads_of(group: Any, vllm_config: VllmConfig) -> int:
    spec = one_spec_of(group.kv_cache_spec)
    return heads_of(spec, vllm_config, draft_config_of(vllm_config))


def _layout_of(group: Any, order: str, vllm_config: VllmConfig) -> str:
    """Return what a block of a group holds, the ranks' share left out."""
    spec = one_spec_of(group.kv_cache_spec)
    content = getattr(spec, "state_content_size_bytes", None) or getattr(spec, "shapes", "")
    # Where an attention backend puts keys and values apart, the axis of heads has places of both: two heads may
    # be as many places of as many bytes as keys and values of two heads (0.29 and later).
    slots = getattr(spec, "num_head_slots", None)
    ordered = _heads_of(group, vllm_config) > 1 or (slots or 1) > 1
    return (
        f"{type(spec).__name__},{order if ordered else 'NC'},"
        f"{spec.block_size},{content},{getattr(spec, 'dtype', '')},"
        f"{getattr(spec, 'kv_quant_mode', '')}"
        f"{f',{Fraction(slots, int(spec.num_kv_heads))} slots a head' if slots else ''}"
    )


def group_facts(
    number: int,
    group: Any,
    shape: EngineShape,
    kv_cache_config: KVCacheConfig,
    vllm_config: VllmConfig,
) -> dict[str, Any]:
    """Return what a group of layers keeps, for people: :mod:`kvcove.vllm._explain`.

    ``rank_chunk_bytes`` are those of one rank, of a pipeline stage the average; ``objects`` is how
    many a chunk is in the pool, ``pool_chunk_bytes`` all of them together.
    """
    spec = one_spec_of(group.kv_cache_spec)
    kind, window = _kind(spec)
    whole = group.kv_cache_spec
    per_layer = getattr(whole, "kv_cache_specs", None)
    layers = len(group.layer_names)
    page = int(whole.page_size_bytes) * (1 if isinstance(per_layer, dict) and per_layer else layers)
    objects, parts = shape.objects(number)
    rank_bytes = page / max(int(vllm_config.parallel_config.pipeline_parallel_size), 1)
    return {
        "kind": {"full": "full attention", "window": "window"}.get(kind, kind),
        "window_tokens": window,
        "layers": layers,
        "chunk_tokens": tokens_of(group.kv_cache_spec, vllm_config),
        "layout": _layout_of(group, _compat.inner_order(kv_cache_config, vllm_config), vllm_config),
        "rank_chunk_bytes": rank_bytes,
        "objects": objects,
        "pool_chunk_bytes": rank_bytes * objects / parts,
    }


def facts_of(
    vllm_config: VllmConfig, kv_cache_config: KVCacheConfig, config: Config
) -> dict[str, str]:
    """Return what must be equal for two engines to share, in words for people.

    Block hashing is told apart (``hashing_of``).
    """
    parallel = vllm_config.parallel_config
    groups = cacheable_groups(kv_cache_config)
    tp = int(parallel.tensor_parallel_size)
    if config.weight_version_source != "fingerprint":
        tp = config.store_tp or tp
    order = _compat.inner_order(kv_cache_config, vllm_config)
    names = [name for group in groups for name in group.layer_names]
    digest = hashlib.sha256("|".join(sorted(names)).encode()).hexdigest()[:8]
    return {
        "namespace setting": repr(config.namespace),
        "model": model_fingerprint(vllm_config, config)[:12],
        "KV type": kv_dtype_of(vllm_config),
        "block tokens": ",".join(
            str(tokens_of(group.kv_cache_spec, vllm_config)) for group in groups
        ),
        "KV layout": "; ".join(_layout_of(group, order, vllm_config) for group in groups),
        "KV layers": f"{len(names)} ({digest})" if parallel.pipeline_parallel_size == 1 else "",
        "parallelism": f"TP {tp}, PP {parallel.pipeline_parallel_size}, "
        f"PCP {getattr(parallel, 'prefill_context_parallel_size', 1)}, "
        f"DCP {parallel.decode_context_parallel_size}",
        "weights named by": config.weight_version_source,
        "vLLM": _compat.release(),
    }


def rank_of(vllm_config: VllmConfig) -> dict[str, int]:
    """Return this process's place in the engine's world."""
    parallel_state = _compat.parallel_state()
    parallel = vllm_config.parallel_config
    pcp = 0
    if getattr(parallel, "prefill_context_parallel_size", 1) > 1:
        pcp = parallel_state.get_pcp_group().rank_in_group
    return {
        "tp": parallel_state.get_tensor_model_parallel_rank(),
        "pp": parallel_state.get_pp_group().rank_in_group,
        "pcp": pcp,
    }


def _order_of(kinds: list[str], sizes: Any, strides: list[int]) -> str:
    """Return the axes in the order in which they lie, as :func:`_compat.inner_order` writes them."""
    letters = {"kv": "K", "head": "H", "token": "N", "element": "C"}
    axes = [
        (-stride, letters[kind])
        for kind, size, stride in zip(kinds, sizes, strides, strict=True)
        if kind != "block" and size > 1
    ]
    return "".join(letter for _, letter in sorted(axes))


def layers_of(
    kv_caches: dict[str, Any], kv_cache_config: KVCacheConfig, vllm_config: VllmConfig
) -> list[Layer]:
    """Return where each layer's KV lies, as ``WorkerRole.register`` takes it.

    Parameters
    ----------
    kv_caches : dict of str to torch.Tensor or list of torch.Tensor
        Attention: the axes that :func:`_compat.axes_of` tells; Mamba: a list of (blocks, ...).
    kv_cache_config, vllm_config : Any
        The engine's.

    Raises
    ------
    ValueError
        For a tensor whose axes do not fit, or lie in another order than the engine's shape says.
    """
    blocks = kv_cache_config.num_blocks
    order = _compat.inner_order(kv_cache_config, vllm_config)
    layers: list[Layer] = []
    for number, group in enumerate(cacheable_groups(kv_cache_config)):
        for name in sorted(group.layer_names, key=natural):
            if name not in kv_caches:
                continue  # of another pipeline stage
            caches = kv_caches[name]
            attention = not isinstance(caches, list | tuple)
            for part, tensor in enumerate([caches] if attention else caches):
                size = tensor.element_size()
                shape, strides = tensor.shape, [s * size for s in tensor.stride()]
                kinds = list(
                    _compat.axes_of(name, len(shape), vllm_config)
                    if attention
                    else ("block", *("element",) * (len(shape) - 1))
                )
                if "head" in kinds:
                    found = _order_of(kinds, shape, strides)
                    wanted = "".join(axis for axis in order if axis in found)
                    if found != wanted or ("K" in found) != ("K" in order):
                        raise ValueError(
                            f"kvcove: KV layer '{name}' lies in the order {found} (K: keys and "
                            f"values, H: heads, N: tokens, C: content), but the engine's layout is "
                            f"{order}: set VLLM_KV_CACHE_LAYOUT=HND for all of its processes, or "
                            "choose another attention backend"
                        )
                at = kinds.index("block")
                if shape[at] % blocks != 0:
                    raise ValueError(
                        f"kvcove: KV layer '{name}' has {shape[at]} blocks, which is no multiple of "
                        f"the engine's {blocks}"
                    )
                pieces = shape[at] // blocks
                axes = [("block", blocks, strides[at] * pieces)]
                if pieces > 1:
                    axes.append(("token", pieces, strides[at]))
                last = len(shape) - 1
                for axis, kind in enumerate(kinds):
                    if axis == at or (axis == last and strides[axis] == size):
                        continue  # whole elements, below
                    axes.append((kind, shape[axis], strides[axis]))
                element = size * shape[last] if last > 0 and strides[last] == size else size
                label = name if attention else f"{name}#{part}"
                layers.append((label, number, tensor.data_ptr(), element, axes))
    return layers
