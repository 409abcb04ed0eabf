# SPDX-License-Identifier: Apache-2.0
"""Batches of rows: what a caller puts, as fields of two sections and metadata; and back.

A batch is an object (or a mapping) with ``batch``, ``non_tensor_batch`` and ``meta_info``; another mapping
is a batch of tensors, or, as a *flat dict*, a mixture: arrays and tensors with a row each go to
``batch``, lists of that length to ``non_tensor_batch``, the rest to ``meta_info``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy

from kvcove.mooncake.structured import columns
from kvcove.mooncake.structured.bundles import Bundles, Pieces, bytes_of
from kvcove.mooncake.structured.members import (
    Rows,
    check_described,
    describe,
    is_tensor,
    read_member,
    rows_of,
)
from kvcove.mooncake.structured.types import (
    FieldSchema,
    StructuredMemberSlice,
    TensorObjectBuffer,
)

__all__ = ["Batch", "check_schemas", "chosen_rows", "flat", "read_field", "split", "write_fields"]

BATCH, OTHERS, META = "batch", "non_tensor_batch", "meta_info"
_SECTIONS = (BATCH, META, OTHERS)
_ALIGNED = 16  # elements of a payload begin at a multiple of their size


@dataclass
class Batch:
    """Fields by section, and metadata."""

    batch: dict[Any, Any] = field(default_factory=dict)
    non_tensor_batch: dict[Any, Any] = field(default_factory=dict)
    meta_info: dict[Any, Any] = field(default_factory=dict)
    size: int = 0

    def checked(self) -> Batch:
        """Return the batch with its number of rows.

        Raises
        ------
        ValueError
            A name stands in both sections, or fields have different numbers of rows.
        """
        both = sorted(set(self.batch) & set(self.non_tensor_batch))
        if both:
            raise ValueError(f"DataProto batch and non_tensor_batch fields overlap: {both}")
        sizes = {rows_of(one) for one in (*self.batch.values(), *self.non_tensor_batch.values())}
        if len(sizes) > 1:
            raise ValueError(f"DataProto fields have inconsistent batch sizes: {sorted(sizes)}")
        self.size = sizes.pop() if sizes else 0
        return self


# ---- what is put


def _mapping(value: Any, what: str) -> dict[Any, Any]:
    if value is None:
        return {}
    if not hasattr(value, "items"):
        raise TypeError(f"DataProto {what} must be a mapping, got {type(value).__name__}")
    return dict(value.items())


def split(data: Any) -> Batch:
    """Return a batch.

    Raises
    ------
    TypeError
        It has none of the three attributes and is no mapping.
    ValueError
        See :meth:`Batch.checked`.
    """
    if isinstance(data, Mapping):
        # Fields may have these names, too: a section is a mapping.
        sections = bool(data) and set(data) <= set(_SECTIONS)
        if not sections or not all(v is None or hasattr(v, "items") for v in data.values()):
            return Batch(batch=dict(data)).checked()
        parts: Any = [data.get(name) for name in (BATCH, OTHERS, META)]
    elif any(hasattr(data, name) for name in _SECTIONS):
        parts = [getattr(data, name, None) for name in (BATCH, OTHERS, META)]
    else:
        raise TypeError(
            "a DataProto has batch, non_tensor_batch and meta_info, or is a mapping; "
            f"got {type(data).__name__}"
        )
    fields = [_mapping(p, n) for p, n in zip(parts, (BATCH, OTHERS, META), strict=True)]
    return Batch(fields[0], fields[1], fields[2]).checked()


def _dense(value: Any) -> bool:
    if isinstance(value, TensorObjectBuffer):
        return True
    if is_tensor(value):
        return bool(value.dim() > 0)
    return isinstance(value, numpy.ndarray) and value.dtype != object and value.ndim > 0


def _listed(value: Any) -> bool:
    return isinstance(value, list | tuple) and not isinstance(value, str | bytes)


def flat(data: Any, schemas: Mapping[str, FieldSchema]) -> Batch:
    """Return a flat dict as a batch.

    Raises
    ------
    TypeError
        It is no mapping.
    ValueError
        Fields have different numbers of rows, or a schema names a section that is none.
    """
    if not isinstance(data, Mapping):
        raise TypeError("flat dict payload must be a mapping")
    said = {name: _section(name, schemas[name]) for name in data if name in schemas}
    size = _rows_of_flat(data, said, schemas)
    batch = Batch()
    for name, value in data.items():
        section = said.get(name)
        if section is None and size is not None:
            if _dense(value) and rows_of(value) == size:
                section = BATCH
            elif _listed(value) and len(value) == size:
                section = OTHERS
        getattr(batch, section or META)[name] = _column(value) if section == OTHERS else value
    return batch.checked()


def _section(name: str, schema: FieldSchema) -> str | None:
    section = schema.metadata.get("section")
    if section is not None and section not in _SECTIONS:
        raise ValueError(
            f"FieldSchema for {name!r} metadata['section'] must be one of {list(_SECTIONS)}"
        )
    return section


def check_schemas(batch: Batch, schemas: Mapping[str, FieldSchema]) -> None:
    """Refuse a schema that names another section than the one that has its field.

    Raises
    ------
    ValueError
        One does, or its section is none.
    """
    parts = {BATCH: batch.batch, OTHERS: batch.non_tensor_batch, META: batch.meta_info}
    for name, schema in schemas.items():
        declared = _section(name, schema)
        actual = sorted(section for section, fields in parts.items() if name in fields)
        if declared is not None and actual and declared not in actual:
            raise ValueError(
                f"FieldSchema for {name!r} declares section {declared!r}, but data contains it in "
                f"{', '.join(map(repr, actual))}"
            )


def _schema_for(schemas: Mapping[str, FieldSchema], name: str, section: str) -> FieldSchema | None:
    """Return the schema of a field: not one that is another section's field of this name."""
    schema = schemas.get(name)
    return schema if schema is None or _section(name, schema) in (None, section) else None


