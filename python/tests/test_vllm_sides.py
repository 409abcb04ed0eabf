# SPDX-License-Identifier: Apache-2.0
"""The adapter's two sides, on fakes of vLLM."""

from __future__ import annotations

import contextlib
import gc
import logging
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import wait_until
from fake_vllm import installed, module_of

import kvcove
from kvcove import engines


class Worker:
    """A rank's role that keeps what it was told."""

    number = 0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.told: list[str] = []

    def chunk_bytes(self) -> list[int]:
        return [4096]

    def __getattr__(self, name: str) -> Any:
        def call(*args: Any) -> Any:
            self.told.append(name)

        return call


@pytest.fixture
def connector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    with installed(monkeypatch):
        module = module_of("_connector")
        monkeypatch.setattr(module._native, "WorkerRole", Worker)
        monkeypatch.setattr(module, "shape_of", lambda *args: None)
        monkeypatch.setattr(module, "layers_of", lambda *args: [])
        yield module


def cache_of(module: Any, *specs: str) -> Any:
    """A KV cache with a group for each kind of layers."""
    return SimpleNamespace(
        num_blocks=8,
        kv_cache_groups=[
            SimpleNamespace(kv_cache_spec=getattr(module._compat, spec)()) for spec in specs
        ],
    )


def side(module: Any, monkeypatch: pytest.MonkeyPatch, stage: int, speculation: Any) -> Any:
    monkeypatch.setattr(module, "rank_of", lambda config: {"tp": 0, "pp": stage, "pcp": 0})
    config = SimpleNamespace(
        parallel_config=SimpleNamespace(pipeline_parallel_size=2),
        cache_config=SimpleNamespace(),
        speculative_config=speculation,
        lora_config=None,
    )
    part = SimpleNamespace(
        _kv_cache_config=cache_of(module, "FullAttentionSpec"),
        _kv_transfer_config=SimpleNamespace(engine_id="e"),
    )
    return module._WorkerSide(part, module.Config(), config)


@pytest.mark.parametrize(
    ("stage", "speculation", "ends"),
    [(0, object(), True), (1, object(), False), (0, None, False)],
)
def test_a_step_ends_on_every_pipeline_stage(
    connector: Any,
    monkeypatch: pytest.MonkeyPatch,
    stage: int,
    speculation: Any,
    ends: bool,
) -> None:
    worker = side(connector, monkeypatch, stage, speculation)
    worker.start(b"plan", True)
    worker.results()  # where the draft model runs, vLLM has not called wait_for_save yet
    assert worker.role.told.count("finish_step") == int(ends)
    worker.finish()
    worker.results()
    worker.results()
    assert worker.role.told.count("finish_step") == 1 + int(ends), "once a step"


@pytest.mark.parametrize("why", [None, "layer 1 reads at once"])
def test_a_step_waits_for_its_loads_by_layers_or_as_a_whole(
    connector: Any, monkeypatch: pytest.MonkeyPatch, why: str | None
) -> None:
    monkeypatch.setattr(connector, "why_not_by_layers", lambda config, layers: why)
    config = connector.Config.of({"load_async": False, "load_layers": 4})
    monkeypatch.setattr(connector, "Config", lambda: config)
    monkeypatch.setattr(connector._weights, "worker_of", lambda config: None)
    worker = side(connector, monkeypatch, 0, None)
    worker.register({"1": SimpleNamespace(device=SimpleNamespace(type="cpu"))})
    worker.start(b"plan", True)
    worker.wait_for_layer("1")
    waits = [call for call in worker.role.told if call.startswith("wait")]
    assert waits == (["wait_for_layer"] if why is None else ["wait_for_sync_loads"])


@pytest.mark.parametrize(
    ("specs", "overlaps", "stages", "why"),
    [
        (["FullAttentionSpec"], False, 1, ""),
        (["FullAttentionSpec", "SlidingWindowSpec"], False, 1, "windows or states (2 groups"),
        (["SlidingWindowSpec"], False, 1, "windows or states (1 groups"),
        (["MambaSpec"], False, 1, "windows or states (1 groups"),
        (["FullAttentionSpec"], True, 1, "--no-async-scheduling"),
        (["FullAttentionSpec"], False, 2, "2 pipeline stages"),
    ],
)
def test_loads_run_beside_steps_where_vllm_would_compute_on_one_that_failed(
    connector: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    specs: list[str],
    overlaps: bool,
    stages: int,
    why: str,
) -> None:
    transfer = SimpleNamespace(
        kv_connector_extra_config={"load_async": False, "load_layers": 4},
        kv_load_failure_policy="recompute",
        is_kv_consumer=True,
    )

    def init(self: Any, *args: Any) -> None:
        self._kv_transfer_config = transfer

    monkeypatch.setattr(connector.KVConnectorBase_V1, "__init__", init)
    for side in ("_SchedulerSide", "_WorkerSide"):
        monkeypatch.setattr(connector, side, lambda self, config, vllm: config)
    roles = connector.KVConnectorRole
    roles.SCHEDULER, roles.WORKER = "scheduler", "worker"
    cache = cache_of(connector, *specs)
    vllm = SimpleNamespace(
        scheduler_config=SimpleNamespace(async_scheduling=overlaps, policy="fcfs"),
        parallel_config=SimpleNamespace(pipeline_parallel_size=stages),
        cache_config=SimpleNamespace(),
    )
    made = [
        connector.KvcoveConnector(vllm, role, cache) for role in (roles.WORKER, roles.SCHEDULER)
    ]
    for config in (made[0]._worker, made[1]._scheduler):
        assert (config.load_async, config.load_layers) == ((True, 1) if why else (False, 4))
    lines = [line for line in caplog.messages if "load_async" in line]
    assert len(lines) == bool(why), "told once, by the scheduler's side"
    assert all(why in line for line in lines)


