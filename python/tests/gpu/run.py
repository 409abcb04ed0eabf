# SPDX-License-Identifier: Apache-2.0
"""The connector's roles on a real GPU: run.py [PART...]. Needs torch with CUDA and kvcove.

Parts: `paths` (KV goes and comes right, in both layouts and by every path), `order` (no load or save
overtakes a step that lasts: a kernel that spins), `decode` (what loads and saves at full rate cost
steps that decode), `fingerprint` (of weights of 10 GB). A line for each check, and a line of JSON for
each figure. Ends with 1 if a check fails, with 77 without a GPU.
"""

from __future__ import annotations

import functools
import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

TOKENS = 4  # of a block
FAILED: list[str] = []


def check(condition: bool, text: str) -> None:
    print(f"  {'ok  ' if condition else 'FAIL'}  {text}", flush=True)
    if not condition:
        FAILED.append(text)


def figure(what: str, **values: Any) -> None:
    print(json.dumps({"what": what, **values}), flush=True)


class Rig:
    """A pool, a scheduler's role and a rank's, and KV memory of a GPU as vLLM lays it out."""

    def __init__(
        self,
        layout: str,
        blocks: int = 256,
        layers: int = 8,
        piece: int = 8192,  # bytes of a block in a layer
        memory: int = 1 << 30,
        load_async: bool = True,
        **device: int,
    ) -> None:
        import torch

        import kvcove
        from kvcove import _native

        self.blocks = blocks
        shape = (blocks, layers, piece) if layout == "block" else (layers, blocks, piece)
        self.kv = torch.randint(0, 256, shape, dtype=torch.uint8, device="cuda")
        # Blocks first, whatever the memory's order is.
        self.by_block = self.kv if layout == "block" else self.kv.transpose(0, 1)
        apart = layers * piece if layout == "block" else piece
        self._layers = [
            (
                f"layers.{i}",
                0,
                self.by_block[0, i].data_ptr(),
                piece,
                [("block", blocks, apart)],
            )
            for i in range(layers)
        ]
        self._directory = tempfile.TemporaryDirectory()
        socket = os.path.join(self._directory.name, "pool.sock")
        self.owner = _native.open_owner(master="", memory=memory, listen="", socket_path=socket)
        self.pool = kvcove.open(f"unix:{socket}")
        engine = _native.EngineShape(
            space="",
            model_name="m",
            model="f",
            kv_dtype="bf16",
            hashing="sha256",
            hash_tokens=TOKENS,
            tp=1,
            pp=1,
            pcp=1,
            dcp=1,
            interleave=1,
            layers=",".join(layer[0] for layer in self._layers),
            store_tp=0,
            groups=[("full", TOKENS, 0, 1, "HNC")],
        )
        self.worker = _native.WorkerRole(
            engine,
            tp=0,
            pp=0,
            pcp=0,
            engine="e",
            threads=2,
            timeout=5.0,
            fingerprints=False,
            tier_log=False,
            preferred_segment="",
            **device,
        )
        self.scheduler = _native.SchedulerRole(
            engine,
            self.pool,
            engine="e",
            pool_address=f"unix:{socket}",
            versions="none",
            lookup_budget=0.1,
            lookup_timeout=2.0,
            hold=60.0,
            reset_timeout=2.5,
            load_async=load_async,
            lookup=True,
            save=True,
            save_decoded=False,
            events=False,
            closed_on_reset_failure=False,
            assume_weights=False,
            blocks=blocks,
        )
        self.worker.register(self._layers)
        self.stream = torch.cuda.Stream()
        self._ids = 0
        self.ended: set[str] = set()
        self.failed: set[int] = set()

    def register(self) -> None:
        self.worker.register(self._layers)

    def step(self) -> None:
        """Do what an engine does in a step: a plan, and what has ended."""
        plan, _ = self.scheduler.build_plan()
        self.worker.begin(plan, self.stream.cuda_stream)
        self.worker.finish_step(None, self.stream.cuda_stream)
        self.take()

    def take(self) -> None:
        ended = self.worker.take_ended()
        report = self.worker.take_report()
        if report is not None:
            self.scheduler.on_report(report)
        self.scheduler.take_unpins()
        if ended:
            loaded, failed, _ = ended
            self.ended.update(loaded)
            self.failed.update(failed)
            for request in loaded:
                self.scheduler.load_ended(request)
                self.scheduler.finished(request)

    @staticmethod
    def hashes(name: str, count: int) -> list[bytes]:
        return [f"{name}/{i}".encode().ljust(32, b".") for i in range(count)]

    def begin_save(self, name: str, blocks: list[int]) -> str:
        self._ids += 1
        request, tokens = f"save{self._ids}", TOKENS * len(blocks) + 1
        hashes = self.hashes(name, len(blocks))
        self.scheduler.matched(request, tokens, tokens, "", hashes, 0)
        self.scheduler.schedule(
            request, tokens, tokens, "", hashes, 0, tokens, True, lambda: [[*blocks, 0]]
        )
        self.step()
        return request

    def save(self, name: str, blocks: list[int]) -> None:
        """Store blocks, as often as it takes until all are there (a busy host stores less)."""
        until = time.monotonic() + 30
        while self.found(name, len(blocks)) < len(blocks):
            assert time.monotonic() < until, self.stats()
            request = self.begin_save(name, blocks)
            while self.scheduler.pending():
                self.step()
            self.scheduler.finished(request)

    def found(self, name: str, count: int) -> int:
        """How many of a prefix's blocks are there."""
        self._ids += 1
        tokens = TOKENS * count + 1
        while True:
            found = self.scheduler.matched(
                f"look{self._ids}", tokens, tokens, "", self.hashes(name, count), 0
            )
            if found[0] is not None:
                break
            self.step()
        self.scheduler.finished(f"look{self._ids}")
        return int(found[0]) // TOKENS

    def begin_load(self, name: str, blocks: list[int]) -> str | None:
        """Return the request, or None where not all of the prefix is there (any more)."""
        self._ids += 1
        request, tokens = f"load{self._ids}", TOKENS * len(blocks) + 1
        hashes = self.hashes(name, len(blocks))
        while (found := self.scheduler.matched(request, tokens, tokens, "", hashes, 0))[0] is None:
            self.step()
        if found[0] != tokens - 1:
            self.scheduler.finished(request)
            return None
        self.scheduler.allocated(request, tokens - 1, lambda: [[*blocks, 0]])
        return request

    def load(self, name: str, blocks: list[int]) -> None:
        request = self.begin_load(name, blocks)
        self.wait(request)

    def wait(self, request: str | None) -> None:
        assert request is not None, "not all of the prefix was there"
        until = time.monotonic() + 30
        while request not in self.ended and time.monotonic() < until:
            self.step()
        assert request in self.ended, f"{request} did not end"

    def stats(self) -> dict[str, int]:
        # A rank tells what it did with its next report.
        self.step()
        return dict(self.scheduler.stats())

    def until_pinned(self, least: int = 64 << 20) -> None:
        """Wait until so much of the pool is pinned, from the bottom; needs "pinned" stored."""
        until = time.monotonic() + 60
        while self.stats()["device_segment_pinned_bytes"] < least:
            assert time.monotonic() < until, self.stats()
            self.load("pinned", list(range(1, 5)))
            time.sleep(0.02)

    def close(self) -> None:
        self.worker.close()
        self.scheduler.close()
        self.pool.close()
        self.owner.close()
        self._directory.cleanup()
        del self.kv, self.by_block
        gc.collect()


