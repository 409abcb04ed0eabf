# SPDX-License-Identifier: Apache-2.0
"""Calls that are under way: the items of each, and whether all of its parts have ended."""

from __future__ import annotations

import itertools
import logging
import os
import threading
from collections.abc import Callable, Sequence
from typing import Any

import kvcove
from kvcove import _native
from kvcove.lmcache._spaces import Space

__all__ = ["Part", "Task", "Tasks"]

_log = logging.getLogger("lmcache.kvcove")


class Part:
    """The items of a task that are in one namespace.

    Attributes
    ----------
    space : Space
    token : Token or None
        Of a store: of the time when the writes of its objects began.
    names : list of bytes
        Their keys in the pool.
    first : int
        Place of the first one in the task; the others follow.
    sizes : sequence of int
        Bytes of the caller's buffers; empty for a look-up.
    """

    __slots__ = ("first", "names", "results", "sizes", "space", "task", "token")

    def __init__(self, space: Space, first: int, token: _native.Token | None = None) -> None:
        self.space = space
        self.token = token
        self.names: list[bytes] = []
        self.first = first
        self.sizes: Sequence[int] = ()
        self.results: Any = None  # None: the call as a whole has failed
        self.task: Task


class Task:
    """One task of LMCache.

    Attributes
    ----------
    number : int
    keys : sequence
        LMCache's keys.
    objects : sequence
        LMCache's buffers, which it keeps until the task has ended.
    parts : list of Part
        Items that are in no part are neither found nor stored.
    clears : int
        Clears that had begun when the task was submitted.
    """

    __slots__ = ("clears", "keys", "left", "number", "objects", "parts")

    def __init__(
        self, number: int, keys: Sequence[Any], objects: Sequence[Any], clears: int
    ) -> None:
        self.number = number
        self.keys = keys
        self.objects = objects
        self.clears = clears
        self.parts: list[Part] = []
        self.left = 0


class Tasks:
    """The tasks of one kind. Thread-safe.

    The queue's descriptor is the one that LMCache polls, so no thread of this process is between the pool and
    LMCache's. Its eventfd counts completions one by one; :meth:`take` takes all, so one that is left by a reader who
    took the count only is not lost.
    """

    def __init__(self) -> None:
        self._queue = _native.Queue(1 << 16)
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._running: dict[int, Part] = {}
        self._at_once: list[Task] = []  # ended without any call

    def fileno(self) -> int:
        """Return the descriptor that is readable when a task has ended."""
        return self._queue.fileno()

    def announce(self) -> None:
        """Make the descriptor readable."""
        os.eventfd_write(self.fileno(), 1)

    def submit(
        self,
        keys: Sequence[Any],
        objects: Sequence[Any],
        clears: int,
        parts: list[Part],
        start: Callable[[_native.Queue, Part], int],
    ) -> int:
        """Begin a task and return its number. ``start`` begins the call of a part and returns its tag."""
        task = Task(next(self._numbers), keys, objects, clears)
        task.parts = parts
        with self._lock:
            for part in parts:
                part.task = task
                try:
                    self._running[start(self._queue, part)] = part
                    task.left += 1
                except kvcove.Error as error:
                    _log.debug("kvcove: a call was not begun: %s", error)
            if task.left == 0:
                self._at_once.append(task)
                self.announce()
        return task.number

    def ended(self, keys: Sequence[Any], clears: int, parts: list[Part]) -> int:
        """Note a task whose parts have their results already, and return its number."""
        task = Task(next(self._numbers), keys, (), clears)
        task.parts = parts
        with self._lock:
            self._at_once.append(task)
        self.announce()
        return task.number

    def take(self) -> list[Task]:
        """Return the tasks of which nothing moves any bytes any more."""
        with self._lock:
            ended, self._at_once = self._at_once, []
            while self._running and (completion := self._queue.next(0.0)) is not None:
                tag, answer, final = completion
                if not final:
                    continue  # its deadline has passed, and its bytes may still land
                part = self._running.pop(tag)
                if not isinstance(answer, kvcove.Error):
                    part.results = answer
                part.task.left -= 1
                if part.task.left == 0:
                    ended.append(part.task)
        return ended

    def busy(self) -> bool:
        """Whether a task is under way."""
        with self._lock:
            return bool(self._running)
