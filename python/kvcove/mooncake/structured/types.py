# SPDX-License-Identifier: Apache-2.0
"""What callers of ``mooncake.structured_object_store`` hold: references, selections, schemas."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

__all__ = [
    "DATAPROTO_REF_HANDLE_TYPE",
    "DATAPROTO_REF_HANDLE_VERSION",
    "DEFAULT_BUNDLE_CHUNK_BYTES",
    "MISSING",
    "MISSING_OBJECT_ERROR",
    "STORAGE_GROUP_ID",
    "STRUCTURED_FIELD_SPECS_KEY",
    "BundleStore",
    "BundleTransferPolicy",
    "FieldSchema",
    "MooncakeDataProtoRef",
    "RawDestination",
    "RemoteBundleRef",
    "StructuredFieldLocation",
    "StructuredMemberSlice",
    "StructuredObjectPayload",
    "StructuredObjectReadSpec",
    "StructuredObjectResult",
    "TensorObjectBuffer",
    "raw_destination",
    "tensor_object_buffer",
]

DEFAULT_BUNDLE_CHUNK_BYTES = 64 << 20
MISSING_OBJECT_ERROR = -704
STRUCTURED_FIELD_SPECS_KEY = "__mooncake_structured_fields__"
STORAGE_GROUP_ID = "storage_group_id"
DATAPROTO_REF_HANDLE_TYPE = "mooncake_dataproto_ref"
DATAPROTO_REF_HANDLE_VERSION = 1


class _Missing:
    """The value of a key that a row's dict does not have, as against a key that has None."""

    _only: _Missing | None = None

    def __new__(cls) -> _Missing:
        if cls._only is None:
            cls._only = super().__new__(cls)
        return cls._only

    def __repr__(self) -> str:
        return "<MISSING>"

    def __reduce__(self) -> str:
        return "MISSING"


MISSING = _Missing()


class BundleStore(Protocol):
    """The least that a store must have; a store of kvcove has batches and ranges beside it."""

    def put(self, key: str, value: Any, config: Any = None) -> int:
        """Store a value; 0 or a code."""
        ...

    def get(self, key: str) -> bytes:
        """Return the value, ``b""`` for none."""
        ...

    def is_exist(self, key: str) -> int:
        """Return 1, 0 or a code."""
        ...

    def remove(self, key: str, force: bool = False) -> int:
        """Remove the value; 0 or a code."""
        ...


@dataclass(frozen=True)
class BundleTransferPolicy:
    """How a put is carried out.

    Attributes
    ----------
    max_inflight_put : int
        How many calls run at once if ``put_mode`` is ``parallel``.
    put_mode : str
        ``auto`` and ``batch``: one call. ``parallel``: several.
    copy_mode : str
        ``zero_copy`` takes tensors as :func:`tensor_object_buffer` only. The bytes of every
        contiguous array go into the pool without a copy in between, in each mode.
    """

    max_inflight_put: int = 1
    put_mode: Literal["auto", "batch", "parallel"] = "auto"
    copy_mode: Literal["auto", "zero_copy", "copy"] = "auto"

    def checked(self) -> BundleTransferPolicy:
        """Return the policy itself.

        Raises
        ------
        ValueError
            A value is not one of those above.
        """
        if self.max_inflight_put <= 0:
            raise ValueError("max_inflight_put must be positive")
        if self.put_mode not in ("auto", "batch", "parallel"):
            raise ValueError(f"unsupported put_mode: {self.put_mode}")
        if self.copy_mode not in ("auto", "zero_copy", "copy"):
            raise ValueError(f"unsupported copy_mode: {self.copy_mode}")
        return self


@dataclass(frozen=True)
class FieldSchema:
    """The codec of a column.

    Attributes
    ----------
    codec : str
        ``auto``, or one of those in :mod:`kvcove.mooncake.structured.columns`.
    nullable : bool
        False refuses a column with a None.
    metadata : dict
        ``section`` (``batch``, ``non_tensor_batch``, ``meta_info``), ``dtype``, ``keys``.
    """

    codec: str
    nullable: bool = True
    metadata: dict[str, Any] = field(default_factory=dict)


