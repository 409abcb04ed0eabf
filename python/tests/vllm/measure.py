# SPDX-License-Identifier: Apache-2.0
"""What the connector costs vLLM: measure.py DIRECTORY [PART...]. For a quiet machine.

Parts: `turns` (four prompts of 1,500 tokens with the connector beside an engine without it: cold with
saves, and warm from the engine's own cache), `first` (the same in the first seconds after the start, with
an embedded pool of 8 GiB), `warm` (from the pool beside the engine's own cache, EngineCore in a process
of its own), `steps` (all hooks in a step with nothing to move), `stored` (requests that are not stored
after a start or an update). Prints a line of JSON each.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from engine_environment import ENGINE_ENVIRONMENT
from tiny_models import model_of

HERE = Path(__file__).parent
PAIRS = 4  # of engines
TURNS = 6  # of each
HOOKS = {
    "scheduler": (
        "has_pending_push_work build_connector_meta update_connector_output take_events "
        "get_kv_connector_stats"
    ),
    "worker": (
        "bind_connector_metadata handle_preemptions start_load_kv wait_for_layer_load save_kv_layer "
        "wait_for_save get_finished get_transfer_results get_block_ids_with_load_errors get_kv_connector_stats "
        "get_kv_connector_kv_cache_events build_connector_worker_meta clear_connector_metadata"
    ),
}


class Engine:
    """An engine in a process of its own that does one thing at a time."""

    def __init__(self, role: str, model: Path, log: Path, **environment: str) -> None:
        self._log = log.open("wb")
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "measure.py"), "--engine", role, str(model)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env={**os.environ, **ENGINE_ENVIRONMENT, **environment},
        )
        self._answer()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("@"):
                return json.loads(line[1:])
        raise SystemExit(f"the engine has ended; its log: {self._log.name}")

    def ask(self, what: str) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(what + "\n")
        self._process.stdin.flush()
        return self._answer()

    def stop(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)
        self._log.close()


def serve(role: str, model: str) -> None:
    """Do what comes in at stdin; answers are lines that begin with @."""
    from driver import Engine as Plain
    from own import OwnEngine

    engine: Any = Plain(model, connector=False) if role == "plain" else OwnEngine(model)
    print("@true", flush=True)
    for line in sys.stdin:
        what = line.strip()
        answer: Any = None
        if what == "cold":
            if role != "plain":
                engine.settle()
                assert engine.reset(connector=True)
            else:
                assert engine.reset(connector=False)
            time.sleep(0.3)  # what spins for more work has stopped
            began = time.perf_counter()
            engine.run()
            answer = time.perf_counter() - began
        elif what == "again":
            began = time.perf_counter()
            engine.run()
            answer = time.perf_counter() - began
        elif what == "settle":
            engine.settle()
        elif what == "steps":
            answer = steps(engine)
        elif what == "stored":
            answer = stored(engine)
        else:
            raise SystemExit(what)
        print("@" + json.dumps(answer), flush=True)


def steps(engine: Any) -> dict[str, Any]:
    """Return the microseconds of all hooks in steps that only decode."""
    from vllm.distributed.kv_transfer import get_kv_transfer_group

    core = engine.llm.llm_engine.engine_core.engine_core
    spent = 0.0
    taken: list[float] = []
    by_hook: dict[str, list[float]] = {}

    def wrap(target: Any, name: str) -> None:
        inner = getattr(target, name, None)
        if inner is None:  # this version has no such hook
            return

        def timed(*args: Any, **kwargs: Any) -> Any:
            nonlocal spent
            began = time.perf_counter()
            try:
                return inner(*args, **kwargs)
            finally:
                took = time.perf_counter() - began
                spent += took
                by_hook.setdefault(name, []).append(took)

        setattr(target, name, timed)

    for name in HOOKS["scheduler"].split():
        wrap(core.scheduler.connector, name)
    for name in HOOKS["worker"].split():
        wrap(get_kv_transfer_group(), name)
    step = core.step_fn

    def whole() -> Any:
        nonlocal spent
        spent = 0.0
        answer = step()
        taken.append(1e6 * spent)
        return answer

    core.step_fn = whole
    for _ in range(20):
        engine.run([[5, 6, 7]] * 8)
    hooks = {
        name: round(1e6 * statistics.median(all_), 2) * len(all_) / len(taken)
        for name, all_ in by_hook.items()
    }
    return {
        "steps": len(taken),
        "p50_us": statistics.median(taken),
        "least_us": min(taken),
        "hooks_us": {name: round(us, 1) for name, us in sorted(hooks.items(), key=lambda h: -h[1])},
    }


def stored(engine: Any) -> dict[str, Any]:
    """Return how many of 104 requests are not stored: eight at the start, eight after each update."""
    import weights

    seen: dict[str, Any] = {"requests": 0, "wanted_keys": 0}
    for update in range(13):
        if update > 0:
            call = weights.restore if update % 2 == 0 else weights.change_and_remember
            engine.llm.apply_model(call)
            assert engine.reset(connector=False)
        prompts = [
            [(7 * i + 31 * j + j * j + 101 * update) % 900 + 10 for j in range(300)]
            for i in range(8)
        ]
        engine.run(prompts)
        seen["requests"] += len(prompts)
        seen["wanted_keys"] += 2 * len(prompts)
        for _ in range(100):
            engine.run([[5, 6, 7]])
            if engine.stats()["pinned_blocks"] == 0:
                break
            time.sleep(0.05)
    stats = engine.stats()
    for name in (
        "saved_keys uncaptured_requests unstored_requests saves_postponed dropped_keys refused_keys "
        "stale_keys existing_keys"
    ).split():
        seen[name] = stats[name]
    return seen


def alternate(plain: Engine, pooled: Engine, turns: int) -> dict[str, list[float]]:
    """Return the seconds of each engine's turns but the first, which loads code."""
    times: dict[str, list[float]] = {}
    for turn in range(turns + 1):
        for name, engine in (("plain", plain), ("pooled", pooled)):
            for what in ("cold", "again"):
                took = engine.ask(what)
                if turn > 0:
                    times.setdefault(f"{name} {what}", []).append(took)
    return times


