# SPDX-License-Identifier: Apache-2.0
"""The metrics of that program's master, by its names, made of what kvcove's master counts.

Those that kvcove has nothing for are left out: a panel that says "no data" is better than a wrong 0.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["OwnerSums", "Own", "master_metrics"]

_MOST_OWNERS = 1024  # whose last counts are remembered: more if more are there
_SAMPLE = re.compile(r"^(\w+)(?:\{(.*)\})? (\S+)$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
# What a miss is where nothing fails.
_NO_FAULTS = {"never put", "evicted", "removed", "reset"}


def _unescaped(label: str) -> str:
    return re.sub(r"\\(.)", lambda found: "\n" if found[1] == "n" else found[1], label)


def _escaped(label: str) -> str:
    return label.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


class Own:
    """kvcove's metrics, as ``/metrics`` of its master says them."""

    def __init__(self, text: str) -> None:
        self._samples: dict[str, list[tuple[dict[str, str], float]]] = {}
        for name, labels, value in _SAMPLE.findall(text):
            by_name = {label: _unescaped(text) for label, text in _LABEL.findall(labels)}
            self._samples.setdefault(name, []).append((by_name, float(value)))

    def sum(self, name: str, **wanted: str) -> float:
        """Return the sum of the samples that have these labels."""
        return sum(
            value
            for labels, value in self._samples.get(name, [])
            if all(labels.get(label) == text for label, text in wanted.items())
        )

    def by_owner(self, name: str) -> dict[str, float]:
        """Return each owner's sum of the samples."""
        sums: dict[str, float] = {}
        for labels, value in self._samples.get(name, []):
            sums[labels["owner"]] = sums.get(labels["owner"], 0) + value
        return sums

    def calls(self, call: str) -> float:
        """Return how many calls of this kind the master has answered."""
        return self.sum("kvcove_master_call_seconds_count", call=call)

    def fault_misses(self) -> float:
        """Return the keys whose look-up failed: they may be stored."""
        return sum(
            value
            for labels, value in self._samples.get("kvcove_requester_misses_total", [])
            if labels["reason"] not in _NO_FAULTS
        )


class OwnerSums:
    """Sums of the owners' counters that never fall: an owner that ends, or starts again, leaves what it had counted.

    Not thread-safe: a text of ``/metrics`` must be added before a newer one.
    """

    def __init__(self) -> None:
        self._ended: dict[str, float] = {}
        # By counter and owner, the owner heard last at the end.
        self._last: dict[str, dict[str, float]] = {}

    def add(self, own: Own, name: str) -> float:
        """Return the sum of a counter over all owners that were ever seen."""
        last = self._last.setdefault(name, {})
        now = own.by_owner(name)
        for owner, value in now.items():
            before = last.pop(owner, 0.0)
            # 0 also means that the master, which leads anew, has not heard from the owner yet.
            if value == 0:
                value = before
            elif value < before:
                self._end(name, before)
            last[owner] = value
        # An owner that is missing now may come back as the same process, so its count remains its own. Those that are
        # there are behind it, and never end here, however many they are.
        while len(last) > max(_MOST_OWNERS, len(now)):
            self._end(name, last.pop(next(iter(last))))
        return self._ended.get(name, 0.0) + sum(last.values())

    def _end(self, name: str, count: float) -> None:
        self._ended[name] = self._ended.get(name, 0.0) + count


def _requests(own: Own, sums: OwnerSums) -> list[tuple[str, str, float]]:
    """Return name, help and value of the counters of requests, items and failures."""
    puts = sums.add(own, "kvcove_master_owner_puts_total")
    stale = sums.add(own, "kvcove_master_owner_stale_puts_total")
    hits = sums.add(own, "kvcove_master_owner_hits_total")
    misses = own.sum("kvcove_requester_misses_total")
    keys = own.sum("kvcove_master_lookups_total")
    resets = own.sum("kvcove_master_resets_total")
    unproven = own.sum("kvcove_master_resets_not_proven_total")
    return [
        ("put_start_requests", "values whose put was begun, and stored or refused", puts + stale),
        ("put_end_requests", "values whose put was ended, and stored or refused", puts + stale),
        ("put_end_failures", "values refused: a reset or removal came first", stale),
        ("exist_key_requests", "keys that were looked up at the master", keys),
        ("exist_key_failures", "keys whose look-up failed", own.fault_misses()),
        ("batch_exist_key_requests", "look-ups, each of many keys", own.calls("lookup")),
        ("batch_exist_key_items", "keys that were looked up at the master", keys),
        ("batch_exist_key_failed_items", "keys whose look-up failed", own.fault_misses()),
        ("get_replica_list_requests", "keys that were read or missed", hits + misses),
        ("get_replica_list_failures", "keys that were missed, whatever the reason", misses),
        ("remove_requests", "removals by keys or pattern", own.calls("remove")),
        ("remove_all_requests", "resets", resets),
        ("remove_all_failures", "resets that were not answered as proven", unproven),
        ("ping_requests", "renewals of owners' leases", own.calls("renew")),
    ]


def master_metrics(
    text: str,
    segments: Sequence[Mapping[str, Any]],
    status: Mapping[str, Any],
    sums: OwnerSums,
) -> str:
    """Return the metrics by that program's names.

    Parameters
    ----------
    text : str
        kvcove's own, in Prometheus' text form.
    segments : sequence of mappings
        What ``/v1/segments`` says of the owners that are not gone.
    status : mapping
        What ``/v1/status`` says.
    sums : OwnerSums
        Of the texts before; this one is added.
    """
    own = Own(text)
    lines: list[str] = []

    def family(name: str, kind: str, help_: str, samples: list[tuple[str, float]]) -> None:
        lines.extend((f"# HELP {name} {help_}", f"# TYPE {name} {kind}"))
        lines.extend(f"{name}{labels} {value:.17g}" for labels, value in samples)

    capacities = [s["capacity_bytes"] for s in segments]
    used = [s["capacity_bytes"] - s["free_bytes"] for s in segments]
    labels = [f'{{segment="{_escaped(s["address"])}"}}' for s in segments]
    by_segment = list(zip(labels, used, strict=True))
    family("master_allocated_bytes", "gauge", "memory in use", [("", sum(used))])
    family("master_total_capacity_bytes", "gauge", "memory of the pool", [("", sum(capacities))])
    family("segment_allocated_bytes", "gauge", "memory in use, by owner", by_segment)
    by_segment = list(zip(labels, capacities, strict=True))
    family("segment_total_capacity_bytes", "gauge", "memory that an owner gives", by_segment)
    for name, help_, value in (
        ("master_key_count", "objects and replicas", status["objects"]),
        ("master_active_clients", "owners that are not gone", len(segments)),
        ("master_soft_pin_key_count", "always 0: owners do not count soft pins", 0),
    ):
        family(name, "gauge", help_, [("", value)])
    for name, counter, help_ in (
        ("master_evicted_key_count", "evictions", "values evicted to make room"),
        ("mem_cache_hit_nums_", "hits", "values read from memory"),
    ):
        value = sums.add(own, f"kvcove_master_owner_{counter}_total")
        family(name, "counter", help_, [("", value)])
    for name, help_, value in _requests(own, sums):
        family(f"master_{name}_total", "counter", help_, [("", value)])
    return "\n".join(lines) + "\n"
