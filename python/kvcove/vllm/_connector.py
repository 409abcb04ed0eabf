# SPDX-License-Identifier: Apache-2.0
"""The connector's two roles behind vLLM's interface (KVConnectorBase_V1).

What is decided is decided in C++ (kvcove/connector); here vLLM's objects become plain values.
"""

from __future__ import annotations

import hashlib
import logging
import math
import os
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import kvcove
from kvcove import _native, engines
from kvcove._environment import asked_for_disk
from kvcove.engines import _digest
from kvcove.vllm import _adapters, _compat, _experts, _watch, _weights
from kvcove.vllm._check import LoadCheck
from kvcove.vllm._compat import (
    MEDIUM_CPU,
    MEDIUM_STORAGE,
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    CacheHitSource,
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
    KVConnectorTransferResults,
    KVConnectorWorkerMetadata,
    SupportsHMA,
    VllmConfig,
    cacheable_groups,
    generate_block_hash_extra_keys,
    maybe_convert_block_hash,
)
from kvcove.vllm._config import Config
from kvcove.vllm._hints import hints_of
from kvcove.vllm._layout import required_layout, why_not_by_layers
from kvcove.vllm._own_cache import OwnCache
from kvcove.vllm._shape import (
    draft_config_of,
    drops_last_block,
    facts_of,
    group_facts,
    hashing_of,
    layers_of,
    model_fingerprint,
    rank_of,
    shape_of,
    tokens_of,
)
from kvcove.vllm._stats import KvcovePromMetrics, KvcoveStats
from kvcove.vllm._summary import Summary, chunks_text, size_line

__all__ = ["KvcoveConnector"]

_log = logging.getLogger("vllm.kvcove")
_MOST_FINISHED = 1024  # requests kept for KV events that come after them
# vLLM's words for where a block lies, as owners use them, too (docs/kv-events.md). Mooncake's store
# connector says "cpu", in small letters: Dynamo does not know that word, and drops the event.
_MEDIA = {"memory": MEDIUM_CPU, "disk": MEDIUM_STORAGE}
_SOURCES = (
    CacheHitSource.EXTERNAL_UNSPECIFIED,
    CacheHitSource.HOST,
    CacheHitSource.P2P,
    CacheHitSource.DISK,
)


# Requests whose loads have ended, blocks that hold nothing, requests with such blocks.
_Ended = tuple[list[str], list[int], list[str]]


@dataclass
class _Plan(KVConnectorMetadata):
    plan: bytes


@dataclass
class _Reports(KVConnectorWorkerMetadata):
    """What ranks report: one each."""

    reports: list[bytes] = field(default_factory=list)

    def aggregate(self, other: KVConnectorWorkerMetadata) -> KVConnectorWorkerMetadata:
        assert isinstance(other, _Reports)
        return _Reports(self.reports + other.reports)


def _adapter_of(request: Any) -> int:
    """Return the id of a request's LoRA adapter, 0 for none."""
    return int(request.lora_request.lora_int_id) if request.lora_request else 0


def _is_fetched(request: Any) -> bool:
    """Return whether another connector fetches the request's KV from the engine that computed it.

    That engine may still be saving the same KV, and MultiConnector asks no connector as long as one
    of them has no answer.
    """
    params = getattr(request, "kv_transfer_params", None)
    return isinstance(params, Mapping) and bool(params.get("do_remote_prefill"))


