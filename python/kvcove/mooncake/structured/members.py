# SPDX-License-Identifier: Apache-2.0
"""Arrays and tensors as members of a bundle.

A member is described by a *spec*, a JSON object in the bundle's metadata:

=================  ====================================================================
encoding           the bytes
=================  ====================================================================
``bytes``          as they are
``ndarray``        elements in C order; ``dtype``, ``shape``
``torch_tensor``   a header of 304 bytes (``kvcove.mooncake._tensors``), then the elements
``nested_tensor``  the same of all rows together; ``lengths`` has the rows of each,
                   ``ragged`` the dimension of a row that comes first here
=================  ====================================================================

Rows are chosen along the first axis, and only their bytes are read.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy

from kvcove.mooncake import _tensors
from kvcove.mooncake.structured.bundles import Bundles, Pieces, bytes_of
from kvcove.mooncake.structured.types import RawDestination, TensorObjectBuffer

__all__ = [
    "Rows",
    "check_described",
    "describe",
    "is_nested",
    "is_tensor",
    "read_member",
    "rows_of",
    "viewed",
]

Rows = range | list[int] | None  # None: all


class _Octets(numpy.ndarray):
    """An array of uint8 that is compared with bytes as bytes are, and with arrays as arrays are."""

    __hash__ = None

    def __reduce_ex__(self, protocol: Any) -> Any:  # readers of a pickle may have no kvcove
        return self.view(numpy.ndarray).__reduce_ex__(protocol)

    def __eq__(self, other: Any) -> Any:
        if isinstance(other, bytes | bytearray):
            return self.tobytes() == other
        return super().__eq__(other)

    def __ne__(self, other: Any) -> Any:
        if isinstance(other, bytes | bytearray):
            return self.tobytes() != other
        return super().__ne__(other)


def is_tensor(value: Any) -> bool:
    """Whether a value is a torch tensor; torch is not imported for it."""
    kind: object = type(value)
    return _of_torch(kind) and hasattr(value, "data_ptr")


@functools.lru_cache(maxsize=1024)
def _of_torch(kind: Any) -> bool:
    return any(base.__module__.partition(".")[0] == "torch" for base in kind.__mro__[:-1])


def is_nested(value: Any) -> bool:
    """Whether a value is a tensor of rows of different lengths."""
    return is_tensor(value) and bool(getattr(value, "is_nested", False))


def rows_of(value: Any) -> int:
    """Return how many rows a field has; raises TypeError for one without rows."""
    if isinstance(value, TensorObjectBuffer):
        if value.batch_size is not None:
            return value.batch_size
        try:
            return int(_header(value)[1][0])
        except ValueError as error:
            raise TypeError(f"{error}; a field of a batch needs its batch_size") from error
    if is_tensor(value) or isinstance(value, numpy.ndarray):
        if value.ndim == 0:
            raise TypeError("a field of a batch has rows; this one has no dimension")
        return int(value.size(0) if is_nested(value) else value.shape[0])
    return len(value)


def _memory(address: int, size: int, owner: Any) -> Any:
    """Return memory of a caller as an array of uint8 that keeps its owner."""
    memory: Any = (ctypes.c_ubyte * size).from_address(address)
    memory.owner = owner
    return numpy.frombuffer(memory, dtype=numpy.uint8)


# ---- put


def describe(value: Any, name: str, *, zero_copy: bool = False) -> tuple[dict[str, Any], Pieces]:
    """Return a member's spec and its bytes.

    Raises
    ------
    TypeError, ValueError
        It has no bytes, or is a tensor of an unknown dtype; with ``zero_copy``, any tensor that is
        no :func:`tensor_object_buffer`.
    """
    if isinstance(value, TensorObjectBuffer):
        dtype, shape = _header(value)
        piece = _memory(value.ptr, value.size, value.owner)
        return {"encoding": "torch_tensor", "dtype": dtype, "shape": shape}, [piece]
    if is_tensor(value):
        if zero_copy:
            raise ValueError(
                f"{name}: zero-copy structured tensor fields require a BufferPool tensor-object buffer "
                "(tensor_object_buffer)"
            )
        if is_nested(value):
            return _describe_nested(value, name)
        return _described_tensor(value, name)
    if isinstance(value, numpy.ndarray) and value.dtype != object:
        spec = {"encoding": "ndarray", "dtype": value.dtype.str, "shape": list(value.shape)}
        return spec, [bytes_of(value, name)]
    if isinstance(value, numpy.ndarray):
        raise TypeError(f"{name}: an array of Python objects has no bytes of its own")
    return {"encoding": "bytes"}, [bytes_of(value, name)]


def _described_tensor(value: Any, name: str) -> tuple[dict[str, Any], Pieces]:
    # The header has no tensor without dimensions: the spec says that it has none.
    parts = _tensors.encode(value if value.dim() > 0 else value.reshape(1))
    if parts is None:
        raise ValueError(f"{name}: a tensor of {value.dtype} with {value.dim()} dimensions")
    spec = {"encoding": "torch_tensor", "dtype": str(value.dtype), "shape": list(value.shape)}
    return spec, [bytes_of(part, name) for part in parts]


def _describe_nested(value: Any, name: str) -> tuple[dict[str, Any], Pieces]:
    import torch

    jagged = value.layout == torch.jagged
    parts = value.detach().cpu().unbind()
    # The dimension in which rows differ comes first: the bytes of a row then lie in one range.
    ragged = value._ragged_idx - 1 if jagged and parts else 0
    rows = [row.movedim(ragged, 0) for row in parts]
    together = torch.cat(rows) if rows else torch.empty(0, dtype=value.dtype)
    spec, pieces = _described_tensor(together, name)
    lengths = [int(row.shape[0]) for row in rows]
    more = {"encoding": "nested_tensor", "lengths": lengths, "jagged": jagged, "ragged": ragged}
    return {**spec, **more}, pieces


def _header(buffer: TensorObjectBuffer) -> tuple[str, list[int]]:
    """Return dtype and shape of the tensor in a buffer."""
    if buffer.size < _tensors.HEADER_BYTES or buffer.ptr == 0:
        raise ValueError(f"tensor_object_buffer of {buffer.size} bytes: there is no header")
    head = bytes((ctypes.c_ubyte * _tensors.HEADER_BYTES).from_address(buffer.ptr))
    shapes = _tensors.shapes_of(head)
    dtype = _tensors.dtype_in(head)
    if shapes is None or dtype is None or not shapes[1]:
        raise ValueError("tensor_object_buffer: no tensor of Mooncake lies there")
    size = _tensors.HEADER_BYTES + int(numpy.prod(shapes[1])) * _itemsize(dtype)
    if buffer.size < size:
        raise ValueError(f"tensor_object_buffer of {buffer.size} bytes: the tensor has {size}")
    return dtype, shapes[1]


# ---- get

_DESCRIBED = {
    "bytes": (),
    "ndarray": ("dtype", "shape"),
    "torch_tensor": ("dtype", "shape"),
    "nested_tensor": ("dtype", "shape", "lengths", "jagged"),
    "structured_non_tensor": ("codec", "metadata", "payloads"),
}


def check_described(name: str, spec: Mapping[str, Any]) -> None:
    """Refuse a description that another program, or another version, has written differently.

    Raises
    ------
    ValueError
        The encoding is not known, or the description lacks a part.
    """
    encoding = spec.get("encoding")
    if encoding not in _DESCRIBED:
        raise ValueError(f"unsupported structured field encoding: {encoding} of {name}")
    lacking = [one for one in _DESCRIBED[encoding] if one not in spec]
    if lacking:
        raise ValueError(f"structured {encoding} member {name}: its spec lacks {lacking}")


def viewed(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return a description with the names that Mooncake's manifest view has for its parts."""
    if spec["encoding"] in ("torch_tensor", "nested_tensor"):
        size = int(numpy.prod(spec["shape"])) * _itemsize(spec["dtype"])
        parts = {"format": "tensor_parts", "part_bytes": [_tensors.HEADER_BYTES, size]}
        nested = spec["encoding"] == "nested_tensor"
        return {**spec, "encoding": "torch_tensor", "nested": nested, **parts}
    if spec["encoding"] == "structured_non_tensor":
        payloads = spec["payloads"].items()
        described = {n: {"dtype": p["dtype"], "shape": p["shape"]} for n, p in payloads}
        return {**spec, "payload_specs": described}
    return dict(spec)


