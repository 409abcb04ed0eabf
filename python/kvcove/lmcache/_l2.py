# SPDX-License-Identifier: Apache-2.0
"""The L2 adapter of LMCache's server. Its controllers call it: one thread stores, one looks up and loads."""

from __future__ import annotations

import hashlib
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from lmcache.lmcache_native import Bitmap
from lmcache.logging import init_logger
from lmcache.v1.distributed.api import EncodedObjectKey, KeyEntry, KeyListPage
from lmcache.v1.distributed.internal_api import L2StoreResult
from lmcache.v1.distributed.l2_adapters.base import L2AdapterInterface
from lmcache.v1.memory_management import MemoryFormat

import kvcove
from kvcove import Memory, _native
from kvcove.lmcache import _clear
from kvcove.lmcache._account import Account
from kvcove.lmcache._config import Config
from kvcove.lmcache._spaces import Begun, Spaces, leave_facts
from kvcove.lmcache._tasks import Part, Task, Tasks
from kvcove.lmcache._versions import installed_version

__all__ = ["KvcoveL2Adapter"]

_log = init_logger("lmcache.kvcove")
_BATCH = 128  # objects that one timeout is for
_OK = _native.Code.OK.value
_MISS = _native.Code.MISS.value
_GONE = frozenset(
    reason.value
    for reason in (
        *(_native.MissReason.NEVER_PUT, _native.MissReason.EVICTED, _native.MissReason.REMOVED),
        *(_native.MissReason.RESET, _native.MissReason.OWNER_GONE),
        _native.MissReason.DISK_DAMAGED,
    )
)
_STORED = frozenset(
    {
        _OK,
        _native.Code.EXISTS.value,
        _native.Code.IN_PROGRESS.value,  # another server puts the same object at this moment
        _native.Code.NOT_LISTED.value,
    }
)
_SERIALIZED = frozenset({MemoryFormat.BINARY, MemoryFormat.BINARY_BUFFER})
_CLOSE_S = 30.0
_MARK = b"m"  # behind the epoch of a key; an engine's in process has another one
_MOST_WRITES = 1 << 17  # writes that have begun and have not been stored
_CHECKED_FROM = 1 << 16  # counted objects from which on the oldest ones are looked up


