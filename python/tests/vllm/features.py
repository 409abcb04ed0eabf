# SPDX-License-Identifier: Apache-2.0
"""What one engine with KvcoveConnector does beside the phases of own.py: features.py ROLE MODEL OUT.

Roles: `hybrid` (a model whose layers are not all alike), `hints` (what requests and the engine say for
eviction), `told` (KV events, metrics, tier log; vLLM's
version as the weights'), `salts` (the cache salt as the weights' version), `ranks` (the world that
$KVCOVE_TP says), `faults` (the owner of its pool dies and freezes),
`alone` (its pool does not answer when it starts). $KVCOVE_EXTRA is the connector's extra configuration. Writes JSON to OUT.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import weights
from driver import PROMPTS, say, steps_of
from own import OwnEngine

import kvcove


def hybrid(model: str, out: str) -> dict[str, Any]:
    stateful = "state" in Path(model).name
    options = {"enable_prefix_caching": True, "mamba_cache_mode": "align"} if stateful else {}
    engine = OwnEngine(model, **options)
    groups = engine.llm.llm_engine.engine_core.engine_core.scheduler.kv_cache_config.kv_cache_groups
    seen: dict[str, Any] = {"groups": [type(group.kv_cache_spec).__name__ for group in groups]}
    seen["cold"], seen["cold_hits"], _ = engine.measured()
    engine.settle()
    seen["warm"], seen["warm_hits"], _ = engine.measured()
    seen["keys"] = engine.stats()["loaded_keys"]
    engine.settle()
    # A prefix that ends elsewhere: its last window, or state, must be there, too.
    shorter = [prompt[: 700 + 150 * i] + [3, 4, 5] * 20 for i, prompt in enumerate(PROMPTS)]
    before = engine.external_hits()
    seen["shorter"] = engine.run(shorter)
    seen["shorter_hits"] = engine.external_hits() - before
    seen["reset"] = engine.reset(connector=True)
    seen["after"], seen["after_hits"], _ = engine.measured()
    seen["reset"] &= engine.reset(connector=True)
    seen["shorter_cold"] = engine.run(shorter)
    say(f"{seen['groups']}: {seen['warm_hits']} tokens of {seen['keys']} keys")
    return seen


def hints(model: str, out: str) -> dict[str, Any]:
    """What requests say reaches the scheduler's role; what the engine says, the owner."""
    import kvcove.vllm._connector as hooks

    understood: list[Any] = []
    understand = hooks.hints_of

    def heard(params: Any) -> Any:
        understood.append(understand(params))
        return understood[-1]

    hooks.hints_of = heard
    engine = OwnEngine(model)
    right = {"output_tokens": 12, "ephemeral_from": 700, "session_ends": True}
    seen: dict[str, Any] = {"cold": engine.run(said=right)}
    seen["told"] = [vars(one) for one in understood if one is not None]
    engine.settle()
    understood.clear()
    before = engine.external_hits()
    seen["warm"] = engine.run(said={"output_tokens": "many", "nonsense": 1})
    seen["warm_hits"] = engine.external_hits() - before
    seen["wrong"] = [vars(one) for one in understood if one is not None]
    socket = json.loads(os.environ["KVCOVE_EXTRA"])["pool"].removeprefix("unix:")
    status = subprocess.run(
        [sys.executable, "-m", "kvcove", "status", "--json", "--socket", socket],
        check=True,
        capture_output=True,
    )
    spaces = [
        space for owner in json.loads(status.stdout)["owners"] for space in owner["namespaces"]
    ]
    seen["priorities"] = [
        space.get("priority", "")
        for space in spaces
        if space["bytes"] > 0 and space["namespace"] != "kvcove-facts"  # that hold KV
    ]
    say(f"{len(seen['told'])} requests said something; priorities: {seen['priorities']}")
    return seen


