#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What services_test.py runs below a systemd: starts, kills, upgrades and stops kvcove's services as an operator does."""

import json
import os
import pathlib
import pwd
import re
import signal
import subprocess
import sys
import time
import unittest

SERVE = "kvcove-serve.service"
OWNER = "kvcove-owner@main.service"
MASTER = "kvcove-master.service"
SOCKETS = {SERVE: "/run/kvcove/serve/kvcove.sock", OWNER: "/run/kvcove/owner-main/kvcove.sock"}
WATCHDOG_S = 10
CAP_SYS_RESOURCE = 1 << 24


def done(*words, **environment):
    ended = subprocess.run(
        words, env=os.environ | environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if ended.returncode != 0:
        raise AssertionError(f"{words} ended with {ended.returncode}:\n{ended.stdout}")
    return ended.stdout


def show(unit, name):
    return done("systemctl", "show", "--value", "-p", name, unit).strip()


def main_pid(unit):
    return int(show(unit, "MainPID"))


def until(condition, seconds=30.0):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.05)
    return condition()


def status(unit):
    """What the owner behind a unit's socket says."""
    said = done("kvcove", "status", "--socket", SOCKETS[unit], "--json", "--timeout-ms", "30000", KVCOVE_OWNER_USER="kvcove")
    return json.loads(said)


def objects(unit):
    return sum(map(int, re.findall(r'"objects": ?(\d+)', json.dumps(status(unit)))))


def fill(unit):
    """Puts values, as a user that is a member of the group; checks each that is read."""
    entry = pwd.getpwnam("engine")
    done(
        *("setpriv", "--reuid", "engine", "--regid", str(entry.pw_gid), "--init-groups", "kvcove", "replay"),
        *("/test/conversation_trace.jsonl", "--limit", "50", "--block-bytes", "4KiB", "--pool", f"unix:{SOCKETS[unit]}"),
        KVCOVE_OWNER_USER="kvcove",
    )


