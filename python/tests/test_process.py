# SPDX-License-Identifier: Apache-2.0
"""SIGTERM alone ends the drop-in's programs, whatever they do; a reader that stands still stops none."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import signal
import socket
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import (
    Cluster,
    Program,
    command_path,
    ends_with_its_test,
    free_port,
    http,
    wait_until,
)
from kvcove.mooncake._log import Output

import kvcove

_AT_EACH_STEP = """
import json, os, signal, sys, time
from kvcove.mooncake import _process

_process._LOOK_SECONDS = 0.001  # so that the steps of many turns take no time


def wait_with_a_signal_at(step):
    count = 0

    def trace(frame, event, argument):
        nonlocal count
        frame.f_trace_opcodes = True
        if event == "opcode":
            count += 1
            if count == step:
                os.kill(os.getpid(), signal.SIGTERM)
        return trace

    sys.settrace(trace)
    status = _process.StopSignals().wait()
    sys.settrace(None)
    os._exit(status)


def end_of(pid, until):
    while time.monotonic() < until:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return "hangs"


def start(step):
    pid = os.fork()
    if pid == 0:
        wait_with_a_signal_at(step)
    return pid


ends = []
for first in range(1, 800, 50):
    pids = [start(step) for step in range(first, first + 50)]
    until = time.monotonic() + 120
    ends += [end_of(pid, until) for pid in pids]
    if "hangs" in ends:
        break
print(json.dumps(ends))
"""


def test_a_signal_ends_the_wait_at_each_of_its_steps() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _AT_EACH_STEP], capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stderr
    ends = json.loads(done.stdout)
    assert "hangs" not in ends, f"with SIGTERM at step {ends.index('hangs') + 1}"
    # Until the handler is there, the signal ends the process as it ends any other.
    without_handler = ends.count(-15)
    assert ends == [-15] * without_handler + [0] * (len(ends) - without_handler)
    assert 0 < without_handler < len(ends) // 2


_WHEN_IT_IS_READY = """
import builtins, importlib, os, signal, sys

show = builtins.print


def print(*words, **options):
    show(*words, **options)
    if "serving at" in words[0]:
        os.kill(os.getpid(), signal.SIGTERM)


