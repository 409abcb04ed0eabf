# SPDX-License-Identifier: Apache-2.0
"""What the connector reads from vLLM's configuration, where vLLM is (make test-vllm)."""

from __future__ import annotations

import copy
import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm")
torch = pytest.importorskip("torch")

from kvcove.vllm import KvcoveConnector, _compat  # noqa: E402
from kvcove.vllm._config import Config  # noqa: E402
from kvcove.vllm._shape import _kind, shape_of  # noqa: E402
from vllm.config import KVTransferConfig, VllmConfig  # noqa: E402
from vllm.v1.core.sched.scheduler import Scheduler  # noqa: E402
from vllm.v1.core.single_type_kv_cache_manager import SlidingWindowManager  # noqa: E402
from vllm.v1.kv_cache_interface import (  # noqa: E402
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    MLAAttentionSpec,
    SlidingWindowSpec,
    UniformTypeKVCacheSpecs,
)
from vllm.v1.request import RequestStatus  # noqa: E402


def model_config(**config: Any) -> Any:
    return SimpleNamespace(
        hf_config=SimpleNamespace(to_dict=lambda: {"layers": 2, **config}),
        dtype="bfloat16",
        quantization=None,
        model="/models/m",
        revision=None,
        get_total_num_kv_heads=lambda: 8,
    )


def vllm_config(**parallel: Any) -> Any:
    sizes = {
        **{"tensor_parallel_size": 4, "pipeline_parallel_size": 1},
        **{"prefill_context_parallel_size": 1, "decode_context_parallel_size": 1},
        **{"cp_kv_cache_interleave_size": 1, "dcp_kv_cache_interleave_size": 1},
        "_allow_auto_resolve_cp_interleave_size": True,
    }

    class Facts(SimpleNamespace):
        # 0.28 and older have none.
        adjust_dcp_kv_cache_interleave_size = getattr(
            VllmConfig, "adjust_dcp_kv_cache_interleave_size", None
        )

    return Facts(
        model_config=model_config(),
        parallel_config=SimpleNamespace(**{**sizes, **parallel}),
        cache_config=SimpleNamespace(
            cache_dtype="auto",
            prefix_caching_hash_algo="sha256",
            kv_cache_layout=None,
            block_size=16,
        ),
        speculative_config=None,
        kv_transfer_config=KVTransferConfig(
            kv_connector="KvcoveConnector",
            kv_role="kv_both",
            engine_id="e",  # 0.28 and older: in the namespace unless $PYTHONHASHSEED is set
        ),
    )


SPEC = FullAttentionSpec(block_size=16, num_kv_heads=2, head_size=64, dtype=torch.bfloat16)


def space(config: Any, *layers: str, spec: Any = SPEC) -> str:
    names = list(layers or ("layers.0", "layers.1"))
    cache = KVCacheConfig(
        num_blocks=8, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(names, spec)]
    )
    return str(shape_of(config, cache, Config()).namespace)


def test_with_vllm_context_parallel_engines_that_interleave_otherwise_share_nothing() -> None:
    spaces = [
        space(vllm_config(decode_context_parallel_size=2, cp_kv_cache_interleave_size=size))
        for size in (1, 4, 16)
    ]
    # 0.29 lets all ranks interleave by blocks, with any connector.
    assert len(set(spaces)) == (1 if _compat.release() == "0.29" else 3)
    assert space(vllm_config()) == space(vllm_config(cp_kv_cache_interleave_size=4))


@pytest.mark.skipif(
    not hasattr(VllmConfig, "adjust_dcp_kv_cache_interleave_size"),
    reason="vLLM 0.28 and older settle nothing",
)
def test_with_vllm_scheduler_and_ranks_settle_on_one_interleave() -> None:
    # Workers write what they settle on into their configuration, the scheduler's stays.
    for given in (
        {"dcp_kv_cache_interleave_size": 4},
        {"cp_kv_cache_interleave_size": 2},
    ):
        for connector in ("KvcoveConnector", "NixlConnector"):
            mine = vllm_config(decode_context_parallel_size=2, **given)
            mine.kv_transfer_config.kv_connector = connector
            worker = copy.deepcopy(mine)
            spec = SimpleNamespace(kv_cache_spec=SimpleNamespace(block_size=16))
            worker.adjust_dcp_kv_cache_interleave_size(SimpleNamespace(kv_cache_groups=[spec]))
            assert space(mine) == space(worker)
            assert (
                mine.parallel_config.__dict__
                == vllm_config(decode_context_parallel_size=2, **given).parallel_config.__dict__
            )


def test_with_vllm_engines_of_other_layers_or_drafts_share_nothing() -> None:
    plain = vllm_config()
    assert space(plain, "layers.1", "layers.0") == space(plain)
    assert space(plain, "layers.0", "layers.1", "layers.2") != space(plain)
    assert space(plain, "layers.0", "layers.3") != space(plain)

    def drafted(draft: Any, method: str = "eagle") -> Any:
        config = vllm_config()
        config.speculative_config = SimpleNamespace(
            method=method, draft_model_config=draft, target_model_config=config.model_config
        )
        return config

    # With pipeline stages nobody knows all layers' names.
    spaces = set()
    for config in (
        vllm_config(),
        drafted(model_config(draft=1)),
        drafted(model_config(draft=2)),
        drafted(model_config(draft=1), "mtp"),
    ):
        config.parallel_config.pipeline_parallel_size = 2
        spaces.add(space(config, "layers.0"))
        assert space(config, "layers.1") in spaces, "every stage has the same"
    assert len(spaces) == 4
    ngram = vllm_config()
    ngram.speculative_config = SimpleNamespace(
        method="ngram",
        draft_model_config=ngram.model_config,
        target_model_config=ngram.model_config,
    )
    assert space(ngram) == space(plain)
    assert space(drafted(model_config(draft=1), "medusa")) == space(plain)


