# SPDX-License-Identifier: Apache-2.0
"""vLLM on kvcove: its own MooncakeStoreConnector, unmodified, and kvcove's: run.py DIRECTORY [PART...].

Builds a tiny random model, runs engines in processes of their own, and compares their outputs token
by token with those of an engine without a connector. Ends with 1 if anything is not as it must be.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import measure
import queued
import router
from disaggregated import run_disaggregated
from engine_environment import ENGINE_ENVIRONMENT
from kinds import run_kinds
from matrix import name_of
from pauses import run_pauses
from refused import run_refused
from release import vllm_release
from serving import free_port, served
from shapes import TOKENS, run_shapes
from slurm import on_two_nodes
from tiny_models import model_of

HERE = Path(__file__).parent
FAILED: list[str] = []
PART = ""  # that runs
CHECKS: dict[str, list[list[Any]]] = {}  # of each part


def check(condition: bool, text: str) -> None:
    print(f"  {'ok  ' if condition else 'FAIL'}  {text}", flush=True)
    CHECKS.setdefault(PART, []).append([bool(condition), text])
    if not condition:
        FAILED.append(text)


class Server:
    """A process that serves, and its log; ready when `ready` says so of the log."""

    def __init__(self, log: Path, arguments: list[str], ready: Callable[[bytes], bool]) -> None:
        with log.open("wb") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", *arguments], stdout=out, stderr=out
            )
        until = time.monotonic() + 20
        while not ready(log.read_bytes()):
            if time.monotonic() > until or self.process.poll() is not None:
                raise SystemExit(log.read_text())
            time.sleep(0.05)

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(20)


class Master(Server):
    """The drop-in's mooncake_master; its child is the one that owns the port."""

    def __init__(self, directory: Path) -> None:
        self.port = free_port()
        super().__init__(
            directory / f"master-{self.port}.log",
            [
                "kvcove.mooncake.master",
                f"-rpc_port={self.port}",
                f"-metrics_port={free_port()}",
                f"-data={directory / f'master-{self.port}'}",
            ],
            lambda log: b"serving at" in log,
        )


def configuration(directory: Path, master: Master, memory: str = "512MB") -> str:
    path = directory / f"mooncake-{master.port}.json"
    path.write_text(
        json.dumps(
            {
                "metadata_server": "P2PHANDSHAKE",
                "master_server_address": f"127.0.0.1:{master.port}",
                "protocol": "tcp",
                "device_name": "",
                "global_segment_size": memory,
                "local_buffer_size": "64MB",
            }
        )
    )
    return str(path)


def drive(
    role: str, model: Path, out: Path, driver: str = "driver.py", **environment: str
) -> dict[str, Any]:
    log = out.with_suffix(".log")
    defaults = {
        **ENGINE_ENVIRONMENT,
        "VLLM_RPC_BASE_PATH": str(out.parent),
        "PYTHONPATH": os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")]).rstrip(":"),
    }
    print(f"  {role}: log {log}", flush=True)
    with log.open("wb") as lines:
        process = subprocess.Popen(
            [sys.executable, str(HERE / driver), role, str(model), str(out)],
            stdout=subprocess.PIPE,
            stderr=lines,
            text=True,
            env={**os.environ, **defaults, **environment},
        )
        assert process.stdout is not None
        for line in process.stdout:
            lines.write(line.encode())
            if line.startswith("    ["):
                print(line, end="", flush=True)
        status = process.wait(600)
    if status != 0 or not out.exists():
        print(log.read_text(errors="replace")[-4000:])
        raise SystemExit(f"{role} ended with {status}")
    return dict(json.loads(out.read_text()))


def phases(name: str, seen: dict[str, Any], ref: dict[str, Any], peer: dict[str, Any]) -> None:
    tokens = sum(len(range(0, 1500 - 1, 128)) - 1 for _ in range(4)) * 128
    check(
        seen["cold"] == ref["w0"] and seen["cold_hits"] == 0,
        f"{name}: outputs as without connector",
    )
    check(
        seen["warm"] == ref["w0"] and seen["warm_hits"] > 0.9 * tokens,
        f"{name}: after a local reset {seen['warm_hits']} of {tokens} tokens from the pool, outputs equal",
    )
    check(
        peer["outputs"] == ref["w0"] and peer["hits"] > 0.9 * tokens,
        f"{name}: a second engine has {peer['hits']} tokens from the pool, outputs equal",
    )
    check(
        seen["reset"] and seen["after_reset_hits"] == 0 and seen["after_reset"] == ref["w0"],
        f"{name}: none after reset_prefix_cache(reset_connector=True)",
    )
    check(
        seen["stale_hits"] > 0 and seen["stale"] != ref["w1"],
        f"{name}: other weights without a reset: the outputs differ (this test can see it)",
    )
    check(
        seen["reset_w1"] and seen["w1"] == ref["w1"] and seen["w1_hits"] == 0,
        f"{name}: other weights with a reset: outputs right",
    )
    check(
        all(race["reset"] and race["equal"] for race in seen["races"])
        and seen["after_races"] == ref["w1"],
        f"{name}: five resets that race with puts: outputs right",
    )


class Owner(Server):
    """`kvcove serve`: the pool of this host."""

    def __init__(self, directory: Path, memory: str = "512MiB", *options: str) -> None:
        private = directory / "sockets"
        private.mkdir(mode=0o700, exist_ok=True)
        self.socket = private / "kvcove.sock"
        super().__init__(
            directory / "serve.log",
            ["kvcove", "serve", "--socket", str(self.socket), "--memory", memory, *options],
            lambda _: self.socket.exists(),
        )


