# SPDX-License-Identifier: Apache-2.0
"""Columns of arrays or tensors of different shapes.

All elements lie one behind the other in ``data``; ``offsets`` (rows + 1, in elements), ``shapes`` (rows x
the most dimensions), ``ndims`` and ``nulls`` have a row each. A row of a list is an array, too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy

from kvcove.mooncake._tensors import item_size
from kvcove.mooncake.structured.inference import number_array, plain_numbers
from kvcove.mooncake.structured.members import is_tensor

if TYPE_CHECKING:
    from kvcove.mooncake.structured.columns import Payloads, Source

__all__ = ["decode_arrays", "decode_tensors", "encode_arrays", "encode_tensors"]


def _layout(arrays: Sequence[Any]) -> tuple[dict[str, Any], int]:
    """Return the payloads beside ``data``, and the most dimensions."""
    ndims = numpy.array([0 if a is None else a.ndim for a in arrays], dtype=numpy.int16)
    most = int(ndims.max(initial=0))
    shapes = numpy.zeros((len(arrays), most), dtype=numpy.int64)
    sizes = numpy.zeros(len(arrays) + 1, dtype=numpy.int64)
    for i, array in enumerate(arrays):
        if array is not None:
            shapes[i, : array.ndim] = tuple(array.shape)
            sizes[i + 1] = math.prod(array.shape)
    nulls = numpy.array([a is None for a in arrays], dtype=bool)
    payloads = {"offsets": numpy.cumsum(sizes), "shapes": shapes, "ndims": ndims, "nulls": nulls}
    return payloads, most


def _array(row: Any, dtype: Any) -> Any:
    if row is None:
        return None
    if is_tensor(row):
        row = row.detach().cpu().numpy()
    array = number_array(row) if dtype is None else numpy.asarray(row, dtype=dtype)
    if array is None:
        raise ValueError(f"typed_ragged takes rows of numbers, not {row!r:.80}")
    return array


def encode_arrays(rows: Sequence[Any], dtype: Any = None) -> tuple[dict[str, Any], Payloads]:
    """Encode rows of numbers: arrays, or (nested) lists.

    Raises
    ------
    TypeError, ValueError
        A row is no regular array of numbers.
    """
    plain = plain_numbers(rows)
    if plain is not None and (dtype is None or numpy.dtype(dtype) == plain[0].dtype):
        return _encode_plain(*plain)
    arrays = [_array(row, dtype) for row in rows]
    there = [array for array in arrays if array is not None]
    # A list without elements has no dtype of its own: it must not make others floating point.
    kinds = [a.dtype for a in there if a.size] or [a.dtype for a in there]
    common = numpy.dtype(dtype) if dtype is not None else numpy.result_type(*(kinds or ["<f8"]))
    payloads, most = _layout(arrays)
    flat = [a.reshape(-1).astype(common, copy=False) for a in there]
    payloads["data"] = numpy.concatenate(flat) if flat else numpy.empty(0, common)
    kind = "ndarray" if there and isinstance(_first(rows), numpy.ndarray) else "list"
    mixed = len({isinstance(row, numpy.ndarray) for row in rows if row is not None}) > 1
    which = [isinstance(row, numpy.ndarray) for row in rows] if mixed else None
    metadata = {
        "dtype": str(common) if common.kind in "biuf" else common.str,
        "max_ndim": most,
        "shape_policy": "ragged",
        "physical_layout": "contiguous_flat",
        "row_format": kind,
        "ndarray_rows": which,
    }
    return metadata, payloads


def _encode_plain(data: Any, lengths: list[int]) -> tuple[dict[str, Any], Payloads]:
    """Encode lists of plain numbers, as encode_arrays would one by one."""
    shapes = numpy.array(lengths, dtype=numpy.int64).reshape(-1, 1)
    payloads = {
        "offsets": numpy.concatenate(([0], numpy.cumsum(shapes))),
        "shapes": shapes,
        "ndims": numpy.ones(len(lengths), dtype=numpy.int16),
        "nulls": numpy.zeros(len(lengths), dtype=bool),
        "data": data,
    }
    metadata = {
        "dtype": str(data.dtype),
        "max_ndim": 1,
        "shape_policy": "ragged",
        "physical_layout": "contiguous_flat",
        "row_format": "list",
        "ndarray_rows": None,
    }
    return metadata, payloads


def _first(rows: Sequence[Any]) -> Any:
    return next((row for row in rows if row is not None), None)


def _shapes(source: Source) -> tuple[Any, list[tuple[int, ...]], Any]:
    """Return the nulls, the shapes and the data's ranges of the chosen rows."""
    nulls, ndims = source.rows("nulls"), source.rows("ndims")
    shapes = source.rows("shapes")
    shaped = [tuple(int(n) for n in row[:dims]) for row, dims in zip(shapes, ndims, strict=True)]
    return nulls, shaped, source.spans("offsets")