@dataclass
class RemoteBundleRef:
    """Where a bundle lies; without its manifest, the manifest is read when it is needed."""

    manifest_key: str
    manifest: dict[str, Any]


@dataclass(frozen=True)
class StructuredFieldLocation:
    """Where a field of a batch lies."""

    stage: str
    member: str
    section: Literal["batch", "non_tensor_batch"]


@dataclass(frozen=True)
class StructuredMemberSlice:
    """Rows ``start`` to ``end`` of a member, every ``step``-th."""

    axis: int
    start: int
    end: int
    step: int = 1


@dataclass(frozen=True, init=False)
class StructuredObjectPayload:
    """Members under names (bytes, arrays), and metadata that JSON can hold."""

    metadata: Mapping[str, Any]
    buffers: Mapping[str, Any]

    def __init__(
        self,
        metadata: Mapping[str, Any] | None = None,
        buffers: Mapping[str, Any] | None = None,
    ) -> None:
        for name, value in (("metadata", metadata), ("buffers", buffers)):
            if value is not None and not isinstance(value, Mapping):
                raise TypeError(f"{name} must be a mapping, not {type(value).__name__}")
            object.__setattr__(self, name, dict(value or {}))


@dataclass(frozen=True)
class StructuredObjectReadSpec:
    """What to read of a structured object: all members, unless it is narrowed."""

    ref: RemoteBundleRef | Mapping[str, Any]
    member_names: tuple[str, ...] | None = None
    member_slices: tuple[tuple[str, StructuredMemberSlice], ...] = ()

    def select_members(self, names: Sequence[str] | None) -> StructuredObjectReadSpec:
        """Read these members only; None: all."""
        return replace(self, member_names=None if names is None else tuple(names))

    def slice_member(
        self, name: str, axis: int, start: int, end: int, step: int = 1
    ) -> StructuredObjectReadSpec:
        """Read these rows of a member; a later call for the same member replaces an earlier one."""
        kept = tuple(one for one in self.member_slices if one[0] != name)
        chosen = StructuredMemberSlice(axis, start, end, step)
        return replace(self, member_slices=(*kept, (name, chosen)))

    def member_slice(self, name: str) -> StructuredMemberSlice | None:
        """Return the rows of a member; None: all."""
        return dict(self.member_slices).get(name)


@dataclass
class StructuredObjectResult:
    """What was read: the metadata, and the members under their names."""

    metadata: dict[str, Any]
    objects: dict[str, Any]


@dataclass
class MooncakeDataProtoRef:
    """Where a batch lies: which stage wrote which field, and the batch's metadata itself."""

    batch_size: int
    stage_refs: dict[str, RemoteBundleRef]
    field_index: dict[str, StructuredFieldLocation]
    meta_info: dict[str, Any]
    namespace: str = "default"
    partition: str = "default"
    global_indexes: list[int] | None = None
    encoded_non_tensor: dict[str, Any] = field(default_factory=dict)
    _storage_group_id: str | None = field(default=None, repr=False)


@dataclass
class RawDestination:
    """Memory for a field's elements. ``owner`` lives as long as what is read into it."""

    ptr: int
    size: int
    owner: Any = None
    pre_registered: bool = False


@dataclass
class TensorObjectBuffer:
    """Memory that holds, or is to hold, a tensor with its header of 304 bytes in front."""

    ptr: int
    size: int
    owner: Any = None
    batch_size: int | None = None


def raw_destination(
    ptr: int, size: int, owner: Any = None, *, pre_registered: bool = False
) -> RawDestination:
    """Return a destination for the elements of an array or a tensor.

    Memory need not be registered; ``pre_registered`` changes nothing.
    """
    return RawDestination(ptr, size, owner, pre_registered)


def tensor_object_buffer(
    ptr: int, size: int, owner: Any = None, batch_size: int | None = None
) -> TensorObjectBuffer:
    """Return memory with a tensor and its header: a value of a field, or a destination."""
    return TensorObjectBuffer(ptr, size, owner, batch_size)
