# SPDX-License-Identifier: Apache-2.0
"""One engine of the vLLM test, in a process of its own: driver.py ROLE MODEL OUT.

Roles: `reference` (no connector), `engine` (all phases), `peer` (a second engine), `starts` (how long
an engine takes to start, with and without connector: the caller chooses by $KVCOVE_CONNECTOR).
Writes what it saw as JSON to OUT.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from release import vllm_release
from weights import change

PROMPTS = [[(7 * i + 31 * j + j * j) % 900 + 10 for j in range(1500)] for i in range(4)]
_T0 = time.monotonic()


def say(text: str) -> None:
    print(f"    [{time.monotonic() - _T0:5.1f} s] {text}", flush=True)


# An engine as small as it can be.
SMALL: dict[str, Any] = {
    "skip_tokenizer_init": True,
    "dtype": "float32",
    "max_model_len": 2048,
    "max_num_batched_tokens": 2048,
    "enforce_eager": True,
    "seed": 0,
}


def start(model: str, **options: Any) -> Any:
    """One engine, in this process."""
    from vllm import LLM

    llm = LLM(model=model, disable_log_stats=False, **{**SMALL, **options})
    generate = llm.generate
    llm.cached_tokens = 0

    def counted(*arguments: Any, **more: Any) -> Any:
        outputs = generate(*arguments, **more)
        llm.cached_tokens += sum(output.num_cached_tokens or 0 for output in outputs)
        return outputs

    llm.generate = counted
    return llm


def warm_up(worker: Any) -> None:
    """Run one step of nothing, for a worker.

    In it vLLM makes what pipeline stages hand over; on CPUs an eager engine has no such step.
    """
    worker.model_runner._dummy_run(worker.model_runner.max_num_tokens)


class Engine:
    def __init__(self, model: str, connector: bool) -> None:
        options: dict[str, Any] = {}
        if connector:
            from vllm.config import KVTransferConfig

            options["kv_transfer_config"] = KVTransferConfig(
                kv_connector=os.environ.get("KVCOVE_CONNECTOR", "MooncakeStoreConnector"),
                kv_role="kv_both",
                kv_load_failure_policy="recompute",
            )
        self.llm = start(model, **options)

    def run(
        self, prompts: list[list[int]] = PROMPTS, salt: str = "", said: Any = None
    ) -> list[list[int]]:
        from vllm import SamplingParams

        extra = {"kv_transfer_params": {"kvcove": said}} if said else None
        sampling = SamplingParams(
            temperature=0.0, max_tokens=12, detokenize=False, ignore_eos=True, extra_args=extra
        )
        outputs = self.llm.generate(
            [{"prompt_token_ids": p, **({"cache_salt": salt} if salt else {})} for p in prompts],
            sampling,
            use_tqdm=False,
        )
        return [list(output.outputs[0].token_ids) for output in outputs]

    def external_hits(self) -> int:
        """Return the tokens that were found in the pool, of all requests; with vLLM 0.28 and older
        also those of the engine's own cache.

        Those lose the counts of steps that give no output, as the ones that order loads.
        """
        if vllm_release() < (0, 29):
            return int(self.llm.cached_tokens)
        for metric in self.llm.get_metrics():
            if metric.name == "vllm:external_prefix_cache_hits":
                return int(metric.value)
        return -1

    def measured(self) -> tuple[list[list[int]], int, float]:
        """Outputs, external hits in tokens, seconds; the own cache has been reset."""
        before, began = self.external_hits(), time.monotonic()
        outputs = self.run()
        seconds = time.monotonic() - began
        return outputs, self.external_hits() - before, seconds

    def reset(self, connector: bool) -> bool:
        # Saves that are under way hold blocks; the engine lets them go within its next steps.
        for _ in range(50):
            if self.llm.reset_prefix_cache(reset_connector=connector):
                return True
            self.run([[5, 6, 7]])
            time.sleep(0.05)
        return False

    def settle(self, key_count: int = 44) -> None:
        """Wait until what was computed is stored: local reset, then hits."""
        until = time.monotonic() + 20
        while time.monotonic() < until:
            self.run([[5, 6, 7]])
            time.sleep(0.1)
            if self.reset(connector=False):
                return


def reference(model: str) -> dict[str, Any]:
    engine = Engine(model, connector=False)
    seen: dict[str, Any] = {"w0": engine.run()}
    began = time.monotonic()
    assert engine.run() == seen["w0"]
    seen["warm_seconds"] = time.monotonic() - began
    engine.llm.apply_model(change)
    assert engine.llm.reset_prefix_cache()
    seen["w1"] = engine.run()
    seen["w1_tails"] = engine.run([prompt + [11, 12, 13] * 100 for prompt in PROMPTS])
    return seen


def steps_of(engine: Engine) -> tuple[list[float], Any]:
    """The scheduler's seconds a step, from now on (engine in this process)."""
    core = engine.llm.llm_engine.engine_core.engine_core
    times: list[float] = []
    schedule = core.scheduler.schedule

    def timed(*args: Any, **kwargs: Any) -> Any:
        began = time.monotonic()
        try:
            return schedule(*args, **kwargs)
        finally:
            times.append(time.monotonic() - began)

    core.scheduler.schedule = timed
    return times, schedule


