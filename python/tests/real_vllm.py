# SPDX-License-Identifier: Apache-2.0
"""An engine of vLLM's own planner, scheduler and KV managers, with kvcove's connector and no model.

Its ranks are in this process. Of a layer's KV each has its heads, and with decode context parallelism its tokens.

Its kernel writes for each token a number that depends on all tokens up to it, on the layer and on the
weights. So a block that holds something else than its hash says is seen at once, and so is a token that
is computed on such a block. What vLLM's worker does with its tensors (allocation, views, copies of
blocks, zeroing, the connector's calls and their order) is done here in the same way.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import random
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from kvcove.vllm import _compat, _connector
from kvcove.vllm._compat import one_spec_of
from vllm.config import KVEventsConfig, KVTransferConfig, VllmConfig
from vllm.distributed.kv_transfer.kv_connector.utils import KVOutputAggregator
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
from vllm.engine.arg_utils import EngineArgs
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core import kv_cache_utils
from vllm.v1.core.kv_cache_utils import get_block_hash, get_group_id
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.core.single_type_kv_cache_manager import register_all_kvcache_specs
from vllm.v1.engine.core import EngineCore
from vllm.v1.kv_cache_interface import ChunkedLocalAttentionSpec, MambaSpec, SlidingWindowSpec
from vllm.v1.outputs import DraftTokenIds, KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager
from vllm.v1.worker.utils import allocate_kv_cache

import kvcove

POISON = np.int64(0x5BADF00D5BADF00D)
VOCABULARY = 1 << 16


class Fault(AssertionError):
    """What was found that must not be."""


def make_model(directory: Path, **more: Any) -> Path:
    """Write the configuration of a model that nobody loads."""
    config: dict[str, Any] = {
        **{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": VOCABULARY},
        **{"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2},
        **{"num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 4096},
        **more,
    }
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config))
    return directory


def configuration(
    model: Path, pool: str, engine: str, tokens: int, events: Any = None, **extra: Any
) -> VllmConfig:
    """Return an engine's configuration, as `vllm serve` makes it."""
    transfer = KVTransferConfig(
        kv_connector="KvcoveConnector",
        kv_connector_module_path="kvcove.vllm",
        kv_role="kv_both",
        kv_load_failure_policy="recompute",
        engine_id=engine,
        kv_connector_extra_config={
            **{"pool": pool, "load_when": "always", "lookup_budget_ms": 2000},
            **{"timeout_ms": 15000, "check_loads": True, **extra},
        },
    )
    return EngineArgs(
        model=str(model),
        skip_tokenizer_init=True,
        dtype="float32",
        max_model_len=tokens,
        enforce_eager=True,
        enable_prefix_caching=True,
        async_scheduling=False,
        kv_transfer_config=transfer,
        kv_events_config=events or KVEventsConfig(enable_kv_cache_events=False),
    ).create_engine_config()


def drafting(tokens: int, modules: bool) -> Any:
    """Return a configuration of speculation with a head that has KV of its own: EAGLE, or several modules."""
    return SimpleNamespace(
        method="mtp" if modules else "eagle",
        num_speculative_tokens=tokens,
        num_speculative_tokens_per_batch_size=None,
        max_num_new_slots_for_drafting=0,
        draft_model_config=None,
        target_model_config=None,
        use_eagle=lambda: True,
        use_eagle_block_drop=lambda: True,
        use_multi_module_mtp=lambda: modules,
        use_dflash=lambda: False,
        use_dspark=lambda: False,
        uses_draft_model=lambda: False,
    )


def _mixed(number: int, by: int) -> int:
    return ((number ^ (number >> 29)) * (0xBF58476D1CE4E5B9 + 2 * by) + by) & (2**64 - 1)


def _next_token(number: int) -> int:
    return (number >> 33) % VOCABULARY


def _sampled(prefix: np.ndarray, known: int, guesses: list[int]) -> list[int]:
    """Return the tokens that a step brings: as many guesses as are right, and one more."""
    if len(prefix) < known:
        return []
    found = [_next_token(int(prefix[known - 1]))]
    for number, guess in zip(prefix[known:], guesses, strict=False):
        if guess != found[-1]:
            break
        found.append(_next_token(int(number)))
    return found


@dataclasses.dataclass(frozen=True)
class Turns:
    """Which tokens of a block a rank has."""

    rank: int = 0
    ranks: int = 1
    tokens: int = 1  # that a rank keeps before the next one's turn