def turns(directory: Path, model: Path) -> Any:
    """Alternate, with several pairs of engines: two engines of one kind differ by some percent, too."""
    times: dict[str, list[float]] = {}
    by_pair: dict[str, list[float]] = {}
    extra = json.dumps({"pool": "embedded", "memory": "1GiB"})
    for pair in range(PAIRS):
        plain = Engine("plain", model, directory / f"measure-plain-{pair}.log")
        pooled = Engine(
            "pooled", model, directory / f"measure-pooled-{pair}.log", KVCOVE_EXTRA=extra
        )
        time.sleep(10)  # its memory is populated
        seen = alternate(plain, pooled, TURNS)
        plain.stop()
        pooled.stop()
        for name, seconds in seen.items():
            times.setdefault(name, []).extend(seconds)
        for what in ("cold", "again"):
            by_pair.setdefault(f"{what}, each pair", []).append(_ratio(seen, what))
    result: dict[str, Any] = dict(by_pair)
    for what in ("cold", "again"):
        with_, without = times[f"pooled {what}"], times[f"plain {what}"]
        result[what] = round(statistics.median(with_) / statistics.median(without), 3)
        result[f"{what}, pairs"] = _ratio(times, what)
        result[f"{what}, least"] = round(min(with_) / min(without), 3)
        result[f"{what}, seconds without"] = round(statistics.median(without), 3)
    return result


def _ratio(times: dict[str, list[float]], what: str) -> float:
    """Return the median of the ratios of turns that followed one another."""
    both = zip(times[f"pooled {what}"], times[f"plain {what}"], strict=True)
    return round(statistics.median(a / b for a, b in both), 3)