def own_phases(name: str, seen: dict[str, Any], ref: dict[str, Any]) -> None:
    check(
        seen["cold"] == ref["w0"] and seen["cold_hits"] == 0,
        f"{name}: outputs as without connector",
    )
    check(
        seen["warm"] == ref["w0"] and seen["warm_hits"] > 0.9 * TOKENS,
        f"{name}: after a local reset {seen['warm_hits']} of {TOKENS} tokens from the pool",
    )
    check(
        seen["reset"] and seen["after_reset_hits"] == 0 and seen["after_reset"] == ref["w0"],
        f"{name}: none after reset_prefix_cache(reset_connector=True)",
    )
    check(
        seen["w1"] == ref["w1"] and seen["w1_hits"] == 0,
        f"{name}: other weights, only the engine's own cache reset: outputs right, 0 stale",
    )
    check(
        seen["w1_warm"] == ref["w1"] and seen["w1_warm_hits"] > 0.9 * TOKENS,
        f"{name}: the new version's KV is found ({seen['w1_warm_hits']} tokens)",
    )
    check(
        seen["back"] == ref["w0"] and seen["back_hits"] > 0.9 * TOKENS,
        f"{name}: changed back: the old version's KV is found again ({seen['back_hits']} tokens)",
    )
    check(
        seen["poisoned"] == ref["w1_tails"],
        f"{name}: nothing that was computed on old blocks reached the pool",
    )
    check(
        all(race["reset"] and race["equal"] for race in seen["races"])
        and seen["after_races"] == ref["w0"],
        f"{name}: five resets that race with saves: outputs right",
    )
    if "loaded" in seen:
        loaded = seen["loaded"]
        check(
            loaded["equal"] and loaded["finished"] > 2 and loaded["stats"]["pinned_blocks"] == 0,
            f"{name}: aborts and preemptions under load: {loaded['finished']} finished, all right",
        )
        check(
            all(loaded["first_resets"]),
            f"{name}: the first reset after each of {len(loaded['first_resets'])} aborts is a success",
        )
        print(f"        a step: {seen['step_us']:.0f} us added")
    ratio = seen["pool_seconds"] / seen["own_seconds"]
    print(f"        warm from the pool / from the engine's own cache: {ratio:.2f}")


def own_connector(directory: Path, model: Path, ref: dict[str, Any]) -> None:
    for name, multiprocessing, pool, extra in (
        ("in process, embedded", "0", False, {"memory": "512MiB"}),
        ("in process, layer by layer", "0", False, {"memory": "512MiB", **BY_LAYERS}),
        ("in process, on a pool", "0", True, {}),
        ("own process, embedded", "1", False, {"pool": "embedded", "memory": "512MiB"}),
    ):
        print(f"== the engine {name}, with KvcoveConnector")
        owner = Owner(directory) if pool else None
        if owner:
            extra = {"pool": f"unix:{owner.socket}"}
        out = directory / f"own {name}.json"
        seen = drive(
            "engine",
            model,
            out,
            driver="own.py",
            KVCOVE_EXTRA=json.dumps(extra),
            KVCOVE_PEER="1" if pool else "",
            VLLM_ENABLE_V1_MULTIPROCESSING=multiprocessing,
        )
        own_phases(name, seen, ref)
        if owner is None:
            continue
        peer = json.loads(Path(f"{out}.peer").read_text())
        check(
            peer["outputs"] == ref["w0"] and peer["hits"] > 0.9 * TOKENS,
            f"{name}: a second engine has {peer['hits']} tokens from the pool, outputs equal",
        )
        check(
            peer["reset"]
            and peer["after_hits"] == 0
            and peer["after"] == ref["w0"]
            and seen["after_peers_reset_hits"] == TOKENS,
            f"{name}: the second engine's reset is for both; what it stored afterwards is found",
        )
        owner.stop()
    print("== two KvcoveConnectors in a MultiConnector")
    seen = drive(
        "multi",
        model,
        directory / "multi.json",
        driver="own.py",
        KVCOVE_EXTRA=json.dumps({"memory": "256MiB"}),
    )
    check(
        seen["cold"] == seen["warm"] == seen["after"] == ref["w0"]
        and seen["warm_hits"] > 0.9 * TOKENS
        and seen["reset"]
        and seen["after_hits"] == 0,
        f"MultiConnector: {seen['warm_hits']} tokens from the pool, none after a reset",
    )


