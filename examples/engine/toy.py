#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A whole engine of one rank on a kvcove pool: python3 examples/engine/toy.py [POOL]

It has no model. What a token leaves in its KV block is a byte that follows from the token, the
weights, and the byte before; so KV of other weights, or in the wrong place, is seen as such. All else
is as in a real engine: blocks with references, block hashes, a scheduler that steps, and loads and
saves beside the steps. docs/connector.md ("Another engine") says why each call is where it is.
"""

from __future__ import annotations

import ctypes
import hashlib
import sys
import time
from dataclasses import dataclass, field

import kvcove
from kvcove import engines

BLOCK = 16  # tokens, and here bytes
BLOCKS = 64  # of the engine's own memory; 0 is the null block, which holds nothing


@dataclass
class Request:
    name: str
    tokens: list[int]
    hashes: list[bytes] = field(default_factory=list)  # of full blocks, each with its prefix
    blocks: list[int] = field(default_factory=list)
    computed: int = 0  # tokens whose KV is there
    loaded: int = 0  # of them, by the pool
    state: str = "waiting"  # then "loading", "running"

    def __post_init__(self) -> None:
        before = b""
        for at in range(0, len(self.tokens) // BLOCK * BLOCK, BLOCK):
            text = before + bytes(self.tokens[at : at + BLOCK])
            before = hashlib.sha256(text).digest()
            self.hashes.append(before)


class Engine:
    def __init__(self, name: str, address: str, weights: int) -> None:
        self.weights = weights
        # What must be equal for two engines to share. A group is (kind, tokens of a chunk, window,
        # KV heads, layout); every fact of a real engine that changes a block's bytes belongs here.
        shape = engines.EngineShape(
            **{"space": "", "model_name": "toy", "model": "toy-1", "kv_dtype": "byte"},
            **{"hashing": "sha256", "hash_tokens": BLOCK, "layers": "one", "store_tp": 0},
            **{"tp": 1, "pp": 1, "pcp": 1, "dcp": 1, "interleave": 1},
            groups=[("full", BLOCK, 0, 1, "N")],
        )
        self.pool = kvcove.open(address)
        # In a real engine this one is in the scheduler's process ...
        self.scheduler = engines.SchedulerRole(
            shape,
            self.pool,
            **{"engine": name, "pool_address": address, "versions": "fingerprint"},
            **{"lookup_budget": 0.005, "lookup_timeout": 1.0, "hold": 60.0, "reset_timeout": 2.5},
            **{"load_async": True, "lookup": True, "save": True, "save_decoded": False},
            **{"events": False, "closed_on_reset_failure": False, "assume_weights": False},
            blocks=BLOCKS,
        )
        # ... and one of these in the process of each rank.
        self.worker = engines.WorkerRole(
            shape,
            **{"tp": 0, "pp": 0, "pcp": 0, "engine": name, "threads": 1, "timeout": 1.0},
            **{"fingerprints": True, "tier_log": False, "preferred_segment": ""},
        )
        self.memory = (ctypes.c_ubyte * (BLOCKS * BLOCK))()
        layer = ("kv", 0, ctypes.addressof(self.memory), BLOCK, [("block", BLOCKS, BLOCK)])
        self.worker.register([layer])
        self.references = [1] + [0] * (BLOCKS - 1)
        self.requests: dict[str, Request] = {}
        self.failed: set[str] = set()

    # ---- blocks

    def take(self, count: int) -> list[int]:
        free = [block for block, held in enumerate(self.references) if held == 0][:count]
        assert len(free) == count, "a real engine would let the request wait"
        for block in free:
            self.references[block] += 1
        return free

    def give(self, blocks: list[int]) -> None:
        for block in blocks:
            self.references[block] -= 1

    # ---- a step

    def start(self, request: Request) -> None:
        """Ask the pool once; blocks come with the answer."""
        size = len(request.tokens)
        found, _ = self.scheduler.matched(request.name, size, size, "", request.hashes, 0)
        if found is None:
            return  # not known yet: ask again with the next step
        request.blocks = self.take((size + BLOCK - 1) // BLOCK)
        self.scheduler.allocated(request.name, found, lambda: [request.blocks])
        request.loaded = found
        request.state = "loading" if found else "running"

    def compute(self, request: Request) -> None:
        """Compute what is not there: from the last byte that is."""
        size = len(request.tokens)
        self.scheduler.schedule(
            request.name,
            *(size, size, "", request.hashes),
            request.computed,
            size - request.computed,
            True,
            lambda: [request.blocks],
        )
        before = self.byte(request, request.computed - 1) if request.computed else 0
        for at in range(request.computed, size):
            before = (before * 31 + request.tokens[at] + self.weights) % 251
            self.memory[request.blocks[at // BLOCK] * BLOCK + at % BLOCK] = before
        request.computed = size

    def byte(self, request: Request, at: int) -> int:
        return self.memory[request.blocks[at // BLOCK] * BLOCK + at % BLOCK]

    def step(self) -> None:
        for request in self.requests.values():
            if request.state == "waiting":
                self.start(request)
        running = [each for each in self.requests.values() if each.state == "running"]
        for request in running:
            self.compute(request)
        plan, pins = self.scheduler.build_plan()
        for block in pins:  # saves read them: they stay as they are
            self.references[block] += 1
        # To every rank, with the step; a report from each rank back.
        if self.worker.begin(plan):
            self.worker.set_fingerprint(f"{self.weights:032x}")  # of what is in its memory now
        self.worker.finish_step(None)  # a GPU engine names its stream, here and in begin
        loaded, failed_blocks, _ = self.worker.take_ended() or ([], [], [])
        if (report := self.worker.take_report()) is not None:
            self.scheduler.on_report(report)
        for name in loaded:
            self.ended(name, set(failed_blocks))
        self.give(self.scheduler.take_unpins())
        for request in running:
            del self.requests[request.name]
            self.scheduler.finished(request.name)
            self.give(request.blocks)

    def ended(self, name: str, failed: set[int]) -> None:
        """Go on behind a load; from its first block that holds nothing, if there is one."""
        if not self.scheduler.load_ended(name):
            return  # it became void: the ranks end it once more, as failed
        request = self.requests[name]
        good = next(
            (at for at in range(request.loaded // BLOCK) if request.blocks[at] in failed),
            request.loaded // BLOCK,
        )
        request.loaded = request.computed = good * BLOCK
        request.state = "running"

    # ---- what a user calls

    def run(self, name: str, tokens: list[int]) -> tuple[int, int]:
        """Return the last byte of a prompt, and how many of its tokens were loaded."""
        request = Request(name, tokens)
        self.requests[name] = request
        while name in self.requests:
            self.step()
        answer = self.byte(request, len(tokens) - 1)
        while self.scheduler.pending():  # saves end beside later steps
            self.step()
            time.sleep(0.001)
        return answer, request.loaded

    def change_weights(self, weights: int) -> None:
        self.scheduler.weights_changing()
        self.weights = weights
        self.scheduler.weights_changed()

    def close(self) -> None:
        self.worker.close()
        self.scheduler.close()
        self.pool.close()


def main(address: str) -> None:
    prompt = [number % 97 for number in range(100)]
    first, second = Engine("first", address, 3), Engine("second", address, 3)
    answer, loaded = first.run("a", prompt)
    print(f"first engine: {answer}, {loaded} of {len(prompt)} tokens loaded")
    again, loaded = second.run("b", prompt)
    print(f"second engine: {again}, {loaded} of {len(prompt)} tokens loaded")
    second.change_weights(5)
    other, loaded = second.run("c", prompt)
    print(f"with other weights: {other}, {loaded} of {len(prompt)} tokens loaded")
    second.change_weights(3)
    back, loaded = second.run("d", prompt)
    print(f"with the first ones again: {back}, {loaded} of {len(prompt)} tokens loaded")
    assert answer == again == back != other
    assert first.references[1:] == second.references[1:] == [0] * (BLOCKS - 1)
    second.close()
    first.close()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(sys.argv[1])
    else:
        own = engines.Embedded(engines.directory() / "toy.sock", 64 << 20)
        try:
            main(own.address)
        finally:
            own.close()
