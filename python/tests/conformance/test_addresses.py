# SPDX-License-Identifier: Apache-2.0
"""Which bytes the calls touch that take addresses: those of registered buffers, and none beside them.

The buffers lie in memory with canaries around them and pages without rights at both ends. What a call
should do is computed once more, byte for byte, by a model that knows lists of bytes only.
"""

from __future__ import annotations

import ctypes
import os
import random
from collections.abc import Callable
from typing import Any

import pytest
from conftest import differs, own, python

PAGE = 4096
CANARY = 0xEE
SEEDS = [int(os.environ["KVCOVE_TEST_SEED"])] if "KVCOVE_TEST_SEED" in os.environ else [1, 2, 3]
WRAPS = (2**63, 2**64 - 1, 2**64 - 100)

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


class Memory:
    """Some pages, the first and the last without rights; buffers are ranges of the others."""

    def __init__(self, pages: int = 3) -> None:
        self._total = (pages + 2) * PAGE
        self._base = _libc.mmap(None, self._total, 3, 0x22, -1, 0)
        assert _libc.mprotect(self._base, PAGE, 0) == 0
        assert _libc.mprotect(self._base + self._total - PAGE, PAGE, 0) == 0
        self.begin, self.size = self._base + PAGE, pages * PAGE
        self.clear()

    def clear(self) -> None:
        ctypes.memset(self.begin, CANARY, self.size)

    def content(self) -> bytes:
        return ctypes.string_at(self.begin, self.size)

    def write(self, address: int, value: bytes) -> None:
        ctypes.memmove(address, value, len(value))

    def __del__(self) -> None:
        _libc.munmap(self._base, self._total)


@pytest.fixture
def memory() -> Memory:
    return Memory()


def only(memory: Memory, address: int, size: int) -> bool:
    """Whether every byte is a canary but those."""
    content, at = memory.content(), address - memory.begin
    rest = content[:at] + content[at + size :]
    return rest == bytes([CANARY]) * len(rest)


# ---- ranges of values into a registered buffer

VALUE = bytes(range(200))
LENGTH = 2000


@pytest.fixture
def ranges(store: Any, memory: Memory) -> Callable[..., Any]:
    """Read one key's fragments: (offset from the buffer, of the value, size) each."""
    first = memory.begin + 100
    assert store.register_buffer(first, LENGTH) == 0
    assert store.register_buffer(first + LENGTH, 1000) == 0  # without a gap
    assert store.put("k", VALUE) == 0

    def read(*fragments: tuple[int, int, int], at: int = 0, key: str = "k") -> Any:
        memory.clear()
        to, source, sizes = ([list(part)] for part in zip(*fragments, strict=True))
        return store.get_into_ranges([first + at], [[key]], [to], [source], [sizes])[0][0]

    return read


def test_a_fragment_ends_where_the_buffer_does(
    ranges: Callable[..., Any], memory: Memory, store: Any
) -> None:
    first = memory.begin + 100
    assert ranges((LENGTH - 100, 0, 100)) == [100]
    assert only(memory, first + LENGTH - 100, 100)
    outside = [
        [(LENGTH - 99, 0, 100)],  # the last byte would lie in the next buffer
        [(LENGTH, 0, 1)],
        [(LENGTH + 1, 0, 0)],
        [(3 * LENGTH, 0, 1)],
        *[[(wrap, 0, 2)] for wrap in (*WRAPS, 2**64 - first)],
        [(0, 0, 2**64 - 1)],
        [(0, 200, 1)],
        [(0, 201, 0)],
        [(0, 101, 100)],
        [(0, 2**64 - 1, 2)],
    ]
    for fragments in outside:
        assert ranges(*fragments) == [-600], fragments
        assert only(memory, memory.begin, 0), fragments
    # A good one is read whatever the others are.
    assert ranges((0, 1, 3), (LENGTH, 0, 1), (9, 199, 2), (5, 0, 0), (20, 7, 2)) == [
        *(3, -600, -600, 0, 2)
    ]
    assert memory.content()[100:103] + memory.content()[120:122] == VALUE[1:4] + VALUE[7:9]
    assert ranges((0, 200, 0), (LENGTH, 0, 0)) == [0, 0]
    assert ranges((400, 0, 100), at=1500) == [100]
    assert ranges((401, 0, 100), at=1500) == [-600]
    assert ranges((0, 0, 1), (0, 0, 0), at=-100) == [-600, -600]
    assert ranges((100, 0, 1), at=-100) == [-600]  # not from outside, even if it ends inside
    assert ranges((0, 0, 1), at=LENGTH + 1000) == [-600]
    assert ranges((0, 0, 1), (5 * LENGTH, 0, 1), key="nothing") == [-704, -704]
    for wrong in ((-100, 0, 2), (0, -1, 2), (0, 0, -1), (2**64, 0, 1), (0.0, 0, 1)):
        with pytest.raises(TypeError):
            ranges(wrong)
        assert only(memory, memory.begin, 0), wrong
    assert store.unregister_buffer(first) == 0
    assert ranges((0, 0, 1)) == [-600]