def own_disk(directory: Path, model: Path, ref: dict[str, Any]) -> None:
    print("== engines with little memory and a disk, one after the other")
    disk = directory / "disk"
    shutil.rmtree(disk, ignore_errors=True)
    extra = {"pool": "embedded", "memory": "8MiB", "disk": f"{disk}:512MiB"}

    def engine(role: str) -> dict[str, Any]:
        out = directory / f"disk-{role}.json"
        settings = {"KVCOVE_EXTRA": json.dumps(extra), "KVCOVE_TIER_LOG": "1"}
        return drive(role, model, out, driver="disk.py", **settings)

    seen = engine("fill")
    stored = seen["pool"]
    written = stored["disk_puts"] + stored["disk_dropped_full"]  # a disk that is behind takes less
    check(
        seen["cold"] == ref["w0"]
        and 0 < stored["evictions"] <= written
        and stored["disk_puts"] > 0
        and stored["disk_errors"] == 0,
        f"disk: {stored['evictions']} evictions of 44 chunks, {stored['disk_puts']} written",
    )
    seen = engine("warm")
    found, stats, counters = seen["found"]["disk_objects"], seen["stats"], seen["counters"]
    check(
        seen["warm"] == ref["w0"] and seen["hits"] > 0 and seen["pool"]["disk_hits"] > 0,
        f"disk: restarted, {found} chunks there: {seen['hits']} of {TOKENS} tokens from the pool in "
        f"{seen['seconds']:.2f} s, outputs equal",
    )
    check(
        stats["hit_disk_keys"] > 0
        and counters.get("vllm:kvcove_hit_disk_keys") == stats["hit_disk_keys"]
        and counters.get("vllm:kvcove_disk_bytes", 0) > 0,
        f"disk: counters: {stats['hit_disk_keys']} keys hit on the disk, "
        f"{counters.get('vllm:kvcove_disk_bytes', 0)} bytes from there",
    )
    log = (directory / "disk-warm.log").read_text(errors="replace").splitlines()
    lines = [line for line in log if "Mooncake load tier summary" in line]
    check(
        bool(lines) and any("disk_keys=0" not in line and "disk_keys=" in line for line in lines),
        f"disk: tier log: {len(lines)} loads, with keys of the disk",
    )
    check(
        vllm_release() < (0, 32) or 0 < counters.get("from disk", 0) <= seen["hits"],
        f"disk: vLLM's hit sources: {counters.get('from disk')} tokens from the disk, "
        f"{counters.get('from host')} from memory",
    )
    check(
        seen["w1"] == ref["w1"] and seen["w1_hits"] == 0,
        "disk: other weights: nothing of the disk is used, outputs right",
    )
    check(
        seen["back"] == ref["w0"] and seen["back_hits"] > 0,
        f"disk: changed back: {seen['back_hits']} tokens of the old version's KV, outputs right",
    )
    check(
        seen["reset"] and seen["after_reset_hits"] == 0 and seen["after_reset"] == ref["w0"],
        "disk: none after reset_prefix_cache(reset_connector=True)",
    )
    seen = engine("after")
    check(
        seen["outputs"] == ref["w0"] and seen["hits"] == 0,
        "disk: restarted after a reset: nothing of before is found",
    )


def adapters_of(directory: Path, model: Path, ref: dict[str, Any], tp: int) -> None:
    print(f"== LoRA adapters that change under one name and path, {tp} ranks")
    threads = {"VLLM_CPU_OMP_THREADS_BIND": "0|1"} if tp > 1 else {}
    try:
        seen = drive(
            "adapters",
            model,
            directory / f"adapters-{tp}.json",
            driver="adapters.py",
            KVCOVE_EXTRA=json.dumps({"memory": "512MiB"}),
            KVCOVE_TP=str(tp),
            **threads,
        )
    except SystemExit:
        log = (directory / f"adapters-{tp}.log").read_text(errors="replace")
        if vllm_release() >= (0, 29) or "RuntimeError: einsum(): subscript" not in log:
            raise
        print(f"  skipped: this vLLM cannot run adapters on {tp} ranks of CPUs")
        return
    one, two, name = seen["one"], seen["two"], f"adapters, {tp} ranks"
    check(
        seen["one hits"] == 0 and seen["one, warm"] == one and seen["one, warm hits"] == TOKENS,
        f"{name}: {seen['one, warm hits']} tokens from the pool from the first request on",
    )
    check(
        seen["base"] == ref["w0"] != one and seen["base hits"] == 0,
        f"{name}: none without the adapter",
    )
    check(
        seen["two hits"] == 0 and two != one and two == seen["two, elsewhere"],
        f"{name}: other tensors under the same name and path: 0 tokens, outputs right",
    )
    check(
        seen["two, warm"] == two and seen["two, warm hits"] == TOKENS,
        f"{name}: then its own KV is found ({seen['two, warm hits']} tokens)",
    )
    for what, expected in (
        ("one, in place", one),
        ("two, evicted", two),
        ("one, by rpc", one),
        ("two, of tensors", two),
    ):
        check(
            seen[what] == expected and seen[f"{what} hits"] == TOKENS,
            f"{name}: {what}: {seen[f'{what} hits']} tokens of the same content",
        )
    check(
        seen["three, of tensors hits"] == 0 and seen["three, of tensors"] not in (one, two),
        f"{name}: other tensors that no file has: 0 tokens",
    )


def own_adapters(directory: Path, model: Path, ref: dict[str, Any]) -> None:
    for tp in (1, 2):
        adapters_of(directory, model, ref, tp)


def own_hints(directory: Path, model: Path, ref: dict[str, Any]) -> None:
    print("== hints of requests, the priority of a namespace")
    owner = Owner(directory)
    seen = drive(
        "hints",
        model,
        directory / "hints.json",
        driver="features.py",
        KVCOVE_EXTRA=json.dumps({"pool": f"unix:{owner.socket}", "priority": "high"}),
    )
    owner.stop()
    check(
        seen["cold"] == seen["warm"] == ref["w0"] and seen["warm_hits"] == TOKENS,
        f"hints: outputs equal, {seen['warm_hits']} tokens from the pool",
    )
    check(
        seen["told"] == [{"output_tokens": 12, "ephemeral_from": 700, "session_ends": True}] * 4
        and seen["wrong"] == [],
        f"hints: {len(seen['told'])} requests' were heard, wrong ones left out",
    )
    check(
        "there is no hint 'nonsense'" in (directory / "hints.log").read_text(errors="replace"),
        "hints: the log says which one is wrong",
    )
    check(seen["priorities"] == ["high"], f"hints: the owner knows {seen['priorities']}")