class _SchedulerSide:
    """The role in EngineCore."""

    def __init__(self, connector: KvcoveConnector, config: Config, vllm_config: VllmConfig) -> None:
        self._config = config
        self._blocks = connector._kv_cache_config.num_blocks
        shape = shape_of(vllm_config, connector._kv_cache_config, config)
        self.shape = shape
        transfer = connector._kv_transfer_config
        self._engine = str(transfer.engine_id)
        self._owner: engines.Embedded | None = None
        self._free_memory = engines.available_memory()
        device = getattr(getattr(vllm_config, "device_config", None), "device_type", "")
        if self._free_memory is not None and device == "cpu":
            # The engine's own cache lies there, too, and is not touched yet.
            cache = sum(int(each.size) for each in connector._kv_cache_config.kv_cache_tensors)
            self._free_memory = max(self._free_memory - cache, 0)
        names = f"{self._engine}|{shape.namespace}"
        name = hashlib.sha256(names.encode()).hexdigest()[:16]
        directory = engines.directory()
        engines.remove_dead(directory)
        own_socket = directory / f"pool-{name}-{os.getpid()}.sock"
        door = str(directory / f"engine-{name}-{os.getpid()}.sock")
        address, reached = self._open(own_socket, transfer.kv_connector_extra_config or {})
        looks_up = config.lookup and transfer.is_kv_consumer
        for line in engines.refusals(self._pool, finds=looks_up, stores=transfer.is_kv_producer):
            _log.warning("kvcove: %s", line)
        events = vllm_config.kv_events_config
        self._events = bool(events and events.enable_kv_cache_events)
        self.role = _native.SchedulerRole(
            shape,
            self._pool,
            engine=self._engine,
            pool_address=address,
            versions=config.weight_version_source,
            lookup_budget=config.lookup_budget_ms / 1e3,
            lookup_timeout=config.lookup_timeout_ms / 1e3,
            save_wait=config.save_wait_ms / 1e3,
            hold=config.hold_s,
            reset_timeout=config.reset_timeout_ms / 1e3,
            load_async=config.load_async,
            load_when=config.load_when,
            lookup=reached and looks_up,
            save=reached and transfer.is_kv_producer,
            save_decoded=config.save_decoded,
            events=self._events,
            closed_on_reset_failure=config.on_reset_failure == "closed",
            assume_weights=config.assume_weights,
            blocks=self._blocks,
            door=door,
            drop_last_stride=drops_last_block(vllm_config),
            trust_siblings=config.trust_siblings,
        )
        if config.weight_version_source == "engine":
            self.role.set_version("default")  # as EngineCore calls what it has at its start
        _log.info("kvcove: this engine's own socket: %s (kvcove engine SOCKET counters)", door)
        self._summary = Summary(lambda line: _log.info("kvcove: %s", line))
        if reached:
            self._tell_size(vllm_config, connector._kv_cache_config)
        self._tell_hashing(vllm_config)
        self._tell_differences(vllm_config, connector._kv_cache_config)
        self._exchange: _experts.Exchange | None = None
        group = _experts.group_of(vllm_config)
        if group is not None and config.weight_version_source == "fingerprint":
            # A pool of this engine's own is nobody else's, too.
            self._exchange = _experts.Exchange(
                self.role,
                self._pool.session(engines.FACTS, engine=self._engine),
                (f"{group[0]} of {shape.namespace}", *group[1:]),
                **({"patience": 0.0} if self._owner is not None else {}),
            )
        self._block_pool: Any = None
        self._pins: Counter[int] = Counter()  # blocks that saves read
        self.own_cache: OwnCache | None = None
        # Requests whose load was ordered, until they are scheduled or gone.
        self._loading: dict[str, Any] = {}
        self._landed: set[str] = set()  # of them, those whose load has ended
        self._step_loads = False  # a request of this step waits for its load
        self._step_tables: dict[str, list[int]] = {}  # then: the blocks of the step's requests
        self._requests: dict[str, Any] = {}
        self._finished: dict[str, Any] = {}
        cache = connector._kv_cache_config
        # Of vLLM's groups, those that have hashes. The role numbers them from 0.
        self._group_ids = _compat.cacheable_group_ids(cache)
        self._chunk_tokens = [
            tokens_of(group.kv_cache_spec, vllm_config) for group in cacheable_groups(cache)
        ]
        self._least_tokens = math.gcd(*self._chunk_tokens)
        self._replayed = _compat.replayed_tokens(cache)
        self._event_kinds = [
            _compat.event_kind_of(group.kv_cache_spec) for group in cacheable_groups(cache)
        ]
        _weights.observe_engine(connector, self.role, config.harmless_names)
        _compat.offer_block_tables()
        _compat.let_failed_loads_go()

    def _tell_size(self, vllm_config: VllmConfig, cache: Any) -> None:
        """Say how the pool's size compares with the engine's own cache: whether it can bring anything."""
        groups = [
            group_facts(number, group, self.shape, cache, vllm_config)
            for number, group in enumerate(cacheable_groups(cache))
        ]
        of_tokens = [group for group in groups if group["kind"] != "state"]
        token_bytes = sum(group["pool_chunk_bytes"] / group["chunk_tokens"] for group in of_tokens)
        rank_bytes = sum(group["rank_chunk_bytes"] / group["chunk_tokens"] for group in of_tokens)
        if not token_bytes:
            return
        own = sum(int(each.size) for each in cache.kv_cache_tensors)
        try:
            stat = self._pool.stat()
        except kvcove.Error as error:
            _log.debug("kvcove: the size of the pool is not known: %s", error)
            return
        pool_bytes = stat.free_bytes + stat.object_bytes + stat.disk_capacity_bytes
        line, warns = size_line(
            pool_bytes, token_bytes, int(own / rank_bytes), self._owner is not None
        )
        _log.log(logging.WARNING if warns else logging.INFO, "kvcove: %s", line)

    def _tell_differences(self, vllm_config: VllmConfig, cache: Any) -> None:
        """Say in one line each why engines of this model will not share with this one."""
        mine = facts_of(vllm_config, cache, self._config)
        own = {**mine, "block hashing": hashing_of(vllm_config)}
        engines.warn_of_differences(
            _log,
            lambda: self._pool.session(engines.FACTS, engine=self._engine),
            Path(str(vllm_config.model_config.model)).name,
            mine,
            own=lambda session: engines.leave_own(
                session, self._engine, "vLLM", self.shape.namespace, own
            ),
        )

    def _tell_hashing(self, vllm_config: VllmConfig) -> None:
        """Say so if engines of this model hash their blocks otherwise: they would never share."""
        mine = hashing_of(vllm_config)
        advice = "set the same prefix_caching_hash_algo and PYTHONHASHSEED for all of them"
        if ":random:" in mine:
            _log.warning(
                "kvcove: this engine's block hashes have a random seed (%s), so it shares with no "
                "other engine; %s",
                mine.partition(":")[0],
                advice,
            )
            return
        key = f"hashing of {model_fingerprint(vllm_config, self._config)}"
        try:
            facts = self._pool.session(engines.FACTS, engine=self._engine)
            others = facts.get([key])[0]
            if others is None:
                facts.put([key], [mine.encode()])
            elif others.decode() != mine:
                _log.warning(
                    "kvcove: other engines of this model hash their blocks with %s, this one with "
                    "%s: they will never share; %s",
                    others.decode(),
                    mine,
                    advice,
                )
        except kvcove.Error as error:
            _log.debug("kvcove: how others hash is not known: %s", error)

    def _embed(self, socket: Path, memory: int) -> str:
        """Start a pool in this process, for its ranks; return its address."""
        self._owner = engines.Embedded(socket, memory, self._config.disk)
        return self._owner.address

    def _open(self, own_socket: Path, extra: dict[str, Any]) -> tuple[str, bool]:
        """Open the pool; return its address, and whether it is there."""
        try:
            address = self._address(own_socket, extra)
            self._pool = kvcove.open(address)
        except kvcove.Error as error:
            if self._config.on_unreachable == "crash" or not engines.no_pool(error):
                raise
            _log.warning(
                "kvcove: the pool %s does not answer: %s; this engine runs without a pool until it "
                'is started again ("on_unreachable": "crash" makes this an error)',
                self._config.pool,
                error,
            )
            # A pool of its own that stays empty: resets and counters then need no other case.
            address = self._embed(own_socket, 1 << 20)
            self._pool = kvcove.open(address)
            return address, False
        return address, True

    def _address(self, own_socket: Path, extra: dict[str, Any]) -> str:
        """Return where the pool is; start one here if there is none."""
        config = self._config
        if told := asked_for_disk():
            _log.warning(
                "kvcove: %s means nothing here: the pool's owners have a disk, or none ('kvcove owner "
                '--disk PATH:SIZE\'), and an embedded pool has one with "disk": "DIRECTORY"',
                told,
            )
        if config.pool not in ("auto", "embedded"):
            source = "kv_connector_extra_config"
            if str(extra.get("pool", "auto")) == "auto":
                source = engines.named_pool()[1]
            elif os.environ.get("KVCOVE_POOL") == config.pool:
                source = "$KVCOVE_POOL"  # `kvcove run` gives it in both ways
            _log.info(
                "kvcove: pool %s (from %s), namespace %s",
                config.pool,
                source,
                self.shape.namespace,
            )
            return config.pool
        shared = _native.default_socket_path()
        # An owner that does not answer, or may not be asked, is an error here: a pool of this engine's
        # own beside it would take its memory twice and share nothing.
        if config.pool == "auto" and _native.why_no_owner(shared) is None:
            kvcove.open(f"unix:{shared}").close()
            _log.info(
                "kvcove: pool unix:%s (this host's owner, shared with all its engines; its "
                "memory, not 'memory'), namespace %s",
                shared,
                self.shape.namespace,
            )
            return f"unix:{shared}"
        asked = _native.parse_size(config.memory)
        memory = engines.affordable(asked, self._free_memory)
        if memory < asked:
            _log.warning(
                "kvcove: the embedded pool gets %d MiB instead of 'memory' %s: this host has %d MiB "
                "left for it",
                memory >> 20,
                config.memory,
                (self._free_memory or 0) >> 20,
            )
        address = self._embed(own_socket, memory)
        _log.info(
            "kvcove: pool %s (embedded in this engine: %d MiB, shared with its ranks only; start "
            "`kvcove serve` to share one among engines), namespace %s",
            address,
            memory >> 20,
            self.shape.namespace,
        )
        return address

    def bind(self, block_pool: Any) -> None:
        self._block_pool = block_pool
        self.own_cache = OwnCache(
            block_pool, self._pins.elements, self._loading, self.role.own_cache_cleared
        )

    def matched(self, request: Any, computed: int) -> tuple[int | None, bool]:
        if request.request_id not in self._requests:
            hints = hints_of(getattr(request, "kv_transfer_params", None))
            if hints is not None:
                self.role.hint(
                    request.request_id,
                    hints.output_tokens,
                    hints.ephemeral_from,
                    hints.session_ends,
                )
        self._requests[request.request_id] = request
        if getattr(request, "skip_reading_prefix_cache", False):
            return 0, False  # vLLM computes all of it (prompt_logprobs), whatever is found
        if _compat.awaits_output(request):
            return None, False
        tokens, load_async = self.role.matched(
            request.request_id,
            request.num_tokens,
            request.num_prompt_tokens,
            request.cache_salt or "",
            request.block_hashes,
            computed,
            _adapter_of(request),
            not _is_fetched(request),
        )
        return tokens, load_async

    def _tables(self, block_ids: Sequence[list[int]]) -> list[list[int]]:
        """Return the block tables of the role's groups, of those of all groups."""
        return [block_ids[group] for group in self._group_ids]

    def allocated(self, request: Any, blocks: Any, external: int) -> None:
        self._requests[request.request_id] = request
        self.role.allocated(
            request.request_id, external, lambda: self._tables(blocks.get_block_ids())
        )
        if external > 0:
            if self._config.load_async:
                self._loading[request.request_id] = request
            else:
                self._step_loads = True

    def _schedule(self, output: Any, request_id: str, computed: int, started: bool) -> None:
        if started:
            self._forget_load(request_id)
        request = self._requests.get(request_id)
        if request is None:
            return
        scheduled = output.num_scheduled_tokens[request_id]
        if started and self._replayed and 0 < computed == getattr(request, "replay_start", 0):
            # vLLM computes the last tokens of the hit again (DeepSeek V4.1), for a group without
            # hashes. The others keep what was found, which may be of older weights.
            scheduled = max(scheduled - self._replayed, 0)
            computed += self._replayed
        state = output.kv_connector_block_state
        self.role.schedule(
            request_id,
            request.num_tokens,
            request.num_prompt_tokens,
            request.cache_salt or "",
            request.block_hashes,
            computed,
            scheduled,
            started,
            lambda: self._tables(state.get_block_ids(request_id)),
            _adapter_of(request),
        )

    def plan(self, output: Any) -> _Plan:
        # A hit that ends within a block is copied into one of the request's own.
        if copies := getattr(output, "kv_cache_block_copies", None):
            self.role.copied([(each.src_block_id, each.dst_block_id) for each in copies])
        for new in output.scheduled_new_reqs:
            self._schedule(output, new.req_id, new.num_computed_tokens, True)
        cached = output.scheduled_cached_reqs
        resumed = cached.resumed_req_ids
        # What neither begins a block nor fills one is of no interest: mostly a decoded token.
        for i in _native.told_of(
            cached.req_ids,
            cached.num_computed_tokens,
            output.num_scheduled_tokens,
            resumed,
            self._least_tokens,
        ):
            request_id = cached.req_ids[i]
            self._schedule(output, request_id, cached.num_computed_tokens[i], request_id in resumed)
        if self._step_loads:
            self._step_loads = False
            state = output.kv_connector_block_state
            self._step_tables = {
                each: self._tables(state.get_block_ids(each))[0]
                for each in output.num_scheduled_tokens
            }
        plan, pins = self.role.build_plan()
        if pins:
            blocks = self._block_pool.blocks
            self._block_pool.touch([blocks[pin] for pin in pins])
            self._pins.update(pins)
        return _Plan(plan)

    def update(self, output: Any) -> None:
        # Each rank reports the blocks that it could not load. vLLM's output may name more: blocks that check_loads
        # found, and blocks that the failure of another connector took back. Their marks end here, because a later
        # save would else store what lies in them.
        for request_id in getattr(output, "failed_recving", None) or ():
            self.role.load_failed(request_id, [])
        if self._config.check_loads and (invalid := list(output.invalid_block_ids)):
            for request_id in output.finished_recving or ():
                self.role.load_failed(request_id, invalid)
        meta = output.kv_connector_worker_meta
        if isinstance(meta, _Reports):
            for report in meta.reports:
                self.role.on_report(report)
        for request_id in list(output.finished_recving or ()):
            if not self.role.load_ended(request_id):
                output.finished_recving.discard(request_id)
            elif request_id in self._requests:
                self._landed.add(request_id)
            else:  # finished meanwhile: vLLM frees its blocks now
                self._forget_load(request_id)
        tables, self._step_tables = self._step_tables, {}
        if tables and output.invalid_block_ids:
            self._take_back(tables, output.invalid_block_ids)
        unpins = self.role.take_unpins()
        if unpins:
            blocks = self._block_pool.blocks
            self._block_pool.free_blocks(blocks[unpin] for unpin in reversed(unpins))
            self._pins -= Counter(unpins)

    def _take_back(self, tables: dict[str, list[int]], invalid: Collection[int]) -> None:
        """Take back what a step computed on a synchronous load that has failed.

        vLLM leaves such blocks their hashes, for one request is to compute them anew. Until it has, and
        for ever if it ends before, others would find them; and those that have found them in this step
        would go on behind them.
        """
        running = _compat.request_status().RUNNING
        for request_id, table in tables.items():
            first = next((at for at, block in enumerate(table) if block in invalid), None)
            if first is None:
                continue
            self._block_pool.evict_blocks(set(table[first:]))
            request = self._requests.get(request_id)
            if request is not None and request.status == running:
                begin = first * self._chunk_tokens[0]
                request.num_computed_tokens = min(request.num_computed_tokens, begin)

    def _forget_load(self, request_id: str) -> None:
        self._loading.pop(request_id, None)
        self._landed.discard(request_id)

    def finished(self, request: Any) -> None:
        self._requests.pop(request.request_id, None)
        if request.request_id in self._landed:
            self._forget_load(request.request_id)
        if self._events:  # of saves that end later
            self._finished[request.request_id] = request
            if len(self._finished) > _MOST_FINISHED:
                self._finished.pop(next(iter(self._finished)))
        self.role.finished(request.request_id)

    def sources(self, request: Any, tokens: int) -> dict[CacheHitSource, int]:
        tiers = self.role.tiers(request.request_id)
        keys = sum(tiers)
        if tokens == 0 or keys == 0:
            return {CacheHitSource.EXTERNAL_UNSPECIFIED: tokens} if tokens else {}
        split = {
            source: tokens * count // keys
            for source, count in zip(_SOURCES, tiers, strict=True)
            if count
        }
        most = max(split, key=lambda source: split[source])
        split[most] += tokens - sum(split.values())
        return {source: count for source, count in split.items() if count}

    def events(self) -> Iterable[Any]:
        if not self._events:
            return
        for kind, request_id, group, first, hashes, parent, medium in self.role.take_events():
            if kind == "cleared":
                yield AllBlocksCleared()
            elif kind == "removed":
                yield BlockRemoved(
                    block_hashes=[maybe_convert_block_hash(each) for each in hashes],
                    medium=_MEDIA[medium],
                    group_idx=self._group_ids[group],
                )
            else:
                stored = self._stored(request_id, group, first, hashes, parent)
                stored.medium = _MEDIA[medium]
                yield stored

    def _stored(
        self, request_id: str, group: int, first: int, hashes: list[bytes], parent: bytes
    ) -> BlockStored:
        request = self._requests.get(request_id) or self._finished.get(request_id)
        size = self._chunk_tokens[group]
        tokens: list[int] = []
        lora = extra = session = None
        if request is not None:
            tokens = list(request.all_token_ids[first * size : (first + len(hashes)) * size])
            lora = request.lora_request
            session = getattr(request, "session_id", None)
            keys, media = [], 0
            for at in range(first * size, (first + len(hashes)) * size, size):
                key, media = generate_block_hash_extra_keys(request, at, at + size, media)
                keys.append(key)
            extra = _compat.event_extra_keys(keys)
        return _compat.block_stored(
            block_hashes=[maybe_convert_block_hash(each) for each in hashes],
            parent_block_hash=maybe_convert_block_hash(parent) if parent else None,
            token_ids=tokens,
            block_size=size,
            lora_id=lora.adapter_id if lora else None,
            medium=None,
            lora_name=lora.name if lora else None,
            extra_keys=extra,
            group_idx=self._group_ids[group],
            session_id=session,
            **self._event_kinds[group],
        )

    def stats(self) -> KvcoveStats | None:
        news = self.role.take_stats()
        if news is None:
            return None
        self._summary.add(news)
        return KvcoveStats(data=news)

    def close(self, connector: KvcoveConnector) -> None:
        _weights.forget_engine(connector)
        self.stats()
        self._summary.end()
        if self._exchange is not None:
            self._exchange.close()
        self.role.close()
        self._pool.close()
        if self._owner is not None:
            self._owner.close()


