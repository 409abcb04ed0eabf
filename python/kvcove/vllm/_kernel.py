# SPDX-License-Identifier: Apache-2.0
"""The sums of :class:`kvcove.vllm._digest.DeviceLanes` in one pass, for devices that Triton knows."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

__all__ = ["sum_words"]

_BLOCK = 1024  # words of a turn
_MOST_PROGRAMS = 1024  # each takes every so-manieth turn: few additions in memory


@triton.jit  # type: ignore[untyped-decorator]
def _sum(words, count, first, row, turns, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    program = tl.program_id(0).to(tl.int64)
    words += tl.program_id(1).to(tl.int64) * count
    row += tl.program_id(1) * 2
    programs = tl.num_programs(0)
    one = tl.zeros((BLOCK,), tl.int64)
    other = tl.zeros((BLOCK,), tl.int64)
    for turn in range(turns):
        at = (program + turn * programs) * BLOCK + tl.arange(0, BLOCK)
        there = at < count
        word = tl.load(words + at, mask=there, other=0)
        place = at + first + 1
        # The constants of _digest: 64 bits, written as negative numbers.
        mixed = place * -7046029254386353131
        mixed = (mixed ^ (mixed >> 30)) * -4658895280553007687
        flip = mixed ^ (mixed >> 27)
        one += tl.where(there, (word ^ flip) * (flip | 1), 0)
        other += tl.where(there, (word + (word >> 32)) * ((flip * -7723592293110705685) | 1), 0)
    tl.atomic_add(row, tl.sum(one, 0))
    tl.atomic_add(row + 1, tl.sum(other, 0))


def sum_words(words: Any, first: int, row: Any) -> None:
    """Add the two sums of each row of `words`, the first of which is in place `first`.

    Parameters
    ----------
    words : torch.Tensor
        int64, contiguous: rows, or one row.
    first : int
        The place of each row's first word.
    row : torch.Tensor
        Two sums, or two a row.
    """
    count = words.shape[-1]
    rows = words.numel() // count
    turns = triton.cdiv(count, _BLOCK)
    programs = min(turns, _MOST_PROGRAMS)
    _sum[(programs, rows)](words, count, first, row, triton.cdiv(turns, programs), BLOCK=_BLOCK)
