# SPDX-License-Identifier: Apache-2.0
"""``mooncake.structured_object_store``: members, objects and batches of rows above a store.

:class:`MooncakeBundleTransfer` puts a batch (``put``), appends fields to it, and reads chosen fields
and rows of it; the reference that it returns travels as JSON (``export_ref``). The layers beneath are in
:mod:`kvcove.mooncake.structured`. Thread-safe if the store is.
"""

from __future__ import annotations

import copy
import json
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy

from kvcove.mooncake.structured import batches
from kvcove.mooncake.structured import handles as _handles
from kvcove.mooncake.structured import types as _types
from kvcove.mooncake.structured.bundles import checked_segment, group_of, let_go
from kvcove.mooncake.structured.handles import *  # noqa: F403
from kvcove.mooncake.structured.handles import as_reference
from kvcove.mooncake.structured.inference import choose_leaf_codec as _choose_leaf_codec  # noqa: F401
from kvcove.mooncake.structured.inference import escape_key as _escape_key  # noqa: F401
from kvcove.mooncake.structured.inference import infer_structure
from kvcove.mooncake.structured.members import viewed
from kvcove.mooncake.structured.objects import StructuredObjects
from kvcove.mooncake.structured.ranges import (
    PreparedRangeLayoutChanged,
    PreparedStructuredMemberRanges,
    StructuredMemberRange,
)
from kvcove.mooncake.structured.types import *  # noqa: F403
from kvcove.mooncake.structured.types import (
    STRUCTURED_FIELD_SPECS_KEY,
    BundleTransferPolicy,
    FieldSchema,
    MooncakeDataProtoRef,
    RemoteBundleRef,
    StructuredFieldLocation,
    StructuredMemberSlice,
)

__all__ = [
    *(name for name in _types.__all__ if name not in ("RawDestination", "TensorObjectBuffer")),
    *(name for name in _handles.__all__ if name != "as_reference"),
    "AUTO_PARALLEL_MIN_BYTES",
    "AUTO_PARALLEL_MIN_CHUNKS",
    "MooncakeBundleTransfer",
    "PreparedRangeLayoutChanged",
    "PreparedStructuredMemberRanges",
    "StructuredMemberRange",
    "infer_structure",
]

# A batch of puts is one call of the store, whatever its size: it is never split by itself.
AUTO_PARALLEL_MIN_BYTES = 64 << 20
AUTO_PARALLEL_MIN_CHUNKS = 8

_DataRef = MooncakeDataProtoRef | Mapping[str, Any]
_Type = Literal["dataproto", "dict"]


