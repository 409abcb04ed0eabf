# SPDX-License-Identifier: Apache-2.0
"""References to batches as JSON: manifest keys instead of manifests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy

from kvcove.mooncake.structured.types import (
    DATAPROTO_REF_HANDLE_TYPE,
    DATAPROTO_REF_HANDLE_VERSION,
    STORAGE_GROUP_ID,
    MooncakeDataProtoRef,
    RemoteBundleRef,
    StructuredFieldLocation,
)

__all__ = [
    "as_reference",
    "export_dataproto_ref",
    "export_ref",
    "import_dataproto_ref",
    "import_ref",
    "is_dataproto_ref_handle",
]

_KIND = "bundle_stages"


def is_dataproto_ref_handle(value: Any) -> bool:
    """Whether a value is what :func:`export_dataproto_ref` returns, of whatever version."""
    return isinstance(value, Mapping) and value.get("type") == DATAPROTO_REF_HANDLE_TYPE


def _plain(value: Any) -> Any:
    """Return a value as JSON holds it; raises TypeError for one that it does not."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, numpy.generic):
        return value.item()
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {key: _plain(one) for key, one in value.items()}
    raise TypeError(
        f"DataProto ref handles support only JSON-safe values, got {type(value).__name__}"
    )


def export_dataproto_ref(ref: MooncakeDataProtoRef) -> dict[str, Any]:
    """Return a reference as a JSON object.

    Raises
    ------
    TypeError
        It is none, or its metadata has values that JSON does not hold.
    """
    if not isinstance(ref, MooncakeDataProtoRef):
        raise TypeError(f"expected MooncakeDataProtoRef, got {type(ref).__name__}")
    handle = {
        "type": DATAPROTO_REF_HANDLE_TYPE,
        "version": DATAPROTO_REF_HANDLE_VERSION,
        "kind": _KIND,
        "batch_size": ref.batch_size,
        "namespace": ref.namespace,
        "partition": ref.partition,
        "global_indexes": _plain(ref.global_indexes),
        "stage_refs": {
            stage: {"manifest_key": one.manifest_key} for stage, one in ref.stage_refs.items()
        },
        "field_index": {
            name: {"stage": one.stage, "member": one.member, "section": one.section}
            for name, one in ref.field_index.items()
        },
        "meta_info": _plain(ref.meta_info),
        "encoded_non_tensor": _plain(ref.encoded_non_tensor),
    }
    if ref._storage_group_id is not None:
        handle[STORAGE_GROUP_ID] = ref._storage_group_id
    return handle


def import_dataproto_ref(handle: Mapping[str, Any]) -> MooncakeDataProtoRef:
    """Return the reference of a handle; its manifests are read when they are needed.

    Raises
    ------
    ValueError
        It is none, or of another version.
    """
    if not is_dataproto_ref_handle(handle):
        raise ValueError("not a Mooncake DataProto ref handle")
    if handle.get("version") != DATAPROTO_REF_HANDLE_VERSION:
        raise ValueError(f"unsupported DataProto ref handle version: {handle.get('version')}")
    if handle.get("kind") != _KIND:
        raise ValueError(f"unsupported DataProto ref handle kind: {handle.get('kind')!r}")
    indexes = handle.get("global_indexes")
    group = handle.get(STORAGE_GROUP_ID)
    return MooncakeDataProtoRef(
        batch_size=int(handle.get("batch_size", 0)),
        stage_refs=_stages(handle.get("stage_refs")),
        field_index=_index(handle.get("field_index")),
        meta_info=dict(_mapping(handle, "meta_info")),
        namespace=str(handle.get("namespace", "default")),
        partition=str(handle.get("partition", "default")),
        global_indexes=None if indexes is None else [int(one) for one in indexes],
        encoded_non_tensor=dict(_mapping(handle, "encoded_non_tensor")),
        _storage_group_id=None if group is None else str(group),
    )


def _mapping(handle: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = handle.get(name) or {}
    if not isinstance(value, Mapping):
        raise ValueError(f"DataProto ref handle {name} must be a mapping")
    return value


def _stages(value: Any) -> dict[str, RemoteBundleRef]:
    if not isinstance(value, Mapping):
        raise ValueError("DataProto ref handle stage_refs must be a mapping")
    stages = {}
    for stage, one in value.items():
        key = one.get("manifest_key") if isinstance(one, Mapping) else None
        if not (isinstance(stage, str) and stage and isinstance(key, str) and key):
            raise ValueError(
                "DataProto ref handle stage refs must contain non-empty string names and "
                "manifest_key values"
            )
        stages[stage] = RemoteBundleRef(key, {})
    return stages


def _index(value: Any) -> dict[str, StructuredFieldLocation]:
    if not isinstance(value, Mapping):
        raise ValueError("DataProto ref handle field_index must be a mapping")
    index = {}
    for name, one in value.items():
        section = one.get("section") if isinstance(one, Mapping) else None
        if section not in ("batch", "non_tensor_batch"):
            raise ValueError(f"invalid DataProto field section: {section}")
        index[name] = StructuredFieldLocation(str(one["stage"]), str(one["member"]), section)
    return index


def as_reference(ref: Any) -> MooncakeDataProtoRef:
    """Return a reference from itself or from its handle; raises TypeError for anything else."""
    if isinstance(ref, MooncakeDataProtoRef):
        return ref
    if is_dataproto_ref_handle(ref):
        return import_dataproto_ref(ref)
    raise TypeError(f"expected MooncakeDataProtoRef or DataProto handle, got {type(ref).__name__}")


export_ref = export_dataproto_ref
import_ref = import_dataproto_ref
