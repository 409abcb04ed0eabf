# SPDX-License-Identifier: Apache-2.0
"""Which codec a column of Python values gets.

A column that has one kind of values (all strings, all arrays of numbers, ...) gets the codec of that
kind. Rows that are dicts or lists get ``msgpack_ragged`` (``json_ragged`` without msgpack) if that can
hold all of them, and else are taken apart, key by key and place by place, into columns that are looked
at in turn: :func:`infer_structure`.
"""

from __future__ import annotations

import importlib.util
import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy

from kvcove.mooncake.structured.members import is_tensor
from kvcove.mooncake.structured.types import MISSING

__all__ = [
    "CodecDecision",
    "InferredLeaf",
    "InferredNode",
    "choose_leaf_codec",
    "escape_key",
    "expand",
    "infer_structure",
    "is_media",
    "number_array",
    "object_codec",
    "plain_numbers",
]

MAX_DEPTH = 32
MAX_LIST = 8  # places of a list; longer ones are values
MAX_KEYS = 64  # keys of a dict


@dataclass
class CodecDecision:
    """The codec of a column, or why it gets none (``accepted`` is False)."""

    accepted: bool
    codec: str
    reason: str
    normalized_type: str
    metadata: dict[str, Any] = field(default_factory=dict)


@dataclass
class InferredLeaf:
    """A column without structure of its own."""

    path: str
    values: list[Any]
    decision: CodecDecision


@dataclass
class InferredNode:
    """A place where rows are dicts or lists."""

    path: str
    node_type: str
    children: list[Any]
    lengths: list[int] | None = None
    row_mask: list[bool] | None = None


def object_codec() -> str:
    """Return the codec for dicts and lists: msgpack where it is installed."""
    return "msgpack_ragged" if importlib.util.find_spec("msgpack") else "json_ragged"


def is_media(item: Any) -> bool:
    """Whether an item is bytes or an image of PIL."""
    if isinstance(item, bytes | bytearray | memoryview):
        return True
    return type(item).__module__.startswith("PIL.") and hasattr(item, "tobytes")


def number_array(row: Any) -> Any:
    """Return a list, tuple or array of numbers as an array, None for anything else."""
    if is_tensor(row):
        return None
    try:
        array = numpy.asarray(row)
    except (ValueError, OverflowError):
        return None
    return array if array.dtype.kind in "biuf" else None


def plain_numbers(rows: Sequence[Any]) -> tuple[Any, list[int]] | None:
    """Return the elements of rows one behind the other, and each row's length.

    An array a row costs many times what its few elements do. None where a row is no list or tuple, or its
    elements are not all int, or all float: such rows have to be looked at one by one.
    """
    if not all(type(row) is list or type(row) is tuple for row in rows):
        return None
    flat = list(itertools.chain.from_iterable(rows))
    kinds = set(map(type, flat))
    if kinds != {int} and kinds != {float}:
        return None
    try:
        array = numpy.array(flat, dtype=numpy.int64 if kinds == {int} else numpy.float64)
    except OverflowError:
        return None
    return array, list(map(len, rows))


def choose_leaf_codec(values: Sequence[Any]) -> CodecDecision:
    """Return the codec for a column, judged by all of its rows; None and MISSING fit everywhere."""
    rows = [value for value in values if value is not None and value is not MISSING]
    if not rows:
        return CodecDecision(False, object_codec(), "all rows are null", "null")
    for kind in (_tensors, _text, _bytes, _scalars, _arrays, _sequences, _media, _objects):
        decision = kind(rows)
        if decision is not None:
            return decision
    return _refused("no codec matched")


def _refused(reason: str, codec: str = "") -> CodecDecision:
    return CodecDecision(False, codec or object_codec(), reason, "python object")


def _tensors(rows: list[Any]) -> CodecDecision | None:
    if not all(is_tensor(row) for row in rows):
        return None
    dtypes = sorted({str(row.dtype) for row in rows})
    if len(dtypes) > 1:
        return _refused(f"mixed tensor dtype: {dtypes}", "ragged_tensor")
    reason, metadata = "all non-null rows are Tensor", {"dtype": dtypes[0]}
    return CodecDecision(True, "ragged_tensor", reason, "torch.Tensor", metadata)


def _text(rows: list[Any]) -> CodecDecision | None:
    if not all(isinstance(row, str) for row in rows):
        return None
    return CodecDecision(True, "utf8_ragged", "all rows are str", "str")


def _bytes(rows: list[Any]) -> CodecDecision | None:
    if not all(isinstance(row, bytes | bytearray | memoryview) for row in rows):
        return None
    return CodecDecision(True, "bytes_ragged", "all rows are bytes-like", "bytes-like")


def _scalars(rows: list[Any]) -> CodecDecision | None:
    if not all(isinstance(row, bool | int | float | numpy.generic) for row in rows):
        return None
    array = number_array(rows)
    if array is None or array.ndim != 1:
        return None
    metadata = {"dtype": str(array.dtype)}
    reason = "all rows are numeric scalar"
    return CodecDecision(True, "ndarray", reason, "numeric scalar", metadata)


