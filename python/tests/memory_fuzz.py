# SPDX-License-Identifier: Apache-2.0
"""Random calls with addresses: none reads or writes a byte outside what is registered.

``python memory_fuzz.py MASTER SEED SECONDS`` sets a store up and calls every method that takes
addresses, with ranges, pieces and sizes that fit, that leave the buffer by one byte, that wrap, that
are negative or none. Two buffers are registered. Pages without any right lie around the first, so a
touch outside ends the process; known bytes that are never stored lie around the second, so a read
outside shows in a value, and a write outside shows in them. A model says what each buffer and each
key must hold after each call, and which calls must be refused. The last call is printed where
something differs, and the seed replays it.
"""

from __future__ import annotations

import ctypes
import itertools
import mmap
import random
import sys
import time
from typing import Any

PAGE = mmap.PAGESIZE
SIZE = 16 * PAGE
CANARY = 0xEE
REFUSED = -600
KEYS = [f"key-{i}" for i in range(12)]
WHOLE = 2**64


class Arena:
    """A registered buffer in the middle of three parts of one mapping, and what it must hold."""

    def __init__(self, *, guarded: bool) -> None:
        self._map = mmap.mmap(-1, 3 * SIZE)
        self._start = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        self.address = self._start + SIZE
        self.guarded = guarded
        self._map[:] = bytes([CANARY]) * (3 * SIZE)
        self.holds = bytearray(random.randbytes(SIZE).replace(bytes([CANARY]), b"\0"))
        ctypes.memmove(self.address, bytes(self.holds), SIZE)
        if guarded:
            libc = ctypes.CDLL(None, use_errno=True)
            for part in (self._start, self._start + 2 * SIZE):
                assert libc.mprotect(ctypes.c_void_p(part), SIZE, 0) == 0

    def has(self, address: int, size: int) -> bool:
        """Whether a piece is one that a call may touch."""
        return size > 0 and self.address <= address and address + size <= self.address + SIZE

    def maps(self, address: int, size: int) -> bool:
        """Whether a piece lies in the mapping, around the buffer or not."""
        return size > 0 and self._start <= address and address + size <= self._start + 3 * SIZE

    def read(self, address: int, size: int) -> bytes:
        at = address - self.address
        return bytes(self.holds[at : at + size])

    def write(self, address: int, content: bytes) -> None:
        at = address - self.address
        self.holds[at : at + len(content)] = content

    def forget(self, address: int, size: int) -> None:
        """Take over what a failed read has left in its own piece."""
        self.write(address, ctypes.string_at(address, size))

    def check(self) -> None:
        assert ctypes.string_at(self.address, SIZE) == self.holds, "the buffer holds other bytes"
        if not self.guarded:
            around = bytes([CANARY]) * SIZE
            assert ctypes.string_at(self._start, SIZE) == around, "written in front of the buffer"
            assert ctypes.string_at(self.address + SIZE, SIZE) == around, "written behind it"


