# SPDX-License-Identifier: Apache-2.0
"""Which weights an engine has, told by SGLang's own calls that may change them: nobody can forget a flag."""

from __future__ import annotations

import functools
import gc
import hashlib
import itertools
import logging
import sys
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, NamedTuple

from kvcove.engines import _digest

__all__ = [
    "Now",
    "Ranks",
    "Weights",
    "adapters_of",
    "forget",
    "observe_engine",
    "runners_of_process",
    "state_of",
]

_log = logging.getLogger("sglang.kvcove")
_WEIGHTS_TAG = "weights"
_LONG_S = 10.0  # for which the ranks may differ before the log has a line


def _live(kind: type) -> list[Any]:
    """Return the live objects of a class: SGLang tells a storage backend nothing of them.

    Those that SGLang's ``/freeze_gc`` has set aside are among them.
    """
    frozen = gc.get_freeze_count() > 0
    if frozen:
        gc.unfreeze()
    try:
        return [each for each in gc.get_objects() if issubclass(type(each), kind)]
    finally:
        if frozen:
            gc.freeze()


def runners_of_process() -> list[Any]:
    """Return the model runners of this process: the model's first, then those of models that draft."""
    module = sys.modules.get("sglang.srt.model_executor.model_runner")
    if module is None:
        return []
    found = [each for each in _live(module.ModelRunner) if getattr(each, "model", None) is not None]
    # The live objects are in no order that another engine would have, too.
    return sorted(
        found,
        key=lambda runner: (
            bool(getattr(runner, "is_draft_worker", False)),
            getattr(runner, "draft_model_idx", None) or 0,
        ),
    )


def _fingerprint_of(runners: Sequence[Any]) -> str:
    """Return 32 hex digits that say which bytes the runners' parameters and buffers are."""
    began = time.monotonic()
    digest = _digest.Digest()
    for number, runner in enumerate(runners):
        for name, tensor in _digest.tensors_of(runner.model):
            digest.add(f"{number}:{name}", tensor)
    value = digest.value()
    seconds = time.monotonic() - began
    gigabytes = digest.total_bytes / 1e9
    _log.info("kvcove: weights %s: %.2f GB in %.3f s", value, gigabytes, seconds)
    return value


def _is_drawn(identifier: str) -> bool:
    try:
        return uuid.UUID(hex=identifier).version == 4
    except ValueError:
        return False


def adapters_of(runners: Sequence[Any]) -> str:
    """Return a digest of the LoRA adapters whose pages have equal hashes in other engines.

    SGLang derives the identifiers of ``--lora-paths`` from name and path alone, whatever the files have in them. Those
    of adapters that are loaded later are drawn at random, and count for nothing here.
    """
    digest, found = _digest.Digest(), False
    for runner in runners:
        adapters = getattr(getattr(runner, "lora_manager", None), "loras", {})
        for name, adapter in sorted(adapters.items()):
            if _is_drawn(name):
                continue
            found = True
            digest.add(f"{name}:config", sorted(adapter.config.hf_config.items()))
            parts = {str(place): layer.weights for place, layer in enumerate(adapter.layers)}
            parts["embedding"] = adapter.embedding_layers
            parts["added tokens"] = adapter.added_tokens_embeddings
            for place, tensors in parts.items():
                for key, tensor in sorted(tensors.items()):
                    digest.add(f"{name}:{place}:{key}", tensor)
    return digest.value()[:16] if found else "none"


