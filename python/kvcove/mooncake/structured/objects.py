# SPDX-License-Identifier: Apache-2.0
"""Bundles, and structured objects: named bytes and arrays with metadata."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from kvcove.mooncake.structured import ranges as _ranges
from kvcove.mooncake.structured.bundles import Bundles, Pieces, bytes_of
from kvcove.mooncake.structured.members import check_described, describe, read_member
from kvcove.mooncake.structured.ranges import (
    PreparedStructuredMemberRanges,
    StructuredMemberRange,
)
from kvcove.mooncake.structured.types import (
    DEFAULT_BUNDLE_CHUNK_BYTES,
    STRUCTURED_FIELD_SPECS_KEY,
    BundleStore,
    BundleTransferPolicy,
    RawDestination,
    RemoteBundleRef,
    StructuredMemberSlice,
    StructuredObjectPayload,
    StructuredObjectReadSpec,
    StructuredObjectResult,
)

__all__ = ["StructuredObjects"]

_WRAPPED = "__mooncake_wrapped_object__"
_Ref = RemoteBundleRef | Mapping[str, Any]
# By name: the description, and the part of the manifest.
_Members = dict[str, tuple[Mapping[str, Any], Mapping[str, Any]]]


def _policy(policy: BundleTransferPolicy | None, inflight: int | None) -> BundleTransferPolicy:
    policy = policy or BundleTransferPolicy()
    return policy if inflight is None else replace(policy, max_inflight_put=inflight)


class StructuredObjects:
    """Bundles, structured objects and batches in a store.

    Parameters
    ----------
    store : BundleStore
        A ``MooncakeDistributedStore`` that is set up, or anything with ``put``, ``get``, ``remove``.
    key_prefix : str
        In front of every key.
    default_chunk_bytes : int
        Larger members lie in several objects; at most 256 MiB each.
    buffer_pool : optional
        Arrays and tensors that are read lie in its registered buffers, while it has free ones. A buffer
        goes back to the pool when nobody uses what was read any more.
    """

    def __init__(
        self,
        store: BundleStore,
        key_prefix: str = "bundle",
        default_chunk_bytes: int = DEFAULT_BUNDLE_CHUNK_BYTES,
        buffer_pool: Any = None,
    ) -> None:
        self.store = store
        self._bundles = Bundles(store, key_prefix, default_chunk_bytes, buffer_pool)
        self.key_prefix = self._bundles.prefix
        self.default_chunk_bytes = self._bundles.chunk_bytes

    # ---- bundles

    def put_bundle(
        self,
        meta: bytes | bytearray | memoryview,
        buffers: Mapping[str, Any],
        partition: str = "default",
        chunk_bytes: int | None = None,
        policy: BundleTransferPolicy | None = None,
        max_inflight_put: int | None = None,
        config: Any = None,
    ) -> RemoteBundleRef:
        """Store named bytes. Raises RuntimeError, and stores nothing, if the store refuses."""
        bytes_of(meta, "meta")
        return self._bundles.put(
            {name: [bytes_of(value, str(name))] for name, value in buffers.items()},
            meta=bytes(meta),
            partition=partition,
            chunk_bytes=chunk_bytes,
            policy=_policy(policy, max_inflight_put),
            config=config,
        )

    def remove_bundle(self, ref: _Ref) -> None:
        """Remove a bundle or a structured object; one that is not there is removed already."""
        self._bundles.remove(ref)

    # ---- structured objects

    def put_structured_object(
        self,
        payload: StructuredObjectPayload,
        partition: str = "default",
        chunk_bytes: int | None = None,
        policy: BundleTransferPolicy | None = None,
        max_inflight_put: int | None = None,
        config: Any = None,
    ) -> RemoteBundleRef:
        """Store named bytes and arrays with metadata.

        Raises
        ------
        TypeError
            A member has no bytes, or JSON cannot hold the metadata.
        ValueError
            The metadata has the key that this class keeps for itself.
        RuntimeError
            The store refuses; nothing is stored.
        """
        policy = _policy(policy, max_inflight_put)
        if STRUCTURED_FIELD_SPECS_KEY in payload.metadata:
            raise ValueError(f"metadata key {STRUCTURED_FIELD_SPECS_KEY} is reserved")
        specs: dict[str, Any] = {}
        members: dict[str, Pieces] = {}
        for name, value in payload.buffers.items():
            zero_copy = policy.copy_mode == "zero_copy"
            specs[name], members[name] = describe(value, str(name), zero_copy=zero_copy)
        meta = {**payload.metadata, "layout": "structured", STRUCTURED_FIELD_SPECS_KEY: specs}
        if not specs:
            del meta[STRUCTURED_FIELD_SPECS_KEY]
        try:
            text = json.dumps(meta, separators=(",", ":"))
        except TypeError as error:
            raise TypeError(f"metadata must be JSON-serializable: {error}") from error
        return self._bundles.put(
            members,
            meta=text.encode(),
            partition=partition,
            chunk_bytes=chunk_bytes,
            policy=policy,
            config=config,
        )

    def read_spec(self, ref: _Ref) -> StructuredObjectReadSpec:
        """Return what reads all members; narrow it with its methods."""
        return StructuredObjectReadSpec(ref)

    def materialize(self, spec: StructuredObjectReadSpec) -> StructuredObjectResult:
        """Read members; see :meth:`materialize_into`."""
        return self.materialize_into(spec, None)

    def materialize_into(
        self, spec: StructuredObjectReadSpec, destinations: Mapping[str, Any] | None
    ) -> StructuredObjectResult:
        """Read members, into arrays of the caller where there are some.

        Raises
        ------
        KeyError
            There is no such member.
        ValueError
            A destination or a slice does not fit, or no member is selected.
        RuntimeError
            The bytes are not in the pool.
        """
        metadata, members = self._members(spec)
        objects = {}
        for name, (described, entry) in members.items():
            rows = self._rows_of_slice(name, described, spec.member_slice(name))
            into = (destinations or {}).get(name)
            objects[name] = read_member(self._bundles, name, described, entry, rows, into)
        return StructuredObjectResult(metadata, objects)

    def _members(self, spec: StructuredObjectReadSpec) -> tuple[dict[str, Any], _Members]:
        """Return the metadata, and each member's description and part of the manifest."""
        if spec.member_names is not None and not spec.member_names:
            raise ValueError("the read spec selected no members")
        found = self._bundles.resolve(spec.ref)
        metadata = self._metadata(found)
        specs = metadata.get(STRUCTURED_FIELD_SPECS_KEY, {})
        entries = found.manifest["buffers"]
        names = list(entries) if spec.member_names is None else list(spec.member_names)
        unknown = [name for name in names if name not in entries]
        if unknown:
            raise KeyError(f"unknown bundle buffers: {unknown}")
        return metadata, {
            name: (specs.get(name, {"encoding": "bytes"}), entries[name]) for name in names
        }

    # ---- ranges of members

    def materialize_ranges_into(
        self,
        spec: StructuredObjectReadSpec,
        ranges: Sequence[StructuredMemberRange],
        destinations: Mapping[str, RawDestination],
    ) -> StructuredObjectResult:
        """Read ranges of members' bytes into registered memory of the caller, in one call of the store.

        Raises
        ------
        KeyError
            A range is of a member that is not selected.
        TypeError, ValueError
            A range or a destination does not fit, or the spec has slices.
        RuntimeError
            The bytes are not in the pool.
        """
        grouped: dict[str, list[StructuredMemberRange]] = {}
        for one in ranges:
            if not isinstance(one, StructuredMemberRange):
                raise TypeError(f"a StructuredMemberRange is wanted, not {type(one).__name__}")
            grouped.setdefault(one.member_name, []).append(one)
        if not grouped or set(grouped) != set(destinations):
            raise ValueError(
                f"each member with ranges needs a destination, and no other: ranges of {sorted(grouped)}, "
                f"destinations of {sorted(destinations)}"
            )
        metadata, members = self._ranged(spec, grouped)
        plans = [
            _ranges.plan_of(*members[name], of_member, destinations[name])
            for name, of_member in grouped.items()
        ]
        _ranges.check_apart(
            (destinations[plan.member_name].ptr + target, size)
            for plan in plans
            for _, parts in plan.reads
            for target, _, size in parts
        )
        self._read_ranges(members, [(plan, destinations[plan.member_name]) for plan in plans])
        return StructuredObjectResult(metadata, dict(destinations))

    def prepare_member_ranges(
        self,
        spec: StructuredObjectReadSpec,
        ranges: Sequence[StructuredMemberRange],
        destination: RawDestination,
    ) -> PreparedStructuredMemberRanges:
        """Return a plan for ranges of one member, for :meth:`materialize_prepared_ranges_into`.

        It serves each object whose member has the same description and chunks. Reads no bytes of the
        member. Raises as :meth:`materialize_ranges_into`.
        """
        ranges = tuple(ranges)
        if not ranges or not all(isinstance(one, StructuredMemberRange) for one in ranges):
            raise ValueError("StructuredMemberRange values are wanted, at least one")
        names = {one.member_name for one in ranges}
        if len(names) > 1:
            raise ValueError(f"the ranges of a plan are of one member, not of {sorted(names)}")
        _, members = self._ranged(spec, names)
        return _ranges.plan_of(*members[ranges[0].member_name], ranges, destination)

    def materialize_prepared_ranges_into(
        self,
        spec: StructuredObjectReadSpec,
        prepared: PreparedStructuredMemberRanges,
        destination: RawDestination,
    ) -> StructuredObjectResult:
        """Read what a plan says, of this object, into this memory.

        Raises
        ------
        PreparedRangeLayoutChanged
            The member has another layout than the plan was made for; otherwise as
            :meth:`materialize_ranges_into`.
        """
        if not isinstance(prepared, PreparedStructuredMemberRanges):
            raise TypeError(f"what prepare_member_ranges returns is wanted, not {prepared!r}")
        name = prepared.member_name
        metadata, members = self._ranged(spec, [name])
        self._read_ranges(members, [(prepared, destination)])
        return StructuredObjectResult(metadata, {name: destination})

    def _ranged(
        self, spec: StructuredObjectReadSpec, names: Collection[str]
    ) -> tuple[dict[str, Any], _Members]:
        if spec.member_slices:
            raise ValueError("slices of members and ranges of their bytes exclude each other")
        metadata, members = self._members(spec)
        if unknown := sorted(set(names) - set(members)):
            raise KeyError(f"ranges of members that are not selected: {unknown}")
        return metadata, members

    def _read_ranges(
        self,
        members: _Members,
        plans: Sequence[tuple[PreparedStructuredMemberRanges, RawDestination]],
    ) -> None:
        reads = []
        for plan, destination in plans:
            keys = _ranges.keys_of(plan, *members[plan.member_name])
            _ranges.check_destination(plan, destination)
            reads.append((plan, keys, destination))
        _ranges.read(self.store, reads)

    @staticmethod
    def _rows_of_slice(
        name: str, spec: Mapping[str, Any], chosen: StructuredMemberSlice | None
    ) -> range | None:
        if chosen is None:
            return None
        check_described(name, spec)
        if spec["encoding"] == "bytes":
            raise ValueError(f"structured bytes member {name} does not support slicing")
        if chosen.axis != 0:
            raise ValueError("structured ndarray slicing currently supports axis=0 only")
        if chosen.step <= 0:
            raise ValueError("structured ndarray slicing step must be positive")
        if not spec["shape"]:
            raise ValueError(f"structured member {name} slicing requires at least one dimension")
        return range(*slice(chosen.start, chosen.end, chosen.step).indices(spec["shape"][0]))

    def _metadata(self, found: RemoteBundleRef) -> dict[str, Any]:
        text = self._bundles.read(found.manifest["meta"]).tobytes()
        try:
            metadata = json.loads(text or b"{}")
        except ValueError:
            metadata = None
        if not isinstance(metadata, dict):
            raise ValueError(
                f"{found.manifest_key} is no structured object: its metadata is no JSON"
            )
        return metadata

    def put_object(
        self,
        obj: Any,
        partition: str = "default",
        chunk_bytes: int | None = None,
        policy: BundleTransferPolicy | None = None,
        max_inflight_put: int | None = None,
        config: Any = None,
    ) -> RemoteBundleRef:
        """Store bytes, an array, or a dict of these."""
        single = not isinstance(obj, Mapping)
        payload = StructuredObjectPayload(
            {_WRAPPED: True} if single else {}, {"value": obj} if single else obj
        )
        return self.put_structured_object(
            payload, partition, chunk_bytes, policy, max_inflight_put, config
        )

    def get_object(self, ref: _Ref) -> Any:
        """Return what :meth:`put_object` stored."""
        result = self.materialize(self.read_spec(ref))
        return result.objects["value"] if result.metadata.get(_WRAPPED) else result.objects
