# SPDX-License-Identifier: Apache-2.0
"""Codecs of columns: a list of Python values, one a row, as *payloads* (arrays of bytes or numbers).

======================  ==========================================  ===============================
codec                   rows                                        payloads
======================  ==========================================  ===============================
``ndarray``             numbers                                     data, nulls
``utf8_ragged``         strings                                     data, offsets, nulls
``bytes_ragged``        bytes                                       data, offsets, nulls
``json_ragged``         what JSON holds                             data, offsets, nulls
``msgpack_ragged``      what msgpack holds                          data, offsets, nulls
``typed_ragged``        arrays or lists of numbers                  see ``ragged``
``ragged_tensor``       tensors of one dtype                        see ``ragged``
``ragged_tensor_dict``  dicts of tensors                            those of each key, null_mask
``media_list_ragged``   lists of bytes or of images                 data, row_offsets, byte_offsets,
                                                                    nulls
``structured_recursive``  dicts and lists of all these              those of its leaves, states
======================  ==========================================  ===============================

No codec runs code from the pool: there is no pickle among them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy

from kvcove.mooncake.structured import inference, ragged
from kvcove.mooncake.structured.types import MISSING, FieldSchema

__all__ = ["Payloads", "Source", "decode_column", "encode_column"]

Payloads = dict[str, Any]


class Source(Protocol):
    """The payloads of a column, of which some rows are wanted."""

    def rows(self, name: str) -> Any:
        """Return a payload with one entry a row, of the chosen rows."""
        ...

    def spans(self, name: str) -> list[tuple[int, int]]:
        """Return start and end of each chosen row, from a payload of offsets."""
        ...

    def data(self, name: str, spans: Sequence[tuple[int, int]], item: int) -> Any:
        """Return the bytes of spans of elements, one behind the other, as uint8."""
        ...

    def number(self, i: int) -> int:
        """Return which row the ``i``-th chosen one is."""
        ...

    def below(self, prefix: str) -> Source:
        """Return the payloads whose names begin so, without it."""
        ...


# ---- rows of bytes


def _offsets(sizes: Sequence[int]) -> Any:
    return numpy.cumsum([0, *sizes], dtype=numpy.int64)


def _encode_bytes(rows: Sequence[Any], to_bytes: Callable[[Any], bytes]) -> Payloads:
    parts = [b"" if row is None else to_bytes(row) for row in rows]
    return {
        "data": numpy.frombuffer(b"".join(parts), dtype=numpy.uint8),
        "offsets": _offsets([len(part) for part in parts]),
        "nulls": numpy.array([row is None for row in rows], dtype=bool),
    }


def _decode_bytes(source: Source, from_bytes: Callable[[bytes], Any]) -> list[Any]:
    spans = source.spans("offsets")
    data = memoryview(source.data("data", spans, 1))
    rows: list[Any] = []
    at = 0
    for null, (start, end) in zip(source.rows("nulls"), spans, strict=True):
        part = data[at : at + end - start]
        at += end - start
        rows.append(None if null else from_bytes(bytes(part)))
    return rows


def _as_bytes(row: Any) -> bytes:
    if isinstance(row, str | int):
        # bytes(5) would be five zeros.
        raise TypeError(f"bytes_ragged takes bytes, not {type(row).__name__}")
    return bytes(row)


def _as_text(row: Any) -> bytes:
    if not isinstance(row, str):
        raise TypeError(f"utf8_ragged takes str, not {type(row).__name__}")
    return row.encode()


def _to_json(row: Any) -> bytes:
    return json.dumps(row, separators=(",", ":")).encode()


def _msgpack() -> Any:
    try:
        import msgpack  # type: ignore[import-untyped, import-not-found, unused-ignore]
    except ImportError as error:
        raise RuntimeError("msgpack_ragged: the package msgpack is not installed") from error
    return msgpack


def _to_msgpack(row: Any) -> bytes:
    return bytes(_msgpack().packb(row, use_bin_type=True))


def _from_msgpack(part: bytes) -> Any:
    return _msgpack().unpackb(part, raw=False, strict_map_key=False)


_OF_BYTES: dict[str, tuple[Callable[[Any], bytes], Callable[[bytes], Any]]] = {
    "utf8_ragged": (_as_text, bytes.decode),
    "bytes_ragged": (_as_bytes, lambda part: part),
    "json_ragged": (_to_json, json.loads),
    "msgpack_ragged": (_to_msgpack, _from_msgpack),
}


# ---- numbers


def _encode_numbers(rows: Sequence[Any], dtype: Any) -> tuple[dict[str, Any], Payloads]:
    nulls = numpy.array([row is None for row in rows], dtype=bool)
    there = numpy.asarray([row for row in rows if row is not None], dtype=dtype)
    if there.dtype.kind not in "biuf" or there.ndim > 1:
        raise TypeError(f"ndarray takes numbers, not {there.dtype} of {there.ndim} dimensions")
    data = numpy.zeros(len(rows), dtype=there.dtype)
    data[~nulls] = there
    return {"dtype": str(data.dtype), "shape": [len(rows)]}, {"data": data, "nulls": nulls}


def _decode_numbers(metadata: Mapping[str, Any], source: Source) -> list[Any]:
    values = source.rows("data").view(numpy.dtype(metadata["dtype"])).tolist()
    return [
        None if null else value for null, value in zip(source.rows("nulls"), values, strict=True)
    ]


# ---- lists of media


def _media(item: Any) -> tuple[dict[str, Any], bytes]:
    if isinstance(item, bytes | bytearray | memoryview):
        return {"kind": "bytes"}, bytes(item)
    if inference.is_media(item):
        return {"kind": "image", "mode": item.mode, "size": list(item.size)}, item.tobytes()
    raise TypeError(f"media_list_ragged takes bytes or images, not {type(item).__name__}")


def _unmedia(kind: Mapping[str, Any], part: bytes) -> Any:
    if kind["kind"] == "bytes":
        return part
    try:
        from PIL import Image  # type: ignore[import-not-found, unused-ignore]
    except ImportError as error:
        raise RuntimeError("media_list_ragged: an image needs the package pillow") from error
    return Image.frombytes(kind["mode"], tuple(kind["size"]), part)


def _encode_media(rows: Sequence[Any]) -> tuple[dict[str, Any], Payloads]:
    items = [_media(item) for row in rows if row is not None for item in row]
    payloads = {
        "data": numpy.frombuffer(b"".join(part for _, part in items), dtype=numpy.uint8),
        "row_offsets": _offsets([0 if row is None else len(row) for row in rows]),
        "byte_offsets": _offsets([len(part) for _, part in items]),
        "nulls": numpy.array([row is None for row in rows], dtype=bool),
    }
    metadata = {
        "encode_source": "raw_pixels_from_object",
        "media_encodings": [kind for kind, _ in items],
    }
    return metadata, payloads


def _decode_media(metadata: Mapping[str, Any], source: Source) -> list[Any]:
    kinds = metadata["media_encodings"]
    spans = source.spans("row_offsets")
    ends = source.data("byte_offsets", [(0, len(kinds) + 1)], 8).view(numpy.int64)
    inner = [(int(ends[i]), int(ends[i + 1])) for a, b in spans for i in range(a, b)]
    data = memoryview(source.data("data", inner, 1))
    rows: list[Any] = []
    at = 0
    for null, (a, b) in zip(source.rows("nulls"), spans, strict=True):
        row = []
        for i in range(a, b):
            size = int(ends[i + 1] - ends[i])
            row.append(_unmedia(kinds[i], bytes(data[at : at + size])))
            at += size
        rows.append(None if null else row)
    return rows


# ---- dicts of tensors


def _encode_tensor_dicts(
    rows: Sequence[Any], wanted: Mapping[str, Any]
) -> tuple[dict[str, Any], Payloads]:
    for i, row in enumerate(rows):
        if row is not None and not isinstance(row, Mapping):
            raise TypeError(
                f"ragged_tensor_dict rows must be mappings or None; row {i} is {type(row).__name__}"
            )
    found = dict.fromkeys(k for row in rows if row for k in row)
    keys = list(wanted.get("keys") or found)
    for key in (*found, *keys):
        if not isinstance(key, str) or not key:
            raise ValueError(f"a ragged_tensor_dict key must not be empty or no text: {key!r}")
        if any(mark in key for mark in "./\\"):
            raise ValueError(f"a ragged_tensor_dict key must not contain '.', '/' or '\\': {key!r}")
    if lost := [key for key in found if key not in keys]:
        raise ValueError(f"ragged_tensor_dict rows have keys not declared in the schema: {lost}")
    for i, row in enumerate(rows):
        if none := [key for key, value in (row or {}).items() if value is None]:
            # It would come back as a row without the key.
            raise TypeError(f"ragged_tensor_dict row {i} has an explicit None under {none}")
    payloads: Payloads = {"null_mask": numpy.array([row is None for row in rows], dtype=bool)}
    codecs = {}
    for i, key in enumerate(keys):
        column = [None if row is None else row.get(key) for row in rows]
        codecs[key], parts = ragged.encode_tensors(column, wanted.get("dtype"))
        payloads |= {f"{i}.{name}": part for name, part in parts.items()}
    return {"keys": keys, "key_codecs": codecs}, payloads


def _decode_tensor_dicts(metadata: Mapping[str, Any], source: Source) -> list[Any]:
    rows: list[Any] = [None if null else {} for null in source.rows("null_mask")]
    for i, key in enumerate(metadata["keys"]):
        column = ragged.decode_tensors(metadata["key_codecs"][key], source.below(f"{i}."))
        for row, tensor in zip(rows, column, strict=True):
            if row is not None and tensor is not None:
                row[key] = tensor
    return rows


# ---- dicts and lists of all these

_NONE, _THERE, _ABSENT = 0, 1, 2


def _encode_tree(values: list[Any], at: str, payloads: Payloads, depth: int) -> dict[str, Any]:
    """Return what a column is below ``at``; its payloads get names that begin with it."""
    if depth > inference.MAX_DEPTH:
        raise ValueError(f"values are nested deeper than {inference.MAX_DEPTH} levels")
    states = [_ABSENT if v is MISSING else _NONE if v is None else _THERE for v in values]
    payloads[f"{at}states"] = numpy.array(states, dtype=numpy.uint8)
    expanded = inference.expand(values)
    if expanded is None:
        column = [None if v is MISSING else v for v in values]
        if all(v is None for v in column):
            return {"node": "none"}
        codec, metadata, parts = _encode_plain(column)
        payloads |= {f"{at}{name}": part for name, part in parts.items()}
        return {"node": "leaf", "codec": codec, "metadata": metadata}
    kind, children, columns = expanded
    if kind == "list":
        lengths = [len(v) if isinstance(v, list | tuple) else 0 for v in values]
        payloads[f"{at}lengths"] = numpy.array(lengths, dtype=numpy.int64)
    below = [
        _encode_tree(column, f"{at}{i}.", payloads, depth + 1) for i, column in enumerate(columns)
    ]
    return {"node": kind, "children": children, "below": below}


def _decode_tree(tree: Mapping[str, Any], source: Source) -> list[Any]:
    states = source.rows("states")
    kind = tree["node"]
    if kind == "none":
        values: list[Any] = [None] * len(states)
    elif kind == "leaf":
        values = decode_column(tree["codec"], tree["metadata"], source)
    else:
        columns = [_decode_tree(one, source.below(f"{i}.")) for i, one in enumerate(tree["below"])]
        if kind == "dict":
            values = [_row(tree["children"], [c[i] for c in columns]) for i in range(len(states))]
        else:
            lengths = source.rows("lengths")
            values = [[c[i] for c in columns[: int(lengths[i])]] for i in range(len(states))]
    outer = {_NONE: None, _ABSENT: MISSING}
    return [
        value if state == _THERE else outer[int(state)]
        for value, state in zip(values, states, strict=True)
    ]


def _row(keys: Sequence[str], values: Sequence[Any]) -> dict[str, Any]:
    return {k: v for k, v in zip(keys, values, strict=True) if v is not MISSING}


# ---- columns


def _encode_plain(rows: list[Any]) -> tuple[str, dict[str, Any], Payloads]:
    decision = inference.choose_leaf_codec(rows)
    if not decision.accepted:
        raise ValueError(f"unsupported structured non-tensor field: {decision.reason}")
    metadata, payloads = _encode_as(decision.codec, rows, {})
    told = {
        "schema_source": "inferred_from_runtime_values",
        "decision_reason": decision.reason,
        "normalized_type": decision.normalized_type,
    }
    return decision.codec, {**metadata, **told}, payloads


def _encode_as(
    codec: str, rows: list[Any], wanted: Mapping[str, Any]
) -> tuple[dict[str, Any], Payloads]:
    if codec in _OF_BYTES:
        return {}, _encode_bytes(rows, _OF_BYTES[codec][0])
    if codec == "ndarray":
        return _encode_numbers(rows, wanted.get("dtype"))
    if codec == "typed_ragged":
        return ragged.encode_arrays(rows, wanted.get("dtype"))
    if codec == "ragged_tensor":
        return ragged.encode_tensors(rows, wanted.get("dtype"))
    if codec == "ragged_tensor_dict":
        return _encode_tensor_dicts(rows, wanted)
    if codec == "media_list_ragged":
        return _encode_media(rows)
    if codec == "structured_recursive":
        payloads: Payloads = {}
        return {"tree": _encode_tree(rows, "", payloads, 0)}, payloads
    raise ValueError(f"unsupported schema codec: {codec!r}")


def encode_column(
    name: str, rows: Sequence[Any], schema: FieldSchema | None = None
) -> tuple[str, dict[str, Any], Payloads]:
    """Return the codec of a column, its metadata and its payloads.

    Raises
    ------
    TypeError, ValueError
        No codec fits, or the schema's does not.
    """
    values = list(rows)
    if schema is None:
        decision = inference.choose_leaf_codec(values)
        if decision.accepted or inference.expand(values) is None:
            return _encode_plain(values)
        metadata, payloads = _encode_as("structured_recursive", values, {})
        return "structured_recursive", metadata, payloads
    try:
        if not schema.nullable and any(row is None for row in values):
            raise ValueError(f"FieldSchema for {name!r} is not nullable")
        if schema.codec == "auto":
            return encode_column(name, values)
        codec = schema.codec
        if codec == "ndarray" and inference.choose_leaf_codec(values).codec != "ndarray":
            # What is no column of numbers gets the codec of its kind, as without a schema.
            return encode_column(name, values)
        metadata, payloads = _encode_as(codec, values, schema.metadata)
    except (TypeError, ValueError, OverflowError) as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        section, _, field = name.partition(".")
        raise kind(
            f"failed to encode {section} field {field!r} with FieldSchema codec "
            f"{schema.codec!r}: {error}"
        ) from error
    return codec, metadata, payloads


def decode_column(codec: str, metadata: Mapping[str, Any], source: Source) -> list[Any]:
    """Return the chosen rows of a column.

    Raises
    ------
    ValueError
        The codec is not known.
    """
    if codec in _OF_BYTES:
        return _decode_bytes(source, _OF_BYTES[codec][1])
    decoders: dict[str, Callable[[Mapping[str, Any], Source], list[Any]]] = {
        "ndarray": _decode_numbers,
        "typed_ragged": ragged.decode_arrays,
        "ragged_tensor": ragged.decode_tensors,
        "ragged_tensor_dict": _decode_tensor_dicts,
        "media_list_ragged": _decode_media,
        "structured_recursive": lambda one, rows: _decode_tree(one["tree"], rows),
    }
    if codec not in decoders:
        raise ValueError(f"unknown codec of a column: {codec!r}")
    return decoders[codec](metadata, source)
