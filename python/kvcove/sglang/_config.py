# SPDX-License-Identifier: Apache-2.0
"""``--hicache-storage-backend-extra-config``: every key has a meaning, every other one is refused."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import Any

from kvcove.engines import ADDRESSES, named_pool, settings_of

__all__ = ["Config"]

# Keys of SGLang's own in the same object; it takes some of them out before a backend sees it.
_OF_SGLANG = frozenset(
    {
        *("backend_name", "module_path", "class_name", "interface_v1", "tp_lcm_size"),
        *("prefetch_threshold", "prefetch_timeout_base", "prefetch_timeout_per_ki_token"),
        "hicache_storage_pass_prefix_keys",
    }
)


@dataclasses.dataclass(frozen=True)
class Config:
    """What a user may set.

    Attributes
    ----------
    pool : str
        ``auto`` (what $KVCOVE_POOL names, else the owner of this host), ``unix:/path`` or
        ``kvcove://host:7400``.
    on_unreachable : str
        The pool does not answer when the engine starts: ``crash``: an error; ``fallback``: a warning, and an
        engine without a pool. One that goes away later is a miss in either case.
    namespace : str
        A prefix that keeps engines apart; engines that may share have the same.
    weight_version_source : str
        ``fingerprint``: KV belongs to the bytes of the weights. ``none``: each change of weights resets the
        namespace, and other engines neither find nor store until theirs have changed, too.
    assume_weights : bool
        With ``none``: this engine's weights are those of the namespace although others have reset it.
    preferred_segment : str
        The owner (host:port) that puts go to in a cluster. Empty: $KVCOVE_PREFERRED_SEGMENT, else the one on this
        host.
    lookup_timeout_ms, timeout_ms, reset_timeout_ms : float
        Of a look-up (then it is a miss), of a batch of pages, of a reset. The first two at most 8,000: at a flush
        SGLang waits 10 s for its threads, and a scheduler that waited in vain ends.
    hold_s : float
        What was found is kept from eviction until it is loaded, for so long.
    """

    pool: str = "auto"
    on_unreachable: str = "crash"
    namespace: str = ""
    weight_version_source: str = "fingerprint"
    assume_weights: bool = False
    preferred_segment: str = ""
    lookup_timeout_ms: float = 1000.0
    timeout_ms: float = 1000.0
    reset_timeout_ms: float = 2500.0
    hold_s: float = 10.0

    @classmethod
    def of(cls, extra: Mapping[str, Any]) -> Config:
        """Return the configuration.

        Raises
        ------
        ValueError
            With the key, what was given and what would be right.
        """
        given = {key: value for key, value in extra.items() if key not in _OF_SGLANG}
        config = settings_of(cls, given, "kvcove: extra config")
        config._check()
        return dataclasses.replace(
            config,
            pool=named_pool()[0] if config.pool == "auto" else config.pool,
            preferred_segment=config.preferred_segment
            or os.environ.get("KVCOVE_PREFERRED_SEGMENT", ""),
        )

    def _check(self) -> None:
        def refuse(key: str, right: str) -> None:
            raise ValueError(f"kvcove: extra config: {key}: {getattr(self, key)!r}: {right}")

        if self.pool != "auto" and not self.pool.startswith(ADDRESSES):
            refuse("pool", "give auto, unix:/PATH or kvcove://HOST:7400")
        if self.on_unreachable not in ("fallback", "crash"):
            refuse("on_unreachable", "give 'fallback' or 'crash'")
        if self.weight_version_source not in ("fingerprint", "none"):
            refuse("weight_version_source", "give 'fingerprint' or 'none'")
        for key, most in (
            ("lookup_timeout_ms", 8_000),
            ("timeout_ms", 8_000),
            ("reset_timeout_ms", 600_000),
        ):
            if not 1 <= getattr(self, key) <= most:
                refuse(key, f"give 1 to {most} milliseconds")
        if not 0 <= self.hold_s <= 60:
            refuse("hold_s", "give 0 to 60 seconds")
