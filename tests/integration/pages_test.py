#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Commands in the pages of docs/ do what the pages say: tests/integration/pages_test.py KVCOVE

A fenced block behind `<!-- run -->` is run, the blocks of a page in one shell, in a directory of their own that has the repository's `traces`. A block
behind `<!-- prints -->` has lines that the block before it must print, in their order; `...` is anything.
"""

import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest

KVCOVE = ""
ROOT = pathlib.Path(__file__).resolve().parents[2]
FENCED = re.compile(r"^<!-- (run|prints) -->\n+```\w*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LEAST_COMMANDS = 10  # of all pages: a marker that is misspelled is found
DEADLINE_S = 300


def blocks_of(text):
    """What is run, each with its line and what it must print."""
    blocks = []
    for found in FENCED.finditer(text):
        if found[1] == "run":
            blocks.append((text[: found.start()].count("\n") + 1, found[2], []))
        else:
            blocks[-1][2].extend(found[2].splitlines())
    return blocks


def commands_of(code):
    """The command lines of a block: no comments, no contents of files, no continued lines."""
    code = re.sub(r"<<'END'\n.*?^END$", "", code, flags=re.MULTILINE | re.DOTALL)
    code = re.sub(r"\\\n\s*", " ", code)
    return [line for line in code.splitlines() if re.match(r"\s*(\w+=\S+ )*kvcove ", line)]


def missing(expected, output):
    """The first line that is not printed behind those before it, or None."""
    lines = iter(output.splitlines())
    for wanted in expected:
        pattern = ".*".join(re.escape(part) for part in wanted.rstrip().split("..."))
        if not any(re.fullmatch(pattern, line.rstrip()) for line in lines):
            return wanted
    return None


class Pages(unittest.TestCase):
    def run_page(self, page, blocks):
        directory = pathlib.Path(tempfile.mkdtemp(prefix="kvp-"))
        self.addCleanup(shutil.rmtree, directory)
        (directory / "bin").mkdir()
        (directory / "bin" / "kvcove").symlink_to(KVCOVE)
        (directory / "traces").symlink_to(ROOT / "traces")
        # The name of a block's end is nothing that a command prints.
        ends = [f"== end of block {number} of {page.name}" for number in range(len(blocks))]
        script = "set -eu -o pipefail\n" + "".join(
            f"{code}\nprintf '%s\\n' '{end}'\n" for (_, code, _), end in zip(blocks, ends)
        )
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("KVCOVE_", "MOONCAKE_"))}
        environment |= {
            "PATH": f"{directory / 'bin'}:{os.environ['PATH']}",
            "HOME": str(directory),
            "TMPDIR": str(directory),
            "XDG_RUNTIME_DIR": str(directory),
        }
        process = subprocess.Popen(
            ["bash", "-c", script],
            cwd=directory,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            printed, errors = process.communicate(timeout=DEADLINE_S)
        finally:
            try:
                os.killpg(process.pid, signal.SIGKILL)  # what a block has left in the background
            except ProcessLookupError:
                pass
        for (line, code, expected), end in zip(blocks, ends):
            where = f"{page.relative_to(ROOT)}:{line}"
            output, found, printed = printed.partition(end + "\n")
            self.assertTrue(found, f"{where}: status {process.returncode}\n{code}\nprinted:\n{output}\n{errors}")
            wanted = missing(expected, output)
            self.assertIsNone(wanted, f"{where}: the page says '{wanted}', and this was printed:\n{output}")

    def test_commands_in_pages_do_what_the_pages_say(self):
        commands = 0
        for page in sorted((ROOT / "docs").rglob("*.md")):
            blocks = blocks_of(page.read_text())
            if not blocks:
                continue
            with self.subTest(page=page.name):
                self.run_page(page, blocks)
            commands += sum(len(commands_of(code)) for _, code, _ in blocks)
        self.assertGreaterEqual(commands, LEAST_COMMANDS)


class Reading(unittest.TestCase):
    def test_blocks_have_their_lines_and_what_they_print(self):
        text = "a\n\n<!-- run -->\n```\nkvcove x \\\n  --y\n```\n\n<!-- prints -->\n```\none ...\n```\n\n```\nnot run\n```\n"
        self.assertEqual([(3, "kvcove x \\\n  --y\n", ["one ..."])], blocks_of(text))
        self.assertEqual(["kvcove x  --y"], commands_of("kvcove x \\\n --y\n# kvcove z\ncat >f <<'END'\nkvcove\nEND\n"))

    def test_printed_lines_come_in_their_order(self):
        self.assertIsNone(missing(["a...c", "d"], "x\nabc\ny\nd\n"))
        self.assertEqual("a", missing(["d", "a"], "a\nd\n"))
        self.assertEqual("a.c", missing(["a.c"], "abc\n"))

    def test_a_wrong_page_fails(self):
        page = ROOT / "docs" / "none.md"
        with self.assertRaisesRegex(AssertionError, "none.md:1: status"):
            Pages().run_page(page, [(1, "kvcove frobnicate\n", [])])
        with self.assertRaisesRegex(AssertionError, "the page says 'kvcove 9'"):
            Pages().run_page(page, [(1, "kvcove --version\n", ["kvcove 9"])])


if __name__ == "__main__":
    KVCOVE = os.path.abspath(sys.argv.pop(1))
    unittest.main()