@functools.cache
def cycles_a_second() -> float:
    import torch

    def took(cycles: int) -> float:
        start, end = torch.cuda.Event(True), torch.cuda.Event(True)
        start.record()
        torch.cuda._sleep(cycles)
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) / 1e3

    for _ in range(5):  # an idle GPU's clock is slow
        took(100_000_000)
    return 100_000_000 / took(100_000_000)


def spin(seconds: float) -> None:
    """Keep the current stream busy."""
    import torch

    torch.cuda._sleep(int(seconds * cycles_a_second()))


PATHS: dict[str, dict[str, int]] = {
    "as measured": {},
    "each run by itself": {"device_threshold": 0},
    "kernels by way of staging": {"device_threshold": 1 << 30},
    "kernels over the link": {"device_threshold": 1 << 30, "device_staging": 0},
    "nothing pinned of the pool": {"device_pin": 0},
    "a small ring": {"device_ring": 1 << 20, "device_pin": 0},
}


def moves_right(layout: str, path: str) -> None:
    import torch

    rig = Rig(layout, **PATHS[path])
    sources = list(range(1, 65))
    rig.save("a", sources)
    wrong = 0
    for turn in range(5):
        if turn == 4 and "device_pin" not in PATHS[path]:
            rig.save("pinned", [1, 2, 3, 4])
            rig.until_pinned()
        targets = [int(i) for i in torch.randperm(128)[:64] + 100]
        rig.by_block[targets] = 0
        torch.cuda.synchronize()
        rig.load("a", targets)
        torch.cuda.synchronize()
        wrong += not torch.equal(rig.by_block[targets], rig.by_block[sources])
    stats = rig.stats()
    moved = {
        way: stats[f"device_load_{way}_bytes"]
        for way in ("batched", "staged", "mapped", "in_place")
    }
    check(
        wrong == 0 and not rig.failed,
        f"{layout}, {path}: 5 loads of 64 blocks are what was saved ({moved})",
    )
    rig.close()


