# SPDX-License-Identifier: Apache-2.0
"""The settings: ``adapter_params`` of the L2 adapter, keys ``kvcove.*`` of ``extra_config`` in process."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import Any

from kvcove.engines import ADDRESSES, STRICT, named_pool, settings_of

__all__ = ["Config"]

_LONGEST_NAMESPACE = 100  # bytes; the pool's names have 512, with those of the model and the salt


@dataclasses.dataclass(frozen=True)
class Config:
    """The settings of a user.

    Attributes
    ----------
    pool : str
        ``auto`` (what $KVCOVE_POOL names, else the owner of this host), ``unix:/path`` or
        ``kvcove://host:7400``.
    on_unreachable : str
        The pool does not answer at the start: ``crash``: an error; ``fallback``: a warning, and no pool. One that
        is away later is a miss in either case.
    namespace : str
        A prefix that keeps servers apart; those that may share have the same.
    tenants : mapping of str to str
        The token file of each ``cache_salt`` that is a tenant of its own; other salts use $KVCOVE_TOKEN's.
    salt_tag : str
        In process LMCache knows no salts: the value of this tag of a request (``lmcache.tag.NAME``) is one.
    preferred_segment : str
        The owner (host:port) that puts go to in a cluster. Empty: $KVCOVE_PREFERRED_SEGMENT, else the one on this
        host.
    lookup_timeout_ms, timeout_ms, reset_timeout_ms : float
        Of a look-up (then it is a miss), of a batch of up to 128 objects, of a reset.
    hold_s : float
        For so long objects that were found are kept from eviction until they are loaded.
    """

    pool: str = "auto"
    on_unreachable: str = "crash"
    namespace: str = ""
    tenants: Mapping[str, str] = dataclasses.field(default_factory=dict)
    salt_tag: str = "cache_salt"
    preferred_segment: str = ""
    lookup_timeout_ms: float = 1000.0
    timeout_ms: float = 1000.0
    reset_timeout_ms: float = 2500.0
    hold_s: float = 10.0

    @classmethod
    def of(cls, given: Mapping[str, Any], where: str) -> Config:
        """Return the configuration.

        Parameters
        ----------
        given : mapping
            The user's settings.
        where : str
            Of the settings, for messages.

        Raises
        ------
        ValueError
            With the key, the given value and the right form.
        """
        # _check refuses tenants that are no such mapping, with what to give.
        converters = {**STRICT, "Mapping[str, str]": lambda value: value}
        config = settings_of(cls, given, f"kvcove: {where}", converters)
        config._check(where)
        return dataclasses.replace(
            config,
            pool=named_pool()[0] if config.pool == "auto" else config.pool,
            preferred_segment=config.preferred_segment
            or os.environ.get("KVCOVE_PREFERRED_SEGMENT", ""),
        )

    def _check(self, where: str) -> None:
        def refuse(key: str, right: str) -> None:
            raise ValueError(f"kvcove: {where}: {key}: {getattr(self, key)!r}: {right}")

        if self.pool != "auto" and not self.pool.startswith(ADDRESSES):
            refuse("pool", "give auto, unix:/PATH or kvcove://HOST:7400")
        if self.on_unreachable not in ("fallback", "crash"):
            refuse("on_unreachable", "give 'fallback' or 'crash'")
        if not isinstance(self.tenants, Mapping) or not all(
            isinstance(file, str) for file in self.tenants.values()
        ):
            refuse("tenants", "give a token file for each salt")
        if self.tenants and not self.pool.startswith("kvcove://"):
            refuse(
                "tenants",
                "a pool with credentials is a cluster: give its 'pool' as kvcove://HOST:7400",
            )
        if len(self.namespace.encode()) > _LONGEST_NAMESPACE:
            refuse("namespace", f"give at most {_LONGEST_NAMESPACE} bytes")
        for key in ("lookup_timeout_ms", "timeout_ms", "reset_timeout_ms"):
            if not 1 <= getattr(self, key) <= 600_000:
                refuse(key, "give 1 to 600000 milliseconds")
        if not 0 <= self.hold_s <= 60:
            refuse("hold_s", "give 0 to 60 seconds")