def read_member(
    bundles: Bundles,
    name: str,
    spec: Mapping[str, Any],
    entry: Mapping[str, Any],
    rows: Rows = None,
    destination: Any = None,
) -> Any:
    """Return a member, or chosen rows of it. Bytes are an array of uint8 that equals them, no bytes ``b""``.

    Parameters
    ----------
    bundles, name, spec, entry
        Who reads; the member, its description, and its entry in the manifest.
    rows : range or list of int, optional
        Row numbers from 0.
    destination : optional
        An array, a :func:`raw_destination`, for tensors also a :func:`tensor_object_buffer`.

    Raises
    ------
    ValueError
        The destination does not fit, or the description is none.
    RuntimeError
        The bytes are not there.
    """
    check_described(name, spec)
    encoding = spec["encoding"]
    if encoding == "bytes":
        if destination is not None:
            raise ValueError(f"structured bytes member {name} does not support materialize_into")
        if rows is not None:
            raise ValueError(f"structured bytes member {name} does not support slicing")
        octets = bundles.read(entry)
        return octets.view(_Octets) if octets.size else b""
    if encoding == "nested_tensor":
        if destination is not None:
            raise ValueError(f"structured tensor member {name} has rows of different lengths")
        return _read_nested(bundles, spec, entry, rows)
    tensor = encoding == "torch_tensor"
    dtype = spec["dtype"] if tensor else numpy.dtype(spec["dtype"])
    item = _itemsize(dtype) if tensor else dtype.itemsize
    shape, ranges = _chosen(spec["shape"], item, rows, _tensors.HEADER_BYTES if tensor else 0)
    target = _Target(name, dtype, shape, tensor=tensor, destination=destination)
    target.take(bundles)
    if target.size:
        bundles.read_into(entry, ranges, target.address, target.owner)
    return target.result()


