# SPDX-License-Identifier: Apache-2.0
"""What the tests need: pools of every form, and a store to test, kvcove's or the rival's."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

#: Not empty: the original is tested. With "all" the tests that are marked as differing run, too.
RIVAL = os.environ.get("KVCOVE_TEST_RIVAL", "")
# Of the store's calls, whose time is no object of most tests: a machine that stands still for some seconds
# fails none of them.
os.environ.setdefault("KVCOVE_TIMEOUT_MS", "15000")
MIB = 1 << 20


def differs(row: str) -> pytest.MarkDecorator:
    """Mark a test that the original does not pass.

    ``row``: words of the row of the table in docs/mooncake.md that says why.
    """
    return pytest.mark.skipif(RIVAL not in ("", "all"), reason=f"differs: {row}")


def own(why: str) -> pytest.MarkDecorator:
    """Mark a test that can't be put to the original."""
    return pytest.mark.skipif(bool(RIVAL), reason=f"kvcove's own: {why}")


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)[:3]))


def original() -> tuple[int, ...] | None:
    """Return the version of the original, if that is tested."""
    if not RIVAL:
        return None
    return _numbers(metadata.version(metadata.packages_distributions()["mooncake"][0]))


def until(version: str) -> pytest.MarkDecorator:
    """Mark a test of what the original had before a version."""
    return pytest.mark.skipif(
        RIVAL != "all" and (original() or (0,)) >= _numbers(version),
        reason=f"kvcove's own: the original had it until {version}",
    )


def since(version: str) -> pytest.MarkDecorator:
    """Mark a test of what the original has from a version on."""
    return pytest.mark.skipif(
        (original() or _numbers(version)) < _numbers(version),
        reason=f"kvcove's own: the original has it from {version} on",
    )


# Above 12300 to 14300, of which a store that is given no port takes one at random.
_PORTS = random.SystemRandom().sample(range(15_000, 31_000), 16_000)
_kept: list[socket.socket] = []


def free_port() -> int:
    """Return a port below the range from which connections, and listeners that ask for any, get theirs.

    This process keeps a socket bound to it, which keeps out other tests, of this suite and of others,
    but no server (SO_REUSEADDR).
    """
    while True:
        port = _PORTS.pop()
        probe = socket.socket()
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            probe.close()
            continue
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        _kept.append(probe)
        return port


def wait_until(condition: Any, seconds: float = 60.0) -> bool:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if condition():
            return True
        time.sleep(0.01)
    return bool(condition())


