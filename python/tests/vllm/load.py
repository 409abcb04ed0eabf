# SPDX-License-Identifier: Apache-2.0
"""``kvcove bench engine`` on vLLM, with each way to keep KV: load.py DIRECTORY [VARIANT...] [-- OPTION...].

OPTIONs are those of ``kvcove bench engine``; they change LOAD. Variants, each with new engines and an empty pool:

    none         vLLM's own cache alone
    memory       KvcoveConnector, an owner with MEMORY MiB
    disk         the same with a disk below
    drop-in      MooncakeStoreConnector on kvcove, MEMORY in the engine
    original     the same on the package in $ORIGINAL (pip install --target $ORIGINAL --no-deps
                 mooncake-transfer-engine-non-cuda), left out where that is not set
    none-2, disk-2, none-4, disk-4
                 so many engines, which share the owner; requests take them in turn
    none-dp2, disk-dp2
                 one server with --data-parallel-size 2

Prints a line of JSON each. vLLM's OffloadingConnector refuses CPUs, so it is not among them.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from run import Master, configuration
from serving import Engine, environment, free_port
from tiny_models import model_of

LOAD = """
conversations = 24
turns = 3
concurrency = 12
system_tokens = 200
input_tokens = 300
turn_tokens = 60
output_tokens = 8
tool_tokens = 80
tool_output_tokens = 4
"""
MEMORY = 48  # MiB: less than half of what the load stores
ENGINE = ["--host", "127.0.0.1", "--served-model-name", "tiny", "--dtype", "float32"]
ENGINE += ["--max-model-len", "2048", "--enforce-eager"]
# Room for a few conversations: the least that a machine with many users has.
ENGINE += ["--block-size", "32", "--num-gpu-blocks-override", "160"]
VARIANTS = "none memory disk drop-in original none-2 disk-2 none-dp2 disk-dp2".split()
MOONCAKE = {
    "kv_connector": "MooncakeStoreConnector",
    "kv_role": "kv_both",
    "kv_load_failure_policy": "recompute",
}


def stop(process: subprocess.Popen[bytes]) -> None:
    """End an engine and all that it has started."""
    process.send_signal(signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(60)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@contextlib.contextmanager
def mooncake(directory: Path, kind: str) -> Iterator[dict[str, str]]:
    """Run a master; yield the environment of its engines."""
    if kind == "drop-in":
        master = Master(directory)
        path = configuration(directory, master, f"{MEMORY}MB")
        try:
            yield {"MOONCAKE_CONFIG_PATH": path}
        finally:
            master.stop()
        return
    package = Path(os.environ["ORIGINAL"]) / "mooncake"
    port = free_port()
    with (directory / "original.log").open("wb") as log:
        process = subprocess.Popen(
            [package / "mooncake_master", f"-rpc_port={port}", f"-metrics_port={free_port()}"],
            stdout=log, stderr=log, env={**os.environ, "LD_LIBRARY_PATH": str(package)},
        )  # fmt: skip
    time.sleep(3)
    path = directory / "original.json"
    settings = {"metadata_server": "P2PHANDSHAKE", "master_server_address": f"127.0.0.1:{port}"}
    settings |= {"protocol": "tcp", "device_name": "", "local_buffer_size": "64MB"}
    path.write_text(json.dumps(settings | {"global_segment_size": f"{MEMORY}MB"}))
    try:
        yield {"MOONCAKE_CONFIG_PATH": str(path), "PYTHONPATH": str(package.parent)}
    finally:
        process.kill()
        process.wait()


@contextlib.contextmanager
def serving(
    directory: Path, name: str, prefix: list[str], options: list[str], more: dict[str, str]
) -> Iterator[Engine]:
    """Run ``vllm serve``."""
    log, port = directory / f"{name}.log", free_port()
    model = str(model_of(directory, "letters"))
    vllm = [str(Path(sys.executable).parent / "vllm"), "serve", model, "--port", str(port)]
    own = environment(directory)
    paths = [own["PYTHONPATH"], more.get("PYTHONPATH", ""), os.environ.get("PYTHONPATH", "")]
    variables = {**os.environ, **own, **more, "PYTHONPATH": ":".join(filter(None, paths))}
    with log.open("wb") as out:
        process = subprocess.Popen(
            [*prefix, *vllm, *ENGINE, *options],
            stdout=out, stderr=out, env=variables, start_new_session=True,
        )  # fmt: skip
    engine = Engine(f"http://127.0.0.1:{port}", process, log)
    try:
        engine.wait()
        yield engine
    finally:
        stop(process)


def measured(directory: Path, variant: str, options: list[str]) -> dict[str, Any]:
    """Return the figures of a variant."""
    kind, _, form = variant.partition("-") if variant != "drop-in" else (variant, "", "")
    prefix: list[str] = []
    arguments: list[str] = []
    load = directory / "load.toml"
    load.write_text(LOAD)
    with contextlib.ExitStack() as stack:
        more: dict[str, str] = {}
        if kind in ("drop-in", "original"):
            more = stack.enter_context(mooncake(directory, kind))
            arguments = ["--kv-transfer-config", json.dumps(MOONCAKE)]
        elif kind != "none":
            sockets = directory / f"sockets-{variant}"
            sockets.mkdir(mode=0o700, exist_ok=True)
            prefix = [sys.executable, "-m", "kvcove", "run", f"--socket={sockets / 'kvcove.sock'}"]
            prefix += [f"--memory={MEMORY}MiB"]
            prefix += [f"--disk={directory / f'disk-{variant}'}:1GiB"] if kind == "disk" else []
            prefix += ["--"]
        if form.startswith("dp"):
            arguments += ["--data-parallel-size", form.removeprefix("dp")]
        count = int(form) if form.isdigit() else 1
        engines = [
            stack.enter_context(serving(directory, f"{variant}-{i}", prefix, arguments, more))
            for i in range(count)
        ]
        command = [sys.executable, "-m", "kvcove", "bench", "engine", "--json", f"--load={load}"]
        command += [engine.address for engine in engines]
        command += ["--route=request"] if count > 1 else []
        done = subprocess.run([*command, *options], stdout=subprocess.PIPE, check=False)
        if done.returncode not in (0, 1):  # 1: conversations were lost
            raise SystemExit(done.returncode)
        return {"variant": variant, **json.loads(done.stdout)}


def main() -> None:
    arguments = sys.argv[1:]
    at = arguments.index("--") if "--" in arguments else len(arguments)
    directory = Path(arguments[0]).resolve()
    directory.mkdir(parents=True, exist_ok=True)
    for variant in arguments[1:at] or VARIANTS:
        if variant != "original" or "ORIGINAL" in os.environ:
            print(json.dumps(measured(directory, variant, arguments[at + 1 :])), flush=True)


if __name__ == "__main__":
    main()
