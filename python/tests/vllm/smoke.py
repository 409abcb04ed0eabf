# SPDX-License-Identifier: Apache-2.0
"""vLLM with kvcove's connector in a few minutes: smoke.py SITE [DIRECTORY].

SITE is what `pip install --target` made of kvcove's wheel; so several checkouts may use one environment. Starts the
pool and smoke_engines.py, and watches them: each part has a deadline, at which all processes write the stacks of their
threads and are killed. Ends with 1 if anything is not as it must be. With a DIRECTORY it works there and leaves the
logs; else it leaves nothing but what it prints. $KVCOVE_SMOKE_PATIENCE (2) multiplies the deadlines.
"""

from __future__ import annotations

import json
import os
import resource
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from engine_environment import ENGINE_ENVIRONMENT
from run import Owner

HERE = Path(__file__).parent
MARK = "KVCOVE_SMOKE_DIRECTORY"


class Processes:
    """The processes whose environment has this run's mark, orphans included."""

    def __init__(self, directory: Path) -> None:
        self._mark = f"{MARK}={directory}".encode()
        self._shared: set[Path] = set()

    def pids(self) -> list[int]:
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            if int(process.name) == os.getpid():
                continue
            try:
                if self._mark in (process / "environ").read_bytes().split(b"\0"):
                    found.append(int(process.name))
            except OSError:
                continue
        return found

    def look(self) -> None:
        """Remember the names in /dev/shm that they have mapped."""
        for pid in self.pids():
            try:
                maps = Path(f"/proc/{pid}/maps").read_text(errors="replace")
            except OSError:
                continue
            for line in maps.splitlines():
                _, found, name = line.partition(" /dev/shm/")
                if found and not name.endswith("(deleted)"):
                    self._shared.add(Path("/dev/shm", name))

    def signal(self, number: int) -> None:
        for pid in self.pids():
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                continue

    def ended(self, seconds: float) -> bool:
        until = time.monotonic() + seconds
        while self.pids():
            if time.monotonic() > until:
                return False
            time.sleep(0.05)
        return True

    def remove(self) -> list[str]:
        """End what still runs, and return what was left behind."""
        self.look()
        left = []
        if not self.ended(10):
            for pid in self.pids():
                try:
                    command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
                except OSError:
                    continue
                left.append(f"process {pid}: {command.decode(errors='replace')[:200]}")
            self.signal(signal.SIGKILL)
            self.ended(10)
        for path in sorted(self._shared):
            if path.exists():
                left.append(str(path))
                path.unlink()
        return left


def environment(directory: Path, socket: Path, report: int) -> dict[str, str]:
    """Return that of the engines: no network, and whatever they write lies in the directory."""
    named = {
        name: str(directory / "caches")
        for name in (
            *("VLLM_CONFIG_ROOT", "XDG_CACHE_HOME", "XDG_CONFIG_HOME"),
            *("HF_HOME", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"),
        )
    }
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("KVCOVE_", "MOONCAKE_"))
    }
    return {
        **kept,
        **ENGINE_ENVIRONMENT,
        **named,
        MARK: str(directory),
        # What vLLM found out about its model classes, with a process of its own, is of use next time.
        "VLLM_CACHE_ROOT": str(Path(sys.prefix) / "vllm-cache"),
        "KVCOVE_SMOKE_POOL": str(socket),
        "KVCOVE_SMOKE_REPORT": str(report),
        "KVCOVE_TIER_LOG": "1",
        "TMPDIR": str(directory),
        "XDG_RUNTIME_DIR": str(directory / "sockets"),
        "VLLM_RPC_BASE_PATH": str(directory),
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([str(HERE), os.environ["PYTHONPATH"]]),
        "PYTHONFAULTHANDLER": "1",  # SIGABRT writes the stacks of all threads
        "GLOO_SOCKET_IFNAME": "lo",
        "TRANSFORMERS_OFFLINE": "1",
    }


