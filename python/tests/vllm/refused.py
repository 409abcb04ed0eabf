# SPDX-License-Identifier: Apache-2.0
"""Engines that a cluster refuses something: refused.py ROLE MODEL OUT.

Roles: `denied` (the engine's token may not reset), `segment` (`preferred_segment` names no owner). $KVCOVE_EXTRA is the
connector's extra configuration. Writes JSON to OUT.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import weights
from driver import PROMPTS, say
from own import OwnEngine
from serving import free_port

# ---- an engine


def denied(model: str) -> dict[str, Any]:
    engine = OwnEngine(model)
    seen: dict[str, Any] = {"cold": engine.measured()[0]}
    engine.settle()
    seen["warm"], seen["warm_hits"], _ = engine.measured()
    seen["reset"] = engine.reset(connector=True)
    seen["after_hits"] = engine.measured()[1]
    seen["closed"] = engine.stats()["closed"]
    engine.llm.apply_model(weights.change)
    seen["reset_again"] = engine.reset(connector=True)
    seen["other"], seen["other_hits"], _ = engine.measured()
    say(
        f"resets {seen['reset']}, {seen['reset_again']}; hits {seen['after_hits']}, {seen['other_hits']}"
    )
    return seen


def segment(model: str) -> dict[str, Any]:
    engine = OwnEngine(model)
    seen: dict[str, Any] = {"cold": engine.measured()[0]}
    engine.settle()
    seen["warm"], seen["warm_hits"], _ = engine.measured()
    engine.settle()
    seen["pinned"] = engine.stats()["pinned_blocks"]
    return seen


# ---- the parent


class Cluster:
    """A master with credentials and one owner."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        directory.mkdir(mode=0o700, exist_ok=True)
        self._processes: list[subprocess.Popen[bytes]] = []
        servers = directory / "servers.toml"
        servers.unlink(missing_ok=True)
        for tenant, scopes in (
            ("cluster", "owner,admin"),
            ("reader", "read,write"),
            ("engine", ""),
        ):
            given = ["--scopes", scopes] if scopes else []
            self._run(
                "token",
                tenant,
                *given,
                "--credentials",
                str(servers),
                "--output",
                str(self.token(tenant)),
            )
        self.master, owner = (f"127.0.0.1:{free_port()}" for _ in range(2))
        common = ["--admin", "off", "--credentials"]
        self._start("master at", "master", "--listen", self.master, *common, str(servers),
                    "--data", str(directory / f"data-{time.time_ns()}"))  # fmt: skip
        self._start("knows this owner", "owner", "--master", self.master, "--listen", owner, "--memory", "256MiB",
                    "--socket", str(directory / "kvcove.sock"), *common, str(servers))  # fmt: skip

    def token(self, tenant: str) -> Path:
        return self._directory / f"{tenant}.toml"

    def _run(self, *words: str) -> None:
        if words[0] == "token":
            Path(words[-1]).unlink(missing_ok=True)
        subprocess.run([sys.executable, "-m", "kvcove", *words], check=True, capture_output=True)

    def _start(self, ready: str, *words: str) -> None:
        log = self._directory / f"{words[0]}.log"
        with log.open("wb") as out:
            process = subprocess.Popen(
                [sys.executable, "-m", "kvcove", *words], stdout=out, stderr=out
            )
        self._processes.append(process)
        until = time.monotonic() + 30
        while ready.encode() not in log.read_bytes():
            if process.poll() is not None or time.monotonic() > until:
                self.stop()
                raise SystemExit(log.read_text())
            time.sleep(0.05)

    def stop(self) -> None:
        for process in reversed(self._processes):
            process.terminate()
            process.wait(30)


def run_refused(
    directory: Path,
    model: Path,
    ref: dict[str, Any],
    check: Callable[[bool, str], None],
    drive: Callable[..., dict[str, Any]],
) -> None:
    cluster = Cluster(directory / "refused")
    pool = f"kvcove://{cluster.master}"
    tokens = sum((len(prompt) - 1) // 128 * 128 for prompt in PROMPTS)
    try:
        for policy, source in (("closed", "none"), ("false", "none"), ("closed", "fingerprint")):
            name = f"a token that may not reset, {policy}, {source}"
            print(f"== {name}")
            out = directory / f"refused-{policy}-{source}.json"
            extra = {"pool": pool, "on_reset_failure": policy, "weight_version_source": source,
                     "namespace": f"{policy}-{source}"}  # fmt: skip
            seen = drive(
                "denied",
                model,
                out,
                driver="refused.py",
                KVCOVE_EXTRA=json.dumps(extra),
                KVCOVE_TOKEN=str(cluster.token("reader")),
            )
            log = out.with_suffix(".log").read_text(errors="replace")
            check(
                seen["warm"] == seen["cold"] == ref["w0"]
                and seen["warm_hits"] == tokens
                and not seen["reset"]
                and not seen["reset_again"]
                and seen["after_hits"] == seen["other_hits"] == 0
                and seen["other"] == ref["w1"]
                and seen["closed"] == 1
                and 'lacks the scope "reset"' in log
                and log.count("the pool refuses the reset") == 1,
                f"{name}: both resets are false, nothing is found behind them, the log says why",
            )
        name = "a preferred segment that is no owner's"
        print(f"== {name}")
        for told, starts in (("not-a-segment", False), (f"127.0.0.1:{free_port()}", True)):
            out = directory / f"refused-segment-{starts}.json"
            extra = {"pool": pool, "preferred_segment": told, "namespace": f"segment-{starts}"}
            try:
                seen = drive(
                    "segment",
                    model,
                    out,
                    driver="refused.py",
                    KVCOVE_EXTRA=json.dumps(extra),
                    KVCOVE_TOKEN=str(cluster.token("engine")),
                )
            except SystemExit:
                seen = {}
            log = out.with_suffix(".log").read_text(errors="replace")
            if starts:
                check(
                    seen.get("warm") == ref["w0"]
                    and seen["warm_hits"] == tokens
                    and seen["pinned"] == 0,
                    f"{name}, {told}: the other owner is used, {seen.get('warm_hits')} tokens, no block is kept",
                )
            else:
                check(
                    not seen and "'not-a-segment': give an owner's HOST:PORT" in log,
                    f"{name}, {told}: refused at the start in one line",
                )
    finally:
        cluster.stop()


def main() -> None:
    role, model, out = sys.argv[1:4]
    Path(out).write_text(json.dumps({"denied": denied, "segment": segment}[role](model)))


if __name__ == "__main__":
    main()