class Ranks:
    """What the ranks of an engine tell each other, without a collective: one that lags delays nobody.

    They use the store of torch's default process group, which SGLang opens for all ranks of an engine. All ranks
    make their objects of this class in the same order.
    """

    _made = itertools.count()

    def __init__(self) -> None:
        import torch.distributed as dist

        self._store: Any = None
        self.rank, self.world = 0, 1
        if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
            self._store = dist.distributed_c10d._get_default_store()
            self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self._prefix = f"kvcove/{next(self._made)}"
        self._keys = [f"{self._prefix}/weights/{rank}" for rank in range(self.world)]
        self._all_there = False

    def engine(self) -> str:
        """Return a name that all ranks of this engine have, and no other engine."""
        own = uuid.uuid4().hex
        if self._store is None:
            return own
        return bytes(self._store.compare_set(f"{self._prefix}/engine", "", own)).decode()

    def tell(self, text: str) -> None:
        """Tell the others this rank's text, in the place of its last one."""
        if self._store is not None:
            self._store.set(self._keys[self.rank], text)

    def told(self, own: str) -> list[str] | None:
        """Return what each rank told last, in their order; None as long as one has told nothing."""
        if self._store is None:
            return [own]
        # A key that is missing would block the call, and none goes away.
        self._all_there = self._all_there or bool(self._store.check(self._keys))
        if not self._all_there:
            return None
        return [bytes(text).decode() for text in self._store.multi_get(self._keys)]


class Now(NamedTuple):
    """The weights at one moment.

    ``epoch`` differs after each call that may have changed them. ``stores``: all KV of the engine's tree is of these
    weights.
    """

    epoch: int
    version: str
    stores: bool


class State(NamedTuple):
    """An engine at the moment at which a backend is attached.

    ``empty``: it holds no KV. ``open_update``: it is between begin_weight_update and end_weight_update. ``away``: the
    memory of its weights is given back.
    """

    empty: bool = True
    open_update: bool = False
    away: bool = False


def state_of(runners: Sequence[Any]) -> State:
    """Return the state of the engine that has these runners. One that has just started has no weight updater yet."""
    from sglang.srt.managers.scheduler_components import weight_updater

    managers = [
        each
        for each in _live(weight_updater.SchedulerWeightUpdaterManager)
        if getattr(each.tp_worker, "model_runner", None) in runners
    ]
    return State(
        empty=all(map(_is_empty, managers)),
        open_update=any(each._session is not None for each in managers),
        away=any(_WEIGHTS_TAG in each.offload_tags for each in managers),
    )


_STARTED = State()


