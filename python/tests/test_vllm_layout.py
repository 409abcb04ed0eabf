# SPDX-License-Identifier: Apache-2.0
"""Which KV layout the adapter asks vLLM for, and in which order layers lie in an object."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from fake_vllm import installed, module_of


class Platform:
    """A GPU of that major compute capability; None: no GPU of NVIDIA's."""

    def __init__(self, major: int | None) -> None:
        self.major = major

    def is_cuda(self) -> bool:
        return self.major is not None

    def get_device_capability(self) -> Any:
        return None if self.major is None else SimpleNamespace(major=self.major, minor=0)


@pytest.fixture
def layout(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    with installed(monkeypatch):
        yield module_of("_layout")


def asked(
    layout: Any, setting: str | None, major: int | None = 9, mla: bool = False, current: Any = None
) -> str | None:
    platforms: Any = sys.modules["vllm.platforms"]
    platforms.current_platform = Platform(major)
    config: Any = sys.modules["vllm.config"]
    config.get_current_vllm_config_or_none = lambda: current
    extra = {} if setting is None else {"kv_layout": setting}
    answer = layout.required_layout(
        SimpleNamespace(
            kv_transfer_config=SimpleNamespace(
                kv_connector="KvcoveConnector", kv_connector_extra_config=extra
            ),
            model_config=SimpleNamespace(use_mla=mla),
        )
    )
    return None if answer is None else str(answer)


def engine_with(extra: dict[str, Any]) -> Any:
    return SimpleNamespace(kv_transfer_config=SimpleNamespace(kv_connector_extra_config=extra))


def test_blocks_come_first_on_a_gpu_in_the_order_that_its_kernels_have(layout: Any) -> None:
    assert asked(layout, None) == "BLNHC"
    assert asked(layout, "block") == "BLNHC"
    assert asked(layout, None, major=10) == "BLHNC"
    assert asked(layout, None, mla=True) == "BLHNC"


def test_the_engine_keeps_its_own_layout(layout: Any) -> None:
    assert asked(layout, "engine") is None
    assert asked(layout, None, major=None) is None, "a CPU's kernels know one layout"
    assert asked(layout, "block", major=None) == "BLNHC", "who insists gets what is asked for"


def test_siblings_have_a_say(layout: Any) -> None:
    alone = engine_with({"pool": "auto"})
    several = engine_with({"connectors": [{}, {}]})
    assert asked(layout, None, current=alone) == "BLNHC"
    assert asked(layout, None, current=several) is None
    assert asked(layout, "block", current=several) == "BLNHC"


def test_siblings_have_a_say_where_no_configuration_is_current(
    layout: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As MultiConnector calls its children.
    caller = {"asked": asked, "layout": layout, "__name__": "vllm.somewhere.multi_connector"}
    exec("answer = asked(layout, None)", caller)
    assert caller["answer"] is None


class Attention:
    def forward(self) -> None:
        """Call the operator that waits."""


class MLAAttention(Attention):
    def forward(self) -> None:
        """Call the other one."""


class Windows(Attention):
    """Attention, with another mask."""


class Sparse(MLAAttention):
    def forward(self) -> None:
        """Call an operator of its own."""


@pytest.mark.parametrize(
    ("kinds", "micro_batches", "why"),
    [
        ([Attention, MLAAttention, Windows], False, None),
        ([Attention, object], False, "layer 1 (object)"),
        ([Attention, Sparse], False, "layer 1 (Sparse)"),
        ([Attention, None], False, "layer 1 (NoneType)"),
        ([Attention], True, "micro-batches"),
    ],
)
def test_a_step_waits_by_layers_where_every_layer_is_waited_for(
    layout: Any,
    monkeypatch: pytest.MonkeyPatch,
    kinds: list[Any],
    micro_batches: bool,
    why: str | None,
) -> None:
    attention: Any = SimpleNamespace(Attention=Attention, MLAAttention=MLAAttention)
    monkeypatch.setitem(sys.modules, "vllm.model_executor.layers.attention", attention)
    config = SimpleNamespace(
        parallel_config=SimpleNamespace(use_ubatching=micro_batches),
        compilation_config=SimpleNamespace(
            static_forward_context={
                str(i): kind() for i, kind in enumerate(kinds) if kind is not None
            }
        ),
    )
    told = layout.why_not_by_layers(config, [str(i) for i in range(len(kinds))])
    assert told is None if why is None else why in told


def test_layers_lie_by_their_numbers(layout: Any) -> None:
    names = [f"model.layers.{i}.attn" for i in range(12)]
    assert sorted(reversed(names), key=layout.natural) == names
