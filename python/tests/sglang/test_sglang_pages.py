# SPDX-License-Identifier: Apache-2.0
"""Which keys pages have, and which adapters and runners an engine has. SGLang need not be there."""

from __future__ import annotations

import gc
import sys
import uuid
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from kvcove.sglang import _weights  # noqa: E402
from kvcove.sglang._pages import HostPages, Shard  # noqa: E402


class States:
    """A host pool of Mamba states, whose two parts have types of their own."""

    page_size = 1
    layout = "page_first"
    kv_buffer = ()

    def __init__(self, temporal: Any, conv: Any) -> None:
        self.temporal_dtype, self.conv_dtype = temporal, conv

    def get_page_buffer_meta(self, indices: Any) -> tuple[list[int], list[int]]:
        sizes = [1024 * self.temporal_dtype.itemsize, 64 * self.conv_dtype.itemsize]
        return [4096] * 2 * len(indices), sizes * len(indices)


def keys(temporal: Any, conv: Any) -> list[str]:
    shard = Shard(0, 1, 0, 1, 0, 1, replicated=False, heads=1)
    return HostPages("mamba", States(temporal, conv), shard).keys(["0" * 64])


def test_states_of_types_of_the_same_size_have_other_keys() -> None:
    two = torch.bfloat16, torch.float16
    assert len({*keys(two[0], two[0]), *keys(two[1], two[0]), *keys(two[0], two[1])}) == 3
    assert keys(*two) == keys(*two)


def runner(name: str, scale: float) -> Any:
    layer = SimpleNamespace(weights={"q_proj.lora_A.weight": torch.full((2, 4), scale)})
    adapter = SimpleNamespace(
        config=SimpleNamespace(hf_config={"r": 2}),
        layers=[layer],
        embedding_layers={},
        added_tokens_embeddings={},
    )
    return SimpleNamespace(lora_manager=SimpleNamespace(loras={name: adapter}))


def test_an_adapter_whose_files_have_changed_is_another_one() -> None:
    """SGLang names an adapter of --lora-paths by name and path: in the hashes of its pages the two are one."""
    stable = uuid.uuid5(uuid.NAMESPACE_URL, "sql\0/adapters/sql").hex
    before, after = (_weights.adapters_of([runner(stable, scale)]) for scale in (1.0, 2.0))
    assert before != after
    assert before == _weights.adapters_of([runner(stable, 1.0)])


def test_adapters_with_an_identifier_of_their_own_count_for_nothing() -> None:
    assert _weights.adapters_of([runner(uuid.uuid4().hex, 1.0)]) == "none"
    assert _weights.adapters_of([SimpleNamespace(lora_manager=None)]) == "none"


class ModelRunner:
    def __init__(self, number: int | None = None) -> None:
        self.model = object()
        self.is_draft_worker = number is not None
        self.draft_model_idx = number


@pytest.mark.parametrize("frozen", [False, True])
def test_runners_have_the_order_that_every_engine_has(
    monkeypatch: pytest.MonkeyPatch, frozen: bool
) -> None:
    module = ModuleType("sglang.srt.model_executor.model_runner")
    module.ModelRunner = ModelRunner  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    made = [ModelRunner(1), ModelRunner(), ModelRunner(0)]
    if frozen:
        gc.freeze()
    try:
        assert _weights.runners_of_process() == [made[1], made[2], made[0]]
    finally:
        if frozen:
            gc.unfreeze()
