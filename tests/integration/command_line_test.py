#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The command line is kept: tests/integration/command_line_test.py KVCOVE [--all | --write]

Scripts, units and configurations of users name commands and options, and rely on their defaults. tests/integration/command_line.txt lists
these as --help shows them; --write writes it anew. A line that is gone or changed breaks a user of the last release: the CHANGELOG must say
so. What is new may still change until a release, which asks with --all that it is listed. Commands that measure (bench, replay, policy) are
not listed.
"""

import pathlib
import sys

SOURCES = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(SOURCES / "scripts"))
import command_pages  # noqa: E402

LISTED = pathlib.Path(__file__).with_name("command_line.txt")
MEASURING = {"bench", "replay", "policy"}


def lines(kvcove):
    for command in command_pages.commands_of(command_pages.read(kvcove)):
        if command.path[:1] and command.path[0] in MEASURING:
            continue
        yield " ".join(("kvcove", *command.path))
        for title, items in command.sections:
            for item in items:
                if title != "Subcommands" and "--help" not in item.names:
                    yield f"  {' '.join(item.term.split())}"


def with_commands(told):
    """Each line with the command that it belongs to."""
    command = ""
    for line in told:
        if line.startswith(" "):
            yield f"{command} {line.strip()}"
        else:
            command = line
            yield line


def main():
    shown = list(lines(str(pathlib.Path(sys.argv[1]).resolve())))
    if "--write" in sys.argv[2:]:
        LISTED.write_text("\n".join(shown) + "\n")
        return 0
    listed, has = (set(with_commands(told)) for told in (LISTED.read_text().splitlines(), shown))
    wrong = [f"gone or changed, and users may rely on it: {line}" for line in sorted(listed - has)]
    if "--all" in sys.argv[2:]:
        wrong += [f"new, and not in tests/integration/command_line.txt: {line}" for line in sorted(has - listed)]
    if wrong:
        print("\n".join(wrong))
        print("If it is meant: tests/integration/command_line_test.py KVCOVE --write, and the CHANGELOG says what breaks")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