def _itemsize(dtype: str) -> int:
    return _tensors.item_size(dtype.removeprefix("torch."))


def _chosen(
    shape: Sequence[int], item: int, rows: Rows, base: int
) -> tuple[list[int], list[tuple[int, int]]]:
    """Return the shape of the chosen rows, and where their bytes lie; neighbours together."""
    if rows is None:
        return list(shape), [(base, item * int(numpy.prod(shape)))]
    width = item * int(numpy.prod(shape[1:]))
    ranges: list[tuple[int, int]] = []
    for row in rows:
        at = base + row * width
        if ranges and ranges[-1][0] + ranges[-1][1] == at:
            ranges[-1] = (ranges[-1][0], ranges[-1][1] + width)
        else:
            ranges.append((at, width))
    return [len(rows), *shape[1:]], ranges


class _Target:
    """Where elements go, and what is made of them."""

    def __init__(
        self, name: str, dtype: Any, shape: list[int], *, tensor: bool, destination: Any
    ) -> None:
        self._name, self._dtype, self._shape, self._tensor = name, dtype, shape, tensor
        self._destination = destination
        item = _itemsize(dtype) if tensor else dtype.itemsize
        self.size = item * int(numpy.prod(shape))
        self.owner: Any = None
        self.address = 0
        if destination is None:
            return
        if isinstance(destination, RawDestination | TensorObjectBuffer):
            self._in_memory(destination)
        elif tensor or not isinstance(destination, numpy.ndarray):
            allowed = "tensor_object_buffer or raw_destination" if tensor else "array"
            raise ValueError(
                f"structured {'tensor' if tensor else 'ndarray'} member {name} only supports "
                f"{allowed} destinations"
            )
        else:
            self._in_array(destination)

    def take(self, bundles: Bundles) -> None:
        """Take memory, where the caller has none for it."""
        if self._destination is None:
            self.owner = bundles.memory(self.size)
            self.address = int(self.owner.ctypes.data)

    def _in_array(self, array: Any) -> None:
        what = f"structured ndarray field {self._name} destination"
        if array.dtype != self._dtype:
            raise ValueError(
                f"{what} dtype mismatch: expected {self._dtype.str}, got {array.dtype.str}"
            )
        if array.shape != tuple(self._shape):
            raise ValueError(
                f"{what} shape mismatch: expected {tuple(self._shape)}, got {array.shape}"
            )
        if not array.flags.c_contiguous:
            raise ValueError(f"{what} must be C-contiguous")
        if not array.flags.writeable:
            raise ValueError(f"{what} must be writeable")
        self.owner, self.address = array, int(array.ctypes.data)

    def _in_memory(self, memory: RawDestination | TensorObjectBuffer) -> None:
        whole = isinstance(memory, TensorObjectBuffer)
        if whole and not self._tensor:
            raise ValueError(f"{self._name} is an array: it has no tensor_object_buffer")
        head = _tensors.HEADER_BYTES if whole else 0
        if memory.ptr == 0 or memory.size < head + self.size:
            raise ValueError(
                f"destination of {self._name} has {memory.size} bytes; {head + self.size} are needed"
            )
        self.owner, self.address = memory.owner, memory.ptr + head
        if whole:
            header = _tensors.header_of(self._dtype, self._shape)
            ctypes.memmove(memory.ptr, header, head)

    def result(self) -> Any:
        """Return the array or the tensor; it keeps the memory."""
        if isinstance(self._destination, numpy.ndarray):
            return self._destination
        data = self.owner
        if self._destination is not None:
            data = _memory(self.address, self.size, self.owner)
        if not self._tensor:
            return data.view(self._dtype).reshape(self._shape)
        import torch

        kind = getattr(torch, self._dtype.removeprefix("torch."))
        if self.size == 0:
            return torch.empty(self._shape, dtype=kind)
        return torch.from_numpy(data).view(kind).reshape(self._shape)


def _read_nested(
    bundles: Bundles, spec: Mapping[str, Any], entry: Mapping[str, Any], rows: Rows
) -> Any:
    import torch

    lengths = spec["lengths"]
    starts = numpy.cumsum([0, *lengths])
    chosen = range(len(lengths)) if rows is None else rows
    # The rows of the nested tensor are ranges of rows of the tensor that lies there.
    inner = [i for row in chosen for i in range(int(starts[row]), int(starts[row + 1]))]
    flat = {**spec, "encoding": "torch_tensor"}
    together = read_member(bundles, "nested", flat, entry, None if rows is None else inner)
    sizes = [lengths[row] for row in chosen]
    if not spec["jagged"]:
        return torch.nested.nested_tensor(list(torch.split(together, sizes)))
    ragged = spec.get("ragged", 0)  # what was stored before there was this part has its rows at 0
    values = together.movedim(0, ragged).contiguous()
    offsets = torch.tensor([0, *sizes]).cumsum(0)
    return torch.nested.nested_tensor_from_jagged(values, offsets, jagged_dim=ragged + 1)