class Weights:
    """Which weights the ranks of an engine have, and whether all KV of its tree is of them. Thread-safe.

    From the begin of a change until all ranks have seen its end, nobody knows: :meth:`now` is None. After a change
    the tree may hold KV of weights before, or of weights that were half changed, until SGLang empties it.

    Parameters
    ----------
    runners : sequence
        With a ``model`` each.
    ranks : Ranks
        Of the engine.
    named : bool
        KV belongs to the bytes of weights. Else versions are empty.
    settled : callable
        Is called when this rank's weights are whole again, before anybody may find or store.
    known : callable
        Is called when this rank has told the others of them.
    state : State
        Of the engine. KV that it holds already may be of weights before: nobody has observed its updates.
    """

    def __init__(
        self,
        runners: Sequence[Any],
        ranks: Ranks,
        named: bool,
        settled: Callable[[], None],
        known: Callable[[], None] = lambda: None,
        state: State = _STARTED,
    ) -> None:
        self.runners = list(runners)
        self._ranks = ranks
        self._named = named
        self._settled = settled
        self._known = known
        self._lock = threading.Lock()
        self._epoch = 0  # differs after each begin of a change
        self._changes = 0  # that have ended; each rank counts the same
        self._own: str | None = None  # what this rank told last, None during a change
        self._whole = state.empty
        self._calls = 0
        self._differ_since: float | None = None  # None also once that was logged
        self.open_update = state.open_update
        self.away = state.away
        if not (self.open_update or self.away):
            self._settle()
        written = weakref.WeakMethod(self._written)  # the models outlive a backend that is detached

        def tell() -> None:
            if (call := written()) is not None:
                call()

        for runner in self.runners:
            _digest.observe_model(runner.model, tell)

    def now(self) -> Now | None:
        """Return what is true at this moment, None where nobody knows."""
        with self._lock:
            own, epoch, whole = self._own, self._epoch, self._whole
        if own is None:
            return None
        # The other ranks are asked at each call: one of them may have seen new weights since the last one. KV under
        # new weights can be found only once every rank has reported them.
        try:
            told = self._ranks.told(own)
        except RuntimeError as error:  # torch's, of a store that does not answer
            _log.debug("kvcove: the other ranks' weights are not known: %s", error)
            return None
        if told is None or own not in told or len({text.partition(":")[0] for text in told}) > 1:
            self._note_difference()
            return None
        version = ""
        if self._named:
            # Without the counts: equal weights have the same name, after however many changes.
            names = " ".join(text.partition(":")[2] for text in told)
            version = hashlib.sha256(names.encode()).hexdigest()[:32]
        return Now(epoch, version, whole)

    def is_still(self, now: Now) -> bool:
        """Return whether the weights are those, and nothing has begun to change them since."""
        return self.now() == now

    @contextmanager
    def change(self, empty: bool) -> Iterator[None]:
        """Surround a call that may change the weights, in a thread that computes nothing meanwhile.

        Parameters
        ----------
        empty : bool
            The engine holds no KV at this moment.
        """
        with self._lock:
            self._whole = empty
        self._begin_call()
        try:
            yield
        finally:
            self._end_call(changes=1)

    @contextmanager
    def emptying(self) -> Iterator[None]:
        """Surround a call that empties the engine's tree. Weights may have been written past every observed call."""
        self._begin_call()
        try:
            yield
            with self._lock:
                self._whole = True
        finally:
            self._end_call(changes=0)

    def _begin_call(self) -> None:
        with self._lock:
            self._calls += 1
            self._epoch += 1
            self._own = None

    def _written(self) -> None:
        """Note that somebody writes weights. What they are is looked at after the call, or when the tree is emptied."""
        with self._lock:
            self._epoch += 1
            self._own = None
            if self._calls == 0:  # else the call says what the tree holds
                self._whole = False

    def _end_call(self, changes: int) -> None:
        with self._lock:
            self._calls -= 1
            self._changes += changes
            busy = self._calls > 0 or self.open_update or self.away
        if not busy:
            self._settle()

    def _settle(self) -> None:
        with self._lock:
            epoch = self._epoch
        try:
            fingerprint = _fingerprint_of(self.runners) if self._named else ""
            self._settled()
            # The count before the fingerprint: ranks that have counted otherwise are in different updates.
            own = f"{self._changes}:{fingerprint}"
            self._ranks.tell(own)
        except Exception:
            # The scheduler's call goes on: a device without memory for the digest is no reason to end the engine.
            _log.exception(
                "kvcove: the weights of this rank are not known: until its next update or flush_cache "
                "nothing is found or stored"
            )
            return
        with self._lock:
            if self._epoch != epoch:
                return  # somebody wrote meanwhile
            self._own = own
            self._differ_since = time.monotonic()
        self._known()

    def _note_difference(self) -> None:
        with self._lock:
            since = self._differ_since
            if since is None or time.monotonic() - since < _LONG_S:
                return
            self._differ_since = None
        _log.warning(
            "kvcove: the ranks of this engine have not all ended the same change of weights: until they do, "
            "nothing is found or stored"
        )


# ---- what SGLang calls

_CHANGES = (
    *("update_weights_from_disk", "update_weights_from_distributed"),
    *("update_weights_from_tensor", "update_weights_from_ipc"),
    *("begin_weight_update", "end_weight_update"),
)
_observed: list[Weights] = []
_wrapped = False


def _of_manager(manager: Any) -> list[Weights]:
    """Return the weights that a manager changes."""
    runner = getattr(manager.tp_worker, "model_runner", None)
    return [each for each in _observed if runner is None or runner in each.runners]


