#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`kvcove top` in a pseudo-terminal, on a real cluster: tests/integration/top_test.py KVCOVE TRACE"""

import fcntl
import http.server
import json
import os
import pathlib
import pty
import random
import re
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
import unittest

KVCOVE = ""
TRACE = ""
KEPT = []
SEQUENCE = re.compile(r"\x1b\[([?\d;]*)([A-Za-z])")


def port():
    """One that nobody uses, kept from other tests by a socket that is bound to it (run_test.py)."""
    while True:
        number = random.randrange(10000, 30000)
        probe = socket.socket()
        try:
            probe.bind(("127.0.0.1", number))
        except OSError:
            probe.close()
            continue
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        KEPT.append(probe)
        return number


def until(condition, seconds=60.0):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.02)
    return condition()


class Screen:
    """The cells of a terminal, as the sequences that the view uses change them."""

    def __init__(self, rows, columns):
        self.resize(rows, columns)
        self.alternate = self.hidden = False

    def resize(self, rows, columns):
        self.rows, self.columns = rows, columns
        self.lines = [""] * rows
        self.row = self.column = 0
        self.overflow = 0

    def feed(self, text):
        while text:
            found = SEQUENCE.match(text)
            if found:
                self.sequence(*found.groups())
                text = text[found.end() :]
                continue
            if text[0] == "\n":
                self.row = min(self.row + 1, self.rows - 1)
            elif text[0] == "\r":
                self.column = 0
            else:
                self.put(text[0])
            text = text[1:]

    def put(self, letter):
        if self.column >= self.columns or self.row >= self.rows:
            self.overflow += 1
            return
        line = self.lines[self.row].ljust(self.column)
        self.lines[self.row] = line[: self.column] + letter + line[self.column + 1 :]
        self.column += 1

    def sequence(self, arguments, final):
        if arguments.startswith("?"):
            if arguments == "?1049":
                self.alternate = final == "h"
                self.lines = [""] * self.rows
                self.row = self.column = 0
            if arguments == "?25":
                self.hidden = final == "l"
        elif final == "H":
            row, column = ([*arguments.split(";"), "", ""])[:2]
            self.row, self.column = int(row or 1) - 1, int(column or 1) - 1
        elif final == "K":
            if self.row < self.rows:
                self.lines[self.row] = self.lines[self.row][: self.column]
        elif final == "J" and arguments == "2":
            self.lines = [""] * self.rows
        elif final == "J" and self.row < self.rows:
            # From the cursor on, which stays on the last cell of a full line.
            column = min(self.column, self.columns - 1)
            self.lines[self.row :] = [self.lines[self.row][:column]] + [""] * (self.rows - self.row - 1)