class Fuzz:
    """One run: a store, its buffers, and the model of both."""

    def __init__(self, store: Any, seed: int) -> None:
        self._random = random.Random(seed)
        self._store = store
        self._arenas = [Arena(guarded=True), Arena(guarded=False)]
        for arena in self._arenas:
            assert store.register_buffer(arena.address, SIZE) == 0
        self._values: dict[str, bytes] = {}
        self._putting: dict[str, bytearray] = {}
        self.last = ""
        self.counts: dict[str, list[int]] = {}

    def step(self) -> None:
        """Make one call and compare."""
        call = self._random.choice(
            (
                self._put,
                self._put,
                self._put_parts,
                self._get,
                self._get,
                self._get_parts,
                self._ranges,
                self._ranges,
                self._put_session,
                self._get_session,
                self._read_back,
                self._remove,
            )
        )
        call()
        for arena in self._arenas:
            arena.check()

    # ---- what is asked for

    def _piece(self, arena: Arena, largest: int = SIZE) -> tuple[int, int]:
        """Return a piece; one that touches no registered byte is none that a call must refuse."""
        address, size = self._any_piece(arena, largest)
        beside = address + size <= arena.address or arena.address + SIZE <= address
        if beside and arena.maps(address, size) and not arena.guarded:
            return arena.address + SIZE - 1, 2
        return address, size

    def _any_piece(self, arena: Arena, largest: int) -> tuple[int, int]:
        """Return an address and a size: mostly of the buffer, often of its edges, at times absurd."""
        dice = self._random.random()
        at = self._random.randrange(SIZE)
        if dice < 0.6:
            return arena.address + at, self._random.randint(1, max(1, min(largest, SIZE - at)))
        if dice < 0.85:  # one byte inside, at, or behind an end
            size = self._random.choice((1, 7, 4096, largest, SIZE))
            begin = self._random.choice((0, SIZE - size)) + self._random.choice((-1, 0, 1))
            return arena.address + begin, size
        sizes = (0, -1, -SIZE, 2**31, 2**32 + 1, 2**63 - 1, 2**63, WHOLE - 1, WHOLE - at, WHOLE)
        address = self._random.choice((arena.address + at, 0, 1, WHOLE - 1, -1))
        return address, self._random.choice(sizes)

    def _pieces(self, arena: Arena) -> tuple[list[int], list[int]]:
        """Return pieces that do not lie over each other where they fit, or any."""
        if self._random.random() < 0.7:
            cuts = sorted(self._random.sample(range(SIZE), 2 * self._random.randint(1, 5)))
            pieces = [
                (arena.address + a, b - a) for a, b in zip(cuts[::2], cuts[1::2], strict=True)
            ]
            self._random.shuffle(pieces)
        else:
            pieces = [self._piece(arena) for _ in range(self._random.randint(0, 3))]
        return [address for address, _ in pieces], [size for _, size in pieces]

    def _offset(self, total: int) -> int:
        """Return an offset into something: mostly inside, at times its edge or absurd."""
        dice = self._random.random()
        if dice < 0.8:
            return self._random.randint(0, total)
        return self._random.choice((total, total + 1, max(0, total - 1), 2**63, WHOLE - 1))

    def _some_keys(self, most: int) -> list[str]:
        return self._random.sample(KEYS, self._random.randint(1, most))

    def _note(self, name: str, *arguments: Any) -> None:
        self.last = f"{name}{arguments!r}"

    def _expect(self, name: str, good: bool, answer: int, wanted: int) -> None:
        """Compare an answer with what the model says: the value of a call that fits, or -600."""
        count = self.counts.setdefault(name, [0, 0])
        count[0 if good else 1] += 1
        assert answer == (wanted if good else REFUSED), f"{name} answered {answer}"

    def _called(self, name: str, *arguments: Any) -> int:
        """Return what a ranged call answers for its one key; a number of no 64 bits is refused, too."""
        try:
            return int(getattr(self._store, name)(*arguments)[0])
        except TypeError:
            assert any(not 0 <= n < WHOLE for part in arguments[1:] for n in part[0])
            return REFUSED

    # ---- the calls

    def _stored(self, key: str, value: bytes, replace: bool) -> None:
        if replace or key not in self._values:
            self._values[key] = value

    def _put(self) -> None:
        arena = self._random.choice(self._arenas)
        replace = self._random.random() < 0.5
        keys = self._some_keys(4)
        pieces = [self._piece(arena, 4 * PAGE) for _ in keys]
        addresses, sizes = [p[0] for p in pieces], [p[1] for p in pieces]
        name = "batch_upsert_from" if replace else "batch_put_from"
        self._note(name, keys, addresses, sizes)
        answers = getattr(self._store, name)(keys, addresses, sizes)
        for key, address, size, answer in zip(keys, addresses, sizes, answers, strict=True):
            good = arena.has(address, size)
            self._expect(name, good, answer, 0)
            if good:
                self._stored(key, arena.read(address, size), replace)

    def _put_parts(self) -> None:
        arena = self._random.choice(self._arenas)
        keys = self._some_keys(3)
        pieces = [self._pieces(arena) for _ in keys]
        name = "batch_put_from_multi_buffers"
        self._note(name, keys, pieces)
        answers = getattr(self._store, name)(keys, [p[0] for p in pieces], [p[1] for p in pieces])
        for key, (addresses, sizes), answer in zip(keys, pieces, answers, strict=True):
            parts = list(zip(addresses, sizes, strict=True))
            good = bool(parts) and all(arena.has(*part) for part in parts)
            self._expect(name, good, answer, 0)
            if good:
                self._stored(key, b"".join(arena.read(*part) for part in parts), False)

    def _filled(
        self, arena: Arena, name: str, key: str, parts: list[tuple[int, int]], answer: int
    ) -> None:
        """Compare the answer of a read into pieces, and put into the model what it wrote."""
        good = bool(parts) and all(arena.has(*part) for part in parts)
        value = self._values.get(key)
        if good and value is None:
            assert answer == -704, f"{name} answered {answer} for a miss"
            return
        good = good and value is not None and len(value) <= sum(size for _, size in parts)
        self._expect(name, good, answer, len(value or b""))
        if not good or value is None:
            return
        for address, size in parts:
            arena.write(address, value[:size])
            value = value[size:]

    def _get(self) -> None:
        arena = self._random.choice(self._arenas)
        keys = self._some_keys(3)
        # No two of one call in the same place: nobody says which comes last.
        slot = SIZE // len(keys)
        pieces = []
        for i in range(len(keys)):
            address, size = self._piece(arena)
            if arena.has(address, size):
                address = arena.address + i * slot
                size = min(size, slot)
            pieces.append((address, size))
        self._note("batch_get_into", keys, pieces)
        answers = self._store.batch_get_into(keys, [p[0] for p in pieces], [p[1] for p in pieces])
        for key, piece, answer in zip(keys, pieces, answers, strict=True):
            self._filled(arena, "batch_get_into", key, [piece], answer)

    def _get_parts(self) -> None:
        arena = self._random.choice(self._arenas)
        key = self._random.choice(KEYS)
        addresses, sizes = self._pieces(arena)
        parts = list(zip(addresses, sizes, strict=True))
        fits = all(arena.has(*part) for part in parts)
        ordered = sorted(parts)
        over = any(a[0] + a[1] > b[0] for a, b in itertools.pairwise(ordered))
        if fits and over:
            return
        name = "batch_get_into_multi_buffers"
        self._note(name, key, parts)
        answer = self._store.batch_get_into_multi_buffers([key], [addresses], [sizes])[0]
        self._filled(arena, name, key, parts, answer)

    def _ranges(self) -> None:
        arena = self._random.choice(self._arenas)
        key = self._random.choice(KEYS)
        value = self._values.get(key)
        base = arena.address + self._random.choice((0, 0, 0, 1, SIZE - 1, SIZE, -1))
        count = self._random.randint(0, 4)
        to = [self._offset(SIZE) for _ in range(count)]
        source = [self._offset(len(value or b"")) for _ in range(count)]
        sizes = [self._random.choice((0, 1, 100, PAGE, 2**63, WHOLE - 1)) for _ in range(count)]
        name = "get_into_ranges"
        self._note(name, base, key, to, source, sizes)
        answers = self._store.get_into_ranges([base], [[key]], [[to]], [[source]], [[sizes]])[0][0]
        if not arena.has(base, 1):
            assert answers == [REFUSED] * max(count, len(answers)), answers
            return
        for a, b, size, answer in zip(to, source, sizes, answers, strict=True):
            room = arena.address + SIZE - base
            if value is None:
                assert answer in (-704, REFUSED), answer
                continue
            good = a + size <= room and b + size <= len(value)
            self._expect(name, good, answer, size)
            if good:
                arena.write(base + a, value[b : b + size])

    def _put_session(self) -> None:
        arena = self._random.choice(self._arenas)
        key = self._random.choice(KEYS)
        if key not in self._putting:
            size = self._random.randint(1, 4 * PAGE)
            self._note("batch_put_session_start", key, size)
            if key in self._values:
                return
            assert self._store.batch_put_session_start([key], [size]) == [0]
            assert self._store.is_exist(key) == 0
            self._putting[key] = bytearray(size)
            whole = arena.read(arena.address, size)
            wrote = self._store.batch_put_from_multi_buffer_ranges(
                [key], [[arena.address]], [[size]], [[0]]
            )
            assert wrote == [size], wrote
            self._putting[key][:] = whole
            return
        if self._random.random() < 0.3:
            self._note("batch_put_session_end", key)
            codes = self._store.batch_put_session_end([key])
            assert codes == [0], codes
            self._stored(key, bytes(self._putting.pop(key)), False)
            return
        begun = self._putting[key]
        addresses, sizes = self._pieces(arena)
        offsets = [self._offset(len(begun)) for _ in addresses]
        if self._random.random() < 0.5:  # one that mostly fits
            size = self._random.randint(1, len(begun))
            addresses, sizes = [arena.address + self._random.randrange(SIZE - size)], [size]
            offsets = [self._random.randint(0, len(begun) - size)]
        name = "batch_put_from_multi_buffer_ranges"
        self._note(name, key, addresses, sizes, offsets)
        answer = self._called(name, [key], [addresses], [sizes], [offsets])
        parts = list(zip(addresses, sizes, offsets, strict=True))
        good = all(arena.has(a, s) and o + s <= len(begun) for a, s, o in parts)
        if any(s == 0 for s in sizes) or not parts:
            return self._adopt_ranges(key)
        self._expect(name, good, answer, sum(sizes))
        for address, size, offset in parts if good else ():
            begun[offset : offset + size] = arena.read(address, size)

    def _adopt_ranges(self, key: str) -> None:
        """Ranges of nothing: give the value up, whatever was written."""
        assert self._store.batch_put_session_revoke([key]) == [0]
        del self._putting[key]

    def _get_session(self) -> None:
        arena = self._random.choice(self._arenas)
        key = self._random.choice(KEYS)
        value = self._values.get(key)
        self._note("batch_get_session_start", key)
        started = self._store.batch_get_session_start([key])
        assert started == [0 if value is not None else -704], started
        if value is None:
            return
        address, size = self._piece(arena, PAGE)
        offset = self._offset(len(value))
        name = "batch_get_into_multi_buffer_ranges"
        self._note(name, key, address, size, offset)
        answer = self._called(name, [key], [[address]], [[size]], [[offset]])
        if size != 0:
            good = arena.has(address, size) and offset + size <= len(value)
            self._expect(name, good, answer, size)
            if good:
                arena.write(address, value[offset : offset + size])
        assert self._store.batch_get_session_end([key]) == 0

    def _read_back(self) -> None:
        key = self._random.choice(KEYS)
        self._note("get", key)
        value = self._store.get(key)
        assert value == self._values.get(key, b""), "another value"
        assert CANARY not in value, "a value holds bytes from outside the buffer"

    def _remove(self) -> None:
        key = self._random.choice(KEYS)
        self._note("remove", key)
        if key in self._putting:
            return
        code = self._store.remove(key, True)
        assert code == (0 if key in self._values else -704), code
        self._values.pop(key, None)


def main() -> None:
    """Run until the time is over."""
    from mooncake.store import MooncakeDistributedStore

    master, seed, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    store = MooncakeDistributedStore()
    assert store.setup("127.0.0.1", "P2PHANDSHAKE", 64 << 20, 16 << 20, "tcp", "", master) == 0
    fuzz = Fuzz(store, seed)
    steps = 0
    until = time.monotonic() + seconds
    try:
        while time.monotonic() < until:
            fuzz.step()
            steps += 1
    except BaseException:
        print(f"seed {seed}, step {steps}: {fuzz.last[:4000]}", file=sys.stderr)
        raise
    finally:
        store.close()
    for name, (done, refused) in sorted(fuzz.counts.items()):
        assert done > 0 and refused > 0, f"{name}: {done} done, {refused} refused"
        print(f"{name}: {done} done, {refused} refused")
    print(f"{steps} steps")


if __name__ == "__main__":
    main()
