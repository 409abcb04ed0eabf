#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What an engine does for a prompt: python3 examples/python/prefix.py [POOL]

It looks up how much of the prompt is there, loads that, computes the rest and stores it. A chunk is
named by a hash of its tokens and of all tokens before it, so two prompts share what they begin with.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Sequence

import numpy as np

import kvcove

CHUNK = 16  # tokens
SHAPE = (2, CHUNK, 8)  # K and V of one chunk, here of one layer


def chunk_keys(tokens: Sequence[int]) -> list[bytes]:
    """Return a key for each full chunk."""
    keys, before = [], b""
    for at in range(0, len(tokens) // CHUNK * CHUNK, CHUNK):
        text = before + np.asarray(tokens[at : at + CHUNK], np.int32).tobytes()
        before = hashlib.sha256(text).digest()
        keys.append(before)
    return keys


def compute(tokens: Sequence[int], chunk: int) -> np.ndarray:
    """Stand for the model: KV that follows from all tokens up to the chunk's end."""
    return np.full(SHAPE, sum(tokens[: (chunk + 1) * CHUNK]), np.float32)


def prefill(session: kvcove.Session, tokens: Sequence[int]) -> tuple[list[np.ndarray], int]:
    """Return the KV of each full chunk, and how many of them were loaded."""
    # Before anything is computed: a reset from now on makes the put below stale.
    token = session.capture()
    keys = chunk_keys(tokens)
    found = session.longest_prefix(keys)
    kv = [np.empty(SHAPE, np.float32) for _ in keys]
    results = session.get_into(keys[:found], kv[:found])
    # The look-up was a hint. A chunk may have been evicted since: what follows it is computed, too.
    loaded = next((at for at, result in enumerate(results) if not result.ok), found)
    for chunk in range(loaded, len(keys)):
        kv[chunk] = compute(tokens, chunk)
    if loaded < len(keys):
        # `after` tells the pool that these follow a chunk, which it then evicts later than them.
        after = keys[loaded - 1] if loaded else None
        for result in session.put(keys[loaded:], kv[loaded:], token=token, after=after):
            if result.code not in (kvcove.Code.OK, kvcove.Code.EXISTS):
                print(f"not stored: {result.code.name}")  # no error: the next one computes it again
    return kv, loaded


def main(address: str) -> None:
    # An engine of this namespace may have reset it for newer weights, so one that starts finds and
    # stores nothing unless it says that it has them, as this one does, or resets, too.
    with (
        kvcove.open(address) as pool,
        pool.session("example/toy@1/float32", engine="a", assume_weights=True) as session,
    ):
        system = list(range(40))
        for name, tokens in (
            ("first", [*system, *range(100, 140)]),
            ("the same", [*system, *range(100, 140)]),
            ("another question", [*system, *range(200, 240)]),
        ):
            kv, loaded = prefill(session, tokens)
            right = all((kv[at] == compute(tokens, at)).all() for at in range(len(kv)))
            print(f"{name}: {loaded} of {len(kv)} chunks loaded, {'right' if right else 'wrong'}")
        session.reset()  # the weights have changed: nothing from before is found anywhere
        first = session.exists(chunk_keys(system))[0]
        print(f"after the reset: {first.code.name} ({first.reason.name})")
        _, loaded = prefill(session, system)
        print(f"computed again: {loaded} of {len(chunk_keys(system))} chunks loaded")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "embedded:?memory=64MiB")