builtins.print = print
name = sys.argv.pop(1)
importlib.import_module(f"kvcove.mooncake.{name}").main()
"""


@pytest.mark.parametrize("name", ["metadata", "master"])
def test_a_program_that_says_it_serves_ends_cleanly_at_once(name: str, run_dir: Path) -> None:
    ports = {"metadata": ["port"], "master": ["rpc_port", "metrics_port"]}[name]
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            _WHEN_IT_IS_READY,
            name,
            *(f"--{port}={free_port()}" for port in ports),
        ],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert "serving at" in done.stdout, done.stderr
    assert done.returncode == 0, done.stderr


class Launch:
    """One of the four programs: its command, where it answers 200, and whether it has a kvcove child."""

    def __init__(self, name: str, cluster: Cluster) -> None:
        port, other = free_port(), free_port()
        self.command = [sys.executable, "-m", f"kvcove.mooncake.{name}"]
        self.urls = [f"http://127.0.0.1:{port}/health"]
        self.has_child = name in ("master", "client")
        if name == "master":
            self.command += [f"-rpc_port={free_port()}", f"-metrics_port={port}"]
            self.command += ["-enable_http_metadata_server", f"-http_metadata_server_port={other}"]
            self.urls.append(f"http://127.0.0.1:{other}/health")
        elif name == "client":
            self.command += [f"-master_server_address={cluster.address}", f"-port={port}"]
            self.command += ["-global_segment_size=64MB"]
        elif name == "metadata":
            self.command += [f"--port={port}"]
        else:
            self.command += [f"--port={port}", "-Dmaster_server_address=embedded:"]
            self.command += ["-Dlocal_hostname=127.0.0.1", "-Dmetadata_server=P2PHANDSHAKE"]
            self.command += ["-Dglobal_segment_size=64MB", "-Dlocal_buffer_size=16MB"]

    def answers(self) -> bool:
        try:
            return all(http(url)[0] == 200 for url in self.urls)
        except OSError:
            return False


@pytest.fixture(params=["master", "client", "metadata", "rest"])
def launch(request: pytest.FixtureRequest, cluster: Cluster, run_dir: Path) -> Launch:
    return Launch(request.param, cluster)


def fill(descriptor: int) -> None:
    os.set_blocking(descriptor, False)
    for size in (4096, 1):
        while True:
            try:
                os.write(descriptor, b"x" * size)
            except BlockingIOError:
                break
    os.set_blocking(descriptor, True)


@pytest.fixture(params=["pipe", "socket"])
def full(request: pytest.FixtureRequest) -> Iterator[tuple[int, int]]:
    """The descriptors of a reader and of a writer without room."""
    if request.param == "pipe":
        ends = os.pipe()
    else:
        ends = tuple(each.detach() for each in socket.socketpair())
    fill(ends[1])
    yield ends
    for end in ends:
        os.close(end)


def started(command: list[str], output: int) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(command, stdout=output, stderr=output)
    ends_with_its_test(process)
    return process


def test_a_program_whose_output_nobody_reads_serves_and_ends(
    launch: Launch, full: tuple[int, int]
) -> None:
    process = started(launch.command, full[1])
    assert wait_until(launch.answers)
    process.terminate()
    assert process.wait(60) == 0


@pytest.mark.parametrize(
    "arguments",
    [["master", "-rpc_port=x"], ["client", "-no"], ["metadata", "--port=x"], ["rest", "-Dx"]],
)
def test_an_error_that_nobody_reads_ends_a_program(
    arguments: list[str], full: tuple[int, int], run_dir: Path
) -> None:
    name, *wrong = arguments
    process = started([sys.executable, "-m", f"kvcove.mooncake.{name}", *wrong], full[1])
    assert process.wait(60) == 2


def test_a_hang_up_ends_no_program(launch: Launch, tmp_path: Path) -> None:
    program = Program(launch.command, tmp_path / "program.log")
    assert wait_until(launch.answers)
    for _ in range(2):
        program.process.send_signal(signal.SIGHUP)
    if launch.has_child:
        program.wait_for("SIGHUP: looking at the files of tokens and certificates")
    assert launch.answers()
    assert program.stop() == 0


def test_a_closed_terminal_ends_no_program(launch: Launch) -> None:
    ours, terminal = pty.openpty()
    process = subprocess.Popen(
        launch.command,
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )
    ends_with_its_test(process)
    os.close(terminal)
    assert wait_until(launch.answers)
    os.close(ours)
    assert launch.answers()
    process.terminate()
    assert process.wait(60) == 0


def test_lines_wait_for_their_reader_in_order(full: tuple[int, int]) -> None:
    reader, writer = full
    output = Output(os.fdopen(os.dup(writer), "w"))
    count, width = 200, 10_000
    for number in range(count):
        print(f"{number:{width}}", file=output)
    print("the", "end", file=output, flush=True)
    received = b""
    while not received.endswith(b"the end\n"):
        received += os.read(reader, 1 << 16)
    lines = received.lstrip(b"x").decode().splitlines()[:-1]
    following = dropped = 0
    for line in lines:
        if "lines dropped here" in line:
            dropped += int(line.split()[0])
        else:
            assert int(line) == following + dropped
            following += 1
    assert following + dropped == count
    assert following * width > (1 << 20) - 2 * width


def test_a_line_whose_end_is_missing_waits_for_it(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with path.open("w", encoding="utf-8") as file:
        output = Output(file)
        threads = [threading.Thread(target=output.write, args=(f"{n}\n" * 100,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(path.read_text().split()) == [str(n) for n in range(4) for _ in range(100)]
        output.write("half a line")
        assert "half" not in path.read_text()
        output.end(0)
        assert path.read_text().endswith("\nhalf a line")
        print("too late", file=output, flush=True)
        assert "too late" not in path.read_text()


def test_a_reader_that_has_ended_stops_nothing() -> None:
    reader, writer = os.pipe()
    with os.fdopen(writer, "w") as file:
        output = Output(file)
        os.close(reader)
        for _ in range(3):
            print("a line", file=output, flush=True)
        output.end(0)


def test_a_program_whose_standard_streams_are_closed_serves_and_ends(launch: Launch) -> None:
    shell = ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *launch.command]
    process = subprocess.Popen(shell)
    ends_with_its_test(process)
    assert wait_until(launch.answers)
    streams = {os.readlink(f"/proc/{process.pid}/fd/{number}") for number in range(3)}
    process.terminate()
    assert process.wait(60) == 0
    assert streams == {"/dev/null"}


def listens(path: Path) -> bool:
    """Whether somebody listens at a socket, whose name is there a moment before."""
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(str(path)) == 0


CLOSED = {"all": "<&- >&- 2>&-", "output": ">&- 2>&-", "error": "2>&-"}


@pytest.mark.parametrize("closed", CLOSED)
def test_no_line_lands_in_the_pool_where_standard_streams_are_closed(
    closed: str, tmp_path: Path
) -> None:
    """As daemonizers start programs: the pool's memory must not become their standard error."""
    path = tmp_path / "s" / "kvcove.sock"
    path.parent.mkdir(mode=0o700)
    words = [command_path(), "--log", "debug", "serve", "--socket", str(path)]
    words += ["--memory", "32MiB", "--data", str(tmp_path / "data")]
    daemon = subprocess.Popen(["sh", "-c", f'exec "$@" {CLOSED[closed]}', "sh", *words])
    ends_with_its_test(daemon)
    try:
        assert wait_until(lambda: listens(path))
        keys = [f"k{i}" for i in range(300)]
        values = [bytes([i % 251]) * 65536 for i in range(300)]
        with kvcove.open(f"unix:{path}", timeout=30) as pool:
            session = pool.session("m")
            for _ in range(5):
                daemon.send_signal(signal.SIGHUP)  # which is logged
                time.sleep(0.05)
            session.reset(timeout=60)
            session.put(keys, values, timeout=60)
            daemon.send_signal(signal.SIGHUP)
            time.sleep(0.2)
            # A slow machine may miss some for a moment, as a lease that ran out.
            found: dict[str, bytes | None] = {}

            def all_found() -> bool:
                found.update(zip(keys, session.get(keys, timeout=60), strict=True))
                return None not in found.values()

            assert wait_until(all_found)
            assert [found[key] for key in keys] == values
        streams = {os.readlink(f"/proc/{daemon.pid}/fd/{fd}") for fd in (0, 1, 2)}
        assert streams <= {"/dev/null", *(os.readlink(f"/proc/self/fd/{fd}") for fd in (0, 1, 2))}
    finally:
        daemon.terminate()
        assert daemon.wait(60) == 0


def test_an_embedded_pool_is_not_what_a_program_prints_to(tmp_path: Path) -> None:
    code = (
        "import os, kvcove\n"
        "session = kvcove.open('embedded:?memory=16MiB').session('m')\n"
        "assert session.put(['a'], [b'x' * 99]).all_ok\n"
        "os.write(1, b'printed' * 999)\n"
        f"open({str(tmp_path / 'seen')!r}, 'w').write(str(session.get(['a']) == [b'x' * 99]))\n"
    )
    shell = ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", sys.executable, "-c", code]
    subprocess.run(shell, check=True, timeout=60)
    assert (tmp_path / "seen").read_text() == "True"
