# SPDX-License-Identifier: Apache-2.0
"""Weights that somebody writes past every call that is observed: looked for now and then.

A thread of low priority in each rank's process digests the weights again every `weights_check_s` and
compares. What it may take for such a write, and is none: an update that is observed, but whose new
fingerprint this rank has not made yet. Two things rule that out: the number of what this rank knows
of its weights, and the engine's scheduler, which is closed from before an observed update until all
ranks have told their fingerprints.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Callable

__all__ = ["Known", "Watch", "check"]

_log = logging.getLogger("vllm.kvcove")


class Known:
    """The fingerprint that a rank has told, and how often that changed. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._number = 0
        self._value = ""

    def told(self, value: str) -> None:
        """Take the fingerprint that the scheduler gets."""
        with self._lock:
            self._number += 1
            self._value = value

    def moving(self) -> None:
        """Forget it: an update was seen."""
        self.told("")

    def now(self) -> tuple[int, str]:
        """Return the number, and the fingerprint; empty: it is not known."""
        with self._lock:
            return self._number, self._value


def check(known: Known, digest: Callable[[], str], closed: Callable[[], bool]) -> str | None:
    """Return the fingerprint of weights that changed unseen, None for all others.

    Parameters
    ----------
    known : Known
        What the rank has told.
    digest : callable
        The weights' fingerprint as they are now.
    closed : callable
        Whether the engine's scheduler is closed, or does not say.
    """
    before = known.now()
    if not before[1]:
        return None
    value = digest()
    if not _contradicts(before[1], value):
        return None
    # In this order: an update that was under way when the scheduler answered has closed it, and one
    # that had ended by then has another number.
    if closed() or known.now() != before:
        return None
    return value


def _contradicts(before: str, now: str) -> bool:
    """Return whether a rank's fingerprints are of other weights.

    Experts that a balancer has moved away since, or to here, are no others.
    """
    digest, _, experts = before.partition(";")
    digest_now, _, experts_now = now.partition(";")
    if digest != digest_now:
        return True
    told = dict(entry.split("=", 1) for entry in experts.partition(";")[2].split(",") if entry)
    found = (entry.split("=", 1) for entry in experts_now.partition(";")[2].split(",") if entry)
    return any(told.get(expert, value) != value for expert, value in found)


class Watch:
    """A thread that checks every so many seconds."""

    def __init__(
        self,
        seconds: float,
        known: Known,
        digest: Callable[[], str],
        closed: Callable[[], bool],
        found: Callable[[str], None],
    ) -> None:
        self._seconds = seconds
        self._stop = threading.Event()
        self._reading = threading.Lock()  # while a check runs
        self._check: Callable[[], str | None] = lambda: check(known, digest, closed)
        self._known = known
        self._found = found
        self._thread = threading.Thread(target=self._run, name="kvcove-weights", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)
        while not self._stop.wait(self._seconds):
            try:
                with self._reading:
                    value = self._check()
            except Exception as error:  # the next one may do; weights may be gone (sleep)
                _log.warning("kvcove: the weights could not be checked: %s", error)
                continue
            if value is not None:
                self._known.moving()
                self._found(value)

    def pause(self) -> None:
        """Read nothing until the next fingerprint is told; waits for a check that runs."""
        with self._reading:
            self._known.moving()

    def close(self) -> None:
        """End it; waits for a check that runs."""
        self._stop.set()
        self._thread.join()
