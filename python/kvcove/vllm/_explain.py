# SPDX-License-Identifier: Apache-2.0
"""What an engine of vLLM would share, told without its weights and without starting it.

The model is built on torch's meta device, in a process group of the engine's size whose other ranks
do not exist, so that every layer says what KV it would have on its rank.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

from kvcove import engines
from kvcove.engines import EngineShape
from kvcove.vllm import _compat, _switch

__all__ = ["Explained", "differences", "explain", "text_of"]

_MEMORY = 1 << 40  # that the engine's cache is planned for: the number of blocks is not told


@dataclasses.dataclass
class Explained:
    """What must be equal for engines to share, and what one of them keeps.

    Attributes
    ----------
    model, namespace, hashing : str
        Its name; of the pool; algorithm and seed of block hashes.
    ranks, stride_tokens : int
        Of the engine; hits end on multiples of it.
    groups : list of dict
        Of each group of layers, as :func:`kvcove.vllm._shape.group_facts` says it.
    rank_token_bytes, pool_token_bytes : float
        Of a token: on each rank, and in the pool. States, which are not of tokens, are left out.
    facts : dict
        As :func:`kvcove.engines.differences` compares them.
    prefix_tags : list of str
        For routers that ask where a prefix is: the beginnings of the keys of a chunk. Empty: no chain of
        keys names a prefix.
    hashes_per_chunk : int
        Block hashes of a chunk, the last of which is in its keys.
    """

    model: str
    namespace: str
    hashing: str
    ranks: int
    stride_tokens: int
    groups: list[dict[str, Any]]
    rank_token_bytes: float
    pool_token_bytes: float
    facts: dict[str, str]
    prefix_tags: list[str]
    hashes_per_chunk: int


def explain(arguments: Sequence[str]) -> Explained:
    """Explain an engine.

    Parameters
    ----------
    arguments : sequence of str
        As ``vllm serve`` takes them.

    Raises
    ------
    ValueError
        What vLLM or the connector would refuse at the engine's start.
    """
    from kvcove.vllm._config import Config

    vllm_config = _configured(arguments)
    cache = _cache_of(vllm_config)
    _compat.check_model(vllm_config, cache)
    transfer = vllm_config.kv_transfer_config
    config = Config.of(transfer.kv_connector_extra_config or {})
    _compat.check_policy(vllm_config, cache, config, transfer.is_kv_consumer)
    return explained(vllm_config, cache)


def explained(vllm_config: Any, cache: Any) -> Explained:
    """Explain an engine whose configurations are there."""
    from kvcove.vllm import _shape
    from kvcove.vllm._config import Config

    config = Config.of(vllm_config.kv_transfer_config.kv_connector_extra_config or {})
    shape = _shape.shape_of(vllm_config, cache, config)
    groups = [
        _shape.group_facts(number, group, shape, cache, vllm_config)
        for number, group in enumerate(_compat.cacheable_groups(cache))
    ]
    of_tokens = [group for group in groups if group["kind"] != "state"]
    tags, hashes = _prefix_of(shape)
    return Explained(
        model=str(vllm_config.model_config.model),
        namespace=shape.namespace,
        hashing=_shape.hashing_of(vllm_config),
        ranks=shape.world,
        stride_tokens=shape.stride_tokens,
        groups=groups,
        rank_token_bytes=sum(
            group["rank_chunk_bytes"] / group["chunk_tokens"] for group in of_tokens
        ),
        pool_token_bytes=sum(
            group["pool_chunk_bytes"] / group["chunk_tokens"] for group in of_tokens
        ),
        facts=_shape.facts_of(vllm_config, cache, config),
        prefix_tags=tags,
        hashes_per_chunk=hashes,
    )


def _prefix_of(shape: EngineShape) -> tuple[list[str], int]:
    """Return the tags of a prefix's chunk and its block hashes; none where no chain of keys names it."""
    try:
        return shape.prefix_tags()
    except ValueError:
        return [], 0


def _configured(arguments: Sequence[str]) -> Any:
    """Return vLLM's configuration, with our connector's default where none is given."""
    vllm = _compat.for_explain()
    parser = vllm.EngineArgs.add_cli_args(
        vllm.FlexibleArgumentParser(prog="python -m kvcove.vllm explain")
    )
    words = list(arguments)
    if words and not words[0].startswith("-"):
        words = ["--model", *words]  # as `vllm serve MODEL`
    made = vllm.EngineArgs.from_cli_args(parser.parse_args(words))
    switched: dict[str, Any] | None = None
    if made.kv_transfer_config is None:
        switched = _switch.settings() if _switch.is_on() else None
        made.kv_transfer_config = _switch.transfer_config(switched or {})
    config = made.create_engine_config()
    if switched is not None and (reason := _switch.why_not(config, switched)) is not None:
        raise ValueError(f"{_switch.VARIABLE}=auto: this engine runs without kvcove: {reason}")
    transfer = config.kv_transfer_config
    if transfer.kv_connector == "MultiConnector":
        ours = [
            child
            for child in (transfer.kv_connector_extra_config or {}).get("connectors", ())
            if child.get("kv_connector") == "KvcoveConnector"
        ]
        if ours:
            extra = ours[0].get("kv_connector_extra_config") or {}
            config.kv_transfer_config.kv_connector_extra_config = extra
    elif transfer.kv_connector != "KvcoveConnector":
        raise ValueError(f"--kv-transfer-config: {transfer.kv_connector} is not kvcove's connector")
    return config


