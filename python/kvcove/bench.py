# SPDX-License-Identifier: Apache-2.0
"""``python -m kvcove.bench``: the drop-in's calls beside memcpy, and beside the rival if there is one.

Rows: the API's calls as engines make them, on an owner inside this process and, for look-ups, through
the master. ``--rival PYTHON``, in a checkout of kvcove's sources, names an interpreter with the rival's
wheel: the same calls then run there, in the same run. With ``--json`` a line a row, schema ``kvcove.bench.python.1`` (docs/json.md).
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import mmap
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

KIB, MIB = 1 << 10, 1 << 20
SEGMENT = 1 << 30
TARGETS = {
    "is_exist 128, local": "us<=40",
    "is_exist 128, master": "us<=110",
    "is_exist 4096, local": "us<=800",
    "get_into 128 x 4 KiB": "us<=230",
    "get_into 64 x 1 MiB": "ratio>=0.8",
    "put_from 64 x 1 MiB": "ratio>=0.75",
    "get_into_multi_buffers 11 x 4 x 128 KiB": "ratio>=0.75",
    "import": "us<=60000",
}


def _median_us(
    call: Callable[[], Any], rounds: int, before: Callable[[], Any] = lambda: None
) -> float:
    times = []
    for _ in range(rounds):
        before()
        began = time.perf_counter_ns()
        call()
        times.append((time.perf_counter_ns() - began) / 1000)
    return statistics.median(times)


class _Memory:
    """Populated memory, and a memory file like the segment's to copy from and to."""

    def __init__(self, size: int) -> None:
        self._plain = mmap.mmap(-1, size)
        self._file = os.memfd_create("bench")
        os.ftruncate(self._file, size)
        self._shared = mmap.mmap(self._file, size)
        self.plain = ctypes.addressof(ctypes.c_char.from_buffer(self._plain))
        self.shared = ctypes.addressof(ctypes.c_char.from_buffer(self._shared))
        ctypes.memset(self.plain, 1, size)
        ctypes.memset(self.shared, 2, size)

    def copy(self, pieces: int, size: int, *, to_shared: bool) -> None:
        to, source = (self.shared, self.plain) if to_shared else (self.plain, self.shared)
        for i in range(pieces):
            ctypes.memmove(to + i * size, source + i * size, size)