class Run:
    """The engines' process, and what it reports."""

    def __init__(self, directory: Path) -> None:
        self.failed: list[str] = []
        self.seconds: list[tuple[str, float]] = []
        self._directory = directory
        self._processes = Processes(directory)
        self._patience = float(os.environ.get("KVCOVE_SMOKE_PATIENCE", "2"))
        self._log = directory / "engines.log"

    def everything(self) -> None:
        os.environ[MARK] = str(self._directory)
        began = time.monotonic()
        disk = self._directory / "disk"
        owner = Owner(self._directory, "16MiB", "--disk", f"{disk}:256MiB")
        self.seconds.append(("the pool starts", time.monotonic() - began))
        try:
            self._engines(owner.socket)
        finally:
            owner.process.terminate()
            for left in self._processes.remove():
                self._fail(f"left behind: {left}")
            owner.process.wait()

    def _fail(self, text: str) -> None:
        print(f"  FAIL  {text}", flush=True)
        self.failed.append(text)

    def _engines(self, socket: Path) -> None:
        reader, writer = os.pipe()
        with self._log.open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, str(HERE / "smoke_engines.py"), str(self._directory)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment(self._directory, socket, writer),
                pass_fds=(writer,),
                start_new_session=True,
            )
        os.close(writer)
        with os.fdopen(reader, "rb", buffering=0) as reports:
            ended = self._follow(reports)
        try:
            process.wait(20 * self._patience if ended else 0.1)
        except subprocess.TimeoutExpired:
            self._kill("the engines do not end" if ended else "")
            process.wait()
        if ended and process.returncode != 0 and not self.failed:
            self._fail(f"the engines end with {process.returncode}")
        if self.failed and "Fatal Python error" not in self._text():
            print(f"== The end of the engines' log\n{self._text()[-6000:]}", flush=True)

    def _text(self) -> str:
        return self._log.read_text(errors="replace")

    def _follow(self, reports: Any) -> bool:
        """Print what is reported until the end; return whether it came."""
        part, began, deadline = "", time.monotonic(), time.monotonic() + 90 * self._patience
        waiting = b""
        while True:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([reports], [], [], left)[0]:
                self._kill(f"{part}: not done after {time.monotonic() - began:.0f} s")
                return False
            read = reports.read(65536)
            if not read:
                self._fail(f"{part}: the engines' process has died")
                return False
            *lines, waiting = (waiting + read).split(b"\n")
            for line in lines:
                said = json.loads(line)
                if "text" in said:
                    if said["right"]:
                        print(f"  ok    {said['text']}", flush=True)
                    else:
                        self._fail(f"{part}: {said['text']}")
                        # Later parts would push it out of what is printed at the end.
                        print(f"== The engines' log until then\n{self._text()[-6000:]}", flush=True)
                    continue
                if part:
                    self.seconds.append((part, time.monotonic() - began))
                self._processes.look()
                if "end" in said:
                    if said["end"]:
                        self._fail(f"{part}: {said['end']}")
                    return True
                part, began = said["part"], time.monotonic()
                deadline = began + said["limit"] * self._patience
                print(f"== {part}", flush=True)

    def _kill(self, why: str) -> None:
        """Fail, with the stacks of all threads of all processes."""
        if why:
            self._fail(why)
        before = len(self._text())
        self._processes.signal(signal.SIGABRT)
        self._processes.ended(5)
        self._processes.signal(signal.SIGKILL)
        text = self._text()
        print(f"== The end of the engines' log\n{text[:before][-3000:]}")
        print(f"== The stacks of all threads\n{text[before:][-20000:]}")
        print(
            f"== The pool's log\n{(self._directory / 'serve.log').read_text()[-5000:]}", flush=True
        )


def main() -> int:
    site = Path(sys.argv[1]).resolve()
    os.environ["PYTHONPATH"] = str(site)
    kept = Path(sys.argv[2]).resolve() if len(sys.argv) > 2 else None
    if kept is not None:
        shutil.rmtree(kept, ignore_errors=True)
        kept.mkdir(parents=True)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # Sockets lie in it, so its path must be short.
    directory = kept or Path(tempfile.mkdtemp(prefix="kvs-", dir="/tmp"))
    run = Run(directory)
    began = time.monotonic()
    try:
        run.everything()
    finally:
        if kept is None:
            shutil.rmtree(directory, ignore_errors=True)
    used = sum(
        sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
    print("== Seconds")
    for name, seconds in run.seconds:
        print(f"  {seconds:6.1f}  {name}")
    print(f"  {time.monotonic() - began:6.1f}  all of it, {used:.1f} of CPU")
    print(f"vLLM smoke: {'all as it must be' if not run.failed else f'{len(run.failed)} failed'}")
    return 1 if run.failed else 0


if __name__ == "__main__":
    sys.exit(main())
