# SPDX-License-Identifier: Apache-2.0
"""kvcove: a shared pool for the KV cache of LLM inference engines.

>>> import kvcove
>>> pool = kvcove.open("embedded:?memory=64MiB")
>>> session = pool.session("acme/llama-8b@5f3a/bf16")
>>> token = session.capture()
>>> session.put(["prefix-1"], [b"kv bytes"], token=token).all_ok
True
>>> session.get(["prefix-1", "prefix-2"])
[b'kv bytes', None]
>>> session.reset()
>>> session.exists(["prefix-1"])[0].reason.name
'RESET'
>>> pool.close()

Everything here may be used from several threads at a time. Calls release the GIL and end by their
``timeout`` (seconds). What becomes of an item is in its result; exceptions, all of them
:class:`kvcove.Error`, are for misuse and for what concerns a call as a whole.
"""

from __future__ import annotations

from kvcove._errors import (
    BufferBusyError,
    ClosedError,
    DeniedError,
    Error,
    ForkedError,
    IncompatibleError,
    InvalidError,
    LimitError,
    NotProvenError,
    StaleError,
    TimedOutError,
    UnavailableError,
)

try:
    from kvcove._native import (
        Borrowed,
        Code,
        Hints,
        LocatedPrefix,
        Memory,
        MissReason,
        ObjectStat,
        OwnerPrefix,
        Pool,
        PoolStat,
        Reserved,
        Result,
        Results,
        SegmentRange,
        Session,
        StoredObject,
        Token,
        open_pool,
        set_log_level,
        version,
    )
except ImportError as error:  # pragma: no cover
    raise ImportError(
        f"kvcove's extension cannot be loaded: {error}. It needs Linux with glibc 2.34 or later and "
        "the libstdc++ of GCC 11 or later (Debian: libstdc++6); docs/python.md says how to build it "
        "for another system"
    ) from error

from kvcove._rollout import Rollout

__all__ = [
    "Borrowed",
    "BufferBusyError",
    "ClosedError",
    "Code",
    "DeniedError",
    "Error",
    "ForkedError",
    "Hints",
    "IncompatibleError",
    "InvalidError",
    "LimitError",
    "LocatedPrefix",
    "Memory",
    "MissReason",
    "NotProvenError",
    "ObjectStat",
    "OwnerPrefix",
    "Pool",
    "PoolStat",
    "Reserved",
    "Result",
    "Results",
    "Rollout",
    "SegmentRange",
    "Session",
    "StaleError",
    "StoredObject",
    "TimedOutError",
    "Token",
    "UnavailableError",
    "__version__",
    "open",
    "set_log_level",
]

__version__ = version()


def open(address: str = "auto", *, timeout: float = 1.0) -> Pool:
    """Open a pool.

    Parameters
    ----------
    address : str
        ``embedded:?memory=4GiB``
            A pool inside this process; also ``granule=``, ``policy=``, ``max_objects=``,
            ``populate=0|1``, ``huge_pages=auto|require|off``.
        ``unix:/path/of/socket``
            The daemon of this host (``kvcove serve``); also ``warm=off|all|SIZE``: how much
            of its memory this process maps beforehand, in the background, so that first reads
            meet no page faults (default: ``$KVCOVE_WARM``, else 32GiB).
        ``kvcove://host:7400``
            A cluster, by its master, by all of several (``kvcove://h1:7400,h2:7400``), or by their
            store (``kvcove://etcd://e1:2379/PREFIX``), which says who leads. docs/operating.md has
            the options, docs/ha.md the masters.
        ``auto``
            The daemon of this host if its socket is there, else embedded
            (``auto?memory=4GiB``).
    timeout : float
        Seconds.

    Returns
    -------
    Pool
        A context manager; :meth:`Pool.close` ends it.

    Raises
    ------
    InvalidError
        The address or a size in it is not understood, or this host cannot give the memory.
    UnavailableError, TimedOutError, DeniedError, IncompatibleError
        Nobody answers, or not as needed.
    """
    return open_pool(address, timeout)