def worker(master: str, through: str) -> None:
    """Measure the store that this interpreter has; a JSON line a row on stdout."""
    from mooncake.store import MooncakeDistributedStore

    store = MooncakeDistributedStore()
    if store.setup("127.0.0.1", "P2PHANDSHAKE", SEGMENT, 64 * MIB, "tcp", "", master) != 0:
        raise SystemExit("setup failed")
    remote = MooncakeDistributedStore()
    if remote.setup("127.0.0.1", "P2PHANDSHAKE", 0, 64 * MIB, "tcp", "", through) != 0:
        raise SystemExit("setup of a requester failed")
    time.sleep(2.5)  # the master is no longer starting, the memory is populated

    memory = _Memory(128 * MIB)
    store.register_buffer(memory.plain, 128 * MIB)

    def row(work: str, us: float, limit_us: float | None = None) -> None:
        print(json.dumps({"work": work, "us": us, "limit_us": limit_us}), flush=True)

    def check(codes: list[int], good: Callable[[int], bool]) -> None:
        if not all(good(code) for code in codes):
            raise SystemExit(f"a call failed: {[c for c in codes if not good(c)][:4]}")

    keys = [f"model@tp_rank:0@pcp0@dcp0@pp_rank:0@group:0@{i:064x}" for i in range(4096)]
    small = [memory.plain + i * 512 for i in range(4096)]
    check(store.batch_put_from(keys, small, [512] * 4096), lambda c: c == 0)
    check(store.batch_is_exist(keys), lambda c: c == 1)
    row("is_exist 128, local", _median_us(lambda: store.batch_is_exist(keys[:128]), 300))
    row("is_exist 4096, local", _median_us(lambda: store.batch_is_exist(keys), 60))
    check(remote.batch_is_exist(keys[:128]), lambda c: c == 1)
    row("is_exist 128, master", _median_us(lambda: remote.batch_is_exist(keys[:128]), 300))

    def transfer(name: str, count: int, pieces: int, size: int, rounds: int) -> None:
        names = [f"{name}-{i}" for i in range(count)]
        addresses = [
            [memory.plain + (i * pieces + j) * size for j in range(pieces)] for i in range(count)
        ]
        sizes = [[size] * pieces] * count
        flat, flat_sizes = [a[0] for a in addresses], [size] * count
        several = pieces > 1

        def put() -> list[int]:
            if several:
                return list(store.batch_put_from_multi_buffers(names, addresses, sizes))
            return list(store.batch_put_from(names, flat, flat_sizes))

        def get() -> list[int]:
            if several:
                return list(store.batch_get_into_multi_buffers(names, addresses, sizes))
            return list(store.batch_get_into(names, flat, flat_sizes))

        def fresh() -> None:
            store.batch_remove(names, True)

        total = count * pieces
        shape = f"{count} x {pieces} x" if several else f"{count} x"
        shape += f" {size // MIB} MiB" if size >= MIB else f" {size // KIB} KiB"
        limit = _median_us(lambda: memory.copy(total, size, to_shared=True), rounds)
        us = _median_us(lambda: check(put(), lambda c: c == 0), rounds, fresh)
        if not several:
            row(f"put_from {shape}", us, limit)
        limit = _median_us(lambda: memory.copy(total, size, to_shared=False), rounds)
        us = _median_us(lambda: check(get(), lambda c: c == pieces * size), rounds)
        row(f"get_into{'_multi_buffers' if several else ''} {shape}", us, limit)
        fresh()

    def methods(count: int, size: int, rounds: int) -> None:
        """Measure each other method that engines call in batches, on ``count`` values."""
        names = [f"method-{size}-{i}" for i in range(count)]
        addresses = [memory.plain + i * size for i in range(count)]
        sizes = [size] * count
        values = [bytes([i % 251]) * size for i in range(count)]
        shape = f"{count} x {size // KIB} KiB"

        def fresh() -> None:
            store.batch_remove(names, True)

        def measured(name: str, call: Callable[[], Any], before: Any = lambda: None) -> None:
            row(f"{name} {shape}", _median_us(call, rounds, before))

        measured(
            "put_batch", lambda: check([store.put_batch(names, values)], lambda c: c == 0), fresh
        )
        measured("get_batch", lambda: store.get_batch(names))
        measured("batch_get_buffer", lambda: store.batch_get_buffer(names))
        measured("batch_get_replica_desc", lambda: store.batch_get_replica_desc(names))
        measured("get_size", lambda: [store.get_size(name) for name in names])
        measured(
            "batch_upsert_from",
            lambda: check(list(store.batch_upsert_from(names, addresses, sizes)), lambda c: c == 0),
        )
        half = size // 2
        to = [[i * size, i * size + half] for i in range(count)]
        parts, halves = [[0, half]] * count, [[half, size - half]] * count

        def ranges() -> None:
            got = store.get_into_ranges([memory.plain], [names], [to], [parts], [halves])
            check([one for each in got[0] for one in each], lambda c: c > 0)

        measured("get_into_ranges", ranges)
        pieces = [[address, address + half] for address in addresses]

        def get_session() -> None:
            check(list(store.batch_get_session_start(names)), lambda c: c == 0)
            got = store.batch_get_into_multi_buffer_ranges(names, pieces, halves, parts)
            check(list(got), lambda c: c == size)
            store.batch_get_session_end(names)

        def put_session() -> None:
            check(list(store.batch_put_session_start(names, sizes)), lambda c: c == 0)
            put = store.batch_put_from_multi_buffer_ranges(names, pieces, halves, parts)
            check(list(put), lambda c: c == size)
            check(list(store.batch_put_session_end(names)), lambda c: c == 0)

        measured("get session", get_session)
        measured("put session", put_session, fresh)

        def remove() -> None:
            check(list(store.batch_remove(names, True)), lambda c: c == 0)

        def refill() -> None:
            store.batch_put_from(names, addresses, sizes)

        measured("batch_remove", remove, refill)
        fresh()

    def singles(count: int, size: int, rounds: int) -> None:
        """Measure the calls for one value, as a loop over ``count`` of them."""
        names = [f"single-{i}" for i in range(count)]
        value = bytes(size)
        shape = f"{count} x {size // KIB} KiB"

        def fresh() -> None:
            store.batch_remove(names, True)

        def parts() -> None:
            for name in names:
                check([store.put_parts(name, value[:28], value[28:])], lambda c: c == 0)

        def put() -> None:
            for name in names:
                check([store.put(name, value)], lambda c: c == 0)

        row(f"put_parts, each, {shape}", _median_us(parts, rounds, fresh))
        row(f"put, each, {shape}", _median_us(put, rounds, fresh))
        row(f"get, each, {shape}", _median_us(lambda: [store.get(name) for name in names], rounds))
        fresh()

    transfer("one", 1, 1, 4 * KIB, 300)
    transfer("few", 16, 1, 4 * KIB, 300)
    transfer("page", 128, 1, 4 * KIB, 200)
    methods(64, 16 * KIB, 60)
    singles(64, 16 * KIB, 60)
    with contextlib.suppress(ImportError):
        _tensors(store, row)
    with contextlib.suppress(ImportError):
        _batches(store, row)
    transfer("chunk", 64, 1, MIB, 30)
    transfer("vllm", 11, 4, 128 * KIB, 100)
    remote.close()
    store.close()


