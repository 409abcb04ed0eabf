# SPDX-License-Identifier: Apache-2.0
"""The API of ``mooncake.store`` on kvcove.

Names, arguments, return values and codes are that API's; docs/mooncake.md says where the behaviour
differs, and why. Every method may be called from several threads at a time, releases the GIL while
it works and ends by a deadline. Before :meth:`MooncakeDistributedStore.setup` and after
:meth:`~MooncakeDistributedStore.close` calls answer -1010 (or what stands for nothing).

A put begins when the library captures the namespace's generation inside the call, before it reads a
byte; ``remove_all(force=True)`` is a fenced reset of O(1).
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import re
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import kvcove
from kvcove import _native
from kvcove._native import BufferHandle, Session
from kvcove.mooncake import _config
from kvcove.mooncake._answers import (
    INVALID,
    MAX_SOFT_PIN_MS,
    UNSET,
    answered,
    code_of,
    octets,
    refused,
)
from kvcove.mooncake._helpers import (
    _deserialize_tensor,
    _serialize_tensor,
    _tensor_metadata_size,
    bind_to_numa_node,
)
from kvcove.mooncake._matching import found_in
from kvcove.mooncake._open import Open
from kvcove.mooncake._parallel_store import ParallelMethods
from kvcove.mooncake._patterns import patterns_of
from kvcove.mooncake._pool import BufferLease, BufferPool
from kvcove.mooncake._ranges import RangeMethods
from kvcove.mooncake._tasks import Tasks, drop_replicas
from kvcove.mooncake._types import (
    Code,
    Descriptor,
    DiskDescriptor,
    ExistOptions,
    MemoryDescriptor,
    MooncakeHostMemAllocator,
    ObjectDataType,
    ParallelAxis,
    QueryTaskResponse,
    RangedReadSnapshot,
    ReadTarget,
    ReplicaDescriptor,
    ReplicaStatus,
    ReplicateConfig,
    SoftPinAction,
    TaskStatus,
    TaskType,
    TensorParallelism,
)

__all__ = [
    "ACTIVATION",
    "COMPLETE",
    "FAILED",
    "GENERAL",
    "GRADIENT",
    "INITIALIZED",
    "KVCACHE",
    "METADATA",
    "OPTIMIZER_STATE",
    "PENDING",
    "PROCESSING",
    "REMOVED",
    "REPLICA_COPY",
    "REPLICA_MOVE",
    "SAMPLE",
    "SUCCESS",
    "TENSOR",
    "UNDEFINED",
    "UNKNOWN",
    "WEIGHT",
    "BufferHandle",
    "BufferLease",
    "BufferLeaseView",
    "BufferPool",
    "Descriptor",
    "DiskDescriptor",
    "ExistOptions",
    "MemoryDescriptor",
    "MooncakeDistributedStore",
    "MooncakeHostMemAllocator",
    "ObjectDataType",
    "ParallelAxis",
    "QueryTaskResponse",
    "RangedReadSnapshot",
    "ReadTarget",
    "RegisteredBufferLease",
    "RegisteredBufferLeaseView",
    "RegisteredBufferPool",
    "ReplicaDescriptor",
    "ReplicaStatus",
    "ReplicateConfig",
    "SoftPinAction",
    "TaskStatus",
    "TaskType",
    "TensorParallelism",
    "_deserialize_tensor",
    "_serialize_tensor",
    "_tensor_metadata_size",
    "bind_to_numa_node",
]

RegisteredBufferPool = BufferPool
RegisteredBufferLease = BufferLease
# What BufferLease.buffer returns.
BufferLeaseView = RegisteredBufferLeaseView = memoryview

(
    UNKNOWN,
    KVCACHE,
    TENSOR,
    WEIGHT,
    SAMPLE,
    ACTIVATION,
    GRADIENT,
    OPTIMIZER_STATE,
    METADATA,
    GENERAL,
) = ObjectDataType
UNDEFINED, INITIALIZED, _, COMPLETE, REMOVED, _ = ReplicaStatus
# As there, these two are a task's, not a replica's.
PENDING, PROCESSING, FAILED, SUCCESS = TaskStatus
REPLICA_COPY, REPLICA_MOVE = TaskType

_log = logging.getLogger("kvcove.mooncake")


_open_stores: weakref.WeakSet[MooncakeDistributedStore] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for store in list(_open_stores):
        with contextlib.suppress(kvcove.Error):
            store.close()


_NO_ROOM = int(kvcove.Code.LIMIT)
_LARGEST = 2**64 - 1
_PASSES = 3  # of a removal over lists
_PLAIN = frozenset((bytes, bytearray))
_NAMES_IN_FORMAT = re.compile(":[^:]*:")  # of a structure's fields


class MooncakeDistributedStore(RangeMethods, ParallelMethods):
    """A store of byte strings and tensors that all processes of a cluster share."""

    def __init__(self) -> None:
        self._now: Open | None = None
        self._life = threading.Lock()
        self._dummy_pool: tuple[int, int, int] | None = None  # address, size, used
        self._puts: dict[bytes, tuple[bytearray, kvcove.Token, ReplicateConfig]] = {}
        self._gets: dict[bytes, bytes] = {}
        self._tasks = Tasks()
        self._http: Any = None

    def __del__(self) -> None:
        if self.__dict__.get("_now") is not None:
            with contextlib.suppress(Exception):
                self.close()

    # ---- life cycle

    def setup(self, *args: Any, **kwargs: Any) -> int:
        """Connect to a master; with a segment, give memory to the cluster.

        Parameters
        ----------
        *args, **kwargs
            ``local_hostname, metadata_server, global_segment_size, local_buffer_size, protocol,
            rdma_devices, master_server_addr, engine=None, enable_ssd_offload=False,
            ssd_offload_path="", tenant_id="default", enable_client_http_server=False,
            client_http_port=9300, enable_embedded_master=False``, or one dict of these.
            ``master_server_addr`` may also be ``etcd://HOST:2379;HOST:2379``, where etcd says which of
            several masters leads, or any address of :func:`kvcove.open`; with
            ``enable_embedded_master`` (else ``MOONCAKE_ENABLE_EMBEDDED_MASTER``) the store is a pool
            inside this process, whatever it says.

        Returns
        -------
        int
            0; -1 for a protocol that is not known; -600 when another argument is not usable or nobody
            answers (the log says which).
        """
        try:
            setup = _config.Setup.of(_config.arguments_of(args, kwargs))
        except _config.ProtocolError as error:
            _log.error("setup(): %s", error)
            return int(Code.INTERNAL_ERROR)
        except ValueError as error:
            _log.error("setup(): %s", error)
            return INVALID
        with self._life:
            if self._now is not None:
                return 0
            try:
                self._now = Open(setup)
            except (kvcove.Error, OSError, ValueError) as error:
                _log.error("setup(): %s", error)
                return INVALID
            if setup.http_port is not None:
                from kvcove.mooncake._client_http import ClientHttp

                try:
                    self._http = ClientHttp(self, setup.http_port, self._now.http_hosts())
                except OSError as error:
                    _log.error("setup(): client_http_port: %s", error)
                    self._close()
                    return INVALID
        _open_stores.add(self)
        return 0

    def setup_dummy(self, mem_pool_size: int, local_buffer_size: int, server_address: str) -> int:
        """Use the pool that a ``mooncake_client`` on this host belongs to.

        Returns
        -------
        int
            0, -600 for sizes or an address that are not usable, -1 when it does not answer.
        """
        from kvcove.mooncake._client_http import pool_of

        try:
            size = _config.parse_size(mem_pool_size)
            _config.parse_size(local_buffer_size)
            pool = pool_of(server_address)
        except ValueError as error:
            _log.error("setup_dummy(): %s", error)
            return INVALID
        except OSError as error:
            _log.error("setup_dummy(): nobody answers at %s: %s", server_address, error)
            return int(Code.INTERNAL_ERROR)
        answer = self.setup("127.0.0.1", "P2PHANDSHAKE", 0, local_buffer_size, "tcp", "", pool)
        if answer == 0 and size > 0:
            address = _native.allocate_memory(size)
            if address == 0:
                self.close()
                return INVALID
            self._dummy_pool = (address, size, 0)
        return answer

    def init_all(self, protocol: str, device_name: str, mount_segment_size: int = 16 << 20) -> int:
        """Set up with the master that the environment names (``MOONCAKE_MASTER``)."""
        master = os.environ.get("MOONCAKE_MASTER", "127.0.0.1:50051")
        host = os.environ.get("MOONCAKE_LOCAL_HOSTNAME", "localhost")
        return self.setup(
            host, "P2PHANDSHAKE", mount_segment_size, 16 << 20, protocol, device_name, master
        )

    def close(self) -> int:
        """End the connection and give the memory back. May be called again.

        Returns
        -------
        int
            0.
        """
        with self._life:
            self._close()
        _open_stores.discard(self)
        return 0

    def _close(self) -> None:
        now, self._now = self._now, None
        http, self._http = self._http, None
        self._puts.clear()
        self._gets.clear()
        if http is not None:
            http.close()
        if now is not None:
            now.close()
        if self._dummy_pool is not None:
            _native.free_memory(*self._dummy_pool[:2])
            self._dummy_pool = None

    def health_check(self) -> int:
        """Return 0 when healthy, 1 when not set up, 2 when the master does not answer."""
        now = self._now
        if now is None:
            return 1
        try:
            now.pool.stat(timeout=1.0)
        except kvcove.ForkedError:
            return 1
        except kvcove.Error:
            return 2
        return 0

    def get_hostname(self) -> str:
        """Return ``host:port``, the name of this store's segment; empty before setup()."""
        return self._now.hostname if self._now else ""

    # ---- bytes

    def put(self, key: str, value: Any, config: ReplicateConfig | None = None) -> int:
        """Store a value. One that is there already stays, and the answer is 0.

        Parameters
        ----------
        key : str
        value : buffer
            bytes, bytearray, memoryview, array; at most ``local_buffer_size``.
        config : ReplicateConfig, optional

        Returns
        -------
        int
            0; -600 empty or too large, -200 no space, -300 a reset came in between, -900 and -901
            when nobody answers, -1010 before setup().
        """
        return self._put_values([key], [value], config, replace=False, of="put")[0]

    def put_parts(self, key: str, *args: Any, config: ReplicateConfig | None = None) -> int:
        """Store the parts, one behind the other, as one value."""
        return self._put_values([key], [list(args)], config, replace=False, of="put_parts")[0]

    def put_batch(
        self, keys: Sequence[str], values: Sequence[Any], config: ReplicateConfig | None = None
    ) -> int:
        """Store values; 0, or the first error."""
        return _first_error(self._put_values(keys, values, config, replace=False, of="put_batch"))

    def upsert(self, key: str, value: Any, config: ReplicateConfig | None = None) -> int:
        """Store a value in place of what is there: it goes first, then the new one is put.

        A read finds the old value, the new one, or for a moment none; never a mixture.
        """
        return self._put_values([key], [value], config, replace=True, of="upsert")[0]

    def upsert_parts(self, key: str, *args: Any, config: ReplicateConfig | None = None) -> int:
        """Like :meth:`upsert`, with the parts one behind the other."""
        return self._put_values([key], [list(args)], config, replace=True, of="upsert_parts")[0]

    def upsert_batch(
        self, keys: Sequence[str], values: Sequence[Any], config: ReplicateConfig | None = None
    ) -> int:
        """Like :meth:`upsert` for several; 0, or the first error."""
        return _first_error(self._put_values(keys, values, config, replace=True, of="upsert_batch"))

    def _put_values(
        self,
        keys: Sequence[str],
        values: Sequence[Any],
        config: ReplicateConfig | None,
        *,
        replace: bool,
        of: str,
    ) -> list[int]:
        if not all(isinstance(key, str | bytes | bytearray) for key in keys):
            raise TypeError(f"{of}(): keys are str or bytes")
        if config is None and all(type(value) in _PLAIN for value in values):
            return self._put_plain(keys, values, replace=replace)
        # First of all: a value may be copied on the way.
        token = self._captured()
        views = [_views(value, of) for value in values]
        now = self._now
        if now is None or isinstance(token, int):
            return [token if isinstance(token, int) else UNSET] * len(keys)
        if len(keys) != len(views):
            return [INVALID] * len(keys)
        config = config or ReplicateConfig()
        sizes = [sum(view.nbytes for view in value) for value in views]
        refusal = refused(config, len(keys), values_in_bytes=True)
        if refusal == 0 and any(
            not key or not 0 < size <= max(now.setup.local_buffer_size, 0)
            for key, size in zip(keys, sizes, strict=True)
        ):
            # As that API has it: one that is not usable refuses the whole batch.
            refusal = INVALID
        if refusal != 0:
            return [refusal] * len(keys)
        return self._put_buffers(now, keys, views, config, token, replace=replace)

    def _put_plain(self, keys: Sequence[str], values: Sequence[Any], *, replace: bool) -> list[int]:
        """Store values of bytes, as most are, without a view or a configuration of each."""
        now = self._now
        if now is None:
            return [UNSET] * len(keys)
        largest = max(now.setup.local_buffer_size, 0)
        return answered(
            lambda: now.native.batch_put(now.session, keys, values, None, largest, replace),
            len(keys),
        )

    def _captured(self) -> kvcove.Token | int:
        """Return what a put that begins now must carry, or the code for why there is nothing."""
        now = self._now
        if now is None:
            return UNSET
        try:
            return now.session.capture()
        except kvcove.Error as error:
            return code_of(error)

    def _put_buffers(
        self,
        now: Open,
        keys: Sequence[str],
        values: Sequence[Any],
        config: ReplicateConfig,
        token: kvcove.Token,
        *,
        replace: bool = False,
    ) -> list[int]:
        """Store buffers, or lists of pieces, under a token that was captured before they were read."""
        session = self._session_for(now, config)

        def put() -> list[int]:
            return now.native.batch_put(session, keys, values, token, _LARGEST, replace)

        return self._pinned(now, keys, config, answered(put, len(keys)))

    def _session_for(self, now: Open, config: ReplicateConfig) -> Session:
        segment = config.preferred_segment or ",".join(config.preferred_segments)
        if not segment and config.replica_num == 1:
            return now.session
        return now.session_for(min(config.replica_num, 255), segment)

    def _pinned(
        self, now: Open, keys: Sequence[str], config: ReplicateConfig, codes: list[int]
    ) -> list[int]:
        stored = [key for key, code in zip(keys, codes, strict=True) if code == 0]
        if not stored or not (config.with_hard_pin or config.soft_pin_action):
            return codes
        names = [_native.stored_name(octets(key)) for key in stored]
        with contextlib.suppress(kvcove.Error):
            if config.with_hard_pin:
                pins = now.session.pin(names).codes.tolist()
                unpinned = {k for k, pin in zip(stored, pins, strict=True) if pin == _NO_ROOM}
                # The value stays, to be evicted like others; that it would not be is not so.
                no_space = int(Code.NO_AVAILABLE_HANDLE)
                return [no_space if k in unpinned else c for k, c in zip(keys, codes, strict=True)]
            if config.soft_pin_action == SoftPinAction.ENABLE:
                ttl = config.soft_pin_ttl_ms
                now.session.pin(names, (MAX_SOFT_PIN_MS if ttl is None else ttl) / 1000)
            else:
                now.session.unpin(names)
        return codes

    def get(self, key: str) -> bytes:
        """Return a value; empty for a miss and for every error."""
        return self.get_batch([key])[0]

    def get_batch(self, keys: Sequence[str]) -> list[bytes]:
        """Return values; empty ones for what is not there."""
        return [value or b"" for value in self._values(keys)]

    def _values(self, keys: Sequence[str], *, writable: bool = False) -> list[Any]:
        """Return values as bytes, or as bytearrays; None for what is not there."""
        now = self._now
        if now is None:
            return [None] * len(keys)
        try:
            return now.native.batch_get(now.session, keys, writable)
        except kvcove.Error as error:
            _log.debug("get: %s", error)
            return [None] * len(keys)

    def get_buffer(self, key: str) -> BufferHandle | None:
        """Return a value with its address, or None."""
        return self.batch_get_buffer([key])[0]

    def batch_get_buffer(self, keys: Sequence[str]) -> list[BufferHandle | None]:
        """Return values with their addresses; None for what is not there."""
        now = self._now
        if now is None:
            return [None] * len(keys)
        try:
            return now.native.batch_get_buffer(now.session, keys)
        except kvcove.Error as error:
            _log.debug("batch_get_buffer: %s", error)
            return [None] * len(keys)

    # ---- zero copy

    def register_buffer(self, buffer_ptr: int, size: int) -> int:
        """Register memory that values are read into and written from.

        Memory of a GPU is recognised and copied through its driver, or refused here.

        Returns
        -------
        int
            0; -600 null, no size, memory that may not be read, or a part of it is registered; -1 GPU
            memory that cannot be copied. What may be read only is registered for puts: a read into
            it answers -600. What :meth:`alloc_from_mem_pool` has given is registered from the
            beginning; a part of that which is registered in turn is a buffer that ends where it is
            said to end.
        """
        now = self._now
        if now is None:
            return UNSET
        if buffer_ptr < 0 or size < 0:
            return INVALID
        return now.native.register_buffer(now.pool, buffer_ptr, size)

    def unregister_buffer(self, buffer_ptr: int) -> int:
        """Forget memory that was registered: 0, or -600."""
        now = self._now
        if now is None:
            return UNSET
        return now.native.unregister_buffer(max(buffer_ptr, 0))

    def put_from(
        self, key: str, buffer_ptr: int, size: int, config: ReplicateConfig | None = None
    ) -> int:
        """Store ``size`` bytes at an address: 0 or negative, -600 for no memory."""
        return self.batch_put_from([key], [buffer_ptr], [size], config)[0]

    def put_from_with_metadata(
        self,
        key: str,
        buffer_ptr: int,
        metadata_buffer_ptr: int,
        size: int,
        metadata_size: int,
        config: ReplicateConfig | None = None,
    ) -> int:
        """Store metadata and payload, one behind the other, as one value."""
        pieces = [(metadata_buffer_ptr, metadata_size), (buffer_ptr, size)]
        if metadata_size == 0:
            pieces = pieces[1:]
        addresses, sizes = [p[0] for p in pieces], [p[1] for p in pieces]
        return self.batch_put_from_multi_buffers([key], [addresses], [sizes], config)[0]

    def batch_put_from(
        self,
        keys: Sequence[str],
        buffer_ptrs: Sequence[int],
        sizes: Sequence[int],
        config: ReplicateConfig | None = None,
    ) -> list[int]:
        """Store what is at the addresses; per key 0 or negative."""
        return self._put_from(keys, buffer_ptrs, sizes, config, several=False, replace=False)

    def batch_put_from_multi_buffers(
        self,
        keys: Sequence[str],
        all_buffer_ptrs: Sequence[Sequence[int]],
        all_sizes: Sequence[Sequence[int]],
        config: ReplicateConfig | None = None,
    ) -> list[int]:
        """Store values from several pieces each; per key 0 or negative."""
        return self._put_from(keys, all_buffer_ptrs, all_sizes, config, several=True, replace=False)

    def upsert_from(
        self, key: str, buffer_ptr: int, size: int, config: ReplicateConfig | None = None
    ) -> int:
        """Like :meth:`upsert`, from an address."""
        return self.batch_upsert_from([key], [buffer_ptr], [size], config)[0]

    def batch_upsert_from(
        self,
        keys: Sequence[str],
        buffer_ptrs: Sequence[int],
        sizes: Sequence[int],
        config: ReplicateConfig | None = None,
    ) -> list[int]:
        """Like :meth:`upsert`, from addresses; per key."""
        return self._put_from(keys, buffer_ptrs, sizes, config, several=False, replace=True)

    def _put_from(
        self,
        keys: Sequence[str],
        addresses: Sequence[Any],
        sizes: Sequence[Any],
        config: ReplicateConfig | None,
        *,
        several: bool,
        replace: bool,
    ) -> list[int]:
        now = self._now
        if now is None:
            return [UNSET] * len(keys)
        session = now.session
        if config is not None:
            refusal = refused(config, len(keys), values_in_bytes=not several)
            if refusal != 0:
                return [refusal] * len(keys)
            session = self._session_for(now, config)

        def put() -> list[int]:
            return now.native.batch_put_from(session, keys, addresses, sizes, several, replace)

        codes = answered(put, len(keys))
        return codes if config is None else self._pinned(now, keys, config, codes)

    def get_into(self, key: str, buffer_ptr: int, size: int) -> int:
        """Read a value to an address: the bytes read, -704 for a miss, -600 for no room."""
        return self.batch_get_into([key], [buffer_ptr], [size])[0]

    def batch_get_into(
        self, keys: Sequence[str], buffer_ptrs: Sequence[int], sizes: Sequence[int]
    ) -> list[int]:
        """Read values to addresses; per key the bytes read or negative."""
        now = self._now
        if now is None:
            return [UNSET] * len(keys)
        return answered(
            lambda: now.native.batch_get_into(now.session, keys, buffer_ptrs, sizes, False),
            len(keys),
        )

    def batch_get_into_multi_buffers(
        self,
        keys: Sequence[str],
        all_buffer_ptrs: Sequence[Sequence[int]],
        all_sizes: Sequence[Sequence[int]],
        prefer_alloc_in_same_node: bool = False,
    ) -> list[int]:
        """Read values into several pieces each; per key the bytes read or negative."""
        now = self._now
        if now is None:
            return [UNSET] * len(keys)
        return answered(
            lambda: now.native.batch_get_into(now.session, keys, all_buffer_ptrs, all_sizes, True),
            len(keys),
        )

    def alloc_from_mem_pool(self, size: int) -> int:
        """Return the address of ``size`` bytes of setup_dummy()'s pool, 0 if there are none."""
        with self._life:
            if self._dummy_pool is None or size <= 0:
                return 0
            now, (address, total, used) = self._now, self._dummy_pool
            begin = (used + 4095) // 4096 * 4096
            if now is None or begin + size > total:
                return 0
            if now.native.register_allocation(address + begin, size) != 0:
                return 0
            self._dummy_pool = (address, total, begin + size)
            return address + begin

    # ---- query and remove

    def is_exist(self, key: str, options: ExistOptions | None = None) -> int:
        """Return 1, 0, or a negative code. Renews the lease."""
        return self.batch_is_exist([key], options)[0]

    def batch_is_exist(self, keys: Sequence[str], options: ExistOptions | None = None) -> list[int]:
        """Return per key 1, 0, or a negative code. Renews the leases.

        What is on this host's disk starts to come up, unless the options or the master
        (``-promotion_on_hit=false``) say no.
        """
        now = self._now
        if now is None:
            return [UNSET] * len(keys)
        if not isinstance(options, ExistOptions | None):
            raise TypeError(f"options: ExistOptions is wanted, not {type(options).__name__}")
        prefetches = None if options is None else bool(options.prefetch_to_memory)
        return answered(lambda: now.native.batch_is_exist(now.session, keys, prefetches), len(keys))

    def probe_key(self, key: str) -> int:
        """Return 1, 0, or a negative code, and leave the lease as it is."""
        return self.batch_probe_key([key])[0]

    def batch_probe_key(
        self, keys: Sequence[str], policy: str = "none", candidate_size: int = 1
    ) -> list[int]:
        """Return per key 1, 0, or a negative code, like :meth:`batch_is_exist`, without leases.

        Parameters
        ----------
        policy : str
            ``none``, or ``LastHitOnly``: the keys are groups of ``candidate_size``, and the last group
            of which every key is there gets leases.
        candidate_size : int
            Keys in a group.

        Returns
        -------
        list of int
            -600 for each when the keys are no whole number of groups.

        Raises
        ------
        ValueError
            The policy is not known.
        """
        if policy not in ("none", "LastHitOnly"):
            raise ValueError(
                f"Unknown batch_probe_key policy: {policy}; none and LastHitOnly are known"
            )
        now = self._now
        if now is None:
            return [UNSET] * len(keys)
        found = answered(lambda: self._probed(now, keys), len(keys))
        if policy == "none":
            return found
        if candidate_size < 1 or len(keys) % candidate_size != 0:
            _log.error("batch_probe_key: %d keys are no groups of %d", len(keys), candidate_size)
            return [INVALID] * len(keys)
        for at in range(len(keys) - candidate_size, -1, -candidate_size):
            group = slice(at, at + candidate_size)
            if any(one != 1 for one in found[group]):
                continue
            # One that has gone since then is told; the others of its group may have leases.
            found[group] = self.batch_is_exist(keys[group])
            if all(one == 1 for one in found[group]):
                break
        return found

    @staticmethod
    def _probed(now: Open, keys: Sequence[str | bytes]) -> list[int]:
        """Return per key what a look-up says that holds nothing and brings nothing up from a disk."""
        names = [_native.stored_name(octets(key)) if _odd(key) else key for key in keys]
        codes = now.session.exists(names, timeout=now.timeout).codes.tolist()
        there, missing = int(kvcove.Code.OK), int(kvcove.Code.MISS)
        return [
            1 if code == there else 0 if code == missing or not key else _native.store_code(code)
            for key, code in zip(keys, codes, strict=True)
        ]

    def get_size(self, key: str) -> int:
        """Return a value's bytes, or -704."""
        now = self._now
        if now is None:
            return UNSET
        size = answered(lambda: now.native.batch_sizes(now.session, [key], True), 1)[0]
        if size == Code.OBJECT_NOT_FOUND and octets(key) in self._puts:
            return int(Code.REPLICA_IS_NOT_READY)
        return size

    def get_replica_desc(self, key: str) -> list[ReplicaDescriptor]:
        """Return where a value is; empty for a miss."""
        return self.batch_get_replica_desc([key]).get(_text(key), [])

    def batch_get_replica_desc(self, keys: Sequence[str]) -> dict[str, list[ReplicaDescriptor]]:
        """Return where values are; keys that are not there are absent."""
        now = self._now
        if now is None or not keys:
            return {}
        try:
            found = now.native.batch_places(now.session, keys)
        except kvcove.Error as error:
            _log.debug("batch_get_replica_desc: %s", error)
            return {}
        return {
            _text(key): [
                ReplicaDescriptor(now.hostname if owner == "local" else owner, size, on_disk)
                for owner, on_disk, size in places
            ]
            for key, places in zip(keys, found, strict=True)
            if places
        }

    def _places(self, now: Open, keys: Sequence[str | bytes]) -> list[list[str]]:
        """Return the segments that have each value; this holds nothing."""
        names = [_native.stored_name(octets(key)) if _odd(key) else key for key in keys]
        found: list[list[str]] = now.session.where(names)
        return [[now.hostname if one == "local" else one for one in places] for places in found]

    def remove(self, key: str, force: bool = False) -> int:
        """Remove a value: 0, -704 missing, -706 leased (unless ``force``), -703 being written."""
        return self.batch_remove([key], force)[0]

    def batch_remove(self, keys: Sequence[str | bytes], force: bool = False) -> list[int]:
        """Remove values; per key as :meth:`remove`."""
        now = self._now
        if now is None:
            return [UNSET] * len(keys)
        codes = answered(lambda: now.native.batch_remove(now.session, keys, force), len(keys))
        if not self._puts:
            return codes
        not_ready = int(Code.REPLICA_IS_NOT_READY)
        return [
            not_ready if code == Code.OBJECT_NOT_FOUND and octets(key) in self._puts else code
            for key, code in zip(keys, codes, strict=True)
        ]

    def remove_by_regex(self, regex_pattern: str, force: bool = False) -> int:
        """Remove what the pattern is found in; how many, or -600 for a bad pattern.

        Leased values are left, unless ``force``. Patterns are Python's (:mod:`re`), ``.`` stands for a
        line break, too. Those that owners can match themselves (letters, ``.``, ``.*``, small classes and
        alternatives) are the fastest; for others this lists all keys, and matches them in a process of
        its own, for 10 s at most: -600 then, and nothing is removed.
        """
        if not isinstance(regex_pattern, str | bytes | bytearray):
            raise TypeError(f"regex_pattern is str or bytes, not {type(regex_pattern).__name__}")
        expression = octets(regex_pattern)
        try:
            re.compile(expression, re.DOTALL)
            patterns = patterns_of(expression)
            return self._remove_found(lambda keys: found_in(expression, keys), patterns, force)
        except (re.error, RecursionError, TimeoutError) as error:
            _log.error("remove_by_regex(%r): %s", regex_pattern, error)
            return INVALID
        except OSError as error:
            _log.error("remove_by_regex(%r): %s", regex_pattern, error)
            return int(Code.INTERNAL_ERROR)

    def _remove_found(
        self,
        wanted: Callable[[list[bytes]], list[bool]],
        patterns: list[str] | None,
        force: bool,
        *,
        keep_pinned: bool = False,
    ) -> int:
        """Remove keys that are wanted; ``patterns``: what the pool calls them, if it can."""
        now = self._now
        if now is None:
            return UNSET
        try:
            removed = 0
            kept: set[bytes] = set()
            for _ in range(_PASSES):
                names: list[bytes] = []
                on_disk = False
                if not force or patterns is None:
                    names, on_disk = self._removable(now, wanted, force, keep_pinned, kept)
                if patterns is not None and not kept:
                    matched = (now.session.remove_matching(one, timeout=10.0) for one in patterns)
                    return removed + sum(matched)
                for at in range(0, len(names), 4096):
                    removed += now.session.remove(names[at : at + 4096], timeout=5.0).ok_count
                # A list may miss what a disk moves meanwhile.
                if not names or not on_disk:
                    break
            return removed
        except kvcove.Error as error:
            _log.error("remove: %s", error)
            return code_of(error)

    @staticmethod
    def _removable(
        now: Open,
        wanted: Callable[[list[bytes]], list[bool]],
        force: bool,
        keep_pinned: bool,
        kept: set[bytes],
    ) -> tuple[list[bytes], bool]:
        """Return the wanted keys that may be removed, and whether a disk has any of them.

        ``kept`` gets those that must stay. They stay in a later pass, too, when a slow disk has let
        their leases end, or moves them so that a list misses them.
        """
        stored_now = list(now.session.stored(timeout=10.0))
        chosen = wanted([stored.key for stored in stored_now])
        found = [
            stored
            for stored, yes in zip(stored_now, chosen, strict=True)
            if yes and stored.key not in kept
        ]
        on_disk = any(stored.tier == "disk" for stored in found)
        if force:
            return [stored.key for stored in found], on_disk
        names = [
            stored.key
            for stored in found
            if not stored.held and not (keep_pinned and (stored.hard_pinned or stored.soft_pinned))
        ]
        free: list[bytes] = []
        for at in range(0, len(names), 4096):
            # A list may be older than the last reads; this asks for them.
            part = names[at : at + 4096]
            stats = now.session.stat(part, timeout=5.0)
            # What is not in memory, or not any more, nobody reads.
            free += [n for n, stat in zip(part, stats, strict=True) if not (stat and stat.held)]
        kept.update({stored.key for stored in found} - set(free))
        return free, on_disk

    def remove_all(self, force: bool = False) -> int:
        """Remove everything.

        Parameters
        ----------
        force : bool
            True: a reset. When it has answered, nothing whose put was begun before is found again,
            anywhere. False: what is leased or pinned is kept.

        Returns
        -------
        int
            How many, as the owners that answer say; negative when the reset failed. This store then
            finds and stores nothing until a reset is proven. One that is not proven is repeated; one
            that is refused (the token lacks the scope ``reset``) is not. Either is logged.

        Raises
        ------
        RuntimeError
            In place of the negative answer, with ``KVCOVE_RESET_UNPROVEN=raise``: for callers that do
            not look at the answer, as vLLM's MooncakeStoreConnector.
        """
        now = self._now
        if now is None:
            return UNSET
        if not force:
            return self._remove_found(
                lambda keys: [True] * len(keys), ["*"], force=False, keep_pinned=True
            )
        try:
            return now.native.reset(now.session)
        except kvcove.Error as error:
            code = code_of(error)
            refused = isinstance(error, (kvcove.DeniedError, kvcove.InvalidError))
            text = (
                f"remove_all(force=True) is not proven (code {code}: {error}); "
                f"{'it is refused, and not repeated' if refused else 'it is repeated until it is'}; "
                "this store finds and stores nothing until a reset is proven"
            )
            if now.raises_unproven:
                raise RuntimeError(text) from error
            # vLLM's MooncakeStoreConnector does not look at the answer.
            _log.error("%s", text)
            return code

    def batch_replica_clear(self, keys: Sequence[str], segment_name: str = "") -> list[str]:
        """Remove values that this store has put and nobody leases; returns the keys that went.

        With ``segment_name`` only the replicas there go; a value whose only one that is goes whole.
        """
        now = self._now
        if now is None or not keys:
            return []
        names = [octets(key) for key in keys]
        here = now.native.was_put_here(names)
        mine = list(dict.fromkeys(k for k, own in zip(names, here, strict=True) if own))
        gone: set[bytes] = set()
        if segment_name:
            mine, shared = self._only_there(now, mine, segment_name)
            gone = self._drop_replicas(now, shared, segment_name)
        codes = self.batch_remove(mine)
        gone |= {key for key, code in zip(mine, codes, strict=True) if code == 0}
        return [_text(key) for key in dict.fromkeys(names) if key in gone]

    def _only_there(
        self, now: Open, keys: list[bytes], segment: str
    ) -> tuple[list[bytes], dict[bytes, str]]:
        """Return the keys that only this segment has, and those of others with another's name."""
        alone, shared = [], {}
        try:
            found = self._places(now, keys)
        except kvcove.Error as error:
            _log.error("batch_replica_clear: %s", error)
            return [], {}
        for key, places in zip(keys, found, strict=True):
            others = [place for place in places if place != segment]
            if places == [segment]:
                alone.append(key)
            elif len(others) < len(places):
                shared[key] = others[0]
        return alone, shared

    def _drop_replicas(self, now: Open, shared: dict[bytes, str], segment: str) -> set[bytes]:
        """Remove the replicas that a segment has of values that others have too; those that went."""
        if not shared:
            return set()
        url = now.admin_url()
        names = {key: _native.stored_name(octets(key)) for key in shared}
        stats = now.session.stat(list(names.values()))
        free = [k for k, stat in zip(shared, stats, strict=True) if stat and not stat.held]
        items = [{**_item(now, names[key]), "to": shared[key]} for key in free]
        went = drop_replicas(url, segment, items, timeout=5.0) if url else [False] * len(free)
        cleared = [key for key, gone in zip(free, went, strict=True) if gone]
        # The owner tells the master a moment after it has dropped them.
        until = time.monotonic() + 1.0
        while cleared and time.monotonic() < until:
            if not any(segment in places for places in self._places(now, cleared)):
                break
            time.sleep(0.002)
        return set(cleared)

    # ---- tasks

    def create_copy_task(self, key: str, targets: Sequence[str]) -> tuple[tuple[int, int], int]:
        """Begin to copy a value to other segments: (task, 0) or ((0, 0), code)."""
        return self._create_task(TaskType.REPLICA_COPY, key, "", list(targets))

    def create_move_task(self, key: str, source: str, target: str) -> tuple[tuple[int, int], int]:
        """Begin to move a value from one segment to another: (task, 0) or ((0, 0), code)."""
        if not source:
            return (0, 0), INVALID
        return self._create_task(TaskType.REPLICA_MOVE, key, source, [target])

    def _create_task(
        self, kind: TaskType, key: str, source: str, targets: list[str]
    ) -> tuple[tuple[int, int], int]:
        now = self._now
        if now is None:
            return (0, 0), UNSET
        try:
            places = self._places(now, [key])[0]
        except kvcove.Error as error:
            return (0, 0), code_of(error)
        if not places:
            return (0, 0), int(Code.OBJECT_NOT_FOUND)
        if not targets or source in targets or (source and source not in places):
            return (0, 0), INVALID
        if not now.setup.master:
            return (0, 0), INVALID
        url = now.admin_url()
        if not url:
            _log.error("the master at %s has no admin endpoint: no copy, no move", now.setup.master)
            return (0, 0), int(Code.RPC_FAIL)
        # A copy to where the value is already has nothing to do, and is a task that is done.
        if not source:
            targets = [target for target in dict.fromkeys(targets) if target not in places]
        item = _item(now, _native.stored_name(octets(key)))
        return self._tasks.create(url, kind, source or places[0], targets, item)

    def query_task(self, task_id: tuple[int, int]) -> tuple[QueryTaskResponse | None, int]:
        """Return (the task's state, 0) or (None, -1400)."""
        return self._tasks.query(tuple(task_id))

    # ---- segments

    def mount_segment(
        self,
        path: str,
        size: int,
        offset: int = 0,
        protocol: str = "tcp",
        location: str = "",
    ) -> dict[str, Any]:
        """Give as much memory to the cluster as a file has; the file itself is not used."""
        try:
            if os.stat(path).st_size < offset + size:
                return {"ret": INVALID, "segment_ids": []}
        except OSError as error:
            _log.error("mount_segment(%r): %s", path, error)
            return {"ret": int(Code.FILE_NOT_FOUND), "segment_ids": []}
        _log.warning("mount_segment(%r): kvcove keeps values in memory of its own", path)
        answer = self.allocate_and_mount_segment(size, protocol, location)
        return {"ret": answer["ret"], "segment_ids": answer["segment_ids"]}

    def unmount_segment(self, segment_ids: Sequence[str], grace_period_seconds: int = 0) -> int:
        """Take memory back: 0, or -1 for a segment that is not there."""
        return self.unmount_and_free_segment(segment_ids, grace_period_seconds)

    def allocate_and_mount_segment(
        self, size: int, protocol: str = "tcp", location: str = ""
    ) -> dict[str, Any]:
        """Give ``size`` more bytes of this process to the cluster."""
        nothing: dict[str, Any] = {"segment_ids": [], "allocated_size": 0}
        now = self._now
        if now is None:
            return {"ret": UNSET, **nothing}
        if not isinstance(size, int) or size <= 0:
            return {"ret": INVALID, **nothing}
        if not now.setup.master:
            return {"ret": int(Code.UNAVAILABLE_IN_CURRENT_MODE), **nothing}
        try:
            owner = now.open_owner(size)
        except (kvcove.Error, OSError, ValueError) as error:
            _log.error("allocate_and_mount_segment(%d): %s", size, error)
            code = code_of(error) if isinstance(error, kvcove.Error) else INVALID
            return {"ret": code, **nothing}
        name = str(uuid.uuid4())
        with self._life:
            now.mounted[name] = owner
        return {"ret": 0, "segment_ids": [name], "allocated_size": size}

    def unmount_and_free_segment(
        self, segment_ids: Sequence[str], grace_period_seconds: int = 0
    ) -> int:
        """Take memory back: 0, or -1 for a segment that is not there."""
        now = self._now
        if now is None:
            return UNSET
        if grace_period_seconds < 0:
            return INVALID
        with self._life:
            if any(name not in now.mounted for name in segment_ids):
                return int(Code.INTERNAL_ERROR)
            owners = [now.mounted.pop(name) for name in segment_ids]
        time.sleep(grace_period_seconds)
        for owner in owners:
            owner.close()
        return 0

    def get_offload_rpc_read_count(self) -> int:
        """Return how many values this store has read from a disk."""
        return 0 if self._now is None else self._now.native.disk_reads()

    def unmount_local_disk_segment(self, grace_period_seconds: int = 0) -> int:
        """Let go of this store's disk: what lies on it only is found by nobody any more.

        Memory goes on. The next setup() with the same directory uses the disk again, and starts it
        empty: others may have stored other values under its keys meanwhile.

        Returns
        -------
        int
            0, also without a disk; -600 for a negative time, -1012 in an embedded pool.
        """
        now = self._now
        if now is None:
            return UNSET
        if grace_period_seconds < 0:
            return INVALID
        if now.disk is None:
            return 0
        if now.owner is None:
            return int(Code.NOT_SUPPORTED)
        time.sleep(grace_period_seconds)
        now.owner.unmount_disk()
        return 0