def told(model: str, out: str) -> dict[str, Any]:
    import msgspec
    import zmq
    from vllm.config import KVEventsConfig
    from vllm.distributed.kv_events import KVEventBatch

    address = f"ipc://{out}.events"
    events = KVEventsConfig(enable_kv_cache_events=True, publisher="zmq", endpoint=address)
    listener = zmq.Context.instance().socket(zmq.SUB)
    listener.connect(address)
    listener.setsockopt_string(zmq.SUBSCRIBE, "")
    engine = OwnEngine(model, kv_events_config=events)
    core = engine.llm.llm_engine.engine_core.engine_core

    def heard() -> list[Any]:
        batches = []
        while listener.poll(500):
            batches.append(msgspec.msgpack.decode(listener.recv_multipart()[-1], type=KVEventBatch))
        return [event for batch in batches for event in batch.events]

    seen: dict[str, Any] = {}
    seen["cold"], _, _ = engine.measured()
    engine.settle()
    stored = [e for e in heard() if type(e).__name__ == "BlockStored" and e.medium == "CPU"]
    seen["stored_blocks"] = sum(len(event.block_hashes) for event in stored)
    prompts = {tuple(prompt[128 * i : 128 * (i + 1)]) for prompt in PROMPTS for i in range(11)}
    told_tokens = [
        tuple(event.token_ids[at : at + event.block_size])
        for event in stored
        for at in range(0, len(event.token_ids), event.block_size)
    ]
    seen["stored_tokens_right"] = set(told_tokens) == prompts
    seen["parents"] = sum(event.parent_block_hash is not None for event in stored)
    engine.run(PROMPTS[:1], salt="tenant")
    engine.settle()
    salted = [e for e in heard() if type(e).__name__ == "BlockStored" and e.medium == "CPU"]
    seen["salts_told"] = [
        list(event.extra_keys[0]) for event in salted if event.extra_keys and event.extra_keys[0]
    ]
    seen["warm"], seen["warm_hits"], _ = engine.measured()
    seen["metrics"] = {
        metric.name: metric.count if hasattr(metric, "buckets") else metric.value
        for metric in engine.llm.get_metrics()
        if metric.name.startswith("vllm:kvcove_")
    }
    seen["stats"] = engine.stats()
    _ = heard()
    seen["reset"] = engine.reset(connector=True)
    engine.run([[5, 6, 7]])
    seen["cleared"] = sum(type(event).__name__ == "AllBlocksCleared" for event in heard())

    # vLLM's version names the weights: from an update's first call until it is told, nothing is
    # found or stored; each version has its own.
    _, _, _ = engine.measured()
    engine.settle()
    core.collective_rpc("check_health")
    seen["same_hits"] = engine.measured()[1]
    engine.llm.apply_model(weights.change_and_remember)
    engine.reset(connector=False)
    seen["untold"], seen["untold_hits"], _ = engine.measured()
    core.set_weight_version("two")
    engine.reset(connector=False)
    seen["two"], seen["two_hits"], _ = engine.measured()
    engine.settle()
    seen["two_again_hits"] = engine.measured()[1]
    engine.llm.apply_model(weights.restore)
    core.set_weight_version("default")
    engine.reset(connector=False)
    seen["back"], seen["back_hits"], _ = engine.measured()
    say(f"versions: {seen['same_hits']}, {seen['untold_hits']}, {seen['two_again_hits']}")
    return seen


def salts(model: str, out: str) -> dict[str, Any]:
    engine = OwnEngine(model)
    core = engine.llm.llm_engine.engine_core.engine_core
    # vLLM 0.26 and older cannot be told; only requests name the version then.
    tell = getattr(core, "set_weight_version", lambda version: None)

    def measured(salt: str) -> tuple[list[list[int]], int]:
        before = engine.external_hits()
        outputs = engine.run(salt=salt)
        return outputs, engine.external_hits() - before

    seen: dict[str, Any] = {}
    tell("one")
    seen["one"], seen["one_cold"] = measured("one")
    engine.settle()
    _, seen["one_hits"] = measured("one")
    # prime-rl's flow: weights change in mid-air; requests name the new salt from then on.
    engine.llm.apply_model(weights.change_and_remember)
    tell("two")
    # This request still names the old one: what it computes under the new weights is not stored.
    tails = [prompt + [11, 12, 13] * 100 for prompt in PROMPTS]
    before = engine.stats()["saved_keys"]
    engine.run(tails, salt="one")
    engine.settle()
    seen["saved_under_another"] = engine.stats()["saved_keys"] - before
    seen["two"], seen["two_cold"] = measured("two")
    engine.settle()
    _, seen["two_hits"] = measured("two")
    say(f"salts: {seen['one_hits']}, then {seen['two_hits']}")
    return seen


