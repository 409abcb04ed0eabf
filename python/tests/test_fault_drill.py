# SPDX-License-Identifier: Apache-2.0
"""A fault drill: six faults of real processes, each named in words in the first lines of the page.

What the page shows there is the verdict and the advice of ``GET /v1/page``, or what the endpoint answers
in their place (docs/page.md). Each must be said within a minute.
"""

from __future__ import annotations

import contextlib
import json
import re
import resource
import shutil
import signal
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import Program, command_path, free_port, guarded_cluster, wait_until
from test_several_masters import ETCD, Etcd

import kvcove

MINUTE = 60.0
SPACE = "drill/llama"


class Page:
    """The page of an endpoint, as a browser asks for it."""

    def __init__(self, port: int, bearer: str = "") -> None:
        self._url = f"http://127.0.0.1:{port}"
        self._headers = {"Authorization": f"Bearer {bearer}"} if bearer else {}
        self.seen = ""

    def ask(self, path: str) -> tuple[int, Any]:
        request = urllib.request.Request(self._url + path, headers=self._headers)
        try:
            with urllib.request.urlopen(request, timeout=20) as answer:
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read())

    def first_lines(self) -> str:
        """Return the texts on top of the page: those of an answer, or the reason why there is none."""
        status, answer = self.ask("/v1/page")
        if status != 200:
            return str(answer["detail"])
        return "\n".join([answer["verdict"], *answer["advice"]])

    def text(self) -> str:
        """Return what a browser shows that opens the endpoint without a page."""
        with urllib.request.urlopen(self._url + "/", timeout=20) as answer:
            return str(answer.read().decode())

    def says(self, *words: str, meanwhile: Callable[[], object] = lambda: None) -> bool:
        """Whether all of the words come within a minute."""

        def now() -> bool:
            meanwhile()
            with contextlib.suppress(OSError, ValueError):  # an endpoint that is being opened anew
                self.seen = self.first_lines()
            return all(re.search(word, self.seen) for word in words)

        return wait_until(now, MINUTE)


def owner_of(master: str, directory: Path, *options: str) -> Program:
    words = [command_path(), "owner", "--master", master, "--listen", "127.0.0.1:0"]
    words += ["--memory", "16MiB", "--no-populate", "--admin", "off"]
    words += ["--socket", str(directory / "s" / "o"), *options]
    program = Program(words, directory / "owner.log")
    program.wait_for("knows this owner as number")
    return program


class Host:
    """A pool of one host with its page."""

    def __init__(self, directory: Path, *options: str) -> None:
        path = directory / "h" / "kvcove.sock"
        path.parent.mkdir(mode=0o700)
        port = free_port()
        words = [command_path(), "serve", "--socket", str(path), "--no-populate"]
        words += ["--admin", f"127.0.0.1:{port}", *options]
        self.program = Program(words, directory / "serve.log")
        self.program.wait_for("serving")
        self.address = f"unix:{path}"
        self.page = Page(port)


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    made = Host(tmp_path, "--memory", "16MiB")
    yield made
    assert made.program.stop() == 0


def test_an_owner_is_frozen(cluster: Any, tmp_path: Path) -> None:
    page = Page(cluster.admin_port)
    owner = owner_of(cluster.address, tmp_path)
    assert page.says("The pool is well"), page.seen
    owner.process.send_signal(signal.SIGSTOP)
    try:
        says = page.says(r"1 of 1 owner is gone \(127\.0\.0\.1:\d+\): stopped, frozen or cut off")
    finally:
        owner.process.send_signal(signal.SIGCONT)
    assert says, page.seen
    assert page.says("The pool is well"), page.seen
    owner.stop()


def test_a_disk_fails(tmp_path: Path) -> None:
    host = Host(
        tmp_path, "--memory", "16MiB", "--disk", f"{tmp_path}/disk:64MiB", "--disk-admit", "all"
    )
    process = host.program.process
    with kvcove.open(host.address) as pool, pool.session(SPACE) as session:
        stored = iter(range(1 << 30))

        def put() -> None:
            with contextlib.suppress(kvcove.Error):
                session.put([f"k{next(stored)}" for _ in range(20)], [b"v" * 100_000] * 20)

        put()
        assert host.page.says("The pool is well"), host.page.seen
        _, most = resource.prlimit(process.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (1 << 20, most))
        assert host.page.says("1 of 1 disk is set aside, because it failed", meanwhile=put), (
            host.page.seen
        )
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (most, most))
    host.program.stop()


