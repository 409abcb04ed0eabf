# SPDX-License-Identifier: Apache-2.0
"""Tensors in the store: an object is a header of 304 bytes and the elements behind it.

The header, little-endian: magic ``NOOM``, u16 version 1, u16 304, i32 dtype, i32 dimensions, u64 0,
u64 offset of the data (304), u64 bytes of the data, 8 x i64 shape (-1: none), 8 x i64 shape of the
whole tensor that this is a part of; zeros up to its end. torch is imported when a method needs it.
"""

from __future__ import annotations

import ctypes
import json
import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kvcove.mooncake._answers import INVALID, UNSET, refused
from kvcove.mooncake._parts import StorePart
from kvcove.mooncake._types import (
    Code,
    ParallelAxis,
    ReadTarget,
    ReplicateConfig,
    TensorParallelism,
)

if TYPE_CHECKING:
    import kvcove

__all__ = ["HEADER_BYTES", "TensorMethods", "decode", "encode"]

HEADER_BYTES = 304
_MAGIC = 0x4D4F4F4E
_DTYPES = (
    *("float32", "float64", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64"),
    *("uint64", "bool", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"),
)
_MAX_DIMS = 8
_MANIFEST = "__parallelism_manifest"


def encode(tensor: Any, whole: Sequence[int] | None = None) -> list[Any] | None:
    """Return a tensor as header and elements, None for what is no tensor that can be stored.

    Parameters
    ----------
    tensor : torch.Tensor
        On any device; at most 8 dimensions.
    whole : sequence of int, optional
        The shape of the tensor that this is a part of.
    """
    import torch

    if not isinstance(tensor, torch.Tensor):
        return None
    name = str(tensor.dtype).removeprefix("torch.")
    if name not in _DTYPES or tensor.dim() > _MAX_DIMS:
        return None
    plain = tensor.detach().cpu().contiguous()
    shape = list(plain.shape) or [1]
    data = plain.reshape(-1).view(torch.uint8) if plain.numel() else None
    size = 0 if data is None else data.numel()
    header = struct.pack(
        "<IHHiiQQQ16q",
        _MAGIC,
        1,
        HEADER_BYTES,
        _DTYPES.index(name),
        len(shape),
        0,
        HEADER_BYTES,
        size,
        *_padded(shape),
        *_padded(list(whole) if whole is not None else shape),
    ).ljust(HEADER_BYTES, b"\0")
    return [header] if data is None else [header, data.numpy()]


def _padded(shape: list[int]) -> list[int]:
    return shape + [-1] * (_MAX_DIMS - len(shape))


def decode(value: Any, *, copy: bool = True) -> Any:
    """Return the tensor of an object, None if it is none.

    Parameters
    ----------
    value : buffer
    copy : bool
        False: the tensor is a view of ``value``, which must be writable and live as long.
    """
    import torch

    view = memoryview(value)
    if view.nbytes < HEADER_BYTES:
        return None
    magic, version, header, dtype, dims, _, offset, size = struct.unpack_from("<IHHiiQQQ", view)
    known = magic == _MAGIC and version == 1 and header == HEADER_BYTES
    if not known or not 0 <= dtype < len(_DTYPES) or not 0 <= dims <= _MAX_DIMS:
        return None
    shape = list(struct.unpack_from("<8q", view, 40))[:dims]
    kind = getattr(torch, _DTYPES[dtype])
    count = 1
    for extent in shape:
        if extent < 0:
            return None
        count *= extent
    if offset < HEADER_BYTES or offset + size > view.nbytes or size != count * kind.itemsize:
        return None
    if count == 0:
        return torch.empty(shape, dtype=kind)
    data = bytearray(view[offset : offset + size]) if copy else view[offset : offset + size]
    return torch.frombuffer(data, dtype=torch.uint8).view(kind).reshape(shape)


def _memory(address: int, size: int) -> memoryview:
    return memoryview((ctypes.c_ubyte * size).from_address(address)).cast("B")


def _shards(tensor: Any, size: int, dim: int) -> list[Any] | None:
    """Return ``size`` equal parts along a dimension; None if it cannot be split so."""
    import torch

    if not isinstance(tensor, torch.Tensor) or not 0 <= dim < tensor.dim():
        return None
    extent = tensor.shape[dim]
    if size < 1 or extent % size:
        return None
    return [tensor.narrow(dim, rank * extent // size, extent // size) for rank in range(size)]


def _is_encoded(head: Any, size: int) -> bool:
    """Whether a header of its own stands in front of exactly the elements that it tells of."""
    if size < HEADER_BYTES:
        return False
    magic, version, header = struct.unpack_from("<IHH", head)
    data = struct.unpack_from("<QQ", head, 24)
    return (magic, version, header) == (_MAGIC, 1, HEADER_BYTES) and sum(data) == size


def _tp_key(key: str, rank: int, size: int) -> str:
    return key if size <= 1 else f"{key}_tp_{rank}"


class TensorMethods(StorePart):
    """The tensor methods of the store; it has the others."""

    if TYPE_CHECKING:

        def get_into(self, key: str, buffer_ptr: int, size: int) -> int: ...

        def batch_get_into(
            self, keys: Sequence[str], buffer_ptrs: Sequence[int], sizes: Sequence[int]
        ) -> list[int]: ...

        def _put_from(
            self,
            keys: Sequence[str],
            addresses: Sequence[Any],
            sizes: Sequence[Any],
            config: ReplicateConfig | None,
            *,
            several: bool,
            replace: bool,
        ) -> list[int]: ...

    def _put_tensors(
        self,
        keys: Sequence[str],
        tensors: Sequence[Any],
        config: ReplicateConfig | None,
        replace: bool,
        *,
        wholes: Sequence[Sequence[int] | None] | None = None,
        begun: kvcove.Token | int | None = None,
    ) -> list[int]:
        """Store tensors; ``begun`` is what was captured if their elements were read before."""
        if len(keys) != len(tensors):
            return [INVALID] * len(keys)
        # Before the elements are copied to the host.
        token = self._captured() if begun is None else begun
        now = self._now
        if now is None or isinstance(token, int):
            return [token if isinstance(token, int) else UNSET] * len(keys)
        config = config or ReplicateConfig()
        refusal = refused(config, len(keys), values_in_bytes=False)
        if refusal != 0:
            return [refusal] * len(keys)
        wholes = wholes or [None] * len(keys)
        values = [encode(t, whole) for t, whole in zip(tensors, wholes, strict=True)]
        codes = [INVALID] * len(keys)
        which = [i for i, value in enumerate(values) if value is not None]
        answers = self._put_buffers(
            now,
            [keys[i] for i in which],
            [values[i] for i in which],
            config,
            token,
            replace=replace,
        )
        for i, code in zip(which, answers, strict=True):
            codes[i] = code
        return codes

    # ---- put

    def put_tensor(self, key: str, tensor: Any) -> int:
        """Store a tensor: 0, or -600 for what is none or of a dtype that is not known."""
        return self._put_tensors([key], [tensor], None, False)[0]

    def batch_put_tensor(self, keys: Sequence[str], tensors_list: Sequence[Any]) -> list[int]:
        """Store tensors; per key."""
        return self._put_tensors(keys, tensors_list, None, False)

    def pub_tensor(self, key: str, tensor: Any, config: ReplicateConfig | None = None) -> int:
        """Store a tensor with a configuration."""
        return self._put_tensors([key], [tensor], config, False)[0]

    def batch_pub_tensor(
        self,
        keys: Sequence[str],
        tensors_list: Sequence[Any],
        config: ReplicateConfig | None = None,
    ) -> list[int]:
        """Store tensors with a configuration; per key."""
        return self._put_tensors(keys, tensors_list, config, False)

    def upsert_tensor(self, key: str, tensor: Any) -> int:
        """Store a tensor in place of what is there."""
        return self._put_tensors([key], [tensor], None, True)[0]

    def batch_upsert_tensor(self, keys: Sequence[str], tensors_list: Sequence[Any]) -> list[int]:
        """Store tensors in place of what is there; per key."""
        return self._put_tensors(keys, tensors_list, None, True)

    def upsert_pub_tensor(
        self, key: str, tensor: Any, config: ReplicateConfig | None = None
    ) -> int:
        """Store a tensor in place of what is there, with a configuration."""
        return self._put_tensors([key], [tensor], config, True)[0]

    def batch_upsert_pub_tensor(
        self,
        keys: Sequence[str],
        tensors_list: Sequence[Any],
        config: ReplicateConfig | None = None,
    ) -> list[int]:
        """Store tensors in place of what is there, with a configuration; per key."""
        return self._put_tensors(keys, tensors_list, config, True)

    def _put_encoded(
        self,
        keys: Sequence[str],
        buffer_ptrs: Sequence[int],
        sizes: Sequence[int],
        replace: bool,
    ) -> list[int]:
        """Store what is header and elements at an address already."""
        if not len(keys) == len(buffer_ptrs) == len(sizes):
            return [INVALID] * len(keys)
        codes = [INVALID] * len(keys)
        which = []
        for i, (address, size) in enumerate(zip(buffer_ptrs, sizes, strict=True)):
            head = self._now and self._now.native.read(address, HEADER_BYTES)
            if self._now is None:
                codes[i] = UNSET
            elif head is not None and _is_encoded(head, size):
                which.append(i)
        answers = self._put_from(
            [keys[i] for i in which],
            [buffer_ptrs[i] for i in which],
            [sizes[i] for i in which],
            None,
            several=False,
            replace=replace,
        )
        for i, code in zip(which, answers, strict=True):
            codes[i] = code
        return codes

    def _tensors_at(self, buffer_ptrs: Sequence[int], sizes: Sequence[int]) -> list[Any]:
        """Return copies of the tensors that lie at addresses; None for what is none."""
        if self._now is None:
            return [None] * len(sizes)
        read = self._now.native.read
        values = [read(*piece) for piece in zip(buffer_ptrs, sizes, strict=True)]
        return [
            decode(value, copy=False) if value is not None and _is_encoded(value, size) else None
            for value, size in zip(values, sizes, strict=True)
        ]

    def put_tensor_from(self, key: str, buffer_ptr: int, size: int) -> int:
        """Store a tensor that lies at an address with its header."""
        return self._put_encoded([key], [buffer_ptr], [size], False)[0]

    def batch_put_tensor_from(
        self, keys: Sequence[str], buffer_ptrs: Sequence[int], sizes: Sequence[int]
    ) -> list[int]:
        """Store tensors that lie at addresses with their headers; per key."""
        return self._put_encoded(keys, buffer_ptrs, sizes, False)

    def upsert_tensor_from(self, key: str, buffer_ptr: int, size: int) -> int:
        """Like :meth:`put_tensor_from`, in place of what is there."""
        return self._put_encoded([key], [buffer_ptr], [size], True)[0]

    def batch_upsert_tensor_from(
        self, keys: Sequence[str], buffer_ptrs: Sequence[int], sizes: Sequence[int]
    ) -> list[int]:
        """Like :meth:`batch_put_tensor_from`, in place of what is there."""
        return self._put_encoded(keys, buffer_ptrs, sizes, True)

    # ---- get

    def get_tensor(self, key: str) -> Any:
        """Return a tensor, None for a miss or what is none."""
        return self.batch_get_tensor([key])[0]

    def batch_get_tensor(self, keys: Sequence[str]) -> list[Any]:
        """Return tensors; None for what is not there."""
        return [None if value is None else decode(value) for value in self._values(keys)]

    def get_tensor_into(self, key: str, buffer_ptr: int, size: int) -> Any:
        """Read a tensor to an address; a tensor that is a view of it, or None."""
        return self.batch_get_tensor_into([key], [buffer_ptr], [size])[0]

    def batch_get_tensor_into(
        self, keys: Sequence[str], buffer_ptrs: Sequence[int], sizes: Sequence[int]
    ) -> list[Any]:
        """Read tensors to addresses; tensors that are views of them, or None."""
        read = self.batch_get_into(keys, buffer_ptrs, sizes)
        return [
            decode(_memory(address, count), copy=False) if count > 0 else None
            for address, count in zip(buffer_ptrs, read, strict=False)
        ] + [None] * (len(keys) - min(len(buffer_ptrs), len(read)))

    def get_tensor_into_cuda(self, key: str, tensor: Any) -> int:
        """Copy a tensor's elements into a tensor on a GPU: bytes, -704, or -600."""
        return self.batch_get_tensor_into_cuda([key], [tensor])[0]

    def batch_get_tensor_into_cuda(
        self, keys: Sequence[str], tensors_list: Sequence[Any]
    ) -> list[int]:
        """Copy tensors' elements into tensors on a GPU; per key bytes, -704, or -600."""
        if len(keys) != len(tensors_list):
            return [INVALID] * len(keys)
        usable = [getattr(t, "is_cuda", False) and t.is_contiguous() for t in tensors_list]
        if not any(usable):
            return [INVALID] * len(keys)
        codes = []
        for source, target, fits in zip(
            self.batch_get_tensor(keys), tensors_list, usable, strict=True
        ):
            if not fits:
                codes.append(INVALID)
            elif source is None:
                codes.append(int(Code.OBJECT_NOT_FOUND))
            elif source.dtype != target.dtype or source.numel() != target.numel():
                codes.append(INVALID)
            else:
                target.copy_(source.reshape(target.shape))
                codes.append(source.numel() * source.element_size())
        return codes

    # ---- tensor parallel: `key_tp_<rank>` holds a part

    def _put_tp(
        self,
        keys: Sequence[str],
        tensors: Sequence[Any],
        config: ReplicateConfig | None,
        tp_size: int,
        split_dim: int,
        begun: kvcove.Token | int | None = None,
    ) -> list[int]:
        if len(keys) != len(tensors):
            return [INVALID] * len(keys)
        if tp_size <= 1:
            return self._put_tensors(keys, tensors, config, False, begun=begun)
        codes = []
        for key, tensor in zip(keys, tensors, strict=True):
            parts = _shards(tensor, tp_size, split_dim)
            if parts is None:
                codes.append(INVALID)
                continue
            codes.append(self._put_shards(key, parts, tensor, config, False, begun))
        return codes

    def _put_shards(
        self,
        key: str,
        parts: Sequence[Any],
        whole: Any,
        config: ReplicateConfig | None,
        replace: bool,
        begun: kvcove.Token | int | None,
    ) -> int:
        """Store every part of a tensor; 0, or the first error."""
        names = [_tp_key(key, rank, len(parts)) for rank in range(len(parts))]
        shapes = [list(whole.shape)] * len(parts)
        codes = self._put_tensors(names, parts, config, replace, wholes=shapes, begun=begun)
        return next((code for code in codes if code != 0), 0)

    def put_tensor_with_tp(
        self, key: str, tensor: Any, tp_rank: int = 0, tp_size: int = 1, split_dim: int = 0
    ) -> int:
        """Store a whole tensor as ``tp_size`` equal parts, whatever the rank; -600 if it has none.

        With ``tp_size`` 1 or less it is stored as it is.
        """
        return self._put_tp([key], [tensor], None, tp_size, split_dim)[0]

    def batch_put_tensor_with_tp(
        self,
        base_keys: Sequence[str],
        tensors_list: Sequence[Any],
        tp_rank: int = 0,
        tp_size: int = 1,
        split_dim: int = 0,
    ) -> list[int]:
        """Store whole tensors as parts; per key."""
        return self._put_tp(base_keys, tensors_list, None, tp_size, split_dim)

    def pub_tensor_with_tp(
        self,
        key: str,
        tensor: Any,
        config: ReplicateConfig | None = None,
        tp_rank: int = 0,
        tp_size: int = 1,
        split_dim: int = 0,
    ) -> int:
        """Store a whole tensor as parts, with a configuration."""
        return self._put_tp([key], [tensor], config, tp_size, split_dim)[0]

    def batch_pub_tensor_with_tp(
        self,
        base_keys: Sequence[str],
        tensors_list: Sequence[Any],
        config: ReplicateConfig | None = None,
        tp_rank: int = 0,
        tp_size: int = 1,
        split_dim: int = 0,
    ) -> list[int]:
        """Store whole tensors as parts, with a configuration; per key."""
        return self._put_tp(base_keys, tensors_list, config, tp_size, split_dim)

    def put_tensor_with_tp_from(
        self,
        key: str,
        buffer_ptr: int,
        size: int,
        tp_rank: int = 0,
        tp_size: int = 1,
        split_dim: int = 0,
    ) -> int:
        """Like :meth:`put_tensor_with_tp`: the whole tensor lies at an address with its header."""
        return self.batch_put_tensor_with_tp_from(
            [key], [buffer_ptr], [size], tp_rank, tp_size, split_dim
        )[0]

    def batch_put_tensor_with_tp_from(
        self,
        base_keys: Sequence[str],
        buffer_ptrs: Sequence[int],
        sizes: Sequence[int],
        tp_rank: int = 0,
        tp_size: int = 1,
        split_dim: int = 0,
    ) -> list[int]:
        """Store whole tensors that lie at addresses with their headers, as parts; per key."""
        if tp_size <= 1:
            return self._put_encoded(base_keys, buffer_ptrs, sizes, False)
        if not len(base_keys) == len(buffer_ptrs) == len(sizes):
            return [INVALID] * len(base_keys)
        if self._now is None:
            return [UNSET] * len(base_keys)
        begun = self._captured()  # before a byte is read
        tensors = self._tensors_at(buffer_ptrs, sizes)
        return self._put_tp(base_keys, tensors, None, tp_size, split_dim, begun)

    def get_tensor_with_tp(
        self, key: str, tp_rank: int = 0, tp_size: int = 1, split_dim: int = 0
    ) -> Any:
        """Return the part of a rank, or None."""
        return self.get_tensor(_tp_key(key, tp_rank, tp_size))

    def batch_get_tensor_with_tp(
        self, base_keys: Sequence[str], tp_rank: int = 0, tp_size: int = 1
    ) -> list[Any]:
        """Return the parts of a rank; None for what is not there."""
        return self.batch_get_tensor([_tp_key(key, tp_rank, tp_size) for key in base_keys])

    def get_tensor_with_tp_into(
        self,
        key: str,
        buffer_ptr: int,
        size: int,
        tp_rank: int = 0,
        tp_size: int = 1,
        split_dim: int = 0,
    ) -> Any:
        """Read the part of a rank to an address; a view of it, or None."""
        return self.get_tensor_into(_tp_key(key, tp_rank, tp_size), buffer_ptr, size)

    def batch_get_tensor_with_tp_into(
        self,
        base_keys: Sequence[str],
        buffer_ptrs: Sequence[int],
        sizes: Sequence[int],
        tp_rank: int = 0,
        tp_size: int = 1,
    ) -> list[Any]:
        """Read the parts of a rank to addresses; views of them, or None."""
        names = [_tp_key(key, tp_rank, tp_size) for key in base_keys]
        return self.batch_get_tensor_into(names, buffer_ptrs, sizes)

    # ---- parallelism: a manifest says how a tensor was split; its parts have the ranks' keys

    @staticmethod
    def _split_axis(parallelism: Any) -> ParallelAxis | None:
        """Return the one axis that splits, None where none does; raises what is not known."""
        if parallelism is None:
            return None
        if not isinstance(parallelism, TensorParallelism):
            raise ValueError("parallelism is no TensorParallelism")
        splitting = [axis for axis in parallelism.axes if axis.size > 1]
        if len(splitting) > 1 or any(axis.split_dim is None for axis in splitting):
            raise ValueError("one axis with a split_dim is supported")
        return splitting[0] if splitting else None

    def _put_parallel(
        self,
        keys: Sequence[str],
        tensors: Sequence[Any],
        parallelisms: Any,
        config: ReplicateConfig | None,
        writer_partitions: Any,
        replace: bool,
        *,
        whole: bool = False,
        begun: kvcove.Token | int | None = None,
    ) -> list[int]:
        """Store tensors: the part of the rank that gives it, or with ``whole`` the parts of all."""
        if writer_partitions is not None:
            return [int(Code.NOT_SUPPORTED)] * len(keys)
        if len(keys) != len(tensors):
            return [INVALID] * len(keys)
        token = self._captured() if begun is None else begun
        now = self._now
        if now is None or isinstance(token, int):
            return [token if isinstance(token, int) else UNSET] * len(keys)
        config = config or ReplicateConfig()
        each = (
            parallelisms if isinstance(parallelisms, list | tuple) else [parallelisms] * len(keys)
        )
        if len(each) != len(keys):
            return [INVALID] * len(keys)
        codes = []
        for key, tensor, parallelism in zip(keys, tensors, each, strict=True):
            try:
                axis = self._split_axis(parallelism)
            except ValueError:
                codes.append(INVALID)
                continue
            if axis is None:
                codes += self._put_tensors([key], [tensor], config, replace, begun=token)
                continue
            if not 0 <= axis.rank < axis.size:
                codes.append(INVALID)
                continue
            if whole:
                parts = _shards(tensor, axis.size, -1 if axis.split_dim is None else axis.split_dim)
                code = INVALID
                if parts is not None:
                    code = self._put_shards(key, parts, tensor, config, replace, token)
            else:
                name = _tp_key(key, axis.rank, axis.size)
                code = self._put_tensors([name], [tensor], config, replace, begun=token)[0]
            if code == 0:
                manifest = {"kind": axis.kind, "size": axis.size, "split_dim": axis.split_dim}
                text = json.dumps(manifest).encode()
                code = self._put_buffers(
                    now, [key + _MANIFEST], [text], config, token, replace=replace
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
        return self._put_parallel([key], [tensor], parallelism, config, writer_partition, False)[0]

    def batch_put_tensor_with_parallelism(
        self,
        keys: Sequence[str],
        tensors_list: Sequence[Any],
        parallelisms: Any = None,
        config: ReplicateConfig | None = None,
        writer_partitions: Any = None,
    ) -> list[int]:
        """Store parts of ranks; per key."""
        return self._put_parallel(
            keys, tensors_list, parallelisms, config, writer_partitions, False
        )

    def upsert_tensor_with_parallelism(
        self,
        key: str,
        tensor: Any,
        parallelism: Any = None,
        config: ReplicateConfig | None = None,
        writer_partition: Any = None,
    ) -> int:
        """Like :meth:`put_tensor_with_parallelism`, in place of what is there."""
        return self._put_parallel([key], [tensor], parallelism, config, writer_partition, True)[0]

    def batch_upsert_tensor_with_parallelism(
        self,
        keys: Sequence[str],
        tensors_list: Sequence[Any],
        parallelisms: Any = None,
        config: ReplicateConfig | None = None,
        writer_partitions: Any = None,
    ) -> list[int]:
        """Like :meth:`batch_put_tensor_with_parallelism`, in place of what is there."""
        return self._put_parallel(keys, tensors_list, parallelisms, config, writer_partitions, True)

    def _put_parallel_from(
        self,
        keys: Sequence[str],
        buffer_ptrs: Sequence[int],
        sizes: Sequence[int],
        parallelisms: Any,
        config: ReplicateConfig | None,
        writer_partitions: Any,
        replace: bool,
    ) -> list[int]:
        if not len(keys) == len(buffer_ptrs) == len(sizes):
            return [INVALID] * len(keys)
        now = self._now
        if now is None:
            return [UNSET] * len(keys)
        begun = self._captured()
        tensors = self._tensors_at(buffer_ptrs, sizes)
        return self._put_parallel(
            keys,
            tensors,
            parallelisms,
            config,
            writer_partitions,
            replace,
            whole=True,
            begun=begun,
        )

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
        return self._put_parallel_from(
            [key], [buffer_ptr], [size], parallelism, config, writer_partition, False
        )[0]

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
        return self._put_parallel_from(
            keys, buffer_ptrs, sizes, parallelisms, config, writer_partitions, False
        )

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
        return self._put_parallel_from(
            [key], [buffer_ptr], [size], parallelism, config, writer_partition, True
        )[0]

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
        return self._put_parallel_from(
            keys, buffer_ptrs, sizes, parallelisms, config, writer_partitions, True
        )

    def _whole(self, key: str) -> Any:
        """Return a tensor from all its parts, None if one is missing."""
        import torch

        manifest = self._values([key + _MANIFEST])[0]
        if manifest is None:
            return self.get_tensor(key)
        split = json.loads(manifest)
        names = [_tp_key(key, rank, split["size"]) for rank in range(split["size"])]
        parts = self.batch_get_tensor(names)
        if any(part is None for part in parts):
            return None
        return torch.cat(parts, split["split_dim"])

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
            axis = self._split_axis(target.parallelism)
        except ValueError:
            return None
        if target.mode == "full":
            return self._whole(key)
        if axis is None:
            return self.get_tensor(key)
        manifest = self._values([key + _MANIFEST])[0]
        split = None if manifest is None else json.loads(manifest)
        same = split is None or (split["size"], split["split_dim"]) == (axis.size, axis.split_dim)
        if target.mode == "as_stored" or same:
            part = self.get_tensor(_tp_key(key, axis.rank, axis.size))
            if part is not None or target.mode == "as_stored":
                return part
        whole = self._whole(key)
        parts = _shards(whole, axis.size, axis.split_dim or 0)
        return None if parts is None or not 0 <= axis.rank < axis.size else parts[axis.rank]

    def batch_get_tensor_with_parallelism(
        self, keys: Sequence[str], targets: Any = None
    ) -> list[Any]:
        """Return tensors as :meth:`get_tensor_with_parallelism`."""
        each = targets if isinstance(targets, list | tuple) else [targets] * len(keys)
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
        copy = self._now.native.copy
        if len(joined) > size or copy(joined, [0], [buffer_ptr], [len(joined)], True) < 0:
            return None
        return decode(_memory(buffer_ptr, len(joined)), copy=False)

    def batch_get_tensor_with_parallelism_into(
        self,
        keys: Sequence[str],
        buffer_ptrs: Sequence[int],
        sizes: Sequence[int],
        targets: Any = None,
    ) -> list[Any]:
        """Read tensors to addresses; views of them, or None."""
        each = targets if isinstance(targets, list | tuple) else [targets] * len(keys)
        if not len(keys) == len(buffer_ptrs) == len(sizes) == len(each):
            return [None] * len(keys)
        return [
            self.get_tensor_with_parallelism_into(key, address, size, target)
            for key, address, size, target in zip(keys, buffer_ptrs, sizes, each, strict=True)
        ]

    # ---- files

    def save_tensor_to_safetensor(self, key: str, file_name: Any = None) -> int:
        """Write a tensor to a file, ``<key>.safetensors`` if it is not named: 0 or negative."""
        from safetensors.torch import save_file

        tensor = self.get_tensor(key)
        if tensor is None:
            return int(Code.OBJECT_NOT_FOUND)
        try:
            save_file({key: tensor}, file_name or f"{key}.safetensors")
        except OSError:
            return int(Code.FILE_WRITE_FAIL)
        return 0

    def load_tensor_from_safetensor(self, key: Any = None, file_name: str = "") -> Any:
        """Store a file's tensor, under its own name if ``key`` is not given; the tensor or None."""
        from safetensors.torch import load_file

        try:
            tensors = load_file(file_name)
        except (OSError, ValueError):
            return None
        name = key if key in tensors else next(iter(tensors), None)
        if name is None:
            return None
        tensor = tensors[name]
        return tensor if self.put_tensor(key or name, tensor) == 0 else None