def ranks(model: str, out: str) -> dict[str, Any]:
    tp = int(os.environ["KVCOVE_TP"])
    options: dict[str, Any] = {}
    if tp > 1:
        options = {"tensor_parallel_size": tp, "distributed_executor_backend": "mp"}
    engine = OwnEngine(model, **options)
    seen: dict[str, Any] = {}
    seen["cold"], seen["cold_hits"], _ = engine.measured()
    engine.settle()
    seen["warm"], seen["warm_hits"], _ = engine.measured()
    engine.llm.apply_model(weights.change)
    engine.reset(connector=False)
    seen["w1_hits"] = engine.measured()[1]
    say(f"{tp} ranks: {seen['cold_hits']}, {seen['warm_hits']}, other weights {seen['w1_hits']}")
    return seen


def faults(model: str, out: str) -> dict[str, Any]:
    """This host's owner is killed, started again, frozen: outputs are right, nothing waits long."""
    private = Path(out).parent / "faults"
    private.mkdir(mode=0o700, exist_ok=True)
    address = private / "kvcove.sock"

    def serve() -> subprocess.Popen[bytes]:
        started = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "kvcove",
                "serve",
                "--socket",
                str(address),
                "--memory",
                "256MiB",
            ]
        )
        until = time.monotonic() + 10
        while time.monotonic() < until:
            time.sleep(0.05)
            with contextlib.suppress(kvcove.Error):
                kvcove.open(f"unix:{address}").close()
                return started
        raise TimeoutError("the owner does not start")

    owner = serve()
    os.environ["KVCOVE_EXTRA"] = json.dumps({"pool": f"unix:{address}"})
    engine = OwnEngine(model)
    steps, _ = steps_of(engine)
    seen: dict[str, Any] = {"outputs": [], "hits": {}}

    def run(what: str) -> int:
        outputs, hits, _ = engine.measured()
        seen["outputs"].append(outputs)
        seen["hits"][what] = hits
        engine.llm.reset_prefix_cache()
        return hits

    def timed_reset() -> tuple[bool, float]:
        began = time.monotonic()
        done = bool(engine.llm.reset_prefix_cache(reset_connector=True))
        return done, time.monotonic() - began

    def until_found(what: str) -> None:
        for _ in range(20):
            engine.settle()
            if run(what) == seen["hits"]["warm"]:
                return

    run("cold")
    engine.settle()
    run("warm")
    killer = threading.Timer(0.03, owner.kill)
    killer.start()
    for what in ("while killed", "dead", "still dead"):
        run(what)
    killer.join()
    owner.wait()
    seen["reset_dead"] = timed_reset()
    run("closed")
    owner = serve()
    until_found("restarted")
    owner.send_signal(signal.SIGSTOP)
    run("frozen")
    time.sleep(1.5)  # its lease has run out
    run("long frozen")
    seen["reset_frozen"] = timed_reset()
    run("closed again")
    owner.send_signal(signal.SIGCONT)
    until_found("thawed")
    owner.terminate()
    seen["longest_step_seconds"] = max(steps)
    seen["owner_status"] = owner.wait(20)
    say(f"{seen['hits']}")
    return seen


def alone(model: str, out: str) -> dict[str, Any]:
    began = time.monotonic()
    engine = OwnEngine(model)
    seen: dict[str, Any] = {"seconds": time.monotonic() - began}
    seen["cold"], _, _ = engine.measured()
    engine.settle()
    seen["warm"], seen["warm_hits"], _ = engine.measured()
    seen["reset"] = engine.reset(connector=True)
    seen["stats"] = engine.stats()
    say(f"{seen['warm_hits']} tokens from the pool")
    return seen


def main() -> None:
    role, model, out = sys.argv[1:4]
    roles = {
        "hybrid": hybrid,
        "hints": hints,
        "told": told,
        "salts": salts,
        "ranks": ranks,
        "faults": faults,
        "alone": alone,
    }
    seen = roles[role](model, out)
    Path(out).write_text(json.dumps(seen))


if __name__ == "__main__":
    main()