def paths(_: Path) -> None:
    # A process opens its GPU once, with the settings of its first rank.
    print("== paths", flush=True)
    for path in PATHS:
        ended = subprocess.run([sys.executable, __file__, "--path", path], check=False, timeout=120)
        if ended.returncode != 0:
            FAILED.append(path)


def order(_: Path) -> None:
    import torch

    print("== order")
    for layout in ("engine", "block"):
        behind_a_step(layout)
    saves_behind_a_step()
    synchronous()
    beside_a_capture()
    load_behind_saves()
    while_it_unregisters()
    torch.cuda.synchronize()


def behind_a_step(layout: str) -> None:
    import torch

    rig = Rig(layout)
    # Slices: a list of blocks is an index that torch copies to the GPU, behind the kernel that spins.
    sources, targets = slice(1, 33), slice(101, 133)
    rig.save("a", list(range(1, 33)))
    for place in ("ring", "in place"):
        if place == "in place":
            rig.save("pinned", [1, 2, 3, 4])
            rig.until_pinned()
        rig.by_block[targets] = 1
        torch.cuda.synchronize()
        before = rig.stats()["device_load_in_place_bytes"]
        with torch.cuda.stream(rig.stream):
            spin(0.3)
            read = rig.by_block[targets].clone()  # what a step of before still reads
        began = time.monotonic()
        request = rig.begin_load("a", list(range(101, 133)))
        early = 0
        while time.monotonic() < began + 0.1:
            rig.step()
            early += request in rig.ended
        rig.wait(request)
        took = time.monotonic() - began
        torch.cuda.synchronize()
        check(
            early == 0 and 0.2 < took < 0.5,
            f"{layout}, {place}: a load waits for the step before ({took * 1e3:.0f} ms)",
        )
        check(bool((read == 1).all()), f"{layout}, {place}: that step reads what its blocks held")
        check(
            torch.equal(rig.by_block[targets], rig.by_block[sources]),
            f"{layout}, {place}: then they hold what was loaded",
        )
        used = rig.stats()["device_load_in_place_bytes"] > before
        if place == "in place":
            check(used, f"{layout}: that load came straight out of the pool's memory")
    rig.close()


