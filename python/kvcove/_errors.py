# SPDX-License-Identifier: Apache-2.0
"""The exceptions of kvcove: one base class, one class for each kind of trouble."""

from __future__ import annotations

__all__ = [
    "BufferBusyError",
    "ClosedError",
    "DeniedError",
    "Error",
    "ForkedError",
    "IncompatibleError",
    "InvalidError",
    "LimitError",
    "NotProvenError",
    "StaleError",
    "TimedOutError",
    "UnavailableError",
]


class Error(Exception):
    """What every exception of kvcove is.

    Attributes
    ----------
    code : int
        A value of :class:`kvcove.Code`.
    """

    code: int = 17

    def __init__(self, detail: str, code: int | None = None) -> None:
        super().__init__(detail)
        if code is not None:
            self.code = code


class InvalidError(Error, ValueError, TypeError):
    """The caller's mistake; the message says which and what would be right."""

    code = 12


class DeniedError(Error, PermissionError):
    """The credential does not allow it, or the weight version is dead."""

    code = 9


class UnavailableError(Error, ConnectionError):
    """The pool is gone for now; it is connected to again by itself."""

    code = 13


class ForkedError(UnavailableError):
    """The object was made before this process was forked. Open the pool again in the child."""


class TimedOutError(Error, TimeoutError):
    """The deadline of the call passed. Its buffers are free."""

    code = 2


class BufferBusyError(TimedOutError):
    """The deadline passed and bytes may still land in the buffers of the call.

    The library keeps them until nothing can land any more.
    """

    code = 3


class StaleError(Error):
    """The token is older than the last reset."""

    code = 4


class ClosedError(Error):
    """The session may neither find nor store until it has reset."""

    code = 5


class NotProvenError(Error):
    """A reset or a prune that could not be proven.

    After a reset the session is closed until it is, in the background. A prune may be called again.
    """

    code = 16


class IncompatibleError(Error):
    """Another version of protocol, layout or data."""

    code = 10


class LimitError(Error):
    """A bound of the configuration was reached; later may be better."""

    code = 14


_BY_CODE: dict[int, type[Error]] = {
    kind.code: kind
    for kind in (
        InvalidError,
        DeniedError,
        UnavailableError,
        TimedOutError,
        BufferBusyError,
        StaleError,
        ClosedError,
        NotProvenError,
        IncompatibleError,
        LimitError,
    )
}


def from_code(code: int, detail: str) -> Error:
    """Return the exception for a code of the core."""
    return _BY_CODE.get(code, Error)(detail, code)


def forked() -> ForkedError:
    """Return the exception for what a forked child must not do."""
    return ForkedError(
        "this object was made before this process was forked; open the pool again in the child, "
        "or start processes with multiprocessing's 'spawn'"
    )
