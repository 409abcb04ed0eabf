# SPDX-License-Identifier: Apache-2.0
"""The plain classes and enumerations of ``mooncake.store``."""

from __future__ import annotations

import difflib
import threading
from collections.abc import Callable, Iterable
from enum import IntEnum
from typing import Any

from kvcove import _native


class Named(IntEnum):
    """Numbers that print their names, as that API's do."""

    def __str__(self) -> str:
        return f"{type(self).__name__}.{self.name}"


class Code(IntEnum):
    """The error codes that are answered here, by that API's names."""

    OK = 0
    INTERNAL_ERROR = -1
    SEGMENT_NOT_FOUND = -101
    NO_AVAILABLE_HANDLE = -200
    INVALID_VERSION = -300
    INVALID_PARAMS = -600
    ILLEGAL_CLIENT = -601
    REPLICA_IS_NOT_READY = -703
    OBJECT_NOT_FOUND = -704
    OBJECT_ALREADY_EXISTS = -705
    OBJECT_HAS_LEASE = -706
    LEASE_EXPIRED = -707
    REPLICA_NOT_FOUND = -710
    REPLICA_IS_GONE = -712
    TRANSFER_FAIL = -800
    CHECKSUM_MISMATCH = -801
    RPC_FAIL = -900
    RPC_TIMEOUT = -901
    UNAVAILABLE_IN_CURRENT_STATUS = -1010
    UNAVAILABLE_IN_CURRENT_MODE = -1011
    NOT_SUPPORTED = -1012
    FILE_NOT_FOUND = -1100
    FILE_READ_FAIL = -1102
    FILE_WRITE_FAIL = -1103
    TASK_NOT_FOUND = -1400
    TASK_PENDING_LIMIT_EXCEEDED = -1401


class ObjectDataType(Named):
    """A label of an object."""

    UNKNOWN = 0
    KVCACHE = 1
    TENSOR = 2
    WEIGHT = 3
    SAMPLE = 4
    ACTIVATION = 5
    GRADIENT = 6
    OPTIMIZER_STATE = 7
    METADATA = 8
    GENERAL = 9


class ReplicaStatus(Named):
    """The state of a replica."""

    UNDEFINED = 0
    INITIALIZED = 1
    PROCESSING = 2
    COMPLETE = 3
    REMOVED = 4
    FAILED = 5


class SoftPinAction(Named):
    """What a put does to the soft pin of its object."""

    PRESERVE = 0
    ENABLE = 1
    DISABLE = 2


class TaskStatus(Named):
    """The state of a task."""

    PENDING = 0
    PROCESSING = 1
    FAILED = 2
    SUCCESS = 3


class TaskType(Named):
    """What a task does."""

    REPLICA_COPY = 0
    REPLICA_MOVE = 1


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and 0 <= value < 2**64


def _is_names(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(name, str) for name in value)


_FIELDS: dict[str, Callable[[Any], bool]] = {
    "replica_num": _is_count,
    "nof_replica_num": _is_count,
    "dfs_replica_num": _is_count,
    "soft_pin_action": lambda value: isinstance(value, SoftPinAction),
    "soft_pin_ttl_ms": lambda value: value is None or _is_count(value),
    "with_hard_pin": lambda value: isinstance(value, bool),
    "preferred_segment": lambda value: isinstance(value, str),
    "preferred_segments": _is_names,
    "preferred_nof_segments": _is_names,
    "prefer_alloc_in_same_node": lambda value: isinstance(value, bool),
    "data_type": lambda value: isinstance(value, ObjectDataType),
    "group_ids": lambda value: value is None or _is_names(value),
    "session_ids": lambda value: value is None or _is_names(value),
    "residency_affinity_ids": lambda value: value is None or _is_names(value),
    "preferred_hca_names": _is_names,
    "per_key_preferred_hca_names": lambda value: (
        isinstance(value, list | tuple) and all(_is_names(one) for one in value)
    ),
}


