# SPDX-License-Identifier: Apache-2.0
"""Bundles: members in chunks under one manifest.

``PREFIX/PARTITION/ID/manifest`` is a JSON object with the keys and sizes of all chunks; a member of one
chunk lies under ``.../buffer/NAME``, of several under ``.../buffer/NAME/chunk/N``. A put writes the
manifest last and removes what it wrote if a part of it fails, so that a manifest names only what was
stored. Thread-safe if the store is: nothing is kept between calls.
"""

from __future__ import annotations

import bisect
import concurrent.futures
import contextlib
import copy
import ctypes
import inspect
import json
import sys
import uuid
import weakref
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from typing import Any

import numpy

from kvcove.mooncake.structured.types import (
    MISSING_OBJECT_ERROR,
    BundleStore,
    BundleTransferPolicy,
    RemoteBundleRef,
)

__all__ = [
    "Bundles",
    "Pieces",
    "bytes_of",
    "checked_segment",
    "fragments_of",
    "group_of",
    "let_go",
    "read_ranges",
]

_LARGEST_CHUNK = 256 << 20  # the pool's limit for a value
_PARTS = {"version", "layout", "object_id", "meta", "buffers", "superseded"}  # of a manifest

_REMOVED = (0, MISSING_OBJECT_ERROR)  # what a removal answers for a key that is not there any more

Pieces = list[Any]  # arrays of bytes that lie one behind the other in a member


def bytes_of(value: Any, name: str) -> Any:
    """Return the bytes of a value as an array, without a copy where they are contiguous.

    Raises
    ------
    TypeError
        It has no bytes.
    """
    if isinstance(value, numpy.ndarray) and value.dtype != object:
        # An array of strings has bytes, but gives no buffer; a view of uint8 does.
        return numpy.ascontiguousarray(value).reshape(-1).view(numpy.uint8)
    try:
        view = memoryview(value)
    except TypeError:
        raise TypeError(f"{name} must be bytes-like, got {type(value).__name__}") from None
    if not view.c_contiguous:
        view = memoryview(view.tobytes())
    return numpy.frombuffer(view, dtype=numpy.uint8)


def checked_segment(value: Any, what: str) -> str:
    """Return a part of a key.

    Raises
    ------
    ValueError
        It is no string, is empty, or would be several parts.
    """
    if not isinstance(value, str) or not value or "/" in value or value in (".", ".."):
        raise ValueError(f"invalid bundle {what}: {value!r}")
    return value


def group_of(config: Any) -> str | None:
    """Return the one group that a configuration names; empty: the objects have no group.

    Raises
    ------
    ValueError
        It names several, or what is no text.
    """
    given = getattr(config, "group_ids", None)
    groups = [given] if isinstance(given, str) else list(() if given is None else given)
    if len(groups) > 1:
        raise ValueError(
            "structured object store config.group_ids must contain exactly one logical "
            "group id; it is expanded across internal Mooncake keys"
        )
    if groups and not isinstance(groups[0], str):
        raise ValueError("structured object store config.group_ids must contain strings")
    return groups[0] if groups else None


def _cut(pieces: Pieces, chunk_bytes: int) -> list[Pieces]:
    """Cut pieces into chunks of at most so many bytes."""
    chunks: list[Pieces] = []
    room = 0
    for piece in pieces:
        at = 0
        while at < piece.size:
            if room == 0:
                chunks.append([])
                room = chunk_bytes
            part = piece[at : at + room]
            chunks[-1].append(part)
            at += part.size
            room -= part.size
    return chunks


# The bytes of pools' buffers in which something that was read lies, by their addresses.
_lent: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()


def _lent_array(lease: Any, size: int) -> Any:
    """Return the bytes of a lease as an array; the lease ends when the last view of them has gone."""
    address = int(lease.ptr)
    memory: Any = (ctypes.c_ubyte * size).from_address(address)
    weakref.finalize(memory, lease.release).atexit = False
    _lent[address] = memory
    return numpy.frombuffer(memory, dtype=numpy.uint8)


def let_go(result: Any) -> None:
    """Put None in place of what lies in a pool's buffers: in mappings, lists, tuples and columns."""
    lent = sorted((at, at + len(memory)) for at, memory in list(_lent.items()))
    if not lent:
        return

    def is_lent(address: int) -> bool:
        i = bisect.bisect_right(lent, (address, sys.maxsize)) - 1
        return i >= 0 and address < lent[i][1]

    if not isinstance(result, MutableMapping | list):
        for name in ("batch", "non_tensor_batch", "objects"):
            _kept(getattr(result, name, None), is_lent)
    _kept(result, is_lent)


