# SPDX-License-Identifier: Apache-2.0
"""The ``kvcove`` command as a child of one of these programs."""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import subprocess
import sys
import threading
from collections import deque
from pathlib import Path

from kvcove import _command
from kvcove.mooncake import _job, _log
from kvcove.mooncake._address import is_loopback

__all__ = ["Child", "StopSignals", "allow_open", "begin", "credentials", "insecure"]

_LAST_LINES = 20
_LOOK_SECONDS = 0.2  # between two looks at whether the child has ended, and at SIGHUP

_hung_up = False  # SIGHUP has come, and the child has yet to be told


def begin() -> None:
    """Begin a program: no reader of its output can stop it, and SIGHUP does not end it.

    For kvcove's servers SIGHUP means to look at the files of tokens and certificates again. A program
    without such a child has none to pass it on to, but also goes on when its terminal is closed.
    """
    for number in range(3):  # what is printed must not land in a socket that has got the number
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number, which is this one
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115
    _log.start()

    def note(*_: object) -> None:
        global _hung_up
        _hung_up = True  # StopSignals.wait() passes it on; a handler takes no lock

    signal.signal(signal.SIGHUP, note)


def credentials() -> str:
    """Return the servers' credentials file; empty: there is none."""
    return os.environ.get("KVCOVE_CREDENTIALS", "") or _job.servers_file()


def insecure() -> bool:
    """Whether ``$KVCOVE_INSECURE`` says that the network keeps strangers out."""
    return os.environ.get("KVCOVE_INSECURE", "").lower() in ("1", "true", "on", "yes")


def allow_open(program: str, host: str) -> list[str]:
    """Return the arguments that let ``kvcove`` listen at this host."""
    if credentials():
        return ["--credentials", credentials()]
    if is_loopback(host):
        return []
    print(
        f"{program}: warning: listening on {host} without credentials: any client may do "
        "everything; docs/security.md",
        file=sys.stderr,
    )
    return ["--insecure"]


class Child:
    """Runs ``kvcove`` until it is stopped; it ends with this process.

    Parameters
    ----------
    arguments : list of str
        Of the command.
    ready : str
        A pattern in its log that says it serves.

    Raises
    ------
    RuntimeError
        It ended before it served; with the end of its log.
    """

    def __init__(self, arguments: list[str], ready: str) -> None:
        self._process = subprocess.Popen(
            [_command.path(), *arguments, "--exit-with-parent"],
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        )
        self._ready = threading.Event()
        self._last: deque[str] = deque(maxlen=_LAST_LINES)
        self.match: re.Match[str] | None = None
        self._pattern = re.compile(ready)
        self._reader = threading.Thread(target=self._read, name="kvcove-log", daemon=True)
        self._reader.start()
        while not self._ready.wait(0.05):
            if self._process.poll() is not None:
                self._reader.join(1)
                if not self._ready.is_set():
                    raise RuntimeError(
                        f"kvcove did not start; the end of its log:\n{self.log_end()}"
                    )

    def _read(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            print(line, end="", file=sys.stderr)
            self._last.append(line)
            if not self._ready.is_set() and (match := self._pattern.search(line)):
                self.match = match
                self._ready.set()

    def log_end(self) -> str:
        """Return the end of its log, each line behind two blanks."""
        return "".join(f"  {line}" for line in list(self._last)).rstrip("\n")

    def poll(self) -> int | None:
        """Return its exit status, None while it runs."""
        return self._process.poll()

    def hang_up(self) -> None:
        """Make it look at the files of tokens and certificates again."""
        self._process.send_signal(signal.SIGHUP)

    def stop(self) -> int:
        """Stop it and wait for its end."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        try:
            status = self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            status = self._process.wait()
        self._reader.join(1)
        return status


class StopSignals:
    """SIGTERM and SIGINT, which end this program cleanly from here on.

    Made once, by the main thread, before the program says that it serves, or answers a question about
    its health: who learns that may send one at once. Later signals have no effect: the program is ending
    already.
    """

    def __init__(self) -> None:
        # A handler runs between any two steps of this thread, also while it holds a lock. So it takes
        # none: a threading.Event that it set would wait for ever for the lock that Event.wait() holds.
        self._reader, writer = os.pipe()  # open until the process ends, for signals that come late
        os.set_blocking(writer, False)

        def wake(*_: object) -> None:
            with contextlib.suppress(BlockingIOError):
                os.write(writer, b"\0")

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, wake)

    def asked(self) -> bool:
        """Whether one of them has come."""
        return bool(select.select([self._reader], [], [], 0)[0])

    def wait(self, child: Child | None = None) -> int:
        """Wait for one of them, or for the end of a child; return the exit status that fits.

        The child is told of a SIGHUP that has come since :func:`begin`.
        """
        global _hung_up
        while not select.select([self._reader], [], [], _LOOK_SECONDS)[0]:
            if child is None:
                continue
            if (status := child.poll()) is not None:
                return status or 1
            if _hung_up:
                # Before the child is told: one that comes now makes it look once more.
                _hung_up = False
                child.hang_up()
        with contextlib.suppress(OSError):
            sys.stdout.flush()
        return 0