class MooncakeBundleTransfer(StructuredObjects):
    """Bundles and structured objects (:class:`StructuredObjects`), and batches, in a store."""

    def put(
        self,
        data: Any,
        *,
        type: _Type = "dataproto",
        namespace: str = "default",
        partition: str = "default",
        stage: str = "default",
        chunk_bytes: int | None = None,
        policy: BundleTransferPolicy | None = None,
        config: Any = None,
        field_schemas: Mapping[str, FieldSchema] | None = None,
    ) -> MooncakeDataProtoRef:
        """Store a batch, or with ``type="dict"`` a flat dict.

        Raises
        ------
        TypeError, ValueError
            It is none, or a field cannot be stored.
        RuntimeError
            The store refuses; nothing is stored.
        """
        schemas = dict(field_schemas or {})
        batch = self._split(data, type, schemas)
        batches.check_schemas(batch, schemas)
        group = group_of(config)
        ref = MooncakeDataProtoRef(
            batch_size=batch.size,
            stage_refs={},
            field_index={},
            meta_info=dict(batch.meta_info),
            namespace=namespace,
            partition=partition,
            _storage_group_id=f"structured-{uuid.uuid4().hex}" if group is None else group or None,
        )
        checked_segment(partition, "partition")
        if batch.batch or batch.non_tensor_batch:
            self._write_stage(ref, batch, stage, (schemas, chunk_bytes, policy, config))
        return ref

    @staticmethod
    def _split(data: Any, kind: str, schemas: Mapping[str, FieldSchema]) -> batches.Batch:
        if kind == "dataproto":
            return batches.split(data)
        if kind == "dict":
            return batches.flat(data, schemas)
        raise ValueError(f"unsupported Mooncake payload type: {kind!r}")

    def _write_stage(
        self,
        ref: MooncakeDataProtoRef,
        batch: batches.Batch,
        stage: str,
        how: tuple[Mapping[str, FieldSchema], int | None, BundleTransferPolicy | None, Any],
        beside: RemoteBundleRef | None = None,
    ) -> None:
        """Store fields as a stage of a reference; ``beside``: with those that the stage has."""
        schemas, chunk_bytes, policy, config = how
        policy = policy or BundleTransferPolicy()
        zero_copy = policy.copy_mode == "zero_copy"
        specs, members = batches.write_fields(batch, schemas, zero_copy=zero_copy)
        carried: dict[str, Any] = {}
        superseded: list[str] = []
        all_specs = specs
        if beside is not None:
            carried = dict(beside.manifest["buffers"])
            all_specs = {**self._metadata(beside)[STRUCTURED_FIELD_SPECS_KEY], **specs}
            entry = beside.manifest["meta"]
            superseded = [beside.manifest_key, *(chunk["key"] for chunk in entry["chunks"])]
            superseded += beside.manifest.get("superseded", ())
        said = {"namespace": ref.namespace, "partition": ref.partition, "stage": stage}
        meta = {
            "layout": "dataproto_stage",
            "dataproto": {"version": 1, **said, "batch_size": ref.batch_size},
            STRUCTURED_FIELD_SPECS_KEY: all_specs,
        }
        ref.stage_refs[stage] = self._bundles.put(
            members,
            meta=json.dumps(meta, separators=(",", ":")).encode(),
            partition=ref.partition,
            chunk_bytes=chunk_bytes,
            policy=policy,
            config=self._in_group(config, ref._storage_group_id),
            carried=carried,
            superseded=superseded,
        )
        for name in (*batch.batch, *batch.non_tensor_batch):
            section: Any = "batch" if name in batch.batch else "non_tensor_batch"
            member = f"{section}.{name}"
            ref.field_index[name] = StructuredFieldLocation(stage, member, section)
            ref.encoded_non_tensor.pop(str(name), None)
            if "codec" in specs[member]:
                kept = ("codec", "rows", "metadata")
                ref.encoded_non_tensor[str(name)] = {k: specs[member][k] for k in kept}

    def _in_group(self, config: Any, group: str | None) -> Any:
        """Return a configuration that keeps the objects of a batch together."""
        if group is None:
            return config
        if config is None:
            from kvcove.mooncake.store import ReplicateConfig

            config = ReplicateConfig()
        config = copy.copy(config)
        config.group_ids = [group]
        return config

    def append_dataproto_fields(
        self,
        ref: _DataRef,
        data: Any,
        *,
        stage: str,
        overwrite: bool = False,
        chunk_bytes: int | None = None,
        policy: BundleTransferPolicy | None = None,
        field_schemas: Mapping[str, FieldSchema] | None = None,
        config: Any = None,
    ) -> MooncakeDataProtoRef:
        """Store more fields of the same rows, and return a reference to all; ``ref`` stays as it is.

        Parameters
        ----------
        stage : str
            Who wrote them. A stage that is there gets them beside its fields. A batch of metadata alone
            makes no stage, and the store is not called.
        overwrite : bool
            Fields of these names may be there. A stage that is there is replaced then, and must be
            given all of its fields.

        Raises
        ------
        ValueError
            Other rows, fields that are there, another group than the batch's, or a schema of another
            section than the field's.
        """
        old = as_reference(ref)
        batch = batches.split(data)
        batches.check_schemas(batch, field_schemas or {})
        group = group_of(config)
        if group and old._storage_group_id is not None and group != old._storage_group_id:
            raise ValueError(
                f"config.group_ids conflicts with the DataProto storage group: {group!r} is not "
                f"{old._storage_group_id!r}"
            )
        self._check_append(old, batch, stage, overwrite)
        new = copy.copy(old)
        new.stage_refs, new.field_index = dict(old.stage_refs), dict(old.field_index)
        new.encoded_non_tensor = dict(old.encoded_non_tensor)
        new.meta_info = {**old.meta_info, **batch.meta_info}
        if not (batch.batch or batch.non_tensor_batch):
            return new
        replaced = old.stage_refs.get(stage)
        beside = self._bundles.resolve(replaced) if replaced and not overwrite else None
        how = (dict(field_schemas or {}), chunk_bytes, policy, config)
        self._write_stage(new, batch, stage, how, beside)
        if replaced is not None and overwrite:
            self._bundles.remove(replaced)
        return new

    @staticmethod
    def _check_append(
        old: MooncakeDataProtoRef, batch: batches.Batch, stage: str, overwrite: bool
    ) -> None:
        names = {*batch.batch, *batch.non_tensor_batch}
        if names and batch.size != old.batch_size:
            raise ValueError(
                f"DataProto append batch size {batch.size} does not match ref batch size "
                f"{old.batch_size}"
            )
        there = sorted(names & set(old.field_index))
        if there and not overwrite:
            raise ValueError(f"DataProto fields already exist: {there}")
        own = {name for name, where in old.field_index.items() if where.stage == stage}
        if overwrite and own - names:
            raise ValueError(
                f"DataProto overwrite for stage {stage!r} must include existing fields: "
                f"{sorted(own - names)}"
            )

    def get(
        self,
        ref: _DataRef,
        *,
        type: _Type = "dataproto",
        fields: Sequence[str] | None = None,
        batch_fields: Sequence[str] | None = None,
        non_tensor_fields: Sequence[str] | None = None,
        meta_info_keys: Sequence[str] | None = None,
        data_cls: Any | None = None,
        destinations: Mapping[str, Any] | None = None,
        rows: slice | StructuredMemberSlice | Sequence[int] | None = None,
    ) -> Any:
        """Read a batch, or chosen fields and rows of it.

        Parameters
        ----------
        ref
            A reference or its handle.
        type : str
            ``dataproto``: ``data_cls``, or a dict with ``batch``, ``non_tensor_batch`` and
            ``meta_info``. ``dict``: a flat dict, its columns as lists.
        fields, batch_fields, non_tensor_fields, meta_info_keys : optional
            What to read; all of it otherwise.
        destinations : mapping, optional
            Memory of the caller for fields.
        rows : optional
            Which rows, in this order.

        Raises
        ------
        KeyError
            There is no such field.
        IndexError, TypeError, ValueError
            Rows or a destination that do not fit; with ``type="dict"``, a name in two sections.
        RuntimeError
            The bytes are not in the pool.
        """
        if type not in ("dataproto", "dict"):
            raise ValueError(f"unsupported Mooncake payload type: {type!r}")
        known = as_reference(ref)
        names = self._selected(known, fields, batch_fields, non_tensor_fields)
        unplaced = sorted(set(destinations or ()) - set(names))
        if unplaced:
            raise KeyError(f"destinations of fields that are not read: {unplaced}")
        chosen = batches.chosen_rows(rows, known.batch_size)
        result = self._read_fields(known, names, chosen, destinations or {})
        wanted = known.meta_info if meta_info_keys is None else meta_info_keys
        result["meta_info"] = {k: known.meta_info[k] for k in wanted if k in known.meta_info}
        return self._flat(result) if type == "dict" else self._as_class(result, data_cls)

    def _read_fields(
        self,
        ref: MooncakeDataProtoRef,
        names: Sequence[str],
        rows: Any,
        destinations: Mapping[str, Any],
    ) -> dict[str, Any]:
        """Return the chosen rows of fields, by section; each stage's manifest is read once."""
        stages = {ref.field_index[name].stage for name in names}
        found = {stage: self._bundles.resolve(ref.stage_refs[stage]) for stage in stages}
        specs = {s: self._metadata(one)[STRUCTURED_FIELD_SPECS_KEY] for s, one in found.items()}
        result: dict[str, Any] = {"batch": {}, "non_tensor_batch": {}}
        for name in names:
            where = ref.field_index[name]
            result[where.section][name] = batches.read_field(
                self._bundles,
                where.member,
                specs[where.stage][where.member],
                found[where.stage].manifest["buffers"][where.member],
                rows,
                destinations.get(name),
            )
        return result

    @staticmethod
    def _selected(
        ref: MooncakeDataProtoRef,
        fields: Sequence[str] | None,
        batch_fields: Sequence[str] | None,
        other_fields: Sequence[str] | None,
    ) -> list[str]:
        if fields is not None and (batch_fields is not None or other_fields is not None):
            raise ValueError("fields cannot be combined with batch_fields or non_tensor_fields")
        if fields is None and batch_fields is None and other_fields is None:
            return list(ref.field_index)
        names = list(
            fields if fields is not None else [*(batch_fields or ()), *(other_fields or ())]
        )
        unknown = [name for name in names if name not in ref.field_index]
        if unknown:
            raise KeyError(f"unknown DataProto fields: {unknown}")
        return names

    @staticmethod
    def _flat(result: dict[str, Any]) -> dict[str, Any]:
        names = [name for section in result.values() for name in section]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"Duplicate keys found across DataProto sections: {twice}")
        columns = {
            name: value.tolist() if getattr(value, "dtype", None) == numpy.dtype(object) else value
            for name, value in result["non_tensor_batch"].items()
        }
        return {**result["meta_info"], **result["batch"], **columns}

    @staticmethod
    def _as_class(result: dict[str, Any], data_cls: Any) -> Any:
        if data_cls is None or data_cls is dict:
            return result
        make = getattr(data_cls, "from_dict", None)
        try:
            if make is None:
                return data_cls(**result)
            return make(result["batch"], result["non_tensor_batch"], meta_info=result["meta_info"])
        except TypeError as error:
            name = getattr(data_cls, "__name__", data_cls)
            raise TypeError(
                f"{name} cannot be constructed from batch, non_tensor_batch and meta_info: {error}"
            ) from error

    def put_dataproto(self, data: Any, **how: Any) -> MooncakeDataProtoRef:
        """Store a batch; arguments as in :meth:`put`."""
        return self.put(data, type="dataproto", **how)

    def get_dataproto(self, ref: _DataRef, **what: Any) -> Any:
        """Read a batch; arguments as in :meth:`get`."""
        return self.get(ref, type="dataproto", **what)

    def dataproto_manifest_view(self, ref: _DataRef) -> dict[str, Any]:
        """Return what a batch consists of: each field's place and description, and its stages."""
        known = as_reference(ref)
        found = {stage: self._bundles.resolve(one) for stage, one in known.stage_refs.items()}
        metadata = {stage: self._metadata(one) for stage, one in found.items()}
        fields: dict[str, dict[str, Any]] = {"batch": {}, "non_tensor_batch": {}}
        for name, where in known.field_index.items():
            spec = metadata[where.stage][STRUCTURED_FIELD_SPECS_KEY][where.member]
            fields[where.section][name] = {
                "section": where.section,
                "stage": where.stage,
                "member": where.member,
                "spec": viewed(spec),
            }
        return {
            "namespace": known.namespace,
            "partition": known.partition,
            "batch_size": known.batch_size,
            "batch_fields": fields["batch"],
            "non_tensor_fields": fields["non_tensor_batch"],
            "meta_info_keys": list(known.meta_info),
            "stages": {
                stage: {"manifest_key": one.manifest_key, "dataproto": metadata[stage]["dataproto"]}
                for stage, one in found.items()
            },
        }

    def cleanup_dataproto(self, ref: _DataRef) -> None:
        """Remove a batch; one that is not there is removed already."""
        for one in as_reference(ref).stage_refs.values():
            self._bundles.remove(one)

    def cleanup_dataproto_append(self, previous: _DataRef, appended: _DataRef) -> None:
        """Remove what an append wrote, and nothing that the reference before it has."""
        before, after = as_reference(previous), as_reference(appended)
        had = {one.manifest_key: one for one in before.stage_refs.values()}
        has = {one.manifest_key: one for one in after.stage_refs.values()}
        # A stage that got more fields names the objects of those that it had.
        kept = {key for name, one in had.items() if name not in has for key in self._keys(one)}
        for name, one in has.items():
            if name not in had:
                self._bundles.remove_keys([key for key in self._keys(one) if key not in kept])

    def _keys(self, ref: RemoteBundleRef) -> list[str]:
        found = self._bundles.resolve(ref)
        return self._bundles.keys(found.manifest, found.manifest_key)

    # The names of these calls before they took a type; slime calls them so.

    def put_legacy_dict(self, data: Any, **how: Any) -> MooncakeDataProtoRef:
        """Store a flat dict; arguments as in :meth:`put`."""
        return self.put(data, type="dict", **how)

    def get_legacy_dict(self, ref: _DataRef, **what: Any) -> Any:
        """Read a flat dict; arguments as in :meth:`get`."""
        return self.get(ref, type="dict", **what)

    def remove_legacy_dict(self, ref: _DataRef) -> None:
        """Remove a flat dict."""
        self.cleanup_dataproto(ref)

    @staticmethod
    def release_result(result: Any) -> None:
        """Put None in place of what lies in a buffer pool, so that its buffers go back.

        One that the caller still has elsewhere goes back when that has gone: nothing is overwritten.
        """
        let_go(result)
