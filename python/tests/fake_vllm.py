# SPDX-License-Identifier: Apache-2.0
"""As much of vLLM as kvcove.vllm imports: what the adapter does is tested where vLLM is not."""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import importlib
import sys
import types
from collections.abc import Iterator
from typing import Any

import pytest

LACKING: set[str] = set()  # names that no module has, as in an older vLLM


class _Module(types.ModuleType):
    """A module that has every class that is asked of it."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name in LACKING:
            raise AttributeError(name)
        made = type(name, (), {})
        setattr(self, name, made)
        return made


@dataclasses.dataclass
class KVConnectorTransferResults:
    """As vLLM's."""

    finished_sending: set[str] = dataclasses.field(default_factory=set)
    finished_recving: set[str] = dataclasses.field(default_factory=set)
    failed_recving: set[str] = dataclasses.field(default_factory=set)


_MODULES = (
    *("vllm", "vllm.config", "vllm.distributed", "vllm.distributed.kv_events"),
    *("vllm.distributed.parallel_state", "vllm.distributed.kv_transfer"),
    *("vllm.distributed.kv_transfer.kv_connector", "vllm.distributed.kv_transfer.kv_connector.v1"),
    "vllm.distributed.kv_transfer.kv_connector.v1.base",
    "vllm.distributed.kv_transfer.kv_connector.v1.metrics",
    *("vllm.v1", "vllm.v1.core", "vllm.v1.core.kv_cache_utils", "vllm.v1.metrics"),
    *("vllm.v1.metrics.cache_hit_source", "vllm.v1.kv_cache_interface", "vllm.v1.engine"),
    *(
        "vllm.v1.engine.core",
        "vllm.v1.request",
        "vllm.v1.worker",
        "vllm.v1.worker.worker_base",
        "vllm.platforms",
    ),
)


@contextlib.contextmanager
def installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Put the fakes in the place of vLLM, and let kvcove's modules be imported anew meanwhile."""
    import kvcove.vllm

    package = kvcove.vllm
    kept = {name: sys.modules.pop(name) for name in _ours()}
    _fill(monkeypatch)
    try:
        yield
    finally:
        for name in _ours():
            del sys.modules[name]
        sys.modules.update(kept)
        kvcove.vllm = package


def _ours() -> list[str]:
    return [name for name in sys.modules if name.startswith("kvcove.vllm")]


def _fill(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in _MODULES:
        monkeypatch.setitem(sys.modules, name, _Module(name))
        parent, _, own = name.rpartition(".")
        if parent:  # as an import does
            setattr(sys.modules[parent], own, sys.modules[name])
    base: Any = sys.modules["vllm.distributed.kv_transfer.kv_connector.v1.base"]
    if "KVConnectorTransferResults" not in LACKING:
        base.KVConnectorTransferResults = KVConnectorTransferResults
    events: Any = sys.modules["vllm.distributed.kv_events"]
    events.MEDIUM_CPU = "CPU"
    events.MEDIUM_STORAGE = "STORAGE"
    if "CacheHitSource" in LACKING:
        monkeypatch.delitem(sys.modules, "vllm.v1.metrics.cache_hit_source")
        monkeypatch.delattr(sys.modules["vllm.v1.metrics"], "cache_hit_source")
    else:
        _fill_sources()
    interface: Any = sys.modules["vllm.v1.kv_cache_interface"]
    # As vLLM's: a subclass is a kind of its own.
    interface.KVCacheSpec = type("KVCacheSpec", (), {})
    interface.AttentionSpec = type("AttentionSpec", (interface.KVCacheSpec,), {})
    for name in ("FullAttentionSpec", "SlidingWindowSpec", "ChunkedLocalAttentionSpec"):
        setattr(interface, name, type(name, (interface.AttentionSpec,), {}))
    interface.MLAAttentionSpec = type("MLAAttentionSpec", (interface.FullAttentionSpec,), {})
    interface.MambaSpec = type("MambaSpec", (interface.KVCacheSpec,), {})
    if "kv_cache_layout" in LACKING:
        interface.KVCacheConfig = dataclasses.make_dataclass("KVCacheConfig", ["num_blocks"])


def _fill_sources() -> None:
    hits: Any = sys.modules["vllm.v1.metrics.cache_hit_source"]
    hits.CacheHitSource = enum.Enum(
        "CacheHitSource", ("EXTERNAL_UNSPECIFIED", "HOST", "P2P", "DISK")
    )


def module_of(name: str) -> Any:
    """Return a module of kvcove.vllm that needs vLLM."""
    return importlib.import_module(f"kvcove.vllm.{name}")
