# SPDX-License-Identifier: Apache-2.0
"""vLLM's names, and what each version of vLLM in the range lacks or calls otherwise.

No other module of kvcove.vllm imports vLLM's names, but _plugin two that every version has. A name
that a version lacks is made here, so that the rest knows one vLLM, the newest. What differs is found
by what is there, not by the number of the version: builds between two releases have some of it.

python/tests/vllm/names.py compares what is used here and in the rest with a tree of vLLM.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import inspect
import os
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

from vllm.config import VllmConfig
from vllm.distributed import kv_events as _kv_events
from vllm.distributed.kv_events import AllBlocksCleared, BlockRemoved, BlockStored
from vllm.distributed.kv_transfer.kv_connector.v1 import base as _base
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
    KVConnectorWorkerMetadata,
    SupportsHMA,
)
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import (
    KVConnectorPromMetrics,
    KVConnectorStats,
)
from vllm.v1 import kv_cache_interface as _interface
from vllm.v1.core import kv_cache_utils as _kv_cache_utils
from vllm.v1.core.kv_cache_utils import generate_block_hash_extra_keys, maybe_convert_block_hash
from vllm.v1.kv_cache_interface import (
    AttentionSpec,
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheSpec,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowSpec,
)

from kvcove.vllm import _versions

__all__ = [
    "FIXED_HASH_SEED",
    "LAYOUTS_BY_AXES",
    "MEDIUM_CPU",
    "MEDIUM_STORAGE",
    "AllBlocksCleared",
    "AttentionSpec",
    "BlockRemoved",
    "BlockStored",
    "CacheHitSource",
    "ChunkedLocalAttentionSpec",
    "FullAttentionSpec",
    "KVCacheConfig",
    "KVCacheSpec",
    "KVConnectorBase_V1",
    "KVConnectorMetadata",
    "KVConnectorPromMetrics",
    "KVConnectorRole",
    "KVConnectorStats",
    "KVConnectorTransferResults",
    "KVConnectorWorkerMetadata",
    "MLAAttentionSpec",
    "MambaSpec",
    "SlidingWindowSpec",
    "SupportsHMA",
    "VllmConfig",
    "attention_layers",
    "awaits_output",
    "axes_of",
    "block_stored",
    "cacheable_group_ids",
    "cacheable_groups",
    "check_model",
    "check_policy",
    "communicators",
    "current_config",
    "dcp_ranks_of",
    "engine_core",
    "engine_names_weights",
    "event_extra_keys",
    "event_kind_of",
    "fails_by_block",
    "for_explain",
    "generate_block_hash_extra_keys",
    "hash_tokens_of",
    "inner_order",
    "kv_cache_configs_of",
    "kv_holding_waiting",
    "let_failed_loads_go",
    "maybe_convert_block_hash",
    "offer_block_tables",
    "one_spec_of",
    "parallel_state",
    "platform",
    "release",
    "replayed_tokens",
    "request_status",
    "runs_loaded_first",
    "settle_interleave",
    "settle_layout",
    "use_eagle_block_drop",
    "why_loads_run_beside",
    "why_not_policy",
    "why_not_scales",
    "why_steps_overlap",
    "worker_base",
]

# 0.26 and older have no word for a disk, and the oldest none for memory.
MEDIUM_CPU = getattr(_kv_events, "MEDIUM_CPU", "CPU")
MEDIUM_STORAGE = getattr(_kv_events, "MEDIUM_STORAGE", "STORAGE")

try:
    from vllm.v1.metrics.cache_hit_source import CacheHitSource
except ImportError:  # 0.31 and older do not ask for the sources of a hit

    class CacheHitSource(enum.Enum):  # type: ignore[no-redef]
        """As of 0.32."""

        EXTERNAL_UNSPECIFIED = "external_unspecified"
        HOST = "host"
        P2P = "p2p"
        DISK = "disk"


try:
    from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorTransferResults
except ImportError:  # 0.29 and older: get_finished, and failed loads by their blocks alone

    @dataclasses.dataclass
    class KVConnectorTransferResults:  # type: ignore[no-redef]
        """As of 0.30."""

        finished_sending: set[str] = dataclasses.field(default_factory=set)
        finished_recving: set[str] = dataclasses.field(default_factory=set)
        failed_recving: set[str] = dataclasses.field(default_factory=set)


# 0.28 and older begin block hashes with a random number where $PYTHONHASHSEED does not name one.
FIXED_HASH_SEED = hasattr(_kv_cache_utils, "resolve_none_hash_seed")
# Since 0.29 a KV layout is named by its axes, and a layer's tensor has the axes (block, head, token,
# content).
LAYOUTS_BY_AXES = "kv_cache_layout" in getattr(
    KVCacheConfig, "__dataclass_fields__", {"kv_cache_layout": None}
)
FAILED_LOADS_BY_REQUEST = hasattr(_base, "KVConnectorTransferResults")


def release() -> str:
    """Return vLLM's version without its last number: engines of others share nothing with this one.

    How a kernel lays out the bytes of a block is part of no contract, and a new release may change it
    where nothing else that engines compare does.
    """
    found = _versions.installed()
    if found is not None:
        return ".".join(map(str, found))
    import vllm

    return str(getattr(vllm, "__version__", "unknown"))


def check_model(vllm_config: Any, kv_cache_config: Any) -> None:
    """Refuse a model that needs a hook which this version of vLLM lacks.

    Raises
    ------
    ValueError
        With what it lacks, and which version has it.
    """
    if not fails_by_block(kv_cache_config) and not FAILED_LOADS_BY_REQUEST:
        groups = len(kv_cache_config.kv_cache_groups)
        what = f"has {groups} groups of" if groups > 1 else "has no full attention in its"
        raise ValueError(
            f"kvcove: this model {what} KV caches (windows, states or several kinds of layers), and "
            f"vLLM {release()} cannot be told that a load for them failed: it would compute on wrong "
            "KV. Upgrade to vLLM 0.30 or later; models with full attention alone run on this one"
        )
    if (why := why_not_scales(vllm_config.cache_config)) is not None:
        raise ValueError(f"kvcove: {why}")
    if (_versions.installed() or _versions.NEWEST) >= (0, 26):
        return
    pcp = int(getattr(vllm_config.parallel_config, "prefill_context_parallel_size", 1))
    if pcp > 1:
        raise ValueError(
            f"kvcove: prefill context parallelism ({pcp} ranks) cuts blocks otherwise in vLLM "
            f"{release()}: upgrade to vLLM 0.26 or later, or do without it"
        )


def why_not_scales(cache_config: Any) -> str | None:
    """Return why KV of an engine would be wrong in others, or None. 0.29 and later have no such scales.

    They are made of the first request, after the fingerprint of the weights has been told.
    """
    if not getattr(cache_config, "calculate_kv_scales", False):
        return None
    return (
        "with calculate_kv_scales each engine scales its KV by its own first request, so what others "
        "load of it would be wrong; leave it out (the checkpoint's scales are used, else 1)"
    )


def check_policy(vllm_config: Any, kv_cache_config: Any, config: Any, consumes: bool) -> None:
    """Refuse what :func:`why_not_policy` finds.

    Parameters
    ----------
    vllm_config, kv_cache_config
        Of the engine.
    config : Config
        The connector's, as the user gave it.
    consumes : bool
        The connector may load (kv_both, kv_consumer).

    Raises
    ------
    ValueError
        With the ways out.
    """
    beside = why_loads_run_beside(vllm_config, kv_cache_config) is not None
    why = why_not_policy(vllm_config, config, consumes, beside)
    if why is not None:
        raise ValueError(f"kvcove: {why}")


def why_not_policy(vllm_config: Any, config: Any, consumes: bool, beside: bool) -> str | None:
    """Return why an engine may wait for ever with its priorities of requests, or None where it does not.

    A request that waits for its load keeps blocks. Since 0.31 vLLM lets such requests go before all
    others. In older versions a new request of a higher priority goes before them; where it needs
    more blocks than are free, vLLM looks at no request behind it, so none of those that keep blocks
    ever runs and gives them back. A synchronous load keeps no request waiting.

    Parameters
    ----------
    vllm_config, config, consumes
        As for :func:`check_policy`.
    beside : bool
        Synchronous loads are taken for loads beside the forward pass.
    """
    policy = str(vllm_config.scheduler_config.policy)
    if policy == "fcfs" or runs_loaded_first():
        return None
    if not (config.lookup and consumes) or not (config.load_async or beside):
        return None
    return (
        f"with --scheduling-policy {policy} vLLM {release()} may wait for ever: a request that finds no "
        "room goes before those that keep blocks for their loads. Use fcfs, or upgrade to vLLM 0.31 or "
        'later; a model with full attention alone may have "load_async": false, with '
        "--no-async-scheduling"
    )


def runs_loaded_first() -> bool:
    """Return whether requests that keep blocks for their loads run before all others (0.31 and later)."""
    from vllm.v1.core.sched.scheduler import Scheduler

    return hasattr(Scheduler, "_handle_blocked_waiting_request")


# ---- the KV cache's configuration


def fails_by_block(kv_cache_config: Any) -> bool:
    """Return whether the connector names blocks to vLLM when a load has failed; else it names the request.

    vLLM computes again from the first named block on, and for that needs the KV of all tokens before
    it. One group of full attention has that KV. A load for a sliding window brings only the window at
    the end of the hit, so a computation that begins earlier would read blocks that nobody loaded.
    """
    groups = kv_cache_config.kv_cache_groups
    return len(groups) == 1 and isinstance(one_spec_of(groups[0].kv_cache_spec), FullAttentionSpec)


def why_loads_run_beside(vllm_config: Any, kv_cache_config: Any) -> str | None:
    """Return why vLLM would compute on a synchronous load that has failed, or None where it need not."""
    if not fails_by_block(kv_cache_config):
        groups = len(kv_cache_config.kv_cache_groups)
        return f"this model has windows or states ({groups} groups of KV caches)"
    return why_steps_overlap(vllm_config)


def why_steps_overlap(vllm_config: Any) -> str | None:
    """Return why a step may have begun when the failure of another one's load is told, or None.

    Such a step reads what was not loaded, and counts.
    """
    # None: vLLM has not decided yet, and mostly takes True.
    if vllm_config.scheduler_config.async_scheduling is not False:
        return "a step is scheduled before the last one has ended (else: --no-async-scheduling)"
    if (stages := vllm_config.parallel_config.pipeline_parallel_size) > 1:
        return f"{stages} pipeline stages run as many steps at a time"
    return None


def one_spec_of(spec: KVCacheSpec) -> KVCacheSpec:
    """Return one layer's spec, of a group whose layers differ in size only."""
    inner = getattr(spec, "kv_cache_specs", None)
    return next(iter(inner.values())) if isinstance(inner, dict) and inner else spec