Row = Callable[[str, float], None]


def _tensors(store: Any, row: Row) -> None:
    """Measure tensors, if torch is there."""
    import torch

    tensors = [torch.full((64, 64), float(i)) for i in range(64)]
    names = [f"tensor-{i}" for i in range(64)]

    def fresh() -> None:
        store.batch_remove(names, True)

    def put() -> None:
        if any(store.batch_put_tensor(names, tensors)):
            raise SystemExit("a put failed")

    row("batch_put_tensor 64 x 16 KiB", _median_us(put, 60, fresh))
    row("batch_get_tensor 64 x 16 KiB", _median_us(lambda: store.batch_get_tensor(names), 60))
    fresh()


def _batches(store: Any, row: Row) -> None:
    """Measure a batch of rows as trainers put it, if numpy is there."""
    import numpy
    from mooncake.structured_object_store import MooncakeBundleTransfer

    transfer = MooncakeBundleTransfer(store, key_prefix="bench")
    rows = 256
    data = {
        "ids": numpy.zeros((rows, 512), dtype=numpy.int64),
        "rewards": [0.5] * rows,
        "tokens": [list(range(i % 64 + 1)) for i in range(rows)],
        "text": [f"prompt {i}" for i in range(rows)],
    }
    kept: list[Any] = []

    def fresh() -> None:
        while kept:
            transfer.cleanup_dataproto(kept.pop())

    def get(**what: Any) -> None:
        transfer.release_result(transfer.get(kept[0], type="dict", **what))

    def put() -> None:
        kept.append(transfer.put(data, type="dict"))

    row("a batch of 256 rows, put", _median_us(put, 40, fresh))
    row("a batch of 256 rows, get", _median_us(get, 40))
    row("a batch of 256 rows, get 16", _median_us(lambda: get(rows=slice(32, 48)), 40))
    fresh()


def _own_puts(master: str) -> dict[str, dict[str, Any]]:
    """Measure kvcove's own API on small batches: the drop-in may add 30 us to a call."""
    import kvcove
    from kvcove import Memory, _native

    owner = _native.open_owner(
        master=master,
        memory=256 * MIB,
        listen=f"127.0.0.1:{_free_port()}",
        socket_path=str(Path(tempfile.mkdtemp()) / "own.sock"),
    )
    rows = {}
    memory = _Memory(MIB)
    with kvcove.open(f"kvcove://{master}?owner={owner.address}") as pool:
        until = time.monotonic() + 10
        while pool.stat().payload_bytes == 0 and time.monotonic() < until:
            time.sleep(0.02)
        time.sleep(1.0)
        session = pool.session("bench", follow_always=True, assume_weights=True)
        for count in (1, 16, 128):
            names = [f"own-{i}" for i in range(count)]
            values = [Memory(memory.plain + i * 4096, 4096) for i in range(count)]

            def put(names: list[str] = names, values: list[Memory] = values) -> None:
                if not session.put(names, values).all_ok:
                    raise SystemExit("a put failed")

            def fresh(names: list[str] = names) -> None:
                session.remove(names)

            work = f"kvcove's own put, {count} x 4 KiB"
            rows[work] = {"work": work, "us": _median_us(put, 300, fresh), "limit_us": None}
    owner.close()
    return rows


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _run(python: str, master: str, through: str, path: list[str]) -> dict[str, dict[str, Any]]:
    environment = dict(os.environ)
    environment["PYTHONPATH"] = os.pathsep.join([*path, environment.get("PYTHONPATH", "")])
    ended = subprocess.run(
        [python, "-P", str(Path(__file__).resolve()), "--worker", master, through],
        capture_output=True,
        text=True,
        env=environment,
        timeout=600,
        check=False,
    )
    if ended.returncode != 0:
        raise SystemExit(f"{python}: {ended.stderr[-2000:]}")
    lines = [line for line in ended.stdout.splitlines() if line.startswith("{")]
    return {row["work"]: row for row in map(json.loads, lines)}