@pytest.mark.parametrize(
    ("extra", "loads", "refused"),
    [
        ({}, True, True),
        ({"load_async": False}, True, False),
        ({"lookup": False}, True, False),
        ({}, False, False),  # kv_producer
    ],
)
def test_an_engine_that_loads_nothing_may_have_any_policy(
    connector: Any,
    monkeypatch: pytest.MonkeyPatch,
    extra: dict[str, Any],
    loads: bool,
    refused: bool,
) -> None:
    transfer = SimpleNamespace(
        kv_connector_extra_config=extra,
        kv_load_failure_policy="recompute",
        is_kv_consumer=loads,
    )

    def init(self: Any, *args: Any) -> None:
        self._kv_transfer_config = transfer

    monkeypatch.setattr(connector.KVConnectorBase_V1, "__init__", init)
    monkeypatch.setattr(connector, "_WorkerSide", lambda self, config, vllm: config)
    connector.KVConnectorRole.SCHEDULER = "scheduler"
    monkeypatch.setattr(connector._compat, "runs_loaded_first", lambda: False)  # 0.30
    vllm = SimpleNamespace(
        scheduler_config=SimpleNamespace(async_scheduling=False, policy="priority"),
        parallel_config=SimpleNamespace(pipeline_parallel_size=1),
        cache_config=SimpleNamespace(),
    )
    with pytest.raises(ValueError, match="Use fcfs") if refused else contextlib.nullcontext():
        connector.KvcoveConnector(vllm, "worker", cache_of(connector, "FullAttentionSpec"))


@pytest.mark.parametrize(
    ("level", "named", "told"),
    [(logging.INFO, "", ["info"]), (logging.WARNING, "", []), (logging.INFO, "error", [])],
)
def test_resets_are_told_where_vllm_tells_as_much(
    connector: Any, monkeypatch: pytest.MonkeyPatch, level: int, named: str, told: list[str]
) -> None:
    levels: list[str] = []
    monkeypatch.setattr(connector._native, "set_log_level", levels.append)
    monkeypatch.setattr(connector, "_log", logging.Logger("vllm.kvcove", level))
    monkeypatch.delenv("KVCOVE_LOG", raising=False)
    if named:
        monkeypatch.setenv("KVCOVE_LOG", named)
    connector._tell_as_vllm_tells()
    assert levels == told


def test_a_steps_copies_of_blocks_are_told_before_its_requests(connector: Any) -> None:
    told: list[Any] = []

    class Role:
        def __getattr__(self, name: str) -> Any:
            return lambda *args: told.append((name, args)) or (b"", [])

    side = object.__new__(connector._SchedulerSide)
    side.role, side._least_tokens, side._step_loads = Role(), 16, False
    side._schedule = lambda *args: told.append(("schedule", args))
    cached = SimpleNamespace(req_ids=[], num_computed_tokens=[], resumed_req_ids=set())
    output = SimpleNamespace(
        kv_cache_block_copies=[SimpleNamespace(src_block_id=3, dst_block_id=7)],
        scheduled_new_reqs=[SimpleNamespace(req_id="r", num_computed_tokens=5)],
        scheduled_cached_reqs=cached,
        num_scheduled_tokens={"r": 9},
    )
    side.plan(output)
    assert [name for name, _ in told] == ["copied", "schedule", "build_plan"]
    assert told[0][1] == ([(3, 7)],)
    told.clear()
    output.kv_cache_block_copies = None
    side.plan(output)
    assert [name for name, _ in told] == ["schedule", "build_plan"]


@pytest.mark.parametrize(
    ("window", "start", "computed", "scheduled", "told"),
    [
        (0, 0, 512, 100, (512, 100)),
        # The hit ends at 640: what was found before that is not this step's.
        (128, 512, 512, 300, (640, 172)),
        (128, 512, 512, 50, (640, 0)),
        (128, 0, 0, 300, (0, 300)),  # no hit
        (128, 512, 700, 8, (700, 8)),  # later, in a session that goes on
    ],
)
def test_tokens_that_vllm_computes_again_are_those_that_were_found(
    connector: Any, window: int, start: int, computed: int, scheduled: int, told: tuple[int, int]
) -> None:
    specs = [SimpleNamespace(), SimpleNamespace(prefix_replay_tokens=window)]
    cache = SimpleNamespace(kv_cache_groups=[SimpleNamespace(kv_cache_spec=each) for each in specs])
    seen: list[Any] = []
    side = object.__new__(connector._SchedulerSide)
    side.role = SimpleNamespace(schedule=lambda *args: seen.append(args))
    side._replayed = connector._compat.replayed_tokens(cache)
    side._loading, side._landed = {}, set()
    request = SimpleNamespace(
        num_tokens=900, num_prompt_tokens=900, cache_salt=None, block_hashes=[], lora_request=None,
        replay_start=start,
    )  # fmt: skip
    side._requests = {"r": request}
    output = SimpleNamespace(num_scheduled_tokens={"r": scheduled}, kv_connector_block_state=None)
    side._schedule(output, "r", computed, True)
    assert seen[0][5:7] == told and seen[0][7]