def test_lists_of_ranges_that_do_not_fit(store: Any, memory: Memory) -> None:
    first = memory.begin
    assert store.register_buffer(first, LENGTH) == 0
    store.put("k", VALUE)
    one = [[[0]]]
    for buffers, keys, to, source, sizes, answer in (
        ([first], [["k"]], [[[1]]], [[[]]], [[[]]], [[[-600]]]),
        ([first], [["k"]], [[[]]], [[[]]], [[[]]], [[[]]]),
        ([first], [["k"]], [[[]]], one, one, [[[]]]),
        ([first], [["k"]], one, [[[0, 1]]], [[[1, 1]]], [[[-600]]]),
        ([first], [["k"]], [[[0, 5]]], one, [[[1, 1]]], [[[-600, -600]]]),
        ([first], [["k", "k"]], one, one, one, [[[-600], [-600]]]),
        ([first], [["k"]], [[[0], [1]]], [[[0], [1]]], [[[1], [1]]], [[[-600]]]),
        ([first], [["k", "k"]], [[[0], [1, 2]]], one, one, [[[-600], [-600, -600]]]),
        ([first], [[]], one, one, one, [[]]),
        ([first, first], [["k"]], one, one, one, [[[-600]], [[-600]]]),
        ([first], [["k"], ["k"]], one * 2, one * 2, one * 2, [[[-600]]]),
        ([], [["k"]], one, one, one, []),
    ):
        got = store.get_into_ranges(buffers, keys, to, source, sizes)
        assert got == answer, (keys, to, source, sizes)
        assert only(memory, first, 0)


def near(rng: random.Random, *places: int) -> int:
    """A number at one of the places, or one beside it, or one that wraps."""
    if rng.random() < 0.05:
        return rng.choice(WRAPS)
    return max(0, rng.choice(places) + rng.randint(-2, 2))


def _prepared(
    store: Any, memory: Memory, rng: random.Random
) -> tuple[list[tuple[int, int]], dict[str, bytes]]:
    """Register buffers and store values; return the buffers' offsets and sizes, and the values."""
    buffers = [(100, 700), (800, 64), (2000, 5000), (memory.size - 300, 300)]
    for at, size in buffers:
        assert store.register_buffer(memory.begin + at, size) == 0
    values = {f"k{size}": rng.randbytes(size) for size in (1, 63, 700, 6000)}
    for key, value in values.items():
        assert store.put(key, value) == 0
    return buffers, values