class Session:
    """A program in a terminal of its own."""

    def __init__(self, command, rows=24, columns=80, **environment):
        self.bytes = b""
        self.screen = Screen(rows, columns)
        self.status = None
        # The program starts once the terminal's mode from before is known.
        wait, go = os.pipe()
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.close(go)
            os.read(wait, 1)
            fcntl.ioctl(1, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
            variables = {**os.environ, "TERM": "xterm", **environment}
            variables = {name: value for name, value in variables.items() if value is not None}
            os.execvpe(command[0], command, variables)
        self.before = self.mode()
        os.close(go)
        os.close(wait)

    def mode(self):
        return termios.tcgetattr(self.fd)

    def read(self, seconds=0.0):
        """Take what the program has written; a terminal whose programs have ended is no error.

        What they have written just before may come late, on a busy machine: only the terminal's own end tells that nothing more comes.
        """
        while select.select([self.fd], [], [], seconds)[0]:
            try:
                got = os.read(self.fd, 65536)
            except OSError:
                return
            if not got:
                return
            self.bytes += got
            self.screen.feed(got.decode(errors="replace"))
            if self.status is None:
                seconds = 0.0

    def shows(self, text, seconds=60.0):
        """Whether the text is on the screen, now or soon."""

        def look():
            self.read(0.02)
            return any(text in line for line in self.screen.lines)

        return until(look, seconds)

    def lacks(self, text):
        def look():
            self.read(0.02)
            return not any(text in line for line in self.screen.lines)

        return until(look)

    def type(self, keys):
        os.write(self.fd, keys.encode())

    def resize(self, rows, columns):
        self.read()
        self.screen.resize(rows, columns)
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def ended(self):
        def look():
            self.read()
            if self.status is None:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
                if pid:
                    self.status = os.waitstatus_to_exitcode(status)
                    self.read(10.0)
            return self.status is not None

        return until(look)

    def close(self):
        if self.status is None:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            self.status = -9
        os.close(self.fd)


class Pool(unittest.TestCase):
    """A pool, with a directory of its own, and the command that shows it. `where`: options that name it."""

    where = ()

    @classmethod
    def setUpClass(cls):
        cls.directory = pathlib.Path(tempfile.mkdtemp(prefix="kvcove-top-"))
        cls.processes = []

    @classmethod
    def tearDownClass(cls):
        for process in cls.processes:
            process.kill()
            process.wait()
        shutil.rmtree(cls.directory)

    @classmethod
    def start(cls, *words, **options):
        process = subprocess.Popen([KVCOVE, "--log", "error", *words], stdin=subprocess.DEVNULL, **options)
        cls.processes.append(process)
        return process

    def await_owner(self):
        """Wait for the pool's only owner, which has its lease then."""

        def joined():
            answer = self.run_top("--once", "--json")
            return answer.returncode == 0 and json.loads(answer.stdout).get("owners_live") == 1

        self.assertTrue(until(joined), "the pool does not start")

    def options(self, admin):
        return ("--admin", admin) if admin else self.where

    def run_top(self, *words, admin=None, **environment):
        return subprocess.run(
            [KVCOVE, "top", *self.options(admin), "--interval", "0.1", *words],
            env={**os.environ, **environment}, text=True, stdin=subprocess.DEVNULL, capture_output=True, timeout=120,
            check=False,
        )  # fmt: skip

    def open(self, *words, command=None, admin=None, **options):
        words = [KVCOVE, "top", *self.options(admin), "--interval", "0.1", *words]
        session = Session(command(words) if command else words, **options)
        self.addCleanup(session.close)
        return session

    def assert_restored(self, session):
        self.assertEqual(session.mode(), session.before)
        self.assertFalse(session.screen.alternate)
        self.assertFalse(session.screen.hidden)


class Top(Pool):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.master_port, cls.admin_port, cls.owner_port = port(), port(), port()
        cls.admin = f"127.0.0.1:{cls.admin_port}"
        cls.owner_admin = f"127.0.0.1:{cls.owner_port}"
        cls.where = ("--admin", cls.admin)
        cls.master = None
        cls.start_master()
        cls.start(
            "owner", "--master", f"127.0.0.1:{cls.master_port}", "--listen", f"127.0.0.1:{port()}",
            "--admin", cls.owner_admin, "--memory", "64MiB", "--socket", str(cls.directory / "o" / "s"),
        )  # fmt: skip

    @classmethod
    def start_master(cls):
        cls.master = cls.start(
            "master", "--listen", f"127.0.0.1:{cls.master_port}", "--admin", cls.admin,
            "--data", str(cls.directory / "m"),
        )  # fmt: skip

    def setUp(self):
        self.await_owner()

    # ---- the screen

    def test_it_shows_the_pool_and_obeys_keys(self):
        session = self.open()
        self.assertTrue(session.shows("leader, term"), session.screen.lines)
        self.assertTrue(session.shows("> OWNER 1"), session.screen.lines)
        self.assertTrue(session.shows("1 of 1 owners"), session.screen.lines)
        self.assertTrue(session.screen.alternate)
        session.type("\t")
        self.assertTrue(session.shows("> NAMESPACE"), session.screen.lines)
        session.type("\x1b[Z")
        self.assertTrue(session.shows("> OWNER"), session.screen.lines)
        session.type("z")
        self.assertTrue(session.lacks("NAMESPACE"), session.screen.lines)
        session.type("\x1b")
        self.assertTrue(session.shows("NAMESPACE"), session.screen.lines)
        session.type("/nowhere")
        self.assertTrue(session.shows("OWNER 0/1"), session.screen.lines)
        session.type("\x1b")
        self.assertTrue(session.shows("OWNER 1"), session.screen.lines)
        session.type(" ")
        self.assertTrue(session.shows("PAUSED"), session.screen.lines)
        session.type("?")
        self.assertTrue(session.shows("Any key ends this help"), session.screen.lines)
        session.type("xq")
        self.assertTrue(session.ended())
        self.assertEqual(session.status, 0)
        self.assertEqual(session.screen.overflow, 0)
        self.assert_restored(session)

    def test_it_shows_what_engines_do(self):
        session = self.open(admin=f"{self.admin},{self.owner_admin}")
        # A master that has just started calls each miss "warming up" until its owners have said what they hold.
        for limit in range(100, 2100, 100):
            replay = subprocess.run(
                [KVCOVE, "--log", "error", "replay", TRACE, "--limit", str(limit), "--engines", "2", "--json", "--pool",
                 f"kvcove://127.0.0.1:{self.master_port}"],
                stdout=subprocess.DEVNULL, check=False,
            )  # fmt: skip
            self.assertEqual(replay.returncode, 0)
            if session.shows("never put", 2):
                break
        self.assertTrue(session.shows("never put"), session.screen.lines)
        self.assertTrue(session.lacks(" 0 objects"), session.screen.lines)
        answer = json.loads(self.run_top("--once", "--json").stdout)
        self.assertGreater(answer["misses"]["never put"]["total"], 0)
        self.assertGreater(sum(space["bytes"] for space in answer["namespaces"]), 0)
        self.assertGreater(answer["calls"]["lookup"]["p99_us"], 0)

    def test_it_follows_the_size_of_its_terminal(self):
        session = self.open()
        self.assertTrue(session.shows("q quit"))
        for rows, columns in ((60, 200), (10, 40), (2, 7), (24, 80)):
            session.resize(rows, columns)
            self.assertTrue(until(lambda: session.read(0.02) or any(session.screen.lines[:1])))
            last = "q quit"[:columns] if columns > 7 else "q quit"
            self.assertTrue(session.shows(last), (rows, columns, session.screen.lines))
            self.assertIn(last, session.screen.lines[rows - 1])
            if columns < 60:
                self.assertEqual(session.screen.lines[rows - 1][columns - 1 :], "~", "it fills the line")
            self.assertEqual(session.screen.overflow, 0)
        self.assertTrue(session.shows("> OWNER"))

    def test_it_outlives_the_pool(self):
        session = self.open()
        self.assertTrue(session.shows("leader, term"))
        [term] = re.findall(r"term (\d+)", session.screen.lines[0])
        self.master.kill()
        self.master.wait()
        self.assertTrue(session.shows("NO ANSWER for"), session.screen.lines)
        self.assertTrue(session.shows("> OWNER 1"), "the last figures stay")
        session.type("?")
        self.assertTrue(session.shows("Any key ends this help"))
        session.type("x")
        self.start_master()
        self.assertTrue(session.lacks("NO ANSWER"), session.screen.lines)
        self.assertTrue(session.shows(f"leader, term {int(term) + 1}"), session.screen.lines)
        self.assertTrue(session.shows("1 of 1 owners"), session.screen.lines)

    def test_it_waits_for_a_pool_that_is_not_there_yet(self):
        session = Session([KVCOVE, "top", "--admin", f"127.0.0.1:{port()}", "--interval", "0.1"])
        self.addCleanup(session.close)
        self.assertTrue(session.shows("NO ANSWER: 127.0.0.1"), session.screen.lines)
        session.type("q")
        self.assertTrue(session.ended())
        self.assert_restored(session)

    def test_keys_work_while_the_pool_is_frozen(self):
        session = self.open()
        self.assertTrue(session.shows("> OWNER 1"))
        self.master.send_signal(signal.SIGSTOP)
        self.addCleanup(self.master.send_signal, signal.SIGCONT)
        session.type("\t")
        self.assertTrue(session.shows("> NAMESPACE"), session.screen.lines)
        self.assertTrue(session.shows("no answer in time"), session.screen.lines)
        session.type("q")
        self.assertTrue(session.ended())
        self.assert_restored(session)

    # ---- the terminal is given back

    def test_signals_end_it(self):
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            session = self.open()
            self.assertTrue(session.shows("> OWNER"))
            self.assertNotEqual(session.mode(), session.before)
            os.kill(session.pid, number)
            self.assertTrue(session.ended())
            self.assertEqual(session.status, 0)
            self.assert_restored(session)

    def test_ctrl_c_ends_it(self):
        session = self.open()
        self.assertTrue(session.shows("> OWNER"))
        session.type("\x03")
        self.assertTrue(session.ended())
        self.assert_restored(session)

    def test_ctrl_z_gives_the_terminal_back_until_it_continues(self):
        shell = ["bash", "--norc", "-mc", '"$@"; echo stopped $?; read -r line; fg >/dev/null; echo ended $?', "bash"]
        session = self.open(command=lambda words: [*shell, *words])
        self.assertTrue(session.shows("> OWNER"))
        session.type("\x1a")
        self.assertTrue(session.shows("stopped 148"), session.bytes[-500:])
        self.assertFalse(session.screen.alternate)
        self.assertFalse(session.screen.hidden)
        self.assertEqual(session.mode()[3] & termios.ECHO, termios.ECHO)
        session.type("go on\n")
        self.assertTrue(until(lambda: session.read(0.02) or session.screen.alternate))
        self.assertTrue(session.shows("> OWNER"), session.screen.lines)
        session.type("q")
        self.assertTrue(session.shows("ended 0"), session.bytes[-500:])

    def test_after_a_stop_that_nobody_can_take_the_screen_is_drawn_anew(self):
        session = self.open()
        self.assertTrue(session.shows("> OWNER"))
        os.kill(session.pid, signal.SIGSTOP)
        os.waitpid(session.pid, os.WUNTRACED)
        session.read(0.1)
        termios.tcsetattr(session.fd, termios.TCSANOW, session.before)  # as a shell does
        session.screen.resize(24, 80)
        os.kill(session.pid, signal.SIGCONT)
        self.assertTrue(session.shows("> OWNER"), session.screen.lines)
        self.assertEqual(session.mode()[3] & termios.ECHO, 0)

    def test_in_the_background_it_waits_for_its_terminal(self):
        # A shell's line editor reads keys in another mode, which the view must not take for the terminal's own. Bash
        # would repair it after the view's end; dash, which is sh here and there, does not.
        shell = (
            'stty -echo; "$@" & until grep -q "^State:.T" /proc/$!/status; do sleep 0.02; done; '
            "stty echo; fg >/dev/null; echo ended $?"
        )
        session = self.open(command=lambda words: ["sh", "-mc", shell, "sh", *words])
        self.assertTrue(session.shows("> OWNER"), session.bytes[-500:])
        session.type("q")
        self.assertTrue(session.shows("ended 0"), session.bytes[-500:])
        self.assert_restored(session)

    def test_it_ends_while_its_terminal_takes_no_bytes(self):
        session = self.open(rows=60, columns=200)
        self.assertTrue(session.shows("> OWNER"))
        def blocked():
            session.type("\x0c" * 20)
            time.sleep(0.1)
            # write(2), of a frame; in x86-64 and aarch64
            return pathlib.Path(f"/proc/{session.pid}/syscall").read_text().split()[0] in ("1", "64")

        self.assertTrue(until(blocked), "the terminal takes everything")
        os.kill(session.pid, signal.SIGTERM)
        self.assertTrue(until(lambda: os.waitpid(session.pid, os.WNOHANG)[0] != 0), "it does not end")
        session.status = 0
        self.assertEqual(session.mode(), session.before)

    def test_it_ends_with_its_terminal(self):
        session = self.open()
        self.assertTrue(session.shows("> OWNER"))
        os.close(session.fd)
        self.assertTrue(until(lambda: os.waitpid(session.pid, os.WNOHANG)[0] != 0))
        session.status = 0
        session.fd = os.open("/dev/null", os.O_RDONLY)

    # ---- without a screen, and without colour

    def test_colors_can_be_switched_off(self):
        sgr = re.compile(rb"\x1b\[[\d;]*m")
        session = self.open()
        self.assertTrue(session.shows("> OWNER"))
        self.assertRegex(session.bytes, sgr)
        for session in (self.open("--no-color"), self.open(NO_COLOR="1")):
            self.assertTrue(session.shows("> OWNER"))
            session.type("q")
            self.assertTrue(session.ended())
            self.assertEqual(sgr.findall(session.bytes.replace(b"\x1b[0m\x1b[?7h", b"")), [])
        session = self.open(NO_COLOR="")
        self.assertTrue(session.shows("> OWNER"))
        self.assertRegex(session.bytes, sgr)

    def test_without_a_terminal_it_prints_one_snapshot_and_says_so(self):
        answer = self.run_top()
        self.assertEqual(answer.returncode, 0)
        self.assertEqual(
            answer.stderr, "kvcove top: stdout is no terminal, so this is one snapshot, as with --once\n"
        )
        self.assertIn("OWNER 1", answer.stdout)
        self.assertNotIn("\x1b", answer.stdout)
        session = self.open(TERM="dumb")
        self.assertTrue(session.ended())
        self.assertIn(b"TERM=dumb is a terminal whose cursor cannot be moved", session.bytes)
        self.assertIn(b"OWNER 1", session.bytes)
        self.assertNotIn(b"\x1b[?1049h", session.bytes)

    def test_once_prints_one_snapshot(self):
        answer = self.run_top("--once")
        self.assertEqual((answer.returncode, answer.stderr), (0, ""))
        self.assertIn("1 of 1 owners", answer.stdout)
        self.assertNotIn("q quit", answer.stdout)

    def test_json_is_a_line_for_each_interval(self):
        process = subprocess.Popen(
            [KVCOVE, "top", "--admin", self.admin, "--interval", "0.1", "--json"], stdout=subprocess.PIPE, text=True
        )
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        lines = [json.loads(process.stdout.readline()) for _ in range(3)]
        for line in lines:
            self.assertEqual(line["schema"], "kvcove.top.1")
            self.assertEqual(line["endpoint"], self.admin)
            self.assertEqual(line["owners"][0]["state"], "live")
        self.assertIsNotNone(lines[-1]["down_bytes_per_second"])
        process.stdout.close()
        self.assertEqual(process.wait(60), 0, "nobody reads any more")

    def test_a_full_disk_is_an_error(self):
        for words in (("--once",), ("--once", "--json"), ("--json",)):
            with open("/dev/full", "w") as full:
                answer = subprocess.run(
                    [KVCOVE, "top", "--admin", self.admin, "--interval", "0.1", *words],
                    stdout=full, stderr=subprocess.PIPE, text=True, timeout=120, check=False,
                )  # fmt: skip
            self.assertEqual(answer.returncode, 2, words)
            self.assertIn("writing to stdout: No space left", answer.stderr)

    def test_an_owner_alone_is_shown_too(self):
        answer = self.run_top("--once", "--json", admin=self.owner_admin)
        self.assertEqual(answer.returncode, 0, answer.stderr)
        line = json.loads(answer.stdout)
        self.assertEqual(line["role"], "owner")
        self.assertGreater(line["owners"][0]["lease_left_seconds"], 0)
        self.assertNotIn("tasks", line)

    def test_an_engines_tls_is_not_that_of_the_endpoint(self):
        answer = self.run_top("--once", KVCOVE_TLS_AUTHORITY="/nowhere")
        self.assertEqual((answer.returncode, answer.stderr), (0, ""))
        subprocess.run(
            [KVCOVE, "admin", "--admin", self.admin, "segments"], stdout=subprocess.DEVNULL, timeout=120, check=True,
            env={**os.environ, "KVCOVE_TLS_AUTHORITY": "/nowhere"},
        )  # fmt: skip

    # ---- what it refuses

    def test_wrong_options_are_told(self):
        for words, reason in (
            (("--interval", "0"), "--interval 0: seconds between 0.1 and 3600"),
            (("--interval", "nan"), "--interval nan: seconds between"),
            (("--interval", "soon"), "--interval"),
            (("--admin", "a:1,,b:2"), "an endpoint between commas is empty"),
            (("--admin", "127.0.0.1:99999"), "99999"),
            (("--admin", "unix:"), "the path of a Unix socket"),
            (("--token", "/nowhere"), "/nowhere"),
            (("--onse",), "did you mean '--once'"),
        ):
            answer = subprocess.run([KVCOVE, "top", *words], text=True, capture_output=True, timeout=60, check=False)
            self.assertEqual(answer.returncode, 2, words)
            self.assertIn(reason, answer.stderr)
            self.assertEqual(answer.stdout, "")

    def test_a_snapshot_of_nothing_is_an_error(self):
        answer = self.run_top("--once", admin=f"127.0.0.1:{port()}")
        self.assertEqual(answer.returncode, 2)
        self.assertIn("127.0.0.1:", answer.stderr)


class Host(Pool):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.socket = str(cls.directory / "h" / "s")
        cls.where = ("--socket", cls.socket)
        cls.start("serve", "--memory", "64MiB", "--socket", cls.socket)

    def setUp(self):
        self.await_owner()

    def snapshot(self):
        answer = self.run_top("--once", "--json")
        self.assertEqual(answer.returncode, 0, answer.stderr)
        return json.loads(answer.stdout)

    def test_it_shows_the_pool_of_a_host(self):
        replay = self.start(
            "replay", TRACE, "--engines", "2", "--time-scale", "1", "--json", "--pool", f"unix:{self.socket}",
            stdout=subprocess.DEVNULL,
        )  # fmt: skip
        seen = {}

        def busy():
            seen.update(self.snapshot())
            return seen["engines"] and any(space["bytes"] for space in seen["namespaces"])

        self.assertTrue(until(busy), seen)
        self.assertEqual(seen["role"], "host")
        self.assertEqual(seen["engines"][0]["state"], "open")
        self.assertEqual(seen["engines_registered"], len(seen["engines"]))
        self.assertGreater(seen["misses"]["never put"]["total"], 0)
        self.assertEqual(seen["owners"][0]["state"], "live")
        self.assertIsNotNone(seen["up_bytes_per_second"])
        self.assertEqual(seen["counters"]["resets"], 0)
        session = self.open()
        self.assertTrue(session.shows("> OWNER 1"), session.screen.lines)
        self.assertTrue(session.shows("ENGINE 2"), session.screen.lines)
        self.assertTrue(session.shows("never put"), session.screen.lines)
        session.type("q")
        self.assertTrue(session.ended())
        self.assert_restored(session)
        replay.kill()
        replay.wait()
        subprocess.run(
            [KVCOVE, "admin", "--admin", seen["endpoint"], "reset", seen["namespaces"][0]["namespace"]],
            stdout=subprocess.DEVNULL, check=True,
        )  # fmt: skip

        def void():
            seen.update(self.snapshot())
            return seen["counters"]["resets"] == 1 and seen["namespaces"][0]["bytes"] == 0

        self.assertTrue(until(void), seen)

    def test_it_outlives_the_host(self):
        socket_path = str(self.directory / "again" / "s")
        words = ("serve", "--memory", "16MiB", "--socket", socket_path)
        host = self.start(*words)
        self.assertTrue(until(lambda: os.path.exists(str(self.directory / "again" / "admin-s"))))
        session = Session([KVCOVE, "top", "--socket", socket_path, "--interval", "0.1"])
        self.addCleanup(session.close)
        self.assertTrue(session.shows("1 of 1 owners"), session.screen.lines)
        host.kill()
        host.wait()
        self.assertTrue(session.shows("NO ANSWER for"), session.screen.lines)
        self.start(*words)
        self.assertTrue(session.lacks("NO ANSWER"), session.screen.lines)
        self.assertTrue(session.shows("1 of 1 owners"), session.screen.lines)

    def test_an_endpoint_with_tls_is_asked_with_certificates(self):
        files = self.directory / "tls"
        files.mkdir()
        subprocess.run(
            ["sh", "-ec",
             "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=ca "
             "-keyout ca.key -out ca.pem; "
             "openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=host -keyout host.key -out r; "
             "echo subjectAltName=IP:127.0.0.1 >names; "
             "openssl x509 -req -in r -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile names -out host.pem; "
             "chmod 600 host.key"],
            cwd=files, stderr=subprocess.DEVNULL, check=True,
        )  # fmt: skip
        tls = [
            *("--tls-authority", str(files / "ca.pem")),
            *("--tls-certificate", str(files / "host.pem")),
            *("--tls-key", str(files / "host.key")),
        ]
        admin = f"127.0.0.1:{port()}"
        self.start("serve", "--memory", "16MiB", "--socket", str(self.directory / "t" / "s"), "--admin", admin, *tls)
        self.assertTrue(until(lambda: self.run_top("--once", *tls, admin=admin).returncode == 0))
        self.assertEqual(self.run_top("--once", admin=admin).returncode, 2)


class Hostile(Pool):
    """An endpoint whose names control terminals, and whose numbers are beyond all bounds."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        bad = "\x1b]0;owned\x07\x1b[2Jx"
        bodies = {
            "/v1/status": {"role": bad, "term": 1},
            "/v1/segments": {"segments": [{"address": bad, "state": bad, "capacity_bytes": 2**64 - 1, "hits": -5}]},
            "/v1/namespaces": {"namespaces": [{"namespace": bad, "version": bad}]},
            "/v1/engines": {"engines": [{"engine": bad, "namespace": bad}], "registered": 1},
            "/v1/tasks": {"tasks": [{"id": 1, "kind": bad, "state": bad, "seconds": 1e308}]},
        }
        bodies = {path: json.dumps(body) for path, body in bodies.items()}
        bodies["/metrics"] = (
            f'kvcove_master_call_seconds_bucket{{call="{bad}",le="+Inf"}} 1e308\n'
            f'kvcove_requester_misses_total{{reason="{bad}"}} inf\n'
        )

        class Handler(http.server.BaseHTTPRequestHandler):
            # Without keep-alive, as a proxy may be.
            def do_GET(self):
                body = bodies.get(self.path, "").encode()
                self.send_response(200 if body else 404)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *arguments):
                pass

        cls.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        cls.thread = threading.Thread(target=cls.server.serve_forever, args=(0.02,))
        cls.thread.start()
        cls.where = ("--admin", f"127.0.0.1:{cls.server.server_port}")

    @classmethod
    def tearDownClass(cls):
        cls.server.shutdown()
        cls.thread.join()
        cls.server.server_close()
        super().tearDownClass()

    def test_names_cannot_control_the_terminal(self):
        session = self.open(rows=60, columns=200)
        self.assertTrue(session.shows("owned"), session.bytes[-500:])
        self.assertTrue(session.shows("> OWNER 1"), session.screen.lines)
        self.assertNotIn(b"\x1b]", session.bytes)
        session.type("q")
        self.assertTrue(session.ended())
        answer = self.run_top("--once")
        self.assertEqual(answer.returncode, 0, answer.stderr)
        self.assertIn("owned", answer.stdout)
        self.assertNotIn("\x1b", answer.stdout)
        line = json.loads(self.run_top("--once", "--json").stdout)
        self.assertIsNone(line["namespaces"][0]["bytes"])
        self.assertIsNone(line["owners"][0]["hits_per_second"])


if __name__ == "__main__":
    KVCOVE, TRACE = sys.argv[1:3]
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]], verbosity=2)
