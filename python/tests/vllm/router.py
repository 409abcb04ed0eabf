# SPDX-License-Identifier: Apache-2.0
"""What routers believe that know an engine's KV events alone: router.py routed MODEL OUT.

Routers of each kind (router_index.py) listen to one engine over ZMQ: some from its start, one joins late, one is
started again in the middle, one does not look until the end. The engine stores, evicts (its pool is small), changes
its weights and resets. $KVCOVE_EXTRA is the connector's extra configuration. Writes JSON to OUT.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import weights
from driver import PROMPTS, say
from own import OwnEngine
from router_index import GPU, Clears, Index, Subscriber

LONG = [[(11 * i + 17 * j + j * j) % 900 + 10 for j in range(1900)] for i in range(6)]


class Routed:
    """An engine and its routers."""

    def __init__(self, model: str, out: str) -> None:
        from vllm.config import KVEventsConfig

        self._sockets = f"ipc://{out}.events", f"ipc://{out}.replay"
        options: dict[str, Any] = {}
        if "state" in Path(model).name:
            options = {"enable_prefix_caching": True, "mamba_cache_mode": "align"}
        events = KVEventsConfig(
            enable_kv_cache_events=True,
            publisher="zmq",
            endpoint=self._sockets[0],
            replay_endpoint=self._sockets[1],
        )
        self.routers = {each.value: self._join(each) for each in Clears}
        self.routers["started again"] = self._join(Clears.DEVICE)
        self.routers["slow"] = self._join(Clears.DEVICE, most_waiting=1)
        self.engine = OwnEngine(model, kv_events_config=events, **options)
        self.core = self.engine.llm.llm_engine.engine_core.engine_core
        self.side = self.core.scheduler.connector._scheduler

    def _join(self, clears: Clears, most_waiting: int = 0) -> Subscriber:
        return Subscriber(Index(clears), *self._sockets, most_waiting)

    def join_late(self) -> None:
        self.routers["late"] = self._join(Clears.DEVICE)

    def start_again(self) -> None:
        self.routers["started again"].close()
        self.routers["started again"] = self._join(Clears.DEVICE)

    def look(self, slow: bool = False) -> dict[str, Any]:
        """Return what each router claims, and how much of that is false."""
        self.engine.run([[5, 6, 7]])  # its steps tell what a reset takes back
        time.sleep(0.5)
        seen: dict[str, Any] = {}
        for name, router in self.routers.items():
            if name == "slow" and not slow:
                continue
            router.poll()
            router.catch_up()
            index = router.index
            claimed = index.claimed("CPU") | index.claimed("STORAGE")
            own = set() if index.clears is Clears.NOTHING else index.claimed(GPU) - self._own()
            seen[name] = {
                "claimed": len(claimed),
                "false": len(claimed - self._stored(claimed)) + len(own),
                "tokens": [index.prefix(prompt) for prompt in PROMPTS],
            }
        seen["kinds"] = sorted(set(self.routers["device"].index.kinds.values()))
        return seen

    def _own(self) -> set[tuple[int, Any]]:
        from vllm.v1.core.kv_cache_utils import get_block_hash, get_group_id

        pool = self.core.scheduler.kv_cache_manager.block_pool
        return {
            (get_group_id(key), get_block_hash(key))
            for key in pool.cached_block_hash_to_block._cache
        }

    def _stored(self, claimed: set[tuple[int, Any]]) -> set[tuple[int, Any]]:
        keys = sorted(claimed)
        numbers = {group: at for at, group in enumerate(self.side._group_ids)}
        names = [f"g{numbers[group]}.h0of1@{each.hex()}".encode() for group, each in keys]
        if not names:
            return set()
        with self.side._pool.session(self.side.shape.namespace) as session:
            found = session.exists(names, version=self.side.role.version, timeout=30)
        return {key for key, code in zip(keys, found.codes, strict=True) if code == 0}


def routed(model: str, out: str) -> dict[str, Any]:
    all_of_it = Routed(model, out)
    engine = all_of_it.engine
    seen: dict[str, Any] = {}
    engine.run()
    engine.settle()
    seen["stored"] = all_of_it.look()
    all_of_it.join_late()
    # The own cache is empty: who takes AllBlocksCleared for everything has to be told once more.
    seen["served"] = engine.measured()[1]
    seen["found"] = all_of_it.look()
    engine.settle()
    all_of_it.start_again()
    for prompt in LONG:  # more than the pool has room for
        engine.run([prompt])
        engine.settle()
    # What was evicted is told when somebody asks for it.
    before = engine.external_hits()
    for prompt in PROMPTS:
        engine.run([[*prompt[:1400], *([3] * 8)]])
    seen["asked_hits"] = engine.external_hits() - before
    engine.settle()
    seen["evicted"] = all_of_it.look()
    engine.llm.apply_model(weights.change_and_remember)
    engine.run([[5, 6, 7]])
    seen["other_weights"] = all_of_it.look()
    engine.run()
    engine.settle()
    seen["their_own"] = all_of_it.look()
    seen["reset"] = bool(engine.reset(connector=True))
    seen["after"] = all_of_it.look(slow=True)
    seen["counts"] = {name: router.counts for name, router in all_of_it.routers.items()}
    say(f"routers: {seen['stored']['device']}, after a reset {seen['after']['device']}")
    for router in all_of_it.routers.values():
        router.close()
    return seen


def checks(name: str, seen: dict[str, Any], tokens: int) -> Iterator[tuple[bool, str]]:
    """Return what must be so, and what it is, of a model with full attention and of others."""
    phases = ["stored", "found", "evicted", "other_weights", "their_own", "after"]
    claims = {
        (phase, router): claim
        for phase in phases
        for router, claim in seen[phase].items()
        if router != "kinds"
    }
    false = {where: claim["false"] for where, claim in claims.items() if claim["false"]}
    # Of what was evicted a block is claimed until it is asked for; of whole prompts nothing is.
    wrong = {where: count for where, count in false.items() if where[0] != "evicted"}
    yield not wrong, f"{name}: no router claims what is not there ({len(claims)} looks): {wrong}"
    stored, found = seen["stored"], seen["found"]
    yield (
        sum(stored["device"]["tokens"]) == sum(found["all"]["tokens"]) == tokens == seen["served"],
        f"{name}: {sum(stored['device']['tokens'])} tokens claimed, {seen['served']} found; told once "
        f"more behind AllBlocksCleared: {sum(found['all']['tokens'])}",
    )
    yield (
        found["late"]["tokens"] == found["device"]["tokens"]
        and seen["their_own"]["started again"]["tokens"] == seen["their_own"]["device"]["tokens"]
        and seen["counts"]["late"]["replayed"] > 0,
        f"{name}: those that join late, or are started again, claim the same after a replay",
    )
    yield (
        all(seen["other_weights"][each]["claimed"] == 0 for each in ("all", "device", "nothing")),
        f"{name}: with other weights nothing of the pool is claimed",
    )
    gaps = seen["counts"]["slow"]["gaps"] + seen["counts"]["slow"]["replayed"]
    yield (
        seen["reset"]
        and all(claim["claimed"] == 0 for (phase, _), claim in claims.items() if phase == "after")
        and gaps > 0,
        f"{name}: after a reset nothing of the pool is claimed, by the slow one neither",
    )


def main() -> None:
    role, model, out = sys.argv[1:4]
    assert role == "routed", role
    Path(out).write_text(json.dumps(routed(model, out)))


if __name__ == "__main__":
    os.environ.setdefault("KVCOVE_EXTRA", "{}")
    main()