def feature(
    directory: Path, role: str, name: str, model: Path, extra: dict[str, Any], **more: str
) -> Any:
    return drive(
        role,
        model,
        directory / f"{name}.json",
        driver="features.py",
        KVCOVE_EXTRA=json.dumps(extra if "pool" in extra else {"memory": "256MiB", **extra}),
        **more,
    )


def refusal(directory: Path, role: str, name: str, model: Path, extra: dict[str, Any]) -> str:
    """Return the line with which an engine is refused; empty where it starts."""
    print(f"  {role}: log {directory / f'{name}.log'}", flush=True)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            feature(directory, role, name, model, extra)
    except SystemExit:
        log = (directory / f"{name}.log").read_text(errors="replace")
        found = re.search(r"ValueError: (kvcove: .*)|Value error, (kvcove: .*)", log)
        return (found[1] or found[2]) if found else ""
    return ""


BY_LAYERS: dict[str, Any] = {"load_async": False, "load_layers": 2}


def cannot_run_states(log: Path) -> bool:
    """Return whether an engine ended because this vLLM, 0.31 or older, has no kernel of the model for this CPU."""
    missing = "causal_conv1d_weight_pack: support only width of 4"
    if vllm_release() >= (0, 32) or missing not in log.read_text(errors="replace"):
        return False
    print(f"  skipped: {log.stem}: this vLLM cannot run the model on CPUs")
    return True


def own_hybrid(directory: Path) -> None:
    print("== hybrid models")
    windows, states = model_of(directory, "windows"), model_of(directory, "states")
    if vllm_release() < (0, 30):
        for kind, hybrid in (("sliding window", windows), ("state", states)):
            line = refusal(directory, "hybrid", kind, hybrid, {})
            if not line and cannot_run_states(directory / f"{kind}.log"):
                continue
            check("Upgrade to vLLM 0.30" in line, f"{kind}: refused at the start: {line}")
        return
    for kind, hybrid, keys, extra in (
        ("sliding window", windows, 52, {}),
        ("state", states, 48, {}),
        ("sliding window, told to load with the step", windows, 52, BY_LAYERS),
    ):
        try:
            seen = feature(directory, "hybrid", kind, hybrid, extra)
        except SystemExit:
            if not cannot_run_states(directory / f"{kind}.log"):
                raise
            continue
        check(
            seen["warm"] == seen["cold"] == seen["after"]
            and seen["warm_hits"] == TOKENS
            and len(seen["groups"]) == 2,
            f"{kind}: {seen['warm_hits']} tokens from the pool, outputs equal",
        )
        check(
            seen["keys"] == keys,
            f"{kind}: only what the hit needs was loaded: {seen['keys']} of 88 chunks",
        )
        check(
            seen["shorter"] == seen["shorter_cold"] and seen["shorter_hits"] >= 0,
            f"{kind}: prompts that leave the prefix midway: {seen['shorter_hits']} tokens, equal",
        )
        check(seen["reset"] and seen["after_hits"] == 0, f"{kind}: none after a reset")


def own_features(directory: Path, model: Path, ref: dict[str, Any]) -> None:
    print("== events, metrics, tier log; vLLM's weight version")
    if vllm_release() < (0, 27):
        line = refusal(directory, "told", "told", model, {"weight_version_source": "engine"})
        check("vLLM 0.27 or later" in line, f"vLLM's weight version: refused at the start: {line}")
        own_salts(directory, model, ref)
        own_faults(directory, model, ref)
        return
    seen = feature(
        directory, "told", "told", model, {"weight_version_source": "engine"}, KVCOVE_TIER_LOG="1"
    )
    check(
        seen["stored_blocks"] == TOKENS // 128
        and seen["stored_tokens_right"]
        and seen["parents"] > 0
        and seen["cleared"] > 0
        and seen["salts_told"] == [["tenant"]],
        f"KV events: {seen['stored_blocks']} blocks stored with their tokens and salts, then all cleared",
    )
    metrics, stats = seen["metrics"], seen["stats"]
    check(
        metrics.get("vllm:kvcove_loaded_bytes") == stats["loaded_bytes"] > 0
        and metrics.get("vllm:kvcove_hit_tokens") == stats["hit_tokens"] == TOKENS
        and metrics.get("vllm:kvcove_closed") == 0,
        f"Prometheus: {len(metrics)} metrics vllm:kvcove_*, equal to the connector's counts",
    )
    lines = [
        line
        for line in (directory / "told.log").read_text(errors="replace").splitlines()
        if "Mooncake load tier summary" in line
    ]
    check(
        len(lines) >= 4 and "memory_keys=11 " in lines[0] and "bytes_by_tier={" in lines[0],
        f"tier log: {len(lines)} lines, a load each",
    )
    check(
        seen["same_hits"] == TOKENS
        and seen["untold"] == ref["w1"]
        and seen["untold_hits"] == 0
        and seen["two"] == ref["w1"]
        and seen["two_hits"] == 0
        and seen["two_again_hits"] == TOKENS
        and seen["back"] == ref["w0"]
        and seen["back_hits"] == TOKENS,
        "vLLM's version: closed until it is told, then its own KV; the old version's again",
    )

    own_salts(directory, model, ref)
    own_faults(directory, model, ref)


