# SPDX-License-Identifier: Apache-2.0
"""Which weights an engine has: their fingerprint, and the calls that may change them."""

from __future__ import annotations

import functools
import gc
import hashlib
import logging
import time
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

from kvcove import _native

__all__ = ["fingerprint_of", "model_of", "observe_engine", "observe_model"]

_log = logging.getLogger("vllm.kvcove")

# Calls of EngineCore.collective_rpc that leave the weights as they are.
_HARMLESS = frozenset(
    {
        *("add_lora", "remove_lora", "list_loras", "pin_lora", "profile", "check_health"),
        *("get_supported_tasks", "get_cache_block_size_bytes", "get_kv_cache_spec", "get_model"),
        *("compute_weight_checksums", "save_sharded_state", "save_tensorized_model", "sleep"),
        *("reset_mm_cache", "reset_encoder_cache", "get_model_inspection", "execute_dummy_batch"),
        *("determine_available_memory", "report_usage_stats", "init_weight_transfer_engine"),
    }
)
_BEGINS = frozenset({"start_weight_update"})
_MIDDLE = frozenset({"update_weights"})

_SPLITMIX = (0x9E3779B97F4A7C15 - (1 << 64), 0xBF58476D1CE4E5B9 - (1 << 64), 0x94D049BB133111EB)


def _device_lanes(tensor: Any) -> tuple[int, int]:
    """Return two sums of 64 bits over a tensor's bytes, computed where it lies."""
    import torch

    data = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    whole = data.numel() // 8 * 8
    words = data[:whole].view(torch.int64)
    lanes = [0, 0]
    step = 1 << 24
    for at in range(0, words.numel(), step):
        part = words[at : at + step]
        place = torch.arange(at + 1, at + 1 + part.numel(), device=part.device)
        mixed = place * _SPLITMIX[0]
        mixed = (mixed ^ (mixed >> 30)) * _SPLITMIX[1]
        mixed = mixed ^ (mixed >> 27)
        lanes[0] += int(((part ^ mixed) * (mixed | 1)).sum())
        other = mixed * _SPLITMIX[2]
        lanes[1] += int(((part + (part >> 32)) * (other | 1)).sum())
    tail = bytes(data[whole:].cpu().tolist())
    mask = (1 << 64) - 1
    return (lanes[0] + int.from_bytes(tail, "little")) & mask, lanes[1] & mask


def fingerprint_of(model: Any) -> str:
    """Return 32 hex digits that say which bytes a model's parameters and buffers are.

    Host memory is read at memory speed in C++, device memory by the device.
    """
    began = time.monotonic()
    pieces: list[tuple[int, int]] = []
    kept = []  # what the addresses point to
    text = hashlib.sha256()
    seen: set[int] = set()
    total = 0
    for name, tensor in _tensors(model):
        text.update(f"{name}|{tuple(tensor.shape)}|{tensor.dtype}|".encode())
        if tensor.numel() == 0 or tensor.data_ptr() in seen:
            continue
        seen.add(tensor.data_ptr())
        total += tensor.numel() * tensor.element_size()
        if tensor.device.type == "cpu":
            plain = tensor.detach().contiguous()
            kept.append(plain)
            pieces.append((plain.data_ptr(), plain.numel() * plain.element_size()))
        else:
            text.update(str(_device_lanes(tensor)).encode())
    text.update(_native.fingerprint(pieces).encode())
    value = text.hexdigest()[:32]
    seconds = time.monotonic() - began
    _log.info(
        "kvcove: weights %s: %.2f GB in %.3f s (%.1f GB/s)",
        value,
        total / 1e9,
        seconds,
        total / 1e9 / max(seconds, 1e-9),
    )
    return value


def _tensors(model: Any) -> Iterator[tuple[str, Any]]:
    yield from sorted(model.named_parameters(), key=lambda item: item[0])
    yield from sorted(model.named_buffers(), key=lambda item: item[0])


def model_of(vllm_config: Any) -> Any | None:
    """Return the model of this process's worker, None if there is none yet.

    vLLM tells a connector nothing of it, so the worker is looked for among the live objects, once.
    """
    from vllm.v1.worker.worker_base import WorkerBase

    found = None
    for candidate in gc.get_objects():
        if not issubclass(type(candidate), WorkerBase):
            continue
        runner = getattr(candidate, "model_runner", None)
        model = getattr(runner, "model", None)
        if model is None:
            continue
        found = model
        if getattr(candidate, "vllm_config", None) is vllm_config:
            break
    unwrap = getattr(found, "unwrap", None)
    return unwrap() if callable(unwrap) else found


def observe_model(model: Any, changing: Callable[[], None]) -> None:
    """Call ``changing`` whenever somebody in this process loads weights into the model."""
    load = model.load_weights

    @functools.wraps(load)
    def observed(*args: Any, **kwargs: Any) -> Any:
        changing()
        return load(*args, **kwargs)

    model.load_weights = observed


class _Observed:
    """The scheduler roles of this process, and what has been wrapped for them."""

    roles: ClassVar[dict[int, Any]] = {}
    wrapped = False


def _role_of(engine_core: Any) -> list[Any]:
    connector = getattr(getattr(engine_core, "scheduler", None), "connector", None)
    children = getattr(connector, "_connectors", [connector])
    return [_Observed.roles[id(child)] for child in children if id(child) in _Observed.roles]


def observe_engine(connector: Any, role: Any) -> None:
    """Tell ``role`` of the calls of its EngineCore that may change weights."""
    from vllm.v1.engine.core import EngineCore

    _Observed.roles[id(connector)] = role
    if _Observed.wrapped:
        return
    _Observed.wrapped = True
    rpc, wake_up, set_version = (
        EngineCore.collective_rpc,
        EngineCore.wake_up,
        EngineCore.set_weight_version,
    )

    @functools.wraps(rpc)
    def observed_rpc(
        self: Any, method: Any, timeout: Any = None, args: Any = (), kwargs: Any = None
    ) -> Any:
        if isinstance(method, str) and method in _HARMLESS:
            return rpc(self, method, timeout, args, kwargs)
        roles = _role_of(self)
        for each in roles:
            each.weights_changing()
        try:
            return rpc(self, method, timeout, args, kwargs)
        finally:
            # An update in several calls ends with its last one.
            if method not in _BEGINS and method not in _MIDDLE:
                for each in roles:
                    each.weights_changed()

    @functools.wraps(wake_up)
    def observed_wake_up(self: Any, *args: Any, **kwargs: Any) -> Any:
        roles = _role_of(self)
        for each in roles:
            each.weights_changing()
        try:
            return wake_up(self, *args, **kwargs)
        finally:
            for each in roles:
                each.weights_changed()

    @functools.wraps(set_version)
    def observed_version(self: Any, weight_version: str) -> Any:
        result = set_version(self, weight_version)
        for each in _role_of(self):
            each.set_version(str(weight_version))
        return result

    EngineCore.collective_rpc = observed_rpc
    EngineCore.wake_up = observed_wake_up
    EngineCore.set_weight_version = observed_version


def forget_engine(connector: Any) -> None:
    """Forget a connector that ends."""
    _Observed.roles.pop(id(connector), None)