def _item(now: Open, name: bytes) -> dict[str, str]:
    """Return how the admin endpoint names a value."""
    tenant = now.setup.tenant_id
    return {
        "namespace": "mooncake" if tenant == "default" else f"mooncake/{tenant}",
        "key": name.decode("utf-8", "surrogateescape"),
    }


def _text(key: str | bytes | bytearray) -> str:
    """Return a key as that API gives it back."""
    return key if isinstance(key, str) else key.decode()


def _odd(key: str | bytes | bytearray) -> bool:
    """Whether a key may be stored under another name."""
    return len(key) > 200 or octets(key).startswith(b"kvcove-long-key-")


def _views(value: Any, of: str) -> list[memoryview]:
    """Return a value's parts as bytes."""
    if isinstance(value, list | tuple):
        return [view for part in value for view in _views(part, of)]
    try:
        view = memoryview(value)
    except TypeError:
        raise TypeError(
            f"{of}(): incompatible function arguments: a value is bytes or another buffer, not "
            f"{type(value).__name__}"
        ) from None
    if "O" in _NAMES_IN_FORMAT.sub("", view.format):
        raise TypeError(
            f"{of}(): incompatible function arguments: the {type(value).__name__} holds Python "
            "objects, whose bytes are addresses in this process; numbers are wanted, or bytes"
        )
    return [view if view.c_contiguous else memoryview(view.tobytes())]


def _first_error(codes: list[int]) -> int:
    return next((code for code in codes if code != 0), 0)