class _WorkerSide:
    """The role in one rank's process."""

    def __init__(self, connector: KvcoveConnector, config: Config, vllm_config: VllmConfig) -> None:
        self._vllm_config = vllm_config
        self._kv_cache_config = connector._kv_cache_config
        shape = shape_of(vllm_config, connector._kv_cache_config, config)
        self._prints = config.weight_version_source == "fingerprint"
        self._load_async = config.load_async
        self._checks_loads = config.check_loads
        self._check: LoadCheck | None = None
        self._by_block = _compat.fails_by_block(connector._kv_cache_config)
        rank = rank_of(vllm_config)
        self.role = _native.WorkerRole(
            shape,
            **rank,
            engine=str(connector._kv_transfer_config.engine_id),
            threads=config.threads,
            timeout=config.timeout_ms / 1e3,
            fingerprints=self._prints,
            tier_log=config.wants_tier_log,
            preferred_segment=config.preferred_segment,
            priority=config.priority,
            **config.device,
        )
        self._by_layers = config.load_layers > 1
        if config.wants_tier_log:
            _native.set_log_level("info")
        self._runner: Any = None
        self._adapters = _adapters.Adapters() if vllm_config.lora_config is not None else None
        self._engine = str(connector._kv_transfer_config.engine_id)
        _adapters.offer_reports(self._engine, self, self.report_bytes)
        self._cuda = False
        self._began = False  # this step's plan, before start_load_kv
        self._failed_blocks: set[int] = set()
        self._caches: dict[str, Any] = {}
        self._sleep_observed = False
        self._known = _watch.Known()
        self._check_s = config.weights_check_s
        self._watch: _watch.Watch | None = None
        # With speculation vLLM ends a step (wait_for_save) when the draft model has run, and so on
        # the last pipeline stage only.
        stages = vllm_config.parallel_config.pipeline_parallel_size
        self._ends_steps = vllm_config.speculative_config is not None and rank["pp"] + 1 < stages
        self._finished = True
        self._computes = True  # this step has a forward pass

    def register(self, kv_caches: dict[str, Any]) -> None:
        self._caches = kv_caches
        self._observe_sleep()
        layers = layers_of(kv_caches, self._kv_cache_config, self._vllm_config)
        self.role.register(layers)
        if self._checks_loads:
            self._check = LoadCheck(kv_caches, self._kv_cache_config, self._vllm_config)
        if self._by_layers and (why := why_not_by_layers(self._vllm_config, kv_caches)):
            self._by_layers = False
            _log.warning("kvcove: load_layers: steps wait for their loads as a whole: %s", why)
        first = next(iter(kv_caches.values()), None)
        first = first[0] if isinstance(first, list | tuple) else first
        self._cuda = first is not None and first.device.type == "cuda"
        _log.info(
            "kvcove: rank %d: %d KV tensors, %s bytes a chunk",
            self.role.number,
            len(layers),
            chunks_text(self.role.chunk_bytes()),
        )

    def unregister(self) -> None:
        self.role.unregister()

    def restore(self) -> None:
        if self._caches:
            self.register(self._caches)

    def _observe_sleep(self) -> None:
        """Let go of the KV memory before this process's worker takes it away."""
        worker = None if self._sleep_observed else _weights.worker_of(self._vllm_config)
        if worker is not None:
            self._sleep_observed = True
            _weights.observe_sleep(worker, self._sleep, self.restore)

    def _sleep(self) -> None:
        if self._watch is not None:
            self._watch.pause()  # the weights may go, too
        self.unregister()

    def _weights_changing(self) -> None:
        self._known.moving()
        self.role.weights_changing()

    def _weights_moved(self, value: str) -> None:
        _log.error(
            "kvcove: rank %d: the weights were changed past every call that is observed (now %s). "
            "Nothing is found or stored until all ranks have told their fingerprints, and what was "
            "stored under the version of before is void. Whoever writes weights should tell the "
            "engine: collective_rpc with any call, or `kvcove engine SOCKET weights-changing`",
            self.role.number,
            value,
        )
        self.role.weights_moved()

    def _find_runner(self) -> Any | None:
        if self._runner is None:
            self._runner = _weights.runner_of(self._vllm_config)
            if self._runner is not None and self._prints:
                _digest.observe_model(_weights.model_of(self._runner), self._weights_changing)
        return self._runner

    def _tell_fingerprint(self) -> None:
        value = self._fingerprint()
        self.role.set_fingerprint(value)
        self._known.told(value)
        if self._check_s and self._watch is None:
            self._watch = _watch.Watch(
                self._check_s,
                self._known,
                lambda: self._fingerprint(quiet=True),
                self.role.scheduler_closed,
                self._weights_moved,
            )

    def _fingerprint(self, quiet: bool = False) -> str:
        runner = self._find_runner()
        if runner is None:
            raise RuntimeError(
                "kvcove: the worker's model was not found; set weight_version_source"
            )
        drafts = draft_config_of(self._vllm_config) is not None
        return _weights.fingerprint_of(
            _weights.model_of(runner),
            _weights.draft_of(runner) if drafts else None,
            quiet,
            _experts.layers_of(_weights.model_of(runner), getattr(runner, "eplb_state", None)),
        )

    def _look_at_adapters(self) -> None:
        if self._adapters is None:
            return
        runner = self._find_runner()
        # Without its model nothing is known of them, so nothing that needs them is found or stored.
        if runner is not None:
            self.role.set_adapters(self._adapters.digests(_weights.model_of(runner)))

    def _stream(self) -> int:
        """Return the stream in which the engine computes, as CUDA knows it."""
        if not self._cuda:
            return 0
        import torch

        return int(torch.cuda.current_stream().cuda_stream)

    def bind(self, plan: bytes) -> None:
        """Begin what the plan says, on a GPU, before the forward pass is in the stream.

        Loads run behind what the stream has now. vLLM starts loads that run beside the step when
        the forward pass is launched already: they would wait for it.
        """
        if self._cuda:
            self._begin(plan)

    def _begin(self, plan: bytes) -> None:
        self._look_at_adapters()
        self._finished = False
        self._began = True
        if self._check is not None:
            self._check.fill(plan)
        if self.role.begin(plan, self._stream()):
            self._tell_fingerprint()

    def start(self, plan: bytes, computes: bool) -> None:
        if not self._began:
            self._begin(plan)
        self._began = False
        self._computes = computes
        if not self._load_async and not self._by_layers:
            self.role.wait_for_sync_loads(self._stream())

    def wait_for_layer(self, layer: str) -> None:
        if self._by_layers:
            self.role.wait_for_layer(layer, self._stream())

    def finish(self) -> None:
        self._finished = True
        self._look_at_adapters()  # as this step had them
        # Without a GPU the step is computed; with one its saves wait for the stream, and nobody does.
        self.role.finish_step(None, self._stream())

    def results(self) -> KVConnectorTransferResults:
        # The forward pass has been launched, or there is none: then vLLM 0.31 and older do not end the step, either.
        if not self._finished and (self._ends_steps or not self._computes):
            self.finish()
        ended = self.role.take_ended()
        if self._check is not None:
            ended = self._checked(self._check, ended or ([], [], []))
        if ended is None:
            return KVConnectorTransferResults()
        loaded, failed_blocks, failed = ended
        results = KVConnectorTransferResults(finished_recving=set(loaded))
        if self._by_block:
            self._failed_blocks.update(failed_blocks)
        else:
            results.failed_recving = set(failed)
        return results

    def _checked(self, check: LoadCheck, ended: _Ended) -> _Ended:
        """Return what has ended, with what was not written among what failed."""
        loaded, failed_blocks, failed = ended
        # A step's own loads have ended with it.
        over = loaded if self._load_async else check.under_way()
        left = check.unwritten(over, failed, {*failed_blocks, *self._failed_blocks})
        blocks = [block for each in left.values() for block in each]
        return loaded, [*failed_blocks, *blocks], [*failed, *left]

    def failed_blocks(self) -> set[int]:
        failed, self._failed_blocks = self._failed_blocks, set()
        return failed

    def report_bytes(self) -> bytes | None:
        self._look_at_adapters()
        return self.role.take_report()

    def report(self) -> _Reports | None:
        report = self.report_bytes()
        return None if report is None else _Reports([report])

    def close(self) -> None:
        if self._watch is not None:
            self._watch.close()
        _adapters.forget_rank(self._engine, self)
        self.role.close()


