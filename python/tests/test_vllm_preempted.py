# SPDX-License-Identifier: Apache-2.0
"""Requests that are preempted while steps of theirs are under way, on vLLM's own scheduler (make test-vllm)."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm")
torch = pytest.importorskip("torch")

from kvcove.vllm import _compat, _connector  # noqa: E402
from kvcove.vllm._compat import (  # noqa: E402
    FullAttentionSpec,
    KVConnectorBase_V1,
    KVConnectorMetadata,
    SupportsHMA,
)
from vllm.config import KVTransferConfig  # noqa: E402
from vllm.engine.arg_utils import EngineArgs  # noqa: E402
from vllm.sampling_params import SamplingParams  # noqa: E402
from vllm.v1.core.sched.scheduler import Scheduler  # noqa: E402
from vllm.v1.core.single_type_kv_cache_manager import register_all_kvcache_specs  # noqa: E402
from vllm.v1.outputs import ModelRunnerOutput  # noqa: E402
from vllm.v1.request import Request, RequestStatus  # noqa: E402
from vllm.v1.structured_output import StructuredOutputManager  # noqa: E402

BLOCK = 16


class Connector(KVConnectorBase_V1, SupportsHMA):
    """Answers as kvcove's does, for a pool that has a block of each request that asks again."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        asked: set[str] = set()

        def found(request_id: str, *_: Any) -> tuple[int, bool]:
            again = request_id in asked
            asked.add(request_id)
            return (BLOCK, True) if again else (0, False)

        self._side = object.__new__(_connector._SchedulerSide)
        self._side._requests = {}
        self._side.role = SimpleNamespace(matched=found)  # type: ignore[assignment]
        _compat.let_failed_loads_go()

    @property
    def requires_kv_delivery(self) -> bool:
        return False

    def get_num_new_matched_tokens(self, request: Any, computed: int) -> tuple[int | None, bool]:
        return self._side.matched(request, computed)

    def build_connector_meta(self, output: Any) -> KVConnectorMetadata:
        return KVConnectorMetadata()

    def request_finished_all_groups(self, request: Any, blocks: Any) -> tuple[bool, None]:
        return False, None

    def update_state_after_alloc(self, *args: Any) -> None: ...
    def start_load_kv(self, *args: Any, **kwargs: Any) -> None: ...
    def wait_for_layer_load(self, *args: Any) -> None: ...
    def save_kv_layer(self, *args: Any, **kwargs: Any) -> None: ...
    def wait_for_save(self) -> None: ...


@pytest.fixture
def scheduler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Three pipeline stages keep three steps under way."""
    here = ModuleType("kvcove_test_connector")
    here.Connector = Connector  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, here.__name__, here)
    config = {
        **{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 1000},
        **{"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2},
        **{"num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 4096},
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    engine = EngineArgs(
        model=str(tmp_path),
        skip_tokenizer_init=True,
        dtype="float32",
        max_model_len=64,
        enforce_eager=True,
        enable_prefix_caching=False,
        async_scheduling=False,
        kv_transfer_config=KVTransferConfig(
            kv_connector="Connector",
            kv_connector_module_path=here.__name__,
            kv_role="kv_both",
            kv_load_failure_policy="recompute",
        ),
    ).create_engine_config()
    engine.parallel_config.pipeline_parallel_size = 3
    engine.cache_config.num_gpu_blocks_override = 12
    if _compat.LAYOUTS_BY_AXES:
        engine.cache_config.kv_cache_layout = "LBHNC"
    register_all_kvcache_specs(engine)
    spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=4, dtype=torch.float32)
    plan = _compat.kv_cache_configs_of(engine, [{"layers.0": spec}], [1 << 30])[0]
    engine.cache_config.num_gpu_blocks = plan.num_blocks
    engine.cache_config.block_size = BLOCK
    return Scheduler(
        vllm_config=engine,
        kv_cache_config=plan,
        structured_output_manager=StructuredOutputManager(engine),
        block_size=BLOCK,
        hash_block_size=BLOCK,
    )


def end(scheduler: Any, step: Any) -> None:
    """Tell the scheduler what a step has brought: a token for each request."""
    names = list(step.num_scheduled_tokens)
    ran = ModelRunnerOutput(
        req_ids=names,
        req_id_to_index={name: at for at, name in enumerate(names)},
        sampled_token_ids=[[5] for _ in names],
    )
    scheduler.update_from_output(step, ran)


def preempted(scheduler: Any, most: int) -> tuple[Any, Any]:
    """Return a request that was preempted while its first step is under way, and that step."""
    request = Request(
        request_id="r",
        prompt_token_ids=list(range(2 * BLOCK)),
        sampling_params=SamplingParams(max_tokens=most, ignore_eos=True),
        pooling_params=None,
    )
    scheduler.add_request(request)
    first = scheduler.schedule()
    assert list(first.num_scheduled_tokens) == ["r"]
    # As where another request needs its blocks.
    scheduler.running.remove(request)
    scheduler._preempt_request(request, 0.0)
    return request, first


def test_with_vllm_an_output_that_ends_a_preempted_request_finds_no_load(scheduler: Any) -> None:
    # 0.27 and older would free the blocks that the load writes into, and raise in the next step.
    free = scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
    request, first = preempted(scheduler, most=1)
    second = scheduler.schedule()
    assert request.status == RequestStatus.PREEMPTED
    end(scheduler, first)
    end(scheduler, second)
    assert request.is_finished()
    for _ in range(3):
        end(scheduler, scheduler.schedule())
    assert scheduler.kv_cache_manager.block_pool.get_num_free_blocks() == free
    assert not scheduler.requests
    assert not scheduler.has_unfinished_requests()


def test_with_vllm_a_preempted_request_is_loaded_when_its_output_is_there(scheduler: Any) -> None:
    request, first = preempted(scheduler, most=4)
    end(scheduler, first)
    assert request.num_output_tokens == 1
    end(scheduler, scheduler.schedule())
    assert request.status == RequestStatus.WAITING_FOR_REMOTE_KVS