def test_movers_let_go_of_memory_before_a_worker_sleeps(
    connector: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Any] = []

    class Base:
        model_runner = SimpleNamespace(model=object())
        vllm_config = None

        def sleep(self, level: int = 1) -> None:
            calls.append(("sleep", level))

        def wake_up(self, tags: list[str] | None = None) -> None:
            calls.append(("wake_up", tags))

    workers: Any = sys.modules["vllm.v1.worker.worker_base"]
    workers.WorkerBase = Base
    held = Base()
    rank = side(connector, monkeypatch, 0, None)
    rank.register({"layer": SimpleNamespace(device=SimpleNamespace(type="cpu"))})
    rank.role.told = calls
    held.sleep(level=2)
    assert calls == ["unregister", ("sleep", 2)]
    calls.clear()
    held.wake_up(tags=["weights"])
    assert calls == [("wake_up", ["weights"])], "the KV memory is not there yet"
    held.wake_up(["kv_cache"])
    assert calls[1:3] == [("wake_up", ["kv_cache"]), "register"]


def test_a_worker_is_found_when_vllm_has_frozen_the_heap(connector: Any) -> None:
    class Base:
        model_runner = SimpleNamespace(model=object())
        vllm_config = None

    workers: Any = sys.modules["vllm.v1.worker.worker_base"]
    workers.WorkerBase = Base
    held = Base()
    weights = module_of("_weights")
    gc.freeze()
    try:
        assert weights.worker_of(None) is held
        assert gc.get_freeze_count() > 0, "as it was"
    finally:
        gc.unfreeze()


def test_other_connectors_are_given_no_handshake(connector: Any) -> None:
    # MultiConnector gives the first child's to all of them, and NIXL refuses one that is not its.
    base = connector.KVConnectorBase_V1
    for name in ("get_handshake_metadata", "set_xfer_handshake_metadata_pp_aware"):
        assert getattr(connector.KvcoveConnector, name, None) is getattr(base, name, None)


def config(**given: Any) -> Any:
    cache = {"cache_dtype": "auto", "prefix_caching_hash_algo": "sha256", "kv_cache_layout": None}
    return SimpleNamespace(
        cache_config=SimpleNamespace(**{**cache, **given}),
        model_config=SimpleNamespace(dtype="torch.bfloat16", model="/m", revision=None),
        speculative_config=None,
        parallel_config=SimpleNamespace(decode_context_parallel_size=1),
    )


def test_types_of_one_name_share(connector: Any) -> None:
    shape = module_of("_shape")
    assert shape.kv_dtype_of(config()) == shape.kv_dtype_of(config(cache_dtype="bfloat16"))
    assert shape.kv_dtype_of(config(cache_dtype="fp8")) == "fp8_e4m3"
    assert shape.kv_dtype_of(config(cache_dtype="fp8_e5m2")) == "fp8_e5m2"