def own_router(directory: Path, model: Path) -> None:
    """What routers believe that know an engine's KV events alone."""
    print("== routers that listen to an engine's KV events")
    extra = {"pool": "embedded", "memory": "24MiB", "load_when": "always"}
    seen = drive(
        "routed",
        model,
        directory / "routed.json",
        driver="router.py",
        KVCOVE_EXTRA=json.dumps(extra),
        # Else events name blocks by 64 bits of their hashes, and nobody finds them in the pool.
        VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES="0",
    )
    for right, text in router.checks("routers", seen, TOKENS):
        check(right, text)


def own_salts(directory: Path, model: Path, ref: dict[str, Any]) -> None:
    print("== the cache salt as the weights' version")
    seen = feature(directory, "salts", "salts", model, {"weight_version_source": "salt"})
    check(
        seen["one"] == ref["w0"] and seen["one_cold"] == 0 and seen["one_hits"] == TOKENS,
        f"salt: {seen['one_hits']} tokens under the same salt",
    )
    check(
        vllm_release() < (0, 27) or seen["saved_under_another"] == 0,
        "salt: nothing is stored under other weights' salt, where the engine can be told",
    )
    check(
        seen["two"] == ref["w1"] and seen["two_cold"] == 0 and seen["two_hits"] == TOKENS,
        "salt: the new salt has its own KV, outputs right",
    )


def own_faults(directory: Path, model: Path, ref: dict[str, Any]) -> None:
    print("== the pool's owner is killed, started again, frozen")
    seen = feature(directory, "faults", "faults", model, {})
    hits = seen["hits"]
    check(all(outputs == ref["w0"] for outputs in seen["outputs"]), "faults: all outputs are right")
    check(
        hits["warm"] == hits["restarted"] == hits["thawed"] == TOKENS
        and hits["dead"] == hits["still dead"] == hits["long frozen"] == 0,
        "faults: misses while the owner is gone, hits when it is back",
    )
    check(
        not seen["reset_dead"][0]
        and not seen["reset_frozen"][0]
        and max(seen["reset_dead"][1], seen["reset_frozen"][1]) <= 3
        and hits["closed"] == hits["closed again"] == 0,
        f"faults: a reset is false after {seen['reset_dead'][1]:.2f} s (dead) and "
        f"{seen['reset_frozen'][1]:.2f} s (frozen), and nothing is found until it is proven",
    )
    check(
        seen["longest_step_seconds"] < 0.1 and seen["owner_status"] == 0,
        f"faults: longest scheduling step {1e3 * seen['longest_step_seconds']:.1f} ms",
    )

    print("== a pool that does not answer when the engine starts")
    other = HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)
    threading.Thread(target=other.serve_forever, daemon=True).start()
    for name, port in (("alone", free_port()), ("another server", other.server_port)):
        away = {"pool": f"kvcove://127.0.0.1:{port}", "on_unreachable": "fallback"}
        seen = feature(directory, "alone", name, model, away)
        check(
            seen["cold"] == seen["warm"] == ref["w0"] and seen["warm_hits"] == 0 and seen["reset"],
            f"fallback, {name}: an engine without a pool after {seen['seconds']:.1f} s, outputs right, resets",
        )
        log = (directory / f"{name}.log").read_text(errors="replace")
        check("this engine runs without a pool" in log, f"fallback, {name}: the log says so")
    other.shutdown()


def own_ranks(directory: Path, model: Path, ref: dict[str, Any]) -> None:
    print("== several ranks, and engines of different tensor-parallel sizes")
    threads = {"VLLM_CPU_OMP_THREADS_BIND": "0|1"}
    seen = feature(directory, "ranks", "two-ranks", model, {}, KVCOVE_TP="2", **threads)
    check(
        seen["warm"] == seen["cold"] and seen["warm_hits"] == TOKENS and seen["w1_hits"] == 0,
        f"two ranks: {seen['warm_hits']} tokens from the pool, none with other weights",
    )
    owner = Owner(directory)
    extra = {
        "pool": f"unix:{owner.socket}",
        "store_tp": 2,
        "weight_version_source": "engine" if vllm_release() >= (0, 27) else "none",
    }
    one = feature(directory, "ranks", "tp-1", model, extra, KVCOVE_TP="1")
    two = feature(directory, "ranks", "tp-2", model, extra, KVCOVE_TP="2", **threads)
    owner.stop()
    check(
        one["cold"] == two["cold"] == ref["w0"]
        and one["cold_hits"] == 0
        and two["cold_hits"] == TOKENS,
        f"TP 2 has {two['cold_hits']} tokens of what TP 1 stored, outputs equal",
    )


def cascade(directory: Path, model: Path) -> None:
    print("== five cycles of a trainer, in verl's order")
    plain = drive("plain", model, directory / "cycles-plain.json", driver="cascade.py")
    owner = Owner(directory)
    block = {
        "enable": True,
        "kv_connector": "KvcoveConnector",
        "on_failure": "crash",
        "extra_config": {"kv_connector_extra_config": {"pool": f"unix:{owner.socket}"}},
    }
    seen = drive(
        "pooled",
        model,
        directory / "cycles-pooled.json",
        driver="cascade.py",
        KVCOVE_STORE=json.dumps(block),
    )
    owner.stop()
    check(
        len({json.dumps(outputs) for outputs in plain["first"]}) == len(plain["first"]),
        "cycles: each has other outputs (this test can see an old one)",
    )
    check(
        seen["first"] == plain["first"] and seen["again"] == plain["first"],
        f"cycles: the outputs of {len(seen['first'])} cycles are those of an engine without a pool",
    )
    check(
        all(seen["proven"]) and not any(seen["stale"]),
        "cycles: all resets are proven, no token from before an update",
    )
    check(
        all(cached > 0.9 * TOKENS for cached in seen["cached"]),
        f"cycles: {seen['cached']} tokens from the pool in the second turns",
    )


