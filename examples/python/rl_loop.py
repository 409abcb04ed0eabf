#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A reinforcement-learning loop on one pool: python3 examples/python/rl_loop.py [POOL]

Two engines make rollouts, a trainer makes new weights, and the engines take them one after the other,
as asynchronous trainers do. KV is stored under the version of the weights that computed it, so an
update needs no barrier and erases nothing. docs/generations.md has the rules.
"""

from __future__ import annotations

import secrets
import sys

import kvcove

NAMESPACE = "example/policy@toy"
RUN = f"run-{secrets.token_hex(4)}"
PROMPTS = [f"problem {number}" for number in range(4)]


def version_of(step: int) -> str:
    """Name the bytes of the weights: with the run's id, as another run's step 1 has other bytes."""
    return f"{RUN}/step-{step}"


def compute(weights: int, prompt: str) -> bytes:
    """Stand for the model: the KV of a prompt follows from the weights."""
    return f"{prompt} under weights {weights}".encode()


class Request:
    """A prompt whose KV is being computed under the weights that the engine had when it began."""

    def __init__(self, engine: Engine, prompt: str) -> None:
        self.engine, self.prompt = engine, prompt
        # Captured before anything is computed. The token names version and generation, and the put
        # takes it: however late that comes, nobody finds the value under other weights.
        self.token = engine.session.capture(engine.version)
        self.kv = compute(engine.weights, prompt)

    def store(self) -> str:
        """Put the KV; return the name of the answer's code."""
        return self.engine.session.put([self.prompt], [self.kv], token=self.token)[0].code.name


class Engine:
    def __init__(self, pool: kvcove.Pool, name: str) -> None:
        self.session = pool.session(NAMESPACE, engine=name)
        self.update(0)

    def update(self, weights: int) -> None:
        """Take other weights. What is stored stays: engines that have not updated yet use it."""
        self.weights, self.version = weights, version_of(weights)
        self.session.name_versions([self.version])  # of a full pool, others are evicted first

    def rollout(self) -> str:
        """Answer each prompt; say how many had their KV in the pool."""
        loaded = 0
        for prompt in PROMPTS:
            (kv,) = self.session.get([prompt], version=self.version)
            if kv is None:
                Request(self, prompt).store()
            else:
                assert kv == compute(self.weights, prompt), "KV of other weights"
                loaded += 1
        return f"{loaded} of {len(PROMPTS)} loaded"


def main(address: str) -> None:
    with kvcove.open(address) as pool:
        first, second = Engine(pool, "rollout-0"), Engine(pool, "rollout-1")
        trainer = pool.session(NAMESPACE, engine="trainer")

        print(f"step 0, first engine: {first.rollout()}")
        print(f"step 0, second engine: {second.rollout()}")

        # The first engine updates while the second one is still busy with the old weights.
        slow = Request(second, "a long answer")
        first.update(1)
        print(f"step 1, first engine: {first.rollout()}")
        print(f"step 0, second engine: {second.rollout()}")
        print(f"the long answer of step 0: {slow.store()}, under step 0 alone")
        assert first.session.get(["a long answer"], version=first.version) == [None]

        # Both have step 2: nobody goes back. The trainer gives up what came before, for ever.
        late = Request(second, "a late answer")
        for engine in (first, second):
            engine.update(2)
            engine.rollout()
        print(f"pruned: {trainer.prune(version_of(2))} versions")
        print(f"a put of step 0 after that: {late.store()}")
        try:
            trainer.capture(version_of(0))
        except kvcove.DeniedError:
            print("step 0 again: denied")
        print(f"step 2, second engine: {second.rollout()}")

        # The weights of step 2 turn out to be wrong, and are loaded again under the same name. A
        # reset is the fence: once it returns, nothing that was begun before is found anywhere.
        late = Request(first, "begun before the reset")
        trainer.reset(all_void=True)  # of the trainer: the engines' sessions follow by themselves
        print(f"a put from before the reset: {late.store()}")
        print(f"step 2 after the reset, first engine: {first.rollout()}")
        print(f"step 2 after the reset, second engine: {second.rollout()}")
        for session in (trainer, first.session, second.session):
            session.close()


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "embedded:?memory=64MiB")