def _kept(value: Any, is_lent: Callable[[int], bool]) -> Any:
    """Return a value without what is lent: None, or itself where its parts can be replaced."""
    if isinstance(value, numpy.ndarray) and value.dtype != object:
        return None if value.size and is_lent(int(value.ctypes.data)) else value
    if hasattr(value, "data_ptr") and not isinstance(value, MutableMapping):
        elements = value.values() if getattr(value, "is_nested", False) else value
        return None if elements.numel() and is_lent(elements.data_ptr()) else value
    if type(value) is tuple:
        kept = tuple(_kept(one, is_lent) for one in value)
        return value if all(a is b for a, b in zip(kept, value, strict=True)) else kept
    parts: Iterable[tuple[Any, Any]] = ()
    if isinstance(value, MutableMapping):
        parts = list(value.items())
    elif isinstance(value, list):
        parts = enumerate(value)
    elif isinstance(value, numpy.ndarray):
        parts = numpy.ndenumerate(value)
    for where, one in parts:
        left = _kept(one, is_lent)
        if left is not one:
            value[where] = left
    return value


class Bundles:
    """The bundles of a store under one prefix.

    With a buffer pool, what is read lies in its buffers while it has free ones, else in memory of its
    own: a read never waits for a buffer, unless the pool's ``acquire`` has no ``block`` and waits. A
    buffer goes back when the last view of it has gone.
    """

    def __init__(
        self, store: BundleStore, prefix: str, chunk_bytes: int, buffer_pool: Any = None
    ) -> None:
        self.store: Any = store
        self._pool = buffer_pool
        acquire = getattr(buffer_pool, "acquire", None)
        self._unblocked = {"block": False} if _takes(acquire, "block") else {}
        self.prefix = prefix.strip("/")
        if not self.prefix:
            raise ValueError("key_prefix must be a non-empty key prefix")
        self.chunk_bytes = self._chunk_bytes(chunk_bytes)
        # A store of a few lines has neither batches nor a configuration of a put; a stand-in may have
        # None in their place.
        self._batches = _has(store, "batch_put_from_multi_buffers")
        # Reads into memory need memory that is registered.
        self._ranges = all(
            _has(store, name)
            for name in (
                "get_into_ranges",
                "batch_get_into",
                "register_buffer",
                "unregister_buffer",
            )
        )
        self._configured = self._batches or _takes(getattr(store, "put", None), "config")

    @staticmethod
    def _chunk_bytes(value: int) -> int:
        if value <= 0:
            raise ValueError("chunk_bytes must be positive")
        return min(value, _LARGEST_CHUNK)

    # ---- put

    def put(
        self,
        members: Mapping[str, Pieces],
        *,
        meta: bytes,
        partition: str,
        chunk_bytes: int | None = None,
        policy: BundleTransferPolicy | None = None,
        config: Any = None,
        carried: Mapping[str, Any] | None = None,
        superseded: Sequence[str] = (),
    ) -> RemoteBundleRef:
        """Store members and metadata.

        Parameters
        ----------
        members : mapping
            The bytes of each member.
        meta : bytes
            Describes the members to the reader.
        partition : str
            A part of the keys.
        chunk_bytes, policy, config : optional
            As in the constructor, :class:`BundleTransferPolicy`, the store's ``ReplicateConfig``.
        carried : mapping, optional
            Members that another manifest names, and this one, too: their entries there.
        superseded : sequence of str
            Keys that are removed when this bundle is.

        Raises
        ------
        RuntimeError
            The store refused a part, or cannot put without a copy as ``policy`` demands. Whatever is
            raised, also by the store: what was written is removed.
        """
        policy = (policy or BundleTransferPolicy()).checked()
        if policy.copy_mode == "zero_copy" and not self._batches:
            raise RuntimeError(
                "a zero-copy put is not possible: the store has no batch_put_from_multi_buffers "
                "(copy_mode='auto' copies)"
            )
        group_of(config)  # what is wrong with it is said before anything is written
        size = self.chunk_bytes if chunk_bytes is None else self._chunk_bytes(chunk_bytes)
        object_id = f"{checked_segment(partition, 'partition')}/{uuid.uuid4().hex}"
        manifest, writes = self._planned(object_id, members, meta, size)
        manifest["buffers"] = {**(carried or {}), **manifest["buffers"]}
        if superseded:
            manifest["superseded"] = list(superseded)
        key = f"{self.prefix}/{object_id}/manifest"
        text = json.dumps(manifest, separators=(",", ":")).encode()
        try:
            self._write(writes, policy, config)
            self._write([(key, [bytes_of(text, "manifest")])], policy, config)
        except BaseException:
            # A store that raises does not say what it has stored.
            self._remove_quietly([*(one for one, _ in writes), key])
            raise
        return RemoteBundleRef(key, manifest)

    def _planned(
        self, object_id: str, members: Mapping[str, Pieces], meta: bytes, chunk_bytes: int
    ) -> tuple[dict[str, Any], list[tuple[str, Pieces]]]:
        """Return a bundle's manifest, and the objects that are written before it."""
        root = f"{self.prefix}/{object_id}"
        writes: list[tuple[str, Pieces]] = []
        entry = self._entry(f"{root}/meta", [bytes_of(meta, "meta")], chunk_bytes, writes)
        buffers = {}
        for name, pieces in members.items():
            checked_segment(name, "buffer name")
            buffers[name] = self._entry(f"{root}/buffer/{name}", pieces, chunk_bytes, writes)
        manifest = {
            "version": 1,
            "layout": "bundle",
            "object_id": object_id,
            "meta": entry,
            "buffers": buffers,
        }
        return manifest, writes

    @staticmethod
    def _entry(
        key: str, pieces: Pieces, chunk_bytes: int, writes: list[tuple[str, Pieces]]
    ) -> dict[str, Any]:
        chunks = _cut(pieces, chunk_bytes)
        names = [key] if len(chunks) == 1 else [f"{key}/chunk/{i}" for i in range(len(chunks))]
        writes += zip(names, chunks, strict=True)
        sizes = [sum(part.size for part in chunk) for chunk in chunks]
        described = [{"key": n, "bytes": s} for n, s in zip(names, sizes, strict=True)]
        return {"key": key, "bytes": sum(sizes), "chunks": described}

    def _write(
        self, writes: list[tuple[str, Pieces]], policy: BundleTransferPolicy, config: Any
    ) -> None:
        groups = [writes]
        if policy.put_mode == "parallel" and policy.max_inflight_put > 1:
            groups = [writes[i :: policy.max_inflight_put] for i in range(policy.max_inflight_put)]
        groups = [group for group in groups if group]
        if len(groups) > 1:
            with concurrent.futures.ThreadPoolExecutor(len(groups)) as pool:
                answers = list(pool.map(lambda group: self._write_group(group, config), groups))
        else:
            answers = [self._write_group(group, config) for group in groups]
        done = [
            (one[0], answer)
            for group, codes in zip(groups, answers, strict=True)
            for one, answer in zip(group, codes, strict=False)
        ]
        failed = next(((key, code) for key, code in done if code != 0), None)
        if failed is not None:
            raise RuntimeError(f"put failed for {failed[0]}: {failed[1]}")

    def _write_group(self, group: list[tuple[str, Pieces]], config: Any) -> list[int]:
        """Return a code for each write, up to the first that failed where they go one by one."""
        if self._batches:
            pointers = [[part.ctypes.data for part in pieces] for _, pieces in group]
            sizes = [[part.size for part in pieces] for _, pieces in group]
            more = () if config is None else (_grouped(config, len(group)),)
            keys = [key for key, _ in group]
            put = self.store.batch_put_from_multi_buffers
            return list(put(keys, pointers, sizes, *more))
        codes: list[int] = []
        for key, pieces in group:
            value = memoryview(pieces[0]) if len(pieces) == 1 else _joined(pieces)
            if config is None or not self._configured:
                codes.append(self.store.put(key, value))
            else:
                codes.append(self.store.put(key, value, config=_grouped(config, 1)))
            if codes[-1] != 0:
                break
        return codes

    # ---- get

    def resolve(self, ref: RemoteBundleRef | Mapping[str, Any]) -> RemoteBundleRef:
        """Return a reference with its manifest.

        Raises
        ------
        ValueError
            It names no manifest, or the manifest names what is not the bundle's.
        RuntimeError
            The manifest is not in the pool.
        """
        if isinstance(ref, Mapping):
            key, manifest = ref.get("manifest_key"), ref.get("manifest")
        else:
            key, manifest = ref.manifest_key, ref.manifest
        if not isinstance(key, str) or not key:
            raise ValueError("bundle ref must include manifest_key")
        if manifest:
            return RemoteBundleRef(key, self._checked(key, dict(manifest)))
        text = bytes(self.store.get(key))
        if not text:
            raise RuntimeError(f"get failed for {key}: the manifest is not in the pool")
        try:
            manifest = json.loads(text)
        except ValueError as error:
            raise RuntimeError(f"{key} is no manifest: {error}") from error
        return RemoteBundleRef(key, self._checked(key, manifest))

    def _checked(self, key: str, manifest: Any) -> dict[str, Any]:
        """Return a manifest that is this key's and names keys of this prefix only.

        A removal would take away, and a read would show, what others have put.
        """
        try:
            own = f"{self.prefix}/{manifest['object_id']}/manifest"
            named = self.keys(manifest, key)
            unknown = sorted(set(manifest) - _PARTS)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{key} is no manifest of a bundle: {error!r}") from error
        if unknown:
            # A removal would leave behind the objects that they name.
            raise ValueError(f"{key} has parts that this version does not know: {unknown}")
        if key != own:
            raise ValueError(f"bundle manifest_key {key} does not match its object: {own}")
        for one in named:
            if not isinstance(one, str) or not one.startswith(f"{self.prefix}/"):
                raise ValueError(f"{key}: {one!r} is outside the bundle namespace {self.prefix}/")
        assert isinstance(manifest, dict)
        return manifest

    def memory(self, size: int) -> Any:
        """Return an array of uint8 for what is read."""
        if self._pool is not None and size > 0:
            try:
                return _lent_array(self._pool.acquire(size, **self._unblocked), size)
            except RuntimeError:  # it is closed, or has no such buffer to spare
                pass
        return numpy.empty(size, dtype=numpy.uint8)

    def read(self, entry: Mapping[str, Any], *, in_pool: bool = False) -> Any:
        """Return all bytes of a member as an array of uint8, writable; ``in_pool``: as :meth:`memory`."""
        size = entry["bytes"]
        into = self.memory(size) if in_pool else numpy.empty(size, dtype=numpy.uint8)
        self.read_into(entry, [(0, entry["bytes"])], into.ctypes.data, into)
        return into

    def read_into(
        self,
        entry: Mapping[str, Any],
        ranges: Sequence[tuple[int, int]],
        address: int,
        owner: Any,
    ) -> None:
        """Copy ranges (offset, bytes) of a member to an address, one behind the other.

        ``owner`` keeps the memory. Raises RuntimeError if a chunk is not there or is shorter.
        """
        total = sum(chunk["bytes"] for chunk in entry["chunks"])
        if total != entry["bytes"] or any(not 0 <= a <= a + n <= total for a, n in ranges):
            raise RuntimeError(f"{entry['key']}: its manifest does not cover what it describes")
        whole = len(ranges) == 1 and ranges[0] == (0, entry["bytes"])
        if whole and self._ranges:
            self._read_whole(entry["chunks"], address)
            return
        wanted = fragments_of(entry["chunks"], ranges, address)
        if wanted and self._ranges:
            self._read_ranges(wanted, address)
            return
        for key, size, parts in wanted:
            value = numpy.frombuffer(self.store.get(key), dtype=numpy.uint8)
            if value.size != size:
                raise _short(key, size, int(value.size))
            for target, at, count in parts:
                _copy(target, value[at : at + count])

    def _read_whole(self, chunks: Sequence[Mapping[str, Any]], address: int) -> None:
        if not chunks:
            return
        keys = [chunk["key"] for chunk in chunks]
        sizes = [chunk["bytes"] for chunk in chunks]
        at = [address + sum(sizes[:i]) for i in range(len(sizes))]
        answers = self.store.batch_get_into(keys, at, sizes)
        for key, size, answer in zip(keys, sizes, answers, strict=True):
            if answer != size:
                raise _short(key, size, answer)

    def _read_ranges(
        self, wanted: list[tuple[str, int, list[tuple[int, int, int]]]], address: int
    ) -> None:
        end = max(target + count for _, _, parts in wanted for target, _, count in parts)
        # Ranges go into registered memory only; what the caller has registered stays so.
        registered = self.store.register_buffer(address, end - address) == 0
        relative = [
            (key, [(target - address, at, count) for target, at, count in parts])
            for key, _, parts in wanted
        ]
        try:
            read_ranges(self.store, [(address, relative)])
        finally:
            if registered:
                self.store.unregister_buffer(address)

    # ---- remove

    @staticmethod
    def keys(manifest: Mapping[str, Any], manifest_key: str) -> list[str]:
        """Return all keys of a bundle, the manifest's last."""
        entries = [manifest["meta"], *manifest["buffers"].values()]
        chunks = [chunk["key"] for entry in entries for chunk in entry["chunks"]]
        return [*chunks, *manifest.get("superseded", ()), manifest_key]

    def remove(self, ref: RemoteBundleRef | Mapping[str, Any]) -> None:
        """Remove a bundle; one that is not there is removed already.

        Raises
        ------
        RuntimeError
            A key could not be removed.
        """
        try:
            found = self.resolve(ref)
        except RuntimeError:
            return
        keys = self.keys(found.manifest, found.manifest_key)
        # Without its manifest nobody would find what could not be removed this time.
        self.remove_keys(keys[:-1])
        self.remove_keys(keys[-1:])

    def remove_keys(self, keys: Sequence[str]) -> None:
        """Remove keys, also while they are read; one that fails in a batch gets a second attempt.

        Raises
        ------
        RuntimeError
            One could not be removed.
        """
        failed: Sequence[str] = keys
        if len(keys) > 1 and _has(self.store, "batch_remove"):
            codes = self.store.batch_remove(list(keys), True)
            failed = [k for k, c in zip(keys, codes, strict=True) if c not in _REMOVED]
        answers = [(key, self.store.remove(key, True)) for key in failed]
        left = [one for one in answers if one[1] not in _REMOVED]
        if left:
            raise RuntimeError(f"failed to remove {len(left)} Mooncake keys: {left}")

    def _remove_quietly(self, keys: Sequence[str]) -> None:
        # The caller learns why the put failed; what could not be removed is evicted in time.
        for one in [keys] if _has(self.store, "batch_remove") else [[key] for key in keys]:
            with contextlib.suppress(Exception):
                self.remove_keys(one)


