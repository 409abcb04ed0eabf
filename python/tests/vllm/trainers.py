# SPDX-License-Identifier: Apache-2.0
"""Engines of trainers with kvcove, on vLLM for CPUs: trainers.py SITES DIRECTORY [TRAINER...].

SITES has a directory for each trainer with its packages, and `kvcove` with kvcove's wheel. Each trainer
(trainer_engines.py) runs in a process of its own on a pool of its own. Logs stay in the DIRECTORY.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from engine_environment import ENGINE_ENVIRONMENT
from run import Owner
from tiny_models import model_of
from trainer_engines import TRAINERS

HERE = Path(__file__).parent
SECONDS = 900.0


def main() -> None:
    sites, directory = Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve()
    asked = sys.argv[3:] or list(TRAINERS)
    if unknown := set(asked) - set(TRAINERS):
        raise SystemExit(
            f"no trainer is called {', '.join(sorted(unknown))}: {', '.join(TRAINERS)}"
        )
    directory.mkdir(parents=True, exist_ok=True)
    model = model_of(directory, "words")
    failed = []
    for name in asked:
        work = directory / name
        work.mkdir(exist_ok=True)
        owner = Owner(work)
        print(f"== {name} (log: {work / 'engine.log'})", flush=True)
        try:
            if run(name, model, sites, work, owner) != 0:
                failed.append(name)
        finally:
            owner.stop()
    print(f"\ntrainers: {'all as it must be' if not failed else 'FAILED: ' + ', '.join(failed)}")
    sys.exit(1 if failed else 0)


def run(name: str, model: Path, sites: Path, work: Path, owner: Owner) -> int:
    """Return the status of a trainer's process."""
    paths = [HERE, sites / "kvcove", *([sites / name] if (sites / name).is_dir() else [])]
    kept = {key: text for key, text in os.environ.items() if not key.startswith("KVCOVE_")}
    environment = {
        **kept,
        **ENGINE_ENVIRONMENT,
        "KVCOVE_VLLM_CONNECTOR": "auto",
        "KVCOVE_VLLM_EXTRA_CONFIG": '{"load_when": "always"}',
        "KVCOVE_POOL": f"unix:{owner.socket}",
        "KVCOVE_MEMORY": "1GiB",  # of the owner: not of the engine
        "PYTHONPATH": os.pathsep.join(map(str, paths)),
        "VLLM_CACHE_ROOT": str(Path(sys.prefix) / "vllm-cache"),
        "XDG_CACHE_HOME": str(work / "caches"),
        "XDG_RUNTIME_DIR": str(owner.socket.parent),
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "TRANSFORMERS_OFFLINE": "1",
        "PYTHONFAULTHANDLER": "1",
    }
    log = work / "engine.log"
    with log.open("wb") as lines:
        process = subprocess.Popen(
            [sys.executable, str(HERE / "trainer_engines.py"), name, str(model)],
            stdout=subprocess.PIPE,
            stderr=lines,
            text=True,
            env=environment,
        )
        assert process.stdout is not None
        try:
            for line in process.stdout:
                # vLLM's own lines go to the log, too.
                if (
                    line.startswith("  ok  ")
                    or line.startswith("  FAIL")
                    or line.startswith("      ")
                ):
                    print(line, end="", flush=True)
                else:
                    lines.write(line.encode())
            status = process.wait(SECONDS)
        finally:
            process.kill()
    if status != 0:
        print("  " + "\n  ".join(log.read_text(errors="replace").splitlines()[-12:]))
    return status


if __name__ == "__main__":
    main()
