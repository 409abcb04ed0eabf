# SPDX-License-Identifier: Apache-2.0
"""verl, as PyPI has it, on the pool: run.py DIRECTORY [PART...].

`configuration`: its own files, classes and arguments for vLLM. `servers`: five cycles around two of its
rollout servers, whose outputs must be those of one without a pool. Ends with 1 if anything is not as it
must be.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
sys.path.insert(0, str(HERE.parent / "vllm"))

from serving import named_vllm  # noqa: E402
from tiny_models import model_of  # noqa: E402

from kvcove import launch  # noqa: E402

FAILED: list[str] = []
BLOCK = launch.verl.BLOCK
VLLM = "actor_rollout_ref.rollout.name=vllm"


def check(condition: bool, text: str) -> None:
    print(f"  {'ok  ' if condition else 'FAIL'}  {text}", flush=True)
    if not condition:
        FAILED.append(text)


def environment(directory: Path, *paths: Path) -> dict[str, str]:
    """Return what verl and its engines find: this directory's platform, and loopback alone."""
    places = [*paths, HERE, HERE.parent / "vllm", named_vllm(directory)]
    return {
        "PYTHONPATH": os.pathsep.join(map(str, places)),
        "VERL_PLATFORM": "cpu",
        "VERL_USE_EXTERNAL_MODULES": "cpu_platform",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_AUTH_MODE": "disabled",
        "HF_HUB_OFFLINE": "1",
        "TORCHDYNAMO_DISABLE": "1",  # vLLM 0.28 and older compile for a minute and more at each start
        "OMP_NUM_THREADS": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_HOST_IP": "127.0.0.1",
        "VLLM_NO_USAGE_STATS": "1",
    }


def run(
    script: str, log: Path, arguments: list[str], wanted: bool = True, **more: str
) -> tuple[int, str]:
    """Run a script of this directory; return its status and what it wrote."""
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, str(HERE / script), *arguments],
            stdout=subprocess.PIPE,
            stderr=out,
            env={**os.environ, **more},
        )
        assert process.stdout is not None
        for line in process.stdout:
            out.write(line)
            out.flush()
            if line.startswith(b"    ["):
                print(line.decode(), end="", flush=True)
        status = process.wait(60)
    said = log.read_text(errors="replace")
    if wanted and status != 0:
        print(said[-4000:])
        raise SystemExit(f"{script} ended with {status}; {log} has all of it")
    return status, said


# ---- what verl makes of a configuration


def configuration(directory: Path) -> None:
    print("== verl's own configuration")

    def made(name: str, arguments: list[str], *paths: Path) -> Any:
        out = directory / f"{name}.json"
        run(
            "configuration.py",
            directory / f"{name}.log",
            [str(out), VLLM, *arguments],
            **environment(directory, *paths),
        )
        return json.loads(out.read_text())

    def right(found: Any, expected: dict[str, Any]) -> bool:
        """Whether vLLM has what was given; the rest is its own default."""
        return found is not None and expected.items() <= found.items()

    page = (ROOT / "docs" / "verl.md").read_text()
    (recipe,) = re.findall(r'^  "(\+\S+kv_transfer_config=\{.*\})"$', page, re.MULTILINE)
    block = launch.for_verl({"enable": True, "kv_connector": "KvcoveConnector"})
    assert block is not None
    options = {**block["kv_connector_extra_config"], "pool": "auto"}
    found = made("recipe", [recipe])
    check(
        right(found, {**block, "kv_connector_extra_config": options}),
        "what docs/verl.md leads with is what vLLM's parser gets",
    )
    plan = launch.verl.plan(["verl", f"{BLOCK}.enable=true", "trainer.nnodes=1"])
    check(right(made("block", plan.command[1:] + plan.overrides), block), "the block, by launch")
    check(made("none", []) is None, "without either there is no connector")

    own = directory / "own"
    own.mkdir(exist_ok=True)
    (own / "mine.yaml").write_text(
        "hydra: {searchpath: ['pkg://verl.trainer.config']}\n"
        "defaults: [ppo_trainer, _self_]\n"
        "actor_rollout_ref: {rollout: {engine_kwargs: {vllm: {kv_transfer_config: {kv_role: kv_both}}}}}\n"
    )
    status, said = run(
        "configuration.py",
        directory / "two.log",
        [str(directory / "two.json"), f"--own={own}/mine", VLLM, *plan.overrides],
        wanted=False,
        **environment(directory),
    )
    check(status != 0 and "already at" in said, "a connector in a file of the user's is refused")
    status, said = run(
        "configuration.py",
        directory / "unknown.log",
        [str(directory / "unknown.json"), VLLM, f"+{BLOCK}.enable=true"],
        wanted=False,
        **environment(directory),
    )
    check(status != 0 and "kv_store" in said, "verl itself refuses the block")

    patched = directory / "patched"
    shutil.rmtree(patched, ignore_errors=True)
    import verl

    shutil.copytree(Path(verl.__file__).parent, patched / "verl")
    patch = ["patch", "-s", "-p1", "-d", str(patched), "-i", str(ROOT / "contrib" / "verl.patch")]
    subprocess.run(patch, check=True)
    found = made("patched", [f"{BLOCK}.enable=true"], patched)
    check(right(found, block), "contrib/verl.patch: verl takes the block")
    found = made(
        "patched-mooncake",
        [
            f"{BLOCK}.enable=true",
            f"{BLOCK}.kv_connector=MooncakeStoreConnector",
            f"{BLOCK}.config_path=/m.json",
        ],
        patched,
    )
    mooncake = launch.build_kv_transfer_config(
        launch.KVStoreConfig(enable=True, config_path="/m.json")
    )
    assert mooncake is not None
    check(right(found, mooncake), "contrib/verl.patch: also with MooncakeStoreConnector")


