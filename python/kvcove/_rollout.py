# SPDX-License-Identifier: Apache-2.0
"""Values that a trainer's rollout keeps in memory."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Iterable
from types import TracebackType

from kvcove._errors import Error, InvalidError
from kvcove._native import Session

__all__ = ["Rollout"]

_log = logging.getLogger("kvcove")

_BATCH = 4096  # keys of one call
_CALL_SECONDS = 5.0
_UNPIN_SECONDS = 10.0  # for all calls of an end, if the pool is slow


class Rollout:
    """Keep values pinned while this is open; a context manager.

    A thread pins the keys hard for ``seconds``, and again after each sixth of that time. So a value
    that is stored later is pinned a sixth later, and all pins end by themselves when this process
    is killed. Its calls may be made by several threads at a time.

    Parameters
    ----------
    session : Session
        Of the namespace; it must stay open as long as this.
    keys : iterable of str or bytes
        Of the prefixes; see :meth:`add`.
    seconds : float
        How long pins last after the last renewal; at most 86,400.
    version : str
        Of the weights.

    Raises
    ------
    InvalidError
        ``seconds`` is out of its bounds, or a key is none.
    Error
        The first attempt to pin failed. The thread repeats later ones.
    """

    def __init__(
        self,
        session: Session,
        keys: Iterable[str | bytes] = (),
        *,
        seconds: float = 600.0,
        version: str = "",
    ) -> None:
        if not 0.001 <= seconds <= 86_400:
            raise InvalidError(f"pins for {seconds} s; give 0.001 to 86,400")
        self._session = session
        self._seconds = seconds
        self._version = version
        self._lock = threading.Lock()
        self._keys: dict[str | bytes, None] = {}  # in their order, each once
        self._ends = threading.Event()
        self.add(keys)
        self._thread = threading.Thread(target=self._run, name="kvcove-rollout", daemon=True)
        self._thread.start()

    def add(self, keys: Iterable[str | bytes]) -> int:
        """Pin more keys, and keep them pinned; return how many of these are pinned now.

        Others have no value in memory yet, or find no room: hard pins have at most half of it. If
        this raises, none of the keys is kept pinned.
        """
        if isinstance(keys, str | bytes):
            raise InvalidError("one key; give a list of keys")
        if self._ends.is_set():
            raise InvalidError("this rollout is closed")
        more = dict.fromkeys(keys)
        pinned = self._pin(list(more))
        with self._lock:
            closed = self._ends.is_set()
            if not closed:
                self._keys.update(more)
        if closed:
            self._unpin(list(more))  # close does not know these
            raise InvalidError("this rollout was closed meanwhile")
        return pinned

    def renew(self) -> int:
        """Pin all keys now; return how many are pinned."""
        keys = self._all()
        pinned = self._pin(keys)
        if not self._ends.is_set():
            return pinned
        self._unpin(keys)  # close may have done so before they were pinned
        return 0

    def close(self) -> None:
        """End the pins, whoever else has made them. No effect if this is closed.

        An unpin that fails is no error: the pin ends by itself.
        """
        with self._lock:
            self._ends.set()
            keys = list(self._keys)
            self._keys.clear()
        self._thread.join()
        self._unpin(keys)

    def __repr__(self) -> str:
        """Show how many keys it keeps pinned, or that it is closed."""
        with self._lock:
            state = "closed" if self._ends.is_set() else f"{len(self._keys)} keys"
        return f"<kvcove.Rollout {state}, pins for {self._seconds:g} s>"

    def __enter__(self) -> Rollout:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _all(self) -> list[str | bytes]:
        with self._lock:
            return list(self._keys)

    def _pin(self, keys: list[str | bytes]) -> int:
        pinned = 0
        for at in range(0, len(keys), _BATCH):
            if self._ends.is_set():
                break
            pinned += self._session.pin(
                keys[at : at + _BATCH],
                self._seconds,
                hard=True,
                version=self._version,
                timeout=_CALL_SECONDS,
            ).ok_count
        return pinned

    def _unpin(self, keys: list[str | bytes]) -> None:
        until = time.monotonic() + _UNPIN_SECONDS
        with contextlib.suppress(Error):
            for at in range(0, len(keys), _BATCH):
                if time.monotonic() > until:
                    break
                self._session.unpin(
                    keys[at : at + _BATCH], version=self._version, timeout=_CALL_SECONDS
                )

    def _run(self) -> None:
        failed = False
        while not self._ends.wait(self._seconds / 6):
            try:
                self._pin(self._all())
                failed = False
            except Error as error:  # five attempts are made before the pins end
                if not failed:
                    _log.warning("the pins of a rollout are not renewed now: %s", error)
                failed = True
