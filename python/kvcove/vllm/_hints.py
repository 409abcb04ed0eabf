# SPDX-License-Identifier: Apache-2.0
"""What a request says of itself, for eviction in the pool: ``kv_transfer_params["kvcove"]``.

All of it is optional, and a hint that is wrong costs hits, nothing else; so one that cannot be
understood is left out, with one line in the log.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_log = logging.getLogger("vllm.kvcove")
_MOST_TOKENS = 2**31 - 1


@dataclass(frozen=True)
class RequestHints:
    output_tokens: int = 0
    """Expected length of the answer; 0: not known."""
    ephemeral_from: int = -1
    """Prompt token from which on the request is not asked for again; -1: none."""
    session_ends: bool = False
    """Nobody goes on from this request."""


def _tokens(value: Any) -> bool:
    return type(value) is int and 0 <= value <= _MOST_TOKENS


_RIGHT = {
    "output_tokens": (_tokens, "a number of tokens"),
    "ephemeral_from": (_tokens, "the place of a token in the prompt"),
    "session_ends": (lambda value: type(value) is bool, "true or false"),
}
_warned: set[str] = set()


def _warn(what: str) -> None:
    if what not in _warned and len(_warned) < 16:
        _warned.add(what)
        _log.warning("kvcove: kv_transfer_params['kvcove']: %s; it is left out", what)


def hints_of(params: Any) -> RequestHints | None:
    """Return what ``kv_transfer_params`` says to kvcove, None for nothing."""
    told = params.get("kvcove") if isinstance(params, Mapping) else None
    if told is None:
        return None
    if not isinstance(told, Mapping):
        _warn(f"it must be an object with any of {', '.join(_RIGHT)}")
        return None
    right: dict[str, Any] = {}
    for name, value in told.items():
        check = _RIGHT.get(name)
        if check is None:
            _warn(f"there is no hint {str(name)[:64]!r}, only {', '.join(_RIGHT)}")
        elif not check[0](value):
            _warn(f"{name} must be {check[1]}")
        else:
            right[name] = value
    return RequestHints(**right) if right else None