class ServicesInside(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        done("useradd", "--system", "--groups", "kvcove", "engine")
        etc = pathlib.Path("/etc/kvcove")
        for name in ("serve", "owner-main"):
            options = etc / f"{name}.toml"
            options.write_text(options.read_text().replace('"4GiB"', '"64MiB"'))
        # The time of the watchdog is shorter than that of the package, so that the test sees it.
        for unit in ("kvcove-serve.service", "kvcove-owner@.service", "kvcove-master.service"):
            drop_in = pathlib.Path(f"/etc/systemd/system/{unit}.d/test.conf")
            drop_in.parent.mkdir()
            drop_in.write_text(f"[Service]\nWatchdogSec={WATCHDOG_S}\n")
        done("systemctl", "daemon-reload")

    def start(self, *units):
        for unit in units:
            began = time.monotonic()
            done("systemctl", "start", unit)
            self.assertLess(time.monotonic() - began, 10)
            self.addCleanup(done, "systemctl", "stop", unit)
            self.assertEqual(show(unit, "ActiveState"), "active")

    def assert_goes_on(self, unit, pid, restarts=0):
        """For longer than the watchdog waits."""
        time.sleep(WATCHDOG_S + 2)
        self.assertEqual(show(unit, "ActiveState"), "active")
        self.assertEqual(main_pid(unit), pid)
        self.assertEqual(int(show(unit, "NRestarts")), restarts)

    def test_1_a_pool_of_one_host_starts_serves_and_stops(self):
        self.start(SERVE)
        self.assertEqual(pathlib.Path(f"/proc/{main_pid(SERVE)}").stat().st_uid, pwd.getpwnam("kvcove").pw_uid)
        fill(SERVE)
        self.assertGreater(objects(SERVE), 0)
        self.assert_goes_on(SERVE, main_pid(SERVE))
        done("systemctl", "stop", SERVE)
        self.assertEqual(show(SERVE, "Result"), "success")
        self.assertFalse(pathlib.Path(SOCKETS[SERVE]).exists())
        self.assertTrue(pathlib.Path("/var/lib/kvcove/serve").exists())

    def test_2_strangers_are_kept_out(self):
        self.start(SERVE)
        ended = subprocess.run(
            ["setpriv", "--reuid", "nobody", "--regid", "nogroup", "--clear-groups", "kvcove", "status", "--socket", SOCKETS[SERVE]],
            env=os.environ | {"KVCOVE_OWNER_USER": "kvcove"},
            capture_output=True,
            text=True,
            check=False,
        )
        self.assertNotIn("64MiB", ended.stdout)

    def test_3_one_that_is_killed_is_started_again(self):
        self.start(SERVE)
        pid = main_pid(SERVE)
        os.kill(pid, signal.SIGKILL)
        self.assertTrue(until(lambda: main_pid(SERVE) not in (0, pid) and show(SERVE, "ActiveState") == "active"))
        self.assertEqual(objects(SERVE), 0)
        fill(SERVE)

    def test_4_one_that_hangs_is_ended_by_the_watchdog(self):
        self.start(MASTER)
        pid = main_pid(MASTER)
        os.kill(pid, signal.SIGSTOP)
        self.assertTrue(until(lambda: main_pid(MASTER) not in (0, pid) and show(MASTER, "ActiveState") == "active"))
        self.assertIn("Watchdog timeout", done("journalctl", "--no-pager", "-u", MASTER))

    def upgrade(self, unit):
        """Reload a unit; return its new main process."""
        old = main_pid(unit)
        done("systemctl", "reload", unit)
        new = main_pid(unit)
        self.assertNotEqual(new, old)
        self.assertFalse(pathlib.Path(f"/proc/{old}").exists())
        self.assertEqual(show(unit, "ActiveState"), "active")
        return new

    def test_5_a_reload_is_a_hot_upgrade_again_and_again(self):
        self.start(SERVE)
        fill(SERVE)
        stored = objects(SERVE)
        self.assertGreater(stored, 0)
        for _ in range(3):
            new = self.upgrade(SERVE)
            self.assertEqual(objects(SERVE), stored)
        # The new process beats in the place of the old one; else the watchdog would end it now.
        self.assert_goes_on(SERVE, new)
        self.assertEqual(objects(SERVE), stored)
        # It is the main process, and systemd's child: its end is the service's, and a stop waits for it.
        os.kill(new, signal.SIGKILL)
        self.assertTrue(until(lambda: main_pid(SERVE) not in (0, new) and show(SERVE, "ActiveState") == "active"))
        self.upgrade(SERVE)
        done("systemctl", "stop", SERVE)
        self.assertEqual(show(SERVE, "Result"), "success")
        self.assertNotIn("not our child", done("journalctl", "--no-pager", "-u", SERVE))

    def test_6_a_reload_that_fails_leaves_the_old_one(self):
        self.start(SERVE)
        fill(SERVE)
        stored, pid = objects(SERVE), main_pid(SERVE)
        options = pathlib.Path("/etc/kvcove/serve.toml")
        before = options.read_text()
        self.addCleanup(options.write_text, before)
        for wrong in (before.replace("64MiB", "128MiB"), before + "\nno-such-option = 1\n"):
            options.write_text(wrong)
            ended = subprocess.run(["systemctl", "reload", SERVE], check=False)
            self.assertNotEqual(ended.returncode, 0)
            self.assertEqual((main_pid(SERVE), objects(SERVE)), (pid, stored))
        self.assert_goes_on(SERVE, pid)
        options.write_text(before)
        self.upgrade(SERVE)

    def test_7_a_cluster_of_one_host_is_upgraded(self):
        self.start(MASTER, OWNER)
        fill(OWNER)
        stored = objects(OWNER)
        self.assertGreater(stored, 0)
        new = self.upgrade(OWNER)
        done("systemctl", "reload", MASTER)
        self.assert_goes_on(OWNER, new)
        self.assertEqual(objects(OWNER), stored)
        self.assertEqual(show(MASTER, "ActiveState"), "active")
        done("systemctl", "restart", MASTER)
        self.assertTrue(until(lambda: "127.0.0.1:7401" in done("kvcove", "admin", "segments")))
        self.assertEqual(main_pid(OWNER), new)

    def test_8_nothing_is_refused_to_them_and_limits_are_those_of_the_unit(self):
        self.start(MASTER, OWNER)
        fill(OWNER)
        for unit in (MASTER, OWNER):
            self.assertNotIn(" error kvcove", done("journalctl", "--no-pager", "-u", unit))
        effective = int(re.search(r"CapEff:\s*(\w+)", pathlib.Path("/proc/self/status").read_text())[1], 16)
        if not effective & CAP_SYS_RESOURCE:
            self.skipTest("this machine lets nobody raise limits (CAP_SYS_RESOURCE)")
        limits = pathlib.Path(f"/proc/{main_pid(OWNER)}/limits").read_text()
        self.assertRegex(limits, r"Max locked memory +unlimited +unlimited")
        self.assertRegex(limits, r"Max nice priority +30 +30")
        self.assertEqual(pathlib.Path(f"/proc/{main_pid(OWNER)}/oom_score_adj").read_text().strip(), "-500")

    def test_9_the_package_goes_with_its_services(self):
        done("systemctl", "start", SERVE)
        pid = main_pid(SERVE)
        done("dpkg", "-r", "kvcove")
        self.assertFalse(pathlib.Path(f"/proc/{pid}").exists())


if __name__ == "__main__":
    unittest.main(verbosity=2, testRunner=unittest.TextTestRunner(stream=sys.stdout, verbosity=2))
