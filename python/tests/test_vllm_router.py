# SPDX-License-Identifier: Apache-2.0
"""What a router believes that knows an engine's KV events alone, beside what the engine and the pool have.

The engine is vLLM's own scheduler and KV managers (real_vllm.py), as random as in test_vllm_random.py, and
publishes over ZMQ. The routers differ in what they take AllBlocksCleared for, join late, are started again in
the middle, and are slow, so that they miss batches.
"""

from __future__ import annotations

import itertools
import os
import random
import time
from pathlib import Path
from typing import Any

import pytest
from kvcove.vllm import _versions

pytest.importorskip("vllm")
pytest.importorskip("torch")
if (_versions.installed() or _versions.NEWEST) < (0, 30):
    pytest.skip("needs vLLM 0.30, whose allocator it uses", allow_module_level=True)

from real_vllm import Engine, Fault, make_model
from router_index import GPU, Clears, Index, Subscriber
from test_vllm_random import Life, World, engine_of, world_of
from vllm.config import KVEventsConfig
from vllm.v1.core.kv_cache_utils import (
    get_block_hash,
    get_group_id,
    maybe_convert_block_hash,
)

from kvcove import engines

SEEDS = [int(part) for part in os.environ.get("KVCOVE_VLLM_SEEDS", "1:5").split(":")]
SECONDS = float(os.environ.get("KVCOVE_VLLM_SECONDS", "0"))
FEW_STEPS = 20  # that some publishers keep for a replay; the others keep all of a seed


class Routers:
    """Routers of every kind, beside one engine."""

    def __init__(self, events: str, replay: str, pick: random.Random) -> None:
        self._sockets = events, replay
        self._pick = pick
        self.steady = {each: self._new(each) for each in Clears}
        self.late: Subscriber | None = None
        self.restarting = self._new(Clears.ALL)
        self.slow = self._new(Clears.DEVICE, most_waiting=2)
        time.sleep(0.2)  # a subscription takes a moment, and what is published before it is missed

    def _new(self, clears: Clears, most_waiting: int = 0) -> Subscriber:
        return Subscriber(Index(clears), *self._sockets, most_waiting)

    def look_after_steps_of(self, engine: Engine) -> None:
        """Let the steady routers look after each step, also while saves and loads are waited for.

        A publisher with a short queue drops batches when its thread is late, and some keep those of the
        last FEW_STEPS alone for a replay: a router that looks less often has to begin anew.
        """
        step = engine.step

        def looked(hold: float = 0.0) -> None:
            step(hold)
            for each in self.steady.values():
                each.poll()

        engine.step = looked  # type: ignore[method-assign]

    def look(self, step: int) -> None:
        if step == 60:
            self.late = self._new(Clears.DEVICE)
        if self.late is not None and self._pick.random() < 0.5:
            self.late.poll()
        if step % 40 == 39:
            self.restarting.close()
            self.restarting = self._new(Clears.ALL)
        self.restarting.poll()
        if self._pick.random() < 0.05:
            self.slow.poll()

    def all(self) -> list[Subscriber]:
        late = [self.late] if self.late is not None else []
        return [*self.steady.values(), *late, self.restarting, self.slow]

    def close(self) -> None:
        for each in self.all():
            each.close()


def settle(engine: Engine, routers: Routers) -> None:
    """Let saves and loads end, and all that was published be heard."""
    engine.drain()
    engine.step()  # takes the events of a reset since the last one
    publisher = engine.scheduler.kv_event_publisher
    until = time.monotonic() + 20
    while publisher._event_queue.unfinished_tasks and time.monotonic() < until:
        time.sleep(0.005)
    for each in routers.all():
        each.poll()
        each.catch_up()


def there(engine: Engine, keys: list[tuple[int, bytes]]) -> set[tuple[int, bytes]]:
    """Return which of some blocks the pool has, under the engine's weights."""
    side = engine.connector._scheduler
    names = [f"g{group}.h0of1@{each.hex()}".encode() for group, each in keys]
    if not names:
        return set()
    with side._pool.session(side.shape.namespace, assume_weights=True) as session:
        version = side.role.version if engine.version == "engine" else ""
        found = session.exists(names, version=version, timeout=30)
    return {key for key, code in zip(keys, found.codes, strict=True) if code == 0}