def _rows_of_flat(
    data: Mapping[str, Any], said: Mapping[str, str | None], schemas: Mapping[str, FieldSchema]
) -> int | None:
    """Return how many rows the fields have; None: none of them has any."""
    for name, section in said.items():
        if section in (BATCH, OTHERS) and not hasattr(data[name], "__len__"):
            raise ValueError(f"flat dict row-aligned field {name!r} must be sized")
    open_ = {n: v for n, v in data.items() if said.get(n) is None}
    groups = (
        ("", [rows_of(data[n]) for n, s in said.items() if s in (BATCH, OTHERS)]),
        ("dense ", [rows_of(v) for n, v in open_.items() if _dense(v)]),
        ("", [len(v) for n, v in open_.items() if _listed(v) and (n in schemas or v is not None)]),
    )
    for what, sizes in groups:
        if len(set(sizes)) > 1:
            advice = (
                ""
                if what
                else ("; pass FieldSchema metadata['section'] for list-valued metadata fields")
            )
            raise ValueError(
                f"flat dict {what}fields have ambiguous batch sizes: {sorted(set(sizes))}{advice}"
            )
        if sizes:
            return sizes[0]
    return None


def _column(value: Any) -> Any:
    """Return a list as an array of Python objects, a row each."""
    if isinstance(value, numpy.ndarray) and value.dtype == object:
        return value
    column = numpy.empty(len(value), dtype=object)
    for i, one in enumerate(value):
        column[i] = one
    return column


# ---- write


def write_fields(
    batch: Batch, schemas: Mapping[str, FieldSchema], *, zero_copy: bool
) -> tuple[dict[str, Any], dict[str, Pieces]]:
    """Return the specs and the bytes of a batch's members.

    Raises
    ------
    TypeError, ValueError
        A field cannot be stored.
    """
    specs: dict[str, Any] = {}
    members: dict[str, Pieces] = {}
    for section, fields in ((BATCH, batch.batch), (OTHERS, batch.non_tensor_batch)):
        for name, value in fields.items():
            member = f"{section}.{name}"
            schema = _schema_for(schemas, name, section)
            objects = isinstance(value, numpy.ndarray) and value.dtype == object
            if section == OTHERS and (objects or schema is not None):
                specs[member], members[member] = _write_column(member, value, schema)
            else:
                specs[member], members[member] = describe(value, member, zero_copy=zero_copy)
    return specs, members


def _write_column(
    member: str, value: Any, schema: FieldSchema | None
) -> tuple[dict[str, Any], Pieces]:
    rows = list(_column(value))
    codec, metadata, payloads = columns.encode_column(member, rows, schema)
    table: dict[str, Any] = {}
    pieces: Pieces = []
    at = 0
    for name, payload in payloads.items():
        piece = bytes_of(payload, name)
        table[name] = {"at": at, "dtype": payload.dtype.str, "shape": list(payload.shape)}
        fill = -piece.size % _ALIGNED
        pieces += [piece, numpy.zeros(fill, dtype=numpy.uint8)]
        at += piece.size + fill
    spec = {
        "encoding": "structured_non_tensor",
        "codec": codec,
        "rows": len(rows),
        "metadata": metadata,
        "payloads": table,
    }
    return spec, pieces


