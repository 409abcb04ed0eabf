# SPDX-License-Identifier: Apache-2.0
"""The storage backend. Each rank has one; SGLang's prefetch and backup threads call it."""

from __future__ import annotations

import hashlib
import logging
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from time import monotonic
from typing import Any, TypeVar

from sglang.srt.mem_cache.hicache_storage import (
    HiCacheStorage,
    PoolHitPolicy,
    PoolName,
    PoolTransferResult,
)

import kvcove
from kvcove import _native, engines
from kvcove.sglang import _weights
from kvcove.sglang._config import Config
from kvcove.sglang._pages import HostPages, Shard
from kvcove.sglang._versions import installed_version

__all__ = ["KvcoveStorage"]

_T = TypeVar("_T")
_log = logging.getLogger("sglang.kvcove")
_MOST_KEYS = 65_536  # of one call to the pool
_SMALL_PAGE = 16  # tokens
_OPEN_S = 10.0  # a host is busy while the ranks of an engine start
_STORED = frozenset(
    {
        _native.Code.OK.value,
        _native.Code.EXISTS.value,
        _native.Code.IN_PROGRESS.value,  # another replica puts the same page at this moment
        _native.Code.NOT_LISTED.value,
    }
)


class KvcoveStorage(HiCacheStorage):
    """SGLang's HiCache storage in a kvcove pool.

    Thread-safe. What SGLang's threads call never raises: a pool that is slow or gone, or a fault here, is a miss, and
    a page that is not stored. In SGLang 0.5.21 an exception would end a thread that requests wait for.
    """

    def __init__(self, storage_config: Any, _kwargs: Mapping[str, Any] | None = None) -> None:
        """Open the pool.

        Parameters
        ----------
        storage_config : HiCacheStorageConfig
            Of this rank.

        Raises
        ------
        ValueError
            A setting is wrong, or the engine's weights are not to be found.
        kvcove.Error
            The pool does not answer, with ``on_unreachable: crash``.
        """
        extra = storage_config.extra_config or {}
        self.config = Config.of(extra)
        if not extra.get("interface_v1"):
            raise ValueError(_NEEDS_V1)
        self.shard = Shard.of(storage_config)
        self._writes_metrics = bool(storage_config.enable_storage_metrics)
        self._metrics_lock = threading.Lock()
        self._metrics: dict[str, list[float]] = {}
        self._counts: Counter[str] = Counter()
        self._token_lock = threading.Lock()
        self._token: tuple[_weights.Now, _native.Token] | None = None
        self.registered_pools: dict[str, Any] = {}
        self._pages: dict[str, HostPages] = {}
        self._queues = threading.local()
        self._pool: _native.Pool | None = None
        self._session: _native.Session | None = None
        ranks = _weights.Ranks()
        runners = _weights.runners_of_process()
        if not runners:
            raise ValueError(
                "kvcove: this process has no model runner of SGLang, so nobody can say which model and weights its "
                "KV is of"
            )
        named = self.config.weight_version_source == "fingerprint"
        self._facts = _facts_of(storage_config, runners, self.config)
        self._engine, self._speaks = ranks.engine(), ranks.rank == 0
        self._open()
        state = _weights.state_of(runners)
        if not state.empty:
            _log.warning(
                "kvcove: this engine holds KV already, and nobody has observed which weights it is of: nothing is "
                "stored until its next flush_cache"
            )
        self.weights = _weights.Weights(
            runners, ranks, named, self._weights_settled, self._weights_known, state
        )
        _weights.observe_engine(self.weights)
        self._weights_known()

    def _open(self) -> None:
        try:
            self._pool = kvcove.open(self._address(), timeout=_OPEN_S)
            self._session = self._pool.session(
                _namespace_of(self._facts, self.config),
                engine=self._engine,
                assume_weights=self.config.assume_weights,
                preferred_segment=self.config.preferred_segment,
            )
        except kvcove.Error as error:
            if self.config.on_unreachable == "crash" or not engines.no_pool(error):
                raise
            _log.warning("kvcove: this engine runs without a pool: %s", error)
            return
        for line in engines.refusals(self._pool, finds=True, stores=True):
            _log.warning("kvcove: %s", line)

    def _address(self) -> str:
        if self.config.pool != "auto":
            return self.config.pool
        # A pool of each rank's own would be of no use to anybody else.
        return f"unix:{_native.default_socket_path()}"

    def _tell_differences(self, pages: HostPages) -> None:
        """Say in one line each why engines of this model will not share with this one."""
        if self._pool is None or not self._speaks:
            return
        mine, model = {**self._facts, **pages.facts}, self._facts["model name"]
        namespace = _namespace_of(self._facts, self.config)
        pool = self._pool
        engines.warn_of_differences(
            _log,
            lambda: pool.session(engines.FACTS, engine=self._engine),
            model,
            mine,
            own=lambda session: engines.leave_own(session, self._engine, "SGLang", namespace, mine),
        )

    # ---- pools

    def register_mem_pool_host(self, mem_pool_host: Any) -> None:
        """Take the pool of the model's KV. Its buffers stay where they are."""
        super().register_mem_pool_host(mem_pool_host)
        self.register_mem_host_pool_v2(mem_pool_host, PoolName.KV)
        pages = self._pages[str(PoolName.KV)]
        if pages.page_size < _SMALL_PAGE:
            _log.warning(
                "kvcove: pages of %d tokens, each an object of the pool, are slow to move: give --page-size 64",
                pages.page_size,
            )
        self._tell_differences(pages)

    def register_mem_host_pool_v2(self, host_pool: Any, host_pool_name: Any) -> None:
        """Take a pool of windows, states or a draft model."""
        name = str(host_pool_name)
        pages = HostPages(name, host_pool, self.shard)
        self.registered_pools[host_pool_name] = host_pool
        self._pages[name] = pages

    # ---- look-ups

    def batch_exists(self, keys: list[str], extra_info: Any = None) -> int:
        """Return how many pages from the first on are there, and hold them until they are loaded."""
        return self._guarded("look-up", lambda: self._prefix(keys), 0)

    def _prefix(self, keys: list[str]) -> int:
        pages = self._pages[str(PoolName.KV)]
        if pages.is_logical:
            return len(keys)
        found = self._present(pages, keys)
        return found.index(False) if False in found else len(found)

    def batch_exists_v2(
        self, keys: list[str], pool_transfers: Any = None, extra_info: Any = None
    ) -> Any:
        """Return the prefixes that all pools can serve."""
        return self._guarded(
            "look-up",
            lambda: self._restorable(keys, pool_transfers or ()),
            PoolTransferResult(0, {}, []),
        )

    def _restorable(self, keys: list[str], pool_transfers: Sequence[Any]) -> Any:
        pages = self._prefix(keys)
        hits: dict[Any, int] = {PoolName.KV: pages} if pages else {}
        restorable = set(range(1, pages + 1))
        for transfer in pool_transfers:
            if not restorable:
                break
            boundary, pool_restorable = self._pool_hits(transfer, keys[:pages])
            if boundary:
                hits[transfer.name] = boundary
            restorable &= pool_restorable
        return PoolTransferResult(max(restorable, default=0), hits, sorted(restorable))

    def _pool_hits(self, transfer: Any, keys: list[str]) -> tuple[int, set[int]]:
        """Return the longest prefix of a pool, and all prefixes that it serves."""
        there = self._present(self._pages[str(transfer.name)], keys)
        policy = getattr(transfer.hit_policy, "value", transfer.hit_policy)
        if policy == PoolHitPolicy.TRAILING_PAGES.value:
            window = max(1, len(transfer.keys or ()))
            served = {
                end for end in range(1, len(keys) + 1) if all(there[max(0, end - window) : end])
            }
            return max(served, default=0), served
        boundary = there.index(False) if False in there else len(there)
        if policy == PoolHitPolicy.ALL_PAGES.value:
            return boundary, set(range(1, boundary + 1))
        raise NotImplementedError(f"kvcove: hit policy {policy} of pool {transfer.name}")

    def _present(self, pages: HostPages, hashes: list[str]) -> list[bool]:
        now = self.weights.now()
        if self._session is None or now is None or not hashes:
            return [False] * len(hashes)
        self._count("looked_up_pages", len(hashes))
        asked = hashes[: _MOST_KEYS // pages.objects]
        try:
            results = self._session.hold(
                pages.keys(asked),
                self.config.hold_s,
                version=now.version,
                timeout=self.config.lookup_timeout_ms / 1e3,
            )
        except kvcove.Error as error:
            self._failed("look-up", error)
            return [False] * len(hashes)
        there = _by_page([code == 0 for code in results.codes], pages.objects)
        there += [False] * (len(hashes) - len(asked))
        if not self.weights.is_still(now):
            return [False] * len(hashes)
        self._count("found_pages", sum(there))
        return there

    def exists(self, key: str) -> bool:
        """Return whether a page is there."""
        return self.batch_exists([key]) == 1

    # ---- pages

    def batch_get_v1(
        self, keys: list[str], host_indices: Any, extra_info: Any = None
    ) -> list[bool]:
        """Read pages into the host pool. A page that is not there in time is False."""
        return self._get(str(PoolName.KV), keys, host_indices)

    def batch_set_v1(
        self, keys: list[str], host_indices: Any, extra_info: Any = None
    ) -> list[bool]:
        """Store pages of the host pool."""
        return self._set(str(PoolName.KV), keys, host_indices)

    def batch_get_v2(
        self, transfers: Sequence[Any], extra_info: Any = None
    ) -> dict[str, list[bool]]:
        """Read pages into several pools."""
        return {
            each.name: self._get(str(each.name), each.keys or [], each.host_indices)
            for each in transfers
        }

    def batch_set_v2(
        self, transfers: Sequence[Any], extra_info: Any = None
    ) -> dict[str, list[bool]]:
        """Store pages of several pools."""
        return {
            each.name: self._set(str(each.name), each.keys or [], each.host_indices)
            for each in transfers
        }

    def _get(self, name: str, hashes: list[str], indices: Any) -> list[bool]:
        nothing = [False] * len(hashes)
        return self._guarded("load", lambda: self._load(name, hashes, indices), nothing)

    def _set(self, name: str, hashes: list[str], indices: Any) -> list[bool]:
        nothing = [False] * len(hashes)
        return self._guarded("store", lambda: self._store(name, hashes, indices), nothing)

    def _load(self, name: str, hashes: list[str], indices: Any) -> list[bool]:
        pages = self._pages[name]
        if pages.is_logical:
            return [True] * len(hashes)
        now = self.weights.now()
        session = self._session
        if session is None or now is None or not _fits(pages, hashes, indices):
            return [False] * len(hashes)
        began = monotonic()
        targets = pages.targets(indices)
        queue = self._queue()
        results = self._final(
            "load",
            lambda: queue.start_get_into(
                session,
                pages.keys(hashes),
                [pages.buffer(each) for each in targets],
                now.version,
                self.config.timeout_ms / 1e3,
            ),
        )
        if results is None:
            return [False] * len(hashes)
        whole = pages.page_bytes // pages.objects
        read = [
            code == 0 and size == whole
            for code, size in zip(results.codes, results.nbytes, strict=True)
        ]
        found = _by_page(read, pages.objects)
        if not self.weights.is_still(now):
            # What was read is of weights that are being changed: SGLang is to find nothing of it.
            return [False] * len(hashes)
        pages.take(indices, targets, found)
        self._measured("prefetch", sum(found), pages.page_bytes, monotonic() - began)
        return found

    def _store(self, name: str, hashes: list[str], indices: Any) -> list[bool]:
        pages = self._pages[name]
        if pages.is_logical:
            return [True] * len(hashes)
        session, token = self._session, self._token_now()
        if session is None or token is None or not _fits(pages, hashes, indices):
            self._count("refused_pages", len(hashes))
            return [False] * len(hashes)
        began = monotonic()
        queue = self._queue()
        results = self._final(
            "store",
            lambda: queue.start_put(
                session,
                pages.keys(hashes),
                pages.sources(indices),
                token,
                None,
                None,
                self.config.timeout_ms / 1e3,
            ),
        )
        if results is None:
            return [False] * len(hashes)
        if _native.Code.STALE.value in results.codes:
            self._token_is_stale(token)
        stored = _by_page([code in _STORED for code in results.codes], pages.objects)
        self._measured("backup", sum(stored), pages.page_bytes, monotonic() - began)
        return stored

    def _guarded(self, what: str, call: Callable[[], _T], missing: _T) -> _T:
        try:
            return call()
        except Exception as error:
            self._failed(what, error)
            _log.exception("kvcove: a %s failed", what)
            return missing

    def _queue(self) -> _native.Queue:
        """Return the completions of this thread's calls."""
        queue: _native.Queue | None = getattr(self._queues, "queue", None)
        if queue is None:
            queue = self._queues.queue = _native.Queue(8)
        return queue

    def _final(self, what: str, start: Callable[[], int]) -> Any:
        """Begin a call and return its results, once nothing moves between the pool and its buffers any more.

        A call whose deadline passes while a transfer can't be stopped completes twice. SGLang gives the pages to
        others when this returns, so it returns after the second completion.
        """
        try:
            start()
            queue = self._queue()
            while True:
                completion = queue.next(60.0)
                if completion is None:
                    _log.warning(
                        "kvcove: a %s still moves bytes of host pages; waiting for it", what
                    )
                    continue
                _tag, answer, final = completion
                if not final:
                    continue
                if isinstance(answer, kvcove.Error):
                    raise answer
                return answer
        except kvcove.Error as error:
            self._failed(what, error)
            return None

    # ---- what a put is begun under

    def _token_now(self) -> _native.Token | None:
        """Return the token of puts, None as long as nothing may be stored."""
        now = self.weights.now()
        if self._session is None or now is None or not now.stores:
            return None
        with self._token_lock:
            if self._token is not None and self._token[0] == now:
                return self._token[1]
        try:
            token = self._session.capture(now.version)
        except kvcove.Error as error:
            self._failed("capture", error)
            return None
        if not self.weights.is_still(now):
            return None
        with self._token_lock:
            self._token = (now, token)
        return token

    def _token_is_stale(self, token: _native.Token) -> None:
        """Take a new token after somebody reset the namespace.

        Only where KV belongs to the bytes of weights: then what the engine holds is right whoever reset the pool.
        Else it stays, and nothing is stored until the engine's own tree is emptied.
        """
        self._count("stale_puts", 1)
        if self.config.weight_version_source != "fingerprint":
            return
        with self._token_lock:
            if self._token is not None and self._token[1] == token:
                self._token = None

    def _weights_settled(self) -> None:
        """Reset the namespace after a change of weights that have no name."""
        if self.config.weight_version_source == "none" and hasattr(self, "weights"):
            self._reset(all_void=False)

    def _weights_known(self) -> None:
        """Take the token now: it must be older than the KV that is computed from here on."""
        if hasattr(self, "weights"):
            self._guarded("capture", self._token_now, None)

    def _reset(self, *, all_void: bool) -> bool:
        if self._session is None:
            return True
        try:
            self._session.reset(all_void=all_void, timeout=self.config.reset_timeout_ms / 1e3)
        except kvcove.Error as error:
            # The session is closed until the reset is proven.
            _log.error(
                "kvcove: a reset is not proven, nothing is found or stored until it is: %s", error
            )
            return False
        with self._token_lock:
            self._token = None
        self._count("resets", 1)
        return True

    def clear(self) -> bool:
        """Void everything that engines with this namespace have stored, of all weights."""
        return self._reset(all_void=True)

    # ---- SGLang's older interface, which it does not use with interface_v1

    def get(self, key: str, target_location: Any = None, target_sizes: Any = None) -> Any:
        """Raise: pages are read in place."""
        raise NotImplementedError(_NEEDS_V1)

    def batch_get(
        self, keys: list[str], target_locations: Any = None, target_sizes: Any = None
    ) -> Any:
        """Raise: pages are read in place."""
        raise NotImplementedError(_NEEDS_V1)

    def set(
        self, key: str, value: Any = None, target_location: Any = None, target_sizes: Any = None
    ) -> bool:
        """Raise: pages are stored in place."""
        raise NotImplementedError(_NEEDS_V1)

    def batch_set(
        self,
        keys: list[str],
        values: Any = None,
        target_locations: Any = None,
        target_sizes: Any = None,
    ) -> bool:
        """Raise: pages are stored in place."""
        raise NotImplementedError(_NEEDS_V1)

    # ---- statistics

    def _count(self, name: str, number: int) -> None:
        with self._metrics_lock:
            self._counts[name] += number

    def _failed(self, what: str, error: Exception) -> None:
        self._count(f"failed_{what.replace('-', '')}s", 1)
        _log.debug("kvcove: a %s failed: %s", what, error)

    def _measured(self, what: str, pages: int, page_bytes: int, seconds: float) -> None:
        self._count(f"{what}_pages", pages)
        self._count(f"{what}_bytes", pages * page_bytes)
        if self._writes_metrics and pages:
            with self._metrics_lock:
                self._metrics.setdefault(f"{what}_pgs", []).append(pages)
                self._metrics.setdefault(f"{what}_bandwidth", []).append(
                    pages * page_bytes / (1 << 30) / max(seconds, 1e-9)
                )

    def get_stats(self) -> Any:
        """Return what was moved since the last call, as SGLang's metrics have it."""
        from sglang.srt.observability.metrics_collector import StorageMetrics

        with self._metrics_lock:
            taken, self._metrics = self._metrics, {}
        return StorageMetrics(**taken)

    def counts(self) -> dict[str, int]:
        """Return what was looked up, found, loaded, stored and refused since the start, in pages and bytes."""
        with self._metrics_lock:
            return dict(self._counts)

    def close(self) -> None:
        """End the session. SGLang has stopped its threads."""
        _weights.forget(self.weights)
        _log.info("kvcove: %s", ", ".join(f"{k} {v}" for k, v in sorted(self.counts().items())))
        if self._session is not None:
            self._session.close()
        if self._pool is not None:
            self._pool.close()


_NEEDS_V1 = (
    'kvcove: add "interface_v1": 1 to --hicache-storage-backend-extra-config, with which SGLang reads and stores '
    "pages in place"
)


def _by_page(objects: Sequence[bool], each: int) -> list[bool]:
    return [all(objects[at : at + each]) for at in range(0, len(objects), each)]


def _fits(pages: HostPages, hashes: Sequence[str], indices: Any) -> bool:
    if indices is not None and len(hashes) > 0 and len(indices) == len(hashes) * pages.page_size:
        return True
    if len(hashes) > 0:
        _log.error(
            "kvcove: %d pages of %d tokens and %s indices do not fit",
            len(hashes),
            pages.page_size,
            "no" if indices is None else len(indices),
        )
    return False


def _facts_of(storage_config: Any, runners: Sequence[Any], config: Config) -> dict[str, str]:
    """Return what must be equal to share. How pages lie is in their keys."""
    model = getattr(runners[0], "model_config", None)
    hf: Any = getattr(model, "hf_config", None)
    parts = [
        str(hf.to_json_string()) if hasattr(hf, "to_json_string") else "",
        str(getattr(model, "quantization", "")),
        str(getattr(model, "dtype", "")),
    ]
    if config.weight_version_source == "none":
        # Nothing else tells two models of one configuration apart, and users give both the same name.
        parts += [
            str(storage_config.model_name),
            str(getattr(model, "model_path", "")),
            str(getattr(model, "revision", "")),
        ]
    return {
        "model name": Path(str(storage_config.model_name or "model")).name,
        "namespace setting": config.namespace,
        "model": hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16],
        # Host pools keep all FP8 types as bytes, so their own type does not say which one it is.
        "KV type": ", ".join(str(getattr(each, "kv_cache_dtype", "")) for each in runners),
        "adapters": _weights.adapters_of(runners),
        "ranks": f"TP {storage_config.tp_lcm_size or storage_config.tp_size}, "
        f"PP {storage_config.pp_size}, CP {storage_config.attn_cp_size}",
        "weights named by": config.weight_version_source,
        "SGLang": installed_version(),
    }


def _namespace_of(facts: Mapping[str, str], config: Config) -> str:
    digest = hashlib.sha256(repr(sorted(facts.items())).encode()).hexdigest()[:32]
    return f"{config.namespace}/sglang/{facts['model name'][:128]}/{digest}".lstrip("/")