def layout(directory: Path, model: Path, role: str, name: str, extra: Any, **more: str) -> Any:
    return drive(
        role,
        model,
        directory / f"layout-{name}.json",
        driver="layouts.py",
        KVCOVE_EXTRA=json.dumps(extra if "pool" in extra else {"memory": "256MiB", **extra}),
        **more,
    )


def own_trainers(directory: Path, model: Path, ref: dict[str, Any]) -> None:
    """What trainers do with an engine."""
    print("== sleep and wake, pause and go on")
    seen = layout(directory, model, "sleeps", "sleeps", {})
    check(
        seen["cold"] == seen["same"] == seen["same_warm"] == ref["w0"]
        and seen["same_hits"] == 0
        and seen["same_warm_hits"] == TOKENS,
        f"sleep, level 1: outputs equal, then {seen['same_warm_hits']} tokens from the pool",
    )
    check(
        seen["kept"] == ref["w0"] and seen["kept_hits"] == TOKENS,
        f"sleep, level 0: the pool is left alone, {seen['kept_hits']} tokens from it afterwards",
    )
    check(
        seen["other"] == seen["other_warm"] == ref["w1"]
        and seen["other_hits"] == 0
        and seen["other_warm_hits"] == TOKENS,
        "sleep, level 2, with other weights: none of before, outputs right, then its own",
    )
    seen = layout(directory, model, "paused", "paused", {}, VLLM_ENABLE_V1_MULTIPROCESSING="1")
    check(
        seen["keep"] == seen["wait"] == ref["w0"],
        "pause: requests that were kept, and those that it waited for, end with equal outputs",
    )

    print("== weights that nobody tells of")
    seen = layout(directory, model, "unseen", "unseen", {"weights_check_s": 1})
    log = (directory / "layout-unseen.log").read_text(errors="replace")
    check(
        seen["warm_hits"] == TOKENS
        and seen["other_version"]
        and seen["other"] == ref["w1"]
        and seen["other_hits"] == 0
        and "past every call that is observed" in log,
        "weights_check_s: a write past vLLM is found and logged; nothing of before is used",
    )


def own_layouts(directory: Path, model: Path, ref: dict[str, Any]) -> None:
    """Engines as clusters run them."""
    eagle = model_of(directory, "eagle")
    for how, head in (("n-gram", {}), ("EAGLE", {"KVCOVE_EAGLE": str(eagle)})):
        print(f"== {how} speculation")
        name = f"guesses-{how}"
        try:
            plain = layout(
                directory, model, "guesses", f"{name}-plain", {}, KVCOVE_PLAIN="1", **head
            )
        except SystemExit:
            log = (directory / f"layout-{name}-plain.log").read_text(errors="replace")
            if "_sample_recovered_tokens_kernel_impl() got an unexpected" not in log:
                raise
            print("  skipped: this vLLM cannot speculate on CPUs, with or without a connector")
            continue
        seen = layout(directory, model, "guesses", name, {}, **head)
        check(
            seen["cold"] == seen["warm"] == plain["cold"] and seen["warm_hits"] > 0.9 * TOKENS,
            f"{how}: {seen['warm_hits']} tokens from the pool, outputs as without connector",
        )

    print("== beside a P/D transport in a MultiConnector")
    nixl = importlib.util.find_spec("nixl") is not None
    if not nixl:
        print("  NIXL is not installed: a stand-in alone")
    for order, real in (("ours", ""), ("theirs", ""), *((("ours", "1"), ("theirs", "1")) * nixl)):
        name = f"{'nixl' if real else 'transport'}-{order}"
        beside = {"KVCOVE_ORDER": order, "KVCOVE_NIXL": real}
        if real:
            beside["VLLM_NIXL_SIDE_CHANNEL_PORT"] = str(free_port())
        seen = layout(directory, model, "transport", name, {}, **beside)
        check(
            seen["cold"] == seen["warm"] == ref["w0"]
            and seen["warm_hits"] == TOKENS
            and (bool(real) or seen["shaken"] > 0),
            f"{' and '.join(seen['children'])}: starts with the transport's handshake, "
            f"{seen['warm_hits']} tokens from the pool",
        )

    print("== kv_producer and kv_consumer")
    owner = Owner(directory)
    extra = {"pool": f"unix:{owner.socket}"}
    made = layout(directory, model, "one-way", "producer", extra, KVCOVE_ROLE="kv_producer")
    used = layout(directory, model, "one-way", "consumer", extra, KVCOVE_ROLE="kv_consumer")
    owner.stop()
    check(
        made["first"] == made["second"] == ref["w0"]
        and made["second_hits"] == 0
        and made["stats"]["saved_keys"] > 0
        and made["stats"]["lookups"] == 0,
        f"kv_producer: stores {made['stats']['saved_keys']} values and looks nothing up",
    )
    check(
        used["first"] == used["second"] == ref["w0"]
        and used["first_hits"] == used["second_hits"] == TOKENS
        and used["stats"]["saves"] == 0,
        f"kv_consumer: {used['first_hits']} tokens of the producer's, stores nothing",
    )