def http(url: str, body: Any = None, method: str | None = None) -> tuple[int, Any]:
    data = None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    headers = {} if data is body else {"Content-Type": "application/json"}
    request = urllib.request.Request(url, data=data, headers=headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            text, status = answer.read(), answer.status
    except urllib.error.HTTPError as error:
        text, status = error.read(), error.code
    with contextlib.suppress(ValueError):
        return status, json.loads(text)
    return status, text


#: The processes that a test has started.
_started: list[subprocess.Popen[Any]] = []


@pytest.fixture(autouse=True)
def _no_process_outlives_its_test() -> Iterator[None]:
    _started.clear()  # those of fixtures that several tests share
    yield
    for process in _started:  # a test that fails stops none
        if process.poll() is None:
            process.kill()
            process.wait()


def ends_with_its_test(process: subprocess.Popen[Any]) -> None:
    _started.append(process)


class Program:
    """A child process; its output is kept for a failure."""

    def __init__(self, command: list[str], log: Path, **environment: str) -> None:
        self.log = log
        with log.open("ab") as out:
            self.process = subprocess.Popen(
                command, stdout=out, stderr=out, env={**os.environ, **environment}
            )
        ends_with_its_test(self.process)

    def wait_for(self, text: str, seconds: float = 60.0) -> None:
        seen = wait_until(
            lambda: text in self.log.read_text(errors="replace") or self.process.poll() is not None,
            seconds,
        )
        content = self.log.read_text(errors="replace")
        assert seen and text in content, f"{text!r} is not in:\n{content}"

    def stop(self) -> int:
        if self.process.poll() is None:
            self.process.terminate()
        return self.process.wait(60)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


def command_path() -> str:
    from kvcove import _command

    return _command.path()


@pytest.fixture
def run_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A private directory for sockets; nothing may be left in it."""
    path = tmp_path / "run"
    path.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(path))
    return path


@pytest.fixture(scope="module")
def namespaces() -> Iterator[list[str]]:
    """Yield the names of two hosts of the tests of jobs (``launch/slurm_hosts.py``); skip where there are none."""
    from slurm_hosts import NoNamespaces, two_hosts

    with contextlib.ExitStack() as hosts:
        try:
            names = hosts.enter_context(two_hosts())
        except NoNamespaces as error:
            pytest.skip(str(error))
        yield names


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[str]:
    """The socket of a daemon with 256 MiB."""
    path = tmp_path / "serve" / "kvcove.sock"
    path.parent.mkdir(mode=0o700)
    program = Program(
        [command_path(), "serve", "--socket", str(path), "--memory", "256MiB"],
        tmp_path / "serve.log",
    )
    program.wait_for("serving")
    yield str(path)
    assert program.stop() == 0


class Cluster:
    """A master, as `kvcove master` or as the rival's command, that can be killed and started."""

    def __init__(self, directory: Path, *options: str) -> None:
        self.port, self.admin_port = free_port(), free_port()
        self.address = f"127.0.0.1:{self.port}"
        self._directory = directory
        self._options = options
        self.start()

    def start(self) -> None:
        log = self._directory / f"master-{time.monotonic_ns()}.log"
        if RIVAL:
            command = [shutil.which("mooncake_master") or "mooncake_master"]
            command += [f"-rpc_port={self.port}", f"-metrics_port={self.admin_port}"]
            self.program = Program(command, log)
            assert wait_until(self._answers)
            return
        command = [command_path(), "master", "--listen", self.address]
        command += ["--data", str(self._directory / "master")]
        command += ["--admin", f"127.0.0.1:{self.admin_port}", *self._options]
        self.program = Program(command, log)
        self.program.wait_for("master at")

    def _answers(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def stop(self) -> None:
        self.program.stop()

    def kill(self) -> None:
        self.program.kill()


def guarded_cluster(directory: Path, **scopes: str) -> Cluster:
    """A master that asks for tokens; each tenant's is in DIRECTORY/TENANT.toml, with these scopes."""
    servers = directory / "servers.toml"
    for tenant, may in scopes.items():
        command = [command_path(), "token", tenant, "--scopes", may]
        command += ["--credentials", str(servers), "--output", str(directory / f"{tenant}.toml")]
        subprocess.run(command, check=True, capture_output=True, timeout=20)
    return Cluster(directory, "--credentials", str(servers))


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    made = Cluster(tmp_path)
    monkeypatch.setenv("KVCOVE_MASTER_ADMIN", f"http://127.0.0.1:{made.admin_port}")
    yield made
    made.stop()


def new_store() -> Any:
    from mooncake.store import MooncakeDistributedStore

    return MooncakeDistributedStore()


def setup(
    store: Any, master: str, segment: int = 64 * MIB, local: int = 16 * MIB, **more: Any
) -> int:
    answer = store.setup("127.0.0.1", "P2PHANDSHAKE", segment, local, "tcp", "", master, **more)
    assert isinstance(answer, int)
    return answer


FORMS = ["cluster"] if RIVAL else ["embedded", "host", "cluster"]


@pytest.fixture(params=FORMS)
def form(request: pytest.FixtureRequest) -> str:
    """The form of the pool that a store is on."""
    return str(request.param)


@pytest.fixture
def store(request: pytest.FixtureRequest, form: str, run_dir: Path) -> Iterator[Any]:
    """A store on each form of pool, with 64 MiB or more; the rival's on its own master."""
    if form == "embedded":
        master = "embedded:"
    elif form == "host":
        master = "unix:" + request.getfixturevalue("serve")
    else:
        master = request.getfixturevalue("cluster").address
    made = new_store()
    assert setup(made, master) == 0
    yield made
    assert made.close() == 0
    assert not list(run_dir.rglob("*.sock"))


def python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs code in a fresh interpreter."""
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=180,
        env={**os.environ, **environment},
        check=False,
    )


# ---- structured objects


@pytest.fixture
def module() -> Any:
    """The module of structured objects; skips without NumPy."""
    pytest.importorskip("numpy")
    import mooncake.structured_object_store as module

    return module


@pytest.fixture
def transfer(module: Any, store: Any) -> Any:
    """Structured objects in a store, under the prefix ``t``."""
    return module.MooncakeBundleTransfer(store, key_prefix="t")