# ---- its rollout servers


class Owner:
    """`kvcove serve`: the pool of this host."""

    def __init__(self, directory: Path) -> None:
        private = directory / "sockets"
        private.mkdir(mode=0o700, exist_ok=True)
        self.address = f"unix:{private / 'kvcove.sock'}"
        options = ["--socket", str(private / "kvcove.sock"), "--memory", "512MiB"]
        with (directory / "serve.log").open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "kvcove", "serve", *options], stdout=log, stderr=log
            )

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(20)


def servers(directory: Path) -> None:
    print("== five cycles around verl's rollout servers")
    owner = Owner(directory)
    block = {
        "enable": True,
        "on_failure": "crash",
        "extra_config": {
            "kv_connector_extra_config": {
                "pool": owner.address,
                # The model is so small that computing is faster.
                "load_when": "always",
                "lookup_budget_ms": 2000,
            }
        },
    }
    out, log = directory / "servers.json", directory / "servers.log"
    print(f"  log {log}", flush=True)
    run(
        "server.py",
        log,
        [str(model_of(directory, "words")), str(out)],
        **environment(directory),
        # As verl's worker has them, which the script stands for.
        RANK="0",
        WORLD_SIZE="1",
        RAY_LOCAL_WORLD_SIZE="1",
        KVCOVE_TRANSFER=launch.to_json(launch.for_verl(block, timeout=20)),
    )
    owner.stop()
    seen = json.loads(out.read_text())
    cycles = len(seen["plain"])
    check(
        cycles == 5 and len({json.dumps(each) for each in seen["plain"]}) == cycles,
        "five cycles, whose weights give other outputs each time",
    )
    check(seen["first"] == seen["plain"], "first turns: outputs as without a pool")
    check(seen["again"] == seen["plain"], "second turns, on the other server: the same")
    check(seen["stale"] == [0] * cycles, "0 tokens of other weights")
    check(
        min(seen["cached"]) > 0.8 * seen["tokens"],
        f"second turns: {seen['cached']} of {seen['tokens']} tokens from the pool",
    )
    check(min(seen["aborted"]) > 0, f"aborted with resets: {seen['aborted']} requests")


PARTS: dict[str, Callable[[Path], None]] = {"configuration": configuration, "servers": servers}


def main() -> None:
    directory = Path(sys.argv[1]).resolve()
    parts = sys.argv[2:]
    if unknown := set(parts) - set(PARTS):
        raise SystemExit(f"no part is called {', '.join(sorted(unknown))}: {', '.join(PARTS)}")
    directory.mkdir(parents=True, exist_ok=True)
    for name, part in PARTS.items():
        if not parts or name in parts:
            try:
                part(directory)
            except (SystemExit, Exception) as error:  # the next part may be all right
                check(False, f"{name}: {error!r}")
    print(f"\nverl: {'all as it must be' if not FAILED else f'{len(FAILED)} failed'}")
    for text in FAILED:
        print(f"  FAIL  {text}")
    sys.exit(1 if FAILED else 0)


if __name__ == "__main__":
    main()
