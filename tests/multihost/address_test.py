#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Which address an owner advertises, with hosts of two networks: tests/multihost/address_test.py KVCOVE

Each host is a network namespace; two veth pairs join them. Needs root and `ip`; else it is skipped (77).
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

KVCOVE = ""
HEAD, NODE = (f"kva-{os.getpid()}-{name}" for name in ("head", "node"))
# Of the head and the node: the network of the data, IPv6, and another network that the master is not in.
LINKS = (("10.78.0", "fd78::"), ("10.79.0", "fd79::"))


def ip(*words):
    return subprocess.run(["ip", *words], capture_output=True, text=True, timeout=120)


def make_hosts():
    for name in (HEAD, NODE):
        if ip("netns", "add", name).returncode != 0:
            return False
        ip("-n", name, "link", "set", "lo", "up")
    for i, (four, six) in enumerate(LINKS):
        pair = ("netns", HEAD, "type", "veth", "peer", "name", f"data{i}", "netns", NODE)
        if ip("link", "add", f"data{i}", *pair).returncode != 0:
            return False
        for last, name in ((1, HEAD), (5, NODE)):
            ip("-n", name, "addr", "add", f"{four}.{last}/24", "dev", f"data{i}")
            ip("-n", name, "addr", "add", f"{six}{last}/64", "dev", f"data{i}", "nodad")
            if ip("-n", name, "link", "set", f"data{i}", "up").returncode != 0:
                return False
    return True


def remove_hosts():
    for name in (HEAD, NODE):
        ip("netns", "del", name)


