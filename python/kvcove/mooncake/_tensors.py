# SPDX-License-Identifier: Apache-2.0
"""Tensors in the store: an object is a header of 304 bytes and the elements behind it.

The header, little-endian: magic ``NOOM``, u16 version 1, u16 304, i32 dtype, i32 dimensions, u64 0,
u64 offset of the data (304), u64 bytes of the data, 8 x i64 shape of the whole tensor that this is a
part of (-1: none), 8 x i64 shape of the part; zeros up to its end. torch is imported when a method needs it.
"""

from __future__ import annotations

import ctypes
import functools
import math
import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kvcove.mooncake._answers import INVALID, UNSET, refused
from kvcove.mooncake._parallel import shards
from kvcove.mooncake._parts import StorePart
from kvcove.mooncake._types import Code, ReplicateConfig

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


# Names of torch's dtypes, as far as they were asked for: making one anew takes longer than a small copy.
_names: dict[Any, str] = {}


def _name_of(dtype: Any) -> str:
    name = _names.get(dtype)
    if name is None:
        name = _names[dtype] = str(dtype).removeprefix("torch.")
    return name


def dtype_of(tensor: Any) -> int:
    """Return the number of a tensor's dtype.

    Raises
    ------
    ValueError
        It is not known.
    """
    return _DTYPES.index(_name_of(tensor.dtype))


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
    name = _name_of(tensor.dtype)
    if name not in _DTYPES or tensor.dim() > _MAX_DIMS:
        return None
    plain = tensor.detach().cpu().contiguous()
    head = header_of(name, plain.shape, whole)
    data = plain.reshape(-1).view(torch.uint8) if plain.numel() else None
    return [head] if data is None else [head, data.numpy()]


def header_of(dtype: str, shape: Sequence[int], whole: Sequence[int] | None = None) -> bytes:
    """Return the header in front of a tensor's elements.

    Parameters
    ----------
    dtype : str
        With or without ``torch.``.
    shape : sequence of int
    whole : sequence of int, optional
        As in :func:`encode`.
    """
    return _header(
        dtype.removeprefix("torch."), tuple(shape), tuple(shape if whole is None else whole)
    )


@functools.cache
def item_size(dtype: str) -> int:
    """Return the bytes of an element of this dtype (a name, without ``torch.``)."""
    import torch

    # dtype.itemsize would need torch 2.1.
    return int(torch.empty((), dtype=getattr(torch, dtype)).element_size())


@functools.lru_cache(maxsize=4096)
def _header(name: str, shape: tuple[int, ...], whole: tuple[int, ...]) -> bytes:
    return struct.pack(
        "<IHHiiQQQ16q",
        _MAGIC,
        1,
        HEADER_BYTES,
        _DTYPES.index(name),
        len(shape),
        0,
        HEADER_BYTES,
        math.prod(shape) * item_size(name),
        *_padded(whole),
        *_padded(shape),
    ).ljust(HEADER_BYTES, b"\0")


def _padded(shape: tuple[int, ...]) -> tuple[int, ...]:
    return shape + (-1,) * (_MAX_DIMS - len(shape))


def decode(value: Any, *, copy: bool = True) -> Any:
    """Return the tensor of an object, None if it is none.

    Parameters
    ----------
    value : buffer
    copy : bool
        False: the tensor is a view of ``value``, which must be writable and live as long.
    """
    view = memoryview(value)
    described = _described(bytes(view[:HEADER_BYTES]))
    if described is None:
        return None
    import torch

    kind, shape, count, offset, size = described
    if offset + size > view.nbytes:
        return None
    if count == 0:
        return torch.empty(shape, dtype=kind)
    if copy:
        value, offset = bytearray(view[offset : offset + size]), 0
    return torch.frombuffer(value, dtype=kind, count=count, offset=offset).reshape(shape)


@functools.lru_cache(maxsize=4096)
def _described(head: bytes) -> tuple[Any, tuple[int, ...], int, int, int] | None:
    """Return what a header tells of: dtype, shape, elements, where they begin, their bytes."""
    import torch

    if len(head) < HEADER_BYTES:
        return None
    magic, version, header, dtype, dims, _, offset, size = struct.unpack_from("<IHHiiQQQ", head)
    known = magic == _MAGIC and version == 1 and header == HEADER_BYTES
    if not known or not 0 <= dtype < len(_DTYPES) or not 0 <= dims <= _MAX_DIMS:
        return None
    # A tensor without dimensions comes back with one.
    shape = struct.unpack_from("<8q", head, 104)[:dims] or (1,)
    kind = getattr(torch, _DTYPES[dtype])
    count = math.prod(shape)
    if min(shape) < 0 or offset < HEADER_BYTES or size != count * item_size(_DTYPES[dtype]):
        return None
    return kind, shape, count, offset, size


def shapes_of(value: Any) -> tuple[list[int], list[int]] | None:
    """Return the shapes of the whole tensor and of this part of it, None for what is no tensor."""
    if value is None or len(value) < HEADER_BYTES:
        return None
    magic, version, header, _, dims = struct.unpack_from("<IHHii", value)
    if (magic, version, header) != (_MAGIC, 1, HEADER_BYTES) or not 0 <= dims <= _MAX_DIMS:
        return None
    whole, part = (struct.unpack_from("<8q", value, at)[:dims] for at in (40, 104))
    return list(whole), list(part)


def dtype_in(head: bytes) -> str | None:
    """Return the dtype that a header tells of (``torch.int64``), None for one that is not known."""
    number = int.from_bytes(head[8:12], "little", signed=True)
    return f"torch.{_DTYPES[number]}" if 0 <= number < len(_DTYPES) else None


def memory_at(address: int, size: int) -> memoryview:
    return memoryview((ctypes.c_ubyte * size).from_address(address)).cast("B")


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
        values = self._values(keys, writable=True)
        return [None if value is None else decode(value, copy=False) for value in values]

    def get_tensor_into(self, key: str, buffer_ptr: int, size: int) -> Any:
        """Read a tensor to an address; a tensor that is a view of it, or None."""
        return self.batch_get_tensor_into([key], [buffer_ptr], [size])[0]

    def batch_get_tensor_into(
        self, keys: Sequence[str], buffer_ptrs: Sequence[int], sizes: Sequence[int]
    ) -> list[Any]:
        """Read tensors to addresses; tensors that are views of them, or None."""
        if not len(keys) == len(buffer_ptrs) == len(sizes):
            return [INVALID] * len(keys)
        read = self.batch_get_into(keys, buffer_ptrs, sizes)
        return [
            decode(memory_at(address, count), copy=False) if count > 0 else None
            for address, count in zip(buffer_ptrs, read, strict=True)
        ]

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
            parts = shards(tensor, tp_size, split_dim)
            if parts is None:
                codes.append(INVALID)
                continue
            codes.append(self._putshards(key, parts, tensor, config, False, begun))
        return codes

    def _putshards(
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

    # ---- files

    def save_tensor_to_safetensor(self, key: str, file_name: Any = None) -> int:
        """Write a tensor to a file, named like the key if no name is given: 0 or negative."""
        from safetensors.torch import save_file

        tensor = self.get_tensor(key)
        if tensor is None:
            return int(Code.FILE_NOT_FOUND)
        try:
            save_file({key: tensor}, file_name or key)
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
