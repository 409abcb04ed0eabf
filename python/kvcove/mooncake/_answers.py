# SPDX-License-Identifier: Apache-2.0
"""What calls answer: that API's codes for kvcove's exceptions, and what is refused before it begins."""

from __future__ import annotations

import logging
from typing import Any

import kvcove
from kvcove import _native
from kvcove.mooncake._types import Code, ReplicateConfig, SoftPinAction

__all__ = ["INVALID", "MAX_SOFT_PIN_MS", "UNSET", "answered", "code_of", "octets", "refused"]

_log = logging.getLogger("kvcove.mooncake")

MAX_SOFT_PIN_MS = 30 * 60 * 1000
UNSET = int(Code.UNAVAILABLE_IN_CURRENT_STATUS)
INVALID = int(Code.INVALID_PARAMS)


def code_of(error: kvcove.Error) -> int:
    return _native.store_code(error.code)


def octets(text: str | bytes | bytearray) -> bytes:
    """Return a key as the pool has it. That API takes bytes and bytearrays wherever it takes text."""
    try:
        return text.encode() if isinstance(text, str) else bytes(text)
    except UnicodeEncodeError:
        raise TypeError(
            f"{text!a} has a lone surrogate, which UTF-8 cannot say; give bytes instead, such as "
            "text.encode('utf-8', 'surrogatepass')"
        ) from None


def answered(call: Any, count: int) -> list[int]:
    """Return what a call answers, its exceptions as codes; wrong types go on to the caller."""
    try:
        codes: list[int] = call()
        return codes
    except kvcove.InvalidError as error:
        if "is wanted" in str(error):
            raise TypeError(str(error)) from None
        return [INVALID] * count
    except kvcove.ForkedError as error:
        _log.error("%s", error)
        return [code_of(error)] * count
    except kvcove.Error as error:
        return [code_of(error)] * count


def refused(config: ReplicateConfig, items: int, *, values_in_bytes: bool) -> int:
    """Return what a put with this configuration answers before it begins; 0: it may begin.

    Raises
    ------
    TypeError
        It is no configuration.
    """
    if not isinstance(config, ReplicateConfig):
        raise TypeError(f"config: a ReplicateConfig is wanted, not {type(config).__name__}")
    if config.nof_replica_num or config.dfs_replica_num:
        return int(Code.NOT_SUPPORTED)
    if config.replica_num < 1:
        return INVALID
    if config.prefer_alloc_in_same_node and (values_in_bytes or config.replica_num != 1):
        return INVALID
    each = (config.group_ids, config.session_ids, config.residency_affinity_ids)
    if any(ids is not None and len(ids) != items for ids in each):
        return INVALID
    ttl = config.soft_pin_ttl_ms
    if ttl is not None and (
        config.soft_pin_action != SoftPinAction.ENABLE or ttl > MAX_SOFT_PIN_MS
    ):
        return INVALID
    return 0
