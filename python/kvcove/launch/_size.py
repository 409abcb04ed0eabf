# SPDX-License-Identifier: Apache-2.0
"""Sizes, in the grammar of the ``kvcove`` command: ``64GiB``, ``1.5 TiB``, ``500MB``, ``4096``."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator

import kvcove
from kvcove import _native

__all__ = ["Size", "format_size", "parse_size"]

# ParseSize of kvcove/base/size.h counts in doubles up to here.
_MOST = 1 << 62


def parse_size(value: object) -> int:
    """Return a number of bytes.

    Parameters
    ----------
    value : int, float or str
        A whole number of bytes, or a size such as ``"64GiB"``. KiB, MiB, GiB, TiB and K, M, G, T
        are powers of 1024; KB, MB, GB, TB are powers of 1000.

    Raises
    ------
    ValueError
        It is no size, or not above 0.
    """
    if isinstance(value, str):
        try:
            size = _native.parse_size(value.strip())
        except kvcove.Error as error:
            raise ValueError(str(error).removeprefix("invalid: ")) from error
    elif isinstance(value, bool) or not (
        isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    ):
        raise ValueError(f"{value!r} is not a size; write a number of bytes, or text such as 64GiB")
    else:
        size = int(value)
    if not 0 < size < _MOST:
        raise ValueError(f"{value!r}: give more than 0 bytes")
    return size


def format_size(size: int) -> str:
    """Return the shortest text that means exactly this number of bytes."""
    for power, unit in ((4, "TiB"), (3, "GiB"), (2, "MiB"), (1, "KiB")):
        if size % 1024**power == 0:
            return f"{size // 1024**power}{unit}"
    return str(size)


Size = Annotated[int, BeforeValidator(parse_size)]