def decode_arrays(metadata: Mapping[str, Any], source: Source) -> list[Any]:
    """Return the chosen rows."""
    nulls, shapes, spans = _shapes(source)
    dtype = numpy.dtype(metadata["dtype"])
    data = source.data("data", spans, dtype.itemsize).view(dtype)
    which = metadata.get("ndarray_rows")
    everywhere = metadata["row_format"] == "ndarray"
    rows: list[Any] = []
    at = 0
    for i, (null, shape) in enumerate(zip(nulls, shapes, strict=True)):
        if null:
            rows.append(None)
            continue
        size = math.prod(shape)
        array = data[at : at + size].reshape(shape)
        at += size
        kept = which[source.number(i)] if which is not None else everywhere
        rows.append(array if kept else array.tolist())
    return rows


def encode_tensors(
    rows: Sequence[Any], dtype: str | None = None
) -> tuple[dict[str, Any], Payloads]:
    """Encode rows that are tensors of one dtype.

    Raises
    ------
    TypeError
        A row is no tensor.
    ValueError
        Their dtypes differ, or are not the one that is wanted.
    """
    import torch

    wrong = next((row for row in rows if row is not None and not is_tensor(row)), None)
    if wrong is not None:
        raise TypeError(f"ragged_tensor takes tensors, not {type(wrong).__name__}")
    tensors = [None if row is None else row.detach().cpu().contiguous() for row in rows]
    there = [tensor for tensor in tensors if tensor is not None]
    dtypes = {str(tensor.dtype) for tensor in there}
    if len(dtypes) > 1:
        raise ValueError(f"mixed tensor dtype: {' vs '.join(sorted(dtypes))}")
    name = dtypes.pop() if dtypes else f"torch.{(dtype or 'float32').removeprefix('torch.')}"
    if dtype is not None and name != f"torch.{dtype.removeprefix('torch.')}":
        there = [tensor.to(getattr(torch, dtype.removeprefix("torch."))) for tensor in there]
        name = f"torch.{dtype.removeprefix('torch.')}"
    payloads, most = _layout(tensors)
    flat = [t.reshape(-1).view(torch.uint8).numpy() for t in there if t.numel()]
    payloads["data"] = numpy.concatenate(flat) if flat else numpy.empty(0, numpy.uint8)
    metadata = {"dtype": name, "max_ndim": most, "shape_policy": "ragged"}
    return metadata, payloads


def decode_tensors(metadata: Mapping[str, Any], source: Source) -> list[Any]:
    """Return the chosen rows."""
    import torch

    nulls, shapes, spans = _shapes(source)
    name = metadata["dtype"].removeprefix("torch.")
    kind, item = getattr(torch, name), item_size(name)
    data = source.data("data", spans, item)
    rows: list[Any] = []
    at = 0
    for null, shape in zip(nulls, shapes, strict=True):
        if null:
            rows.append(None)
            continue
        size = math.prod(shape) * item
        part = data[at : at + size]
        at += size
        if size == 0:
            rows.append(torch.empty(shape, dtype=kind))
        else:
            rows.append(torch.from_numpy(part).view(kind).reshape(shape))
    return rows