def cacheable_groups(kv_cache_config: Any) -> tuple[Any, ...]:
    """Return the groups whose blocks have hashes. 0.29 and older: all, and a model with several is refused."""
    groups = getattr(kv_cache_config, "prefix_cacheable_groups", None)
    return tuple(kv_cache_config.kv_cache_groups if groups is None else groups)


def cacheable_group_ids(kv_cache_config: Any) -> tuple[int, ...]:
    """Return the numbers of :func:`cacheable_groups` among all groups."""
    numbers = getattr(kv_cache_config, "prefix_cacheable_group_ids", None)
    return tuple(range(len(kv_cache_config.kv_cache_groups)) if numbers is None else numbers)


def replayed_tokens(kv_cache_config: Any) -> int:
    """Return how many tokens at the end of a hit are computed again; 0 before 0.32, and for most models."""
    return max(
        int(getattr(group.kv_cache_spec, "prefix_replay_tokens", 0))
        for group in kv_cache_config.kv_cache_groups
    )


def dcp_ranks_of(spec: Any, vllm_config: Any) -> int:
    """Return on how many ranks the tokens of a block lie."""
    # 0.30 and older assert that nothing but full attention is cut.
    sharded = getattr(spec, "dcp_sharded", isinstance(spec, FullAttentionSpec))
    return int(vllm_config.parallel_config.decode_context_parallel_size) if sharded else 1