class KvcoveL2Adapter(L2AdapterInterface):
    """LMCache's L2 in a kvcove pool.

    Thread-safe. No call raises because of the pool: a pool that is slow or away is a miss, and an object that is not
    stored.
    """

    def __init__(self, config: Mapping[str, Any], l1_memory_desc: Any = None) -> None:
        """Open the pool.

        Parameters
        ----------
        config : mapping
            ``adapter_params``.
        l1_memory_desc : L1MemoryDesc, optional
            The pool needs no registered memory.

        Raises
        ------
        ValueError
            A setting is wrong.
        kvcove.Error
            The pool does not answer, with ``on_unreachable: crash``.
        """
        capacity = config.get("max_capacity_gb", 0)
        if isinstance(capacity, bool) or not isinstance(capacity, int | float) or capacity < 0:
            raise ValueError(
                f"kvcove: adapter_params: max_capacity_gb: {capacity!r}: give 0 or more"
            )
        super().__init__(max_capacity_bytes=int(capacity * (1 << 30)))
        settings = {key: value for key, value in config.items() if key != "max_capacity_gb"}
        self.config = Config.of(settings, "adapter_params")
        self._spaces = Spaces(self.config)
        self._stores, self._lookups, self._loads = Tasks(), Tasks(), Tasks()
        self._completed_lookups: dict[int, Any] = {}
        self._completed_loads: dict[int, Any] = {}
        self._completed_lock = threading.Lock()
        # Of a model's group on a rank, as look-ups say it.
        self._layouts: dict[tuple[str, int, int], bytes] = {}
        self._told: set[str] = set()  # models whose facts are in the pool
        self._clears = 0
        self._clearing = False
        self._clear_lock = threading.Lock()
        self._begun: OrderedDict[Any, Begun] = OrderedDict()
        self._begun_lock = threading.Lock()
        self._account = Account(self._notify_keys_stored, self._notify_keys_deleted)
        self._counts: Counter[str] = Counter()
        _clear.observe_server()

    # ---- events

    def get_store_event_fd(self) -> int:
        """Return the descriptor that is readable when a store has ended."""
        return self._stores.fileno()

    def get_lookup_and_lock_event_fd(self) -> int:
        """Return the descriptor that is readable when a look-up has ended."""
        return self._lookups.fileno()

    def get_load_event_fd(self) -> int:
        """Return the descriptor that is readable when a load has ended."""
        return self._loads.fileno()

    # ---- keys

    def _parts(
        self,
        keys: Sequence[Any],
        layout_of: Callable[[int], bytes | None],
        writes: Sequence[Begun | None] | None = None,
    ) -> list[Part]:
        """Return the pool's keys of LMCache's, those of a namespace together as long as they follow each other.

        ``layout_of`` gives the layout of the item at a place, which stands for the ones of its group. ``writes`` says
        of each item of a store when its write began; one that a clear has overtaken since is left out.
        """
        parts: list[Part] = []
        if self._clearing:
            return parts
        part: Part | None = None
        prefix: bytes | None = None
        model = salt = rank = group = write = None
        stale = 0
        names: list[bytes] = []
        for place, key in enumerate(keys):
            begun = None if writes is None else writes[place]
            if (
                key.kv_rank != rank
                or key.object_group_id != group
                or key.cache_salt != salt
                or key.model_name != model
                or begun is not write
            ):
                rank, group, salt, model, write = (
                    *(key.kv_rank, key.object_group_id),
                    *(key.cache_salt, key.model_name, begun),
                )
                layout = layout_of(place)
                found = self._spaces.at(model, salt, proven=writes is None)
                fresh = writes is None or (
                    begun is not None and found is not None and begun.epoch == found[1]
                )
                prefix = None
                if layout is not None and found is not None and fresh:
                    space, epoch = found
                    token = None if begun is None else begun.token
                    prefix = b"%s%s%s%08x.%x." % (epoch, _MARK, layout, rank, group)
                    if part is None or part.space is not space or part.token != token:
                        part = Part(space, place, token)
                        parts.append(part)
                        names = part.names
                else:
                    part = None  # the next items begin another part
            if prefix is not None:
                names.append(prefix + key.chunk_hash)
            elif not fresh:
                stale += 1
        self._counts["stale_stores"] += stale
        return parts

    def _layout_of_objects(
        self, keys: Sequence[Any], objects: Sequence[Any]
    ) -> Callable[[int], bytes | None]:
        def layout(place: int) -> bytes | None:
            key, meta = keys[place], objects[place].metadata
            if meta.fmt in _SERIALIZED:
                # A serde's bytes have no layout of KV: the one that look-ups ask for counts.
                return self._layouts.get(_group_of(key))
            found = _layout(meta.shapes or [meta.shape], meta.dtypes or [meta.dtype])
            self._layouts[_group_of(key)] = found
            return found

        return layout

    def _timeout(self, items: int) -> float:
        return self.config.timeout_ms / 1e3 * max(1, -(-items // _BATCH))

    # ---- stores

    def begin_writes(self, keys: Sequence[Any]) -> dict[tuple[str, str], Begun | None]:
        """Return what a store must carry of KV that is written from now on, for each model and salt of the keys."""
        used = {(key.model_name, key.cache_salt) for key in keys}
        return {each: self._spaces.begin(*each) for each in used}

    def note_writes(
        self, keys: Iterable[Any], begun: Mapping[tuple[str, str], Begun | None]
    ) -> None:
        """Note it for the keys whose writes have begun, until they are stored.

        LMCache stores an object some time after it was written, and a clear may come in between, also another
        server's, which does not empty this one's L1. A store of a key that is not noted is not made.
        """
        with self._begun_lock:
            for key in keys:
                self._begun.pop(key, None)
                now = begun.get((key.model_name, key.cache_salt))
                if now is not None:
                    self._begun[key] = now
            while len(self._begun) > _MOST_WRITES:
                self._begun.popitem(last=False)

    def submit_store_task(self, keys: Sequence[Any], objects: Sequence[Any]) -> int:
        """Begin to store objects."""
        clears = self._clears  # before anything else: a clear from here on is noticed
        with self._begun_lock:
            taken = {key: self._begun.pop(key, None) for key in dict.fromkeys(keys)}
        parts = self._parts(
            keys, self._layout_of_objects(keys, objects), [taken[key] for key in keys]
        )

        def start(queue: _native.Queue, part: Part) -> int:
            mine = objects[part.first : part.first + len(part.names)]
            part.sizes = [each.get_size() for each in mine]
            values = [
                Memory(each.data_ptr, size) for each, size in zip(mine, part.sizes, strict=True)
            ]
            timeout, session = self._timeout(len(mine)), part.space.session
            return queue.start_put(session, part.names, values, part.token, None, None, timeout)

        return self._stores.submit(keys, objects, clears, parts, start)

    def pop_completed_store_tasks(self) -> dict[int, Any]:
        """Return the stores that have ended."""
        return {task.number: self._stored(task) for task in self._stores.take()}

    def _stored(self, task: Task) -> Any:
        total, whole = 0, sum(len(part.names) for part in task.parts) == len(task.keys)
        for part in task.parts:
            codes = [] if part.results is None else part.results.codes.tolist()
            whole = whole and len(codes) > 0 and all(code in _STORED for code in codes)
            new = [i for i, code in enumerate(codes) if code == _OK]
            sizes = [part.sizes[i] for i in new]
            total += sum(sizes)
            if new:
                # A clear has voided the objects of stores that it overtook.
                self._account.store(
                    [task.keys[part.first + i] for i in new],
                    sizes,
                    lambda: task.clears == self._clears,
                )
                self._check_oldest(2 * len(new))
        self._counts["stored_objects" if whole else "failed_stores"] += (
            len(task.keys) if whole else 1
        )
        self._counts["stored_bytes"] += total
        return L2StoreResult(whole, total)

    def _check_oldest(self, count: int) -> None:
        """Look up the objects that were counted first, twice as many as were stored.

        The pool notifies nobody of what it evicts, so the objects that nobody asks for would be counted for ever.
        """
        if len(self._account) <= _CHECKED_FROM:
            return
        keys = self._account.oldest(count)
        for part in self._parts(keys, lambda at: self._layouts.get(_group_of(keys[at]))):
            mine = keys[part.first : part.first + len(part.names)]
            try:
                results = part.space.session.exists(
                    part.names, timeout=self.config.lookup_timeout_ms / 1e3
                )
            except kvcove.Error as error:
                _log.debug("kvcove: evicted objects are still counted: %s", error)
                return
            self._account.forget(_gone(mine, results))

    # ---- look-ups

    def submit_lookup_and_lock_task(
        self, keys: Sequence[Any], group_layout_descs: Mapping[int, Any]
    ) -> int:
        """Begin to look objects up, and to hold what is there until it is loaded."""

        def layout(place: int) -> bytes | None:
            key = keys[place]
            given = group_layout_descs.get(key.object_group_id)
            if given is None:
                return self._layouts.get(_group_of(key))
            found = _layout(given.shapes, given.dtypes)
            self._layouts[_group_of(key)] = found
            if key.model_name not in self._told:
                self._leave_facts(key, group_layout_descs)
            return found

        clears = self._clears
        parts = self._parts(keys, layout)
        hold_s, timeout = self.config.hold_s, self.config.lookup_timeout_ms / 1e3
        if not self._spaces.on_this_host:
            return self._lookups.submit(
                *(keys, (), clears, parts),
                lambda queue, part: queue.start_keys(
                    part.space.session, "hold", part.names, hold_s, "", timeout
                ),
            )
        # The index is in shared memory: to look is cheaper than to hand the work to another thread.
        for part in parts:
            try:
                part.results = part.space.session.hold(part.names, hold_s, timeout=timeout)
            except kvcove.Error as error:
                _log.debug("kvcove: a look-up failed: %s", error)
        return self._lookups.ended(keys, clears, parts)

    def query_lookup_and_lock_result(self, task_id: int) -> Any:
        """Return once which objects are there, None as long as nobody knows."""
        return self._answer(self._lookups, self._completed_lookups, task_id, self._looked_up)

    def _looked_up(self, task: Task) -> Any:
        found = self._found(task)
        self._counts["looked_up_objects"] += len(task.keys)
        self._counts["found_objects"] += len(task.keys) if found is True else sum(found)
        return _bitmap(found, len(task.keys))

    def _answer(
        self, tasks: Tasks, completed: dict[int, Any], number: int, of: Callable[[Task], Any]
    ) -> Any:
        """Return the answer of a task, and keep those of others that have ended.

        LMCache may have asked for these before it asks for this one, so they are announced again: their own
        events are taken with them.
        """
        with self._completed_lock:
            if number in completed:
                return completed.pop(number)
        ended = {task.number: of(task) for task in tasks.take()}
        answer = ended.pop(number, None)
        if ended:
            with self._completed_lock:
                completed.update(ended)
            tasks.announce()
        return answer

    def _found(self, task: Task) -> Any:
        """Return True where all items of a task are there, else one truth for each."""
        if task.clears != self._clears or self._clearing:
            return [False] * len(task.keys)
        if len(task.parts) == 1 and len(task.parts[0].names) == len(task.keys):
            results = task.parts[0].results
            if results is not None and results.all_ok:
                return True
        found = [False] * len(task.keys)
        for part in task.parts:
            if part.results is None:
                continue
            there = [code == _OK for code in part.results.codes]
            found[part.first : part.first + len(there)] = there
            # LMCache's quotas shall count the objects that are there.
            if len(self._account) and not all(there):
                mine = task.keys[part.first : part.first + len(there)]
                self._account.forget(_gone(mine, part.results))
        return found

    def submit_unlock(self, keys: Sequence[Any]) -> None:
        """Do nothing: a hold ends by itself, and is no lock on anything that others could wait for."""

    # ---- loads

    def submit_load_task(self, keys: Sequence[Any], objects: Sequence[Any]) -> int:
        """Begin to read objects into LMCache's buffers."""

        def start(queue: _native.Queue, part: Part) -> int:
            mine = objects[part.first : part.first + len(part.names)]
            part.sizes = [each.get_size() for each in mine]
            buffers = [
                Memory(each.data_ptr, size) for each, size in zip(mine, part.sizes, strict=True)
            ]
            return queue.start_get_into(
                part.space.session, part.names, buffers, "", self._timeout(len(mine))
            )

        clears = self._clears
        parts = self._parts(keys, self._layout_of_objects(keys, objects))
        return self._loads.submit(keys, objects, clears, parts, start)

    def query_load_result(self, task_id: int) -> Any:
        """Return once which objects were read, None as long as bytes may still land in their buffers."""
        return self._answer(self._loads, self._completed_loads, task_id, self._loaded)

    def _loaded(self, task: Task) -> Any:
        loaded = [False] * len(task.keys)
        if task.clears == self._clears and not self._clearing:
            for part in task.parts:
                if part.results is not None:
                    loaded[part.first : part.first + len(part.names)] = self._read(task, part)
        all_there = all(loaded)
        read = (
            list(task.keys)
            if all_there
            else [key for key, ok in zip(task.keys, loaded, strict=True) if ok]
        )
        self._counts["loaded_objects"] += len(read)
        self._counts["failed_loads"] += len(loaded) - len(read)
        if read:
            self._notify_keys_accessed(read)
        return _bitmap(all_there or loaded, len(loaded))

    @staticmethod
    def _read(task: Task, part: Part) -> list[bool]:
        """Return which items of a part are whole: KV fills its buffer, a serde's bytes may be shorter."""
        sizes = part.results.nbytes.tolist()
        if part.results.all_ok and sizes == part.sizes:
            return [True] * len(sizes)
        return [
            code == _OK and (size == room or each.metadata.fmt in _SERIALIZED)
            for code, size, room, each in zip(
                *(part.results.codes, sizes, part.sizes),
                task.objects[part.first : part.first + len(sizes)],
                strict=True,
            )
        ]

    # ---- deletions and clears

    def delete(self, keys: Sequence[Any]) -> None:
        """Remove objects, for LMCache's eviction and its quotas."""
        parts = self._parts(keys, lambda at: self._layouts.get(_group_of(keys[at])))
        for part in parts:
            try:
                results = part.space.session.remove(part.names)
            except kvcove.Error as error:
                _log.warning("kvcove: %d objects are not removed: %s", len(part.names), error)
                continue
            # A miss is gone, too: the pool has evicted it before, or a clear has voided it.
            gone = [
                key
                for key, code in zip(
                    keys[part.first : part.first + len(part.names)], results.codes, strict=True
                )
                if code in (_OK, _MISS)
            ]
            self._account.delete(gone)

    @contextmanager
    def clearing(self) -> Iterator[None]:
        """Surround a clear of LMCache's L1, and void everything in the pool at its end.

        Meanwhile nothing is found or stored. Look-ups and loads that were under way at its begin fail: they would
        bring KV of before into the emptied L1. Stores carry the epoch in which their writes began.

        Raises
        ------
        kvcove.Error
            The clear is not proven. Nothing is found or stored until it is.
        """
        with self._clear_lock:  # the end of one clear must not open what another one has closed
            self._clears += 1
            self._clearing = True
            try:
                yield
                try:
                    self._spaces.reset()
                    self._counts["clears"] += 1
                finally:
                    # An unproven reset voids as much, later.
                    self._account.clear()
            finally:
                self._clearing = False

    # ---- listings and status

    def list_l2_keys(
        self, model_name: str | None = None, page_size: int = 500, cursor: str | None = None
    ) -> Any:
        """Return the objects of the models and salts that this server has used, a page at a time."""
        if page_size <= 0:
            raise ValueError(f"page_size must be positive, not {page_size}")
        after = bytes.fromhex(cursor) if cursor else b""
        found = []
        for model, salt, space, epoch in self._spaces.known():
            if model_name not in (None, model):
                continue
            for each in space.session.stored():
                if each.key.startswith(epoch + _MARK):
                    place = f"{model}@{salt}@".encode() + each.key
                    found.append((place, model, salt, each.key, each.nbytes))
        page = sorted(each for each in found if each[0] > after)[: page_size + 1]
        more = len(page) > page_size
        entries = tuple(
            KeyEntry(key=_encoded(model, salt, name), size_bytes=size)
            for _, model, salt, name, size in page[:page_size]
        )
        return KeyListPage(
            entries=entries, next_page_token=page[page_size - 1][0].hex() if more else None
        )

    def report_status(self) -> dict[str, Any]:
        """Return whether the pool answers, and the counts of look-ups, loads and stores since the start."""
        healthy, pool = False, self._spaces.pool
        if pool is not None:
            try:
                pool.stat(timeout=self.config.lookup_timeout_ms / 1e3)
                healthy = True
            except kvcove.Error as error:
                _log.debug("kvcove: the pool does not answer: %s", error)
        return {"is_healthy": healthy, "type": "kvcove", "pool": self.config.pool, **self._counts}

    def _leave_facts(self, key: Any, layouts: Mapping[int, Any]) -> None:
        self._told.add(key.model_name)
        facts = {
            "model name": key.model_name,
            "namespace setting": self.config.namespace,
            "KV layout": "; ".join(
                f"{group}: {_text_of(each.shapes, each.dtypes)}"
                for group, each in sorted(layouts.items())
            ),
            "parallelism": f"{key.kv_rank >> 24 & 0xFF} workers",
            "chunk hash": f"of LMCache's server, {len(key.chunk_hash) * 8} bits",
            "LMCache": installed_version(),
        }
        leave_facts(self._spaces, facts)

    def close(self) -> None:
        """End the sessions, once no byte moves between the pool and LMCache's buffers any more."""
        until = time.monotonic() + _CLOSE_S
        for tasks in (self._stores, self._lookups, self._loads):
            while tasks.busy() and time.monotonic() < until:
                tasks.take()
                time.sleep(0.001)
        _log.info("kvcove: %s", ", ".join(f"{k} {v}" for k, v in sorted(self._counts.items())))
        self._spaces.close()


def _gone(keys: Sequence[Any], results: _native.Results) -> list[Any]:
    """Return the keys of misses that say more than that the pool cannot answer now."""
    items = zip(keys, results.codes, results.reasons, strict=True)
    return [key for key, code, reason in items if code == _MISS and reason in _GONE]


def _group_of(key: Any) -> tuple[str, int, int]:
    return key.model_name, key.kv_rank, key.object_group_id


def _text_of(shapes: Sequence[Any], dtypes: Sequence[Any]) -> str:
    return ", ".join(
        f"{'x'.join(map(str, shape))} {str(dtype).removeprefix('torch.')}"
        for shape, dtype in zip(shapes, dtypes, strict=True)
    )


def _layout(shapes: Sequence[Any], dtypes: Sequence[Any]) -> bytes:
    """Return the name of a layout of KV: an object of another one is another object."""
    return hashlib.blake2b(_text_of(shapes, dtypes).encode(), digest_size=8).digest()


def _encoded(model: str, salt: str, name: bytes) -> Any:
    rank, _, rest = name[17:].partition(b".")
    group, _, chunk = rest.partition(b".")
    return EncodedObjectKey(
        chunk_hash_hex=chunk.hex(),
        model_name=model,
        kv_rank=int(rank, 16),
        object_group_id=int(group, 16),
        cache_salt=salt,
    )


def _bitmap(found: Any, items: int) -> Any:
    if found is True:
        return Bitmap(items, items)
    bitmap = Bitmap(items)
    bitmap.batched_set([place for place, ok in enumerate(found) if ok])
    return bitmap
