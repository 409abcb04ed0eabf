# SPDX-License-Identifier: Apache-2.0
"""The connector's counters as vLLM logs and exports them."""

from __future__ import annotations

from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.metrics import (
    KVConnectorPromMetrics,
    KVConnectorStats,
)

from kvcove import _native

__all__ = ["KvcovePromMetrics", "KvcoveStats"]

_GAUGES = frozenset(_native.SchedulerRole.gauges())


class KvcoveStats(KVConnectorStats):
    """Counts since the last step that had any, and gauges as they are."""

    def reset(self) -> None:
        """Forget all."""
        self.data: dict[str, Any] = {}

    def aggregate(self, other: KVConnectorStats) -> KVConnectorStats:
        """Add another's counts."""
        for name, value in other.data.items():
            if name in _GAUGES:
                self.data[name] = value
            else:
                self.data[name] = self.data.get(name, 0) + value
        return self

    def reduce(self) -> dict[str, int | float]:
        """Return what a log line says."""
        data = self.data
        lookups = data.get("lookups", 0)
        shown: dict[str, int | float] = {
            "lookups": lookups,
            "lookup_us": round(data.get("lookup_ns", 0) / 1e3 / max(lookups, 1), 1),
            "hit_tokens": data.get("hit_tokens", 0),
            "loaded_MB": round(data.get("loaded_bytes", 0) / 1e6, 1),
            "saved_MB": round(data.get("saved_bytes", 0) / 1e6, 1),
        }
        for name in (
            *("failed_keys", "stale_keys", "refused_keys", "copy_errors", "misfit_keys"),
            *("resets_failed", "closed"),
        ):
            if data.get(name, 0):
                shown[name] = data[name]
        return shown

    def is_empty(self) -> bool:
        """Return whether nothing was counted."""
        return not any(self.data.values())


class KvcovePromMetrics(KVConnectorPromMetrics):
    """``vllm:kvcove_<what>``: one counter, or gauge, for each of the connector's counts."""

    def __init__(
        self, vllm_config: Any, metric_types: Any, labelnames: Any, per_engine_labelvalues: Any
    ) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        self._labels = labelnames
        self._made: dict[str, Any] = {}

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        """Add what was counted."""
        for name, value in (transfer_stats_data or {}).items():
            gauge = name in _GAUGES
            metric = self._made.get(name)
            if metric is None:
                make = self._gauge_cls if gauge else self._counter_cls
                suffix = "" if gauge else "_total"
                metric = self._made[name] = make(
                    name=f"vllm:kvcove_{name}{suffix}",
                    documentation=f"kvcove's connector: {name.replace('_', ' ')}.",
                    labelnames=self._labels,
                )
            labelled = metric.labels(*self.per_engine_labelvalues[engine_idx])
            labelled.set(value) if gauge else labelled.inc(value)