@pytest.mark.skipif(
    "num_head_slots" not in FullAttentionSpec.__dataclass_fields__,
    reason="this vLLM has keys and values of a head in one place",
)
def test_with_vllm_backends_that_put_keys_and_values_apart_share_with_no_others() -> None:
    config = vllm_config()
    # As ROCM_ATTN and B12X say it: as many places as there are heads, of as many bytes.
    planes = dataclasses.replace(SPEC, num_head_slots=2, state_content_bytes=2 * 64 * 2)
    assert planes.page_size_bytes == SPEC.page_size_bytes
    assert planes.state_content_size_bytes == SPEC.state_content_size_bytes
    assert space(config, spec=planes) != space(config)
    # One head has two places, whose order counts.
    one = dataclasses.replace(planes, num_kv_heads=1, state_content_bytes=64 * 2)
    config.parallel_config.tensor_parallel_size = 1
    spaces = set()
    for layout in ("LBHNC", "LBNHC"):
        config.cache_config.kv_cache_layout = layout
        spaces.add(space(config, spec=one))
    assert len(spaces) == 2


@pytest.mark.skipif(
    "extra_retained_tokens" not in SlidingWindowSpec.__dataclass_fields__,
    reason="this vLLM keeps nothing before a window",
)
@pytest.mark.parametrize("retained", [0, 1, 3, 40])
@pytest.mark.parametrize("tokens", [96, 256, 288, 1184, 1200])
def test_with_vllm_a_hit_needs_every_block_that_is_allocated_for_it(
    retained: int, tokens: int
) -> None:
    spec = SlidingWindowSpec(
        block_size=32,
        num_kv_heads=2,
        head_size=64,
        dtype=torch.bfloat16,
        sliding_window=256,
        extra_retained_tokens=retained,
    )
    kind, window = _kind(spec)
    assert kind == "window"
    vllm = SimpleNamespace(sliding_window=256, extra_retained_tokens=retained)
    skipped = SlidingWindowManager.get_num_skipped_tokens(vllm, tokens)
    assert skipped == max(0, tokens - (window - 1)), "EngineShape::Needed"


def test_with_vllm_a_mistake_is_told_before_a_model_is_loaded() -> None:
    assert not KvcoveConnector.requires_piecewise_for_cudagraph({"pool": "auto"})
    with pytest.raises(ValueError, match="did you mean 'pool'"):
        KvcoveConnector.requires_piecewise_for_cudagraph({"polo": "auto"})


def test_with_vllm_a_plain_drafts_heads_lie_in_the_group_of_the_latents() -> None:
    latents = MLAAttentionSpec(block_size=32, num_kv_heads=1, head_size=576, dtype=torch.bfloat16)
    plain = FullAttentionSpec(block_size=32, num_kv_heads=2, head_size=64, dtype=torch.bfloat16)
    specs = {"model.layers.0": latents, "draft.layers.0": plain}
    assert UniformTypeKVCacheSpecs.from_specs(specs) is not None, "else: heads_of may say 1 again"


@pytest.mark.skipif(
    not hasattr(Scheduler, "_mark_prefix_replay"), reason="this vLLM computes no hit's end again"
)
def test_with_vllm_a_failed_load_leaves_nothing_to_compute_again() -> None:
    freed: list[Any] = []
    request = SimpleNamespace(
        request_id="r",
        status=RequestStatus.WAITING_FOR_REMOTE_KVS,
        num_computed_tokens=640,
        num_tokens=900,
        replay_start=0,
    )
    scheduler = SimpleNamespace(
        connector=object(),
        requests={"r": request},
        recompute_kv_load_failures=True,
        failed_recving_kv_req_ids=set(),
        finished_recving_kv_req_ids={"r"},
        prefix_replay_tokens=128,
        kv_cache_manager=SimpleNamespace(free=freed.append, cache_blocks=lambda *_: None),
        _load_restores_replay_window=lambda _: False,
    )
    scheduler._mark_prefix_replay = lambda *args, **more: Scheduler._mark_prefix_replay(
        scheduler, *args, **more
    )
    # As the connector reports it for several groups: by the request.
    Scheduler._handle_failed_recving(scheduler, {"r"})
    Scheduler._update_waiting_for_remote_kv(scheduler, request)
    # It is looked up anew; _SchedulerSide._schedule takes replay_start 0 for no hit.
    assert (request.num_computed_tokens, request.replay_start, freed) == (0, 0, [request])
    # One that has not failed: the hit's end is replay_start and the tokens that are computed again.
    request.num_computed_tokens = 640
    scheduler.finished_recving_kv_req_ids = {"r"}
    Scheduler._update_waiting_for_remote_kv(scheduler, request)
    assert (request.num_computed_tokens, request.replay_start) == (512, 512)