def saves_behind_a_step() -> None:
    import torch

    for layout in ("engine", "block"):
        rig = Rig(layout)
        rig.save("warm", [1, 2, 3, 4])
        blocks, targets = slice(11, 43), slice(101, 133)
        want = torch.full_like(rig.by_block[blocks], 7)
        torch.cuda.synchronize()
        saved = rig.stats()["saved_keys"]
        with torch.cuda.stream(rig.stream):
            spin(0.3)
            rig.by_block[blocks] = 7
        began = time.monotonic()
        request = rig.begin_save("late", list(range(11, 43)))
        stuck = time.monotonic() - began
        early = 0
        while time.monotonic() < began + 0.1:
            rig.step()
            early += rig.scheduler.stats()["saved_keys"] > saved
        while rig.scheduler.pending():
            rig.step()
        took = time.monotonic() - began
        with torch.cuda.stream(rig.stream):
            rig.by_block[blocks] = 9  # the blocks are somebody else's now
        rig.scheduler.finished(request)
        stored = rig.stats()["saved_keys"] - saved
        check(
            early == 0 and 0.2 < took < 0.5 and stuck < 0.05,
            f"{layout}: a save waits for its step ({took * 1e3:.0f} ms), and the step for nothing "
            f"({stuck * 1e3:.1f} ms)",
        )
        check(stored == 32, f"{layout}: it stored {stored} of 32 blocks")
        if stored == 32:
            rig.load("late", list(range(101, 133)))
            torch.cuda.synchronize()
            check(torch.equal(rig.by_block[targets], want), f"{layout}: what that step wrote")
        rig.close()


def synchronous() -> None:
    import torch

    rig = Rig("block", load_async=False)
    sources, targets = slice(1, 65), slice(101, 165)
    rig.save("a", list(range(1, 65)))
    rig.by_block[targets] = 0
    torch.cuda.synchronize()
    request = rig.begin_load("a", list(range(101, 165)))
    with torch.cuda.stream(rig.stream):
        spin(0.2)
        plan, _ = rig.scheduler.build_plan()
        began = time.monotonic()
        rig.worker.begin(plan, rig.stream.cuda_stream)
        rig.worker.wait_for_sync_loads(rig.stream.cuda_stream)
        waited = time.monotonic() - began
        read = rig.by_block[targets].clone()  # what the step's forward pass reads
    rig.worker.finish_step(None, rig.stream.cuda_stream)
    rig.take()
    torch.cuda.synchronize()
    check(
        torch.equal(read, rig.by_block[sources]),
        "load_async false: the forward pass reads what was loaded",
    )
    check(waited < 0.15, f"the device waits, not the host ({waited * 1e3:.1f} ms of 200)")
    rig.scheduler.finished(request)
    rig.close()


def beside_a_capture() -> None:
    import torch

    rig = Rig("engine")
    rig.save("a", list(range(1, 65)))
    x = torch.ones(1 << 20, device="cuda")
    torch.cuda.synchronize()
    requests = [rig.begin_load("a", list(range(101, 165)))]
    rig.step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        # Movers, the poller and what pins call the driver meanwhile.
        for _ in range(20):
            y = x * 2
            x.copy_(y + 1)
            rig.take()
            time.sleep(0.005)
    rig.wait(requests[0])
    x.fill_(0)
    graph.replay()
    torch.cuda.synchronize()
    check(bool((x == 2**20 - 1).all()), "a CUDA graph is captured while a load is under way")
    check(
        torch.equal(rig.by_block[101:165], rig.by_block[1:65]), "and the load is right all the same"
    )
    rig.close()


def load_behind_saves() -> None:
    import torch

    rig = Rig("block", blocks=1600, layers=80, memory=4 << 30)
    rig.save("a", list(range(1, 65)))
    rig.save("pinned", [1, 2, 3, 4])
    rig.until_pinned(3 << 30)

    def load() -> dict[str, float]:
        """Milliseconds till it was looked up, begun, on the GPU."""
        began = time.monotonic()
        request = rig.begin_load("a", list(range(101, 165)))
        looked = time.monotonic()
        rig.step()
        begun = time.monotonic()
        rig.wait(request)
        ended = time.monotonic()
        return {
            "look": looked - began,
            "begin": begun - looked,
            "move": ended - begun,
            "all": ended - began,
        }

    def typical(loads: list[dict[str, float]]) -> dict[str, float]:
        return {
            name: round(statistics.median(each[name] for each in loads) * 1e3, 2)
            for name in loads[0]
        }

    load()
    alone = [load() for _ in range(9)]
    behind = []
    for turn in range(5):
        saves = []
        for part in range(8):  # 640 MB: some 12 ms and more of the link
            first = 200 + part * 128
            saves.append(rig.begin_save(f"s{turn}/{part}", list(range(first, first + 128))))
        behind.append(load())
        while rig.scheduler.pending():
            rig.step()
        for each in saves:
            rig.scheduler.finished(each)
    torch.cuda.synchronize()
    figure(
        "load of 64 x 640 KiB, and behind 1,024 pending saves of as much each",
        alone_ms=typical(alone),
        behind_ms=typical(behind),
    )
    rig.close()


