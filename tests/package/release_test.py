#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What scripts/release_version.py does to a copy of the sources' files: tests/package/release_test.py"""

import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

SOURCES = pathlib.Path(__file__).resolve().parents[2]
KUBERNETES = ("kvcove/Chart.yaml", "manifests/minimal.yaml", "manifests/cluster.yaml")
FILES = (
    *("kvcove/version.h", "python/mooncake/pyproject.toml", "docs/cpp.md", "CHANGELOG.md"),
    *("examples/cpp/README.md", "examples/cpp/CMakeLists.txt"),
    *(f"deploy/kubernetes/{name}" for name in KUBERNETES),
)
CHANGES = "# Changes\n\n## Not released yet\n\n### Disks\n- Faster.\n\n## 0.0.9 (2026-01-01)\n\n- The first.\n"


class ReleaseTest(unittest.TestCase):
    def setUp(self):
        self.root = pathlib.Path(tempfile.mkdtemp(prefix="kvcove-release-"))
        self.addCleanup(shutil.rmtree, self.root)
        for name in FILES:
            (self.root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(SOURCES / name, self.root / name)
        self.write("CHANGELOG.md", CHANGES)

    def read(self, name):
        return (self.root / name).read_text()

    def write(self, name, text):
        (self.root / name).write_text(text)

    def call(self, *words, root=True):
        command = [sys.executable, SOURCES / "scripts/release_version.py", *words]
        return subprocess.run(
            [*command, *(["--root", self.root] if root else [])],
            env={"SOURCE_DATE_EPOCH": "1800000000"},
            capture_output=True,
            text=True,
            check=False,
        )

    def done(self, *words):
        ended = self.call(*words)
        self.assertEqual(ended.returncode, 0, ended.stderr)
        return ended.stdout

    def refused(self, *words):
        ended = self.call(*words)
        self.assertNotEqual(ended.returncode, 0)
        return ended.stderr

    def test_every_place_has_the_version_and_a_second_call_changes_nothing(self):
        self.done("7.8.9")
        for name in ("MAJOR 7", "MINOR 8", "PATCH 9"):
            self.assertIn(f"#define KVCOVE_VERSION_{name}\n", self.read("kvcove/version.h"))
        self.assertIn('"kvcove==7.8.9"', self.read("python/mooncake/pyproject.toml"))
        self.assertIn('version = "7.8.9"', self.read("python/mooncake/pyproject.toml"))
        self.assertIn("kvcove 7.8.9\n", self.read("examples/cpp/README.md"))
        self.assertIn("GIT_TAG v7.8.9)", self.read("docs/cpp.md"))
        chart, *manifests = (self.read(f"deploy/kubernetes/{name}") for name in KUBERNETES)
        self.assertIn("\nversion: 7.8.9\nappVersion: 7.8.9\n", chart)
        for manifest in manifests:
            self.assertIn('/kvcove:7.8.9"', manifest)
            self.assertNotRegex(manifest, r'version: "(?!7\.8\.9")')
        for name in ("docs/cpp.md", "examples/cpp/CMakeLists.txt"):
            self.assertIn("find_package(kvcove 7.8 CONFIG", self.read(name))
        self.assertIn("## 7.8.9 (2027-01-15)\n\n### Disks", self.read("CHANGELOG.md"))
        before = {name: self.read(name) for name in FILES}
        self.done("7.8.9")
        self.assertEqual({name: self.read(name) for name in FILES}, before)

    def test_the_notes_are_the_section(self):
        self.assertEqual(self.done("0.0.9", "--notes"), "- The first.\n")
        self.done("7.8.9")
        self.assertEqual(self.done("7.8.9", "--notes"), "### Disks\n- Faster.\n")
        self.assertIn("no section '## 7.8.8 (DATE)'", self.refused("7.8.8", "--notes"))

    def test_what_makes_no_release_is_refused(self):
        for word in ("0.2", "v0.2.0", "0.2.0-rc1", "00.2.0", ""):
            self.assertIn("MAJOR.MINOR.PATCH", self.refused(word))
        self.assertIn("older than the sources", self.refused("0.0.9"))
        self.write("CHANGELOG.md", "# Changes\n\n## Not released yet\n\n## 0.0.9 (2026-01-01)\n\n- The first.\n")
        self.assertIn("nothing below", self.refused("7.8.9"))
        self.write("CHANGELOG.md", "# Changes\n")
        self.assertIn("nothing below", self.refused("7.8.9"))

    def test_the_sources_have_something_to_release(self):
        text = (SOURCES / "CHANGELOG.md").read_text()
        self.assertRegex(text, r"(?m)^## (Not released yet|\d+\.\d+\.\d+ \(\d{4}-\d\d-\d\d\))$")


if __name__ == "__main__":
    unittest.main(verbosity=2)
