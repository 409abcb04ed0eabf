# SPDX-License-Identifier: Apache-2.0
"""The remote backend of LMCache's in-process engine, a plugin of ``remote_storage_plugins``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from lmcache.logging import init_logger
from lmcache.v1.exceptions import IrrecoverableException
from lmcache.v1.storage_backend.connector import ConnectorAdapter
from lmcache.v1.storage_backend.connector.base_connector import RemoteConnector

import kvcove
from kvcove import Memory, _native
from kvcove.lmcache import _clear
from kvcove.lmcache._config import Config
from kvcove.lmcache._spaces import Begun, Space, Spaces, leave_facts
from kvcove.lmcache._versions import installed_version

__all__ = ["KvcoveConnector", "KvcoveConnectorAdapter"]

_log = init_logger("lmcache.kvcove")
_PREFIX = "kvcove."
_BATCH = 128  # objects that one timeout is for
_CLOSE_S = 30.0
_MARK = b"p"  # behind the epoch of a key; LMCache's server has another one
_OK = _native.Code.OK.value
_STORED = frozenset(
    {
        _OK,
        _native.Code.EXISTS.value,
        _native.Code.IN_PROGRESS.value,  # another engine puts the same object at this moment
        _native.Code.NOT_LISTED.value,
    }
)


class KvcoveConnectorAdapter(ConnectorAdapter):
    """The class that ``remote_storage_plugin.kvcove.class_name`` names."""

    def __init__(self) -> None:
        super().__init__("plugin://kvcove")

    def create_connector(self, context: Any) -> Any:
        """Return the connector of a worker or a scheduler."""
        try:
            return KvcoveConnector(
                context.loop, context.local_cpu_backend, context.config, context.metadata
            )
        except (ValueError, kvcove.Error) as error:
            # LMCache logs it and runs without the plugin; of other errors it would warn with each call.
            raise IrrecoverableException(str(error)) from error


class Put(list[Any]):
    """LMCache's keys of a put, and when LMCache was asked for it: its loop begins the put later.

    Attributes
    ----------
    begun : Begun or None
        None: it cannot be stored.
    """

    def __init__(self, keys: Sequence[Any], begun: Begun | None) -> None:
        super().__init__(keys)
        self.begun = begun


class KvcoveConnector(RemoteConnector):
    """LMCache's remote storage in a kvcove pool.

    Chunks go between LMCache's host memory and the pool without another copy, and without LMCache's header: all of
    it is in the keys. No call raises because of the pool.
    """

    def __init__(self, loop: Any, local_cpu_backend: Any, config: Any, metadata: Any) -> None:
        super().__init__(config, metadata)
        extra = config.extra_config or {}
        self.config = Config.of(
            {key.removeprefix(_PREFIX): extra[key] for key in extra if key.startswith(_PREFIX)},
            "extra_config",
        )
        if config.remote_serde != "naive":
            raise ValueError(
                f"kvcove: remote_serde: {config.remote_serde!r}: give 'naive'; LMCache's server has serdes that "
                "the L2 adapter takes"
            )
        if config.use_layerwise:
            raise ValueError("kvcove: use_layerwise: chunks are stored whole; give false")
        self._memory = local_cpu_backend
        self._layout = ", ".join(
            f"{'x'.join(map(str, shape))} {str(dtype).removeprefix('torch.')}"
            for shape, dtype in zip(self.meta_shapes, self.meta_dtypes, strict=True)
        )
        self._spaces = Spaces(self.config)
        self._calls = _Calls(loop)
        self._clears = 0
        _clear.observe_engine()
        facts = {
            "model name": metadata.model_name,
            "namespace setting": self.config.namespace,
            "KV layout": self._layout,
            "parallelism": f"{metadata.world_size} workers",
            "chunk hash": f"of LMCache in process, {config.pre_caching_hash_algorithm}",
            "chunk tokens": str(metadata.chunk_size),
            "LMCache": installed_version(),
        }
        if metadata.worker_id == 0:
            leave_facts(self._spaces, facts)

    # ---- keys

    def _salt_of(self, key: Any) -> str:
        tags = key.tags or ()
        return next((str(value) for name, value in tags if name == self.config.salt_tag), "")

    def _names(
        self, keys: Sequence[Any], only_in: bytes | None = None
    ) -> tuple[Space, list[bytes]] | None:
        """Return the namespace and the pool's keys of LMCache's; those of a batch are of one request.

        None where nothing can be found or stored, or where the epoch is not ``only_in`` any more.
        """
        if not keys:
            return None
        first = keys[0]
        found = self._spaces.at(first.model_name, self._salt_of(first), proven=only_in is None)
        if found is None:
            return None
        space, epoch = found
        if only_in not in (None, epoch):
            return None
        tags = first.tags or ()
        others = "".join(f"@{n}%{v}" for n, v in tags if n != self.config.salt_tag)
        text = f"{self._layout}.{first.world_size}.{first.worker_id}{others}."
        prefix = epoch + _MARK + text.encode()
        return space, [prefix + each.chunk_hash_hex.encode() for each in keys]

    def _timeout(self, items: int) -> float:
        return self.config.timeout_ms / 1e3 * max(1, -(-items // _BATCH))

    # ---- look-ups

    def support_batched_contains(self) -> bool:
        """Say yes: one look-up for all chunks of a request."""
        return True

    def batched_contains(self, keys: list[Any]) -> int:
        """Return how many chunks from the first on are there, and hold them until they are loaded."""
        found = self._names(keys)
        if found is None:
            return 0
        try:
            results = found[0].session.hold(
                found[1], self.config.hold_s, timeout=self.config.lookup_timeout_ms / 1e3
            )
        except kvcove.Error as error:
            _log.debug("kvcove: a look-up failed: %s", error)
            return 0
        if results.all_ok:
            return len(keys)
        return next(place for place, code in enumerate(results.codes) if code != _OK)

    def exists_sync(self, key: Any) -> bool:
        """Return whether a chunk is there."""
        return self.batched_contains([key]) == 1

    async def exists(self, key: Any) -> bool:
        """Return whether a chunk is there."""
        return await self.batched_async_contains("", [key]) == 1

    async def batched_async_contains(
        self, lookup_id: str, keys: list[Any], pin: bool = False
    ) -> int:
        """Return how many chunks from the first on are there, and hold them until they are loaded."""
        found = self._names(keys)
        if found is None:
            return 0
        space, names = found
        results = await self._calls.end_of(
            lambda queue: queue.start_keys(
                space.session,
                "hold",
                names,
                self.config.hold_s,
                "",
                self.config.lookup_timeout_ms / 1e3,
            )
        )
        if results is None:
            return 0
        codes = results.codes.tolist()
        return next((place for place, code in enumerate(codes) if code != _OK), len(codes))

    # ---- loads

    def support_batched_get(self) -> bool:
        """Say yes: one call for all chunks of a request."""
        return True

    async def batched_get(self, keys: list[Any]) -> list[Any]:
        """Return chunks in LMCache's memory, None for one that is not there in time."""
        nothing: list[Any] = [None] * len(keys)
        clears = self._clears
        found = self._names(keys)
        if found is None:
            return nothing
        space, names = found
        objects = self._allocated(len(keys))
        names = names[: len(objects)]
        results = None
        if objects:
            buffers = [Memory(each.data_ptr, self.full_chunk_size_bytes) for each in objects]
            try:
                results = await self._calls.end_of(
                    lambda queue: queue.start_get_into(
                        space.session, names, buffers, "", self._timeout(len(names))
                    )
                )
            except BaseException:
                for each in objects:
                    each.ref_count_down()
                raise
        if clears != self._clears:
            results = None  # LMCache's memory has been emptied of KV of that time
        for place, each in enumerate(objects):
            size = 0
            if results is not None and results.codes[place] == _OK:
                size = results.nbytes[place]
            if size == 0 or size % self.single_token_size != 0:
                each.ref_count_down()
                continue
            nothing[place] = self.reshape_partial_chunk(each, size)
        return nothing

    def _allocated(self, count: int) -> list[Any]:
        """Return buffers for chunks, fewer where LMCache's memory has no room for all."""
        # No busy loop: this is the thread in which the puts end that would make room.
        objects = self._memory.batched_allocate(
            self.meta_shapes, self.meta_dtypes, count, self.meta_fmt, busy_loop=False
        )
        if objects is not None:
            return list(objects)
        objects = []
        for _ in range(count):
            each = self._memory.allocate(
                self.meta_shapes, self.meta_dtypes, self.meta_fmt, busy_loop=False
            )
            if each is None:
                break
            objects.append(each)
        return objects

    async def get(self, key: Any) -> Any:
        """Return a chunk, None where it is not there in time."""
        return (await self.batched_get([key]))[0]

    async def batched_get_non_blocking(self, lookup_id: str, keys: list[Any]) -> list[Any]:
        """Return the chunks from the first on that are there."""
        found = await self.batched_get(keys)
        end = found.index(None) if None in found else len(found)
        for each in found[end:]:
            if each is not None:
                each.ref_count_down()
        return found[:end]

    # ---- stores

    def support_batched_put(self) -> bool:
        """Say yes: one call for all chunks of a request."""
        return True

    def asked_to_put(self, keys: Sequence[Any]) -> Put:
        """Return the keys of a put for LMCache to hand on, with the time of now."""
        if not keys:
            return Put(keys, None)
        return Put(keys, self._spaces.begin(keys[0].model_name, self._salt_of(keys[0])))

    async def batched_put(self, keys: list[Any], memory_objs: list[Any]) -> None:
        """Store chunks. LMCache frees their memory when this returns."""
        begun = (keys if isinstance(keys, Put) else self.asked_to_put(keys)).begun
        if begun is None:
            return
        found = self._names(keys, begun.epoch)
        if found is None:
            return
        space, names = found
        values = [Memory(each.data_ptr, each.get_size()) for each in memory_objs]
        results = await self._calls.end_of(
            lambda queue: queue.start_put(
                space.session, names, values, begun.token, None, None, self._timeout(len(names))
            )
        )
        failed = 0 if results is None else sum(code not in _STORED for code in results.codes)
        if results is None or failed:
            _log.debug("kvcove: %d of %d chunks are not stored", failed or len(keys), len(keys))

    async def put(self, key: Any, memory_obj: Any) -> None:
        """Store a chunk."""
        await self.batched_put([key], [memory_obj])

    # ---- the rest

    def remove_sync(self, key: Any) -> bool:
        """Remove a chunk."""
        found = self._names([key])
        if found is None:
            return False
        try:
            return bool(found[0].session.remove(found[1]).all_ok)
        except kvcove.Error as error:
            _log.warning("kvcove: a chunk is not removed: %s", error)
            return False

    def clear(self) -> int:
        """Void everything that engines with this namespace have stored. Raises kvcove.Error if it is not proven.

        Called in a thread of the engine, after LMCache has emptied its own memory. Loads that are under way fail;
        the memory is emptied again of those that have ended meanwhile.
        """
        self._clears += 1
        self._spaces.reset()
        if self._memory is not None:
            self._memory.clear()
        return 0

    def support_ping(self) -> bool:
        """Say yes: LMCache then asks from time to time whether the pool answers."""
        return True

    async def ping(self) -> int:
        """Return 0 if the pool answers."""
        pool = self._spaces.pool
        try:
            if pool is None:
                return 1
            await asyncio.to_thread(pool.stat, timeout=self.config.lookup_timeout_ms / 1e3)
        except kvcove.Error:
            return 1
        return 0

    async def list(self) -> list[str]:
        """Return the stored keys of the models and salts that this engine has used."""
        return await asyncio.to_thread(self._stored)

    def _stored(self) -> Any:
        return [
            f"{model}@{salt}@{each.key[len(epoch) + 1 :].decode()}"
            for model, salt, space, epoch in self._spaces.known()
            for each in space.session.stored()
            if each.key.startswith(epoch + _MARK)
        ]

    async def close(self) -> None:
        """End the sessions, once no byte moves between the pool and LMCache's memory any more."""
        await self._calls.ended(_CLOSE_S)
        await asyncio.to_thread(self._spaces.close)
        self._calls.close()