def while_it_unregisters() -> None:
    import torch

    rig = Rig("engine")
    rig.save("a", list(range(1, 65)))
    with torch.cuda.stream(rig.stream):
        spin(0.3)
    rig.begin_load("a", list(range(101, 165)))
    rig.step()
    time.sleep(0.05)  # by now the device has it
    began = time.monotonic()
    quiet = rig.worker.unregister()
    took = time.monotonic() - began
    after = rig.by_block[101:165].clone()
    time.sleep(0.4)
    torch.cuda.synchronize()
    check(quiet and took > 0.15, f"unregister waits for what is under way ({took * 1e3:.0f} ms)")
    check(
        torch.equal(after, rig.by_block[101:165]),
        "afterwards nothing is written any more",
    )
    rig.register()
    rig.load("a", list(range(101, 165)))
    torch.cuda.synchronize()
    check(torch.equal(rig.by_block[101:165], rig.by_block[1:65]), "registered again, it loads")
    rig.close()


def decode(_: Path) -> None:
    """Steps that read 28 GB of weights, in a graph, as decoding does, alone and beside transfers."""
    print("== decode")
    for layout in ("block", "engine"):
        decode_beside(layout)


def decode_beside(layout: str) -> None:
    import torch

    wide, hidden, size = 35840, 4096, 256  # blocks of a request
    weights = [torch.randn(wide, hidden, dtype=torch.bfloat16, device="cuda") for _ in range(48)]
    back = torch.randn(hidden, wide, dtype=torch.bfloat16, device="cuda")
    x = torch.randn(hidden, 16, dtype=torch.bfloat16, device="cuda")
    rig = Rig(layout, blocks=3072, layers=80, memory=8 << 30)
    rig.save("pinned", list(range(1, 5)))
    rig.until_pinned(7 << 30)

    def forward() -> None:
        for weight in weights:
            torch.matmul(back, torch.matmul(weight, x))

    with torch.cuda.stream(rig.stream):
        forward()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        forward()

    def steps(seconds: float, beside: Callable[[], None] | None) -> list[float]:
        taken = []
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            start, end = torch.cuda.Event(True), torch.cuda.Event(True)
            if beside is not None:
                beside()
            with torch.cuda.stream(rig.stream):
                start.record()
                graph.replay()
                end.record()
            end.synchronize()
            taken.append(start.elapsed_time(end))
        return taken

    loads: list[str] = []
    saves: list[str] = []
    missed = 0
    names = iter(range(1 << 30))

    def transfers(kinds: tuple[str, ...]) -> Callable[[], None]:
        def beside() -> None:
            nonlocal missed
            loads[:] = [each for each in loads if each not in rig.ended]
            while "load" in kinds and len(loads) < 4:
                first = 512 + (next(names) % 4) * size
                request = rig.begin_load("a", list(range(first, first + size)))
                if request is None:
                    missed += 1
                    break
                loads.append(request)
            if "save" in kinds and rig.scheduler.stats()["pinned_blocks"] == 0:
                while saves:
                    rig.scheduler.finished(saves.pop())
                for part in range(4):
                    first = 1536 + part * size
                    saves.append(
                        rig.begin_save(f"d{next(names)}", list(range(first, first + size)))
                    )
            rig.step()

        return beside

    def moved(way: str) -> int:
        stats = rig.stats()
        return sum(stats[f"device_{way}_{path}_bytes"] for path in ("batched", "staged", "mapped"))

    # What a plain copy of pinned memory costs the same steps: nothing that moves KV costs less.
    plain = torch.empty(512 << 20, dtype=torch.uint8, pin_memory=True)
    there = torch.empty(512 << 20, dtype=torch.uint8, device="cuda")
    side = torch.cuda.Stream()
    ended = torch.cuda.Event()

    def copying(load: bool) -> Callable[[], None]:
        def beside() -> None:
            if not ended.query():
                return
            with torch.cuda.stream(side):
                for _ in range(4):
                    if load:
                        there.copy_(plain, non_blocking=True)
                    else:
                        plain.copy_(there, non_blocking=True)
                ended.record()

        return beside

    steps(0.5, None)
    for load in (True, False):
        ratios = []
        for _ in range(3):
            alone = steps(0.3, None)
            beside = steps(0.4, copying(load))
            torch.cuda.synchronize()
            ratios.append(round(statistics.median(beside) / statistics.median(alone), 3))
        figure(
            f"decode beside plain copies {'to' if load else 'from'} the GPU",
            step_ms=round(statistics.median(alone), 3),
            ratios=ratios,
        )
    for kinds in ((), ("load",), ("save",), ("load", "save")):
        ratios = []
        rates: dict[str, float] = {}
        for _ in range(3):
            rig.save("a", list(range(1, 1 + size)))
            alone = steps(0.4, None)
            before = {way: moved(way) for way in ("load", "save")}
            began = time.monotonic()
            beside = steps(0.6, transfers(kinds))
            seconds = time.monotonic() - began
            rates = {way: round((moved(way) - before[way]) / seconds / 1e9, 1) for way in before}
            while rig.scheduler.pending() or [each for each in loads if each not in rig.ended]:
                rig.step()
            ratios.append(round(statistics.median(beside) / statistics.median(alone), 3))
        figure(
            f"decode, KV as {layout}, beside {' and '.join(kinds) or 'steps with nothing to move'}",
            step_ms=round(statistics.median(alone), 3),
            ratios=ratios,
            GBps=rates,
            missed=missed,
        )
    rig.close()


