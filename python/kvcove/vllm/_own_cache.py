# SPDX-License-Identifier: Apache-2.0
"""Resets of the engine's own prefix cache while saves and loads keep some of its blocks.

vLLM refuses while any block is in use, and raises where it has preempted what ran: before it asks a
connector to reset the pool. So a trainer's reset would fail whenever a load is under way.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

from kvcove.vllm import _compat

__all__ = ["OwnCache", "observe"]


class OwnCache:
    """An engine's own cache, which can be reset beside the connector's saves and loads.

    Their blocks are let go of for the moment of the reset. What a save keeps is nobody's cache: it
    goes on under its reference, and nothing finds the block any more. A request with a load may
    have begun on blocks of before the reset, so it begins anew, when nothing lands in its blocks
    any more.

    Parameters
    ----------
    block_pool : BlockPool
        The engine's.
    pinned : callable
        Returns the numbers of the blocks that saves keep, each as often as it is kept.
    loading : dict
        The requests whose load was ordered, until they are scheduled or gone; by their ids.
    cleared : callable
        Is called when the cache has been reset.
    """

    def __init__(
        self,
        block_pool: Any,
        pinned: Callable[[], Iterable[int]],
        loading: dict[str, Any],
        cleared: Callable[[], None],
    ) -> None:
        self._block_pool = block_pool
        self._pinned = pinned
        self._loading = loading
        self._cleared = cleared
        self._scheduler: Any = None  # while it resets
        self._reset = block_pool.reset_prefix_cache
        block_pool.reset_prefix_cache = self._reset_beside

    def reset_by(self, scheduler: Any, reset: Callable[[], bool]) -> bool:
        """Call ``reset``, which resets the cache of this scheduler of vLLM."""
        self._scheduler = scheduler
        try:
            return reset()
        finally:
            self._scheduler = None

    def _reset_beside(self) -> bool:
        pool = self._block_pool
        kept = [pool.blocks[pin] for pin in self._pinned()]
        if self._scheduler is not None:
            kept += self._kept_by_requests()
        pool.free_blocks(kept)
        done = False
        try:
            done = bool(self._reset())
        finally:
            pool.touch(kept)
        if done:
            self._cleared()
            if self._scheduler is not None:
                self._begin_anew()
        return done

    def _kept_by_requests(self) -> list[Any]:
        manager, pool = self._scheduler.kv_cache_manager, self._block_pool
        kept = [
            block
            for request_id in self._requests()
            for group in manager.get_blocks(request_id).blocks
            for block in group
        ]
        # Of requests that were preempted, or have ended, while a step that is under way writes them.
        kept += [block for _, blocks in self._scheduler.deferred_frees for block in blocks]
        return [
            block
            for block in kept
            if not block.is_null and getattr(block, "pool", pool) in (None, pool)
        ]

    def _requests(self) -> dict[str, Any]:
        """Return those that vLLM still has; another request may have the id of one that has ended."""
        known = self._scheduler.requests
        return {name: each for name, each in self._loading.items() if known.get(name) is each}

    def _begin_anew(self) -> None:
        scheduler = self._scheduler
        for request_id, request in self._requests().items():
            if request.is_finished():
                continue
            request.num_computed_tokens = 0
            # vLLM keeps free what these still need: nothing, for one that is looked up like a new one.
            # Else its next load would wait for what is kept for itself.
            getattr(scheduler, "_inflight_prefills", set()).discard(request)
            if request.status == _compat.request_status().WAITING_FOR_REMOTE_KVS:
                # As after a load of which nothing came: its blocks are free when it has ended.
                scheduler.failed_recving_kv_req_ids.add(request_id)
            else:
                scheduler.kv_cache_manager.free(request)
                # vLLM lets those that keep blocks go first, and stops where one finds none.
                keeping = _compat.kv_holding_waiting(scheduler)
                if any(each is request for each in keeping):
                    keeping.remove_request(request)
                    scheduler.waiting.prepend_request(request)


def observe(engine_core: Any, caches_of: Callable[[Any], list[OwnCache]]) -> None:
    """Watch the resets of an ``EngineCore`` class, once."""
    reset = engine_core.reset_prefix_cache

    @functools.wraps(reset)
    def observed(
        self: Any, reset_running_requests: bool = False, reset_connector: bool = False
    ) -> bool:
        def call() -> bool:
            try:
                return bool(reset(self, reset_running_requests, reset_connector))
            except RuntimeError:
                # Another connector keeps blocks, so vLLM raises. A trainer that catches this must not find old KV.
                if reset_connector and caches:
                    self.scheduler.reset_connector_cache()
                raise

        caches = caches_of(self)
        whole = call
        for cache in caches:
            whole = functools.partial(cache.reset_by, self.scheduler, whole)
        return whole()

    engine_core.reset_prefix_cache = observed
