# SPDX-License-Identifier: Apache-2.0
"""Random calls of ``mooncake.store``, the same for each interpreter that runs this file.

``python calls.py MASTER SEED FIRST LAST [tensors]`` sets a store up and makes short sequences of calls
on keys of their own, with right and wrong arguments. Each line on stdout is ``[sequence, call,
arguments, answer]`` as JSON. Only the standard library is used, because it also runs beside the
original; torch is imported for ``tensors``.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib
import json
import random
import sys
from collections.abc import Callable
from typing import Any

ROOM = 1 << 20
LARGE = 64 << 20  # of the second buffer
SEGMENT = 256 << 20
LOCAL = 1 << 20  # local_buffer_size
SIZES = (0, 1, 2, 100, 4096, 65536, 70_000, LOCAL, LOCAL + 1)


def plain(answer: Any) -> Any:
    """Return an answer as JSON has it; long bytes by their hash."""
    if isinstance(answer, bytes | bytearray | memoryview):
        content = bytes(answer)
        if len(content) <= 16:
            return f"bytes {content.hex()}"
        return f"{len(content)} bytes {hashlib.sha256(content).hexdigest()[:12]}"
    if isinstance(answer, list | tuple):
        return [plain(one) for one in answer]
    if isinstance(answer, dict):
        return {str(key): plain(value) for key, value in sorted(answer.items())}
    if answer is None or isinstance(answer, bool | int | str):
        return answer
    if hasattr(answer, "data_ptr"):
        return [str(answer.dtype), list(answer.shape), plain(repr(answer.tolist()).encode())]
    return type(answer).__name__


class Calls:
    """A store, a registered buffer, and what is called on them."""

    def __init__(self, module: Any, store: Any, seed: int, torch: Any = None) -> None:
        self._module = module
        self._store = store
        self._seed = seed
        self._buffer = ctypes.create_string_buffer(ROOM)
        self._at = ctypes.addressof(self._buffer)
        if store.register_buffer(self._at, ROOM) != 0:
            raise SystemExit("register_buffer failed")
        self._kinds: list[Callable[[], tuple[str, Any, Callable[[], Any]]]] = [
            *(self._put, self._put, self._put_batch, self._put_parts, self._put_wrong),
            *(self._put_from, self._put_several, self._get, self._get_into, self._get_several),
            *(self._ranges, self._ask, self._ask, self._remove, self._configured),
            *(self._put_session, self._get_session, self._unequal, self._singles),
            *(self._descriptions, self._clear, self._addresses),
        ]
        if torch is not None:
            self._torch = torch
            self._kinds += [self._put_tensor, self._put_tensor, self._get_tensor, self._parts]
        self._large = ctypes.create_string_buffer(LARGE)
        if store.register_buffer(ctypes.addressof(self._large), LARGE) != 0:
            raise SystemExit("register_buffer failed")

    def sequence(self, number: int) -> None:
        """Make one sequence; the buffer holds the same bytes at its start everywhere."""
        self._random = random.Random(self._seed * 1_000_003 + number)
        self._keys = [f"s{number}-{i}" for i in range(3)]
        ctypes.memmove(self._at, self._random.randbytes(4096) * (ROOM // 4096), ROOM)
        for _ in range(self._random.randint(3, 12)):
            # Values of many MiB are dear, and so they are rare.
            kind = (
                self._random.choice(self._kinds) if self._random.random() > 0.0005 else self._whale
            )
            name, arguments, call = kind()
            try:
                answer = plain(call())
            except (TypeError, ValueError, RuntimeError, OverflowError) as error:
                answer = type(error).__name__
            print(json.dumps([number, name, arguments, answer]), flush=True)
        self._store.batch_put_session_revoke(self._keys)
        self._store.batch_get_session_end(self._keys)
        self._store.batch_remove(self._keys, True)

    # ---- what is called with what

    def _key(self) -> str:
        return self._random.choice(self._keys)

    def _given(self, key: str) -> str | bytes | bytearray:
        """Return a key in one of the forms that the API takes."""
        return self._random.choice((key, key, key.encode(), bytearray(key.encode())))

    def _value(self, size: int | None = None) -> bytes:
        size = self._random.choice(SIZES) if size is None else size
        return (self._random.randbytes(64) * (size // 64 + 1))[:size]

    def _put(self) -> tuple[str, Any, Callable[[], Any]]:
        name = self._random.choice(("put", "upsert"))
        key, value = self._key() if self._random.random() < 0.95 else "", self._value()
        kind = self._random.choice((bytes, bytearray, memoryview))
        call, given = getattr(self._store, name), self._given(key)
        return name, [key, len(value), kind.__name__], lambda: call(given, kind(value))

    def _put_batch(self) -> tuple[str, Any, Callable[[], Any]]:
        name = self._random.choice(("put_batch", "upsert_batch"))
        keys = self._random.sample(self._keys, self._random.randint(1, 3))
        sizes = [self._random.choice((1, 100, 4096, 4096, 0)) for _ in keys]
        values = [self._value(size) for size in sizes]
        call = getattr(self._store, name)
        return name, [keys, sizes], lambda: call(keys, values)

    def _put_parts(self) -> tuple[str, Any, Callable[[], Any]]:
        name = self._random.choice(("put_parts", "upsert_parts"))
        sizes = [self._random.choice((0, 1, 100, 4096)) for _ in range(self._random.randint(1, 3))]
        key, parts = self._key(), [self._value(size) for size in sizes]
        call = getattr(self._store, name)
        return name, [key, sizes], lambda: call(key, *parts)

    def _put_wrong(self) -> tuple[str, Any, Callable[[], Any]]:
        key = self._random.choice((self._key(), 5, None))
        value = self._random.choice((None, "text", 5, [1], b"good"))
        if isinstance(key, str) and value == b"good":
            value = None
        return "put", [str(key), str(value)], lambda: self._store.put(key, value)

    def _piece(self) -> tuple[int, int]:
        size = self._random.choice((1, 100, 4096, 70_000))
        return self._random.randrange(ROOM - size), size

    def _put_from(self) -> tuple[str, Any, Callable[[], Any]]:
        name = self._random.choice(("batch_put_from", "batch_upsert_from"))
        keys = self._random.sample(self._keys, self._random.randint(1, 3))
        pieces = [self._piece() for _ in keys]
        at, sizes = [self._at + p[0] for p in pieces], [p[1] for p in pieces]
        call = getattr(self._store, name)
        return name, [keys, pieces], lambda: call(keys, at, sizes)

    def _put_several(self) -> tuple[str, Any, Callable[[], Any]]:
        key, pieces = self._key(), [self._piece() for _ in range(self._random.randint(1, 4))]
        at, sizes = [self._at + p[0] for p in pieces], [p[1] for p in pieces]
        name = "batch_put_from_multi_buffers"
        return name, [key, pieces], lambda: getattr(self._store, name)([key], [at], [sizes])

    def _get(self) -> tuple[str, Any, Callable[[], Any]]:
        name = self._random.choice(("get", "get_batch", "get_buffer", "batch_get_buffer"))
        keys = self._random.sample(self._keys, self._random.randint(1, 3))
        argument = keys if "batch" in name else keys[0]

        def call() -> Any:
            answer = getattr(self._store, name)(argument)
            if isinstance(answer, list):
                return [None if one is None else bytes(one) for one in answer]
            return None if answer is None else bytes(answer)

        return name, [argument], call

    def _seen(self, answer: Any) -> Any:
        return [answer, self._buffer.raw]

    def _get_into(self) -> tuple[str, Any, Callable[[], Any]]:
        keys = self._random.sample(self._keys, self._random.randint(1, 3))
        sizes = [self._random.choice((1, 100, 4096, 70_000, ROOM // 4)) for _ in keys]
        at = [self._at + i * (ROOM // 4) for i in range(len(keys))]
        call = self._store.batch_get_into
        return "batch_get_into", [keys, sizes], lambda: call(keys, at, sizes)

    def _get_several(self) -> tuple[str, Any, Callable[[], Any]]:
        key = self._key()
        sizes = [self._random.choice((1, 100, 4096, 70_000)) for _ in range(3)]
        at = [self._at + i * (ROOM // 4) for i in range(3)]
        name = "batch_get_into_multi_buffers"
        return name, [key, sizes], lambda: getattr(self._store, name)([key], [at], [sizes])

    def _ranges(self) -> tuple[str, Any, Callable[[], Any]]:
        key, count = self._key(), self._random.randint(1, 3)
        to = [i * 8192 for i in range(count)]
        source = [self._random.choice((0, 1, 50, 4000)) for _ in range(count)]
        sizes = [self._random.choice((1, 50, 96, 4096)) for _ in range(count)]
        call = self._store.get_into_ranges

        def seen() -> Any:
            answer = call([self._at], [[key]], [[to]], [[source]], [[sizes]])
            good = [o for o, size in zip(to, answer[0][0], strict=True) if size > 0]
            return [answer, [self._buffer.raw[o : o + 1] for o in good]]

        return "get_into_ranges", [key, source, sizes], seen

    def _ask(self) -> tuple[str, Any, Callable[[], Any]]:
        name = self._random.choice(("is_exist", "batch_is_exist", "get_size", "get_replica_desc"))
        keys = self._random.sample(self._keys, self._random.randint(1, 3))
        argument: Any = keys if name == "batch_is_exist" else keys[0]
        call = getattr(self._store, name)
        if name == "get_replica_desc":
            return name, [argument], lambda: len(call(argument))
        return name, [argument], lambda: call(argument)

    def _remove(self) -> tuple[str, Any, Callable[[], Any]]:
        force = self._random.random() < 0.5
        if self._random.random() < 0.2:
            pattern = f"^{self._key()}$"
            call = self._store.remove_by_regex
            return "remove_by_regex", [pattern, force], lambda: call(pattern, force)
        if self._random.random() < 0.5:
            key = self._key()
            return "remove", [key, force], lambda: self._store.remove(key, force)
        keys = self._random.sample(self._keys, self._random.randint(1, 3))
        return "batch_remove", [keys, force], lambda: self._store.batch_remove(keys, force)

    def _configured(self) -> tuple[str, Any, Callable[[], Any]]:
        module = self._module
        field, value = self._random.choice(
            (
                ("replica_num", 0),
                ("replica_num", 1),
                ("replica_num", 3),
                ("with_hard_pin", True),
                ("preferred_segment", "127.0.0.1:1"),
                ("preferred_segments", ["127.0.0.1:1", "127.0.0.1:2"]),
                ("prefer_alloc_in_same_node", True),
                ("group_ids", ["g"]),
                ("group_ids", ["g", "h"]),
                ("soft_pin_ttl_ms", 1000),
                ("soft_pin_action", module.SoftPinAction.ENABLE),
                ("data_type", module.ObjectDataType.WEIGHT),
                ("replica_num", -1),
                ("replica_num", "x"),
                ("soft_pin_ttl_ms", -1),
            )
        )
        key, content = self._key(), self._value(100)

        def call() -> Any:
            config = module.ReplicateConfig()
            setattr(config, field, value)
            return self._store.put(key, content, config)

        return "put configured", [key, field, str(value)], call

    def _put_session(self) -> tuple[str, Any, Callable[[], Any]]:
        key, size = self._key(), self._random.choice((0, 100, 4096))
        cut = self._random.choice((0, 50, 100))
        # Only what is written as a whole is stored: the rest would hold whatever lay there.
        ends = ["batch_put_session_end"] if (size, cut) == (100, 50) else []
        end = self._random.choice([*ends, "batch_put_session_revoke"])
        store = self._store
        begun, written, ended = self._given(key), self._given(key), self._given(key)

        def call() -> Any:
            return [
                store.batch_put_session_start([begun], [size]),
                store.batch_put_from_multi_buffer_ranges(
                    [written], [[self._at, self._at + 50]], [[50, 50]], [[0, cut]]
                ),
                getattr(store, end)([ended]),
                getattr(store, end)([ended]),
            ]

        return "put session", [key, size, cut, end], call

    def _get_session(self) -> tuple[str, Any, Callable[[], Any]]:
        key, source = self._key(), self._random.choice((0, 50, 4000))
        size = self._random.choice((1, 50, 4096))
        store = self._store
        begun, read, ended = self._given(key), self._given(key), self._given(key)

        def call() -> Any:
            return [
                store.batch_get_session_start([begun]),
                store.batch_get_into_multi_buffer_ranges(
                    [read], [[self._at]], [[size]], [[source]]
                ),
                store.batch_get_session_end([ended]),
            ]

        return "get session", [key, source, size], call

    def _unequal(self) -> tuple[str, Any, Callable[[], Any]]:
        two, one = self._keys[:2], [self._at]
        store = self._store
        name, call = self._random.choice(
            (
                ("put_batch", lambda: store.put_batch(two, [b"x"])),
                ("upsert_batch", lambda: store.upsert_batch(two, [b"x"])),
                ("batch_put_from", lambda: store.batch_put_from(two, one, [1])),
                ("batch_get_into", lambda: store.batch_get_into(two, one, [1])),
                (
                    "batch_put_from_multi_buffers",
                    lambda: store.batch_put_from_multi_buffers(two, [one], [[1]]),
                ),
                (
                    "batch_get_into_multi_buffers",
                    lambda: store.batch_get_into_multi_buffers(two, [one], [[1]]),
                ),
                ("batch_put_session_start", lambda: store.batch_put_session_start(two, [1])),
            )
        )
        return f"{name} unequal", [two], call

    # ---- calls with a single key, and descriptions of keys

    def _singles(self) -> tuple[str, Any, Callable[[], Any]]:
        key, (at, size) = self._key(), self._piece()
        store, address, given = self._store, self._at + at, self._given(key)
        name = self._random.choice(
            ("put_from", "upsert_from", "get_into", "get_into", "put_from_with_metadata")
        )
        if name == "put_from_with_metadata":
            call = lambda: store.put_from_with_metadata(given, address, self._at, size, 28)  # noqa: E731
        else:
            call = lambda: getattr(store, name)(given, address, size)  # noqa: E731
        return name, [key, at, size], call

    def _descriptions(self) -> tuple[str, Any, Callable[[], Any]]:
        keys = self._random.sample(self._keys, self._random.randint(0, 3))

        def call() -> Any:
            found = self._store.batch_get_replica_desc(keys)
            return {
                key: [
                    [
                        one.is_memory_replica(),
                        one.is_disk_replica(),
                        one.is_local_disk_replica(),
                        one.is_memory_replica()
                        and one.get_memory_descriptor().buffer_descriptor.size,
                        str(one.status).rpartition(".")[2],
                    ]
                    for one in replicas
                ]
                for key, replicas in found.items()
            }

        return "batch_get_replica_desc", [keys], call

    def _clear(self) -> tuple[str, Any, Callable[[], Any]]:
        keys = self._random.sample(self._keys, self._random.randint(1, 3))
        segment = self._random.choice(("", "", "127.0.0.1:1"))
        call = self._store.batch_replica_clear
        return "batch_replica_clear", [keys, segment], lambda: sorted(call(keys, segment))

    def _addresses(self) -> tuple[str, Any, Callable[[], Any]]:
        """Register and unregister what is registered, what is not, and what is nothing."""
        at = self._random.choice((0, self._at, self._at + 8, ctypes.addressof(self._large)))
        size = self._random.choice((0, 16))
        if at in (0, self._at) and self._random.random() < 0.5:
            return "register_buffer", [at != 0, size], lambda: self._store.register_buffer(at, size)
        if at in (0, self._at + 8):
            return "unregister_buffer", [at != 0], lambda: self._store.unregister_buffer(at)
        return "health_check", [], self._store.health_check

    def _whale(self) -> tuple[str, Any, Callable[[], Any]]:
        key, size = self._key(), self._random.choice((LOCAL, 16 << 20, LARGE - 1, LARGE, LARGE + 1))
        at, store = ctypes.addressof(self._large), self._store
        fill = self._random.randrange(256)

        def call() -> Any:
            ctypes.memset(at, fill, LARGE)
            put = store.put_from(key, at, min(size, LARGE))
            ctypes.memset(at, 0, LARGE)
            got = store.batch_get_into([key], [at], [min(size, LARGE)])
            return [put, got, hashlib.sha256(self._large).hexdigest()[:12]]

        return "put_from and batch_get_into", [key, size], call

    # ---- tensors

    def _tensor(self) -> Any:
        shape = self._random.choice(((1,), (0,), (3,), (4, 6), (8, 2, 2), (2, 0), ()))
        kind = self._random.choice(("float32", "bfloat16", "int64", "uint8", "bool", "float16"))
        count = 1
        for extent in shape:
            count *= extent
        values = [self._random.randrange(2) for _ in range(count)]
        return self._torch.tensor(values).to(getattr(self._torch, kind)).reshape(shape)

    def _put_tensor(self) -> tuple[str, Any, Callable[[], Any]]:
        name = self._random.choice(
            ("put_tensor", "upsert_tensor", "batch_put_tensor", "batch_upsert_tensor", "pub_tensor")
        )
        keys = self._random.sample(self._keys, self._random.randint(1, 3))
        tensors = [self._tensor() for _ in keys]
        if self._random.random() < 0.1:
            tensors[0] = self._random.choice((None, "text", 5, [1.0], b"bytes"))
        told = [keys, [plain(one) for one in tensors]]
        call = getattr(self._store, name)
        if "batch" in name:
            return name, told, lambda: call(keys, tensors)
        return name, told, lambda: call(keys[0], tensors[0])

    def _get_tensor(self) -> tuple[str, Any, Callable[[], Any]]:
        keys = self._random.sample(self._keys, self._random.randint(1, 3))
        if self._random.random() < 0.5:
            return "batch_get_tensor", [keys], lambda: self._store.batch_get_tensor(keys)
        return "get_tensor", [keys[0]], lambda: self._store.get_tensor(keys[0])

    def _parts(self) -> tuple[str, Any, Callable[[], Any]]:
        """Put a tensor in parts, read one of them, and the same keys without parts."""
        key, tensor, store = self._key(), self._tensor(), self._store
        count = self._random.choice((1, 2, 4))
        along = self._random.choice((0, 0, 1, 2, -1))
        rank = self._random.choice((0, 1, 3))

        def call() -> Any:
            done = [
                store.put_tensor_with_tp(key, tensor, 0, count, along),
                store.get_tensor_with_tp(key, rank, count, along),
                store.batch_is_exist([key, *(f"{key}_tp_{i}" for i in range(4))]),
            ]
            store.batch_remove([key, *(f"{key}_tp_{i}" for i in range(4))], True)
            return done

        return "put_tensor_with_tp", [key, plain(tensor), count, along, rank], call


def main() -> None:
    """Make the calls."""
    import mooncake.store as module

    master, seed, first, last = sys.argv[1], *map(int, sys.argv[2:5])
    torch = importlib.import_module("torch") if "tensors" in sys.argv[5:] else None
    store = module.MooncakeDistributedStore()
    answer = store.setup("127.0.0.1", "P2PHANDSHAKE", SEGMENT, LOCAL, "tcp", "", master)
    if answer != 0:
        raise SystemExit(f"setup answered {answer}")
    calls = Calls(module, store, seed, torch)
    for number in range(first, last):
        calls.sequence(number)
    print(json.dumps("done"), flush=True)
    store.close()


if __name__ == "__main__":
    main()