def first(directory: Path, model: Path) -> Any:
    """Six turns at once after the start, without the first, which loads code."""
    times: dict[str, list[float]] = {}
    plain = Engine("plain", model, directory / "measure-plain.log")
    extra = json.dumps({"pool": "embedded", "memory": "8GiB"})
    for start in range(3):
        began = time.monotonic()
        pooled = Engine("pooled", model, directory / f"first-{start}.log", KVCOVE_EXTRA=extra)
        for turn in range(6):
            for what in ("cold", "again"):
                if turn == 0:
                    pooled.ask(what)
                    continue
                times.setdefault(f"pooled {what}", []).append(pooled.ask(what))
                times.setdefault(f"plain {what}", []).append(plain.ask(what))
        print(f"  after {time.monotonic() - began:.1f} s", file=sys.stderr)
        pooled.stop()
    plain.stop()
    result: dict[str, float] = {}
    for what in ("cold", "again"):
        with_, without = times[f"pooled {what}"], times[f"plain {what}"]
        result[what] = round(statistics.median(with_) / statistics.median(without), 3)
        result[f"{what}, most"] = round(max(with_) / statistics.median(without), 3)
    return result


def warm(directory: Path, model: Path) -> Any:
    extra = json.dumps({"pool": "embedded", "memory": "1GiB"})
    engine = Engine(
        "pooled",
        model,
        directory / "measure-warm.log",
        KVCOVE_EXTRA=extra,
        VLLM_ENABLE_V1_MULTIPROCESSING="1",
    )
    engine.ask("again")
    ratios, pool, own = [], [], []
    for turn in range(21):
        engine.ask("settle")
        # Both after the same pause: the first steps after one are slower, whatever they read.
        for times in (pool, own):
            time.sleep(0.3)
            times.append(engine.ask("again"))
        if turn == 0:
            pool.clear()
            own.clear()
            continue
        ratios.append(pool[-1] / own[-1])
    engine.stop()
    return {
        "median of 20": round(statistics.median(ratios), 3),
        "of the medians": round(statistics.median(pool) / statistics.median(own), 3),
        "of the least": round(min(pool) / min(own), 3),
        "own_seconds": round(statistics.median(own), 4),
    }


# What a figure may be at most.
MOST_RATIO = 1.05
MOST_US = 40.0


def checks(
    turns: dict[str, Any], warm: dict[str, Any], steps: dict[str, Any]
) -> Iterator[tuple[bool, str]]:
    """Yield the figures of docs/connector.md: what is measured, a colon, the figure and its unit.

    A ratio is the median of pairs that were measured one after the other, so that a machine that
    becomes slower in the middle counts in both.
    """
    for what, ratio in (
        ("cold, with saves, beside an engine without connector", turns["cold, pairs"]),
        ("from the own cache, beside an engine without connector", turns["again, pairs"]),
        ("from the pool, beside the own cache", warm["median of 20"]),
    ):
        yield ratio <= MOST_RATIO, f"{what} (at most {MOST_RATIO}): {ratio:.3f}"
    us = steps["p50_us"]
    yield (
        us <= MOST_US,
        f"all hooks of a step with nothing to move (at most {MOST_US:.0f} us): {us:.0f} us",
    )


def one(what: str, directory: Path, model: Path) -> Any:
    extra = json.dumps({"pool": "embedded", "memory": "1GiB"})
    engine = Engine("pooled", model, directory / f"measure-{what}.log", KVCOVE_EXTRA=extra)
    result = engine.ask(what)
    engine.stop()
    return result


PARTS = {
    "turns": turns,
    "first": first,
    "warm": warm,
    "steps": lambda directory, model: one("steps", directory, model),
    "stored": lambda directory, model: one("stored", directory, model),
}


def main() -> None:
    if sys.argv[1] == "--engine":
        return serve(sys.argv[2], sys.argv[3])
    directory = Path(sys.argv[1]).resolve()
    directory.mkdir(parents=True, exist_ok=True)
    model = model_of(directory, "four heads")
    for name in sys.argv[2:] or list(PARTS):
        print(json.dumps({"part": name, **PARTS[name](directory, model)}), flush=True)


if __name__ == "__main__":
    main()
