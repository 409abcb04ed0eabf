# SPDX-License-Identifier: Apache-2.0
"""A job of ``python -m kvcove.launch slurm`` on two nodes, whose command is ``vllm serve``.

The nodes are network namespaces, and SLURM's own programs are fakes: ``launch/slurm_hosts.py``.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import serving
from tiny_models import model_of

TESTS = Path(__file__).resolve().parent.parent
sys.path += [str(TESTS), str(TESTS / "launch")]
from conftest import wait_until  # noqa: E402
from slurm_hosts import Job, NoNamespaces, job_on, two_hosts  # noqa: E402

Check = Callable[[bool, str], None]
PORT = 8000  # each node has its own
BLOCKS = serving.TOKENS // 128
TOKEN_BYTES = 4 * 2 * 4 * 32 * 4  # layers, K and V, heads, numbers of a head, float32

# What each connector has really loaded. vLLM counts a hit when it is found, also where the load fails.
LOADED = {
    "kvcove": ("vllm:kvcove_loaded_bytes_total", ""),
    "mooncake": (
        "vllm:mooncake_store_operation_bytes_total",
        'operation="load_get",status="ok"',
    ),
}

# A request from within a node.
ASK = """\
import sys, urllib.request
url, body = sys.argv[1:]
request = urllib.request.Request(url, body.encode() or None, {"Content-Type": "application/json"})
print(urllib.request.urlopen(request, timeout=120).read().decode())
"""


class NodeEngine(serving.Engine):
    """The engine of a node; it listens on the node's loopback only."""

    def __init__(self, job: Job, rank: int) -> None:
        assert job.process is not None
        super().__init__(f"http://127.0.0.1:{PORT}", job.process, job.directory / "job.log")
        self._node = job.names[rank]

    def ask(self, path: str, body: dict[str, Any] | None = None) -> str:
        text = "" if body is None else json.dumps(body)
        ran = subprocess.run(
            ["ip", "netns", "exec", self._node, sys.executable, "-c", ASK, self.address + path, text],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if ran.returncode != 0:
            raise OSError(ran.stderr)
        return ran.stdout


def added(job: Job, idle: dict[str, int]) -> dict[str, int]:
    """Return how many objects each owner has, beyond those that it had."""
    now = job.segments()
    return {segment.rsplit(":", 1)[0]: now[segment] - idle.get(segment, 0) for segment in now}


def served_on_both(job: Job, check: Check) -> None:
    name = f"slurm, {job.kind}"
    first, second = NodeEngine(job, 0), NodeEngine(job, 1)
    first.wait()
    second.wait()
    print(f"        both engines answer after {time.monotonic() - job.began:.1f} s")
    idle = job.segments()
    began = time.monotonic()
    cold, before = first.complete()
    cold_seconds = time.monotonic() - began
    again, own = first.complete_again()
    check(
        len(cold.split()) == 16 and before == 0 and again == cold and own == serving.TOKENS,
        f"{name}: node 0 computes the prompt, then has {own} of its tokens from the pool",
    )
    # Of each owner, beside what the engines have told each other about their weights.
    wait_until(lambda: sum(added(job, idle).values()) >= BLOCKS, 5)
    held = added(job, idle)
    check(
        held == {"10.78.0.1": BLOCKS, "10.78.0.2": 0},
        f"{name}: node 0's owner holds all {BLOCKS} blocks: {held}",
    )
    tries, seconds, answer, tokens = 0, 0.0, cold, 0
    # A load that takes over a second, as on a busy machine, is a miss. Its blocks are in the pool, so
    # that node 1 stores none, and the next try is from node 0, too.
    while tokens == 0 and answer == cold and tries < 10:
        if tries:
            second.ask("/reset_prefix_cache", {})
        tries += 1
        began = time.monotonic()
        answer, _ = second.complete()
        seconds = time.monotonic() - began
        wait_until(lambda: second.counted(*LOADED[job.kind]) > 0, 3)
        tokens = second.counted(*LOADED[job.kind]) // TOKEN_BYTES
    check(
        tokens == serving.TOKENS and answer == cold and added(job, idle) == held,
        f"{name}: node 1 loads {tokens} of {len(serving.PROMPT)} tokens from node 0 "
        f"(try {tries}), the same answer",
    )
    print(
        f"        the request: {cold_seconds:.2f} s computed, {seconds:.2f} s from the other node"
    )


def ended(job: Job, check: Check) -> None:
    assert job.process is not None
    began = time.monotonic()
    job.process.terminate()
    status = job.process.wait(60)
    seconds = time.monotonic() - began
    # vLLM kills its workers, whose rendezvous then stays in $TMPDIR.
    left = [path for path in job.left() if not Path(path).name.startswith("vllm_dist_")]
    # vLLM takes SIGTERM for a wish, and reports that it went well.
    check(
        status == 0 and not left,
        f"slurm, {job.kind}: SIGTERM ends the job in {seconds:.1f} s (exit {status}), "
        f"{left or 'nothing'} is left",
    )


def on_two_nodes(directory: Path, check: Check) -> None:
    print("== a job of SLURM on two nodes, each with vllm serve")
    model = model_of(directory, "words")
    command = ["vllm", "serve", str(model), "--port", str(PORT), *serving.SMALL]
    try:
        with two_hosts() as names:
            for kind in ("kvcove", "mooncake"):
                with job_on(names, kind) as job:
                    words = ["--nodes", "2", "--output-dir", str(job.out), "--memory", "512MiB"]
                    job.script.write_text(job.render(*words, "--", *command))
                    # Some of what vLLM and torch make stays; it is not the job's.
                    engines = job.directory / "engines"
                    engines.mkdir()
                    job.environment = {
                        **serving.environment(directory),
                        "VLLM_RPC_BASE_PATH": str(engines),
                        "TORCHINDUCTOR_CACHE_DIR": str(engines),
                    }
                    job.start()
                    try:
                        served_on_both(job, check)
                        ended(job, check)
                    finally:
                        log = directory / f"slurm-{kind}.log"
                        log.write_text(job.told())
                        print(f"        log {log}")
    except NoNamespaces as error:
        print(f"  skipped: {error}")