def _is_empty(manager: Any) -> bool:
    """Whether an engine holds no KV: no request runs, and its tree has nothing on the device or the host.

    Between the flush of an update and ``end_weight_update`` that is so, and what follows may be stored.
    """
    tree = getattr(manager.scheduler, "tree_cache", None)
    if tree is None or not manager.is_fully_idle(ignore_waiting=True):
        return False
    try:
        hosts = [entry.host_pool for entry in tree.cache_controller.mem_pool_host.entries]
        free = all(
            pool.available_size() == getattr(pool, "logical_size", pool.size) for pool in hosts
        )
        return free and not any(tree.total_size()) and not tree.session.slots
    except (AttributeError, TypeError):
        return False  # a pool or a tree of another kind: nobody can say


def observe_engine(weights: Weights) -> None:
    """Tell ``weights`` of SGLang's calls that may change them, or empty the engine's tree."""
    from sglang.srt.managers.cache_controller import HiCacheController
    from sglang.srt.managers.scheduler_components import weight_updater

    global _wrapped
    _observed.append(weights)
    if _wrapped:
        return
    _wrapped = True
    manager = weight_updater.SchedulerWeightUpdaterManager
    for name in _CHANGES:
        setattr(manager, name, _changing(getattr(manager, name)))
    manager.check_weights = _changing(
        manager.check_weights, lambda request: request.action == "reset_tensors"
    )
    for name, away in (("release_memory_occupation", True), ("resume_memory_occupation", False)):
        setattr(manager, name, _moving(getattr(manager, name), away))
    HiCacheController.reset = _emptying(HiCacheController.reset)
    _bind_anew(manager)


def _bind_anew(manager: type) -> None:
    """Bind the calls of an engine that runs already to what the class has now.

    A scheduler's dispatcher keeps bound methods from its start. A backend that is attached later (``PUT
    /hicache/storage-backend``) would be told of no update.
    """
    from sglang.utils import TypeBasedDispatcher

    for dispatcher in _live(TypeBasedDispatcher):
        for kind, call in dispatcher._mapping.items():
            if isinstance(getattr(call, "__self__", None), manager):
                dispatcher._mapping[kind] = getattr(call.__self__, call.__name__)
        dispatcher._mro_cache.clear()


def forget(weights: Weights) -> None:
    """Tell a backend that is detached of nothing more."""
    if weights in _observed:
        _observed.remove(weights)


def _always(_request: Any) -> bool:
    return True


def _changing(call: Any, changes: Callable[[Any], bool] = _always) -> Any:
    @functools.wraps(call)
    def observed(self: Any, recv_req: Any, *args: Any, **kwargs: Any) -> Any:
        if not changes(recv_req):
            return call(self, recv_req, *args, **kwargs)
        empty = _is_empty(self)
        with _all([each.change(empty) for each in _of_manager(self)]):
            try:
                return call(self, recv_req, *args, **kwargs)
            finally:
                for each in _of_manager(self):
                    each.open_update = self._session is not None

    return observed


def _moving(call: Any, away: bool) -> Any:
    @functools.wraps(call)
    def observed(self: Any, recv_req: Any, *args: Any, **kwargs: Any) -> Any:
        moved = not recv_req.tags or _WEIGHTS_TAG in recv_req.tags
        if not moved:
            return call(self, recv_req, *args, **kwargs)
        all_weights = _of_manager(self)
        empty = _is_empty(self)
        with _all([each.change(empty) for each in all_weights]):
            for each in all_weights:
                each.away = True  # a call that fails in between leaves nobody who knows
            result = call(self, recv_req, *args, **kwargs)
            for each in all_weights:
                each.away = away
            return result

    return observed


def _emptying(call: Any) -> Any:
    @functools.wraps(call)
    def observed(self: Any, *args: Any, **kwargs: Any) -> Any:
        weights = getattr(getattr(self, "storage_backend", None), "weights", None)
        with _all([weights.emptying()] if isinstance(weights, Weights) else []):
            return call(self, *args, **kwargs)

    return observed


@contextmanager
def _all(contexts: Iterable[AbstractContextManager[None]]) -> Iterator[None]:
    with ExitStack() as stack:
        for each in contexts:
            stack.enter_context(each)
        yield
