# SPDX-License-Identifier: Apache-2.0
"""Fingerprints of weights, where torch is (make test-vllm)."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from kvcove.engines import _digest  # noqa: E402
from kvcove.vllm import _adapters, _weights  # noqa: E402


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


def lanes_of(tensor: Any) -> tuple[int, int]:
    lanes = _digest.DeviceLanes("cpu")
    lanes.add(tensor)
    return lanes.read()[0]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_torch_lanes_see_every_byte(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_digest.DeviceLanes, "_STEP", 32)  # words: several parts
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


@pytest.mark.parametrize(
    "dtype", ["float32", "bfloat16", "float8_e4m3fn", "int8", "bool", "cfloat"]
)
@pytest.mark.parametrize("offset", [0, 1, 3])
@pytest.mark.parametrize("stride", [1, 2])
def test_torch_lanes_of_every_view_are_those_of_its_values(
    dtype: str, offset: int, stride: int
) -> None:
    whole = (torch.arange(100) % 2 * 3).to(getattr(torch, dtype))
    part = whole[offset::stride]
    assert lanes_of(part) == lanes_of(part.clone())
    assert lanes_of(part[:1]) == lanes_of(part[:1].clone())
    assert lanes_of(part[0]) == lanes_of(part[:1])
    assert lanes_of(part[:0]) == (0, 0)
    if dtype == "cfloat":
        assert lanes_of((part * 1j).conj()) == lanes_of((part * -1j).clone())


@pytest.mark.parametrize("dtype", ["uint4", "int4", "uint1", "float4_e2m1fn_x2", "float8_e8m0fnu"])
def test_torch_types_below_a_byte_are_digested(dtype: str) -> None:
    raw = torch.arange(96, dtype=torch.uint8).reshape(8, 12)
    packed = raw.view(getattr(torch, dtype))
    assert lanes_of(packed) == lanes_of(raw)
    # torch copies no such tensor into order itself.
    assert lanes_of(packed[:, ::2]) == lanes_of(raw[:, ::2].contiguous())
    digests = set()
    for change in (0, 1):
        raw[3, 4] += change
        for part in (packed, packed[:, ::2]):
            module = torch.nn.Module()
            module.register_buffer("weight", part)
            digests.add(_weights.fingerprint_of(module))
    assert len(digests) == 4


class Wrapped:
    """As torchao's: a tensor that is made of others."""

    def __init__(self, values: Any, scale: Any) -> None:
        self.values, self.scale = values, scale
        self.data_ptr = lambda: 0

    def __tensor_flatten__(self) -> tuple[list[str], Any]:
        return ["values", "scale"], {"bits": 4}


def test_torch_tensors_of_tensors_are_digested_by_their_parts() -> None:
    def digest(values: Any, scale: Any) -> str:
        made = _digest.Digest()
        made.add("weight", Wrapped(values, scale))
        return made.value()

    one = torch.ones(4)
    assert digest(one, one * 2) == digest(one.clone(), one * 2)
    assert digest(one, one * 2) != digest(one * 2, one)


def test_torch_lanes_of_all_tensors_are_read_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    # Some lie in no order, and are copied: their memory is bounded, so there are several passes.
    monkeypatch.setattr(_digest.DeviceLanes, "_COPIES", 100)
    tensors = [torch.arange(2 * size)[:: 1 + size % 2] for size in (1, 9, 30, 4, 7, 11)]
    lanes = _digest.DeviceLanes("cpu")
    copies: list[int] = []
    real = torch.Tensor.cpu
    monkeypatch.setattr(torch.Tensor, "cpu", lambda self: copies.append(1) or real(self))
    for tensor in tensors:
        lanes.add(tensor)
    assert copies == []
    assert lanes.read() == [lanes_of(tensor) for tensor in tensors]
    assert len(copies) == 1 + len(tensors)
    assert lanes.read() == []


