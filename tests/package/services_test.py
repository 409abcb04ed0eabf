#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The units in a systemd of their own: tests/package/services_test.py DEB ROOT, as root

ROOT is the tarball of a Debian with systemd and python3. Its systemd runs as process 1 of new namespaces, in a control group of
its own, and starts tests/package/services_inside.py. It has no other network, no device and no right to change the host's kernel.
"""

import os
import pathlib
import shutil
import subprocess
import sys
import time
import unittest

from guest import Guest

SOURCES = pathlib.Path(__file__).resolve().parents[2]
DEB = ROOT = pathlib.Path()
UNITS = ("kvcove-master.service", "kvcove-owner@main.service", "kvcove-serve.service")
# Scores of systemd-analyze: 0 is closed, 10 is open; a unit without any such line has 9.6. Owners need the network and see peers' users.
HIGHEST = {"kvcove-master.service": 20, "kvcove-owner@main.service": 30, "kvcove-serve.service": 30}
# They would change the host's kernel, or wait for what is not there.
MASKED = (
    *("systemd-sysctl.service", "systemd-udevd.service", "systemd-modules-load.service", "dev-hugepages.mount"),
    *("systemd-firstboot.service", "systemd-update-utmp.service"),
    *("sys-kernel-debug.mount", "sys-kernel-tracing.mount", "sys-kernel-config.mount", "sys-fs-fuse-connections.mount"),
    *("systemd-remount-fs.service", "systemd-random-seed.service", "dev-mqueue.mount", "getty.target"),
)
TEST_UNIT = """[Unit]
Requires=basic.target
After=basic.target
SuccessAction=exit-force
FailureAction=exit-force
[Service]
Type=oneshot
ExecStart=/usr/bin/python3 /test/services_inside.py
StandardOutput=file:/test/output
StandardError=inherit
ExecStopPost=/bin/sh -c 'echo $EXIT_STATUS >/test/status; journalctl --no-pager -o short-monotonic >/test/journal'
"""
SETUP = """
cd "$0"
echo $$ >"$1/cgroup.procs"
exec unshare --mount --pid --fork --kill-child --net --uts --ipc --cgroup sh -ec '
mount --bind . . && cd "$PWD"
mount -t proc proc proc
mount --bind proc/sys proc/sys && mount -o remount,bind,ro proc/sys
mount -t sysfs -o ro sysfs sys
mount -t cgroup2 cgroup2 sys/fs/cgroup
mount -t tmpfs -o mode=755 dev dev
mkdir dev/shm dev/pts && mount -t tmpfs -o mode=1777 shm dev/shm && mount -t devpts -o newinstance,ptmxmode=666 pts dev/pts
for node in null zero full random urandom tty; do touch dev/$node && mount --bind /dev/$node dev/$node; done
touch dev/console && mount --bind /dev/null dev/console
ln -s pts/ptmx dev/ptmx
ln -s /proc/self/fd dev/fd
mount -t tmpfs -o mode=755 run run
ip link set lo up
hostname guest
mkdir -p host && pivot_root . host
exec env -i container=kvcove PATH=/usr/sbin:/usr/bin:/sbin:/bin chroot . sh -c "
  umount -l host && exec /lib/systemd/systemd --unit=kvcove-test.service --log-target=journal --show-status=0"
'
"""


def unified():
    """Where the control groups of version 2 are mounted; without them there is no systemd of one's own."""
    for line in pathlib.Path("/proc/mounts").read_text().splitlines():
        _, place, kind = line.split()[:3]
        if kind == "cgroup2":
            return pathlib.Path(place)
    raise unittest.SkipTest("no cgroup2 is mounted")


class ServicesTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.guest = Guest(ROOT)
        cls.addClassCleanup(cls.guest.close)
        cls.guest.run("dpkg", "-i", cls.guest.put(DEB))

    def test_systemd_finds_no_mistake_in_the_units(self):
        for unit in UNITS:
            printed = self.guest.run("systemd-analyze", "verify", "--man=no", f"/usr/lib/systemd/system/{unit}")
            self.assertEqual([line for line in printed.splitlines() if "kvcove" in line], [])

    def test_they_are_closed_as_far_as_shared_memory_allows(self):
        for unit, highest in HIGHEST.items():
            printed = self.guest.run(
                *("systemd-analyze", "security", "--offline=true", f"--threshold={highest}"),
                f"/usr/lib/systemd/system/{unit}",
            )
            print(printed.splitlines()[-1], file=sys.stderr)

    def test_a_real_systemd_starts_kills_watches_and_upgrades_them(self):
        guest = Guest(ROOT)  # of its own: the package does not outlive the test
        self.addCleanup(guest.close)
        guest.run("dpkg", "-i", guest.put(DEB))
        group = unified() / f"kvcove-guest-{os.getpid()}"
        group.mkdir()
        self.addCleanup(self.remove_group, group)
        system = guest.root / "etc/systemd/system"
        (system / "kvcove-test.service").write_text(TEST_UNIT)
        for unit in MASKED:
            (system / unit).unlink(missing_ok=True)
            (system / unit).symlink_to("/dev/null")
        (guest.root / "etc/machine-id").write_text(f"{1:032x}\n")
        test = guest.root / "test"
        test.mkdir()
        for path in ("tests/package/services_inside.py", "traces/conversation_trace.jsonl"):
            shutil.copy(SOURCES / path, test)
        with subprocess.Popen(["sh", "-ec", SETUP, guest.root, group], stdin=subprocess.DEVNULL) as systemd:
            try:
                systemd.wait(timeout=480)
            except subprocess.TimeoutExpired:
                systemd.kill()
        output = test / "output"
        said = output.read_text() if output.exists() else "the test did not begin"
        print(said, file=sys.stderr)
        status = (test / "status").read_text().strip() if (test / "status").exists() else "none"
        if status != "0":
            journal = test / "journal"
            print(journal.read_text()[-20000:] if journal.exists() else "no journal", file=sys.stderr)
        self.assertEqual(status, "0")

    @staticmethod
    def remove_group(group):
        """Its processes have ended with their process 1; the kernel needs a moment."""
        for _ in range(100):
            try:
                for below in sorted(group.rglob("*"), reverse=True):
                    if below.is_dir():
                        below.rmdir()
                return group.rmdir()
            except OSError:
                time.sleep(0.1)
        raise AssertionError(f"{group} has processes")


if __name__ == "__main__":
    DEB, ROOT = (pathlib.Path(word).resolve() for word in sys.argv[1:3])
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]], verbosity=2)