# ---- read


def chosen_rows(rows: Any, size: int) -> Rows:
    """Return row numbers from what a caller says; None: all.

    Raises
    ------
    TypeError
        It is neither a slice nor a sequence of numbers.
    IndexError
        There is no such row.
    ValueError
        A slice goes backwards, or along another axis than 0.
    """
    if rows is None:
        return None
    if isinstance(rows, StructuredMemberSlice):
        if rows.axis != 0:
            raise ValueError("DataProto row slicing currently supports axis=0 only")
        rows = slice(rows.start, rows.end, rows.step)
    if isinstance(rows, slice):
        if rows.step is not None and rows.step <= 0:
            raise ValueError("DataProto row slicing step must be positive")
        return range(*rows.indices(size))
    if isinstance(rows, str | bytes) or not isinstance(rows, Sequence | numpy.ndarray):
        raise TypeError(
            "DataProto rows must be a slice, StructuredMemberSlice, or row index sequence"
        )
    numbers = []
    for row in rows:
        if not isinstance(row, int | numpy.integer):
            raise TypeError(f"DataProto row indices must be integers, not {type(row).__name__}")
        number = int(row)
        if not -size <= number < size:
            raise IndexError(f"DataProto row index {number} out of range for {size} rows")
        numbers.append(number % size)
    return numbers


class _Columns:
    """The payloads of a column in a bundle, of which some rows are wanted."""

    def __init__(
        self, bundles: Bundles, entry: Mapping[str, Any], spec: Mapping[str, Any], rows: Rows
    ) -> None:
        self._bundles, self._entry, self._rows = bundles, entry, rows
        self._table: Mapping[str, Any] = spec["payloads"]
        self._prefix = ""
        # All rows: one read, and every payload is a view of it.
        self._whole = bundles.read(entry, in_pool=True) if rows is None else None

    def below(self, prefix: str) -> _Columns:
        one = object.__new__(_Columns)
        one.__dict__.update(self.__dict__, _prefix=self._prefix + prefix)
        return one

    def _bytes(self, at: int, ranges: Sequence[tuple[int, int]], *, in_pool: bool = False) -> Any:
        size = sum(count for _, count in ranges)
        if self._whole is not None and len(ranges) == 1:
            return self._whole[at + ranges[0][0] : at + ranges[0][0] + size]
        into = self._bundles.memory(size) if in_pool else numpy.empty(size, dtype=numpy.uint8)
        if size:
            moved = [(at + start, count) for start, count in ranges if count]
            self._bundles.read_into(self._entry, moved, into.ctypes.data, into)
        return into

    def _payload(self, name: str) -> Any:
        one = self._table[self._prefix + name]
        dtype = numpy.dtype(one["dtype"])
        size = dtype.itemsize * int(numpy.prod(one["shape"]))
        return self._bytes(one["at"], [(0, size)]).view(dtype).reshape(one["shape"])

    def rows(self, name: str) -> Any:
        payload = self._payload(name)
        return payload if self._rows is None else payload[numpy.array(self._rows, dtype=int)]

    def spans(self, name: str) -> list[tuple[int, int]]:
        ends = self._payload(name)
        rows = range(len(ends) - 1) if self._rows is None else self._rows
        return [(int(ends[row]), int(ends[row + 1])) for row in rows]

    def data(self, name: str, spans: Sequence[tuple[int, int]], item: int) -> Any:
        ranges: list[tuple[int, int]] = []
        for start, end in spans:
            if ranges and sum(ranges[-1]) == start * item:
                ranges[-1] = (ranges[-1][0], end * item - ranges[-1][0])
            else:
                ranges.append((start * item, (end - start) * item))
        # Rows that are arrays and tensors are views of these bytes.
        return self._bytes(self._table[self._prefix + name]["at"], ranges, in_pool=True)

    def number(self, i: int) -> int:
        return i if self._rows is None else self._rows[i]


def read_field(
    bundles: Bundles,
    member: str,
    spec: Mapping[str, Any],
    entry: Mapping[str, Any],
    rows: Rows = None,
    destination: Any = None,
) -> Any:
    """Return a field: an array, a tensor, or an array of Python objects; see :func:`read_member`."""
    if spec.get("encoding") != "structured_non_tensor":
        return read_member(bundles, member, spec, entry, rows, destination)
    if destination is not None:
        raise ValueError(f"structured column {member} has no bytes of its own for a destination")
    check_described(member, spec)
    source = _Columns(bundles, entry, spec, rows)
    return _column(columns.decode_column(spec["codec"], spec["metadata"], source))
