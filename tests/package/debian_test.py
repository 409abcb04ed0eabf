#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The .deb and the tarball in clean systems: tests/package/debian_test.py DEB TARBALL ROOT SHELLS, as root

ROOT is the tarball of a smallest Debian, SHELLS of one with bash-completion, zsh and man-db.
"""

import os
import pathlib
import re
import shutil
import stat
import subprocess
import sys
import tarfile
import tempfile
import time
import unittest

from guest import Guest, done

SOURCES = pathlib.Path(__file__).resolve().parents[2]
DEB = TARBALL = ROOT = SHELLS = pathlib.Path()
OPTIONS = ("master.toml", "owner-main.toml", "serve.toml")
UNITS = ("kvcove-master.service", "kvcove-owner@.service", "kvcove-serve.service")
MOST_BYTES = 40 << 20


def version():
    text = (SOURCES / "kvcove/version.h").read_text()
    return ".".join(re.findall(r"#define KVCOVE_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)", text))


def commands_of(command):
    """The commands that have a page."""
    printed = done([command, "--help"], env=os.environ | {"COLUMNS": "120"})
    return re.findall(r"^  ([a-z-]+) ", printed.partition("Subcommands:")[2], re.MULTILINE)


class DebTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.guest = Guest(ROOT)
        cls.addClassCleanup(cls.guest.close)
        began = time.monotonic()
        cls.guest.run("dpkg", "-i", cls.guest.put(DEB))
        cls.seconds = time.monotonic() - began

    def path(self, name):
        return self.guest.root / name.lstrip("/")

    def test_it_says_what_it_is(self):
        fields = done(["dpkg-deb", "-f", DEB])
        self.assertIn(f"Version: {version()}\n", fields)
        self.assertIn("Package: kvcove\n", fields)
        self.assertTrue(self.guest.run("kvcove", "--version").startswith(f"kvcove {version()} "))

    def test_it_is_small(self):
        self.assertLessEqual(DEB.stat().st_size, MOST_BYTES)
        installed = int(re.search(r"Installed-Size: (\d+)", done(["dpkg-deb", "-f", DEB]))[1]) << 10
        self.assertLessEqual(installed, MOST_BYTES)

    def test_the_command_needs_what_the_package_depends_on(self):
        printed = done(["readelf", "-d", self.path("/usr/bin/kvcove")])
        needed = set(re.findall(r"\(NEEDED\).*\[(.*)\]", printed))
        of_libc = {"libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}
        self.assertLessEqual(needed, of_libc | {"libgcc_s.so.1"})
        versions = done(["readelf", "-V", self.path("/usr/bin/kvcove")])
        newest = max(tuple(map(int, found)) for found in re.findall(r"GLIBC_(\d+)\.(\d+)", versions))
        self.assertLessEqual(newest, (2, 28))

    def test_files_belong_to_root_and_nobody_else_writes_them(self):
        listed = self.guest.run("dpkg", "-L", "kvcove").split()
        for name in listed:
            status = self.path(name).lstat()
            if name in ("/.", "/usr", "/etc", "/usr/bin", "/usr/lib", "/usr/share"):
                continue
            self.assertEqual((status.st_uid, status.st_gid), (0, 0), name)
            if not stat.S_ISLNK(status.st_mode):
                self.assertFalse(status.st_mode & 0o022, name)
        for unit in UNITS:
            self.assertIn(f"/usr/lib/systemd/system/{unit}", listed)
        self.assertTrue(os.access(self.path("/usr/lib/kvcove/take-over"), os.X_OK))
        self.assertNotIn("/usr/include", listed)

    def test_there_is_a_user_without_a_login(self):
        user = self.guest.run("getent", "passwd", "kvcove").strip().split(":")
        self.assertEqual(user[5:], ["/var/lib/kvcove", "/usr/sbin/nologin"])
        self.assertIn("kvcove", self.guest.run("id", "-gn", "kvcove"))

    def test_its_options_are_read(self):
        for name in OPTIONS:
            command = re.split(r"[-.]", name)[0]
            printed = self.guest.run("kvcove", "--config", f"/etc/kvcove/{name}", "--print-config", command)
            self.assertTrue(printed.startswith(f"[{command}]"), printed)
        conffiles = self.guest.run("dpkg-query", "-W", "-f", "${Conffiles}", "kvcove")
        self.assertEqual(set(re.findall(r"/etc/kvcove/(\S+)", conffiles)), set(OPTIONS))

    def test_each_command_has_a_page(self):
        pages = {path.name for path in self.path("/usr/share/man/man1").glob("kvcove*")}
        commands = commands_of(self.path("/usr/bin/kvcove"))
        self.assertGreater(len(commands), 20)
        self.assertEqual(pages, {"kvcove.1.gz", *(f"kvcove-{name}.1.gz" for name in commands)})

    def test_an_owner_runs_within_ten_seconds(self):
        self.assertLess(self.seconds, 8)
        began = time.monotonic()
        # As the unit does, by a user that has no rights.
        script = (
            "mkdir -p /run/kvcove/serve /var/lib/kvcove/serve && chown kvcove:kvcove /run/kvcove/serve /var/lib/kvcove/serve && "
            "chmod 710 /run/kvcove/serve && chmod 700 /var/lib/kvcove/serve && "
            "setpriv --reuid kvcove --regid kvcove --clear-groups --no-new-privs "
            "kvcove --config /etc/kvcove/serve.toml serve --memory 64MiB "
            "--socket /run/kvcove/serve/kvcove.sock --data /var/lib/kvcove/serve & "
            "for i in $(seq 100); do [ -S /run/kvcove/serve/kvcove.sock ] && break; sleep 0.1; done; "
            "KVCOVE_OWNER_USER=kvcove kvcove status --socket /run/kvcove/serve/kvcove.sock; status=$?; kill %1; wait; exit $status"
        )
        printed = self.guest.run("bash", "-mc", script)
        self.assertIn("/run/kvcove/serve/kvcove.sock", printed)
        self.assertLess(time.monotonic() - began + self.seconds, 10)

    def test_it_is_upgraded_removed_and_purged(self):
        guest = Guest(ROOT)
        self.addCleanup(guest.close)
        deb = guest.put(DEB)
        guest.run("dpkg", "-i", deb)
        changed = guest.root / "etc/kvcove/serve.toml"
        changed.write_text('[serve]\nmemory = "1GiB"\n')
        state = guest.root / "var/lib/kvcove/serve"
        state.mkdir(parents=True)
        guest.run("dpkg", "-i", deb)
        self.assertIn("1GiB", changed.read_text(), "an upgrade leaves what the operator wrote")
        guest.run("dpkg", "-r", "kvcove")
        self.assertTrue(changed.exists() and state.exists(), "a removal keeps options and data")
        self.assertFalse((guest.root / "usr/bin/kvcove").exists())
        guest.run("dpkg", "-i", deb)
        guest.run("dpkg", "-P", "kvcove")
        left = [path for path in guest.root.rglob("*kvcove*") if path.name != DEB.name]
        self.assertEqual([path for path in left if "/var/lib/dpkg/" not in str(path)], [])


class TarballTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.work = pathlib.Path(tempfile.mkdtemp(prefix="kvcove-tarball-"))
        cls.addClassCleanup(shutil.rmtree, cls.work)
        with tarfile.open(TARBALL) as archive:
            cls.names = archive.getnames()
            archive.extractall(cls.work, filter="data")
        cls.top = cls.work / TARBALL.name.removesuffix(".tar.gz")

    def test_it_has_one_directory_and_is_small(self):
        self.assertEqual({pathlib.PurePath(name).parts[0] for name in self.names}, {self.top.name})
        self.assertLessEqual(sum(path.stat().st_size for path in self.top.rglob("*") if path.is_file()), MOST_BYTES)

    def test_it_has_the_command_and_its_licenses(self):
        for name in ("bin/kvcove", "share/doc/kvcove/LICENSE", "share/doc/kvcove/NOTICE", "share/doc/kvcove/CHANGELOG.md"):
            self.assertTrue((self.top / name).exists(), name)
        for unit in UNITS:
            self.assertTrue((self.top / "share/doc/kvcove/systemd" / unit).exists(), unit)

    def test_it_runs_in_a_clean_system_wherever_it_lies(self):
        guest = Guest(ROOT)
        self.addCleanup(guest.close)
        shutil.copytree(self.top, guest.root / "opt" / "somewhere")
        printed = guest.run("/opt/somewhere/bin/kvcove", "--version")
        self.assertTrue(printed.startswith(f"kvcove {version()} "), printed)


class ShellTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.guest = Guest(SHELLS)
        cls.addClassCleanup(cls.guest.close)
        cls.guest.run("dpkg", "-i", cls.guest.put(DEB))

    def complete_bash(self, *words):
        script = (
            ". /usr/share/bash-completion/bash_completion; _completion_loader kvcove; "
            'COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=(); _kvcove; printf "%s\\n" "${COMPREPLY[@]}"'
        )
        return self.guest.run("bash", "-c", script, "bash", *words).split()

    def complete_zsh(self, *words):
        # What the completion says to zsh's own functions, instead of a terminal.
        script = (
            "_describe() { print -l -- ${(P)${@[-1]}%%:*} }; _files() { print FILES }; _normal() { print NORMAL }; "
            'words=("$@"); CURRENT=$#; fpath=(/usr/share/zsh/vendor-completions $fpath); autoload -Uz _kvcove; _kvcove'
        )
        return self.guest.run("zsh", "-fc", script, "zsh", *words).split()

    def test_both_shells_complete(self):
        for complete in (self.complete_bash, self.complete_zsh):
            with self.subTest(complete.__name__):
                self.assertIn("owner", complete("kvcove", ""))
                self.assertIn("--memory", complete("kvcove", "--log", "info", "owner", "--mem"))
                self.assertIn("--log-format", complete("kvcove", "owner", "--log"))
                self.assertIn("drain", complete("kvcove", "admin", "--token", "FILE", "dr"))
                self.assertEqual({"mooncake", "bailian", "vllm"}, set(complete("kvcove", "policy", "--trace-format", "")))
        self.assertEqual(self.complete_zsh("kvcove", "owner", "--credentials", ""), ["FILES"])
        self.assertEqual(self.complete_zsh("kvcove", "run", "--", "vll"), ["NORMAL"])

    def test_no_name_of_an_option_is_missing(self):
        printed = self.guest.run("kvcove", "owner", "--help", env={"COLUMNS": "120"})
        names = set(re.findall(r"^  (?:-\w,)?(--[a-z-]+)", printed, re.MULTILINE))
        self.assertGreater(len(names), 30)
        self.assertLessEqual(names, set(self.complete_bash("kvcove", "owner", "--")))
        page = self.guest.run("man", "kvcove-owner", env={"MANWIDTH": "400", "MAN_KEEP_FORMATTING": "", "MANROFFOPT": "-c"})
        page = re.sub(r".\x08", "", page).replace("\u2010", "-")
        for name in names:
            self.assertIn(name, page)

    def test_the_pages_have_no_mistake_of_form(self):
        for page in sorted((self.guest.root / "usr/share/man/man1").glob("kvcove*")):
            said = self.guest.run(
                *("man", "--warnings", "-E", "UTF-8", "-l", "-Tutf8", "-Z", f"/usr/share/man/man1/{page.name}"),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
            )
            self.assertFalse(said, page.name)


if __name__ == "__main__":
    DEB, TARBALL, ROOT, SHELLS = (pathlib.Path(word).resolve() for word in sys.argv[1:5])
    unittest.main(argv=[sys.argv[0], *sys.argv[5:]], verbosity=2)
