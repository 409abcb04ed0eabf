#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The version in the sources, and the section of the CHANGELOG: release_version.py VERSION [--notes] [--root DIRECTORY]

Without --notes it writes VERSION where the sources have the version, and names the CHANGELOG's section after it. A second call
changes nothing. With --notes it prints that section.
"""

import argparse
import datetime
import os
import pathlib
import re
import sys

UNRELEASED = "## Not released yet"
# Besides kvcove/version.h: the file, and how the version stands in it; {1} is its major and minor number.
PLACES = (
    ("kvcove/version.h", '// "{}": of the library'),
    ("python/mooncake/pyproject.toml", 'version = "{}"'),
    ("python/mooncake/pyproject.toml", '"kvcove=={}"'),
    ("examples/cpp/README.md", "kvcove {}\n"),
    ("examples/cpp/CMakeLists.txt", "find_package(kvcove {1} "),
    ("docs/cpp.md", "GIT_TAG v{})"),
    ("deploy/kubernetes/kvcove/Chart.yaml", "\nversion: {}\n"),
    ("deploy/kubernetes/kvcove/Chart.yaml", "\nappVersion: {}\n"),
    ("deploy/kubernetes/manifests/minimal.yaml", 'app.kubernetes.io/version: "{}"'),
    ("deploy/kubernetes/manifests/minimal.yaml", 'kvcove:{}"'),
    ("deploy/kubernetes/manifests/cluster.yaml", 'app.kubernetes.io/version: "{}"'),
    ("deploy/kubernetes/manifests/cluster.yaml", 'kvcove:{}"'),
    ("docs/cpp.md", "find_package(kvcove {1} "),
)


def fail(text):
    raise SystemExit(f"release_version.py: {text}")


def version_of(header):
    found = re.findall(r"#define KVCOVE_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)", header)
    if len(found) != 3:
        fail("kvcove/version.h has no version")
    return tuple(map(int, found))


def section(changelog, version):
    """The text of a version's section, without its heading; nothing where there is none."""
    found = re.search(rf"^## {re.escape(version)} \(.*?\)\n(.*?)(?=^## |\Z)", changelog, re.MULTILINE | re.DOTALL)
    return found and found.group(1).strip() + "\n"


def write_version(root, version):
    header = root / "kvcove/version.h"
    text = header.read_text()
    old = ".".join(map(str, version_of(text)))
    if version_of(text) > tuple(map(int, version.split("."))):
        fail(f"{version} is older than the sources, which have {old}")
    for name, number in zip(("MAJOR", "MINOR", "PATCH"), version.split("."), strict=True):
        text = re.sub(rf"(#define KVCOVE_VERSION_{name}) \d+", rf"\g<1> {number}", text)
    header.write_text(text)
    for place, form in PLACES:
        text = (root / place).read_text()
        before, after = (form.format(of, of.rpartition(".")[0]) for of in (old, version))
        if before not in text and after not in text:
            fail(f"{place} has no '{before.strip()}'")
        (root / place).write_text(text.replace(before, after))


def write_changelog(root, version):
    path = root / "CHANGELOG.md"
    text = path.read_text()
    if section(text, version):
        return
    begin, heading, changes = text.partition(f"{UNRELEASED}\n")
    if not heading or not re.split(r"^## ", changes, maxsplit=1, flags=re.MULTILINE)[0].strip():
        fail(f"CHANGELOG.md has nothing below '{UNRELEASED}'")
    # The date of a build that others repeat is the commit's.
    epoch = os.environ.get("SOURCE_DATE_EPOCH")
    today = datetime.datetime.now(datetime.UTC) if epoch is None else datetime.datetime.fromtimestamp(int(epoch), datetime.UTC)
    path.write_text(f"{begin}## {version} ({today:%Y-%m-%d})\n{changes}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("version", help="MAJOR.MINOR.PATCH")
    parser.add_argument("--notes", action="store_true", help="print the version's section of CHANGELOG.md")
    parser.add_argument("--root", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parents[1], help="the sources")
    arguments = parser.parse_args()
    if not re.fullmatch(r"(0|[1-9]\d*)(\.(0|[1-9]\d*)){2}", arguments.version):
        fail(f"'{arguments.version}' is not MAJOR.MINOR.PATCH, such as 0.2.0")
    if arguments.notes:
        notes = section((arguments.root / "CHANGELOG.md").read_text(), arguments.version)
        print(notes or fail(f"CHANGELOG.md has no section '## {arguments.version} (DATE)'"), end="")
        return 0
    write_version(arguments.root, arguments.version)
    write_changelog(arguments.root, arguments.version)
    return 0


if __name__ == "__main__":
    sys.exit(main())