def engine_phases(model: str, out: str) -> dict[str, Any]:
    engine = Engine(model, connector=True)
    seen: dict[str, Any] = {"start_seconds": time.monotonic() - _T0}
    seen["cold"], seen["cold_hits"], _ = engine.measured()
    say("cold: stored")
    engine.settle()
    seen["warm"], seen["warm_hits"], seen["warm_seconds"] = engine.measured()
    say(f"after a local reset: {seen['warm_hits']} tokens from the pool")
    peer = subprocess.run(
        [sys.executable, __file__, "peer", model, out + ".peer"], check=False, timeout=300
    )
    seen["peer_status"] = peer.returncode
    seen["reset"] = engine.reset(connector=True)
    seen["after_reset"], seen["after_reset_hits"], _ = engine.measured()
    say(f"after a reset of the connector: {seen['after_reset_hits']} tokens")

    # Weights change. Without a reset of the pool the old KV is found, and the outputs show it.
    engine.settle()
    engine.llm.apply_model(change)
    seen["stale"], seen["stale_hits"], _ = engine.measured()
    seen["reset_w1"] = engine.reset(connector=True)
    seen["w1"], seen["w1_hits"], _ = engine.measured()
    say("weights changed, reset")

    # Resets race with the saves of what was just computed; nothing old may be found afterwards.
    races = []
    for _ in range(5):
        outputs = engine.run()
        done = engine.reset(connector=True)
        races.append({"reset": done, "equal": outputs == seen["w1"]})
    seen["races"] = races
    seen["after_races"], _, _ = engine.measured()
    say("resets raced with puts")

    if os.environ.get("KVCOVE_MASTER_PID") and hasattr(
        engine.llm.llm_engine.engine_core, "engine_core"
    ):
        engine.settle()
        steps, _ = steps_of(engine)
        killer = threading.Timer(
            0.05, lambda: os.kill(int(os.environ["KVCOVE_MASTER_PID"]), signal.SIGKILL)
        )
        killer.start()
        lost = []
        for i in range(4):
            if i == 1:
                time.sleep(1.5)  # by now no lease is left: everything is a miss
            outputs, hits, seconds = engine.measured()
            lost.append({"equal": outputs == seen["w1"], "hits": hits, "seconds": seconds})
            engine.llm.reset_prefix_cache()
        killer.join()
        seen["master_killed"] = lost
        seen["longest_step_seconds"] = max(steps)
        seen["reset_without_master"] = engine.llm.reset_prefix_cache(reset_connector=True)
        say(f"master killed: longest scheduling step {max(steps):.3f} s")
    return seen


def peer(model: str) -> dict[str, Any]:
    engine = Engine(model, connector=True)
    outputs, hits, seconds = engine.measured()
    say(f"a second engine: {hits} tokens from the pool")
    return {"outputs": outputs, "hits": hits, "seconds": seconds}


def main() -> None:
    role, model, out = sys.argv[1:4]
    if role == "reference":
        seen = reference(model)
    elif role == "engine":
        seen = engine_phases(model, out)
    elif role == "peer":
        seen = peer(model)
    else:
        began = time.monotonic()
        Engine(model, connector=bool(os.environ.get("KVCOVE_CONNECTOR")))
        seen = {"seconds": time.monotonic() - began}
    Path(out).write_text(json.dumps(seen))


if __name__ == "__main__":
    main()