def compare(engine: Engine, routers: Routers, lost: set[Any], when: str) -> None:
    """Compare each router's index with what there is."""
    groups = engine.connector._scheduler._group_ids
    # Events have hashes in a form of their own.
    told = maybe_convert_block_hash
    own = {(get_group_id(key), told(get_block_hash(key))) for key, _ in engine._hashed()}
    known = [(at, each) for each in engine._known for at in range(len(groups))]
    pool = {(groups[at], told(each)) for at, each in there(engine, known)}
    lost = {told(each) for each in lost}
    for router in routers.all():
        index, what = router.index, f"{when}: {router.index.clears.value}"
        claimed = index.claimed("CPU") | index.claimed("STORAGE")
        # The pool tells nobody what it loses: an index learns of it when the engine asks for the block.
        false = {key for key in claimed - pool if key[1] not in lost}
        if false:
            raise Fault(f"{what}: {len(false)} blocks of the pool are claimed and are not there")
        if index.clears is not Clears.NOTHING and (false := index.claimed(GPU) - own):
            raise Fault(f"{what}: {len(false)} blocks of the own cache are claimed and not there")
    steady = routers.steady[Clears.DEVICE]
    if steady.counts["anew"] > 0:
        if engine.config.kv_events_config.buffer_steps > FEW_STEPS:
            raise Fault(f"{when}: a router began anew, where all steps can be replayed")
        return  # on a machine that is late with few steps: what was told before is not known to it
    # A load that failed takes a block back that somebody may have stored meanwhile; with windows the next
    # look-up need not come across it.
    missing = pool - steady.index.claimed("CPU")
    if len(missing) > (0 if engine.worker._worker._by_block else 2):
        raise Fault(f"{when}: {len(missing)} of {len(pool)} blocks in the pool are not claimed")
    # Of the own cache vLLM itself forgets some: it removes a hash with the first of two equal blocks.
    kinds = steady.index.kinds
    if pool and set(kinds) != {group for group, _ in own | pool}:
        raise Fault(f"{when}: only of the groups {sorted(kinds)} it is known what they are")


def ask(
    engine: Engine, routers: Routers, prompts: list[list[int]], lost: set[Any], when: str
) -> None:
    """Let the engine be asked for what it is said to have; a model with full attention has all of it."""
    for tokens in prompts:
        lost_hashes = {maybe_convert_block_hash(each) for each in lost}
        before = routers.steady[Clears.DEVICE].index.prefix(tokens, lost=lost_hashes)
        served: list[int] = []
        matched = engine.connector.get_num_new_matched_tokens

        def asked(
            request: Any, computed: int, matched: Any = matched, served: list[int] = served
        ) -> Any:
            found = matched(request, computed)
            served.append(computed + (found[0] or 0))
            return found

        engine.connector.get_num_new_matched_tokens = asked
        engine.add(f"asked {when} {id(tokens)}", tokens, 1)
        settle(engine, routers)
        engine.connector.get_num_new_matched_tokens = matched
        # The last token is computed in any case.
        if served and max(served) < min(before, len(tokens) - 1) - engine.block_tokens:
            raise Fault(f"{when}: {before} tokens are claimed, {max(served)} found")


def route(seed: int, model: Path, directory: Path) -> dict[str, Any]:
    """Run a seed; raises what it finds."""
    world: World = world_of(seed)
    print(f"seed {seed}: {world}", flush=True)
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    pick = random.Random(seed)
    events, replay = f"ipc://{directory}/e", f"ipc://{directory}/r"
    told = KVEventsConfig(
        enable_kv_cache_events=True,
        publisher="zmq",
        endpoint=events,
        replay_endpoint=replay,
        buffer_steps=pick.choice([FEW_STEPS, 10_000]),
        hwm=pick.choice([2, 100_000]),
    )
    pool = engines.Embedded(directory / "p.sock", 64 << 20)
    engine = engine_of(world, model, pool.address, f"e{seed}", seed, events=told)
    routers = Routers(events, replay, pick)
    routers.look_after_steps_of(engine)
    life = Life(engine, world, seed)
    lost: set[bytes] = set()
    forget = engine.forget

    def forgotten(keys: list[str]) -> None:
        lost.update(bytes.fromhex(key.partition("@")[2]) for key in keys)
        forget(keys)

    engine.forget = forgotten  # type: ignore[method-assign]
    life.loses_at_allocation()
    try:
        for step in range(160):
            life.event()
            engine.step(0.3)
            routers.look(step)
            if step % 32 == 31:
                settle(engine, routers)
                compare(engine, routers, lost, f"step {step}")
        if world.kind in ("full", "MLA") and not engine.mixed:
            ask(engine, routers, life.prompts[-8:], lost, "at the end")
            compare(engine, routers, lost, "at the end")
        engine.reset(running=True, connector=True)
        settle(engine, routers)
        compare(engine, routers, set(), "after a reset")
        for each in routers.all():
            if each.index.claimed("CPU"):
                raise Fault("after a reset something of the pool is claimed")
        counts = [each.counts for each in routers.all()]
        return {key: [each[key] for each in counts] for key in counts[0]}
    finally:
        routers.close()
        engine.close()
        pool.close()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model"))


@pytest.mark.parametrize("seed", range(SEEDS[0], SEEDS[-1] + 1))
def test_with_vllm_a_router_claims_what_there_is(seed: int, model: Path, tmp_path: Path) -> None:
    print(route(seed, model, tmp_path))


@pytest.mark.skipif(SECONDS == 0, reason="KVCOVE_VLLM_SECONDS is not set")
def test_with_vllm_routers_of_many_seeds(model: Path, tmp_path: Path) -> None:
    until = time.monotonic() + SECONDS
    found = []
    for seed in itertools.count(int(os.environ.get("KVCOVE_VLLM_FROM", "1000"))):
        if time.monotonic() > until:
            break
        try:
            print(route(seed, model, tmp_path / str(seed)), flush=True)
        except (Fault, AssertionError, RuntimeError, ValueError) as error:
            found.append((seed, repr(error)))
            print(f"seed {seed}: {error!r}", flush=True)
    assert not found, found