def test_a_token_is_struck_off(tmp_path: Path) -> None:
    cluster = guarded_cluster(tmp_path, cluster="owner,admin", boss="admin")
    servers, mine = tmp_path / "servers.toml", tmp_path / "mine.toml"
    shutil.copy(servers, mine)
    boss = subprocess.run(
        [command_path(), "token", "--bearer", str(tmp_path / "boss.toml")],
        check=True, capture_output=True, text=True, timeout=20,
    ).stdout.strip()  # fmt: skip
    page = Page(cluster.admin_port, boss)
    owner = owner_of(cluster.address, tmp_path, "--credentials", str(mine))
    try:
        assert page.says("The pool is well"), page.seen
        for word in ("--exchange", "--strike"):
            command = [command_path(), "token", "cluster", word, "--credentials", str(servers)]
            subprocess.run(command, check=True, capture_output=True, timeout=20)
        assert page.says(
            "connections? (was|were) refused in the last minute",
            "the credentials file has no such token: it was struck off, has expired",
        ), page.seen
        # The person whose own token was struck off learns it, too.
        status, answer = Page(cluster.admin_port, "x" * 40).ask("/v1/page")
        assert (status, "credentials" in answer["detail"]) == (401, True)
    finally:
        owner.stop()
        cluster.stop()


def test_engines_do_not_share(host: Host) -> None:
    with kvcove.open(host.address) as pool, contextlib.ExitStack() as sessions:
        for engine, digit in (("one", "a"), ("two", "a"), ("three", "b")):
            name = f"{SPACE}@{digit * 32}"
            session = sessions.enter_context(pool.session(name, engine=engine))
            session.capture(timeout=10.0)
            if engine == "two":
                assert host.page.says("The pool is well"), host.page.seen
        assert host.page.says(
            f"engines of {SPACE} do not share, because they have 2 namespaces",
            "'kvcove why-not (one|two) three' says what differs",
        ), host.page.seen


def test_the_working_set_is_too_large(host: Host) -> None:
    keys = [f"k{i}" for i in range(640)]  # 62 MiB, four times the memory
    with kvcove.open(host.address) as pool, pool.session(SPACE) as session:

        def work() -> None:
            for i in range(0, len(keys), 64):
                part = keys[i : i + 64]
                found = session.get(part, timeout=10.0)
                missed = [key for key, value in zip(part, found, strict=True) if value is None]
                if missed:
                    session.put(missed, [b"v" * 100_000] * len(missed), timeout=10.0)

        assert host.page.says(
            r"the working set is larger than the pool: \d+ % of the keys",
            r"twice the memory would bring (\d+ points?|nothing)",
            "Twice the memory would bring .* four times the memory .* half of it would cost",
            meanwhile=work,
        ), host.page.seen


@pytest.mark.skipif(ETCD is None, reason="no etcd; scripts/etcd.sh fetches it")
def test_a_master_has_no_etcd(tmp_path: Path) -> None:
    etcd = Etcd(tmp_path / "etcd.log")
    try:
        etcd.start()
        port = free_port()
        master = f"127.0.0.1:{free_port()}"
        words = [command_path(), "master", "--listen", master, "--admin", f"127.0.0.1:{port}"]
        words += ["--store", f"etcd://{etcd.address}/drill"]
        program = Program(words, tmp_path / "master.log")
        page = Page(port)
        owner = owner_of(master, tmp_path)
        assert page.says("The pool is well"), (page.seen, program.log.read_text())
        etcd.program.kill()
        # First it still counts as the leader, then it is none.
        assert page.says("leader, cut off from etcd|etcd does not answer"), page.seen
        assert page.says("not the leader", "because etcd does not answer it: "), page.seen
        assert "no connection to etcd" in page.text()
        etcd.start()
        assert page.says("The pool is well"), page.seen
        owner.stop()
        program.stop()
    finally:
        etcd.close()
