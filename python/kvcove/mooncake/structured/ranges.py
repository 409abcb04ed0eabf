# SPDX-License-Identifier: Apache-2.0
"""Ranges of members' bytes, read into memory that a caller has registered.

A plan is made of offsets alone, so that it serves each object whose member has the same description and
chunks: a trainer that stores the same layout with each step prepares once. The caller keeps the memory,
and its registration, until the read has returned.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy

from kvcove.mooncake.structured.bundles import fragments_of, read_ranges
from kvcove.mooncake.structured.types import RawDestination

__all__ = [
    "PreparedRangeLayoutChanged",
    "PreparedStructuredMemberRanges",
    "StructuredMemberRange",
]


@dataclass(frozen=True)
class StructuredMemberRange:
    """``byte_length`` bytes of a member, and where they go in its destination.

    ``alignment`` is a power of two: both offsets, the length and the destination's address are multiples
    of it, and of an array's element.
    """

    member_name: str
    source_byte_offset: int
    byte_length: int
    destination_byte_offset: int
    alignment: int = 1


class PreparedRangeLayoutChanged(ValueError):
    """The member has another description, or other chunks, than the plan was made for."""


@dataclass(frozen=True)
class PreparedStructuredMemberRanges:
    """A plan for one member, as ``prepare_member_ranges`` makes it."""

    member_name: str
    field_signature: str
    chunk_bytes: tuple[int, ...]
    # By chunk: its number, and (offset in the destination, offset in the chunk, bytes) of each part.
    reads: tuple[tuple[int, tuple[tuple[int, int, int], ...]], ...]
    destination_bytes: int
    alignment: int


def plan_of(
    described: Mapping[str, Any],
    entry: Mapping[str, Any],
    ranges: Sequence[StructuredMemberRange],
    destination: Any,
) -> PreparedStructuredMemberRanges:
    """Return the plan for ranges of one member.

    Parameters
    ----------
    described, entry : mapping
        The member's description, and its part of the manifest.
    ranges : sequence of StructuredMemberRange
        At least one, all of this member.
    destination : RawDestination
        Of the size and the alignment that later ones have at least.

    Raises
    ------
    TypeError, ValueError
        A range or the destination is none, does not fit, or overlaps another.
    """
    name = ranges[0].member_name
    signature, element = _signature(name, described)
    alignment = element
    reads: dict[int, list[tuple[int, int, int]]] = {}
    taken: list[tuple[int, int]] = []
    keys = {chunk["key"]: number for number, chunk in enumerate(entry["chunks"])}
    for one in ranges:
        own = _integer(one.alignment, "alignment")
        source = _integer(one.source_byte_offset, "source_byte_offset")
        target = _integer(one.destination_byte_offset, "destination_byte_offset")
        size = _integer(one.byte_length, "byte_length")
        if own <= 0 or own & (own - 1):
            raise ValueError(f"range of {name}: alignment {own} is no power of two")
        if source < 0 or target < 0 or size <= 0:
            raise ValueError(f"range of {name}: offsets are from 0, byte_length is from 1: {one}")
        if source + size > entry["bytes"]:
            raise ValueError(f"range of {name} leaves its {entry['bytes']} bytes: {one}")
        step = math.lcm(element, own)
        if any(number % step for number in (source, target, size)):
            raise ValueError(f"range of {name} must be aligned to {step} bytes: {one}")
        alignment = math.lcm(alignment, step)
        taken.append((target, size))
        for key, _, parts in fragments_of(entry["chunks"], [(source, size)], target):
            reads.setdefault(keys[key], []).extend(parts)
    check_apart(taken)
    plan = PreparedStructuredMemberRanges(
        member_name=name,
        field_signature=signature,
        chunk_bytes=tuple(chunk["bytes"] for chunk in entry["chunks"]),
        reads=tuple((number, tuple(parts)) for number, parts in sorted(reads.items())),
        destination_bytes=max(target + size for target, size in taken),
        alignment=alignment,
    )
    check_destination(plan, destination)
    return plan


def check_apart(targets: Iterable[tuple[int, int]]) -> None:
    """Raise ValueError if places, each a begin and a size, overlap."""
    for (begin, size), (after, _) in itertools.pairwise(sorted(targets)):
        if begin + size > after:
            raise ValueError("the destinations of the ranges overlap")


def check_destination(plan: PreparedStructuredMemberRanges, destination: Any) -> None:
    """Refuse memory that a plan does not fit into.

    Raises
    ------
    TypeError, ValueError
        It is no ``raw_destination``, is not registered, has no owner, or is too small.
    """
    name = plan.member_name
    if not isinstance(destination, RawDestination):
        raise TypeError(
            f"the destination of {name} must be raw_destination(...), not {type(destination).__name__}"
        )
    address = _integer(destination.ptr, "ptr")
    size = _integer(destination.size, "size")
    if destination.owner is None or destination.pre_registered is not True:
        raise ValueError(
            f"the destination of {name} needs an owner, and pre_registered=True: memory that is "
            "registered with the store"
        )
    if address <= 0 or size < plan.destination_bytes:
        raise ValueError(
            f"the destination of {name} needs {plan.destination_bytes} bytes, not {size}"
        )
    if address % plan.alignment:
        raise ValueError(f"the destination of {name} must be aligned to {plan.alignment} bytes")


def keys_of(
    plan: PreparedStructuredMemberRanges, described: Mapping[str, Any], entry: Mapping[str, Any]
) -> list[str]:
    """Return the keys that a plan reads of an object.

    Raises
    ------
    PreparedRangeLayoutChanged
        The plan was made for another layout.
    """
    signature, _ = _signature(plan.member_name, described)
    sizes = tuple(chunk["bytes"] for chunk in entry["chunks"])
    if (signature, sizes) != (plan.field_signature, plan.chunk_bytes):
        raise PreparedRangeLayoutChanged(
            f"{plan.member_name} has another layout than the plan was made for; prepare it again"
        )
    return [entry["chunks"][number]["key"] for number, _ in plan.reads]


def read(
    store: Any, reads: Sequence[tuple[PreparedStructuredMemberRanges, list[str], RawDestination]]
) -> None:
    """Read what plans say, in one call of the store.

    Raises
    ------
    RuntimeError
        The store has no ``get_into_ranges``, or a part is not in the pool.
    """
    if not callable(getattr(store, "get_into_ranges", None)):
        raise RuntimeError("the store has no get_into_ranges, which reads ranges of members")
    read_ranges(
        store,
        [
            (
                destination.ptr,
                [(key, parts) for key, (_, parts) in zip(keys, plan.reads, strict=True)],
            )
            for plan, keys, destination in reads
        ],
    )


def _signature(name: str, described: Mapping[str, Any]) -> tuple[str, int]:
    """Return a member's description as text, and the bytes of its element."""
    encoding = described.get("encoding", "bytes")
    if encoding not in ("bytes", "ndarray"):
        raise ValueError(f"ranges are of bytes and arrays; {name} is a {encoding}")
    element = numpy.dtype(described["dtype"]).itemsize if encoding == "ndarray" else 1
    return json.dumps(described, sort_keys=True, separators=(",", ":")), max(1, element)


def _integer(value: Any, what: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int | numpy.integer):
        raise TypeError(f"{what} must be an integer, not {type(value).__name__}")
    return int(value)