class ReplicateConfig:
    """How a put is replicated and protected. Other attributes may be set and mean nothing.

    ``session_ids`` and ``residency_affinity_ids`` (a text each value) and the names of network adapters
    (``preferred_hca_names``, ``per_key_preferred_hca_names``) are taken and mean nothing: data goes over
    TCP, or over shared memory, and a batch is what eviction takes as one request.

    Raises
    ------
    AttributeError
        There is no such field.
    TypeError
        A field is set to what it cannot be.
    """

    replica_num: int = 1
    nof_replica_num: int = 0
    dfs_replica_num: int = 0
    soft_pin_action: SoftPinAction = SoftPinAction.PRESERVE
    with_hard_pin: bool = False
    preferred_segment: str = ""
    prefer_alloc_in_same_node: bool = False
    data_type: ObjectDataType = ObjectDataType.UNKNOWN
    group_ids: list[str] | None = None
    soft_pin_ttl_ms: int | None = None
    session_ids: list[str] | None = None
    residency_affinity_ids: list[str] | None = None

    def __init__(self) -> None:
        self.preferred_hca_names: list[str] = []
        self.per_key_preferred_hca_names: list[list[str]] = []
        self.preferred_segments: list[str] = []
        self.preferred_nof_segments: list[str] = []

    def __setattr__(self, name: str, value: Any) -> None:
        check = _FIELDS.get(name)
        if check is None:
            near = difflib.get_close_matches(name, _FIELDS, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise AttributeError(
                f"ReplicateConfig has no field {name!r}{hint}", name=name, obj=self
            )
        if not check(value):
            raise TypeError(f"ReplicateConfig.{name} cannot be {value!r}")
        super().__setattr__(name, value)

    def __repr__(self) -> str:
        ttl = "default" if self.soft_pin_ttl_ms is None else self.soft_pin_ttl_ms
        fields = {
            "replica_num": self.replica_num,
            "nof_replica_num": self.nof_replica_num,
            "dfs_replica_num": self.dfs_replica_num,
            "soft_pin_action": self.soft_pin_action.name,
            "soft_pin_ttl_ms": ttl,
            "with_hard_pin": int(self.with_hard_pin),
            "preferred_segments": f"[{', '.join(self.preferred_segments)}]",
            "preferred_nof_segments": f"[{', '.join(self.preferred_nof_segments)}]",
            "prefer_alloc_in_same_node": int(self.prefer_alloc_in_same_node),
            "data_type": self.data_type.name,
        }
        return f"ReplicateConfig: {{ {', '.join(f'{k}: {v}' for k, v in fields.items())} }}"


class Descriptor:
    """Where a replica's memory is."""

    def __init__(self) -> None:
        self.buffer_address = 0
        self.size = 0
        self.transport_endpoint = ""


class MemoryDescriptor:
    """A replica in memory."""

    def __init__(self) -> None:
        self.buffer_descriptor = Descriptor()


class DiskDescriptor:
    """A replica on an owner's disk, and that owner."""

    def __init__(self, endpoint: str = "", size: int = 0) -> None:
        self.file_path = ""  # it is a record in a log, not a file
        self.object_size = size
        self.transport_endpoint = endpoint


class ExistOptions:
    """What a look-up does beside looking."""

    def __init__(self) -> None:
        self.prefetch_to_memory = False


class RangedReadSnapshot:
    """The keys of one :meth:`MooncakeDistributedStore.prepare_get_into_ranges_snapshot`."""

    def __init__(self, store: object, keys: Iterable[bytes]) -> None:
        self._store = store
        self._keys = frozenset(keys)

    def has(self, store: object, key: bytes) -> bool:
        """Return whether the key was asked for.

        Raises
        ------
        ValueError
            It is of another store.
        """
        if store is not self._store:
            raise ValueError("Ranged-read snapshot belongs to another Store")
        return key in self._keys


class ReplicaDescriptor:
    """One replica of an object: in an owner's memory, or on that owner's disk only."""

    def __init__(self, endpoint: str = "", size: int = 0, on_disk: bool = False) -> None:
        self.status = ReplicaStatus.COMPLETE
        self._disk = DiskDescriptor(endpoint, size) if on_disk else None
        self._memory = MemoryDescriptor()
        self._memory.buffer_descriptor.size = size
        self._memory.buffer_descriptor.transport_endpoint = endpoint

    def is_memory_replica(self) -> bool:
        """Whether it is in memory."""
        return self._disk is None

    def is_disk_replica(self) -> bool:
        """Return false: no replica lies in a directory that hosts share."""
        return False

    def is_local_disk_replica(self) -> bool:
        """Whether it is on its owner's disk, and not in memory."""
        return self._disk is not None

    def get_memory_descriptor(self) -> MemoryDescriptor:
        """Return where it is.

        Raises
        ------
        RuntimeError
            It is on a disk.
        """
        if self._disk is not None:
            raise RuntimeError("a replica on a disk has no memory descriptor")
        return self._memory

    def get_disk_descriptor(self) -> DiskDescriptor:
        """Return which owner's disk has it, and its size; 0 where that is not known unread.

        Raises
        ------
        RuntimeError
            It is in memory.
        """
        if self._disk is None:
            raise RuntimeError("a replica in memory has no disk descriptor")
        return self._disk


class QueryTaskResponse:
    """The state of a copy or move.

    Attributes
    ----------
    id : tuple[int, int]
    type : TaskType
    status : TaskStatus
    created_at_ms_epoch, last_updated_at_ms_epoch : int
    assigned_client : tuple[int, int]
    message : str
    """

    def __init__(self) -> None:
        self.id = (0, 0)
        self.type = TaskType.REPLICA_COPY
        self.status = TaskStatus.PENDING
        self.created_at_ms_epoch = 0
        self.last_updated_at_ms_epoch = 0
        self.assigned_client = (0, 0)
        self.message = ""


class ParallelAxis:
    """One axis of parallelism that a tensor is split along."""

    def __init__(self) -> None:
        self.kind = ""
        self.rank = 0
        self.size = 1
        self.split_dim: int | None = None
        self.expert_id: int | None = None
        self.stage_id: int | None = None


class TensorParallelism:
    """The axes that a tensor is split along."""

    def __init__(self) -> None:
        self.axes: list[ParallelAxis] = []


class ReadTarget:
    """Which part of a split tensor a read wants: as_stored, shard or full."""

    MODES = ("as_stored", "shard", "full")

    def __init__(self) -> None:
        self._mode = "as_stored"
        self.parallelism: TensorParallelism | None = None

    @property
    def mode(self) -> str:
        """as_stored, shard or full."""
        return self._mode

    @mode.setter
    def mode(self, value: str) -> None:
        if value not in self.MODES:
            raise RuntimeError(f"Unsupported ReadTarget mode {value!r}; one of {self.MODES}")
        self._mode = value


class MooncakeHostMemAllocator:
    """Memory of this process by its address."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sizes: dict[int, int] = {}

    def alloc(self, size: int) -> int:
        """Return the address of ``size`` new bytes, 0 if there are none."""
        if size <= 0:
            return 0
        address = _native.allocate_memory(size)
        if address:
            with self._lock:
                self._sizes[address] = size
        return address

    def free(self, address: int) -> int:
        """Give memory back: 0, or -600 for an address that is not from here."""
        with self._lock:
            size = self._sizes.pop(address, None)
        if size is None:
            return int(Code.INVALID_PARAMS)
        _native.free_memory(address, size)
        return 0

    def __del__(self) -> None:
        for address, size in self.__dict__.get("_sizes", {}).items():
            _native.free_memory(address, size)
