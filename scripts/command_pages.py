#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Manual pages and completion for bash and zsh, made from the command's own --help.

command_pages.py KVCOVE DIRECTORY writes, below DIRECTORY, what a package installs below its prefix:

    share/man/man1/kvcove*.1.gz                      one page for each command
    share/bash-completion/completions/kvcove
    share/zsh/vendor-completions/_kvcove

The files depend on the command alone: the same command gives the same bytes.
"""

import argparse
import dataclasses
import gzip
import os
import pathlib
import re
import subprocess
import sys

COLUMN = 30  # where the parser begins the text of an option
# The parser shows no type for it.
WITH_VALUE = {"--config"}
TYPES = r"TEXT|INT|UINT|FLOAT|NUMBER|BOOLEAN|ENUM|PATH|FILE|DIR"


@dataclasses.dataclass
class Item:
    """An option, positional or subcommand of a help text."""

    term: str
    text: str

    @property
    def names(self):
        return [name for name in self.term.split()[0].split(",") if name.startswith("-")]

    @property
    def takes_value(self):
        return bool(WITH_VALUE & set(self.names)) or bool(re.search(rf" (?:{TYPES})\b", self.term))

    @property
    def choices(self):
        listed = re.search(r":\{([^}]*)\}", self.term)
        return listed.group(1).split(",") if listed else []


@dataclasses.dataclass
class Help:
    """A help text, as `kvcove PATH... --help` prints it."""

    path: tuple
    description: str = ""
    usage: str = ""
    sections: list = dataclasses.field(default_factory=list)  # of a title and its items
    footer: str = ""
    commands: list = dataclasses.field(default_factory=list)  # the Help of each subcommand

    @property
    def name(self):
        return "-".join(("kvcove", *self.path))

    def items(self, wanted):
        return [item for title, items in self.sections for item in items if wanted(title, item)]

    @property
    def options(self):
        return self.items(lambda _, item: bool(item.names))

    @property
    def subcommands(self):
        return self.items(lambda title, _: title == "Subcommands")


def item_of(line):
    """The item that begins in this line: the parser breaks the line behind a term of 30 bytes and more."""
    term, text = line[:COLUMN], line[COLUMN:]
    if line[COLUMN - 1 : COLUMN] not in ("", " ") or re.match(r"\.\.\.|REQUIRED|Needs:|Excludes:", text):
        term, text = line, ""
    return Item(term.strip(), text.strip())


def parse(path, text):
    parsed = Help(path)
    lines = iter(text.splitlines())
    described = []
    for line in lines:
        if line.startswith("Usage: "):
            parsed.usage = line.removeprefix("Usage: ")
            break
        described.append(line)
    parsed.description = " ".join(described).strip()
    footer = []
    for line in lines:
        if re.fullmatch(r"\S.*:", line):
            parsed.sections.append((line[:-1], []))
        elif line.startswith(" " * COLUMN) and parsed.sections and parsed.sections[-1][1]:
            item = parsed.sections[-1][1][-1]
            item.text = f"{item.text} {line.strip()}".strip()
        elif re.match(r"  \S", line) and parsed.sections:
            parsed.sections[-1][1].append(item_of(line))
        elif line.strip():
            footer.append(line.strip())
    parsed.footer = " ".join(footer)
    if not parsed.usage or not parsed.options:
        raise SystemExit(f"'kvcove {' '.join(path)} --help' is not as this script reads it:\n{text}")
    return parsed


def read(kvcove, path=()):
    """The help of a command and of all commands below it."""
    # What stands in the reader's environment is no default, and no line ends early.
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("KVCOVE_") and name != "XDG_RUNTIME_DIR"
    }
    asked = subprocess.run(
        [kvcove, *path, "--help"],
        env=environment | {"COLUMNS": "120", "LC_ALL": "C.UTF-8"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if asked.returncode != 0:
        raise SystemExit(f"'{kvcove} {' '.join(path)} --help' failed: {asked.stderr}")
    parsed = parse(path, re.sub(rf"/tmp/kvcove-{os.getuid()}\b", "/tmp/kvcove-UID", asked.stdout))
    parsed.commands = [read(kvcove, (*path, item.term.split()[0])) for item in parsed.subcommands]
    return parsed


# ---- manual pages


def roff(text):
    escaped = text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq")
    return "\\&" + escaped if escaped.startswith(".") else escaped


def roff_term(term):
    """Names in bold, the rest as it is."""
    first, _, rest = term.partition(" ")
    bold = ", ".join(f"\\fB{roff(name)}\\fR" for name in first.split(","))
    rest = re.sub(",(?=[^ ])", r",\\:", roff(rest))  # a long list without blanks may be broken there
    return f"{bold} {rest}".rstrip()


def roff_items(items):
    for item in items:
        yield ".TP"
        yield roff_term(item.term)
        yield roff(item.text) or "\\&"


def roff_sections(parsed):
    """The sections of a help text, without its commands."""
    for title, items in parsed.sections:
        if items and title != "Subcommands":
            yield f'.SH "{roff(title.upper())}"'
            yield from roff_items(items)


def lower_first(text):
    return text[:1].lower() + text[1:]


def man_page(parsed, version, pages):
    yield f'.TH "{parsed.name.upper()}" "1" "" "kvcove {version}" "kvcove"'
    yield ".SH NAME"
    sentence = re.split(r"(?<=[a-z])\.(?: |$)|: ", parsed.description)[0]
    yield f"{roff(parsed.name)} \\- {roff(lower_first(sentence).rstrip('.'))}"
    yield ".SH SYNOPSIS"
    yield roff(parsed.usage)
    yield ".SH DESCRIPTION"
    yield roff(parsed.description)
    if parsed.footer:
        yield ".PP"
        yield roff(parsed.footer)
    yield from roff_sections(parsed)
    if parsed.commands:
        yield ".SH COMMANDS"
    for command in parsed.commands:
        if not parsed.path:
            yield ".TP"
            yield f"\\fB{roff(command.name)}\\fR(1)"
            yield roff(command.description)
            continue
        yield f'.SS "{roff(" ".join(("kvcove", *command.path)))}"'
        yield roff(command.description)
        yield ".PP"
        yield roff(command.usage)
        for _, items in command.sections:
            yield from roff_items(item for item in items if "--help" not in item.names)
        for deeper in command.commands:
            yield ".TP"
            yield f"\\fB{roff(' '.join(('kvcove', *deeper.path)))}\\fR"
            yield roff(deeper.description)
    if parsed.path in ((), ("serve",), ("master",), ("owner",), ("run",)):
        yield ".SH ENVIRONMENT"
        yield (
            "\\fBKVCOVE_NAME\\fR stands for the option \\fB\\-\\-name\\fR of a command, such as "
            "\\fBKVCOVE_MAX_OBJECTS\\fR for \\fB\\-\\-max\\-objects\\fR. It goes over the file of "
            "\\fB\\-\\-config\\fR, and an option of the command line over both. "
            "\\fBKVCOVE_ADMIN_LISTEN\\fR stands for a server's \\fB\\-\\-admin\\fR."
        )
    yield ".SH EXIT STATUS"
    for status, meaning in (
        ("0", "done"),
        ("1", "it ran and found something wrong"),
        ("2", "it could not run; the reason is on standard error"),
    ):
        yield from (".TP", f"\\fB{status}\\fR", meaning)
    yield ".SH SEE ALSO"
    yield ", ".join(f"\\fB{roff(page)}\\fR(1)" for page in pages if page != parsed.name)


# ---- completion


def commands_of(parsed):
    """A help text and all below it."""
    yield parsed
    for command in parsed.commands:
        yield from commands_of(command)


def options_of(parsed, root):
    """The options of a command, and those that every command has."""
    own = {name for item in parsed.options for name in item.names}
    return parsed.options + [item for item in root.options if parsed.path and not own & set(item.names)]


def quoted(text):
    return "'" + text.replace("'", "'\\''") + "'"


# zsh has parameters of its own that are named path, commands and options.
COMMON = r"""
# Sets $at to the command of the words before the cursor, and $value to the option whose value the cursor is at. Returns 1 behind --.
_kvcove_where() {
  local word subcommands flags
  at= value=
  for word in "$@"; do
    if [[ $value ]]; then
      value=
    elif [[ $word == -- ]]; then
      return 1
    elif [[ $word == -* ]]; then
      _kvcove_takes_value "$at" "$word" && value=$word
    else
      _kvcove_table "$at"
      [[ " $subcommands " == *" $word "* ]] && at="${at:+$at }$word"
    fi
  done
  return 0
}
"""

BASH = r"""
_kvcove() {
  local cur=${COMP_WORDS[COMP_CWORD]} at value subcommands flags choices
  COMPREPLY=()
  if ! _kvcove_where "${COMP_WORDS[@]:1:COMP_CWORD-1}"; then
    [[ ${COMP_WORDS[COMP_CWORD-1]} == -- ]] && mapfile -t COMPREPLY < <(compgen -c -- "$cur")
    return
  fi
  if [[ $value ]]; then
    _kvcove_choices "$at" "$value"
    mapfile -t COMPREPLY < <(compgen -W "$choices" -- "$cur")
    return
  fi
  _kvcove_table "$at"
  if [[ $cur == -* ]]; then
    mapfile -t COMPREPLY < <(compgen -W "$flags" -- "$cur")
  else
    mapfile -t COMPREPLY < <(compgen -W "$subcommands" -- "$cur")
  fi
}
complete -o bashdefault -o default -F _kvcove kvcove
"""

ZSH = r"""
_kvcove() {
  local at value subcommands flags choices
  local -a described
  if ! _kvcove_where "${(@)words[2,CURRENT-1]}"; then
    _normal
    return
  fi
  if [[ $value ]]; then
    _kvcove_choices "$at" "$value"
    if [[ $choices ]]; then
      described=(${=choices})
      _describe value described
    else
      _files
    fi
    return
  fi
  if [[ ${words[CURRENT]} == -* ]]; then
    _kvcove_described_options "$at"
    _describe -o option described
  else
    _kvcove_table "$at"
    if [[ $subcommands ]]; then
      _kvcove_described_commands "$at"
      _describe command described
    else
      _files
    fi
  fi
}
_kvcove "$@"
"""


def tables(root):
    """The functions that both shells have: what a command has, which options take a value, and which values."""
    yield "_kvcove_table() {"
    yield "  subcommands= flags="
    yield "  case $1 in"
    for command in commands_of(root):
        names = " ".join(name for item in options_of(command, root) for name in item.names)
        subcommands = " ".join(item.term.split()[0] for item in command.subcommands)
        yield f"    {quoted(' '.join(command.path))}) subcommands={quoted(subcommands)} flags={quoted(names)} ;;"
    yield "  esac"
    yield "}"
    yield "_kvcove_takes_value() {"
    yield "  case \"$1|$2\" in"
    for command in commands_of(root):
        path = " ".join(command.path)
        names = [n for item in options_of(command, root) if item.takes_value for n in item.names]
        if names:
            yield "    " + "|".join(quoted(f"{path}|{name}") for name in names) + ") return 0 ;;"
    yield "  esac"
    yield "  return 1"
    yield "}"
    yield "_kvcove_choices() {"
    yield "  choices="
    yield "  case \"$1|$2\" in"
    for command in commands_of(root):
        path = " ".join(command.path)
        for item in options_of(command, root):
            if item.choices:
                names = "|".join(quoted(f"{path}|{name}") for name in item.names)
                yield f"    {names}) choices={quoted(' '.join(item.choices))} ;;"
    yield "  esac"
    yield "}"
    yield COMMON.strip()


def bash_completion(root):
    yield "# Completion of kvcove for bash, made from its --help."
    yield from tables(root)
    yield BASH.strip()


def described(pairs):
    return " ".join(quoted(name.replace(":", "\\:") + ":" + text) for name, text in pairs)


def zsh_completion(root):
    yield "#compdef kvcove"
    yield "# Completion of kvcove for zsh, made from its --help."
    yield from tables(root)
    for what in ("commands", "options"):
        yield f"_kvcove_described_{what}() {{"
        yield "  described=()"
        yield "  case $1 in"
        for command in commands_of(root):
            if what == "commands":
                pairs = [(item.term.split()[0], item.text) for item in command.subcommands]
            else:
                pairs = [(n, item.text) for item in options_of(command, root) for n in item.names]
            if pairs:
                yield f"    {quoted(' '.join(command.path))}) described=({described(pairs)}) ;;"
        yield "  esac"
        yield "}"
    yield ZSH.strip()


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kvcove", help="the command")
    parser.add_argument("directory", type=pathlib.Path, help="where the files are written")
    arguments = parser.parse_args()
    kvcove = str(pathlib.Path(arguments.kvcove).resolve())
    version = subprocess.run([kvcove, "--version"], capture_output=True, text=True, check=True).stdout.split()[1]
    root = read(kvcove)
    share = arguments.directory / "share"
    pages = [root, *root.commands]
    names = [page.name for page in pages]
    (share / "man/man1").mkdir(parents=True, exist_ok=True)
    for page in pages:
        text = "\n".join(man_page(page, version, names)) + "\n"
        packed = gzip.compress(text.encode(), mtime=0)
        (share / "man/man1" / f"{page.name}.1.gz").write_bytes(packed)
    write(share / "bash-completion/completions/kvcove", "\n".join(bash_completion(root)) + "\n")
    write(share / "zsh/vendor-completions/_kvcove", "\n".join(zsh_completion(root)) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
