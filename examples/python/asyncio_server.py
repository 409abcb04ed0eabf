#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Requests of an asyncio server on a pool: python3 examples/python/asyncio_server.py [POOL]

The event loop never waits for the pool: other requests run while one loads. A slow pool costs a
request its deadline, and then the prompt is computed as without a pool.
"""

from __future__ import annotations

import asyncio
import sys

import kvcove
from kvcove.aio import AsyncSession

DEADLINE = 0.5  # seconds that a load may take: about what computing the prompt would


async def compute(prompt: str) -> bytes:
    """Stand for the model."""
    await asyncio.sleep(0.01)
    return prompt.encode() * 1000


async def answer(session: AsyncSession, prompt: str) -> str:
    # Asked of the pool in a thread, so that the loop does not wait. Before the KV is computed: a
    # reset from now on makes the put below stale.
    token = await asyncio.to_thread(session.session.capture)
    try:
        (kv,) = await session.get([prompt], timeout=DEADLINE)
    except kvcove.Error as error:  # a deadline, or a pool that is away: go on without it
        print(f"without the pool: {error}")
        kv = None
    if kv is not None:
        return "loaded"
    stored = await session.put([prompt], [await compute(prompt)], token=token)
    return f"computed ({stored[0].code.name})"


async def main(address: str) -> None:
    pool = await asyncio.to_thread(kvcove.open, address)
    # It has the newest weights: else it would find nothing where an engine has reset the namespace.
    native = await asyncio.to_thread(
        pool.session, "example/async@1", engine="server", assume_weights=True
    )
    async with AsyncSession(native) as session:
        prompts = [f"prompt {number}" for number in range(8)]
        for turn in ("first", "second"):
            done = await asyncio.gather(*(answer(session, prompt) for prompt in prompts))
            print(f"{turn} turn: {', '.join(f'{done.count(w)} {w}' for w in sorted(set(done)))}")

        # A client that hangs up cancels its request. The call's buffer stays alive until nothing
        # can land in it any more, so it is safe to drop it here.
        buffer = bytearray(len(prompts[0]) * 1000)
        load = asyncio.create_task(session.get_into([prompts[0]], [buffer]))
        await asyncio.sleep(0)
        load.cancel()
        (ended,) = await asyncio.gather(load, return_exceptions=True)
        print(f"a client that hung up: {type(ended).__name__}")

        await session.reset()  # the weights have changed
        print(f"after a reset: {await answer(session, prompts[0])}")
    await asyncio.to_thread(pool.close)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "embedded:?memory=64MiB"))