def _arrays(rows: list[Any]) -> CodecDecision | None:
    if not all(isinstance(row, numpy.ndarray) for row in rows):
        return None
    if not all(row.dtype.kind in "biuf" for row in rows):
        return _refused("object ndarray rows")
    reason = "all rows are numeric ndarray"
    return CodecDecision(True, "typed_ragged", reason, "numeric sequence")


def _sequences(rows: list[Any]) -> CodecDecision | None:
    if not all(isinstance(row, list | tuple | numpy.ndarray) for row in rows):
        return None
    plain = plain_numbers(rows)
    if plain is not None:
        dtype = plain[0].dtype
    else:
        arrays = [number_array(row) for row in rows]
        if any(array is None for array in arrays) or not any(array.size for array in arrays):
            return None
        dtype = numpy.result_type(*[array.dtype for array in arrays if array.size])
    reason, metadata = "all rows are numeric sequences", {"dtype": str(dtype)}
    return CodecDecision(True, "typed_ragged", reason, "numeric sequence", metadata)


def _media(rows: list[Any]) -> CodecDecision | None:
    if not all(isinstance(row, list | tuple) for row in rows):
        return None
    if not all(is_media(item) for row in rows for item in row):
        return None
    reason = "all rows are media lists"
    return CodecDecision(True, "media_list_ragged", reason, "media list")


def _objects(rows: list[Any]) -> CodecDecision | None:
    huge = all(isinstance(row, int) for row in rows)  # integers of more than 64 bits
    if not huge and not all(isinstance(row, Mapping | list | tuple) for row in rows):
        return None
    codec = "json_ragged" if huge else object_codec()
    try:
        if codec == "json_ragged":
            # JSON would turn other keys into text.
            if not all(_text_keys(row) for row in rows):
                return None
            json.dumps(rows)
        else:
            import msgpack  # type: ignore[import-untyped, import-not-found, unused-ignore]

            msgpack.packb(rows, use_bin_type=True)
    except (TypeError, ValueError, OverflowError, RecursionError):
        return None
    kind = codec.partition("_")[0]
    return CodecDecision(True, codec, f"all rows are {kind}-like", kind)


def _text_keys(value: Any) -> bool:
    if isinstance(value, Mapping):
        return all(isinstance(k, str) and _text_keys(v) for k, v in value.items())
    if isinstance(value, list | tuple):
        return all(_text_keys(one) for one in value)
    return True


# ---- structure


def expand(values: Sequence[Any]) -> tuple[str, list[Any], list[list[Any]]] | None:
    """Take rows apart that are all dicts, or all lists.

    Returns
    -------
    tuple or None
        ``dict`` or ``list``; the keys or places; for each, its column: MISSING where a dict has no
        such key, None where the row is none or a list is shorter. None: the rows are neither.
    """
    rows = [value for value in values if value is not None and value is not MISSING]
    if rows and all(isinstance(row, Mapping) for row in rows):
        keys = list(dict.fromkeys(key for row in rows for key in row))
        if len(keys) > MAX_KEYS or not all(isinstance(key, str) for key in keys):
            return None
        columns = [
            [row.get(key, MISSING) if isinstance(row, Mapping) else None for row in values]
            for key in keys
        ]
        return "dict", keys, columns
    if rows and all(isinstance(row, list | tuple) for row in rows):
        longest = max(len(row) for row in rows)
        decision = choose_leaf_codec(rows)
        plain = decision.codec == "typed_ragged" or any(is_media(item) for item in rows[0][:1])
        if longest > MAX_LIST or (decision.accepted and plain):
            return None
        columns = [
            [row[i] if isinstance(row, list | tuple) and i < len(row) else None for row in values]
            for i in range(longest)
        ]
        return "list", list(range(longest)), columns
    return None


def escape_key(key: str) -> str:
    """Return a key as it stands in a path: ``.``, ``[`` and the backslash get one in front."""
    return "".join("\\" + c if c in "\\.[" else c for c in key)


def infer_structure(
    path: str,
    values: list[Any],
    leaves: list[InferredLeaf],
    nodes: list[InferredNode],
    *,
    _depth: int = 0,
) -> None:
    """Append the columns without structure of a column to ``leaves``, the dicts and lists to ``nodes``.

    Raises
    ------
    ValueError
        Values are nested deeper than 32 levels.
    """
    if _depth > MAX_DEPTH:
        raise ValueError(f"{path}: nested deeper than {MAX_DEPTH} levels")
    expanded = expand(values)
    if expanded is None:
        leaves.append(InferredLeaf(path, list(values), choose_leaf_codec(values)))
        return
    kind, children, columns = expanded
    mask = [value is not None and value is not MISSING for value in values]
    lengths = None
    if kind == "list":
        lengths = [len(v) if there else 0 for v, there in zip(values, mask, strict=True)]
    nodes.append(InferredNode(path, kind, children, lengths, mask))
    for child, column in zip(children, columns, strict=True):
        below = f"{path}.{escape_key(child)}" if kind == "dict" else f"{path}[{child}]"
        infer_structure(below, column, leaves, nodes, _depth=_depth + 1)