@contextlib.contextmanager
def _alone(vllm_config: Any) -> Iterator[None]:
    """Be rank 0 of the engine's one pipeline stage; the other ranks are not there."""
    import torch
    from torch.testing._internal.distributed.fake_pg import FakeStore

    parallel_state = _compat.parallel_state()
    queue, communicator = _compat.communicators()
    parallel = vllm_config.parallel_config
    pcp = getattr(parallel, "prefill_context_parallel_size", 1)
    world = parallel.tensor_parallel_size * pcp
    real = torch.distributed.new_group
    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=world)
    # What would wait for the other ranks.
    replaced: list[tuple[Any, str, Any]] = [
        (
            torch.distributed,
            "new_group",
            lambda ranks=None, *a, **more: real(ranks, backend="fake"),
        ),
        (queue, "create_from_process_group", lambda *args, **more: None),
        (parallel_state, "in_the_same_node_as", lambda *args, **more: [True] * world),
        (parallel, "data_parallel_size", 1),
    ]
    # A CPU's ranks ask each other whether they share memory.
    asks = "_all_group_ranks_share_shm_group_name"
    if hasattr(communicator, asks):
        replaced.append((communicator, asks, lambda *_: False))
    before = [(place, name, getattr(place, name)) for place, name, _ in replaced]
    for place, name, value in replaced:
        setattr(place, name, value)
    try:
        parallel_state.init_distributed_environment(world, 0, "env://", 0, "fake")
        parallel_state.initialize_model_parallel(
            parallel.tensor_parallel_size,
            1,
            pcp,
            parallel.decode_context_parallel_size,
            backend="fake",
        )
        yield
    finally:
        for place, name, value in before:
            setattr(place, name, value)


def _cache_of(vllm_config: Any) -> Any:
    """Return the KV cache's configuration, as the engine would plan it for its layers."""
    import torch

    vllm = _compat.for_explain()
    with vllm.set_current_vllm_config(vllm_config), _alone(vllm_config):
        with vllm.set_default_torch_dtype(vllm_config.model_config.dtype), torch.device("meta"):
            vllm.initialize_model(vllm_config)
        runner: Any = SimpleNamespace(vllm_config=vllm_config, shared_kv_cache_layers={})
        specs = vllm.GPUModelRunner.get_kv_cache_spec(runner)
        layout = _compat.settle_layout(vllm_config, specs)
        (cache,) = _compat.kv_cache_configs_of(vllm_config, [specs], [_MEMORY])
    if layout is not None:
        cache.kv_cache_layout = layout
    return cache


def differences(one: Explained, other: Explained) -> list[tuple[str, str, str, str]]:
    """Return why two engines do not share: fact, the first one's, the other's, advice."""
    found = [
        (fact, first, second, engines.advice_of(fact))
        for fact, second, first in engines.differences(one.facts, other.facts)
    ]
    if one.hashing != other.hashing:
        advice = engines.advice_of("block hashing")
        found.append(("block hashing", one.hashing, other.hashing, advice))
    if not found and one.namespace != other.namespace:
        found.append(("namespace", one.namespace, other.namespace, "they are other models"))
    return found


def _size(count: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.4g} {unit}"
        count /= 1024
    return f"{count:.4g} GiB"


def text_of(one: Explained) -> str:
    """Return what people read."""
    lines = [
        f"model        {one.model}",
        f"namespace    {one.namespace}",
        f"ranks        {one.ranks}",
        f"hits         end on multiples of {one.stride_tokens} tokens",
    ]
    for number, group in enumerate(one.groups):
        window = f" of {group['window_tokens']} tokens" if group["window_tokens"] else ""
        lines += [
            f"group {number}      {group['kind']}{window}: {group['layers']} layers, chunks of "
            f"{group['chunk_tokens']} tokens",
            f"             a chunk: {_size(group['rank_chunk_bytes'])} on a rank; in the pool "
            f"{_size(group['pool_chunk_bytes'])} in {group['objects']} objects",
            f"             layout {group['layout']}",
        ]
    lines += [
        f"a token      {_size(one.rank_token_bytes)} on a rank, {_size(one.pool_token_bytes)} in "
        "the pool",
        "",
        "Engines share when all of this is equal, and their weights are:",
    ]
    facts = {**one.facts, "block hashing": one.hashing}
    width = max(map(len, facts))
    lines += [f"  {fact.ljust(width)}  {value}" for fact, value in facts.items()]
    return "\n".join(lines)
