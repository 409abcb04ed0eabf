# SPDX-License-Identifier: Apache-2.0
"""What the pool brings to an engine, in lines for people: at its start, every minute, and at its end."""

from __future__ import annotations

import itertools
import logging
import os
import stat
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from kvcove import _native

__all__ = ["Summary", "chunks_text", "size_line"]

_log = logging.getLogger("vllm.kvcove")
_EVERY_S = 60.0
_NUMBER = itertools.count(1)  # of an engine in this process
_TIERS = {
    "hit_memory_keys": "memory of this host",
    "hit_remote_memory_keys": "memory of other hosts",
    "hit_disk_keys": "disks",
}
_MISSED = "lookup_missed_"
_TROUBLES = {
    "loads_failed": "loads failed",
    "failed_memory_keys": "values in memory of this host not loaded",
    "failed_remote_memory_keys": "values in memory of other hosts not loaded",
    "failed_disk_keys": "values on disks not loaded",
    "stale_keys": "values refused, as they were computed before a reset",
    "refused_keys": "values not stored (no room, or no answer)",
}
# Of some 180 counts, those that lines are made of: each step adds them up.
_COUNTED = (
    *("lookups", "asked_tokens", "hit_tokens", "declined_tokens"),
    *("loaded_bytes", "saved_bytes", "saved_keys"),
    *_TIERS,
    *_TROUBLES,
    *(name for name, _, _ in _native.SchedulerRole.counts() if name.startswith(_MISSED)),
)


def chunks_text(chunk_bytes: list[int]) -> str:
    """Return the bytes of a chunk, of each group of layers."""
    return " + ".join(f"{each:,}" for each in chunk_bytes)


def size_line(
    pool_bytes: int, token_bytes: float, own_tokens: int, alone: bool
) -> tuple[str, bool]:
    """Return a line that compares the pool with the engine's own cache, and whether it is a warning.

    Parameters
    ----------
    pool_bytes : int
        What the pool holds, memory and disks together.
    token_bytes : float
        Of a token's KV in the pool, of all ranks.
    own_tokens : int
        That the engine's own cache holds.
    alone : bool
        Whether the pool is this engine's alone.
    """
    tokens = int(pool_bytes / token_bytes)
    text = (
        f"the pool holds about {tokens:,} tokens of this model ({pool_bytes / (1 << 30):.1f} GiB, "
        f"{token_bytes:,.0f} bytes a token), this engine's own cache {own_tokens:,}"
    )
    if tokens > own_tokens:
        return text, False
    if alone:
        return (
            f"{text}: as it is this engine's alone, it adds nothing; give it more ('memory', 'disk'), "
            "or share one among engines (`kvcove serve`)",
            True,
        )
    return f"{text}: for one engine it adds nothing, only for several that share it", False


class Summary:
    """Counts of an engine since its last line, and since its start.

    Not thread-safe: vLLM's scheduler alone counts.

    Parameters
    ----------
    say : callable
        Takes a line.
    clock : callable, optional
        Returns seconds.
    tell : str, optional
        A pipe for what there was since the start, each minute and at the end: of the ``kvcove run`` that has
        started this engine ($KVCOVE_SUMMARIES), which says it when the engine has ended. Empty: none.
    """

    def __init__(
        self,
        say: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
        tell: str | None = None,
    ) -> None:
        self._say = say
        self._tell_to = os.environ.get("KVCOVE_SUMMARIES", "") if tell is None else tell
        self._name = f"{os.getpid()}-{next(_NUMBER)}"
        self._clock = clock
        self._began = self._said = clock()
        self._all: Counter[str] = Counter()
        self._new: Counter[str] = Counter()
        self._token_ns = 0

    def add(self, news: Mapping[str, Any]) -> None:
        """Add what was counted since the last call, and say a line if the last one is a minute old."""
        self._token_ns = int(news.get("cost_compute_token_ns", 0)) or self._token_ns
        for name in _COUNTED:
            if value := news.get(name):
                self._new[name] += value
        now = self._clock()
        if now - self._said >= _EVERY_S:
            self._tell(f"the last {now - self._said:.0f} s", self._new)
            changed = bool(self._new)
            self._all += self._new
            self._new.clear()
            self._said = now
            if changed:
                self._report()

    def end(self) -> None:
        """Say what there was since the start, if there was anything."""
        self._all += self._new
        self._new.clear()
        self._tell(self._whole(), self._all)
        self._report()

    def _whole(self) -> str:
        return f"all {self._clock() - self._began:.0f} s of this engine"

    def _report(self) -> None:
        """Write what there was to the pipe; a line that finds no reader, or no room, is lost."""
        if not self._tell_to or not (self._all["lookups"] or self._all["saved_keys"]):
            return
        line = f"{self._name} {self._whole()}: {self._text(self._all)}\n"
        try:
            pipe = os.open(self._tell_to, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                # The number of a `kvcove run` that is gone may be another process's, and the path its file.
                if stat.S_ISFIFO(os.fstat(pipe).st_mode):
                    os.write(pipe, line.encode())
            finally:
                os.close(pipe)
        except OSError as error:
            _log.debug("kvcove: `kvcove run` is not told: %s: %s", self._tell_to, error)

    def _tell(self, when: str, counts: Counter[str]) -> None:
        if counts["lookups"] or counts["saved_keys"]:
            self._say(f"{when}: {self._text(counts)}")

    def _text(self, counts: Counter[str]) -> str:
        asked, hit = counts["asked_tokens"], counts["hit_tokens"]
        parts = [f"{hit:,} of {asked:,} tokens looked up were found"]
        if asked:
            parts[0] += f" ({100 * hit / asked:.0f} %)"
        keys = {name: counts[name] for name in _TIERS if counts[name]}
        if keys:
            total = sum(keys.values())
            parts.append(
                ", ".join(f"{100 * n / total:.0f} % in {_TIERS[name]}" for name, n in keys.items())
            )
        if hit and self._token_ns:
            parts.append(f"about {hit * self._token_ns / 1e9:,.1f} s of computing saved")
        if counts["declined_tokens"]:
            parts.append(
                f"{counts['declined_tokens']:,} tokens found were computed, which is faster"
            )
        parts.append(
            f"loaded {counts['loaded_bytes'] / 1e9:,.2f} GB, stored {counts['saved_bytes'] / 1e9:,.2f} GB"
        )
        missed = {
            name.removeprefix(_MISSED).replace("_", " "): value
            for name, value in counts.most_common()
            if name.startswith(_MISSED) and value
        }
        if missed:
            parts.append("keys missed: " + ", ".join(f"{n:,} {why}" for why, n in missed.items()))
        for name, text in _TROUBLES.items():
            if counts[name]:
                parts.append(f"{counts[name]:,} {text}")
        return "; ".join(parts)