def test_on_a_gpu_loads_begin_before_the_forward_pass_is_in_the_stream(
    connector: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = side(connector, monkeypatch, 0, None)
    worker.bind(b"plan")
    assert worker.role.told.count("begin") == 0, "on a CPU nothing is gained"
    worker.start(b"plan", True)
    assert worker.role.told.count("begin") == 1
    worker._cuda = True
    monkeypatch.setattr(worker, "_stream", lambda: 7)
    for steps in (2, 3):
        worker.bind(b"plan")
        assert worker.role.told.count("begin") == steps
        worker.start(b"plan", True)
        assert worker.role.told.count("begin") == steps, "once a step"


def group(kind: str, cacheable: bool, *layers: str) -> Any:
    interface: Any = sys.modules["vllm.v1.kv_cache_interface"]
    spec = getattr(interface, kind)()
    spec.block_size, spec.dcp_sharded, spec.prefix_cacheable = 16, True, cacheable
    spec.num_kv_heads = 8
    return SimpleNamespace(layer_names=list(layers), kv_cache_spec=spec)


def test_groups_without_hashes_are_left_alone(connector: Any) -> None:
    shape = module_of("_shape")
    groups = [
        group("CircularBufferSpec", False, "ring"),
        group("FullAttentionSpec", True, "a", "b"),
        group("HiSparseHotSpec", False, "hot"),
        group("MLAAttentionSpec", True, "c"),
    ]
    cache = SimpleNamespace(
        kv_cache_groups=groups,
        prefix_cacheable_group_ids=(1, 3),
        prefix_cacheable_groups=(groups[1], groups[3]),
        kv_cache_layout=None,
        hash_block_size=16,
        num_blocks=2,
    )
    assert shape._layer_names(engine(), cache) == "a,b|c"
    made = shape.shape_of(engine(), cache, module_of("_config").Config())
    assert made.stride_tokens == 16
    scheduler = object.__new__(connector._SchedulerSide)
    scheduler._group_ids = cache.prefix_cacheable_group_ids
    assert scheduler._tables(([9], [1, 2], [9, 9], [3, 4])) == [[1, 2], [3, 4]]


@pytest.mark.parametrize(
    ("given", "window"),
    [
        ({}, 256),
        ({"extra_retained_tokens": 0}, 256),
        ({"extra_retained_tokens": 3}, 259),
        ({"num_retained_tokens": 258}, 259),
        ({"num_retained_tokens": 255}, 256),
    ],
)
def test_a_hit_needs_what_vllm_keeps_before_a_window(
    connector: Any, given: dict[str, int], window: int
) -> None:
    # With several MTP modules: blocks that vLLM allocates for a hit get hashes, loaded or not.
    spec = group("SlidingWindowSpec", True, "a").kv_cache_spec
    spec.sliding_window = 256
    spec.__dict__.update(given)
    assert module_of("_shape")._kind(spec) == ("window", window)


def engine() -> Any:
    made = config()
    made.model_config.hf_config = SimpleNamespace(to_dict=lambda: {"layers": 2})
    made.model_config.quantization = None
    made.model_config.get_total_num_kv_heads = lambda: 8
    made.kv_transfer_config = SimpleNamespace(engine_id="e")
    made.adjust_dcp_kv_cache_interleave_size = lambda kv_cache_config: None
    made.parallel_config = SimpleNamespace(
        tensor_parallel_size=1,
        pipeline_parallel_size=1,
        decode_context_parallel_size=1,
        cp_kv_cache_interleave_size=1,
    )
    return made


def test_harmless_calls_are_those_of_the_configuration_too(connector: Any) -> None:
    weights = module_of("_weights")
    core: Any = sys.modules["vllm.v1.engine.core"]

    class EngineCore:
        scheduler = SimpleNamespace(connector="mine")
        vllm_config = SimpleNamespace(lora_config=None)

        def collective_rpc(self, method: Any, timeout: Any, args: Any, kwargs: Any) -> str:
            return "done"

        def wake_up(self) -> None: ...
        def set_weight_version(self, version: str) -> None: ...
        def add_lora(self, lora: Any) -> None: ...
        def remove_lora(self, lora: Any) -> None: ...
        def add_request(self, request: Any) -> None: ...
        def reset_prefix_cache(self, running: bool, connector: bool) -> bool: ...

    core.EngineCore = EngineCore
    role = Worker()
    names = module_of("_config").Config.of({"harmless_calls": "my_metrics, ping"}).harmless_names
    weights.observe_engine(EngineCore.scheduler.connector, role, names)
    instance = EngineCore()
    assert instance.collective_rpc("ping") == "done"
    assert instance.collective_rpc("my_metrics") == "done"
    assert role.told == []
    instance.collective_rpc("pong")
    assert role.told == ["weights_changing", "weights_changed"]


@pytest.mark.parametrize(
    ("algorithm", "seed", "told"),
    [
        ("xxhash", None, "have a random seed (xxhash)"),
        ("xxhash", "7", None),
        ("sha256", None, None),
    ],
)
def test_an_engine_whose_block_hashes_nobody_else_has_says_so(
    connector: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    algorithm: str,
    seed: str | None,
    told: str | None,
) -> None:
    if seed is None:
        monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    else:
        monkeypatch.setenv("PYTHONHASHSEED", seed)
    monkeypatch.setattr(connector, "model_fingerprint", lambda *args: "f")
    config = SimpleNamespace(
        cache_config=SimpleNamespace(prefix_caching_hash_algo=algorithm),
        kv_transfer_config=SimpleNamespace(engine_id="e1"),
    )
    with kvcove.open("embedded:?memory=4MiB") as pool:
        here = SimpleNamespace(_pool=pool, _engine="e1", _config=None)
        connector._SchedulerSide._tell_hashing(here, config)
        left = pool.session("kvcove-facts").get(["hashing of f"])[0]
    if told is None:
        assert not caplog.records
        assert left == f"{algorithm}:{seed or 'fixed'}".encode(), "for engines that start later"
    else:
        assert told in caplog.text
        assert "PYTHONHASHSEED" in caplog.text
        assert left is None, "another engine is not to be warned of this one"


class MadeError(Exception):
    pass


@pytest.mark.parametrize(
    ("role", "lacking"), [("kv_both", ["write", "reset"]), ("kv_consumer", ["reset"])]
)
def test_what_a_token_may_not_is_said_before_the_first_request(
    connector: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    role: str,
    lacking: list[str],
) -> None:
    def made(*args: Any, **kwargs: Any) -> None:
        raise MadeError

    monkeypatch.setattr(connector, "shape_of", lambda *args: SimpleNamespace(namespace="n"))
    monkeypatch.setattr(connector, "drops_last_block", lambda config: False)
    monkeypatch.setattr(connector._native, "SchedulerRole", made)
    pool = SimpleNamespace(scopes=lambda: ["read"])
    monkeypatch.setattr(connector.kvcove, "open", lambda address: pool)
    transfer = SimpleNamespace(
        engine_id="e1",
        kv_connector_extra_config={},
        is_kv_consumer=True,
        is_kv_producer=role == "kv_both",
    )
    part = SimpleNamespace(
        _kv_cache_config=SimpleNamespace(num_blocks=1, kv_cache_tensors=[]),
        _kv_transfer_config=transfer,
    )
    config = connector.Config.of({"pool": "kvcove://127.0.0.1:7400"})
    with pytest.raises(MadeError):
        connector._SchedulerSide(part, config, SimpleNamespace(kv_events_config=None))
    lines = [line for line in caplog.messages if "lacks the scope" in line]
    assert len(lines) == len(lacking)
    assert all(f'"{scope}"' in line for scope, line in zip(lacking, lines, strict=True))


class BlockPool:
    """As vLLM's: it resets only while no block is in use."""

    def __init__(self) -> None:
        self.blocks = [SimpleNamespace(used=0, is_null=False, pool=None) for _ in range(8)]
        self.resets = 0

    def free_blocks(self, blocks: Any) -> None:
        for block in blocks:
            block.used -= 1

    def touch(self, blocks: Any) -> None:
        for block in blocks:
            block.used += 1

    def reset_prefix_cache(self) -> bool:
        if any(block.used for block in self.blocks):
            return False
        self.resets += 1
        return True


class Blocks:
    """As vLLM's manager of a request's blocks."""

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self.of: dict[str, list[Any]] = {}

    def allocate(self, request_id: str, *numbers: int) -> None:
        self.of[request_id] = [self._pool.blocks[number] for number in numbers]
        self._pool.touch(self.of[request_id])

    def get_blocks(self, request_id: str) -> Any:
        return SimpleNamespace(blocks=(self.of.get(request_id, []),))

    def free(self, request: Any) -> None:
        self._pool.free_blocks(self.of.pop(request.request_id, []))


class Waiting:
    """A request of vLLM."""

    def __init__(self, name: str, status: str, finished: bool = False) -> None:
        self.request_id, self.status, self.finished = name, status, finished
        self.num_computed_tokens = 64

    def is_finished(self) -> bool:
        return self.finished


class Queue(list[Any]):
    """A queue of vLLM's requests."""

    def remove_request(self, request: Any) -> None:
        self.remove(request)

    def prepend_request(self, request: Any) -> None:
        self.insert(0, request)


@pytest.fixture(params=["kv_holding_waiting", "skipped_waiting"])  # 0.30 and older: the other one
def resetting(connector: Any, request: pytest.FixtureRequest) -> Any:
    """An engine whose cache is reset, and our connector in it."""
    status = SimpleNamespace(WAITING_FOR_REMOTE_KVS="remote", WAITING="waiting")
    sys.modules["vllm.v1.request"].RequestStatus = status
    module = module_of("_own_cache")
    pool = BlockPool()
    made = SimpleNamespace(
        pool=pool, blocks=Blocks(pool), pins=[], loading={}, asked=[], requests={}, deferred=[]
    )
    made.keeping = Queue()
    scheduler = SimpleNamespace(
        kv_cache_manager=made.blocks,
        requests=made.requests,
        failed_recving_kv_req_ids=set(),
        _inflight_prefills=set(),
        waiting=Queue(),
        **{request.param: made.keeping},
        deferred_frees=made.deferred,
        reset_connector_cache=lambda: made.asked.append("connector"),
    )
    cache = module.OwnCache(
        pool, lambda: made.pins, made.loading, lambda: made.asked.append("told")
    )

    class EngineCore:
        def __init__(self) -> None:
            self.scheduler = scheduler

        def reset_prefix_cache(self, running: bool = False, connector: bool = False) -> bool:
            # As vLLM's: what runs is preempted, then a block in use is an error.
            done = pool.reset_prefix_cache()
            if running and not done:
                raise RuntimeError("Failed to reset KV cache")
            if connector:
                scheduler.reset_connector_cache()
            return done

    module.observe(EngineCore, lambda core: [cache])
    made.core = EngineCore()
    return made


def load(made: Any, request: Waiting, *blocks: int) -> Waiting:
    made.loading[request.request_id] = made.requests[request.request_id] = request
    made.core.scheduler._inflight_prefills.add(request)
    if not request.finished:
        made.keeping.append(request)
    made.blocks.allocate(request.request_id, *blocks)
    return request


def test_loads_do_not_keep_a_cache_from_its_reset(resetting: Any) -> None:
    made = resetting
    under_way = load(made, Waiting("a", "remote"), 1, 2)
    scheduled_soon = load(made, Waiting("b", "waiting"), 3)
    aborted = load(made, Waiting("c", "finished", finished=True), 4)
    made.pins[:] = [5]
    made.pool.blocks[5].used = 1
    made.pool.blocks[6].used = 1
    made.deferred.append((1, [made.pool.blocks[6]]))  # of a request that a step still writes
    assert made.core.reset_prefix_cache(True, True)
    assert (made.pool.resets, made.asked) == (1, ["told", "connector"])
    # It computes all of its tokens, and its blocks stay until the load has ended.
    assert under_way.num_computed_tokens == 0
    assert made.core.scheduler.failed_recving_kv_req_ids == {"a"}
    # Nothing lands in its blocks any more.
    assert scheduled_soon.num_computed_tokens == 0
    assert aborted.num_computed_tokens == 64
    # Nothing is kept free for those that begin anew: their next loads would wait for it.
    assert made.core.scheduler._inflight_prefills == {aborted}
    # Those that keep blocks go first: one that keeps none any more would stand in their way.
    assert made.keeping == [under_way]
    assert made.core.scheduler.waiting == [scheduled_soon]
    assert [block.used for block in made.pool.blocks] == [0, 1, 1, 0, 1, 1, 1, 0]


def test_a_reset_of_the_pool_does_not_depend_on_the_engines_own(resetting: Any) -> None:
    made = resetting
    under_way = load(made, Waiting("a", "remote"), 1)
    made.pool.blocks[7].used = 1  # another connector's
    with pytest.raises(RuntimeError, match="Failed to reset"):
        made.core.reset_prefix_cache(True, True)
    assert made.asked == ["connector"]
    assert made.pool.resets == 0
    assert under_way.num_computed_tokens == 64, "as it was"
    assert [block.used for block in made.pool.blocks] == [0, 1, 0, 0, 0, 0, 0, 1]
    with pytest.raises(RuntimeError, match="Failed to reset"):
        made.core.reset_prefix_cache(True, False)
    assert made.asked == ["connector"], "nobody asked for it"


def test_a_request_with_the_id_of_one_that_has_ended_keeps_its_blocks(resetting: Any) -> None:
    made = resetting
    load(made, Waiting("a", "remote"), 1)
    made.requests["a"] = Waiting("a", "running")
    assert not made.core.reset_prefix_cache(False, False)
    assert made.requests["a"].num_computed_tokens == 64


def looked_up(connector: Any, **known: Any) -> tuple[Any, bool]:
    """Return the scheduler's side's answer for a request of which more is known, and whether the pool was asked."""
    scheduler = object.__new__(connector._SchedulerSide)
    scheduler._requests, asked = {}, []
    scheduler.role = SimpleNamespace(matched=lambda *given: asked.append(given) or (64, True))
    request = SimpleNamespace(
        request_id="r",
        num_tokens=80,
        num_prompt_tokens=80,
        cache_salt=None,
        block_hashes=[],
        lora_request=None,
        **known,
    )
    answer = scheduler.matched(request, 0)
    assert len(asked) <= 1
    assert scheduler._requests == {"r": request}, "what it computes is stored"
    return answer, bool(asked)


@pytest.mark.parametrize("skips", [False, True])
def test_a_request_that_must_be_computed_is_not_looked_up(connector: Any, skips: bool) -> None:
    answer = looked_up(connector, skip_reading_prefix_cache=skips)  # prompt_logprobs
    assert answer == (((0, False), False) if skips else ((64, True), True))


@pytest.mark.parametrize(
    ("known", "waits"),
    [
        ({"last_sched_seq": 4}, True),
        ({"last_sched_seq": 3}, False),
        # 0.28 waits itself, or has no use for the output.
        ({"last_sched_seq": 4, "num_stale_output_tokens": 1}, False),
    ],
)
def test_a_preempted_request_is_not_looked_up_before_its_output_is_there(
    connector: Any, monkeypatch: pytest.MonkeyPatch, known: dict[str, int], waits: bool
) -> None:
    monkeypatch.setattr(connector._compat, "_ended_steps", 3)
    answer = looked_up(connector, **known)
    assert answer == (((None, False), False) if waits else ((64, True), True))


@pytest.mark.parametrize(
    ("params", "waits"),
    [
        (None, True),
        ({"kvcove": {"output_tokens": 3}}, True),
        ({"do_remote_decode": True, "do_remote_prefill": False}, True),
        ({"do_remote_prefill": True, "remote_engine_id": "prefill"}, False),
    ],
)
def test_a_request_that_a_transport_serves_waits_for_no_save(
    connector: Any, params: Any, waits: bool
) -> None:
    scheduler = object.__new__(connector._SchedulerSide)
    scheduler._requests, asked = {}, []
    scheduler.role = SimpleNamespace(
        matched=lambda *given: asked.append(given) or (64, True), hint=lambda *given: None
    )
    request = SimpleNamespace(
        request_id="r",
        num_tokens=80,
        num_prompt_tokens=80,
        cache_salt=None,
        block_hashes=[],
        lora_request=None,
        kv_transfer_params=params,
    )
    assert scheduler.matched(request, 0) == (64, True)
    assert asked == [("r", 80, 80, "", [], 0, 0, waits)]


@pytest.mark.parametrize("version", ["0.22.1", "0.23.0", "0.23.1.dev3+gabc"])
def test_an_older_vllm_is_refused_in_one_line(connector: Any, version: str) -> None:
    versions, plugin = module_of("_versions"), module_of("_plugin")
    with pytest.raises(ValueError, match=r"knows vLLM 0\.24 to 0\.33; this is ") as refused:
        versions.check_version(version)
    assert version in str(refused.value) and "\n" not in str(refused.value)
    sys.modules["vllm"].__dict__["__version__"] = version
    ours = SimpleNamespace(kv_connector="KvcoveConnector", kv_connector_extra_config={})
    with pytest.raises(ValueError, match="this is 0"):
        plugin.check(ours)
    plugin.check(SimpleNamespace(kv_connector="NixlConnector", kv_connector_extra_config={}))
    package = sys.modules["kvcove.vllm"]
    with pytest.raises(ValueError, match="this is 0"):
        package.__getattr__("KvcoveConnector")


def test_a_newer_vllm_is_tried_with_one_warning(
    connector: Any, caplog: pytest.LogCaptureFixture
) -> None:
    versions = module_of("_versions")
    for version in ("0.24.0", "0.32.0", "0.33.0rc1", "0.1.dev1+gabc", "dev"):
        versions.check_version(version)
    assert not caplog.messages
    for _ in range(3):
        versions.check_version("0.34.1")
    assert len(caplog.messages) == 1
    assert "this is 0.34.1" in caplog.text


def test_the_interleave_is_settled_as_each_vllm_takes_it(connector: Any) -> None:
    compat = module_of("_compat")
    cache = SimpleNamespace(kv_cache_groups=["group"])
    taken: list[Any] = []

    class Before:
        def adjust_dcp_kv_cache_interleave_size(self, kv_cache_config: Any) -> None:
            taken.append(kv_cache_config)

    class Now:
        def adjust_dcp_kv_cache_interleave_size(self, kv_cache_groups: Any) -> None:
            taken.append(kv_cache_groups)

    compat.settle_interleave(Before(), cache)
    compat.settle_interleave(Now(), cache)
    assert taken == [cache, ["group"]]


def test_a_mistake_is_told_when_the_configuration_is_made(connector: Any) -> None:
    plugin = module_of("_plugin")

    class VllmConfig:
        def __init__(self, transfer: Any) -> None:
            self.kv_transfer_config = transfer
            self.made = False
            self.__post_init__()

        def __post_init__(self) -> None:
            self.made = True

    plugin.check_early(VllmConfig)
    plugin.check_early(VllmConfig)  # every process loads plugins, some twice

    def transfer(connector: str, extra: Any) -> Any:
        return SimpleNamespace(kv_connector=connector, kv_connector_extra_config=extra)

    assert VllmConfig(None).made
    assert VllmConfig(transfer("KvcoveConnector", {"threads": 3})).made
    assert VllmConfig(transfer("NixlConnector", {"treads": 3})).made
    with pytest.raises(ValueError, match="did you mean 'threads'"):
        VllmConfig(transfer("KvcoveConnector", {"treads": 3}))
    child = {"kv_connector": "KvcoveConnector", "kv_connector_extra_config": {"treads": 3}}
    with pytest.raises(ValueError, match="did you mean 'threads'"):
        VllmConfig(transfer("MultiConnector", {"connectors": [{"kv_connector": "N"}, child]}))


def facts(connector: Any, **given: Any) -> Any:
    shape = module_of("_shape")
    made = engine()
    for name, value in given.items():
        part = made.cache_config if hasattr(made.cache_config, name) else made.parallel_config
        setattr(part, name, value)
    groups = (group("FullAttentionSpec", True, "a"),)
    cache = SimpleNamespace(prefix_cacheable_groups=groups, kv_cache_layout=None)
    return shape.facts_of(made, cache, module_of("_config").Config())


def test_engines_that_will_not_share_are_told_why_with_both_values(connector: Any) -> None:
    told = engines
    with kvcove.open("embedded:?memory=64MiB") as pool:
        session = pool.session("kvcove-facts")
        mine = facts(connector)
        assert told.leave(session, "m", mine) == []
        assert told.leave(session, "m", mine) == [], "they are its own"
        other = facts(connector, cache_dtype="fp8", tensor_parallel_size=4)

        def others(mine: dict[str, str], count: int) -> list[dict[str, str]]:
            # A pool whose lease has run out, as the machine stood still, has nothing for a moment.
            found: list[dict[str, str]] = []

            def look() -> bool:
                found[:] = told.leave(session, "m", mine)
                return len(found) == count

            assert wait_until(look), found
            return found

        (there,) = others(other, 1)
        assert told.differences(other, there) == [
            ("KV type", "bfloat16", "fp8_e4m3"),
            ("parallelism", "TP 1, PP 1, PCP 1, DCP 1", "TP 4, PP 1, PCP 1, DCP 1"),
        ]
        assert told.leave(session, "another", mine) == []
        for number in range(20):
            told.leave(session, "m", {"model": str(number)})
        others(mine, 15)  # bounded


def test_memory_that_the_host_lacks_is_not_asked_for(tmp_path: Any) -> None:
    host = engines
    gib = 1 << 30
    assert host.affordable(4 * gib, None) == 4 * gib
    assert host.affordable(4 * gib, 6 * gib) == 4 * gib
    assert host.affordable(4 * gib, 3 * gib) == 3 * gib // 2
    assert host.affordable(4 * gib, 0) == 64 << 20
    assert host.affordable(1 << 20, 0) == 1 << 20, "what is asked for is never exceeded"
    (tmp_path / "proc/self").mkdir(parents=True)
    assert host.available_memory(tmp_path) is None
    (tmp_path / "proc/meminfo").write_text("MemTotal: 9 kB\nMemAvailable:    8388608 kB\n")
    assert host.available_memory(tmp_path) == 8 * gib
    inner = tmp_path / "sys/fs/cgroup/outer/inner"
    inner.mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/outer/inner\n")
    (inner / "memory.max").write_text("max\n")
    (inner.parent / "memory.max").write_text(f"{5 * gib}\n")
    (inner.parent / "memory.current").write_text(f"{3 * gib}\n")
    assert host.available_memory(tmp_path) == 2 * gib


class Metric:
    """As much of a Prometheus metric as is used."""

    all: dict[str, Metric]
    labelled: tuple[str, ...]

    def __init__(self, name: str, documentation: str, labelnames: Any, buckets: Any = ()) -> None:
        self.text, self.values, self.buckets = documentation, [], buckets
        Metric.all[name] = self

    def labels(self, *values: str) -> Metric:
        self.labelled = values
        self.values.append(0)
        return self

    def inc(self, by: float) -> None:
        self.values.append(by)

    set = observe = inc


def test_all_metrics_are_there_from_the_start(connector: Any) -> None:
    stats = module_of("_stats")
    base: Any = stats.KVConnectorPromMetrics

    def init(self: Any, config: Any, types: Any, names: Any, values: Any) -> None:
        self._counter_cls = self._gauge_cls = self._histogram_cls = Metric
        self._labelnames, self.per_engine_labelvalues = names, values

    base.__init__ = init
    Metric.all = {}
    metrics = stats.KvcovePromMetrics(None, {}, ["engine"], {0: ["0"]})
    made = Metric.all
    assert {"vllm:kvcove_lookups_total", "vllm:kvcove_closed", "vllm:kvcove_load_seconds"} < set(
        made
    )
    assert "vllm:kvcove_lookup_missed_evicted_total" in made
    assert made["vllm:kvcove_build_info"].labelled == ("0", kvcove.__version__)
    assert made["vllm:kvcove_build_info"].values == [0, 1]
    zeros = (each for name, each in made.items() if not name.endswith("_info"))
    assert all(each.values == [0] for each in zeros), "as zeros"
    assert all(len(each.text) > 20 and each.text.endswith(".") for each in made.values())
    assert list(made["vllm:kvcove_load_seconds"].buckets)[:2] == [0.0001, 0.0003]
    metrics.observe(
        {
            "lookups": 3,
            "load_seconds_le_0.001": 2,
            "load_seconds_le_inf": 1,
            "loaded_bytes": 8_000,
            "load_ns": 1_000,
        }
    )
    assert made["vllm:kvcove_lookups_total"].values == [0, 3]
    assert made["vllm:kvcove_load_seconds"].values[1:3] == [pytest.approx(0.00055, rel=0.01)] * 2
    assert made["vllm:kvcove_load_seconds"].values[3] > 10
    assert made["vllm:kvcove_load_GBps"].values == [0, 8.0]


@pytest.mark.parametrize("begin", ["start_weight_update", "start_draft_weight_update"])
def test_which_call_ends_an_update(connector: Any, begin: str) -> None:
    updates = module_of("_weights").Updates()
    assert updates.ended_by("update_weights"), "a trainer's own method, which nothing began"
    assert not updates.ended_by(begin)
    assert not updates.ended_by("update_weights")
    assert not updates.ended_by("update_weights")
    assert updates.ended_by("finish_weight_update")
    assert updates.ended_by("update_weights_from_path")
    assert not updates.ended_by("start_weight_update")
    assert updates.ended_by(test_which_call_ends_an_update), "given up, and a callable came"


def opens(module: Any, pool: str, socket: Path, on_unreachable: str = "fallback") -> Any:
    """Open a pool as the scheduler's side does."""
    part = module._SchedulerSide.__new__(module._SchedulerSide)
    part._config = module.Config(pool=pool, on_unreachable=on_unreachable)
    part.shape = SimpleNamespace(namespace="n")
    part._owner = None
    address, reached = part._open(socket, {})
    part._pool.close()
    if part._owner is not None:
        part._owner.close()
    return address, reached


def test_an_engine_without_its_pool(
    connector: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, run_dir: Path, serve: str
) -> None:
    own = run_dir / "own.sock"
    assert opens(connector, f"unix:{serve}", own) == (f"unix:{serve}", True)

    def answer() -> None:
        connection, _ = other.accept()
        with connection:
            connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    # Another server listens where the pool was said to be.
    with socket.create_server(("127.0.0.1", 0)) as other:
        pool = f"kvcove://127.0.0.1:{other.getsockname()[1]}"
        for policy in ("fallback", "crash"):
            threading.Thread(target=answer, daemon=True).start()
            if policy == "fallback":
                assert opens(connector, pool, own) == (f"unix:{own}", False)
                continue
            with pytest.raises(kvcove.Error):
                opens(connector, pool, own, policy)

    # This host's owner is there, and ends the connection.
    path = run_dir / "host.sock"
    monkeypatch.setattr(connector._native, "default_socket_path", lambda: str(path))
    monkeypatch.setattr(connector._native, "why_no_owner", lambda _: None)
    with socket.socket(socket.AF_UNIX) as owner:
        owner.bind(str(path))
        assert opens(connector, "auto", own) == (f"unix:{own}", False)
        with pytest.raises(kvcove.UnavailableError):
            opens(connector, "auto", own, "crash")