def hash_tokens_of(kv_cache_config: Any, vllm_config: Any, smallest: int) -> int:
    """Return how many tokens a block hash covers; ``smallest`` is the smallest chunk of the groups."""
    if hasattr(kv_cache_config, "hash_block_size"):
        return int(kv_cache_config.hash_block_size or smallest)
    # 0.29 and older tell the scheduler alone.
    return int(_kv_cache_utils.resolve_kv_cache_block_sizes(kv_cache_config, vllm_config)[1])


def use_eagle_block_drop(speculative: Any) -> bool:
    """Return whether a hit ends one block early. 0.29 and older: for every EAGLE or MTP head."""
    drops = getattr(speculative, "use_eagle_block_drop", None) or speculative.use_eagle
    return bool(drops())


def settle_interleave(vllm_config: Any, kv_cache_config: Any) -> None:
    """Let a configuration of vLLM settle the interleave of its context-parallel ranks.

    0.33 takes the KV cache's groups for that, 0.29 to 0.32 its configuration; in older ones it is as
    the user gave it.
    """
    settle = getattr(vllm_config, "adjust_dcp_kv_cache_interleave_size", None)
    if settle is None:
        return
    names = list(inspect.signature(settle).parameters)
    settle(kv_cache_config if names == ["kv_cache_config"] else kv_cache_config.kv_cache_groups)


