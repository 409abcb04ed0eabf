# SPDX-License-Identifier: Apache-2.0
"""``mooncake._fast_copy``: arrays, one behind the other, at an address."""

from __future__ import annotations

import ctypes
from typing import Any

__all__ = ["concat_arrays_into"]


def concat_arrays_into(
    arrays: list[Any], dest_ptr: int, dest_nbytes: int, start: int = 0, count: int = -1
) -> int:
    """Copy ``arrays[start:start + count]`` to an address, one behind the other.

    Parameters
    ----------
    arrays : list of numpy.ndarray
        C-contiguous.
    dest_ptr, dest_nbytes : int
        The address, and how many bytes there are.
    start, count : int
        Which arrays; a count below 0 stands for all that follow.

    Returns
    -------
    int
        The bytes copied.

    Raises
    ------
    TypeError, ValueError
        One is no array, or not contiguous; there is not room for all. Nothing is copied then.
    """
    import numpy

    if not isinstance(arrays, list):
        raise TypeError(f"argument 1 must be list, not {type(arrays).__name__}")
    start = max(start, 0)
    end = len(arrays) if count < 0 else min(len(arrays), start + count)
    total = 0
    for i in range(start, end):
        array = arrays[i]
        if not isinstance(array, numpy.ndarray):
            raise TypeError(f"arrays[{i}] is not an ndarray")
        if not array.flags.c_contiguous:
            raise ValueError(f"arrays[{i}] is not C-contiguous")
        total += array.nbytes
    if total > dest_nbytes:
        raise ValueError(f"destination buffer too small: need {total} bytes, got {dest_nbytes}")
    at = dest_ptr
    for array in arrays[start:end]:
        # The call gives up the GIL.
        ctypes.memmove(at, array.ctypes.data, array.nbytes)
        at += int(array.nbytes)
    return total