def fingerprint(_: Path) -> None:
    import torch
    from kvcove.vllm import _weights

    print("== fingerprint")
    model = torch.nn.Module()
    # Matrices as a model of 5B parameters has them, and small vectors between them.
    for i in range(40):
        for j in range(4):
            size = (4096, 7600)
            model.register_parameter(
                f"w{i}_{j}",
                torch.nn.Parameter(
                    torch.randn(size, dtype=torch.bfloat16, device="cuda"), requires_grad=False
                ),
            )
        model.register_parameter(
            f"n{i}",
            torch.nn.Parameter(
                torch.randn(4096, dtype=torch.bfloat16, device="cuda"), requires_grad=False
            ),
        )
    total = sum(each.numel() * each.element_size() for each in model.parameters())
    first = _weights.fingerprint_of(model, quiet=True)
    taken = []
    for _ in range(10):
        torch.cuda.synchronize()
        began = time.monotonic()
        again = _weights.fingerprint_of(model, quiet=True)
        taken.append((time.monotonic() - began) * 1e3)
        assert again == first
    model.w7_2.data[17, 4000] += 1
    check(_weights.fingerprint_of(model, quiet=True) != first, "one weight of 5 billion is seen")
    figure(
        "fingerprint",
        GB=round(total / 1e9, 2),
        ms=round(statistics.median(taken), 2),
        least_ms=round(min(taken), 2),
        TBps=round(total / min(taken) / 1e9, 2),
    )


PARTS: dict[str, Callable[[Path], None]] = {
    "paths": paths,
    "order": order,
    "decode": decode,
    "fingerprint": fingerprint,
}


def main() -> int:
    try:
        import torch
    except ImportError:
        print("skipped: torch is not installed")
        return 77
    if not torch.cuda.is_available():
        print("skipped: torch sees no GPU here")
        return 77
    if sys.argv[1:2] == ["--path"]:
        for layout in ("engine", "block"):
            moves_right(layout, sys.argv[2])
        return 1 if FAILED else 0
    print(f"== {torch.cuda.get_device_name()}, torch {torch.__version__}")
    for part in sys.argv[1:] or PARTS:
        began = time.monotonic()
        PARTS[part](Path())
        print(f"-- {part}: {time.monotonic() - began:.1f} s", flush=True)
    print(f"FAILED: {len(FAILED)}" if FAILED else "all checks passed")
    return 1 if FAILED else 0


if __name__ == "__main__":
    sys.exit(main())
