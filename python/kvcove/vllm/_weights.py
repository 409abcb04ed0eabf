# SPDX-License-Identifier: Apache-2.0
"""Which weights an engine has: their fingerprint, and the calls that may change them."""

from __future__ import annotations

import functools
import gc
import logging
import time
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

from kvcove.vllm import _adapters, _digest

__all__ = [
    "Updates",
    "draft_of",
    "fingerprint_of",
    "forget_engine",
    "model_of",
    "observe_engine",
    "observe_model",
    "runner_of",
]

_log = logging.getLogger("vllm.kvcove")

# Calls of EngineCore.collective_rpc that change adapters, and those that change nothing.
_ADAPTERS = frozenset({"add_lora", "remove_lora"})
_HARMLESS = frozenset(
    {
        *("list_loras", "pin_lora", "profile", "check_health"),
        *("get_supported_tasks", "get_cache_block_size_bytes", "get_kv_cache_spec", "get_model"),
        *("compute_weight_checksums", "save_sharded_state", "save_tensorized_model", "sleep"),
        *("reset_mm_cache", "reset_encoder_cache", "get_model_inspection", "execute_dummy_batch"),
        *("determine_available_memory", "report_usage_stats", "init_weight_transfer_engine"),
    }
)


def fingerprint_of(model: Any, draft: Any | None = None) -> str:
    """Return 32 hex digits that say which bytes a model's parameters and buffers are.

    Parameters
    ----------
    model, draft : torch.nn.Module
        The model, and the one that drafts for it if its KV is stored, too.
    """
    began = time.monotonic()
    digest = _digest.Digest()
    for prefix, module in (("", model), ("draft:", draft)):
        if module is not None:
            for name, tensor in _tensors(module):
                digest.add(prefix + name, tensor)
    value = digest.value()
    seconds = time.monotonic() - began
    _log.info(
        "kvcove: weights %s: %.2f GB in %.3f s (%.1f GB/s)",
        value,
        digest.total_bytes / 1e9,
        seconds,
        digest.total_bytes / 1e9 / max(seconds, 1e-9),
    )
    return value


def _tensors(model: Any) -> Iterator[tuple[str, Any]]:
    yield from sorted(model.named_parameters(), key=lambda item: item[0])
    yield from sorted(model.named_buffers(), key=lambda item: item[0])


def runner_of(vllm_config: Any) -> Any | None:
    """Return the model runner of this process's worker, None while it has no model.

    vLLM tells a connector nothing of it, so the worker is looked for among the live objects, once.
    """
    from vllm.v1.worker.worker_base import WorkerBase

    found = None
    for candidate in gc.get_objects():
        if not issubclass(type(candidate), WorkerBase):
            continue
        runner = getattr(candidate, "model_runner", None)
        if getattr(runner, "model", None) is None:
            continue
        found = runner
        if getattr(candidate, "vllm_config", None) is vllm_config:
            break
    return found


def model_of(runner: Any) -> Any:
    """Return the model that a runner runs, without what is wrapped around it."""
    return _unwrapped(runner.model)


def draft_of(runner: Any) -> Any | None:
    """Return the model that drafts for a runner's, if there is one."""
    for name in ("drafter", "speculator"):
        model = getattr(getattr(runner, name, None), "model", None)
        if hasattr(model, "named_parameters"):
            return _unwrapped(model)
    return None


def _unwrapped(model: Any) -> Any:
    unwrap = getattr(model, "unwrap", None)
    return unwrap() if callable(unwrap) else model


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
        if isinstance(method, str) and method in _ADAPTERS:
            try:
                return rpc(self, method, timeout, args, kwargs)
            finally:
                _adapters.refresh(self, roles)
        for each in roles:
            each.weights_changing()
        try:
            return rpc(self, method, timeout, args, kwargs)
        finally:
            _adapters.refresh(self, roles)
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

    _adapters.observe(EngineCore, _role_of)
    EngineCore.collective_rpc = observed_rpc
    EngineCore.wake_up = observed_wake_up
    EngineCore.set_weight_version = observed_version


def forget_engine(connector: Any) -> None:
    """Forget a connector that ends."""
    _Observed.roles.pop(id(connector), None)