class Address(unittest.TestCase):
    def setUp(self):
        self.directory = pathlib.Path(tempfile.mkdtemp(prefix="kvcove-address-"))
        self.started = []

    def tearDown(self):
        for process in self.started:
            process.terminate()
        for process in self.started:
            process.communicate(timeout=120)
        shutil.rmtree(self.directory)

    def command(self, host, *words):
        return ["ip", "netns", "exec", host, KVCOVE, *words]

    def start(self, host, *words):
        process = subprocess.Popen(
            self.command(host, *words), text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        self.started.append(process)
        return process

    def run_to_end(self, host, *words, **environment):
        return subprocess.run(
            self.command(host, *words), text=True, stdin=subprocess.DEVNULL,
            capture_output=True, timeout=120, env={**os.environ, **environment},
        )  # fmt: skip

    def start_master(self, listen="10.78.0.1:7400"):
        self.start(HEAD, "--log", "error", "master", "--listen", listen, "--insecure", "--admin", "127.0.0.1:7480",
                   "--data", str(self.directory / "m"))  # fmt: skip
        return listen

    def owner_words(self, *words):
        return ["--insecure", "--admin", "off", "--memory", "64MiB", "--no-populate",
                "--socket", str(self.directory / "s" / "kvcove.sock"), *words]  # fmt: skip

    def segments(self):
        """The owners' addresses as the master lists them."""
        shown = self.run_to_end(HEAD, "admin", "segments", "--json")
        if shown.returncode != 0:
            return []
        return [segment["address"] for segment in json.loads(shown.stdout)["segments"]]

    def wait_for_segments(self):
        end = time.monotonic() + 60
        while time.monotonic() < end:
            if found := self.segments():
                return found
            time.sleep(0.05)
        self.fail("the master lists no owner")

    def lists_what_the_owner_advertises(self, master, listen, expected):
        owner = self.start(NODE, "owner", "--master", master, *self.owner_words("--listen", listen))
        (address,) = self.wait_for_segments()
        self.assertRegex(address, expected)
        owner.terminate()
        _, errors = owner.communicate(timeout=120)
        self.assertIn(f"advertising {address}: the route to the master {master} leaves from it (data0)", errors)
        self.assertNotIn("RDMA", errors)

    def test_listening_everywhere_it_is_the_routed_address(self):
        self.lists_what_the_owner_advertises(self.start_master(), "0.0.0.0:7401", r"^10\.78\.0\.5:7401$")

    def test_with_a_port_that_the_kernel_chooses(self):
        self.lists_what_the_owner_advertises(self.start_master(), "0.0.0.0:0", r"^10\.78\.0\.5:[1-9][0-9]+$")

    def test_with_ipv6(self):
        master = self.start_master("[fd78::1]:7400")
        self.lists_what_the_owner_advertises(master, "[::]:7401", r"^\[fd78::5\]:7401$")

    def test_what_the_user_says_wins(self):
        master = self.start_master()
        self.start(NODE, "owner", "--master", master,
                   *self.owner_words("--listen", "0.0.0.0:7401", "--advertise", "10.79.0.5"))  # fmt: skip
        self.assertEqual(self.wait_for_segments(), ["10.79.0.5:7401"])

    def test_kvcove_run_tells_its_command_what_the_master_lists(self):
        master = self.start_master()
        script = (
            'echo "$KVCOVE_PREFERRED_SEGMENT $MOONCAKE_PREFERRED_SEGMENT"; '
            f"ip netns exec {HEAD} {KVCOVE} admin segments --json"
        )
        done = self.run_to_end(NODE, "run", "--master", master, *self.owner_words("--listen", "0.0.0.0:0"),
                               "--", "sh", "-c", script)  # fmt: skip
        self.assertEqual(done.returncode, 0, done.stderr)
        told, listed = done.stdout.split("\n", 1)
        (segment,) = json.loads(listed)["segments"]
        self.assertRegex(segment["address"], r"^10\.78\.0\.5:[1-9][0-9]+$")
        self.assertEqual(told, f"{segment['address']} {segment['address']}")

    def test_what_no_other_host_can_reach_is_refused(self):
        for words, message in (
            (["--listen", "127.0.0.1:7401"], "say --listen 10.78.0.5:7401"),
            (["--listen", "10.78.0.5:7401", "--advertise", "127.0.0.1:7401"], "such as 10.78.0.5"),
            (["--listen", "0.0.0.0:7401", "--advertise", "0.0.0.0:7401"], "no address that others can connect to"),
        ):
            done = self.run_to_end(NODE, "owner", "--master", "10.78.0.1:7400", *self.owner_words(*words))
            self.assertEqual((done.returncode, message in done.stderr), (2, True), done.stderr)
        for master, message in (
            ("192.0.2.1:7400", "no route to 192.0.2.1:7400"),
            ("127.0.0.1:7400", "which only this host reaches"),
            ("[fd78::1]:7400", "say --listen [::]:7401"),
        ):
            done = self.run_to_end(NODE, "owner", "--master", master, *self.owner_words("--listen", "0.0.0.0:7401"))
            self.assertEqual((done.returncode, message in done.stderr), (2, True), done.stderr)

    def test_a_master_at_an_address_of_this_host(self):
        master = self.start_master()
        self.start(HEAD, "owner", "--master", master, *self.owner_words("--listen", "127.0.0.1:7401"))
        self.assertEqual(self.wait_for_segments(), ["127.0.0.1:7401"])

    def test_the_owner_names_rdma_devices_where_there_are_some(self):
        tree = self.directory / "sys"
        port = tree / "class/infiniband/mlx5_0/ports/1"
        for name, text in (
            ("state", "4: ACTIVE"), ("phys_state", "5: LinkUp"), ("rate", "200 Gb/sec (4X HDR)"),
            ("link_layer", "Ethernet"), ("gids/3", "0000:0000:0000:0000:0000:ffff:0a4e:0005"),
            ("gid_attrs/types/3", "RoCE v2"), ("gid_attrs/ndevs/3", "data0"),
        ):  # fmt: skip
            (port / name).parent.mkdir(parents=True, exist_ok=True)
            (port / name).write_text(text + "\n")
        words = [KVCOVE, "owner", "--master", self.start_master(), *self.owner_words("--listen", "0.0.0.0:7401")]
        up, down = "4: ACTIVE", "1: DOWN"
        for state, index, transport, message in (
            (up, {}, "tcp", "payload moves by TCP; with --transport auto by RDMA through mlx5_0:1/3"),
            (up, {"MC_GID_INDEX": "9"}, "tcp", "--transport tcp does not use: no RDMA device has the GID index 9"),
            (up, {"MC_GID_INDEX": "9"}, "auto", "payload moves by TCP: no RDMA device has the GID index 9"),
            (down, {}, "auto", "payload moves by TCP: mlx5_0:1: its state is '1: DOWN'"),
        ):
            (port / "state").write_text(state + "\n")
            owner = subprocess.Popen(
                ["ip", "netns", "exec", NODE, "unshare", "-m", "sh", "-c",
                 f'mount --bind {tree} /sys && exec "$0" "$@"', *words, "--transport", transport],
                text=True, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, env={**os.environ, **index},
            )  # fmt: skip
            self.started.append(owner)
            self.wait_for_segments()
            owner.terminate()
            self.assertIn(message, owner.communicate(timeout=120)[1])
            end = time.monotonic() + 60
            while self.segments() and time.monotonic() < end:
                time.sleep(0.05)

    def test_doctor_shows_it_before(self):
        master = self.start_master()
        self.start(NODE, "owner", "--master", master, *self.owner_words("--listen", "0.0.0.0:7401"))
        self.wait_for_segments()
        words = ["doctor", "--memory", "16MiB", "--data", str(self.directory), "--listen", "127.0.0.1:7400"]
        done = self.run_to_end(NODE, *words, "--master", master, "--json")
        self.assertEqual(done.returncode, 0, done.stdout)
        findings = {finding["what"]: finding for finding in json.loads(done.stdout)["findings"]}
        self.assertEqual(
            findings["address to advertise"]["seen"],
            f"10.78.0.5:7401: the route to the master {master} leaves from it (data0)",
        )
        self.assertIn("TCP", findings["data between hosts"]["seen"])
        done = self.run_to_end(NODE, *words, "--master", "192.0.2.1:7400", "--json")
        self.assertEqual(done.returncode, 1)
        self.assertIn("no route to 192.0.2.1", done.stdout)


if __name__ == "__main__":
    KVCOVE = os.path.abspath(sys.argv.pop(1))
    try:
        if not make_hosts():
            print("no network namespaces here: skipped")
            sys.exit(77)
        unittest.main()
    finally:
        remove_hosts()