FUSED = """
import torch
from kvcove.engines._digest import DeviceLanes

sums = []
torch.manual_seed(1)
tensors = [
    torch.randint(0, 256, (size,), dtype=torch.uint8) for size in (1, 8, 9, 1003, 70_001, 0, 4096)
]
for fused in (False, True):
    lanes = DeviceLanes("cpu", fused=fused)
    assert (lanes._kernel is not None) == fused
    for tensor in tensors:
        lanes.add(tensor)
        lanes.add(tensor[1:])
        lanes.add(tensor.flip(0)[::2])
    lanes.add_rows(tensors[-1].view(torch.float32).reshape(8, -1))
    lanes.add_rows(tensors[3].reshape(17, -1))
    sums.append(lanes.read())
assert len(sums[0]) == 3 * len(tensors) + 8 + 17
assert sums[0] == sums[1]
"""


def test_torch_lanes_of_the_kernel_are_the_same() -> None:
    pytest.importorskip("triton")
    # Triton decides when the kernel is made whether it is interpreted.
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    subprocess.run([sys.executable, "-c", FUSED], check=True, timeout=120, env=environment)


@pytest.mark.parametrize("larger_first", [True, False])
def test_torch_views_of_one_address_are_all_seen(larger_first: bool) -> None:
    memory = torch.zeros(64)
    names = ["large", "small"] if larger_first else ["small", "large"]
    sizes = {"large": 64, "small": 16}

    def fingerprint() -> str:
        module = torch.nn.Module()
        for at, name in enumerate(names):
            module.register_buffer(f"{at}_{name}", memory[: sizes[name]])
        module.register_buffer("even", memory[::2])
        return _weights.fingerprint_of(module)

    before = fingerprint()
    memory[17] = 1.0  # in the larger one only, and at an odd place
    assert fingerprint() != before


def test_torch_weights_of_a_drafting_model_count() -> None:
    assert _weights.fingerprint_of(model(), model()) != _weights.fingerprint_of(model())
    other = model()
    other[1].bias.data.add_(1)
    assert _weights.fingerprint_of(model(), model()) != _weights.fingerprint_of(model(), other)


class Lora:
    """As vLLM's LoRAModel: modules with tensors, or lists of them."""

    def __init__(self, number: int, value: float, scaling: float = 1.0) -> None:
        self.id = number
        self.rank = 8
        self.loras = {
            "qkv": SimpleNamespace(lora_a=[torch.ones(8, 4), None], scaling=[scaling, None]),
            "o": SimpleNamespace(lora_a=torch.full((8, 4), value), scaling=1),
        }


def test_torch_adapters_are_told_apart_by_their_content() -> None:
    digest = _adapters.digest_of(Lora(1, 0.5))
    assert digest == _adapters.digest_of(Lora(2, 0.5)), "whatever its number"
    assert digest != _adapters.digest_of(Lora(1, 0.6))
    assert digest != _adapters.digest_of(Lora(1, 0.5, scaling=2.0))


def test_torch_adapters_are_read_once_until_they_are_loaded_again() -> None:
    held = {1: Lora(1, 0.5), 2: Lora(2, 0.6)}
    base = SimpleNamespace(lora_manager=SimpleNamespace(list_adapters=lambda: dict(held)))
    adapters = _adapters.Adapters()
    first = adapters.digests(base)
    assert sorted(first) == [1, 2]
    held[1].rank = 9  # nobody looks again
    assert adapters.digests(base) == first
    held[1] = Lora(1, 0.7)
    second = adapters.digests(base)
    assert second[1] != first[1]
    assert second[2] == first[2]
    del held[2]
    assert sorted(adapters.digests(base)) == [1]
    assert adapters.digests(SimpleNamespace()) == {}


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
    _digest.observe_model(loaded, lambda: seen.append(1))
    assert loaded.load_weights([1, 2]) == 2
    assert seen == [1]
    # As torchtitan does it: past vLLM, into a part of the model.
    part = next(iter(loaded.children()), loaded)
    part.load_state_dict(part.state_dict())
    assert len(seen) > 1
