#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a service manager hears of real servers: tests/integration/service_test.py KVCOVE

The manager's side is a socket of this test. A loop that hangs is a thread that ptrace stops: the other threads of its process run.
"""

import ctypes
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

KVCOVE = ""
PTRACE_SEIZE, PTRACE_INTERRUPT, PTRACE_DETACH = 0x4206, 0x4207, 17
WALL = 0x40000000
LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
LIBC.ptrace.restype = ctypes.c_long


def ptrace(request, thread):
    if LIBC.ptrace(request, thread, None, None) != 0:
        raise OSError(ctypes.get_errno(), f"ptrace {request:#x} of thread {thread}")


def threads(pid, name):
    """The threads of a process that have this name."""
    tasks = pathlib.Path(f"/proc/{pid}/task")
    return [int(task.name) for task in tasks.iterdir() if (task / "comm").read_text().strip() == name]


class ServiceTest(unittest.TestCase):
    def setUp(self):
        self.work = pathlib.Path(tempfile.mkdtemp(prefix="kvcove-service-"))
        self.addCleanup(shutil.rmtree, self.work)
        self.notify = self.work / "notify"
        self.manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.addCleanup(self.manager.close)
        self.manager.bind(str(self.notify))
        self.manager.settimeout(60)
        self.log = self.work / "log"

    def start(self, *words, **environment):
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("KVCOVE_", "WATCHDOG_", "NOTIFY_"))
        }
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                [KVCOVE, *words],
                stderr=log,
                env=kept | {"NOTIFY_SOCKET": str(self.notify)} | environment,
            )
        self.addCleanup(self.end, process)
        return process

    def serve(self, *words, **environment):
        socket_path = self.work / "run" / "kvcove.sock"
        return self.start(
            *("serve", "--memory", "16MiB", "--no-populate", "--socket", str(socket_path)),
            *words,
            **environment,
        )

    def end(self, process):
        if process.poll() is None:
            process.terminate()
        process.wait(timeout=60)

    def hears(self):
        return self.manager.recv(4096).decode()

    def hears_next(self, beside="WATCHDOG=1"):
        """The next message that is no beat."""
        said = beside
        while said == beside:
            said = self.hears()
        return said

    def silent(self, seconds):
        """Whether the manager hears nothing for so long."""
        self.manager.settimeout(seconds)
        try:
            return self.hears() and False
        except TimeoutError:
            return True
        finally:
            self.manager.settimeout(60)

    def wait_for_line(self, pattern):
        end = time.monotonic() + 60
        while not re.search(pattern, self.log.read_text()):
            self.assertLess(time.monotonic(), end, self.log.read_text())
            time.sleep(0.02)

    def test_it_hears_when_a_server_serves_and_when_it_ends(self):
        master = ("master", "--listen", "127.0.0.1:0", "--admin", "off", "--data", str(self.work / "data"))
        for start in (self.serve, lambda: self.start(*master)):
            process = start()
            self.assertEqual(self.hears(), "READY=1")
            process.terminate()
            self.assertEqual(self.hears(), "STOPPING=1")
            self.assertEqual(process.wait(timeout=60), 0)

    def test_it_hears_no_beat_that_it_did_not_ask_for(self):
        self.serve(WATCHDOG_USEC="200000", WATCHDOG_PID="1")
        self.assertEqual(self.hears(), "READY=1")
        self.assertTrue(self.silent(1))

    def test_it_does_not_hear_a_server_whose_loop_hangs(self):
        process = self.serve(WATCHDOG_USEC="1000000")
        self.assertEqual(self.hears(), "READY=1")
        for _ in range(3):
            self.assertEqual(self.hears(), "WATCHDOG=1")
        for name in ("kvcove-rpc", "kvcove-lease", "kvcove-janitor"):
            with self.subTest(name):
                (thread,) = threads(process.pid, name)
                ptrace(PTRACE_SEIZE, thread)
                ptrace(PTRACE_INTERRUPT, thread)
                os.waitpid(thread, WALL)
                self.wait_for_line(f"these loops do not turn any more: [^.]*{name}")
                while not self.silent(2):
                    pass
                ptrace(PTRACE_DETACH, thread)
                self.assertEqual(self.hears(), "WATCHDOG=1")
                self.wait_for_line("all loops turn again")
                self.log.write_text("")

    def test_a_master_and_an_owner_beat_too(self):
        master = self.start(
            *("master", "--listen", "127.0.0.1:0", "--admin", "off", "--data", str(self.work / "data")),
            WATCHDOG_USEC="200000",
        )
        self.assertEqual(self.hears(), "READY=1")
        for _ in range(20):
            self.assertEqual(self.hears(), "WATCHDOG=1")
        self.end(master)
        self.assertEqual(self.hears_next(), "STOPPING=1")
        # The beats of before may still be in the queue.
        while not self.silent(1):
            pass
        # Of an owner whose master is away, too: its own loops turn.
        self.start(
            *("owner", "--master", "127.0.0.1:9", "--listen", "127.0.0.1:0", "--admin", "off"),
            *("--memory", "16MiB", "--no-populate", "--socket", str(self.work / "run" / "kvcove.sock")),
            WATCHDOG_USEC="200000",
        )
        self.assertEqual(self.hears(), "READY=1")
        for _ in range(20):
            self.assertEqual(self.hears(), "WATCHDOG=1")

    def test_a_process_that_takes_over_beats_in_the_old_ones_place(self):
        old = self.serve(WATCHDOG_USEC="400000")
        for _ in range(3):
            self.hears()
        for _ in range(2):
            new = self.serve("--take-over", WATCHDOG_USEC="400000")
            said = {self.hears_next(), self.hears_next()}
            self.assertEqual(said, {"READY=1", f"MAINPID={new.pid}"})
            self.assertEqual(old.wait(timeout=60), 0)
            for _ in range(5):
                self.assertEqual(self.hears(), "WATCHDOG=1")
            old = new

    def test_a_server_serves_where_it_cannot_be_heard(self):
        for name, environment in {
            "nobody listens": {"NOTIFY_SOCKET": str(self.work / "none")},
            "no name": {"NOTIFY_SOCKET": "relative"},
            "no time": {"WATCHDOG_USEC": "soon"},
        }.items():
            with self.subTest(name):
                process = self.serve(**environment)
                self.wait_for_line("serving")
                self.wait_for_line("the service manager")
                process.terminate()
                self.assertEqual(process.wait(timeout=60), 0)
                self.log.write_text("")

    def test_a_manager_that_reads_nothing_stops_nobody(self):
        filler = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.addCleanup(filler.close)
        filler.setblocking(False)
        with self.assertRaises(BlockingIOError):
            while True:
                filler.sendto(b"x", str(self.notify))
        process = self.serve(WATCHDOG_USEC="1000000")
        self.wait_for_line("does not get 'READY=1'")
        self.wait_for_line("does not get 'WATCHDOG=1'")
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(timeout=60), 0)

    def test_it_may_listen_in_the_abstract_namespace(self):
        name = f"kvcove-service-{os.getpid()}"
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
            manager.bind("\0" + name)
            manager.settimeout(60)
            self.serve(NOTIFY_SOCKET="@" + name)
            self.assertEqual(manager.recv(4096), b"READY=1")


if __name__ == "__main__":
    KVCOVE = str(pathlib.Path(sys.argv[1]).resolve())
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]], verbosity=2)