def own_experts(directory: Path, model: Path) -> None:
    """Two data-parallel engines: each a model of its own, or with the experts of one model on both."""
    for name, path in (("alone", model), ("experts", model_of(directory, "experts"))):
        print(f"== two data-parallel engines, {name}")
        owner = Owner(directory)
        common = {
            "KVCOVE_EXTRA": json.dumps({"pool": f"unix:{owner.socket}", "load_when": "always"}),
            "KVCOVE_EXPERTS": "1" if name == "experts" else "",
            "VLLM_ENABLE_V1_MULTIPROCESSING": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "OMP_NUM_THREADS": "1",
        }

        def engines(how: str, *, name: str = name, path: Path = path, **more: str) -> Any:
            out = directory / f"parallel-{name}-{how}.json"
            return drive("experts", path, out, driver="layouts.py", **more)

        try:
            plain = engines("plain", **common, KVCOVE_PLAIN="1")
        except SystemExit:
            log = (directory / f"parallel-{name}-plain.log").read_text(errors="replace")
            owner.stop()
            if "in all_gatherv" not in log or "NotImplementedError" not in log:
                raise
            print("  skipped: this vLLM cannot send tokens to other engines' experts on CPUs")
            continue
        seen = engines("pooled", **common)
        owner.stop()
        check(
            plain["first"] == plain["second"] == seen["first"] == seen["second"],
            f"{name}: outputs of both engines as without connector",
        )
        check(
            seen["first_cached"] == 0 and seen["second_cached"] > 0.9 * TOKENS,
            f"{name}: the second engine has {seen['second_cached']} tokens of the first one's",
        )
        check(
            seen["other_cached"] == 0 and seen["other"] != seen["first"],
            f"{name}: none with other weights",
        )


def overhead(directory: Path, model: Path) -> None:
    """What the connector costs, beside an engine without it; for a machine that does nothing else."""
    print("== what the connector costs")
    turns = measure.turns(directory, model)
    warm = measure.warm(directory, model)
    steps = measure.one("steps", directory, model)
    print(f"  {json.dumps({'turns': turns, 'warm': warm, 'steps': steps})}", flush=True)
    for right, text in measure.checks(turns, warm, steps):
        check(right, text)


def explained(directory: Path, model: Path) -> None:
    print("== python -m kvcove.vllm explain")
    words = [str(model), "--skip-tokenizer-init", "--dtype", "float32", "--max-model-len", "2048"]
    words += ["--enforce-eager", "--seed", "0"]
    command = [sys.executable, "-m", "kvcove.vllm", "explain"]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}

    def told(*arguments: str) -> dict[str, Any]:
        ran = subprocess.run(
            [*command, "--json", *arguments],
            capture_output=True,
            text=True,
            check=False,
            env=environment,
        )
        if ran.returncode != 0:
            raise SystemExit(ran.stderr[-4000:])
        return dict(json.loads(ran.stdout.splitlines()[-1]))

    one = told(*words)
    check(
        one["rank_token_bytes"] == one["pool_token_bytes"] == 4 * 2 * 4 * 32 * 4
        and one["stride_tokens"] == 128
        and one["groups"][0]["layers"] == 4,
        f"explain: {one['pool_token_bytes']:.0f} bytes a token, chunks of {one['stride_tokens']}",
    )
    logs = [path.read_text(errors="replace") for path in directory.glob("own-*.log")]
    check(
        not logs or any(f"namespace {one['namespace']}" in log for log in logs),
        f"explain: the namespace is the engine's, {one['namespace']}",
    )
    several = told(*words, "--", *words, "--tensor-parallel-size", "2")
    (pair,) = several["pairs"]
    check(
        not pair["shares"]
        and [why[0] for why in pair["differences"]] == ["parallelism"]
        and several["engines"][1]["rank_token_bytes"] * 2 == one["rank_token_bytes"]
        and several["engines"][1]["pool_token_bytes"] == one["pool_token_bytes"],
        "explain: TP 1 and TP 2 do not share, and why; half the bytes a rank, as many in the pool",
    )


PARTS: dict[str, Callable[[Path, Path, dict[str, Any]], None]] = {
    "served": lambda directory, model, ref: served(directory, check),
    "slurm": lambda directory, model, ref: on_two_nodes(directory, check),
    "cascade": lambda directory, model, ref: cascade(directory, model),
    "queued": lambda directory, model, ref: queued_puts(directory, model),
    "own": own_connector,
    "overhead": lambda directory, model, ref: overhead(directory, model),
    "explain": lambda directory, model, ref: explained(directory, model),
    "trainers": own_trainers,
    "pauses": lambda directory, model, ref: run_pauses(directory, model, ref, check, drive),
    "disaggregated": lambda directory, model, ref: run_disaggregated(
        directory, model, ref, check, Owner, ENGINE_ENVIRONMENT
    ),
    "refused": lambda directory, model, ref: run_refused(directory, model, ref, check, drive),
    "layouts": own_layouts,
    "experts": lambda directory, model, ref: own_experts(directory, model),
    "disk": own_disk,
    "hints": own_hints,
    "hybrid": lambda directory, model, ref: own_hybrid(directory),
    "features": own_features,
    "router": lambda directory, model, ref: own_router(directory, model),
    "adapters": own_adapters,
    "ranks": own_ranks,
    "shapes": lambda directory, model, ref: run_shapes(directory, check, drive, Owner),
    "kinds": lambda directory, model, ref: run_kinds(directory, check, drive, Owner),
    "mooncake": lambda directory, model, ref: mooncake(directory, model, ref),
}


