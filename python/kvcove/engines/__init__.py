# SPDX-License-Identifier: Apache-2.0
"""What every engine's adapter needs, without any engine's types.

The two roles that decide (:class:`SchedulerRole`, :class:`WorkerRole`), the facts that must be
equal to share (:class:`EngineShape`), and what surrounds them: where the pool is, a pool in the
engine, what the host can give it, and why engines do not share. ``docs/connector.md`` says in which
order a role's calls come; ``examples/engine/toy.py`` is a whole engine.
"""

from __future__ import annotations

from kvcove._native import EngineShape, SchedulerRole, WorkerRole, fingerprint, told_of
from kvcove.engines._explain import explain
from kvcove.engines._facts import (
    FACTS,
    advice_of,
    differences,
    leave,
    leave_own,
    left,
    warn_of_differences,
)
from kvcove.engines._host import affordable, available_memory
from kvcove.engines._pool import (
    ADDRESSES,
    Embedded,
    directory,
    named_pool,
    no_pool,
    refusals,
)
from kvcove.engines._settings import STRICT, settings_of
from kvcove.engines._sockets import remove_dead
from kvcove.engines._versions import KnownVersions

__all__ = [
    "ADDRESSES",
    "FACTS",
    "STRICT",
    "Embedded",
    "EngineShape",
    "KnownVersions",
    "SchedulerRole",
    "WorkerRole",
    "advice_of",
    "affordable",
    "available_memory",
    "differences",
    "directory",
    "explain",
    "fingerprint",
    "leave",
    "leave_own",
    "left",
    "named_pool",
    "no_pool",
    "refusals",
    "remove_dead",
    "settings_of",
    "told_of",
    "warn_of_differences",
]