def _tell_as_vllm_tells() -> None:
    """Have the library tell of life cycles where vLLM's log has them: how long each reset took, other weights.

    Call it once the pool is open: the rest is told seldom.
    """
    if "KVCOVE_LOG" not in os.environ and _log.isEnabledFor(logging.INFO):
        _native.set_log_level("info")


class KvcoveConnector(KVConnectorBase_V1, SupportsHMA):
    """vLLM's KV connector to a kvcove pool."""

    _cache_hit_source = CacheHitSource.HOST

    def __init__(
        self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: Any
    ) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        transfer = self._kv_transfer_config
        config = Config.of(transfer.kv_connector_extra_config or {})
        if (
            transfer.kv_load_failure_policy != "recompute"
            and not config.allow_load_failure_policy_fail
        ):
            raise ValueError(
                "kvcove: kv_load_failure_policy is 'fail': a block that is evicted between its "
                "look-up and its load would end a user's request. Set "
                '"kv_load_failure_policy": "recompute" in --kv-transfer-config, or '
                '"allow_load_failure_policy_fail": true in kv_connector_extra_config.'
            )
        _compat.check_model(vllm_config, kv_cache_config)
        _compat.check_policy(vllm_config, kv_cache_config, config, transfer.is_kv_consumer)
        self._scheduler: _SchedulerSide | None = None
        self._worker: _WorkerSide | None = None
        beside = _compat.why_loads_run_beside(vllm_config, kv_cache_config)
        if beside is not None and not config.load_async:
            config = config.loading_beside()
            if role == KVConnectorRole.SCHEDULER:
                _log.warning(
                    "kvcove: load_async: false: %s, and so vLLM would compute on a synchronous load that "
                    "has failed; loads run beside the forward pass, as with true",
                    beside,
                )
        if role == KVConnectorRole.SCHEDULER:
            self._scheduler = _SchedulerSide(self, config, vllm_config)
        else:
            self._worker = _WorkerSide(self, config, vllm_config)
        _tell_as_vllm_tells()

    @classmethod
    def requires_piecewise_for_cudagraph(cls, extra_config: dict[str, Any]) -> bool:
        """Return whether the loads of a step are waited for layer by layer.

        vLLM asks before it loads a model: a mistake is told now, not a minute later.

        Raises
        ------
        ValueError
            As :meth:`Config.of`.
        """
        config = Config.of(extra_config or {})
        # A whole graph would not call wait_for_layer_load.
        return config.load_layers > 1 and not config.load_async

    @classmethod
    def get_required_kvcache_layout(cls, vllm_config: VllmConfig) -> str | None:
        """Return the layout in which a block of all layers is one run of bytes, if it is wanted."""
        return required_layout(vllm_config)

    @property
    def requires_kv_delivery(self) -> bool:
        """Say no: a save that is dropped is a miss later, nothing else."""
        return False

    # ---- worker

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        """Take the engine's KV memory."""
        if self._worker is not None:
            self._worker.register(kv_caches)

    def unregister_kv_caches(self) -> None:
        """Let go of the KV memory (sleep); returns when nothing touches it any more."""
        if self._worker is not None:
            self._worker.unregister()

    def restore_kv_caches(self) -> None:
        """Take it again."""
        if self._worker is not None:
            self._worker.restore()

    @classmethod
    def supports_sleep_mode(cls, kv_transfer_config: Any = None) -> bool:
        """Return whether KV memory may go and come back (vLLM 0.33)."""
        return True

    def bind_connector_metadata(self, connector_metadata: KVConnectorMetadata) -> None:
        """Take the step's plan, and begin its loads where they need not wait for the step."""
        super().bind_connector_metadata(connector_metadata)
        if self._worker is not None and isinstance(connector_metadata, _Plan):
            self._worker.bind(connector_metadata.plan)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """Begin what the step's plan says, if it has not begun."""
        metadata = self._get_connector_metadata()
        assert self._worker is not None and isinstance(metadata, _Plan)
        computes = getattr(forward_context, "attn_metadata", None) is not None
        self._worker.start(metadata.plan, computes)

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Make the stream wait for the parts of this step's loads up to the layer's.

        Without ``load_layers`` loads end before the step, or beside it.
        """
        if self._worker is not None:
            self._worker.wait_for_layer(layer_name)

    def save_kv_layer(
        self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any
    ) -> None:
        """Do nothing: saves begin when the step has ended."""

    def wait_for_save(self) -> None:
        """Queue the step's saves; they read when the device has finished it."""
        if self._worker is not None:
            self._worker.finish()

    def handle_preemptions(self, kv_connector_metadata: Any) -> None:
        """Do nothing: blocks that a save reads are kept by reference; what runs loads nothing."""

    def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:
        """Return the requests whose loads have ended."""
        assert self._worker is not None
        return self._worker.results()

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        """Return the same to vLLM 0.29 and older."""
        results = self.get_transfer_results(finished_req_ids)
        return None, results.finished_recving or None

    def get_block_ids_with_load_errors(self) -> set[int]:
        """Return the blocks that hold nothing."""
        return self._worker.failed_blocks() if self._worker is not None else set()

    def build_connector_worker_meta(self) -> KVConnectorWorkerMetadata | None:
        """Return this rank's report."""
        return self._worker.report() if self._worker is not None else None

    # ---- scheduler

    def bind_gpu_block_pool(self, gpu_block_pool: Any) -> None:
        """Take the pool whose references keep blocks that are being saved."""
        if self._scheduler is not None:
            self._scheduler.bind(gpu_block_pool)

    def get_num_new_matched_tokens(
        self, request: Any, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        """Return how many tokens more the pool has; None: ask again."""
        assert self._scheduler is not None
        return self._scheduler.matched(request, num_computed_tokens)

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """Order the load, now that there are blocks."""
        assert self._scheduler is not None
        self._scheduler.allocated(request, blocks, num_external_tokens)

    def get_external_cache_hit_sources(
        self, request: Any, num_external_tokens: int
    ) -> dict[CacheHitSource, int]:
        """Return which tiers a hit came from."""
        assert self._scheduler is not None
        return self._scheduler.sources(request, num_external_tokens)

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        """Return the step's plan."""
        assert self._scheduler is not None
        return self._scheduler.plan(scheduler_output)

    def update_connector_output(self, connector_output: Any) -> None:
        """Take what the ranks report."""
        assert self._scheduler is not None
        self._scheduler.update(connector_output)

    def request_finished(
        self, request: Any, block_ids: list[int]
    ) -> tuple[bool, dict[str, Any] | None]:
        """Defer nothing: blocks that are being saved are kept by reference."""
        assert self._scheduler is not None
        self._scheduler.finished(request)
        return False, None

    def request_finished_all_groups(
        self, request: Any, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        """As :meth:`request_finished`."""
        return self.request_finished(request, [])

    def has_pending_push_work(self) -> bool:
        """Return whether the engine must go on stepping for saves and loads to end."""
        return self._scheduler is not None and self._scheduler.role.pending()

    def take_events(self) -> Iterable[Any]:
        """Return what became of KV in the pool."""
        return list(self._scheduler.events()) if self._scheduler is not None else ()

    def reset_cache(self) -> bool | None:
        """Reset the pool's KV of this model: true only when it is proven.

        The ranks have nothing to do (None): their sessions follow.
        """
        return self._scheduler.role.reset() if self._scheduler is not None else None

    def own_cache(self) -> OwnCache | None:
        """Return what resets the engine's own cache beside saves and loads."""
        return self._scheduler.own_cache if self._scheduler is not None else None

    # ---- both

    def get_kv_connector_stats(self) -> KvcoveStats | None:
        """Return what was counted since the last call; the scheduler has the ranks' counts."""
        return self._scheduler.stats() if self._scheduler is not None else None

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> KvcoveStats:
        """Return stats, from what came over a wire if given."""
        return KvcoveStats(data=data or {})

    @classmethod
    def build_prom_metrics(
        cls, vllm_config: Any, metric_types: Any, labelnames: Any, per_engine_labelvalues: Any
    ) -> KvcovePromMetrics:
        """Return what exports them."""
        return KvcovePromMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)

    def shutdown(self) -> None:
        """End: what runs ends by its timeouts, what is queued is dropped."""
        if self._worker is not None:
            self._worker.close()
            self._worker = None
        if self._scheduler is not None:
            self._scheduler.close(self)
            self._scheduler = None
