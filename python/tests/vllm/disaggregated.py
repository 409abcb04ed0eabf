# SPDX-License-Identifier: Apache-2.0
"""Prefill in one engine, decode in another: NIXL moves KV between them, kvcove keeps it.

disaggregated.py ENGINE: one of them, told what to do by lines of JSON at its standard input. The parent's part of the test,
`run_disaggregated`, plays the router that users put before such engines: it asks the prefill engine for one token, and gives the
decode engine what that has answered (`kv_transfer_params`).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from serving import free_port

HERE = Path(__file__).parent
START_S, ANSWER_S = 240.0, 180.0


# ---- an engine


class Served:
    """What the parent can ask of an engine."""

    def __init__(self) -> None:
        from layouts import Made

        self.engine = Made(
            os.environ["KVCOVE_MODEL"],
            {
                "kv_connector": "MultiConnector",
                "kv_role": "kv_both",
                "kv_load_failure_policy": "recompute",
                "kv_connector_extra_config": {
                    "connectors": json.loads(os.environ["KVCOVE_CHILDREN"])
                },
            },
        )
        connectors = (
            self.engine.llm.llm_engine.engine_core.engine_core.scheduler.connector._connectors
        )
        self.mine = next(each for each in connectors if type(each).__name__ == "KvcoveConnector")
        self.engine.stats = lambda: self.mine._scheduler.role.stats()  # type: ignore[method-assign]

    def generate(self, prompts: list[list[int]], told: list[dict[str, Any]], tokens: int) -> Any:
        from vllm import SamplingParams

        before, hits = self.stats(), self.engine.external_hits()
        done = self.engine.llm.generate(
            [{"prompt_token_ids": prompt} for prompt in prompts],
            [
                SamplingParams(
                    temperature=0.0,
                    max_tokens=tokens,
                    detokenize=False,
                    ignore_eos=True,
                    extra_args={"kv_transfer_params": params} if params else None,
                )
                for params in told
            ],
            use_tqdm=False,
        )
        after = self.stats()
        return {
            "outputs": [list(output.outputs[0].token_ids) for output in done],
            "told": [output.kv_transfer_params for output in done],
            "fetched": self.engine.external_hits() - hits,  # from NIXL and from the pool
            **{name: after[name] - before[name] for name in ("loaded_keys", "saved_keys")},
        }

    def stats(self) -> dict[str, int]:
        return dict(self.engine.stats())

    def settle(self) -> bool:
        self.engine.settle()
        return True

    def reset(self) -> bool:
        return bool(
            self.engine.llm.reset_prefix_cache(reset_running_requests=True, reset_connector=True)
        )

    def change(self) -> bool:
        import weights

        self.engine.llm.apply_model(weights.change)
        return True


def serve() -> None:
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what vLLM prints is its log
    served = Served()
    print(json.dumps(True), file=out, flush=True)
    for line in sys.stdin:
        name, arguments = json.loads(line)
        print(json.dumps(getattr(served, name)(*arguments)), file=out, flush=True)
    os._exit(0)  # NIXL's libraries (libnl) crash when a process that has no GPU unloads them


# ---- the parent


class Engine:
    """A process of `serve`."""

    def __init__(
        self, log: Path, model: Path, children: list[dict[str, Any]], environment: dict[str, str]
    ) -> None:
        self.log = log
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / "disaggregated.py"), "ENGINE"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log.open("wb"),
            text=True,
            env={
                **os.environ,
                **environment,
                "KVCOVE_MODEL": str(model),
                "KVCOVE_CHILDREN": json.dumps(children),
                "VLLM_NIXL_SIDE_CHANNEL_PORT": str(free_port()),
                "VLLM_RPC_BASE_PATH": str(log.parent),
            },
        )

    def answer(self, seconds: float = ANSWER_S) -> Any:
        import select

        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], seconds)
        line = self.process.stdout.readline() if ready else ""
        if not line:
            self.kill()
            raise SystemExit(
                f"no answer: {self.log}: {self.log.read_text(errors='replace')[-3000:]}"
            )
        return json.loads(line)

    def begin(self, name: str, *arguments: Any) -> None:
        assert self.process.stdin is not None
        print(json.dumps([name, arguments]), file=self.process.stdin, flush=True)

    def ask(self, name: str, *arguments: Any) -> Any:
        self.begin(name, *arguments)
        return self.answer()

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


def children_of(pool: str, order: str, trust: bool) -> list[dict[str, Any]]:
    common = {"kv_role": "kv_both", "kv_load_failure_policy": "recompute"}
    ours = {
        "kv_connector": "KvcoveConnector",
        "kv_connector_module_path": "kvcove.vllm",
        "kv_connector_extra_config": {"pool": pool, "load_when": "always", "trust_siblings": trust},
        **common,
    }
    nixl = {"kv_connector": "NixlConnector", "kv_buffer_device": "cpu", **common}
    return [nixl, ours] if order == "NIXL first" else [ours, nixl]


PREFILL = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}


class Pair:
    """A prefill and a decode engine on one pool, and the router before them."""

    def __init__(
        self,
        directory: Path,
        name: str,
        model: Path,
        pool: str,
        environment: dict[str, str],
        order: str,
        trust: bool,
    ) -> None:
        children = children_of(pool, order, trust)
        self._make = lambda role: Engine(
            directory / f"pd-{name}-{role}.log", model, children, environment
        )
        self.prefill, self.decode = self._make("prefill"), self._make("decode")
        for each in (self.prefill, self.decode):
            each.answer(START_S)

    def first(self, prompts: list[list[int]]) -> dict[str, Any]:
        return dict(self.prefill.ask("generate", prompts, [PREFILL] * len(prompts), 1))

    def then(self, prompts: list[list[int]], told: list[dict[str, Any]]) -> dict[str, Any]:
        return dict(self.decode.ask("generate", prompts, told, 12))

    def kill(self) -> None:
        for each in (self.prefill, self.decode):
            if each.process.poll() is None:
                each.kill()


def one_order(
    pair: Pair,
    name: str,
    prompts: list[list[int]],
    ref: dict[str, Any],
    check: Callable[[bool, str], None],
) -> None:
    tokens = sum((len(prompt) - 1) // 128 * 128 for prompt in prompts)
    keys = tokens // 128
    first = pair.first(prompts)
    done = pair.then(prompts, first["told"])
    check(
        done["outputs"] == ref["w0"]
        and done["fetched"] >= tokens
        and (done["loaded_keys"] == 0 or name == "kvcove first"),
        f"{name}: the decode engine answers as one engine alone, {done['fetched']} tokens fetched, "
        f"{done['loaded_keys']} values from the pool",
    )
    pair.prefill.ask("settle")
    pair.decode.ask("settle")
    saved = [each.ask("stats")["saved_keys"] for each in (pair.prefill, pair.decode)]
    check(
        saved[0] == keys and saved[1] == 0,
        f"{name}: {saved[0]} values saved by the prefill engine, {saved[1]} by the decode engine",
    )
    first = pair.first(prompts)
    done = pair.then(prompts, first["told"])
    check(
        first["loaded_keys"] == keys and done["outputs"] == ref["w0"],
        f"{name}: the prefill engine has {first['loaded_keys']} values from the pool; outputs right",
    )
    pair.prefill.ask("settle")
    pair.decode.ask("settle")
    # The prefill engine dies between its answer and the decode engine's load.
    first = pair.first(prompts)
    pair.prefill.kill()
    began = time.monotonic()
    done = pair.then(prompts, first["told"])
    check(
        done["outputs"] == ref["w0"],
        f"{name}: the prefill engine is killed before its KV is fetched: outputs right after "
        f"{time.monotonic() - began:.1f} s, {done['loaded_keys']} values from the pool",
    )
    pair.prefill = pair._make("prefill-again")
    pair.prefill.answer(START_S)
    pair.decode.ask("settle")
    # New weights everywhere, and a reset between prefill and decode.
    for each in (pair.prefill, pair.decode):
        each.ask("change")
    proven = pair.prefill.ask("reset") and pair.decode.ask("reset")
    first = pair.first(prompts)
    check(
        proven and first["loaded_keys"] == 0,
        f"{name}: nothing of the old weights is found after a reset ({first['loaded_keys']} values)",
    )
    done = pair.then(prompts, first["told"])
    check(done["outputs"] == ref["w1"], f"{name}: outputs are those of the new weights")
    pair.prefill.ask("settle")
    pair.decode.ask("settle")
    # The decode engine dies; the pool has what the prefill engine saved.
    pair.decode.kill()
    pair.decode = pair._make("decode-again")
    pair.decode.answer(START_S)
    pair.decode.ask("change")
    pair.decode.ask("settle")
    done = pair.then(prompts, [{}] * len(prompts))
    check(
        done["outputs"] == ref["w1"] and done["loaded_keys"] == keys,
        f"{name}: a new decode engine alone has {done['loaded_keys']} values from the pool; outputs right",
    )


def run_disaggregated(
    directory: Path,
    model: Path,
    ref: dict[str, Any],
    check: Callable[[bool, str], None],
    owner_of: Callable[[Path], Any],
    environment: dict[str, str],
) -> None:
    import importlib.util

    from driver import PROMPTS

    print("== prefill and decode in two engines, NIXL between them")
    if importlib.util.find_spec("nixl") is None:
        print("  skipped: NIXL is not installed")
        return
    environment = {**environment, "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = os.pathsep.join(
        [str(HERE), os.environ.get("PYTHONPATH", "")]
    ).rstrip(":")
    for order in ("NIXL first", "kvcove first"):
        owner = owner_of(directory)
        name = order.replace(" ", "-")
        pair = Pair(directory, name, model, f"unix:{owner.socket}", environment, order, False)
        try:
            one_order(pair, order, PROMPTS, ref, check)
        finally:
            pair.kill()
            owner.stop()


if __name__ == "__main__":
    serve()