def kv_cache_configs_of(vllm_config: Any, specs: list[Any], memory: list[int]) -> list[Any]:
    """Return the configuration of the KV cache of each rank, as vLLM's engine plans it.

    0.33 plans in a module of its own, and groups the layers of the whole model first.
    """
    try:
        from vllm.v1.core import kv_cache_planning as planning
    except ImportError:
        return list(_kv_cache_utils.get_kv_cache_configs(vllm_config, specs, memory))
    groups = planning.get_global_kv_cache_groups(vllm_config, specs)
    return list(planning.get_kv_cache_configs(vllm_config, specs, memory, groups))


# ---- layouts


def inner_order(kv_cache_config: Any, vllm_config: Any) -> str:
    """Return the order of head (H), token (N) and content (C) in a block.

    Before 0.29 only the ranks know it, and a K in it says that keys and values lie apart. The
    scheduler's process has to come to the same, so it is what the platform's own backends have; a
    rank that has another one refuses (:func:`kvcove.vllm._shape.layers_of`).
    """
    if LAYOUTS_BY_AXES:
        layout = (
            kv_cache_config.kv_cache_layout or vllm_config.cache_config.kv_cache_layout or "LBHNC"
        )
        return "".join(axis for axis in str(layout) if axis in "HNC")
    if platform().is_cpu():
        return "HNC"
    order = {"NHD": "NHC", "HND": "HNC"}[os.environ.get("VLLM_KV_CACHE_LAYOUT") or "NHD"]
    packed = (_versions.installed() or _versions.NEWEST) >= (0, 26)
    return order if packed else f"K{order}"


def settle_layout(vllm_config: Any, specs: dict[str, Any]) -> str | None:
    """Settle the layout of KV memory as an engine's ranks do; None where it has no name (before 0.29)."""
    if not LAYOUTS_BY_AXES:
        return None
    from vllm.distributed.kv_transfer.kv_connector.utils import get_current_attn_backends
    from vllm.v1.attention.backends.utils import (
        get_supported_kv_cache_layouts,
        resolve_kv_cache_layout,
    )

    backends = get_current_attn_backends(vllm_config)
    layouts = [layout.name for layout in get_supported_kv_cache_layouts(backends)]
    resolve_kv_cache_layout(vllm_config, [layouts], list(specs.values()))
    return str(vllm_config.cache_config.kv_cache_layout)


# What stands for the sizes of a KV tensor when a backend is asked for its shape: each only once, and
# none is 2.
_PROBE = {"block": 1234, "token": 16, "head": 7}


def axes_of(name: str, dimensions: int, vllm_config: Any) -> tuple[str, ...]:
    """Return the axes of an attention layer's KV tensor: "block", "kv", "head", "token" or "element".

    Before 0.29 each attention backend has a shape of its own, and is asked for it.

    Raises
    ------
    ValueError
        For a shape that is not known.
    """
    if LAYOUTS_BY_AXES:
        inner = ("head", "token", "element") if dimensions == 4 else ("element",) * (dimensions - 1)
        return ("block", *inner)
    backend = vllm_config.compilation_config.static_forward_context[name].get_attn_backend()
    shape = backend.get_kv_cache_shape(
        num_blocks=_PROBE["block"],
        block_size=_PROBE["token"],
        num_kv_heads=_PROBE["head"],
        head_size=256,
    )
    names = {size: axis for axis, size in _PROBE.items()} | {2: "kv"}
    axes = tuple(names.get(size, "element") for size in shape)
    if len(axes) != dimensions or axes.count("block") != 1 or axes.count("token") != 1:
        raise ValueError(
            f"kvcove: KV layer '{name}': {backend.__name__} of vLLM {release()} has KV tensors of the "
            f"axes {axes}, which are not those of this one ({dimensions} dimensions): choose another "
            "attention backend, or upgrade vLLM to 0.29 or later"
        )
    return axes


# ---- steps