def _wait_for(port: int) -> None:
    until = time.monotonic() + 20
    while time.monotonic() < until:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise SystemExit(f"nobody listens at port {port}")


def _kvcove() -> dict[str, dict[str, Any]]:
    import kvcove
    from kvcove import _command

    overlay = Path(kvcove.__file__).parent / "mooncake" / "overlay"
    port = _free_port()
    with tempfile.TemporaryDirectory() as directory:
        master = subprocess.Popen(
            [
                *(_command.path(), "master", "--listen", f"127.0.0.1:{port}"),
                *("--data", directory, "--admin", "off"),
            ],
            stderr=subprocess.DEVNULL,
        )
        try:
            _wait_for(port)
            through = f"kvcove://127.0.0.1:{port}?local=0"
            rows = _run(sys.executable, f"127.0.0.1:{port}", through, [str(overlay)])
            rows.update(_own_puts(f"127.0.0.1:{port}"))
        finally:
            master.terminate()
            master.wait()
    code = "import time; b = time.perf_counter(); import kvcove; print(time.perf_counter() - b)"
    seconds = [
        float(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout)
        for _ in range(7)
    ]
    rows["import"] = {"work": "import", "us": statistics.median(seconds) * 1e6, "limit_us": None}
    return rows


def _met(work: str, us: float, ratio: float | None) -> bool | None:
    target = TARGETS.get(work)
    if target is None:
        return None
    kind, _, bound = target.replace(">=", "<=").partition("<=")
    if kind == "us":
        return us <= float(bound)
    return ratio is not None and ratio >= float(bound)


def main() -> None:
    """Measure, and print a table or JSON lines."""
    parser = argparse.ArgumentParser(prog="python -m kvcove.bench", description=__doc__)
    parser.add_argument("--json", action="store_true", help="a JSON line a row")
    parser.add_argument("--rival", metavar="PYTHON", help="an interpreter with the rival's wheel")
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        return worker(*options.worker)
    from kvcove import _lab

    beside = _lab.load("rival", "python -m kvcove.bench --rival") if options.rival else None
    rows = _kvcove()
    rival = beside.rows(options.rival) if beside else {}
    if not options.json:
        print(f"{'work':42} {'kvcove':>10} {'memcpy':>10} {'ratio':>6} {'rival':>10}  target")
    for work, row in rows.items():
        limit = row["limit_us"]
        ratio = limit / row["us"] if limit else None
        other = rival.get(work, {}).get("us")
        met = _met(work, row["us"], ratio)
        if options.json:
            print(
                json.dumps(
                    {
                        "schema": "kvcove.bench.python.1",
                        "work": work,
                        "p50_us": round(row["us"], 1),
                        "limit": "memcpy" if limit else None,
                        "limit_p50_us": round(limit, 1) if limit else None,
                        "ratio": round(ratio, 3) if ratio else None,
                        "rival_p50_us": round(other, 1) if other else None,
                        "target": TARGETS.get(work),
                        "met": met,
                    }
                )
            )
            continue
        print(
            f"{work:42} {row['us']:8.1f}us {f'{limit:8.1f}us' if limit else '':>10} "
            f"{f'{ratio:.2f}' if ratio else '':>6} {f'{other:8.1f}us' if other else '':>10}  "
            f"{TARGETS.get(work, '')} {'' if met is None else 'met' if met else 'NOT MET'}"
        )


if __name__ == "__main__":
    main()
