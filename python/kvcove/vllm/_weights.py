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

__all__ = ["Updates", "fingerprint_of", "model_of", "observe_engine", "observe_model"]

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

_SPLITMIX = (0x9E3779B97F4A7C15 - (1 << 64), 0xBF58476D1CE4E5B9 - (1 << 64), 0x94D049BB133111EB)
_MASK = (1 << 64) - 1
_FOLD = 0xD6E8FEB86659FD93  # odd: folds the sums of a tensor's parts


class _DeviceLanes:
    """Two sums of 64 bits over a tensor's bytes, computed where it lies.

    Each word goes into both with odd factors of its place, which are made once: 16 passes over the
    data, a part that the caches hold at a time, and one answer a tensor.
    """

    _STEP = 1 << 22  # words

    def __init__(self, device: Any) -> None:
        import torch

        place = torch.arange(1, self._STEP + 1, device=device)
        mixed = place * _SPLITMIX[0]
        mixed = (mixed ^ (mixed >> 30)) * _SPLITMIX[1]
        self._flip = mixed ^ (mixed >> 27)
        self._first = self._flip | 1
        self._second = (self._flip * _SPLITMIX[2]) | 1

    def __call__(self, tensor: Any) -> tuple[int, int]:
        import torch

        data = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
        whole = data.numel() // 8 * 8
        words = data[:whole].view(torch.int64)
        sums = []
        for part in words.split(self._STEP):
            count = part.numel()
            sums.append(((part ^ self._flip[:count]) * self._first[:count]).sum())
            sums.append(((part + (part >> 32)) * self._second[:count]).sum())
        lanes = [0, int.from_bytes(bytes(data[whole:].cpu().tolist()), "little")]
        for at, value in enumerate(torch.stack(sums).cpu().tolist() if sums else ()):
            lanes[at % 2] = (lanes[at % 2] * _FOLD + value) & _MASK
        return lanes[0], lanes[1]


def fingerprint_of(model: Any) -> str:
    """Return 32 hex digits that say which bytes a model's parameters and buffers are.

    Host memory is read at memory speed in C++, device memory by the device.
    """
    began = time.monotonic()
    pieces: list[tuple[int, int]] = []
    kept = []  # what the addresses point to
    text = hashlib.sha256()
    seen: set[int] = set()
    devices: dict[Any, _DeviceLanes] = {}
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
            if tensor.device not in devices:
                devices[tensor.device] = _DeviceLanes(tensor.device)
            text.update(str(devices[tensor.device](tensor)).encode())
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


class Updates:
    """Which call of an engine ends a change of its weights.

    vLLM's own updates are several calls: ``start_weight_update``, ``update_weights`` as often as
    needed, ``finish_weight_update``. Any other call, also a trainer's own ``update_weights`` that
    nothing began, is one change.
    """

    def __init__(self) -> None:
        self._begun = False

    def ended_by(self, method: Any) -> bool:
        """Return whether the weights are whole again after this call."""
        if method == "start_weight_update":
            self._begun = True
        elif method != "update_weights":
            self._begun = False
        return not self._begun


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
            if self.__dict__.setdefault("_kvcove_updates", Updates()).ended_by(method):
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