class _BlockTables:
    """The current block tables of an engine's requests, as 0.30 and later hand them to connectors."""

    def __init__(self, manager: Any, state: Any) -> None:
        self._manager = manager
        self._state = state

    def get_block_ids(self, request_id: str) -> Any:
        return self._manager.get_block_ids(request_id)

    def __getattr__(self, name: str) -> Any:  # for other connectors beside this one
        return getattr(self._state, name)


def offer_block_tables() -> None:
    """Let the scheduler hand its block tables to connectors with each step, where vLLM does not.

    0.28 and older hand over none, 0.29 those with new blocks only. What a step schedules names new
    blocks, too; but a table that was put together from those would keep blocks behind a sliding
    window, which are another request's by then.
    """
    from vllm.v1.core.sched import output
    from vllm.v1.core.sched.scheduler import Scheduler

    build = getattr(Scheduler, "_build_kv_connector_meta", None)
    if hasattr(getattr(output, "KVConnectorBlockState", None), "get_block_ids"):
        return
    if build is None or getattr(build, "_kvcove", False):
        return

    @functools.wraps(build)
    def with_tables(self: Any, connector: Any, scheduler_output: Any) -> Any:
        state = getattr(scheduler_output, "kv_connector_block_state", None)
        scheduler_output.kv_connector_block_state = _BlockTables(self.kv_cache_manager, state)
        try:
            return build(self, connector, scheduler_output)
        finally:
            scheduler_output.kv_connector_block_state = state  # the output goes to the ranks

    with_tables._kvcove = True  # type: ignore[attr-defined]
    Scheduler._build_kv_connector_meta = with_tables


_ended_steps = 0  # whose outputs the scheduler that schedules now has taken (0.27 and older)


def awaits_output(request: Any) -> bool:
    """Return whether the output of a step from before a request's preemption is not there yet.

    With three and more steps under way (pipeline stages) vLLM may begin the request anew before.
    The output may then end it. If a load of it is under way, 0.27 and older free the blocks that the
    load writes into, and raise when they come to the request in the queue: the engine ends. Since
    0.28 vLLM waits for such outputs itself, or has no use for them.
    """
    if hasattr(request, "num_stale_output_tokens"):
        return False
    return int(getattr(request, "last_sched_seq", 0)) > _ended_steps


def kv_holding_waiting(scheduler: Any) -> Any:
    """Return the queue of the waiting requests that keep blocks.

    0.30 and older have one for all that a step has passed over, with and without blocks.
    """
    queue = getattr(scheduler, "kv_holding_waiting", None)
    return scheduler.skipped_waiting if queue is None else queue


def let_failed_loads_go() -> None:
    """Let requests whose load has failed give their blocks back, and wait as new ones do.

    vLLM lets those that keep blocks go before all others, and stops at the first that finds none.
    One whose load has failed gives its own back when its turn comes, and stays in front: where it
    needs more than is free, those behind it whose loads have ended keep theirs for ever.

    0.30 and older let them go before new requests only, not before one whose look-up had to wait:
    here they go before that one, too.
    """
    from vllm.v1.core.sched.scheduler import Scheduler

    schedule = Scheduler.schedule
    if getattr(schedule, "_kvcove", False):
        return
    loaded_first = runs_loaded_first()
    if loaded_first:
        give_back = Scheduler._handle_blocked_waiting_request
    else:
        give_back = Scheduler._try_promote_blocked_waiting_request

    @functools.wraps(schedule)
    def without_them(self: Any, *args: Any, **kwargs: Any) -> Any:
        ended = self.failed_recving_kv_req_ids & self.finished_recving_kv_req_ids
        queue = kv_holding_waiting(self)
        if not loaded_first:
            global _ended_steps
            _ended_steps = int(getattr(self, "processed_step_seq", 0))
            _leave_out_finished(queue)
        if ended and len(queue) > 1:
            for request in list(queue):
                if request.request_id in ended and request.num_computed_tokens == 0:
                    give_back(self, request)
                    queue.remove_request(request)
                    self.waiting.prepend_request(request)
        if not loaded_first and len(queue) > 1:
            _let_those_with_blocks_go_first(queue)
        return schedule(self, *args, **kwargs)

    without_them._kvcove = True  # type: ignore[attr-defined]
    Scheduler.schedule = without_them


def _leave_out_finished(queue: Any) -> None:
    """Remove requests that have ended by an output of before their preemption (:func:`awaits_output`).

    0.27 and older look for such a request where new ones wait only, and not among those that a step
    has passed over.
    """
    for request in [each for each in queue if each.is_finished()]:
        queue.remove_request(request)


