# SPDX-License-Identifier: Apache-2.0
"""A router's index of what an engine has, made of vLLM's KV events alone.

As public routers do it: Dynamo keeps blocks by medium, and takes AllBlocksCleared for the engine's own
memory; others take it for everything; llm-d leaves it out. A subscriber that joins late, or has missed
batches, asks the engine's replay socket; where that does not go back far enough it begins anew.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Collection, Sequence
from typing import Any

import msgspec
import zmq

END = (-1).to_bytes(8, "big", signed=True)
GPU = "GPU"


class Clears(enum.Enum):
    """What a router takes AllBlocksCleared for."""

    ALL = "all"
    DEVICE = "device"
    NOTHING = "nothing"


class Index:
    """Blocks by group and hash, with the media that they lie on.

    Parameters
    ----------
    clears : Clears
        What ``AllBlocksCleared`` means here.
    """

    def __init__(self, clears: Clears) -> None:
        self.clears = clears
        self.blocks: dict[tuple[int, bytes | int], set[str]] = {}
        # By group, parent and tokens: how a prompt is looked up, as its hashes are not known here.
        self._children: dict[tuple[int, Any, tuple[int, ...]], bytes | int] = {}
        self._sizes: dict[int, int] = {}
        self.kinds: dict[int, str] = {}

    def clear(self) -> None:
        self.blocks.clear()
        self._children.clear()

    def take(self, event: Any) -> None:
        name = type(event).__name__
        if name == "AllBlocksCleared":
            self._cleared()
            return
        group = event.group_idx or 0
        medium = event.medium or GPU
        if name == "BlockRemoved":
            for each in event.block_hashes:
                media = self.blocks.get((group, each), set())
                media.discard(medium)
                if not media:
                    self.blocks.pop((group, each), None)
            return
        assert name == "BlockStored", name
        if getattr(event, "kv_cache_spec_kind", None):
            self.kinds[group] = event.kv_cache_spec_kind
        size, tokens, parent = event.block_size, event.token_ids, event.parent_block_hash
        for each in event.block_hashes:
            self.blocks.setdefault((group, each), set()).add(medium)
        # Of a group that leaves blocks out the tokens are more than its hashes cover.
        if len(tokens) == size * len(event.block_hashes):
            self._sizes[group] = size
            for at, each in enumerate(event.block_hashes):
                part = tuple(tokens[at * size : (at + 1) * size])
                self._children[group, parent, part] = each
                parent = each

    def _cleared(self) -> None:
        if self.clears is Clears.ALL:
            self.clear()
        elif self.clears is Clears.DEVICE:
            for key in list(self.blocks):
                self.blocks[key].discard(GPU)
                if not self.blocks[key]:
                    del self.blocks[key]

    def claimed(self, medium: str) -> set[tuple[int, bytes | int]]:
        """Return the blocks that lie on a medium."""
        return {key for key, media in self.blocks.items() if medium in media}

    def prefix(self, tokens: Sequence[int], group: int = 0, lost: Collection[Any] = ()) -> int:
        """Return how many of a prompt's first tokens the engine is said to have.

        ``lost`` are blocks that the pool has no more, which it tells nobody.
        """
        size, parent, at = self._sizes.get(group), None, 0
        if size is None:
            return 0
        while at + size <= len(tokens):
            parent = self._children.get((group, parent, tuple(tokens[at : at + size])))
            media = self.blocks.get((group, parent), set())
            if not media or (parent in lost and GPU not in media):
                break
            at += size
        return at


class Subscriber:
    """Keeps an index up to date with one engine's events.

    Parameters
    ----------
    index : Index
        What is kept.
    events, replay : str
        The engine's sockets.
    most_waiting : int
        Batches that the socket keeps for a subscriber that does not look; the others are lost.
    """

    def __init__(self, index: Index, events: str, replay: str, most_waiting: int = 0) -> None:
        from vllm.distributed.kv_events import KVEventBatch

        self._batches = msgspec.msgpack.Decoder(type=KVEventBatch)
        self._context = zmq.Context.instance()
        self._events = self._context.socket(zmq.SUB)
        if most_waiting:
            self._events.setsockopt(zmq.RCVHWM, most_waiting)
        self._events.connect(events)
        self._events.setsockopt_string(zmq.SUBSCRIBE, "")
        self._replay_address = replay
        self.index = index
        self.next = 0
        self.counts = {"batches": 0, "gaps": 0, "replayed": 0, "anew": 0}

    def close(self) -> None:
        self._events.close(linger=0)

    def poll(self) -> None:
        """Take what has come."""
        while self._events.poll(0):
            _, number, payload = self._events.recv_multipart()
            self._take(int.from_bytes(number, "big"), payload)

    def _take(self, number: int, payload: bytes) -> None:
        if (
            number < self.next and number == 0
        ):  # an engine that was started again has nothing of before
            self.begin_anew()
        if number < self.next:
            return  # it came with a replay
        if number > self.next:
            self.counts["gaps"] += 1
            self.catch_up(number)
        if number == self.next:
            self._apply(number, payload)

    def _apply(self, number: int, payload: bytes) -> None:
        self.counts["batches"] += 1
        for event in self._batches.decode(payload).events:
            self.index.take(event)
        self.next = number + 1

    def begin_anew(self) -> None:
        """Forget everything: what was missed may have been removals."""
        self.counts["anew"] += 1
        self.index.clear()
        self.next = 0

    def catch_up(self, until: int | None = None, seconds: float = 20.0) -> None:
        """Ask for the batches from the next one on, until one that is at hand, or all."""
        socket = self._context.socket(zmq.DEALER)
        try:
            socket.connect(self._replay_address)
            socket.send_multipart([b"", self.next.to_bytes(8, "big")])
            end = time.monotonic() + seconds
            while True:
                if not socket.poll(max(0, int(1e3 * (end - time.monotonic())))):
                    raise TimeoutError("the engine does not replay its events")
                _, _, number, payload = socket.recv_multipart()
                if number == END:
                    break
                at = int.from_bytes(number, "big")
                if until is not None and at >= until:
                    continue
                if at > self.next:  # it does not go back far enough
                    self.begin_anew()
                    self.next = at
                if at == self.next:
                    self.counts["replayed"] += 1
                    self._apply(at, payload)
        finally:
            socket.close(linger=0)
        if until is not None and self.next < until:
            self.begin_anew()
            self.next = until
