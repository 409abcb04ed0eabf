#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs one test command, and says what there is to know when it crashes or hangs.

  run_test.py --name NAME --timeout SECONDS [--preload LIBRARY] -- COMMAND [ARGUMENT...]

- When the command has printed nothing for the timeout, or runs for three times as long, gdb prints the stacks of all threads of the command and of every
  process that it started, then all are killed and the exit code is 124.
- With --preload (tests/support/stacks.cc) each of these processes does so itself when a signal kills it.
- In both cases the last lines of the log files that these processes write are printed, too.
- A process that the command leaves behind is killed, with a line that names it; the test fails.
- Skipped cases are appended to the file $KVCOVE_SKIPS as lines `NAME<tab>CASE<tab>REASON`.

The exit code is the command's own, 128 + N when signal N killed it, 77 when it skipped all.
"""

import argparse
import ctypes
import os
import pathlib
import re
import select
import shutil
import signal
import subprocess
import sys
import time

PR_SET_CHILD_SUBREAPER = 36
LOG_LINES = 40
# How long a process may take to end by itself once the command has.
GRACE_SECONDS = 20.0


def descendants():
    """Pids of all processes below this one, the deepest last; orphans are adopted by this process."""
    parents = {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            fields = pathlib.Path("/proc", entry, "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if fields[0] != "Z":
            parents.setdefault(int(fields[1]), []).append(int(entry))
    found, level = [], [os.getpid()]
    while level:
        level = [child for parent in level for child in parents.get(parent, [])]
        found += level
    return found


def command_of(pid):
    try:
        words = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return "(ended)"
    return b" ".join(words).decode(errors="replace").strip() or "(no command line)"


def print_stacks(pids):
    """Has gdb print the stacks of each process, at most a minute for each."""
    gdb = shutil.which("gdb")
    for pid in pids:
        print(f"\n== Stacks of {pid}: {command_of(pid)[:300]}", flush=True)
        if gdb is None:
            print("no gdb here (Debian's package gdb)", flush=True)
            continue
        commands = ["set debuginfod enabled off", "set print thread-events off", "thread apply all backtrace 40"]
        arguments = [part for command in commands for part in ("-ex", command)]
        try:
            subprocess.run([gdb, "-q", "-nx", "-batch", *arguments, "-p", str(pid)], stdin=subprocess.DEVNULL,
                           stderr=subprocess.STDOUT, timeout=60, check=False)  # fmt: skip
        except subprocess.TimeoutExpired:
            print("gdb took more than a minute", flush=True)


def print_logs(pids):
    """Prints the end of each file that these processes write their stdout or stderr to."""
    seen = set()
    for pid in pids:
        for fd in (1, 2):
            try:
                name = os.readlink(f"/proc/{pid}/fd/{fd}")
            except OSError:
                continue
            if name in seen or not os.path.isfile(name):
                continue
            seen.add(name)
            lines = pathlib.Path(name).read_text(errors="replace").splitlines()[-LOG_LINES:]
            print(f"\n== The last lines of {name}, written by {pid}: {command_of(pid)[:200]}")
            print("\n".join(lines), flush=True)


def kill_all():
    """Kills every process below this one, also those that are started meanwhile."""
    for _ in range(100):
        pids = descendants()
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        reap()
        if not pids:
            return
        time.sleep(0.02)


def reap():
    """Collects orphans that have ended."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0] != 0:
            pass
    except ChildProcessError:
        pass


def note_skips(name, code, text):
    """Appends the skipped cases that the output names to $KVCOVE_SKIPS."""
    path = os.environ.get("KVCOVE_SKIPS")
    if path is None:
        return
    skips = []
    if code == 77:
        lines = [line for line in text.splitlines() if line.strip()]
        skips.append((name, "*", lines[-1] if lines else "exit code 77"))
    last = ""
    listed = False
    for line in text.splitlines():
        listed = listed or "tests, listed below" in line or "test, listed below" in line
        case = re.match(r"\[  SKIPPED \] (\S+?)(?: \(\d+ ms\))?$", line)
        if case and not listed:
            skips.append((name, case[1], last))
        last = line.strip() or last
    with open(path, "a", encoding="utf-8") as file:
        for skip in skips:
            file.write("\t".join(part.replace("\t", " ") for part in skip) + "\n")


def leftovers():
    """Processes that the command leaves behind, after they had time to end."""
    until = time.monotonic() + GRACE_SECONDS
    while True:
        reap()
        pids = descendants()
        if not pids or time.monotonic() > until:
            return pids
        time.sleep(0.02)


def run(arguments):
    environment = dict(os.environ)
    if arguments.preload:
        environment["LD_PRELOAD"] = ":".join(filter(None, [arguments.preload, os.environ.get("LD_PRELOAD")]))
    # Orphans become children of this process, so that none of them is lost.
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    until = time.monotonic() + arguments.timeout
    last = until + 2 * arguments.timeout  # of a hang that prints
    child = subprocess.Popen(arguments.command, env=environment, stdin=subprocess.DEVNULL,
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT)  # fmt: skip
    ended = os.pidfd_open(child.pid)
    output = bytearray()
    source = child.stdout.fileno()

    def copy():
        piece = os.read(source, 1 << 16)
        output.extend(piece)
        sys.stdout.buffer.write(piece)
        sys.stdout.flush()
        return len(piece) > 0

    reads = True
    while True:
        left = until - time.monotonic()
        if left <= 0:
            print(f"\n== {arguments.name} hangs: silent for {arguments.timeout:.0f} s, or not ended after three times as long",
                  flush=True)  # fmt: skip
            pids = descendants()
            print_stacks(pids)
            print_logs(pids)
            kill_all()
            return 124
        ready = select.select([ended] + ([source] if reads else []), [], [], left)[0]
        if source in ready:
            reads = copy()
            # A slow machine delays each case, and each case prints: only silence is a hang.
            until = min(time.monotonic() + arguments.timeout, last)
        elif ended in ready:
            break
    code = child.wait()
    # A daemon that it leaves may hold the pipe for ever: only what is in it now is read.
    while reads and select.select([source], [], [], 0)[0]:
        reads = copy()
    if code < 0:
        print(f"\n== {arguments.name} was killed by {signal.Signals(-code).name}", flush=True)
        print_logs(descendants())
        code = 128 - code
    left = leftovers()
    for pid in left:
        print(f"\n== {arguments.name} leaves a process behind, {pid}: {command_of(pid)[:300]}", flush=True)
    kill_all()
    note_skips(arguments.name, code, output.decode(errors="replace"))
    return code if code or not left else 1


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--name", required=True)
    parser.add_argument("--timeout", type=float, required=True)
    parser.add_argument("--preload")
    parser.add_argument("command", nargs="+")
    return run(parser.parse_args())


if __name__ == "__main__":
    sys.exit(main())