def keep(directory: Path) -> None:
    """Write what was checked, for matrix.py; a part that is run again takes the place of its last run.

    Of the layouts, each for itself.
    """
    path = directory / "results.json"
    before = json.loads(path.read_text())["parts"] if path.exists() else {}
    again = {name_of(check) for check in CHECKS.get("shapes", ())}
    kept = [check for check in before.get("shapes", ()) if name_of(check) not in again]
    told = {
        "vllm": ".".join(map(str, vllm_release())),
        "date": time.strftime("%Y-%m-%d"),
        "parts": {**before, **CHECKS, "shapes": kept + CHECKS.get("shapes", [])},
    }
    whole = path.with_suffix(".new")  # within.py may end this process at any time
    whole.write_text(json.dumps(told, indent=1))
    whole.replace(path)


def reference_of(directory: Path) -> tuple[Path, dict[str, Any]]:
    """Return the model, and what an engine without connector makes of it.

    With $KVCOVE_REFERENCE another process has just asked that engine (within.py).
    """
    directory.mkdir(parents=True, exist_ok=True)
    model, out = model_of(directory, "four heads"), directory / "reference.json"
    if os.environ.get("KVCOVE_REFERENCE"):
        return model, dict(json.loads(out.read_text()))
    print("== reference: an engine without connector")
    ref = drive("reference", model, out)
    check(ref["w0"] != ref["w1"], "the two sets of weights give different outputs")
    return model, ref


def main() -> None:
    directory = Path(sys.argv[1]).resolve()
    parts = sys.argv[2:]
    if unknown := set(parts) - set(PARTS):
        raise SystemExit(f"no part is called {', '.join(sorted(unknown))}: {', '.join(PARTS)}")
    model, ref = reference_of(directory)

    global PART
    CHECKS.clear()
    for PART, part in PARTS.items():  # what check() adds to
        if not parts or PART in parts:
            try:
                part(directory, model, ref)
            except (SystemExit, Exception) as error:  # the next part may be all right
                # Of one layout, under its name: keep() lets its next run take this back.
                layout = os.environ.get("KVCOVE_SHAPES", "") if PART == "shapes" else ""
                what = layout if layout and ";" not in layout else PART
                check(False, f"{what}: {error!r}")
            keep(directory)
    print(f"\nvLLM: {'all as it must be' if not FAILED else f'{len(FAILED)} failed'}")
    for text in FAILED:
        print(f"  FAIL  {text}")
    sys.exit(1 if FAILED else 0)


def queued_puts(directory: Path, model: Path) -> None:
    """What vLLM's own MooncakeStoreConnector has queued when another client resets."""
    print("== puts that MooncakeStoreConnector has queued, and another client's reset")
    master = Master(directory)
    seen = drive(
        "queued",
        model,
        directory / "queued.json",
        driver="queued.py",
        MOONCAKE_CONFIG_PATH=configuration(directory, master),
    )
    for right, text in queued.checks(seen):
        check(right, text)
    master.stop()


def mooncake(directory: Path, model: Path, ref: dict[str, Any]) -> None:
    """vLLM's own MooncakeStoreConnector, unmodified."""
    for name, multiprocessing in (("in process", "0"), ("own process", "1")):
        print(f"== the engine {name}, with MooncakeStoreConnector")
        master = Master(directory)
        children = subprocess.run(
            ["pgrep", "-P", str(master.process.pid)], capture_output=True, text=True, check=False
        ).stdout.split()
        out = directory / f"engine-{multiprocessing}.json"
        environment = {
            "MOONCAKE_CONFIG_PATH": configuration(directory, master),
            "VLLM_ENABLE_V1_MULTIPROCESSING": multiprocessing,
            # Else each engine's hashes begin with a random number; docs/mooncake.md tells users.
            **({"PYTHONHASHSEED": "0"} if vllm_release() < (0, 29) else {}),
        }
        if multiprocessing == "0":
            environment["KVCOVE_MASTER_PID"] = children[0]
        seen = drive("engine", model, out, **environment)
        peer = json.loads(Path(f"{out}.peer").read_text())
        phases(name, seen, ref, peer)
        if multiprocessing == "0":
            lost = seen["master_killed"]
            check(all(run["equal"] for run in lost), f"{name}: master killed: outputs right")
            check(
                vllm_release() < (0, 29) or lost[-1]["hits"] == 0,  # those count the own cache, too
                f"{name}: master gone: nothing is found",
            )
            print("        seconds of four prompts:", [round(run["seconds"], 2) for run in lost])
            check(
                seen["longest_step_seconds"] <= 1.0,
                f"{name}: master killed: longest scheduling step {seen['longest_step_seconds']:.3f} s",
            )
            print(f"        reset without master answers {seen['reset_without_master']}")
        ratio = seen["warm_seconds"] / ref["warm_seconds"]
        print(f"        warm from the pool / from the engine's own cache: {ratio:.2f}")
        master.stop()

    print("== starting")
    plain = drive("starts", model, directory / "plain.json", KVCOVE_CONNECTOR="")["seconds"]
    master = Master(directory)
    connected = drive(
        "starts",
        model,
        directory / "connected.json",
        KVCOVE_CONNECTOR="MooncakeStoreConnector",
        MOONCAKE_CONFIG_PATH=configuration(directory, master),
    )["seconds"]
    master.stop()
    check(
        connected <= plain + 1.0,
        f"an engine starts in {connected:.1f} s with connector, {plain:.1f} s without",
    )


if __name__ == "__main__":
    main()