def _has(store: Any, name: str) -> bool:
    return callable(getattr(store, name, None))


def _takes(call: Any, name: str) -> bool:
    """Whether a function takes an argument of this name."""
    try:
        parameters = inspect.signature(call).parameters.values()
    except (TypeError, ValueError):
        return False
    return any(one.name == name or one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters)


def _grouped(config: Any, count: int) -> Any:
    """Return a configuration with its one group for each key, or with none."""
    if getattr(config, "group_ids", None) is None:
        return config
    group = group_of(config)
    many = copy.copy(config)
    many.group_ids = None if group is None else [group] * count
    return many


def _joined(pieces: Pieces) -> bytes:
    return b"".join(memoryview(piece) for piece in pieces)


def _copy(address: int, value: Any) -> None:
    ctypes.memmove(address, value.ctypes.data, value.size)


def _short(key: str, wanted: int, got: int) -> RuntimeError:
    return RuntimeError(f"get failed for {key}: expected {wanted} bytes, got {got}")


def read_ranges(
    store: Any,
    reads: Sequence[tuple[int, Sequence[tuple[str, Sequence[tuple[int, int, int]]]]]],
) -> None:
    """Read parts of values into registered memory, in one call of the store.

    ``reads`` has for each address the keys, and of each (offset from the address, offset in the value,
    bytes). Raises RuntimeError if a part is not there.
    """

    def column(at: int) -> list[list[list[int]]]:
        return [[[part[at] for part in parts] for _, parts in wanted] for _, wanted in reads]

    answers = store.get_into_ranges(
        [address for address, _ in reads],
        [[key for key, _ in wanted] for _, wanted in reads],
        column(0),
        column(1),
        column(2),
    )
    for (_, wanted), got in zip(reads, answers, strict=True):
        for (key, parts), codes in zip(wanted, got, strict=True):
            for (_, _, count), answer in zip(parts, codes, strict=True):
                if answer != count:
                    raise _short(key, count, answer)


def fragments_of(
    chunks: Sequence[Mapping[str, Any]], ranges: Sequence[tuple[int, int]], address: int
) -> list[tuple[str, int, list[tuple[int, int, int]]]]:
    """Return for each chunk that is needed: key, bytes, and (address, offset in it, bytes)."""
    found: dict[int, list[tuple[int, int, int]]] = {}
    starts = numpy.cumsum([0, *(chunk["bytes"] for chunk in chunks)])
    for offset, size in ranges:
        at, left = offset, size
        chunk = int(numpy.searchsorted(starts, at, side="right")) - 1
        while left > 0:
            inside = at - int(starts[chunk])
            count = min(left, int(starts[chunk + 1]) - at)
            found.setdefault(chunk, []).append((address, inside, count))
            address, at, left, chunk = address + count, at + count, left - count, chunk + 1
    return [(chunks[i]["key"], chunks[i]["bytes"], found[i]) for i in sorted(found)]
