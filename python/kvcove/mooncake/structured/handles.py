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
    if isinstance(value, numpy.generic | numpy.ndarray):
        return _plain(value.tolist())
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
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
        It is none, of another version, or one of its parts is not usable.
    """
    if not is_dataproto_ref_handle(handle):
        raise ValueError("not a Mooncake DataProto ref handle")
    version = handle.get("version")
    if version not in (DATAPROTO_REF_HANDLE_VERSION, 2):  # 2: the group must be there
        raise ValueError(f"unsupported DataProto ref handle version: {version}")
    if handle.get("kind") != _KIND:
        raise ValueError(f"unsupported DataProto ref handle kind: {handle.get('kind')!r}")
    size, group = handle.get("batch_size"), handle.get(STORAGE_GROUP_ID)
    if not isinstance(size, int) or isinstance(size, bool):
        raise ValueError(f"DataProto ref handle batch_size must be an integer, not {size!r}")
    if (version == 2 and group is None) or (
        group is not None and not (isinstance(group, str) and group)
    ):
        raise ValueError("DataProto ref handle has invalid storage_group_id")
    stages = _stages(handle.get("stage_refs"))
    return MooncakeDataProtoRef(
        batch_size=size,
        stage_refs=stages,
        field_index=_index(handle.get("field_index"), stages),
        meta_info=dict(_mapping(handle, "meta_info")),
        namespace=str(handle.get("namespace", "default")),
        partition=str(handle.get("partition", "default")),
        global_indexes=_indexes(handle.get("global_indexes")),
        encoded_non_tensor=dict(_mapping(handle, "encoded_non_tensor")),
        _storage_group_id=group,
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _indexes(value: Any) -> list[int] | None:
    if value is not None and not isinstance(value, list):
        raise ValueError("DataProto ref handle global_indexes must be a list or null")
    if not all(_is_number(one) for one in value or ()):
        raise ValueError("DataProto ref handle global_indexes must contain integers")
    return None if value is None else list(value)


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


def _index(value: Any, stages: Mapping[str, Any]) -> dict[str, StructuredFieldLocation]:
    if not isinstance(value, Mapping):
        raise ValueError("DataProto ref handle field_index must be a mapping")
    index = {}
    for name, one in value.items():
        section = one.get("section") if isinstance(one, Mapping) else None
        if section not in ("batch", "non_tensor_batch"):
            raise ValueError(f"invalid DataProto field section: {section}")
        stage, member = one.get("stage"), one.get("member")
        if not all(isinstance(text, str) and text for text in (name, stage, member)):
            raise ValueError("DataProto ref handle field locations must be non-empty strings")
        if stage not in stages:
            raise ValueError(
                f"DataProto ref handle field {name!r} references unknown stage {stage!r}"
            )
        index[name] = StructuredFieldLocation(stage, member, section)
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
