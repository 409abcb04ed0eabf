# SPDX-License-Identifier: Apache-2.0
"""What these programs write, for readers that may stand still: a log driver, a pager, a terminal."""

from __future__ import annotations

import atexit
import contextlib
import functools
import io
import os
import select
import socket
import stat
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TextIO

__all__ = ["Output", "start"]

_MAX_QUEUED_BYTES = 1 << 20
_PATIENCE_AT_END = 0.1  # seconds, for stdout and stderr together

_started: list[Output] = []


class Output(io.TextIOBase):
    """Text for a descriptor. Thread-safe; no call waits for the reader or fails because of it.

    A line that finds room is written in the caller's thread, so it is out before the program can be
    killed, and in order with lines for other descriptors of the same file. A line that finds none is
    queued, and a thread writes it when the reader goes on; later lines follow it through the queue. A
    full queue drops lines, and a line with their number follows once there is room. Where the reader
    has ended, lines are dropped. kvcove/base/log.h does the same for the C++ side.

    Parameters
    ----------
    plain : text file
        Gives the descriptor and the encoding. It is written to no more.
    """

    def __init__(self, plain: TextIO) -> None:
        self._plain = plain  # whose end would close the descriptor
        self._fd = plain.fileno()
        self._coding = plain.encoding, plain.errors or "strict"
        self._write_now = _write_without_waiting(self._fd)
        # Its lock is reentrant: a line may be written by the handler of a signal, or by a destructor.
        self._changed = threading.Condition()
        self._partial = ""  # of a line whose end is still to come
        self._queue: deque[bytes] = deque()
        self._queued_bytes = 0
        self._dropped = 0  # lines, and no line says so yet
        self._has_thread = False
        # The thread writes what it has taken from the queue: no line may overtake that.
        self._writing = False
        # The interpreter's end stops threads at any step, also one that holds the lock.
        self._ended = False

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """The encoding of the text."""
        return self._coding[0]

    def fileno(self) -> int:
        """Return the descriptor."""
        return self._fd

    def isatty(self) -> bool:
        """Whether it is a terminal."""
        return os.isatty(self._fd)

    def writable(self) -> bool:
        """Whether it takes text."""
        return True

    def write(self, text: str) -> int:
        """Write the lines that this text ends, or queue them."""
        if not self._ended:
            with self._changed:
                lines, newline, self._partial = (self._partial + text).rpartition("\n")
                if newline:
                    self._put(f"{lines}\n".encode(*self._coding))
        return len(text)

    def flush(self) -> None:
        """Write a line whose end is still to come as far as it is there, or queue it."""
        if not self._ended:
            with self._changed:
                text, self._partial = self._partial, ""
                if text:
                    self._put(text.encode(*self._coding))

    def end(self, until: float) -> None:
        """Wait until all is written, ``until`` at most; drop all lines from then on."""
        self.flush()
        with self._changed:
            self._changed.wait_for(
                lambda: not self._queue and not self._writing, max(0, until - time.monotonic())
            )
            self._ended = True

    def _put(self, data: bytes) -> None:
        """Write or queue lines; with the lock, as all that follow but the thread."""
        if self._queued_bytes + len(data) > _MAX_QUEUED_BYTES:
            self._dropped += data.count(b"\n")
            return
        self._tell_dropped()
        self._push(data)
        if not self._writing:
            self._drain()
        if not self._queue:
            return
        self._changed.notify_all()
        if not self._has_thread:
            # Where the system refuses the thread, the next line tries again.
            with contextlib.suppress(RuntimeError):
                threading.Thread(target=self._run, name="kvcove-log", daemon=True).start()
                self._has_thread = True

    def _push(self, data: bytes) -> None:
        self._queue.append(data)
        self._queued_bytes += len(data)

    def _tell_dropped(self) -> None:
        if self._dropped:
            text = b"%d lines dropped here: nobody read this log while they were due\n"
            self._push(text % self._dropped)
            self._dropped = 0

    def _drain(self) -> None:
        """Write what finds room."""
        while self._queue:
            try:
                written = self._write_now(self._queue[0])
            except BlockingIOError:
                return
            except OSError:  # the reader has ended
                written = len(self._queue[0])
            self._queued_bytes -= written
            if rest := self._queue.popleft()[written:]:
                self._queue.appendleft(rest)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._writing = False
                if not self._queue:
                    self._tell_dropped()
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._queue)
                data = self._queue.popleft()
                self._queued_bytes -= len(data)
                self._writing = True
            with contextlib.suppress(OSError):  # the reader has ended
                self._write_and_wait(data)

    def _write_and_wait(self, data: bytes) -> None:
        while data:
            try:
                data = data[os.write(self._fd, data) :]
            except BlockingIOError:  # another process has made the descriptor non-blocking
                select.select([], [self._fd], [])


def _write_without_waiting(fd: int) -> Callable[[bytes], int]:
    """Return a function that writes a part of some bytes.

    It raises BlockingIOError where there is no room, or where that cannot be known. The descriptor keeps
    its flags, which other processes share: a pipe or a terminal is opened a second time.
    """
    mode = os.fstat(fd).st_mode
    if stat.S_ISREG(mode):
        return functools.partial(os.write, fd)
    if stat.S_ISSOCK(mode):
        own = socket.socket(fileno=os.dup(fd))
        return lambda data: own.send(data, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
    try:
        again = os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError:  # another user's terminal; no /proc; a pipe without a reader
        return _no_room
    return functools.partial(os.write, again)


def _no_room(_data: bytes) -> int:
    raise BlockingIOError


def start() -> None:
    """Put an :class:`Output` in the place of ``sys.stdout`` and of ``sys.stderr``.

    So logging, ``print``, argparse and tracebacks write there. The end of the process waits 0.1 s for
    what is queued, at most.
    """
    if _started:
        return
    for name in ("stdout", "stderr"):
        plain = getattr(sys, name)
        # None: the descriptor is closed. Another one: a caller's, who takes what is written.
        if plain is not None and plain is getattr(sys, f"__{name}__"):
            output = Output(plain)
            setattr(sys, name, output)
            _started.append(output)
    atexit.register(_end)


def _end() -> None:
    until = time.monotonic() + _PATIENCE_AT_END
    for output in _started:
        output.end(until)
