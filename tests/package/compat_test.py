#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Two builds in one pool: tests/package/compat_test.py OLD NEW

OLD and NEW are a command `kvcove`, or the tarball of a release with one. Servers and engines of both share pools, which are upgraded
from OLD to NEW in the order of docs/upgrade.md, and rolled back, while engines read and store. Each value that was acknowledged is
there afterwards, and every byte that an engine reads is right. What one build refuses of the other, it refuses in one line.

An engine is `kvcove replay` of a build: processes that look up, load, store and check a trace's blocks. What is lost is a key that
`kvcove keys` lists before a step and not after it, before any engine can have stored it again. Where nothing but memory is in play, engines
must also have stored no value twice.
"""

import contextlib
import json
import os
import pathlib
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
import unittest

SOURCES = pathlib.Path(__file__).resolve().parents[2]
TRACE = SOURCES / "traces/conversation_trace.jsonl"
ETCD = SOURCES / "build/etcd/etcd"
sys.path.insert(0, str(SOURCES / "scripts"))
import command_pages  # noqa: E402

OLD = NEW = None
# The trace's first requests, and those with as many more: what is stored first, and under load.
FEW, MORE = 60, 120
MEMORY = "6MiB"  # less than the values: some are on the disk
DISK = "128MiB"


class Build:
    """A command, and what it says of itself."""

    def __init__(self, given, name, directory):
        self.name = name
        self.command = pathlib.Path(given).resolve()
        if given.endswith((".tar.gz", ".tgz")):
            try:
                self.command = self.unpacked(given, directory / name)
            except (OSError, tarfile.TarError) as error:
                why = str(error).splitlines()[0].rstrip(":")
                raise SystemExit(f"compat_test.py: cannot read the tarball {given}: {why}") from None
        if not self.command.is_file() or not os.access(self.command, os.X_OK):
            raise SystemExit(f"compat_test.py: {given} is no command and no tarball of one")
        self.says = self.run("--version").strip().partition("\n")[0]
        found = re.fullmatch(r"kvcove \S+ \(protocol (\d+), segment layout (\d+), control store (\d+)\)", self.says)
        if not found:
            raise SystemExit(f"compat_test.py: {given} --version says '{self.says}', and no versions of formats")
        self.protocol, self.layout, self.store = map(int, found.groups())

    @staticmethod
    def unpacked(given, directory):
        """Unpack the command of a release into the directory."""
        with tarfile.open(given) as packed:
            members = [m for m in packed.getmembers() if m.isfile() and m.name.endswith("/bin/kvcove")]
            if len(members) != 1:
                raise SystemExit(f"compat_test.py: {given} has no one bin/kvcove; give the tarball of a release")
            directory.mkdir()
            command = directory / "kvcove"
            with packed.extractfile(members[0]) as packed_file, command.open("wb") as out:
                shutil.copyfileobj(packed_file, out)
        command.chmod(0o755)
        return command

    def __repr__(self):
        return self.name

    def run(self, *words):
        """Run it to its end; return what it prints."""
        ended = self.start(*words, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        printed, errors = ended.communicate(timeout=120)
        if ended.returncode != 0:
            raise AssertionError(f"{self} {words} ended with {ended.returncode}:\n{printed}{errors}")
        return printed

    def start(self, *words, **options):
        return subprocess.Popen([str(self.command), *map(str, words)], text=True, **options)


class Server:
    """A process of a build; its log tells what became of it."""

    def __init__(self, test, build, *words):
        self.build, self.words = build, words
        self.log = test.directory / f"{len(list(test.directory.glob('*.log')))}-{words[0]}-{build}.log"
        with self.log.open("w") as out:
            self.process = build.start(*words, stdout=out, stderr=out)
        test.addCleanup(self.process.wait)
        test.addCleanup(self.process.kill)

    def said(self):
        return self.log.read_text()

    def says(self, pattern, seconds=60):
        """Wait until its log has the pattern. False: it ended before."""
        end = time.monotonic() + seconds
        while not re.search(pattern, self.said()):
            if self.process.poll() is not None:
                return bool(re.search(pattern, self.said()))
            if time.monotonic() > end:
                raise AssertionError(f"'{pattern}' is not in:\n{self.said()}")
            time.sleep(0.02)
        return True

    def must_say(self, pattern):
        if not self.says(pattern):
            raise AssertionError(f"it ended with {self.process.returncode} and without '{pattern}':\n{self.said()}")
        return self

    def refusal(self):
        """The one line in which it has refused to go on."""
        status = self.process.wait(60)
        lines = [line for line in self.said().splitlines() if line.startswith("kvcove: ")]
        if status != 2 or len(lines) != 1:
            raise AssertionError(f"status {status}; one line that says why, and status 2, are wanted:\n{self.said()}")
        return lines[0]

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        status = self.process.wait(60)
        if status != 0:
            raise AssertionError(f"it ended with {status}:\n{self.said()}")


class Load:
    """Engines of a build that read and store while something else happens. After the `with`, what they saw."""

    def __init__(self, test, build, pool):
        self._test, self._build, self._pool = test, build, pool
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.runs, self.failures = [], []

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, kind, error, trace):
        self._stop.set()
        self._thread.join()
        if kind is None:
            self._test.assertTrue(self.runs, f"no engine of {self._build} got through: {self.failures}")
            for run in self.runs:
                self._test.assertEqual((run["wrong_bytes"], run["stale_hits"]), (0, 0), run)

    def _run(self):
        last = False
        while not last:
            last = self._stop.is_set()  # one more behind the event
            # Slow enough to be under way before and after whatever happens.
            printed, status, errors = self._test.replay(self._build, self._pool, MORE, "--time-scale", 50)
            if status in (0, 1):
                self.runs.append(json.loads(printed))
            else:
                self.failures.append(errors)
                time.sleep(0.1)


class CompatTest(unittest.TestCase):
    def setUp(self):
        self.directory = pathlib.Path(tempfile.mkdtemp(prefix="kvcove-compat-"))
        self.addCleanup(shutil.rmtree, self.directory)
        self.notes = []
        self.name = ""  # of the engines' namespace

    def tearDown(self):
        for note in self.notes:
            print(f"  refused: {note}", file=sys.stderr)

    def private(self, name):
        path = self.directory / name
        path.mkdir(mode=0o700)
        return path

    def address(self):
        """A free one, below the ports that connections get. A socket that is bound to it keeps out other tests, and no server."""
        while True:
            probe = socket.socket()
            self.addCleanup(probe.close)
            with contextlib.suppress(OSError):
                probe.bind(("127.0.0.1", random.SystemRandom().randrange(15_000, 31_000)))
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                return f"127.0.0.1:{probe.getsockname()[1]}"

    def becomes(self, condition, what, seconds=60):
        end = time.monotonic() + seconds
        while not condition():
            self.assertLess(time.monotonic(), end, what)
            time.sleep(0.05)

    # ---- engines

    def replay(self, build, pool, requests, *more):
        words = ("replay", TRACE, "--limit", requests, "--block-bytes", "4KiB", "--own-blocks", 1, "--engines", 2)
        if pool.startswith("kvcove:"):  # one engine is on a host without an owner, and uses TCP
            words += ("--launch", "env", "--launch", "env KVCOVE_HOST_ID=another")
        ended = build.start(*words, "--pool", pool, "--json", *more, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        printed, errors = ended.communicate(timeout=300)
        return printed, ended.returncode, errors

    def serve_trace(self, build, pool, requests):
        """Let engines serve the trace until each block comes from a cache. No byte may be wrong."""

        def once():
            printed, status, errors = self.replay(build, pool, requests)
            self.assertEqual(status, 0, f"{build}: {printed}{errors}")
            run = json.loads(printed)
            self.assertEqual((run["wrong_bytes"], run["stale_hits"]), (0, 0), run)
            return run["own_hits"] + run["pool_hits"] == run["blocks"]

        self.becomes(once, f"engines of {build} find all that is stored")

    def keys(self, build, *where, that=lambda key: True):
        """The keys that a build lists, also those on disks, or those of them `that` is true for."""
        if not self.name:  # only what is asked for by its namespace is listed of disks
            page = json.loads(build.run("keys", *where, "--limit", 1, "--json"))
            self.name = page["keys"][0]["namespace"]
        printed = build.run("keys", *where, "--namespace", self.name, "--all", "--json")
        decoder, at, found = json.JSONDecoder(), 0, set()
        while (at := printed.find("{", at)) >= 0:  # an object for each page
            page, at = decoder.raw_decode(printed, at)
            found |= {(key["namespace"], key["version"], key["key"]) for key in page["keys"] if that(key)}
        return found

    def lists(self, build, keys, *where):
        """Wait until a build lists these keys: after a start, they are reported in the background."""
        end = time.monotonic() + 60
        while lost := keys - self.keys(build, *where):
            self.assertLess(time.monotonic(), end, f"{build} does not list {len(lost)} of {len(keys)} acknowledged keys")
            time.sleep(0.05)

    def all_there(self, keys, pool, *where, requests=FEW):
        """Each key is listed by both builds, and engines of both read what they should. Return all keys."""
        for build in (OLD, NEW):
            self.lists(build, keys, *where)
        for build in (OLD, NEW):
            self.serve_trace(build, pool, requests)
        return self.keys(NEW, *where)

    # ---- servers

    def takes_over(self, build, before, ready):
        """Let a process of `build` take a server over; return the one that serves then, and whether it is the new one."""
        end = time.monotonic() + 60
        while True:
            server = Server(self, build, *before.words, "--take-over")
            if server.says(r"took over from process \d+"):
                server.must_say(ready)
                self.assertEqual(before.process.wait(60), 0, before.said())
                server.words = before.words
                return server, True
            # The old one ends a new one that is too slow, and goes on.
            refusal = "try again" if server.process.wait(60) == -signal.SIGKILL else server.refusal()
            if "try again" not in refusal:
                break
            self.assertLess(time.monotonic(), end, refusal)
            time.sleep(0.1)
        self.notes.append(f"{build} takes over from {before.build}: {refusal}")
        self.assertRegex(refusal, "incompatible", "another reason than the build")
        self.assertIsNone(before.process.poll(), "the old one goes on")
        return before, False

    def test_1_the_command_line_is_kept(self):
        """What NEW no longer has breaks scripts, units and configurations of OLD."""

        def options(build):
            commands = command_pages.commands_of(command_pages.read(str(build.command)))
            return {(" ".join(c.path), name) for c in commands for item in c.options for name in item.names}

        self.assertEqual(sorted(options(OLD) - options(NEW)), [])

    def test_2_a_configuration_of_old_is_read_by_new(self):
        for command in ("serve", "master", "owner"):
            file = self.directory / f"{command}.toml"
            file.write_text(OLD.run("--print-config", command))
            try:
                OLD.run("--config", file, "--print-config", command)
            except AssertionError as error:  # some print options of a master that exclude each other
                self.notes.append(f"{OLD} does not read what it prints: {' '.join(str(error).split())}")
                continue
            self.assertIn(f"[{command}]", NEW.run("--config", file, "--print-config", command))

    def test_3_engines_notice_nothing_of_an_upgrade_in_memory(self):
        path = self.private("host") / "kvcove.sock"
        pool, where = f"unix:{path}", ("--socket", path)
        server = Server(self, OLD, "serve", "--socket", path, "--memory", "64MiB").must_say("serving")
        self.serve_trace(OLD, pool, FEW)
        for build, other in ((NEW, OLD), (OLD, NEW)):
            kept = self.keys(OLD, *where)
            with Load(self, other, pool) as load:
                server, _ = self.takes_over(build, server, "serving")
            listed = self.keys(NEW, *where)
            self.assertLessEqual(kept, listed)
            stored = sum(run["stored_blocks"] for run in load.runs)
            self.assertGreaterEqual(len(listed), len(kept) + stored, "engines have stored again what was lost")
        # The second time all of the trace was there.
        self.assertEqual({run["own_hits"] + run["pool_hits"] - run["blocks"] for run in load.runs}, {0})
        self.all_there(listed, pool, *where, requests=MORE)
        server.stop()

    def test_4_a_pool_of_one_host_with_a_disk_is_upgraded_and_rolled_back(self):
        place = self.private("host")
        path = place / "kvcove.sock"
        pool, where = f"unix:{path}", ("--socket", path)
        words = ("serve", "--socket", path, "--memory", MEMORY, "--disk", f"{place}:{DISK}")
        words += ("--disk-admit", "keep", "--data", place / "data")
        server = Server(self, OLD, *words).must_say("serving")
        self.serve_trace(OLD, pool, FEW)
        kept = self.all_there(self.keys(OLD, *where), pool, *where)
        for build, other in ((NEW, OLD), (OLD, NEW)):
            with Load(self, other, pool):
                server, taken = self.takes_over(build, server, "serving")
                self.lists(NEW, kept, *where)
            kept = self.all_there(kept, pool, *where, requests=MORE)
            if not taken:  # a restart is what is left
                server, kept = self.restarts(build, server, "serving", *where)
                kept = self.all_there(kept, pool, *where, requests=MORE)
        # What is on the disk is found by the other build after a restart, too.
        for build in (NEW, OLD):
            server, kept = self.restarts(build, server, "serving", *where)
            kept = self.all_there(kept, pool, *where, requests=MORE)
        self.resets(pool, where)
        server.stop()

    def restarts(self, build, server, ready, *where, owner=None):
        """Stop a server, or one of several owners, and start it as `build`; return it, and the keys that its memory did not have alone."""
        kept = self.keys(NEW, *where, that=lambda key: key["tier"] == "disk" or owner not in (None, key["owner"]))
        self.assertTrue(kept, "the memory is smaller than the values, so some are on the disk")
        server.stop()
        return Server(self, build, *server.words).must_say(ready), kept

    def resets(self, pool, where):
        """A reset by either build voids what engines of the other have stored."""
        for build, other in ((OLD, NEW), (NEW, OLD)):
            build.run("reset", self.name, *where)
            self.assertEqual(self.keys(other, *where), set())
            printed, status, errors = self.replay(other, pool, FEW)
            self.assertEqual(status, 0, errors)
            run = json.loads(printed)
            self.assertEqual((run["wrong_bytes"], run["stale_hits"]), (0, 0))
            self.assertGreater(run["stored_blocks"], run["blocks"] // 2, "it finds nothing from before")

    # ---- a cluster

    def start_owner(self, build, master, listen):
        place = self.private(f"owner-{listen}")
        words = ("owner", "--master", master, "--listen", listen, "--memory", MEMORY)
        words += ("--admin", "off", "--socket", place / "kvcove.sock", "--disk", f"{place}:{DISK}", "--disk-admit", "keep")
        return Server(self, build, *words).must_say("owner of")

    def test_5_a_cluster_is_upgraded_owner_by_owner_then_its_master_and_rolled_back(self):
        address, admin = self.address(), self.address()
        pool, where = f"kvcove://{address}", ("--admin", admin)
        words = ("master", "--listen", address, "--admin", admin, "--data", self.directory / "master")
        master = Server(self, OLD, *words).must_say("master at")
        places = [self.address(), self.address()]
        owners = [self.start_owner(OLD, address, place) for place in places]
        self.serve_trace(OLD, pool, FEW)
        kept = self.all_there(self.keys(OLD, *where), pool, *where)
        self.resets(pool, where)
        kept = self.all_there(self.keys(OLD, *where), pool, *where)

        def upgrade_owners(build, other):
            nonlocal kept
            for i, owner in enumerate(owners):
                with Load(self, other, pool):
                    owners[i], taken = self.takes_over(build, owner, "owner of")
                kept = self.all_there(kept, pool, *where, requests=MORE)
                if not taken:
                    owners[i], kept = self.restarts(build, owner, "owner of", *where, owner=places[i])
                    kept = self.all_there(kept, pool, *where, requests=MORE)

        def upgrade_master(build, other):
            nonlocal kept, master
            with Load(self, other, pool):
                master.stop()
                following = Server(self, build, *words)
                if following.says("master at"):
                    master = following
                else:  # it cannot read the other's store, and says so; the former goes on with it
                    self.notes.append(f"{build} on the store of {other}: {following.refusal()}")
                    self.assertNotEqual(OLD.store, NEW.store)
                    master = Server(self, other, *words).must_say("master at")
                self.lists(build, kept, *where)
            kept = self.all_there(kept, pool, *where, requests=MORE)

        upgrade_owners(NEW, OLD)
        upgrade_master(NEW, OLD)
        upgrade_master(OLD, NEW)
        upgrade_owners(OLD, NEW)
        for build in (NEW, OLD):
            owners[0], kept = self.restarts(build, owners[0], "owner of", *where, owner=places[0])
            kept = self.all_there(kept, pool, *where, requests=MORE)
        self.resets(pool, where)
        for owner in owners:
            owner.stop()
        master.stop()

    def test_6_masters_of_both_builds_take_turns_on_one_store(self):
        if not ETCD.exists():
            self.skipTest(f"{ETCD} is not there; scripts/etcd.sh fetches it")
        clients, peers = (f"http://{self.address()}" for _ in range(2))
        with (self.directory / "etcd.log").open("w") as out:
            etcd = subprocess.Popen(
                [
                    *(ETCD, "--name", "m0", "--data-dir", self.directory / "etcd", "--listen-client-urls", clients),
                    *("--advertise-client-urls", clients, "--listen-peer-urls", peers),
                    *("--initial-advertise-peer-urls", peers, "--initial-cluster", f"m0={peers}"),
                ],
                stdout=out,
                stderr=out,
            )
        self.addCleanup(etcd.wait)
        self.addCleanup(etcd.kill)
        store = clients.replace("http", "etcd") + "/compat"
        places = [(self.address(), self.address()) for _ in range(2)]

        def start(build, i):
            words = ("master", "--store", store, "--listen", places[i][0], "--admin", places[i][1])
            return Server(self, build, *words)

        masters = [start(OLD, 0), start(OLD, 1)]
        pool = "kvcove://" + ",".join(address for address, _ in places)
        where = ("--admin", ",".join(admin for _, admin in places))
        for server in masters:
            server.must_say(r"leads as|is a standby")
        owner = self.start_owner(OLD, ",".join(address for address, _ in places), self.address())
        self.serve_trace(OLD, pool, FEW)
        kept = self.all_there(self.keys(OLD, *where), pool, *where)
        for build, other in ((NEW, OLD), (OLD, NEW)):
            for i in range(2):
                with Load(self, other, pool):
                    masters[i].stop()
                    masters[i] = start(build, i).must_say(r"leads as|is a standby")
                kept = self.all_there(kept, pool, *where, requests=MORE)
        owner.stop()
        for server in masters:
            server.stop()

    # ---- refusals

    def test_7_a_refusal_is_one_line_and_the_old_one_goes_on(self):
        place = self.private("host")
        path = place / "kvcove.sock"
        words = ("serve", "--socket", path, "--memory", MEMORY)
        server = Server(self, OLD, *words).must_say("serving")
        self.serve_trace(OLD, f"unix:{path}", 10)
        kept = self.keys(OLD, "--socket", path)
        larger = [*words[:-1], "64MiB", "--take-over"]
        refusal = Server(self, NEW, *larger).refusal()
        self.assertRegex(refusal, r"incompatible.*6MiB.*64MiB")
        self.assertEqual(kept, self.keys(NEW, "--socket", path))
        server.stop()


def main():
    global OLD, NEW  # the tests' arguments
    if len(sys.argv) < 3:
        raise SystemExit("usage: compat_test.py OLD NEW: each a command or the tarball of a release")
    # Nothing of the caller's pools.
    for name in [name for name in os.environ if name.startswith("KVCOVE_")]:
        del os.environ[name]
    with tempfile.TemporaryDirectory(prefix="kvcove-builds-") as directory:
        os.environ["XDG_RUNTIME_DIR"] = directory
        OLD = Build(sys.argv[1], "old", pathlib.Path(directory))
        NEW = Build(sys.argv[2], "new", pathlib.Path(directory))
        print(f"old: {OLD.says}\nnew: {NEW.says}", file=sys.stderr, flush=True)
        done = unittest.main(argv=[sys.argv[0], *sys.argv[3:]], verbosity=2, exit=False)
    sys.exit(not done.result.wasSuccessful())


if __name__ == "__main__":
    main()