class Layer:
    """One rank's KV memory of one layer, token by token."""

    def __init__(
        self, name: str, number: int, group: int, spec: Any, tensor: torch.Tensor, turns: Turns
    ) -> None:
        self.name = name
        self.group = group
        self.spec = spec
        self.block_size = int(spec.block_size) * turns.ranks  # tokens of a block, in all ranks
        self.state = isinstance(spec, MambaSpec)
        self._turns = turns
        self._number = number
        # (block, head, token, words); a state has one token.
        self._words = tensor.view(torch.int64).numpy()

    def expected(self, prefix: np.ndarray, weights: int) -> np.ndarray:
        """Return what tokens have here, of the numbers of their prefixes."""
        with np.errstate(over="ignore"):
            return (prefix * np.uint64(2 * self._number + 3) + np.uint64(weights)).view(np.int64)

    def first_needed(self, tokens: int) -> int:
        """Return the first token that the next one after so many attends to."""
        if isinstance(self.spec, SlidingWindowSpec):
            return max(0, tokens - int(self.spec.sliding_window) + 1)
        if isinstance(self.spec, ChunkedLocalAttentionSpec):
            return tokens // self.spec.attention_chunk_size * self.spec.attention_chunk_size
        return 0

    def own(self, at: np.ndarray) -> np.ndarray:
        """Return the tokens that this rank has."""
        turns = self._turns
        return at[at % self.block_size // turns.tokens % turns.ranks == turns.rank]

    def _in_block(self, at: np.ndarray) -> np.ndarray:
        """Return where the rank's own tokens lie in their blocks."""
        turns, inside = self._turns, at % self.block_size
        return inside // (turns.tokens * turns.ranks) * turns.tokens + inside % turns.tokens

    def write(self, table: list[int], first: int, values: np.ndarray) -> None:
        if self.state:
            last = first + len(values) - 1
            self._words[table[last // self.block_size]] = values[-1]
            return
        at = self.own(np.arange(first, first + len(values)))
        blocks = np.asarray(table)[at // self.block_size]
        if (blocks == 0).any():
            raise Fault(f"{self.name}: the engine computes into its null block")
        self._words[blocks, :, self._in_block(at), :] = values[at - first][:, None, None]

    def read(self, table: list[int], at: np.ndarray) -> np.ndarray:
        """Return (tokens, elements): what lies there."""
        if self.state:
            blocks = np.asarray(table)[at // self.block_size]
            return self._words[blocks].reshape(len(at), -1)
        blocks = np.asarray(table)[at // self.block_size]
        return self._words[blocks, :, self._in_block(at), :].reshape(len(at), -1)

    def read_block(self, block: int, at: np.ndarray) -> np.ndarray:
        """Return (tokens, elements) of tokens in one block; of a state its one."""
        words = self._words[block]
        if self.state:
            return words.reshape(1, -1)
        return words[:, self._in_block(at), :].swapaxes(0, 1).reshape(len(at), -1)

    def fill(self, block: int, value: int | np.int64) -> None:
        self._words[block] = value

    def copy(self, source: int, target: int) -> None:
        self._words[target] = self._words[source]


class Loading:
    """Of a load under way: the blocks that were allocated for the hit, by group and chunk."""

    def __init__(self, weights: int, resets: int, tokens: int) -> None:
        self.weights = weights
        self.resets = resets
        self.tokens = tokens
        self.blocks: list[tuple[int, int, int]] = []


class Engine:
    """One engine: ``add``, ``step`` until ``idle``, ``check`` and ``close``.

    Parameters
    ----------
    config : VllmConfig
        From :func:`configuration`.
    specs : dict of str to KVCacheSpec
        The model's layers.
    blocks : int
        Of the KV cache.
    layout : str
        Of KV memory, by vLLM's name.
    ranks, contexts : int
        Of tensor parallelism, and of them those that share a block's tokens (DCP).
    heads : dict of str to int
        The KV heads of layers in all ranks, where not each rank has its own.
    overlapping : bool
        Steps are scheduled as on GPUs, where vLLM does so unless told otherwise: the next one before the
        scheduler hears of the last. On CPUs real engines never do.
    """

    def __init__(
        self,
        config: VllmConfig,
        specs: dict[str, Any],
        blocks: int,
        layout: str,
        seed: int = 0,
        overlapping: bool = False,
        ranks: int = 1,
        contexts: int = 1,
        heads: dict[str, int] | None = None,
    ) -> None:
        self.random = random.Random(seed)
        config.parallel_config.tensor_parallel_size = ranks
        config.parallel_config.decode_context_parallel_size = contexts
        self.config = config
        self.weights = 1
        self.resets = 0
        # The own cache may hold KV of older weights: nobody has emptied it since they changed.
        self.mixed = False
        self.version = config.kv_transfer_config.kv_connector_extra_config["weight_version_source"]
        config.scheduler_config.async_scheduling = overlapping
        register_all_kvcache_specs(config)
        config.cache_config.num_gpu_blocks_override = blocks
        config.cache_config.kv_cache_layout = layout
        plan = _compat.kv_cache_configs_of(config, [dict(specs)], [1 << 40])[0]
        plan.kv_cache_layout = layout
        config.cache_config.num_gpu_blocks = plan.num_blocks
        config.cache_config.block_size = min(
            group.kv_cache_spec.block_size for group in plan.kv_cache_groups
        )
        self.block_tokens, self.hash_tokens = kv_cache_utils.resolve_kv_cache_block_sizes(
            plan, config
        )
        plan.hash_block_size = self.hash_tokens
        self.plan = plan
        self.scheduler = (AsyncScheduler if overlapping else Scheduler)(
            vllm_config=config,
            kv_cache_config=plan,
            structured_output_manager=StructuredOutputManager(config),
            block_size=self.block_tokens,
            hash_block_size=self.hash_tokens,
            log_stats=True,
        )
        self.connector: Any = self.scheduler.connector
        self.workers: list[Any] = []
        self.layers: list[Layer] = []  # of all ranks
        for rank in range(ranks):
            self._make_rank(rank, heads or {})
        self.worker = self.workers[0]
        self._aggregator = KVOutputAggregator(ranks)
        hashing = get_hash_fn_by_name(config.cache_config.prefix_caching_hash_algo)
        kv_cache_utils.init_none_hash(hashing)
        self._hasher = kv_cache_utils.get_request_block_hasher(self.hash_tokens, hashing)
        self.core = EngineCore.__new__(EngineCore)
        self.core.scheduler = self.scheduler
        self._prefixes: dict[str, list[int]] = {}
        self._known: dict[bytes, tuple[int, list[int]]] = {}
        self._loading: dict[str, Loading] = {}
        self._held: list[Any] = []  # results of the worker that are told later
        self._most_under_way = 2 if overlapping else 1
        self._under_way: list[tuple[Any, ModelRunnerOutput]] = []
        self._worker_tokens: dict[
            str, list[int]
        ] = {}  # with those that the scheduler has not heard of
        self.published: list[Any] = []
        self.counts = dict.fromkeys(
            ("steps", "loads", "failed", "computed", "loaded", "preempted", "copies"), 0
        )
        self._watch_allocations()
        if self.version == "engine":
            self.connector._scheduler.role.set_version(str(self.weights))

    def _make_rank(self, rank: int, heads: dict[str, int]) -> None:
        """Make a rank's connector and its KV memory."""
        parallel, plan = self.config.parallel_config, copy.deepcopy(self.plan)
        # vLLM's groups of ranks are not made for those of this process.
        _connector.rank_of = lambda config: {"tp": rank, "pp": 0, "pcp": 0}
        worker = type(self.connector)(self.config, KVConnectorRole.WORKER, plan)
        layout = self.config.cache_config.get_resolved_kv_cache_layout()
        caches = allocate_kv_cache(plan, torch.device("cpu"), layout)
        worker.register_kv_caches(caches)
        self.workers.append(worker)
        names = [
            (group, name)
            for group, each in enumerate(plan.kv_cache_groups)
            for name in each.layer_names
        ]
        ranks, contexts = parallel.tensor_parallel_size, parallel.decode_context_parallel_size
        for number, (group, name) in enumerate(names):
            spec = _spec_of(plan.kv_cache_groups[group], name)
            # Ranks with equal heads have equal bytes, and all others have others.
            shard = rank // (ranks // min(heads.get(name, ranks), ranks))
            turns = Turns()
            if contexts > 1 and getattr(spec, "dcp_sharded", True):
                turns = Turns(rank % contexts, contexts, parallel.cp_kv_cache_interleave_size)
            self.layers.append(
                Layer(f"{name}@{rank}", number * ranks + shard, group, spec, caches[name], turns)
            )

    # ---- requests

    def add(self, name: str, tokens: list[int], most: int, salt: str | None = None) -> Request:
        request = Request(
            request_id=name,
            prompt_token_ids=list(tokens),
            sampling_params=SamplingParams(max_tokens=most, ignore_eos=True, temperature=0.0),
            pooling_params=None,
            cache_salt=salt,
            block_hasher=self._hasher,
        )
        self._prefixes.pop(name, None)
        self.scheduler.add_request(request)
        return request

    def abort(self, name: str) -> None:
        self.scheduler.finish_requests(name, RequestStatus.FINISHED_ABORTED)

    @property
    def names(self) -> list[str]:
        """The requests that have not ended."""
        requests = self.scheduler.requests.values()
        return [each.request_id for each in requests if not each.is_finished()]

    def prefix(self, name: str, tokens: Any, count: int) -> np.ndarray:
        """Return a number for each of a request's first tokens, that depends on all before it."""
        numbers = self._prefixes.setdefault(name, [])
        for at in range(len(numbers), count):
            numbers.append(_mixed(numbers[-1] if at else 0x1234567, int(tokens[at])))
        return np.asarray(numbers[:count], dtype=np.uint64)

    # ---- what trainers do

    def reset(self, running: bool, connector: bool) -> bool:
        try:
            done = bool(self.core.reset_prefix_cache(running, connector))
        except RuntimeError as error:
            raise Fault(f"the reset raises: {error}") from error
        if connector:
            self.resets += 1
        if done and running:
            self.mixed = False
        return done

    def change_weights(self) -> None:
        role = self.connector._scheduler.role
        role.weights_changing()
        self.weights += 1
        self.mixed = True
        role.weights_changed()
        if self.version == "engine":
            role.set_version(str(self.weights))

    # ---- steps

    def step(self, hold: float = 0.0) -> None:
        """Make one step; with the probability ``hold`` ended loads are told with a later one."""
        output = self.scheduler.schedule()
        self._under_way.append((output, self._execute(output, hold)))
        self.counts["steps"] += 1
        most = self._most_under_way if output.total_num_scheduled_tokens else 1
        while len(self._under_way) >= most:
            output, ran = self._under_way.pop(0)
            self.scheduler.update_from_output(output, ran)
            if self.config.speculative_config is not None:
                self._guess(ran.req_ids)
            self._look_at_loads(ran.kv_connector_output, output.has_sync_kv_loads)
            self.check()

    def _execute(self, output: Any, hold: float) -> ModelRunnerOutput:
        context = SimpleNamespace(attn_metadata=output.num_scheduled_tokens or None)
        for worker in self.workers:
            worker.bind_connector_metadata(output.kv_connector_metadata)
        for block in output.new_block_ids_to_zero or ():
            for layer in self.layers:
                if not layer.state:
                    layer.fill(block, 0)
        for each in output.kv_cache_block_copies or ():
            self.counts["copies"] += 1
            for layer in self.layers:
                layer.copy(each.src_block_id, each.dst_block_id)
        if output.has_sync_kv_loads:
            for worker in self.workers:
                worker.start_load_kv(context)
        sampled, wrong = self._forward(output)
        if not output.has_sync_kv_loads:
            for worker in self.workers:
                worker.start_load_kv(context)
        names = list(output.num_scheduled_tokens)
        ran = ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: at for at, name in enumerate(names)},
            sampled_token_ids=[sampled[name] for name in names],
        )
        told = self._told_by_all(ran, output)
        for name, text in wrong:
            tables = self.scheduler.kv_cache_manager.get_block_ids(name)
            # vLLM lets a step that its load failed for be computed again.
            if not any(told.invalid_block_ids.intersection(table) for table in tables):
                raise Fault(text)
        self._hold_back(told, output.has_sync_kv_loads, hold)
        return ran

    def _told_by_all(self, ran: ModelRunnerOutput, output: Any) -> KVConnectorOutput:
        """Return what the ranks tell of their loads and saves, as vLLM's executors put it together."""
        told = []
        for worker in self.workers:
            worker.wait_for_save()
            results = worker.get_transfer_results(output.finished_req_ids)
            of_rank = KVConnectorOutput()
            of_rank.finished_recving = results.finished_recving
            of_rank.failed_recving = results.failed_recving
            of_rank.invalid_block_ids = worker.get_block_ids_with_load_errors()
            of_rank.kv_connector_stats = worker.get_kv_connector_stats()
            of_rank.kv_connector_worker_meta = worker.build_connector_worker_meta()
            worker.clear_connector_metadata()
            told.append(dataclasses.replace(ran, kv_connector_output=of_rank))
        ran.kv_connector_output = self._aggregator.aggregate(told).kv_connector_output
        return ran.kv_connector_output

    def _hold_back(self, told: KVConnectorOutput, sync: bool, hold: float) -> None:
        """Keep ended loads, and tell of them with a later step."""
        if told.finished_recving or told.failed_recving or told.invalid_block_ids:
            self._held.append(
                (
                    set(told.finished_recving or ()),
                    set(told.failed_recving or ()),
                    set(told.invalid_block_ids),
                )
            )
        told.finished_recving, told.failed_recving = set(), set()
        told.invalid_block_ids = set()
        if self._held and (sync or self.random.random() >= hold):
            for finished, failed, invalid in self._held:
                told.finished_recving |= finished
                told.failed_recving |= failed
                told.invalid_block_ids |= invalid
            self._held.clear()

    def _forward(self, output: Any) -> tuple[dict[str, list[int]], list[tuple[str, str]]]:
        begun = {new.req_id: new.num_computed_tokens for new in output.scheduled_new_reqs}
        cached = output.scheduled_cached_reqs
        begun.update(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        self.counts["preempted"] += len(cached.resumed_req_ids)
        anew = {new.req_id for new in output.scheduled_new_reqs} | cached.resumed_req_ids
        sampled: dict[str, list[int]] = {}
        parts = []
        for name, count in output.num_scheduled_tokens.items():
            request = self.scheduler.requests[name]
            if self._most_under_way == 1 or name in anew:
                self._worker_tokens[name] = list(request.all_token_ids)
            first, tokens = begun[name], self._worker_tokens[name]
            guesses = output.scheduled_spec_decode_tokens.get(name, [])
            prefix = self.prefix(name, tokens, min(first + count, len(tokens)))
            numbers = [int(number) for number in prefix]
            for guess in guesses[: first + count - len(tokens)]:
                numbers.append(_mixed(numbers[-1], guess))
            prefix = np.asarray(numbers, dtype=np.uint64)
            self._learn(request)
            parts.append((name, first, prefix))
            self.counts["computed"] += count
            sampled[name] = _sampled(prefix, len(tokens), guesses)
            tokens.extend(sampled[name])
        wrong: list[tuple[str, str]] = []
        spoiled: set[int] = set()  # parts: each layer computes on what the layer before has made
        for layer in self.layers:
            self._compute(layer, parts, spoiled, wrong)
        return sampled, wrong

    def _compute(
        self,
        layer: Layer,
        parts: list[tuple[str, int, np.ndarray]],
        spoiled: set[int],
        wrong: list[tuple[str, str]],
    ) -> None:
        tables = [self.table(name, layer) for name, _, _ in parts]

        def write(at: int) -> None:
            _, first, prefix = parts[at]
            mask = POISON if at in spoiled else np.int64(0)
            layer.write(tables[at], first, layer.expected(prefix[first:], self.weights) ^ mask)

        def look() -> set[int]:
            found = set()
            for at in range(len(parts)):
                text = None
                if at not in spoiled:
                    text = self._wrong_before(layer, tables[at], *parts[at])
                if text is not None:
                    found.add(at)
                    if not self.mixed:
                        wrong.append((parts[at][0], text))
            spoiled.update(found)
            return found

        if layer.state:  # it takes the place of the one before
            look()
            for at in range(len(parts)):
                write(at)
            return
        # As in a model, all of a step's tokens are written before any attends to them.
        for at in range(len(parts)):
            write(at)
        while found := look():
            for at in found:
                write(at)

    def _guess(self, names: list[str]) -> None:
        """Give the requests tokens to try with their next step, right ones and others."""
        most = self.config.speculative_config.num_speculative_tokens
        running = [name for name in names if name in self.scheduler.requests]
        guesses = []
        for name in running:
            request = self.scheduler.requests[name]
            number = int(self.prefix(name, request.all_token_ids, request.num_tokens)[-1])
            guesses.append([])
            for _ in range(most):
                right = self.random.random() < 0.7
                guesses[-1].append(_next_token(number) if right else 7)
                number = _mixed(number, guesses[-1][-1])
        self.scheduler.update_draft_token_ids(DraftTokenIds(running, guesses))

    def table(self, name: str, layer: Layer) -> list[int]:
        return list(self.scheduler.kv_cache_manager.get_block_ids(name)[layer.group])

    def _wrong_before(
        self, layer: Layer, table: list[int], name: str, first: int, prefix: np.ndarray
    ) -> str | None:
        """Return what is wrong with what a part of a step is computed on."""
        if first == 0:
            return None
        at = np.asarray([first - 1])
        if not layer.state:
            at = layer.own(np.arange(layer.first_needed(first), first))
        if len(at) == 0:
            return None
        found = layer.read(table, at)
        right = (found == layer.expected(prefix[at], self.weights)[:, None]).all(axis=1)
        if right.all():
            return None
        bad = int(at[~right][0])
        return (
            f"{name} is computed from token {first} on a wrong one: {bad} of {layer.name} (group "
            f"{layer.group}) in block {table[bad // layer.block_size]}: {self._what(found[~right])}"
        )

    def _what(self, found: np.ndarray) -> str:
        values = {int(value) for value in found.reshape(-1)[:64]}
        poisoned = "never written" if int(POISON) in values else ""
        return f"{poisoned} {[hex(value & (2**64 - 1)) for value in sorted(values)[:4]]}"

    # ---- what must be so

    def _learn(self, request: Request) -> None:
        name = request.request_id
        for at, each in enumerate(request.block_hashes):
            tokens = (at + 1) * self.hash_tokens
            if each not in self._known:
                self.prefix(name, request.all_token_ids, tokens)
                self._known[each] = (tokens, self._prefixes[name])

    def check(self) -> None:
        """Look at every block that has a hash in the engine's own cache."""
        for request in self.scheduler.requests.values():
            self._learn(request)
        if self.mixed:
            return
        awaited = self._to_be_computed()
        for key, block in self._hashed():
            group = get_group_id(key)
            if block in awaited:
                continue
            tokens, numbers = self._known[get_block_hash(key)]
            for layer in self.layers:
                if layer.group == group:
                    self._check_block(layer, block, tokens, numbers)

    def _check_block(self, layer: Layer, block: int, tokens: int, numbers: list[int]) -> None:
        first = (tokens - 1) // layer.block_size * layer.block_size
        at = np.asarray([tokens - 1]) if layer.state else layer.own(np.arange(first, tokens))
        if len(at) == 0:
            return
        prefix = np.asarray(numbers[:tokens], dtype=np.uint64)[at]
        found = layer.read_block(block, at)
        right = found == layer.expected(prefix, self.weights)[:, None]
        if not right.all():
            raise Fault(
                f"block {block} of {layer.name} (group {layer.group}) has the hash of the first "
                f"{tokens} tokens, and something else in it: {self._what(found[~right])}"
            )

    def _hashed(self) -> Iterator[tuple[bytes, int]]:
        known = self.scheduler.kv_cache_manager.block_pool.cached_block_hash_to_block._cache
        for key, blocks in known.items():
            for block in blocks.values() if isinstance(blocks, dict) else [blocks]:
                yield key, block.block_id

    def _to_be_computed(self) -> set[int]:
        """Return blocks that have a hash already, and whose request vLLM lets compute them anew.

        So it does where a load that belongs to a step has failed.
        """
        awaited: set[int] = set()
        if self.config.kv_transfer_config.kv_connector_extra_config.get("load_async", True):
            return awaited
        for request in self.scheduler.running:
            (table,) = self.scheduler.kv_cache_manager.get_block_ids(request.request_id)
            awaited.update(table[request.num_computed_tokens // self.block_tokens :])
        return awaited

    def _watch_allocations(self) -> None:
        allocated = self.connector.update_state_after_alloc

        def watched(request: Any, blocks: Any, external: int) -> None:
            if external > 0:
                self._expect_load(request, blocks.get_block_ids(), external)
            allocated(request, blocks, external)

        self.connector.update_state_after_alloc = watched
        matched = self.connector.get_num_new_matched_tokens

        def asked(request: Any, computed: int) -> Any:
            self._local = computed
            return matched(request, computed)

        self.connector.get_num_new_matched_tokens = asked

    def _expect_load(self, request: Any, tables: Any, external: int) -> None:
        local, end = self._local, self._local + external
        load = Loading(self.weights, self.resets, end)
        self._learn(request)
        self.prefix(request.request_id, request.all_token_ids, end)
        for layer in self.layers:
            size, table = layer.block_size, tables[layer.group]
            for chunk in range(local // size, min(-(-end // size), len(table))):
                if table[chunk] != 0:
                    layer.fill(table[chunk], POISON)
                    load.blocks.append((layer.group, chunk, table[chunk]))
        self._loading[request.request_id] = load
        self.counts["loads"] += 1
        self.counts["loaded"] += external

    def _look_at_loads(self, told: Any, sync: bool) -> None:
        """Look at the blocks of each load that has ended, and of which nobody said that it failed."""
        for name in list(self._loading) if sync else told.finished_recving or ():
            load = self._loading.pop(name, None)
            request = self.scheduler.requests.get(name)
            if load is None or request is None or request.is_finished():
                continue
            if name in self.scheduler.failed_recving_kv_req_ids:
                self.counts["failed"] += 1
            if name in (told.failed_recving or ()):
                continue
            if load.weights != self.weights or load.resets != self.resets:
                if name not in self.scheduler.failed_recving_kv_req_ids:
                    raise Fault(f"{name}: a load of before a reset or an update counts")
                continue
            numbers = self._prefixes[name]
            for group, chunk, block in load.blocks:
                if block in told.invalid_block_ids:
                    continue
                for layer in self.layers:
                    if layer.group == group:
                        tokens = min((chunk + 1) * layer.block_size, load.tokens)
                        self._check_block(layer, block, tokens, numbers)

    # ---- the end

    def idle(self) -> bool:
        return not (self.scheduler.has_requests() or self._held or self._under_way)

    def drain(self, seconds: float = 60.0) -> None:
        """Step until nothing is left to do, and look whether anything leaked."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if self.idle():
                break
            computed = self.counts["computed"]
            self.step()
            if self.counts["computed"] == computed:
                time.sleep(0.001)  # movers want the processor, too
        else:
            states = {name: each.status.name for name, each in self.scheduler.requests.items()}
            free = self.scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
            raise Fault(f"the engine does not come to an end: {free} blocks are free: {states}")
        side = self.connector._scheduler
        stats = side.role.stats()
        pool = self.scheduler.kv_cache_manager.block_pool
        left = {
            "requests": len(self.scheduler.requests),
            "pins": sum(side._pins.values()),
            "loads": len(side._loading) + len(side._landed),
            "pinned": stats["pinned_blocks"],
            "blocks": pool.num_gpu_blocks - 1 - pool.get_num_free_blocks(),
            "known requests": len(side._requests),
        }
        if any(left.values()):
            raise Fault(f"something is left: {left}")

    def close(self) -> None:
        for worker in self.workers:
            worker.shutdown()
        self.scheduler.shutdown()

    def forget(self, keys: list[str]) -> None:
        """Take values out of the pool, as an eviction would."""
        side = self.connector._scheduler
        with side._pool.session(side.shape.namespace, assume_weights=True) as session:
            version = side.role.version if self.version == "engine" else ""
            if len(self.workers) > 1:
                keys = self._of_some_ranks(keys, session.stored(version=version, timeout=30))
            session.remove([key.encode() for key in keys], version=version, timeout=30)

    def _of_some_ranks(self, keys: list[str], stored: list[Any]) -> list[str]:
        """Return the keys of the same chunks as one rank or several have them; ``keys`` are of a single one."""
        wanted = {(key.partition(".")[0], key.partition("@")[2]) for key in keys}
        names = [each.key.decode() for each in stored]
        there = [
            name
            for name in sorted(names)
            if (name.partition(".")[0], name.partition("@")[2]) in wanted
        ]
        return [name for name in there if self.random.random() < 0.5] or there[:1]


def _spec_of(group: Any, name: str) -> Any:
    inner = getattr(group.kv_cache_spec, "kv_cache_specs", None)
    return inner[name] if isinstance(inner, dict) and inner else one_spec_of(group.kv_cache_spec)


__all__ = ["Engine", "Fault", "configuration", "kvcove", "make_model"]