class _Calls:
    """The calls of one event loop, each until nothing moves between the pool and its buffers any more."""

    def __init__(self, loop: Any) -> None:
        self.loop = loop
        self._queue = _native.Queue(1 << 16)
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        loop.call_soon_threadsafe(loop.add_reader, self._queue.fileno(), self._take)

    async def end_of(self, start: Callable[[_native.Queue], int]) -> Any:
        """Begin a call and return its results, None where it failed as a whole.

        A caller that is cancelled meanwhile waits on: LMCache gives the buffers to others when it returns.
        """
        try:
            tag = start(self._queue)
        except kvcove.Error as error:
            _log.debug("kvcove: a call was not begun: %s", error)
            return None
        future = self._waiting[tag] = self.loop.create_future()
        cancelled = False
        while not future.done():
            try:
                await asyncio.shield(future)
            except asyncio.CancelledError:
                cancelled = True
        if cancelled:
            raise asyncio.CancelledError
        answer = future.result()
        if isinstance(answer, kvcove.Error):
            _log.debug("kvcove: a call failed: %s", answer)
            return None
        return answer

    async def ended(self, seconds: float) -> None:
        """Wait until no call is under way any more, for some time at most."""
        if self._waiting:
            await asyncio.wait(list(self._waiting.values()), timeout=seconds)

    def close(self) -> None:
        """Take no completions any more."""
        self.loop.remove_reader(self._queue.fileno())

    def _take(self) -> None:
        while (completion := self._queue.next(0.0)) is not None:
            tag, answer, final = completion
            if final:
                self._waiting.pop(tag).set_result(answer)
