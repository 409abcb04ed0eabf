# SPDX-License-Identifier: Apache-2.0
"""The sums of :class:`kvcove.engines._digest.DeviceLanes` in one pass, for devices that Triton knows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import triton
import triton.language as tl

__all__ = ["sum_words"]

_BLOCK = 1024  # words of a turn
_MOST_PROGRAMS = 1024  # of a tensor; each takes every so-manieth turn: few additions in memory


@triton.jit  # type: ignore[untyped-decorator]
def _sum(table, sums, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    table += tl.program_id(0).to(tl.int64) * 4
    words = tl.load(table).to(tl.pointer_type(tl.int64))
    count = tl.load(table + 1)
    first = tl.load(table + 2)
    row = sums + tl.load(table + 3) * 2
    begin = tl.program_id(1).to(tl.int64) * BLOCK
    step = tl.num_programs(1).to(tl.int64) * BLOCK
    if begin < count:
        one = tl.zeros((BLOCK,), tl.int64)
        other = tl.zeros((BLOCK,), tl.int64)
        for turn in range(begin, count, step):
            at = turn + tl.arange(0, BLOCK)
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


def sum_words(pieces: Sequence[tuple[int, int, int, int]], sums: Any) -> None:
    """Add the sums of pieces of memory: one kernel, behind what the device does.

    Parameters
    ----------
    pieces : sequence of (address, count, first, row)
        Words of 8 bytes on the device, their number, the place of the first one, and whose sums.
    sums : torch.Tensor
        int64, two a row.
    """
    import torch

    if not pieces:
        return
    table = torch.tensor(pieces, dtype=torch.int64).to(sums.device)
    programs = min(triton.cdiv(max(count for _, count, _, _ in pieces), _BLOCK), _MOST_PROGRAMS)
    _sum[(len(pieces), programs)](table, sums, BLOCK=_BLOCK)
