# SPDX-License-Identifier: Apache-2.0
"""Eight threads on one store for a while: whole values only, and neither memory nor descriptors grow.

``python soak.py MASTER SECONDS`` makes random calls of every kind on keys that all threads share. A
value says which key it belongs to and repeats itself, so that a mixture of two shows. Memory (RSS) and
descriptors are read four times; the last readings may not lie above the second ones by more than
``ROOM`` and a descriptor a thread.
"""

from __future__ import annotations

import ctypes
import gc
import itertools
import os
import random
import sys
import threading
import time
from typing import Any

THREADS = 8
KEYS = 64
SIZES = (64, 4096, 70_000, 1 << 20)
ROOM = 12 << 20  # bytes that an allocator of eight threads may keep
SIDE = 1 << 20  # each thread's part of the registered buffer
RATE = 13  # calls a second that each thread has made before a reading: a busy machine reads later
STRIPE = 32


def value_of(key: int, size: int, version: int) -> bytes:
    stripe = f"{key:08d}:{version:022d};".encode()
    return (stripe * (size // STRIPE + 1))[:size]


def whole(key: int, value: bytes) -> bool:
    stripe = value[:STRIPE]
    return (
        stripe.startswith(b"%08d:" % key)
        and value == (stripe * (len(value) // STRIPE + 1))[: len(value)]
    )


class Worker:
    """One thread's calls."""

    def __init__(self, store: Any, address: int, number: int) -> None:
        self._store, self._at, self._random = store, address, random.Random(number)
        self._versions = itertools.count(number, THREADS)
        self.wrong: list[str] = []
        self.calls = 0

    def step(self) -> None:
        kinds = (self._put, self._put_from, self._get, self._get_into, self._ranges, self._buffer)
        more = (self._session, self._remove, self._ask, self._upsert, self._register, self._wrong)
        self._random.choice(kinds + more)()
        self.calls += 1

    def _key(self) -> tuple[int, str]:
        key = self._random.randrange(KEYS)
        return key, f"soak-{key}"

    def _value(self, key: int) -> bytes:
        return value_of(key, self._random.choice(SIZES), next(self._versions))

    def _check(self, key: int, value: bytes, call: str) -> None:
        if value and not whole(key, value):
            self.wrong.append(f"{call} of key {key}: {value[:80]!r}")

    def _put(self) -> None:
        key, name = self._key()
        value = self._value(key)
        self._random.choice((self._store.put, self._store.put_parts))(name, value)

    def _upsert(self) -> None:
        key, name = self._key()
        self._store.upsert(name, self._value(key))

    def _put_from(self) -> None:
        key, name = self._key()
        value = self._value(key)
        ctypes.memmove(self._at, value, len(value))
        self._store.batch_put_from([name], [self._at], [len(value)])

    def _get(self) -> None:
        key, name = self._key()
        self._check(key, self._store.get(name), "get")

    def _get_into(self) -> None:
        key, name = self._key()
        size = self._store.batch_get_into([name], [self._at], [SIDE])[0]
        if size > 0:
            self._check(key, ctypes.string_at(self._at, size), "batch_get_into")

    def _ranges(self) -> None:
        key, name = self._key()
        got = self._store.get_into_ranges([self._at], [[name]], [[[0]]], [[[0]]], [[[64]]])
        if got and got[0][0][0] == 64:
            self._check(key, ctypes.string_at(self._at, 64), "get_into_ranges")

    def _buffer(self) -> None:
        key, name = self._key()
        found = self._store.batch_get_buffer([name])[0]
        if found is not None:
            self._check(key, bytes(found), "batch_get_buffer")

    def _session(self) -> None:
        key, name = self._key()
        if self._store.batch_get_session_start([name]) == [0]:
            call = self._store.batch_get_into_multi_buffer_ranges
            if call([name], [[self._at]], [[64]], [[0]]) == [64]:
                self._check(key, ctypes.string_at(self._at, 64), "a session")
            self._store.batch_get_session_end([name])
        value = self._value(key)[:4096]
        ctypes.memmove(self._at, value, len(value))
        if self._store.batch_put_session_start([f"{name}-s"], [len(value)]) == [0]:
            put = self._store.batch_put_from_multi_buffer_ranges
            put([f"{name}-s"], [[self._at]], [[len(value)]], [[0]])
            ends = (self._store.batch_put_session_end, self._store.batch_put_session_revoke)
            self._random.choice(ends)([f"{name}-s"])
            self._store.remove(f"{name}-s", True)

    def _remove(self) -> None:
        self._store.batch_remove([self._key()[1] for _ in range(3)], True)

    def _ask(self) -> None:
        names = [self._key()[1] for _ in range(8)]
        self._store.batch_is_exist(names)
        self._store.batch_get_replica_desc(names)
        self._store.get_size(names[0])

    def _register(self) -> None:
        memory = ctypes.create_string_buffer(4096)
        at = ctypes.addressof(memory)
        if self._store.register_buffer(at, 4096) == 0:
            self._store.unregister_buffer(at)

    def _wrong(self) -> None:
        key, name = self._key()
        codes = [
            self._store.put("", b"x"),
            self._store.batch_put_from([name], [0], [8])[0],
            self._store.batch_get_into([name], [8], [8])[0],
        ]
        if min(codes) >= 0 or max(codes[:2]) >= 0:
            self.wrong.append(f"wrong arguments for key {key} were taken: {codes}")


def resident() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")


def descriptors() -> int:
    """Return how many are open, but for those that a call under way has for a moment."""
    return min(len(os.listdir("/proc/self/fd")) for _ in range(50))


def run(store: Any, seconds: float) -> tuple[int, list[str], list[tuple[int, int]]]:
    """Return how many calls were made, what was wrong, and the readings."""
    memory = ctypes.create_string_buffer(THREADS * SIDE)
    base = ctypes.addressof(memory)
    if store.register_buffer(base, THREADS * SIDE) != 0:
        raise SystemExit("register_buffer failed")
    stop = threading.Event()
    workers = [Worker(store, base + i * SIDE, i) for i in range(THREADS)]

    def work(worker: Worker) -> None:
        while not stop.is_set() and not worker.wrong:
            worker.step()

    threads = [threading.Thread(target=work, args=(worker,)) for worker in workers]
    for thread in threads:
        thread.start()
    begun = time.monotonic()
    readings = []
    for part in (0.1, 0.4, 0.7, 1.0):
        while time.monotonic() < begun + seconds * part or (
            min(one.calls for one in workers) < RATE * seconds * part
            and all(thread.is_alive() for thread in threads)
        ):
            time.sleep(0.02)
        gc.collect()
        readings.append((resident(), descriptors()))
    stop.set()
    for thread in threads:
        thread.join()
    store.unregister_buffer(base)
    return sum(one.calls for one in workers), [w for one in workers for w in one.wrong], readings


def main() -> None:
    from mooncake.store import MooncakeDistributedStore

    store = MooncakeDistributedStore()
    # The whole segment is touched before the first reading: its pages are no growth.
    if store.setup("127.0.0.1", "P2PHANDSHAKE", 64 << 20, 16 << 20, "tcp", "", sys.argv[1]) != 0:
        raise SystemExit("setup failed")
    for i in range(100):
        store.put(f"fill-{i}", bytes([i]) * (1 << 20))
    calls, wrong, readings = run(store, float(sys.argv[2]))
    store.close()
    told = ", ".join(f"{memory >> 20} MiB {files}" for memory, files in readings)
    print(f"{calls} calls; memory and descriptors: {told}")
    # What the first tenth of the time had not met yet, a connection for each call at once, is no growth.
    early, late = readings[1], readings[-1]
    grown = late[0] - early[0]
    if wrong:
        raise SystemExit("\n".join(wrong[:10]))
    if grown > ROOM or late[1] > early[1] + THREADS:
        raise SystemExit(f"memory grew by {grown} bytes, or descriptors did")


if __name__ == "__main__":
    main()
