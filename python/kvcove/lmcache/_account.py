# SPDX-License-Identifier: Apache-2.0
"""The objects that LMCache's quotas count."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from typing import Any

__all__ = ["Account"]

_Notify = Callable[[list[Any], list[int]], None]


class Account:
    """Sizes of the objects that this server has stored and has not seen vanish. Thread-safe.

    LMCache, which counts the bytes, is notified under the lock: it must learn of an object before it learns that the
    object is gone. It calls nothing of the adapter meanwhile.

    Parameters
    ----------
    stored, deleted : callable
        Notify LMCache of keys and sizes.
    """

    def __init__(self, stored: _Notify, deleted: _Notify) -> None:
        self._stored, self._deleted = stored, deleted
        self._lock = threading.Lock()
        self._sizes: dict[Any, int] = {}

    def __len__(self) -> int:
        return len(self._sizes)

    def store(self, keys: Sequence[Any], sizes: Sequence[int], fresh: Callable[[], bool]) -> None:
        """Count objects, unless ``fresh`` says no. One that had vanished unnoticed counts once."""
        with self._lock:
            if not fresh():
                return
            new = [each for each in zip(keys, sizes, strict=True) if each[0] not in self._sizes]
            self._sizes.update(new)
            if new:
                self._stored([key for key, _ in new], [size for _, size in new])

    def forget(self, keys: Sequence[Any]) -> None:
        """Count those of the objects no more that are counted."""
        with self._lock:
            self._drop([key for key in keys if key in self._sizes])

    def delete(self, keys: Sequence[Any]) -> None:
        """Count objects no more; LMCache is notified of all of them, since it has asked for it."""
        with self._lock:
            self._drop(list(keys))

    def clear(self) -> None:
        """Count nothing any more."""
        with self._lock:
            self._drop(list(self._sizes))

    def oldest(self, count: int) -> list[Any]:
        """Return the objects that were counted first, which become the last ones."""
        with self._lock:
            keys = list(itertools.islice(self._sizes, count))
            for key in keys:
                self._sizes[key] = self._sizes.pop(key)
            return keys

    def _drop(self, keys: list[Any]) -> None:
        if keys:
            self._deleted(keys, [self._sizes.pop(key, 0) for key in keys])
