# SPDX-License-Identifier: Apache-2.0
"""The adapter's two sides, on fakes of vLLM."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest
from fake_vllm import install, module_of


class Worker:
    """A rank's role that keeps what it was told."""

    number = 0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.told: list[str] = []

    def __getattr__(self, name: str) -> Any:
        def call(*args: Any) -> Any:
            self.told.append(name)

        return call


@pytest.fixture
def connector(monkeypatch: pytest.MonkeyPatch) -> Any:
    install(monkeypatch)
    module = module_of("_connector")
    monkeypatch.setattr(module._native, "WorkerRole", Worker)
    monkeypatch.setattr(module, "shape_of", lambda *args: None)
    monkeypatch.setattr(module, "layers_of", lambda *args: [])
    return module


def side(module: Any, monkeypatch: pytest.MonkeyPatch, stage: int, speculation: Any) -> Any:
    monkeypatch.setattr(module, "rank_of", lambda config: {"tp": 0, "pp": stage, "pcp": 0})
    config = SimpleNamespace(
        parallel_config=SimpleNamespace(pipeline_parallel_size=2),
        speculative_config=speculation,
        lora_config=None,
    )
    part = SimpleNamespace(
        _kv_cache_config=SimpleNamespace(kv_cache_groups=[1]),
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
    worker.start(b"plan")
    worker.results()  # where the draft model runs, vLLM has not called wait_for_save yet
    assert worker.role.told.count("finish_step") == int(ends)
    worker.finish()
    worker.results()
    worker.results()
    assert worker.role.told.count("finish_step") == 1 + int(ends), "once a step"


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


def group(kind: str, cacheable: bool, *layers: str) -> Any:
    interface: Any = sys.modules["vllm.v1.kv_cache_interface"]
    spec = getattr(interface, kind)()
    spec.block_size, spec.dcp_sharded, spec.prefix_cacheable = 16, True, cacheable
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


def engine() -> Any:
    made = config()
    made.model_config.hf_config = SimpleNamespace(to_dict=lambda: {"layers": 2})
    made.model_config.quantization = None
    made.model_config.get_total_num_kv_heads = lambda: 8
    made.kv_transfer_config = SimpleNamespace(engine_id="e")
    made.adjust_dcp_kv_cache_interleave_size = lambda cache: None
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
