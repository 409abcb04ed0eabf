# SPDX-License-Identifier: Apache-2.0
"""Digests of experts by their number, where torch is (make test-vllm)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from kvcove.vllm import _experts, _weights  # noqa: E402

EXPERTS, LAYERS = 4, 2


def weight(layer: int, expert: int) -> Any:
    return torch.full((3, 5), float(10 * layer + expert)) + torch.arange(5)


class Moe(torch.nn.Module):
    """As vLLM's: the experts of one rank, and a map that says which those are."""

    def __init__(self, layer: int, here: list[int], copies: list[int]) -> None:
        super().__init__()
        places = [*range(EXPERTS), *copies]  # logical numbers, by place
        self.local_num_experts = len(here)
        self.w13_weight = torch.nn.Parameter(
            torch.stack([weight(layer, places[place]) for place in here]), requires_grad=False
        )
        self.scale = torch.nn.Parameter(torch.ones(7), requires_grad=False)
        where = torch.full((len(places),), -1, dtype=torch.int32)
        for local, place in enumerate(here):
            where[place] = local
        self.register_buffer("_expert_map", where)

    @property
    def expert_map(self) -> Any:
        return self._expert_map


def rank(here: list[int], copies: list[int] | None = None) -> Any:
    model = torch.nn.Module()
    model.attention = torch.nn.Parameter(torch.ones(4), requires_grad=False)
    model.layers = torch.nn.ModuleList([Moe(at, here, copies or []) for at in range(LAYERS)])
    return model


def balancer(copies: list[int]) -> Any:
    row = [*range(EXPERTS), *copies]
    state = SimpleNamespace(physical_to_logical_map=torch.tensor([row] * LAYERS))
    return SimpleNamespace(model_states={"m": state})


def told(model: Any, balance: Any = None) -> tuple[str, int, dict[str, str]]:
    text = _weights.fingerprint_of(model, experts=_experts.layers_of(model, balance))
    digest, count, entries = text.split(";")
    return digest, int(count), dict(entry.split("=") for entry in entries.split(","))


def test_torch_ranks_differ_in_their_experts_only() -> None:
    first, second = told(rank([0, 1])), told(rank([2, 3]))
    assert first[0] == second[0]
    assert first[1] == second[1] == EXPERTS * LAYERS
    assert sorted(first[2]) == ["0.0", "0.1", "1.0", "1.1"]
    assert sorted(first[2] | second[2]) == [
        f"{layer}.{expert}" for layer in range(LAYERS) for expert in range(EXPERTS)
    ]
    assert len(set((first[2] | second[2]).values())) == EXPERTS * LAYERS


def test_torch_experts_have_the_same_digest_wherever_they_lie() -> None:
    every = told(rank([0, 1]))[2] | told(rank([2, 3]))[2]
    assert told(rank([3, 0]))[2] | told(rank([1, 2]))[2] == every
    assert told(rank([3, 0]))[0] == told(rank([0, 1]))[0]
    # A balancer has put a copy of expert 1 into a place of its own.
    copies = [1]
    moved = told(rank([0, 4], copies), balancer(copies))
    assert moved[1] == EXPERTS * LAYERS
    assert moved[2] == told(rank([0, 1]))[2]


def test_torch_a_changed_expert_is_seen() -> None:
    before = told(rank([0, 1]))
    model = rank([0, 1])
    model.layers[1].w13_weight[1, 2, 3] += 1
    after = told(model)
    assert after[0] == before[0]
    assert [name for name in before[2] if after[2][name] != before[2][name]] == ["1.1"]
    model = rank([0, 1])
    model.layers[1].scale[3] += 1  # every rank has it
    assert told(model)[0] != before[0]
    assert told(model)[2] == before[2]


def test_torch_slices_of_experts_are_told_by_their_rank() -> None:
    def sliced(number: int, size: int) -> Any:
        model = rank([0, 1])
        for layer in model.layers:
            layer._expert_map = None
            layer.moe_config = SimpleNamespace(
                moe_parallel_config=SimpleNamespace(tp_size=size, tp_rank=number)
            )
        return model

    assert _experts.layers_of(sliced(0, 1)) == [], "an engine that has all of them"
    _, count, entries = told(sliced(1, 2))
    assert count == 2 * LAYERS
    assert sorted(entries) == ["0.t1", "1.t1"]


def test_torch_a_model_without_experts_apart_has_its_digest_alone() -> None:
    model = torch.nn.Linear(3, 4)
    assert _experts.layers_of(model) == []
    assert ";" not in _weights.fingerprint_of(model)
