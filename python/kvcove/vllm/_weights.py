# SPDX-License-Identifier: Apache-2.0
"""Which weights an engine has: their fingerprint, and the calls that may change them."""

from __future__ import annotations

import functools
import gc
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar

from kvcove.engines import _digest
from kvcove.vllm import _adapters, _compat, _experts, _own_cache

__all__ = [
    "Updates",
    "draft_of",
    "fingerprint_of",
    "forget_engine",
    "model_of",
    "observe_engine",
    "observe_sleep",
    "runner_of",
    "worker_of",
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


def fingerprint_of(
    model: Any,
    draft: Any | None = None,
    quiet: bool = False,
    experts: Sequence[_experts.Layer] = (),
) -> str:
    """Return 32 hex digits that say which bytes a model's parameters and buffers are.

    With experts that lie on several ranks those of this one follow, each with its digest.

    Parameters
    ----------
    model, draft : torch.nn.Module
        The model, and the one that drafts for it if its KV is stored, too.
    quiet : bool
        Without a log line.
    experts : sequence of Layer
        Of the model.
    """
    began = time.monotonic()
    digest = _digest.Digest()
    apart, covered = _experts.experts_text(experts, digest) if experts else ("", set())
    for prefix, module in (("", model), ("draft:", draft)):
        if module is not None:
            for name, tensor in _digest.tensors_of(module):
                if prefix or name not in covered:
                    digest.add(prefix + name, tensor)
    value = digest.value()
    seconds = time.monotonic() - began
    _log.log(
        logging.DEBUG if quiet else logging.INFO,
        "kvcove: weights %s: %.2f GB in %.3f s (%.1f GB/s)",
        value,
        digest.total_bytes / 1e9,
        seconds,
        digest.total_bytes / 1e9 / max(seconds, 1e-9),
    )
    return f"{value};{apart}" if experts else value


def worker_of(vllm_config: Any) -> Any | None:
    """Return this process's worker, None while it has no model.

    vLLM tells a connector nothing of it, so it is looked for among the live objects; and among the
    frozen ones, as vLLM freezes what there is when the engine has started.
    """
    found = _search(vllm_config)
    if found is None and gc.get_freeze_count() > 0:
        gc.unfreeze()
        try:
            found = _search(vllm_config)
        finally:
            gc.freeze()
    return found


def _search(vllm_config: Any) -> Any | None:
    worker_base = _compat.worker_base()
    found = None
    for candidate in gc.get_objects():
        if not issubclass(type(candidate), worker_base):
            continue
        if getattr(getattr(candidate, "model_runner", None), "model", None) is None:
            continue
        found = candidate
        if getattr(candidate, "vllm_config", None) is vllm_config:
            break
    return found


def runner_of(vllm_config: Any) -> Any | None:
    """Return the model runner of this process's worker, None while it has no model."""
    worker = worker_of(vllm_config)
    return None if worker is None else worker.model_runner


def observe_sleep(worker: Any, drain: Callable[[], None], restore: Callable[[], None]) -> None:
    """Call ``drain`` before a worker's KV memory goes, and ``restore`` when it is back.

    Whoever calls the worker: an engine in this process, its executor or a trainer.
    """

    def before(call: Any) -> Any:
        @functools.wraps(call)
        def observed(*args: Any, **kwargs: Any) -> Any:
            drain()
            return call(*args, **kwargs)

        return observed

    for name in ("sleep", "discard"):
        if hasattr(worker, name):
            setattr(worker, name, before(getattr(worker, name)))
    wake_up = worker.wake_up

    @functools.wraps(wake_up)
    def observed_wake_up(tags: Any = None) -> Any:
        result = wake_up(tags)
        if not tags or "kv_cache" in tags:
            restore()
        return result

    worker.wake_up = observed_wake_up


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


class Updates:
    """Which call of an engine ends a change of its weights.

    vLLM's own updates are several calls: ``start_weight_update`` (``start_draft_weight_update`` for
    the model that drafts), ``update_weights`` as often as needed, ``finish_weight_update``. Any other
    call, also a trainer's own ``update_weights`` that nothing began, is one change.
    """

    def __init__(self) -> None:
        self._begun = False

    def ended_by(self, method: Any) -> bool:
        """Return whether the weights are whole again after this call."""
        if method in ("start_weight_update", "start_draft_weight_update"):
            self._begun = True
        elif method != "update_weights":
            self._begun = False
        return not self._begun


class _Observed:
    """The scheduler roles of this process, and what has been wrapped for them."""

    roles: ClassVar[dict[int, Any]] = {}
    harmless: ClassVar[set[str]] = set()
    wrapped = False


def _connectors_of(engine_core: Any) -> list[Any]:
    connector = getattr(getattr(engine_core, "scheduler", None), "connector", None)
    children = getattr(connector, "_connectors", [connector])
    return [child for child in children if id(child) in _Observed.roles]


def _role_of(engine_core: Any) -> list[Any]:
    return [_Observed.roles[id(child)] for child in _connectors_of(engine_core)]


def _own_caches_of(engine_core: Any) -> list[_own_cache.OwnCache]:
    found = [child.own_cache() for child in _connectors_of(engine_core)]
    return [cache for cache in found if cache is not None]


def _changes_nothing(method: Any) -> bool:
    return isinstance(method, str) and (method in _HARMLESS or method in _Observed.harmless)


def observe_engine(connector: Any, role: Any, harmless: Iterable[str] = ()) -> None:
    """Tell ``role`` of the calls of its EngineCore that may change weights, or reset its cache.

    Parameters
    ----------
    connector, role : Any
        Whose calls, and what is told.
    harmless : iterable of str
        More calls of ``collective_rpc`` that change nothing.
    """
    core = _compat.engine_core()
    _Observed.roles[id(connector)] = role
    _Observed.harmless.update(harmless)
    if _Observed.wrapped:
        return
    _Observed.wrapped = True
    rpc, wake_up = core.collective_rpc, core.wake_up

    @functools.wraps(rpc)
    def observed_rpc(
        self: Any, method: Any, timeout: Any = None, args: Any = (), kwargs: Any = None
    ) -> Any:
        if _changes_nothing(method):
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

    _adapters.observe(core, _role_of)
    _own_cache.observe(core, _own_caches_of)
    core.collective_rpc = observed_rpc
    core.wake_up = observed_wake_up
    if _compat.engine_names_weights():
        core.set_weight_version = _observed_version(core.set_weight_version)


def _observed_version(set_version: Any) -> Any:
    @functools.wraps(set_version)
    def observed(self: Any, weight_version: str) -> Any:
        result = set_version(self, weight_version)
        for each in _role_of(self):
            each.set_version(str(weight_version))
        return result

    return observed


def forget_engine(connector: Any) -> None:
    """Forget a connector that ends."""
    _Observed.roles.pop(id(connector), None)
