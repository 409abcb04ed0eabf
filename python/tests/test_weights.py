# SPDX-License-Identifier: Apache-2.0
"""Fingerprints of weights, where torch is (make test-vllm)."""

from __future__ import annotations

import time
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("vllm")

from kvcove.vllm import _weights  # noqa: E402


def model() -> Any:
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 7))


def test_equal_torch_weights_have_equal_fingerprints() -> None:
    first, second = model(), model()
    assert _weights.fingerprint_of(first) == _weights.fingerprint_of(second)
    for change in (
        lambda m: m[1].bias.data.add_(1e-7),
        lambda m: m[0].weight.data[3, 5].neg_(),
        lambda m: m[0].weight.data.copy_(m[0].weight.data.roll(1, 0)),
    ):
        other = model()
        change(other)
        assert _weights.fingerprint_of(first) != _weights.fingerprint_of(other)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_torch_lanes_see_every_byte(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_weights._DeviceLanes, "_STEP", 32)  # words: several parts
    lanes_of = _weights._DeviceLanes("cpu")
    tensor = torch.arange(1003).to(getattr(torch, dtype))
    lanes = lanes_of(tensor)
    assert lanes == lanes_of(tensor.clone())
    raw = tensor.view(torch.uint8) if dtype != "int8" else tensor
    for at in (0, 7, 500, raw.numel() - 1):
        other = tensor.clone()
        flat = other.view(torch.uint8) if dtype != "int8" else other
        flat[at] ^= 1
        assert lanes_of(other) != lanes
    # The order counts, of parts, too.
    assert lanes_of(tensor.roll(256 // tensor.element_size())) != lanes
    assert lanes_of(tensor.flip(0)) != lanes


def test_torch_fingerprints_cost_little() -> None:
    big = torch.nn.Module()
    big.weight = torch.nn.Parameter(torch.zeros(1 << 26), requires_grad=False)
    began = time.monotonic()
    _weights.fingerprint_of(big)
    print(f"{0.268 / (time.monotonic() - began):.1f} GB/s")


def test_loading_into_a_torch_model_is_noticed() -> None:
    seen: list[int] = []
    loaded = model()
    loaded.load_weights = lambda weights: len(weights)
    _weights.observe_model(loaded, lambda: seen.append(1))
    assert loaded.load_weights([1, 2]) == 2
    assert seen == [1]
