# SPDX-License-Identifier: Apache-2.0
"""Tensors that are split over ranks: who stores which part, under which key, and how parts are read.

A tensor has axes of parallelism: ``dp``, ``tp``, ``ep`` and ``pp``, each at most once. Only ``tp``
splits, along ``split_dim``; the others say whose part it is. Keys:

=========================  ==========================================================
``K_tp_<rank>``            a part, where tp is the only axis
``K__dp_1of2__tp_0of4_sd0``  a part, where there are more, in the order dp, tp, ep, pp
``K__writer_0of2_sd0``     what one of several writers gave of a whole tensor
``K__parallelism_manifest``  how many tp parts there are, along which dimension
``K__writer_manifest``     the same of writers
=========================  ==========================================================

A manifest is 96 bytes, little-endian: magic ``NAMW``, u16 version 1, u16 96, i32 dtype, i32
dimensions, i32 split dimension, i32 parts, u64 0, 8 x i64 shape of the whole tensor (-1: none).
A manifest is stored behind the part that it tells of. Parts without one (``*_from``) are known by
their headers, which have both shapes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from kvcove.mooncake._types import ParallelAxis, TensorParallelism

__all__ = ["Layout", "Split", "Writer", "shards"]

_MAGIC = 0x574D414E
_FORMAT = "<IHHiiiiQ8q"
_KINDS = ("dp", "tp", "ep", "pp")
PARALLELISM_MANIFEST = "__parallelism_manifest"
WRITER_MANIFEST = "__writer_manifest"


def shards(tensor: Any, size: int, dim: int) -> list[Any] | None:
    """Return ``size`` equal parts along a dimension; None if it cannot be split so."""
    import torch

    if not isinstance(tensor, torch.Tensor) or not 0 <= dim < tensor.dim():
        return None
    extent = tensor.shape[dim]
    if size < 1 or extent % size:
        return None
    return [tensor.narrow(dim, rank * extent // size, extent // size) for rank in range(size)]


def _ranked(what: Any) -> tuple[int, int]:
    rank, size = what.rank, what.size
    if not isinstance(rank, int) or not isinstance(size, int) or not 0 <= rank < size:
        raise ValueError(f"rank {rank!r} of {size!r}: a rank is from 0 to size - 1")
    return rank, size


@dataclass(frozen=True)
class Split:
    """How a whole tensor lies in equal parts."""

    shape: tuple[int, ...]
    dim: int
    size: int

    def encode(self, dtype: int) -> bytes:
        """Return the manifest."""
        shape = [*self.shape, *[-1] * (8 - len(self.shape))]
        return struct.pack(
            _FORMAT, _MAGIC, 1, 96, dtype, len(self.shape), self.dim, self.size, 0, *shape
        )

    @staticmethod
    def decode(manifest: bytes | None) -> Split | None:
        """Return what a manifest says, None if it is none."""
        if manifest is None or len(manifest) != struct.calcsize(_FORMAT):
            return None
        magic, version, length, _, dims, dim, size, _, *shape = struct.unpack(_FORMAT, manifest)
        if (magic, version, length) != (_MAGIC, 1, 96) or not 0 <= dim < dims <= 8 or size < 1:
            return None
        return Split(tuple(shape[:dims]), dim, size)

    @staticmethod
    def between(whole: Sequence[int], part: Sequence[int]) -> Split | None:
        """Return how a part's header says that it was cut; None where nothing is cut."""
        cut = [d for d, (a, b) in enumerate(zip(whole, part, strict=True)) if a != b]
        if len(cut) != 1 or part[cut[0]] < 1 or whole[cut[0]] % part[cut[0]]:
            return None
        return Split(tuple(whole), cut[0], whole[cut[0]] // part[cut[0]])

    def covering(self, rank: int, size: int) -> tuple[range, int, int] | None:
        """Return which parts have the part ``rank`` of ``size``, where it begins in them, its extent."""
        extent = self.shape[self.dim]
        if extent % size or extent % self.size:
            return None
        mine, stored = extent // size, extent // self.size
        if mine == 0 or stored == 0:
            return None
        first, last = rank * mine // stored, ((rank + 1) * mine - 1) // stored
        return range(first, last + 1), rank * mine - first * stored, mine


@dataclass(frozen=True)
class Layout:
    """The axes of a part, checked."""

    axes: tuple[ParallelAxis, ...]

    @staticmethod
    def of(parallelism: Any) -> Layout:
        """Check a TensorParallelism.

        Raises
        ------
        ValueError
            It is none, or one of its axes is not usable; the message says which.
        """
        if not isinstance(parallelism, TensorParallelism) or not parallelism.axes:
            raise ValueError("parallelism is no TensorParallelism with axes")
        by_kind: dict[str, ParallelAxis] = {}
        for axis in parallelism.axes:
            kind = str(axis.kind).lower()
            if kind not in _KINDS or kind in by_kind:
                raise ValueError(f"axis {axis.kind!r}: each of dp, tp, ep and pp once is known")
            _ranked(axis)
            if (kind == "tp") != (axis.split_dim is not None):
                raise ValueError(f"axis {kind}: tp has a split_dim, and no other axis")
            if kind == "ep" and axis.expert_id is None:
                raise ValueError("axis ep: expert_id is missing")
            if kind == "pp" and axis.stage_id is None:
                raise ValueError("axis pp: stage_id is missing")
            by_kind[kind] = axis
        return Layout(tuple(by_kind[kind] for kind in _KINDS if kind in by_kind))

    @property
    def tp(self) -> ParallelAxis | None:
        """The axis that splits."""
        return next((axis for axis in self.axes if str(axis.kind).lower() == "tp"), None)

    def key(self, base: str, rank: int | None = None, size: int | None = None) -> str:
        """Return the key of a part: this one's, or that of another tp rank."""
        if len(self.axes) == 1 and self.tp is not None:
            return f"{base}_tp_{self.tp.rank if rank is None else rank}"
        return base + "".join(self._suffix(axis, rank, size) for axis in self.axes)

    @staticmethod
    def _suffix(axis: ParallelAxis, rank: int | None, size: int | None) -> str:
        kind = str(axis.kind).lower()
        mine = kind == "tp"
        text = f"__{kind}_{rank if mine and rank is not None else axis.rank}"
        text += f"of{size if mine and size is not None else axis.size}"
        for letters, value in (
            ("sd", axis.split_dim),
            ("eid", axis.expert_id),
            ("sid", axis.stage_id),
        ):
            text += "" if value is None else f"_{letters}{value}"
        return text


@dataclass(frozen=True)
class Writer:
    """One of several writers of one whole tensor: it stores the part of its rank."""

    rank: int
    size: int
    split_dim: int

    @staticmethod
    def of(partition: Any) -> Writer:
        """Check what has ``rank``, ``size`` and ``split_dim``.

        Raises
        ------
        ValueError
            One of them is missing or not usable.
        """
        try:
            rank, size = _ranked(partition)
            dim = partition.split_dim
        except AttributeError as error:
            raise ValueError(f"a writer has rank, size and split_dim: {error}") from None
        if not isinstance(dim, int) or dim < 0:
            raise ValueError(f"split_dim {dim!r} is no dimension")
        return Writer(rank, size, dim)

    def key(self, base: str) -> str:
        """Return the key of its part."""
        return writer_key(base, self.rank, Split((), self.split_dim, self.size))


def writer_key(base: str, rank: int, split: Split) -> str:
    """Return the key of a writer's part."""
    return f"{base}__writer_{rank}of{split.size}_sd{split.dim}"


def joined(
    split: Split,
    rank: int,
    size: int,
    dim: int,
    read: Callable[[range], Sequence[Any]],
) -> Any:
    """Return the part ``rank`` of ``size`` along ``dim`` out of stored parts; None if one is missing.

    Parameters
    ----------
    split : Split
        How it is stored.
    read : callable
        The stored parts of some ranks, None for what is missing.
    """
    import torch

    if dim == split.dim:
        covering = split.covering(rank, size)
        if covering is None:
            return None
        which, begin, extent = covering
        parts = read(which)
        if any(part is None for part in parts):
            return None
        whole = parts[0] if len(parts) == 1 else torch.cat(list(parts), split.dim)
        if begin + extent > whole.shape[split.dim]:
            return None
        if extent == whole.shape[split.dim]:
            return whole
        return whole.narrow(split.dim, begin, extent).contiguous()
    parts = read(range(split.size))
    if any(part is None for part in parts):
        return None
    wanted = shards(torch.cat(list(parts), split.dim), size, dim)
    return None if wanted is None else wanted[rank].contiguous()