def _let_those_with_blocks_go_first(queue: Any) -> None:
    """Move requests that keep blocks for their loads before those that keep none; each in their order.

    A look-up may wait for a save while a later request is loaded. When it has ended and its request
    finds no room, vLLM looks at nothing behind that one. With priorities the queue has its own order.
    """
    loading = request_status().WAITING_FOR_REMOTE_KVS
    with_blocks: list[Any] = []
    passed = out_of_place = False
    for request in queue:
        if request.num_computed_tokens > 0 or request.status == loading:
            with_blocks.append(request)
            out_of_place = out_of_place or passed
        else:
            passed = True
    if out_of_place:
        for request in reversed(with_blocks):
            queue.remove_request(request)
            queue.prepend_request(request)


# ---- what is watched


def engine_core() -> Any:
    """Return vLLM's class ``EngineCore``."""
    from vllm.v1.engine.core import EngineCore

    return EngineCore


def engine_names_weights() -> bool:
    """Return whether an engine can be told the name of its weights (0.27 and later)."""
    return hasattr(engine_core(), "set_weight_version")


def worker_base() -> Any:
    """Return the class of which all workers are."""
    from vllm.v1.worker.worker_base import WorkerBase

    return WorkerBase


def request_status() -> Any:
    """Return vLLM's enum ``RequestStatus``."""
    from vllm.v1.request import RequestStatus

    return RequestStatus


# ---- configurations, layers and ranks


def current_config() -> Any:
    """Return the configuration of the engine that is being made in this process, or None."""
    from vllm.config import get_current_vllm_config_or_none

    return get_current_vllm_config_or_none()


def platform() -> Any:
    """Return the platform that vLLM runs on."""
    from vllm.platforms import current_platform

    return current_platform


def parallel_state() -> Any:
    """Return the module that knows this process's ranks."""
    from vllm.distributed import parallel_state

    return parallel_state


def attention_layers() -> tuple[Any, Any]:
    """Return the classes of layers whose operators wait for a layer's load."""
    from vllm.model_executor.layers.attention import Attention, MLAAttention

    return Attention, MLAAttention


def communicators() -> tuple[Any, Any]:
    """Return the class of the queue between ranks, and of a CPU's communicator."""
    from vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator
    from vllm.distributed.device_communicators.shm_broadcast import MessageQueue

    return MessageQueue, CpuCommunicator


def for_explain() -> Any:
    """Return the names by which an engine is planned without being started."""
    from vllm.config import set_current_vllm_config
    from vllm.engine.arg_utils import EngineArgs
    from vllm.model_executor.model_loader.utils import initialize_model
    from vllm.utils.argparse_utils import FlexibleArgumentParser
    from vllm.utils.torch_utils import set_default_torch_dtype
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    return SimpleNamespace(
        EngineArgs=EngineArgs,
        FlexibleArgumentParser=FlexibleArgumentParser,
        GPUModelRunner=GPUModelRunner,
        initialize_model=initialize_model,
        set_current_vllm_config=set_current_vllm_config,
        set_default_torch_dtype=set_default_torch_dtype,
    )


# ---- events


def block_stored(**fields: Any) -> BlockStored:
    """Return an event, without the fields that this version does not have (0.29 and older: ``session_id``)."""
    known = getattr(BlockStored, "__struct_fields__", None)
    return BlockStored(
        **{name: value for name, value in fields.items() if known is None or name in known}
    )


def event_kind_of(spec: Any) -> dict[str, Any]:
    """Return what an event says of a group's layers: indexes take groups apart by it.

    Older versions say less, and :func:`block_stored` leaves out what an event has no field for.
    """
    kind = getattr(_interface, "get_kv_cache_spec_kind", None)
    window = getattr(_interface, "get_kv_cache_spec_sliding_window", None)
    if kind is None or window is None:
        return {}
    return {"kv_cache_spec_kind": kind(spec).value, "kv_cache_spec_sliding_window": window(spec)}


def event_extra_keys(keys: Iterable[Any]) -> Any:
    """Return the extra keys of blocks as events have them. 0.30 and older hash the keys as they are told."""
    convert: Callable[[Any], Any] | None = getattr(_kv_cache_utils, "to_event_extra_keys", None)
    listed = list(keys)
    return convert(listed) if convert is not None else listed or None
