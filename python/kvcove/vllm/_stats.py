# SPDX-License-Identifier: Apache-2.0
"""The connector's counters as vLLM logs and exports them."""

from __future__ import annotations

import math
from typing import Any

from kvcove import _native
from kvcove.vllm._compat import KVConnectorPromMetrics, KVConnectorStats

__all__ = ["KvcovePromMetrics", "KvcoveStats"]

_COUNTS = _native.SchedulerRole.counts()
_GAUGES = frozenset(name for name, kind, _ in _COUNTS if kind == "gauge")
_MOST_OBSERVED = 10_000  # of one bucket in one step


def _buckets() -> dict[str, tuple[str, float]]:
    """Return histogram and upper bound in seconds by the name of a bucket's count."""
    return {
        name: (name.rpartition("_le_")[0], float(name.rpartition("_le_")[2]))
        for name, kind, _ in _COUNTS
        if kind == "bucket"
    }


def _rates(data: dict[str, Any]) -> dict[str, float]:
    """Return how fast one mover loads and saves, in GB/s, where it did."""
    return {
        f"{what}_GBps": data[count] / data[f"{what}_ns"]
        for what, count in (("load", "loaded_bytes"), ("save", "saved_bytes"))
        if data.get(f"{what}_ns", 0) and data.get(count, 0)
    }


class KvcoveStats(KVConnectorStats):
    """Counts since the last step that had any, and gauges as they are."""

    def __getitem__(self, name: str) -> Any:
        """Return ``data`` by its name: MultiConnector of vLLM 0.29 and older asks so."""
        return getattr(self, name)

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
        shown.update({name: round(rate, 2) for name, rate in _rates(data).items()})
        for name in (
            *("failed_keys", "failed_memory_keys", "failed_remote_memory_keys", "failed_disk_keys"),
            *("stale_keys", "refused_keys", "copy_errors", "misfit_keys"),
            *("resets_failed", "closed"),
        ):
            if data.get(name, 0):
                shown[name] = data[name]
        return shown

    def is_empty(self) -> bool:
        """Return whether nothing was counted."""
        return not any(self.data.values())


class KvcovePromMetrics(KVConnectorPromMetrics):
    """``vllm:kvcove_<what>``: all of the connector's counts, from the start on."""

    def __init__(
        self, vllm_config: Any, metric_types: Any, labelnames: Any, per_engine_labelvalues: Any
    ) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        self._buckets = _buckets()
        bounds: dict[str, list[float]] = {}
        for histogram, bound in self._buckets.values():
            bounds.setdefault(histogram, []).append(bound)
        self._bounds = bounds
        self._made: dict[str, dict[int, Any]] = {}
        for name, kind, text in _COUNTS:
            if kind == "bucket":
                name = self._buckets[name][0]
                if name not in self._made:
                    self._make(self._histogram_cls, name, name, text, buckets=bounds[name][:-1])
            elif kind == "gauge":
                self._make(self._gauge_cls, name, name, text)
            else:
                self._make(self._counter_cls, name, f"{name}_total", text)
        for what in ("load", "save"):
            name = f"{what}_GBps"
            self._make(self._gauge_cls, name, name, f"GB/s of one mover at the last {what}s.")
        build = self._gauge_cls(
            name="vllm:kvcove_build_info",
            documentation="1, with the version of the engine's kvcove.",
            labelnames=[*self._labelnames, "version"],
        )
        for values in self.per_engine_labelvalues.values():
            build.labels(*values, _native.version()).set(1)

    def _make(self, make: Any, key: str, name: str, text: str, **more: Any) -> None:
        metric = make(
            name=f"vllm:kvcove_{name}", documentation=text, labelnames=self._labelnames, **more
        )
        # With its labels from the start, so that what has not happened is 0, not absent.
        self._made[key] = {
            engine: metric.labels(*values) for engine, values in self.per_engine_labelvalues.items()
        }

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        """Add what was counted."""
        data = transfer_stats_data or {}
        for name, rate in _rates(data).items():
            self._made[name][engine_idx].set(rate)
        for name, value in data.items():
            if name in self._buckets:
                self._observe(name, int(value), engine_idx)
            elif name in self._made:
                metric = self._made[name][engine_idx]
                metric.set(value) if name in _GAUGES else metric.inc(value)

    def _observe(self, name: str, count: int, engine_idx: int) -> None:
        """Add to a histogram: each as long as the middle of its bucket, in proportions."""
        histogram, bound = self._buckets[name]
        bounds = self._bounds[histogram]
        at = bounds.index(bound)
        below = bounds[at - 1] if at > 0 else bound / 4
        middle = below * 2 if math.isinf(bound) else math.sqrt(below * bound)
        for _ in range(min(count, _MOST_OBSERVED)):
            self._made[histogram][engine_idx].observe(middle)
