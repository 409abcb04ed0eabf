# SPDX-License-Identifier: Apache-2.0
"""The methods of the store for tensors that are split over ranks; _parallel.py says how."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kvcove.mooncake._answers import INVALID, UNSET
from kvcove.mooncake._parallel import (
    PARALLELISM_MANIFEST,
    WRITER_MANIFEST,
    Layout,
    Split,
    Writer,
    joined,
    shards,
    writer_key,
)
from kvcove.mooncake._tensors import (
    TensorMethods,
    decode,
    dtype_of,
    encode,
    memory_at,
    shapes_of,
)
from kvcove.mooncake._types import ReadTarget, ReplicateConfig

if TYPE_CHECKING:
    import kvcove

__all__ = ["ParallelMethods"]

_log = logging.getLogger("kvcove.mooncake")


def _each(items: Any, keys: Sequence[str]) -> Sequence[Any]:
    """Return an item for each key: a list as it is, None for none; one for all is not known."""
    if items is None:
        return [None] * len(keys)
    return items if isinstance(items, list | tuple) else []


_Parts = list[tuple[str, Any, list[int] | None]]


def _parts_of(
    key: str, tensor: Any, parallelism: Any, writer: Any, whole: bool
) -> tuple[_Parts, tuple[str, bytes] | None]:
    """Return keys, parts and shapes of the whole, and the manifest that goes behind them.

    Raises
    ------
    ValueError
        The tensor cannot be split so, or the arguments are not usable.
    """
    import torch

    if writer is not None and parallelism is not None:
        raise ValueError("a writer's partition and a parallelism cannot be combined")
    if not isinstance(tensor, torch.Tensor):
        raise ValueError("this is no tensor")
    shape = list(tensor.shape)
    if writer is not None:
        mine = Writer.of(writer)
        parts = shards(tensor, mine.size, mine.split_dim)
        if parts is None:
            raise ValueError(f"{shape} has no {mine.size} equal parts along {mine.split_dim}")
        split = Split(tuple(shape), mine.split_dim, mine.size)
        manifest = (WRITER_MANIFEST, split.encode(dtype_of(tensor)))
        return [(mine.key(key), parts[mine.rank], shape)], manifest
    if parallelism is None:
        return [(key, tensor, None)], None
    layout = Layout.of(parallelism)
    axis = layout.tp
    if axis is None:
        return [(layout.key(key), tensor, None)], None
    dim = axis.split_dim or 0
    if not 0 <= dim < len(shape):
        raise ValueError(f"split_dim {dim}: the tensor has {len(shape)} dimensions")
    if whole:
        parts = shards(tensor, axis.size, dim)
        if parts is None:
            raise ValueError(f"{shape} has no {axis.size} equal parts along {dim}")
        return [(layout.key(key, r), part, shape) for r, part in enumerate(parts)], None
    mine_alone = tensor
    if len(layout.axes) == 1:
        shape[dim] *= axis.size  # as that API has it: the tensor is this rank's part,
    else:  # but with other axes beside tp it is what the part is cut from
        parts = shards(tensor, axis.size, dim)
        if parts is None:
            raise ValueError(f"{shape} has no {axis.size} equal parts along {dim}")
        mine_alone = parts[axis.rank]
    split = Split(tuple(shape), dim, axis.size)
    manifest = (PARALLELISM_MANIFEST, split.encode(dtype_of(tensor)))
    return [(layout.key(key), mine_alone, shape)], manifest


class ParallelMethods(TensorMethods):
    """The methods of tensors, with those that know axes of parallelism."""

    def _put_parallel(
        self,
        keys: Sequence[str],
        tensors: Sequence[Any],
        how: tuple[Sequence[Any], Sequence[Any]],
        config: ReplicateConfig | None,
        replace: bool,
        *,
        whole: bool = False,
        begun: kvcove.Token | int | None = None,
    ) -> list[int]:
        """Store tensors: the part of the rank that gives it, or with ``whole`` the parts of all.

        ``how`` has the parallelisms and the writers' partitions, one for each key.
        """
        count = len(keys)
        if not all(len(part) == count for part in (tensors, *how)):
            return [INVALID] * count
        token = self._captured() if begun is None else begun
        now = self._now
        if now is None or isinstance(token, int):
            return [token if isinstance(token, int) else UNSET] * count
        codes = []
        for key, tensor, parallelism, writer in zip(keys, tensors, *how, strict=True):
            try:
                parts, manifest = _parts_of(key, tensor, parallelism, writer, whole)
            except ValueError as error:
                _log.error("%s: %s", key, error)
                codes.append(INVALID)
                continue
            names, values, shapes = zip(*parts, strict=True)
            answers = self._put_tensors(names, values, config, replace, wholes=shapes, begun=token)
            code = next((answer for answer in answers if answer != 0), 0)
            if code == 0 and manifest is not None:
                code = self._put_buffers(
                    now,
                    [key + manifest[0]],
                    [manifest[1]],
                    config or ReplicateConfig(),
                    token,
                    replace=replace,
                )[0]
            codes.append(code)
        return codes

    def put_tensor_with_parallelism(
        self,
        key: str,
        tensor: Any,
        parallelism: Any = None,
        config: ReplicateConfig | None = None,
        writer_partition: Any = None,
    ) -> int:
        """Store the part of a rank, or a whole tensor without ``parallelism``."""
        how = ([parallelism], [writer_partition])
        return self._put_parallel([key], [tensor], how, config, False)[0]

    def batch_put_tensor_with_parallelism(
        self,
        keys: Sequence[str],
        tensors_list: Sequence[Any],
        parallelisms: Any = None,
        config: ReplicateConfig | None = None,
        writer_partitions: Any = None,
    ) -> list[int]:
        """Store parts of ranks; per key."""
        how = (_each(parallelisms, keys), _each(writer_partitions, keys))
        return self._put_parallel(keys, tensors_list, how, config, False)

    def upsert_tensor_with_parallelism(
        self,
        key: str,
        tensor: Any,
        parallelism: Any = None,
        config: ReplicateConfig | None = None,
        writer_partition: Any = None,
    ) -> int:
        """Like :meth:`put_tensor_with_parallelism`, in place of what is there."""
        how = ([parallelism], [writer_partition])
        return self._put_parallel([key], [tensor], how, config, True)[0]

    def batch_upsert_tensor_with_parallelism(
        self,
        keys: Sequence[str],
        tensors_list: Sequence[Any],
        parallelisms: Any = None,
        config: ReplicateConfig | None = None,
        writer_partitions: Any = None,
    ) -> list[int]:
        """Like :meth:`batch_put_tensor_with_parallelism`, in place of what is there."""
        how = (_each(parallelisms, keys), _each(writer_partitions, keys))
        return self._put_parallel(keys, tensors_list, how, config, True)

    def _put_parallel_from(
        self,
        keys: Sequence[str],
        pieces: tuple[Sequence[int], Sequence[int]],
        how: tuple[Sequence[Any], Sequence[Any]],
        config: ReplicateConfig | None,
        replace: bool,
    ) -> list[int]:
        """Store whole tensors that lie at addresses; ``pieces`` are the addresses and the sizes."""
        if not all(len(part) == len(keys) for part in pieces):
            return [INVALID] * len(keys)
        if self._now is None:
            return [UNSET] * len(keys)
        begun = self._captured()
        tensors = self._tensors_at(*pieces)
        return self._put_parallel(keys, tensors, how, config, replace, whole=True, begun=begun)

    def put_tensor_with_parallelism_from(
        self,
        key: str,
        buffer_ptr: int,
        size: int,
        parallelism: Any = None,
        config: ReplicateConfig | None = None,
        writer_partition: Any = None,
    ) -> int:
        """Store a whole tensor that lies at an address with its header, as the parts of all ranks."""
        how = ([parallelism], [writer_partition])
        return self._put_parallel_from([key], ([buffer_ptr], [size]), how, config, False)[0]

    def batch_put_tensor_with_parallelism_from(
        self,
        keys: Sequence[str],
        buffer_ptrs: Sequence[int],
        sizes: Sequence[int],
        parallelisms: Any = None,
        config: ReplicateConfig | None = None,
        writer_partitions: Any = None,
    ) -> list[int]:
        """Like :meth:`put_tensor_with_parallelism_from` for several; per key."""
        how = (_each(parallelisms, keys), _each(writer_partitions, keys))
        return self._put_parallel_from(keys, (buffer_ptrs, sizes), how, config, False)

    def upsert_tensor_with_parallelism_from(
        self,
        key: str,
        buffer_ptr: int,
        size: int,
        parallelism: Any = None,
        config: ReplicateConfig | None = None,
        writer_partition: Any = None,
    ) -> int:
        """Like :meth:`put_tensor_with_parallelism_from`, in place of what is there."""
        how = ([parallelism], [writer_partition])
        return self._put_parallel_from([key], ([buffer_ptr], [size]), how, config, True)[0]

    def batch_upsert_tensor_with_parallelism_from(
        self,
        keys: Sequence[str],
        buffer_ptrs: Sequence[int],
        sizes: Sequence[int],
        parallelisms: Any = None,
        config: ReplicateConfig | None = None,
        writer_partitions: Any = None,
    ) -> list[int]:
        """Like :meth:`batch_put_tensor_with_parallelism_from`, in place of what is there."""
        how = (_each(parallelisms, keys), _each(writer_partitions, keys))
        return self._put_parallel_from(keys, (buffer_ptrs, sizes), how, config, True)

    def _split_of(self, key: str, layout: Layout) -> Split | None:
        """Return how the tp parts of a tensor are stored; None where there are none."""
        split = Split.decode(self._values([key + PARALLELISM_MANIFEST])[0])
        if split is not None or layout.tp is None:
            return split
        for rank in dict.fromkeys((0, layout.tp.rank)):  # stored without a manifest
            shapes = shapes_of(self._values([layout.key(key, rank)])[0])
            if shapes is not None:
                whole, part = shapes
                alone = Split(tuple(whole), layout.tp.split_dim or 0, 1)
                return Split.between(whole, part) or alone
        return None

    def _written(self, key: str) -> Split | None:
        """Return how several writers have stored a tensor; None where they have not."""
        return Split.decode(self._values([key + WRITER_MANIFEST])[0])

    def _full(self, key: str, layout: Layout | None) -> Any:
        """Return a whole tensor: from the parts of all ranks, or of all writers, or as it is stored."""
        if layout is None:
            split = self._written(key)
            if split is None:
                return self.get_tensor(key)
            names = [writer_key(key, rank, split) for rank in range(split.size)]
        elif layout.tp is None:
            return self.get_tensor(layout.key(key))
        else:
            split = self._split_of(key, layout)
            if split is None:
                return None
            names = [layout.key(key, rank, split.size) for rank in range(split.size)]
        return joined(split, 0, 1, split.dim, lambda _ranks: self.batch_get_tensor(names))

    def _shard(self, key: str, layout: Layout) -> Any:
        """Return the part of a rank, also where the tensor was split otherwise, or not at all."""
        axis = layout.tp
        if axis is None:
            return self.get_tensor(layout.key(key))
        dim = axis.split_dim or 0
        split = self._split_of(key, layout)
        if split is not None:
            size = split.size
            return joined(
                split,
                axis.rank,
                axis.size,
                dim,
                lambda ranks: self.batch_get_tensor([layout.key(key, r, size) for r in ranks]),
            )
        if len(layout.axes) > 1:
            return None
        split = self._written(key)
        if split is not None:
            written = split
            return joined(
                split,
                axis.rank,
                axis.size,
                dim,
                lambda ranks: self.batch_get_tensor([writer_key(key, r, written) for r in ranks]),
            )
        parts = shards(self.get_tensor(key), axis.size, dim)
        return None if parts is None else parts[axis.rank].contiguous()

    def get_tensor_with_parallelism(self, key: str, target: Any = None) -> Any:
        """Return a tensor as it is stored, the part of a rank, or the whole; None for a miss.

        Parameters
        ----------
        key : str
        target : ReadTarget, optional
            ``shard`` may ask for another split than it was stored with.
        """
        if target is None:
            return self.get_tensor(key)
        if not isinstance(target, ReadTarget):
            return None
        try:
            layout = None if target.parallelism is None else Layout.of(target.parallelism)
        except ValueError as error:
            _log.error("%s: %s", key, error)
            return None
        if target.mode == "as_stored":
            return self.get_tensor(key)
        if target.mode == "full":
            return self._full(key, layout)
        return None if layout is None else self._shard(key, layout)

    def batch_get_tensor_with_parallelism(
        self, keys: Sequence[str], targets: Any = None
    ) -> list[Any]:
        """Return tensors as :meth:`get_tensor_with_parallelism`; ``targets`` is a list, one a key."""
        each = _each(targets, keys)
        if len(each) != len(keys):
            return [None] * len(keys)
        return [
            self.get_tensor_with_parallelism(key, target)
            for key, target in zip(keys, each, strict=True)
        ]

    def get_tensor_with_parallelism_into(
        self, key: str, buffer_ptr: int, size: int, target: Any = None
    ) -> Any:
        """Read a tensor to an address with its header; a view of it, or None."""
        if target is None:
            return self.get_tensor_into(key, buffer_ptr, size)
        value = encode(self.get_tensor_with_parallelism(key, target))
        if value is None or self._now is None:
            return None
        joined = b"".join(bytes(memoryview(part).cast("B")) for part in value)
        copy = self._now.native.copy_ranges
        if len(joined) > size:
            return None
        if copy([joined], [[0]], [[buffer_ptr]], [[len(joined)]], True)[0] < 0:
            return None
        return decode(memory_at(buffer_ptr, len(joined)), copy=False)

    def batch_get_tensor_with_parallelism_into(
        self,
        keys: Sequence[str],
        buffer_ptrs: Sequence[int],
        sizes: Sequence[int],
        targets: Any = None,
    ) -> list[Any]:
        """Read tensors to addresses; views of them, or None."""
        each = _each(targets, keys)
        if not len(keys) == len(buffer_ptrs) == len(sizes) == len(each):
            return [None] * len(keys)
        return [
            self.get_tensor_with_parallelism_into(key, address, size, target)
            for key, address, size, target in zip(keys, buffer_ptrs, sizes, each, strict=True)
        ]
