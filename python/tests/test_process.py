# SPDX-License-Identifier: Apache-2.0
"""SIGTERM ends the drop-in's programs, whatever they do at that moment."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import free_port

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