@pytest.mark.parametrize("seed", SEEDS)
def test_any_ranges_are_as_a_model_has_them(store: Any, memory: Memory, seed: int) -> None:
    rng = random.Random(seed)
    buffers, values = _prepared(store, memory, rng)
    expected = bytearray(memory.content())

    def model(at: int, key: str, to: list[int], source: list[int], sizes: list[int]) -> list[int]:
        room = next((begin + size - at for begin, size in buffers if 0 <= at - begin < size), 0)
        if room == 0:
            return [-600] * len(to)
        if key not in values:
            return [-704] * len(to)
        value, codes = values[key], []
        for d, s, n in zip(to, source, sizes, strict=True):
            if d + n > room or s + n > len(value):
                codes.append(-600)
                continue
            expected[at + d : at + d + n] = value[s : s + n]
            codes.append(n)
        return codes

    for step in range(150):
        begin, size = rng.choice(buffers)
        at = rng.choice(
            [begin, begin, begin + size // 2, begin + size - 1, begin - 1, begin + size]
        )
        key = rng.choice([*values, "nothing"])
        length = len(values.get(key, b"12"))
        count = rng.randint(1, 4)
        to = [near(rng, 0, size // 2, size) for _ in range(count)]
        source = [near(rng, 0, length // 2, length) for _ in range(count)]
        sizes = [near(rng, 0, 1, min(size, length), size // 2) for _ in range(count)]
        wanted = model(at, key, to, source, sizes)
        got = store.get_into_ranges([memory.begin + at], [[key]], [[to]], [[source]], [[sizes]])
        assert got == [[wanted]], (seed, step, at, key, to, source, sizes)
        assert memory.content() == expected, (seed, step, at, key, to, source, sizes)


# ---- all other calls


@differs("a size that leaves a registered buffer")
def test_no_call_leaves_a_registered_buffer(store: Any, memory: Memory) -> None:
    """The original asks for registered memory over RDMA only; over TCP it goes on behind the end."""
    begin, size = memory.begin + PAGE, 1024
    end = begin + size
    assert store.register_buffer(begin, size) == 0
    assert store.put("k", bytes(512)) == 0
    assert store.put("long", bytes(520)) == 0
    assert store.batch_get_session_start(["k", "long"]) == [0, 0]

    def into(at: int) -> list[Any]:
        return [
            store.get_into("k", at, 512),
            *store.batch_get_into(["k"], [at], [512]),
            *store.batch_get_into_multi_buffers(["k"], [[begin, at]], [[8, 512]]),
            *store.batch_get_into_multi_buffer_ranges(["k"], [[at]], [[512]], [[0]]),
            *store.batch_get_into_multi_buffer_ranges(
                ["long"], [[begin, at]], [[8, 512]], [[0, 8]]
            ),
        ]

    def out(at: int, name: str) -> list[Any]:
        assert store.batch_put_session_start([name + "s"], [512]) == [0]
        codes = [
            store.put_from(name + "p", at, 512),
            *store.batch_put_from([name + "b"], [at], [512]),
            *store.batch_put_from_multi_buffers([name + "m"], [[begin, at]], [[8, 512]]),
            store.put_from_with_metadata(name + "w", at, begin, 512, 8),
            store.put_from_with_metadata(name + "d", begin, at, 8, 512),
            store.upsert_from(name + "u", at, 512),
            *store.batch_upsert_from([name + "v"], [at], [512]),
            *store.batch_put_from_multi_buffer_ranges([name + "s"], [[at]], [[512]], [[0]]),
        ]
        assert store.batch_put_session_revoke([name + "s"]) == [0]
        return codes

    for at in (end - 511, end - 1, begin - 1, begin - 511):
        assert into(at) == [-600] * 5
        assert only(memory, begin, 0)
        assert out(at, f"bad{at}") == [-600] * 8
    assert store.remove_by_regex("^bad", True) == 0
    for at in (begin, end - 512):
        assert into(at) == [512, 512, 512, 512, 520]
        assert only(memory, begin, size)
        assert out(at, f"good{at}") == [0] * 7 + [512]
        memory.clear()
    # What nobody has registered is as it was: memory that may be written counts.
    assert store.get_into("k", end, 512) == 512
    assert only(memory, end, 512)
    # Of what is registered, no part is registered once more, and no buffer wraps around.
    for again in ((begin, size), (begin + 8, 8), (begin - 8, 16), (end - 1, 2), (begin - 1, 2000)):
        assert store.register_buffer(*again) == -600
    assert store.register_buffer(2**64 - PAGE, 2 * PAGE) == -600
    assert store.register_buffer(end, 8) == store.register_buffer(begin - 8, 8) == 0


@differs("pieces that reach beyond the value")
@pytest.mark.parametrize("seed", SEEDS)
def test_any_pieces_are_as_a_model_has_them(store: Any, memory: Memory, seed: int) -> None:
    rng = random.Random(seed)
    buffers, values = _prepared(store, memory, rng)
    assert store.batch_get_session_start(list(values)) == [0] * len(values)
    expected = bytearray(memory.content())

    def usable(at: int, size: int) -> bool:
        if any(begin <= at and at + size <= begin + length for begin, length in buffers):
            return size > 0
        touches = any(at < begin + length and begin < at + size for begin, length in buffers)
        return not touches and size > 0 and at >= 0 and at + size <= memory.size

    def read(key: str, pieces: list[tuple[int, int]]) -> int:
        if not all(usable(*piece) for piece in pieces):
            return -600
        value = values[key]
        if sum(size for _, size in pieces) < len(value):
            return -600
        rest = value
        for at, size in pieces:
            expected[at : at + len(rest[:size])] = rest[:size]
            rest = rest[size:]
        return len(value)

    def read_ranges(key: str, pieces: list[tuple[int, int]], offsets: list[int]) -> int:
        value = values[key]
        for (at, size), offset in zip(pieces, offsets, strict=True):
            if offset + size > len(value) or (size > 0 and not usable(at, size)):
                return -600
        for (at, size), offset in zip(pieces, offsets, strict=True):
            expected[at : at + size] = value[offset : offset + size]
        return sum(size for _, size in pieces)

    def written(pieces: list[tuple[int, int]]) -> bytes | None:
        if not all(usable(*piece) for piece in pieces):
            return None
        return b"".join(bytes(expected[at : at + size]) for at, size in pieces)

    for step in range(150):
        key = rng.choice(list(values))
        length = len(values[key])
        pieces = []
        for _ in range(rng.choice([1, 1, 2, 3])):
            begin, size = rng.choice(buffers)
            at = rng.choice([begin, begin + size // 2, begin + size, 1400, 0]) + rng.randint(-2, 2)
            pieces.append((at, near(rng, 1, size // 2, size, length)))
        at_ = [memory.begin + at for at, _ in pieces]
        sizes = [size for _, size in pieces]
        what = (seed, step, key, pieces)
        call = rng.randrange(5)
        if call == 0:
            got = store.get_into(key, at_[0], sizes[0])
            assert got == read(key, pieces[:1]), what
        elif call == 1:
            got = store.batch_get_into_multi_buffers([key], [at_], [sizes])
            assert got == [read(key, pieces)], what
        elif call == 2:
            offsets = [near(rng, 0, length // 2, length) for _ in pieces]
            got = store.batch_get_into_multi_buffer_ranges([key], [at_], [sizes], [offsets])
            assert got == [read_ranges(key, pieces, offsets)], (*what, offsets)
        else:
            name, whole = f"new{step}", written(pieces if call == 3 else pieces[:1])
            if call == 3:
                code = store.batch_put_from_multi_buffers([name], [at_], [sizes])[0]
            else:
                code = store.upsert_from(name, at_[0], sizes[0])
            assert code == (-600 if whole is None else 0), what
            assert store.get(name) == (whole or b""), what
        assert memory.content() == expected, what


@own("it is embedded")
def test_sizes_whose_sum_wraps_are_no_value() -> None:
    ended = python(
        "import ctypes\n"
        "from mooncake.store import MooncakeDistributedStore\n"
        "s = MooncakeDistributedStore()\n"
        "host = '127.0.0.1', 'P2PHANDSHAKE'\n"
        "assert s.setup(*host, 64 << 20, 16 << 20, 'tcp', '', 'embedded:') == 0\n"
        "b = ctypes.create_string_buffer(64)\n"
        "a = ctypes.addressof(b)\n"
        "assert s.register_buffer(a, 2**62) == -600\n"
        "pieces = [a] * 5, [2**62] * 4 + [5]\n"
        "print(s.batch_put_from_multi_buffers(['k'], [pieces[0]], [pieces[1]]), s.is_exist('k'))\n"
        "s.close()\n"
    )
    assert (ended.returncode, ended.stdout) == (0, "[-600] 0\n"), ended.stderr


def test_a_session_takes_no_more_memory_than_there_is(store: Any) -> None:
    sizes = [2**40, 2**63, 2**64 - 1]
    assert store.batch_put_session_start(["a", "b", "c"], sizes) == [-200] * 3
    assert store.batch_put_session_start(["a"], [8]) == [0]
