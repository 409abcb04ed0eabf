# SPDX-License-Identifier: Apache-2.0
"""Command lines as the rival's programs take them: ``-name value``, ``--name=value``, ``-noname``."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any, NoReturn

from kvcove import _command

__all__ = ["LOG_FLAGS", "Flag", "Values", "fail", "log_arguments", "parse"]


@dataclass
class Flag:
    """One flag.

    Attributes
    ----------
    default : str or bool
        A bool makes it a switch.
    help : str
        One line.
    refused : str
        Why it is refused when it is switched on or set to anything but its default; empty: it is
        not.
    ignored : bool
        It is taken and means nothing; one warning says so.
    instead : str
        What is there in place of what it asks for; the warning says so.
    """

    default: str | bool
    help: str = ""
    refused: str = ""
    ignored: bool = False
    instead: str = ""


class Values(dict[str, Any]):
    """The values of all flags, and which of them were given."""

    given: set[str]

    def port(self, name: str) -> int:
        """Return the value of a flag that is a port.

        Raises
        ------
        ValueError
            It is none.
        """
        text = str(self[name])
        if not text.isascii() or not text.isdigit() or int(text) > 65535:
            raise ValueError(f"-{name}={text}: a port is wanted, from 0 to 65535")
        return int(text)


# Takes every unknown flag with a warning: a newer original may have it.
_LENIENT = "KVCOVE_MOONCAKE_LENIENT"
_HELP = {"h", "help", "helpfull", "helpmatch", "helpon", "helppackage", "helpshort", "helpxml"}
_ANOTHER_FLAG = re.compile("--|-[A-Za-z]")
_TRUE = {"true", "1", "yes", "t", "y"}
_FALSE = {"false", "0", "no", "f", "n"}

# What those programs' logging library takes; log lines of kvcove go to stderr in any case.
LOG_FLAGS = {
    "v": Flag("0", "1 and more: kvcove logs at level debug"),
    "logtostderr": Flag(False, "log lines go to stderr in any case"),
    "alsologtostderr": Flag(False, "log lines go to stderr in any case"),
    **{
        name: Flag("", ignored=True)
        for name in (
            *("alsologtoemail", "log_backtrace_at", "log_dir", "log_link", "logbuflevel"),
            *("logbufsecs", "logemaillevel", "logfile_mode", "logmailer", "max_log_size"),
            *("minloglevel", "stderrthreshold", "vmodule"),
            *("tab_completion_columns", "tab_completion_word"),
        )
    },
    **{
        name: Flag(False, ignored=True)
        for name in (
            *(
                "colorlogtostderr",
                "colorlogtostdout",
                "log_prefix",
                "log_utc_time",
                "log_year_in_prefix",
            ),
            *("drop_log_memory", "logtostdout", "stop_logging_if_full_disk"),
            *("symbolize_stacktrace", "timestamp_in_logfile_name"),
        )
    },
    "fromenv": Flag("", "flags, with commas between them, whose values are in $FLAGS_name"),
    "tryfromenv": Flag("", "the same; a variable that is not set sets no flag"),
    "flagfile": Flag("", "files with a line -name=value a flag, with commas between the files"),
    "undefok": Flag("", "flags, with commas between them, that need not be known"),
}


def log_arguments(values: Mapping[str, Any]) -> list[str]:
    """Return the arguments of ``kvcove`` that stand for :data:`LOG_FLAGS`.

    Raises
    ------
    ValueError
        ``-v`` is no number.
    """
    level = str(values["v"])
    if not level.lstrip("-").isdigit():
        raise ValueError(f"-v={level}: a number is wanted")
    return ["--log", "debug"] if int(level) > 0 else []


def fail(program: str, message: str) -> NoReturn:
    """Say what is wrong and end with status 2."""
    print(f"{program}: {message}", file=sys.stderr)
    raise SystemExit(2)


def _switch(program: str, name: str, text: str) -> bool:
    if text.lower() not in _TRUE | _FALSE:
        fail(program, f"-{name}={text}: true or false is wanted")
    return text.lower() in _TRUE


def _help(program: str, flags: Mapping[str, Flag], about: str) -> NoReturn:
    print(f"{program}: {about}\n\nflags:")
    for name, flag in flags.items():
        if flag.help and not flag.ignored and not flag.refused:
            print(f"  -{name:<32} {flag.help} (default: {flag.default!r})")
    print("\ntaken, with something else in their place:")
    for name, flag in flags.items():
        if flag.instead:
            print(f"  -{name:<32} {flag.instead}")
    print("\nrefused:")
    for name, flag in flags.items():
        if flag.refused:
            print(f"  -{name:<32} {flag.refused}")
    taken = [name for name, flag in flags.items() if flag.ignored]
    print(f"\ntaken and meaning nothing here: {', '.join(taken)}")
    print(f"\n{_LENIENT}=1 in the environment: unknown flags are taken with a warning")
    raise SystemExit(0)


def _version(program: str) -> NoReturn:
    said = subprocess.run(
        [_command.path(), "--version"], capture_output=True, text=True, check=True
    )
    print(f"{program} of {said.stdout.strip()}")
    raise SystemExit(0)


def _unknown(name: str, flags: Iterable[str]) -> str:
    near = get_close_matches(name, flags, 1)
    return f"; did you mean {near[0]}?" if near else ""


def _from_file(program: str, path: str, flags: Mapping[str, Flag]) -> dict[str, str | bool]:
    """Read flags from a file: a JSON object, or lines ``name: value`` (flat YAML)."""
    where = f"-config_path={path}"
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
        pairs = json.loads(text) if text.lstrip().startswith("{") else _flat_yaml(text)
    except (OSError, ValueError) as error:
        fail(program, f"{where}: {error}")
    values: dict[str, str | bool] = {}
    for name, value in pairs.items():
        if name in ("flagfile", "fromenv", "tryfromenv"):
            fail(program, f"{where}: {name}: this file names no other; give it as -{name}")
        if name == "config_path" or isinstance(value, dict | list):
            fail(program, f"{where}: {name}: a number, a text, true or false is wanted")
        if name not in flags:
            # Launchers put keys of their own into this file, so they cannot be errors.
            hint = _unknown(name, flags)
            print(f"{program}: warning: {where}: unknown key {name}{hint}", file=sys.stderr)
            continue
        text = str(value).lower() if isinstance(value, bool) else str(value)
        switch = isinstance(flags[name].default, bool)
        values[name] = _switch(program, name, text) if switch else text
    return values


def _flat_yaml(text: str) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        content = line.split(" #")[0].rstrip()
        if not content.strip() or content.lstrip().startswith("#") or content == "---":
            continue
        name, colon, value = content.partition(":")
        value = value.strip()
        if not colon or name != name.strip() or value[:1] in ("{", "[", "|", ">", "&", "*"):
            raise ValueError(f"line {number}: 'name: value' is wanted, not {line.strip()!r}")
        if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"":
            value = value[1:-1]
        pairs[name] = value
    return pairs


def _value(program: str, name: str, rest: list[str]) -> str:
    """Take the value of a flag from the words behind it."""
    if not rest:
        fail(program, f"-{name} wants a value: -{name}=VALUE")
    if _ANOTHER_FLAG.match(rest[0]):
        fail(
            program,
            f"-{name} wants a value, and {rest[0]} is another flag; -{name}={rest[0]} if it is the value",
        )
    return rest.pop(0)


def _undefined(arguments: Sequence[str]) -> set[str]:
    """Return the flags that -undefok names, wherever it is."""
    names: set[str] = set()
    for word, following in zip(arguments, [*arguments, ""][1:], strict=True):
        name, equals, text = word.lstrip("-").partition("=")
        if word.startswith("-") and name == "undefok":
            names.update((text if equals else following).replace("-", "_").split(","))
    return names


def _take_unknown(
    program: str,
    word: str,
    rest: list[str],
    flags: Mapping[str, Flag],
    may_be_unknown: Collection[str],
    in_file: bool,
) -> None:
    """Leave out a flag that is not known, with its value, or end the program."""
    name = word.lstrip("-").partition("=")[0].replace("-", "_")
    if in_file:
        # Several programs share such a file, and each reads the flags that it has.
        hint = _unknown(f"-{name}", [f"-{known}" for known in flags])
        print(f"{program}: warning: unknown flag -{name} is ignored{hint}", file=sys.stderr)
    elif name not in may_be_unknown:
        if os.environ.get(_LENIENT, "").lower() not in _TRUE:
            hint = _unknown(f"-{name}", [f"-{known}" for known in flags])
            fail(
                program,
                f"unknown flag -{name}{hint} ({_LENIENT}=1 takes unknown flags with a warning)",
            )
        print(f"{program}: warning: unknown flag -{name} is ignored ({_LENIENT})", file=sys.stderr)
    if "=" not in word and rest and not _ANOTHER_FLAG.match(rest[0]):
        rest.pop(0)  # no program of these takes words that are no values


def _of_this_program(program: str, path: str) -> Iterable[tuple[int, str]]:
    """Yield the flags of a flag file that are for ``program``, each with the number of its line.

    A line that is no flag lists programs, as patterns: the flags below it are for these alone.
    """
    for_this, listing = True, False
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            content = line.strip()
            if not content or content.startswith("#"):
                continue
            if content.startswith("-"):
                listing = False
                if for_this:
                    yield number, content
            else:
                named = any(fnmatchcase(program, pattern) for pattern in content.split())
                for_this = named or (listing and for_this)
                listing = True


def _from_flag_files(
    program: str, paths: str, flags: Mapping[str, Flag], about: str, within: tuple[str, ...]
) -> dict[str, str | bool]:
    """Read the files of ``-flagfile``, which the files ``within`` name."""
    given: dict[str, str | bool] = {}
    for path in paths.split(","):
        if path in within:
            fail(program, f"-flagfile={path}: the file names itself: {', '.join(within)}")
        try:
            lines = list(_of_this_program(program.partition(":")[0], path))
        except (OSError, ValueError) as error:
            fail(program, f"-flagfile={path}: {error}")
        for number, line in lines:
            at = f"{program}: {path}:{number}"
            if len(line.partition("=")[0].split()) > 1:
                fail(at, f"-name=value is wanted, not {line!r}")
            given.update(_arguments(at, [line], flags, about, (*within, path)))
    return given


def _from_environment(
    program: str,
    way: str,
    names: str,
    flags: Mapping[str, Flag],
    about: str,
    may_be_unknown: Collection[str],
    within: tuple[str, ...],
) -> dict[str, str | bool]:
    """Read the flags that ``-fromenv`` or ``-tryfromenv`` names, each from ``$FLAGS_name``."""
    given: dict[str, str | bool] = {}
    for name in names.replace("-", "_").split(","):
        variable = f"FLAGS_{name}"
        if name in ("fromenv", "tryfromenv"):
            fail(program, f"-{way}={name}: a flag of the environment names no others of it")
        if name not in flags:
            _take_unknown(program, f"-{name}=", [], flags, may_be_unknown, in_file=bool(within))
        elif variable in os.environ:
            word = f"-{name}={os.environ[variable]}"
            given.update(_arguments(f"{program}: ${variable}", [word], flags, about, within))
        elif way == "fromenv":
            fail(program, f"-fromenv={name}: ${variable} is not set")
    return given


def _arguments(
    program: str,
    arguments: list[str],
    flags: Mapping[str, Flag],
    about: str,
    within: tuple[str, ...] = (),
) -> dict[str, str | bool]:
    """Return the flags that are given, the last value of each.

    ``within`` are the flag files that the arguments come from, and ``program`` then says where in
    them.
    """
    given: dict[str, str | bool] = {}
    rest = list(arguments)
    may_be_unknown = _undefined(arguments)
    while rest:
        word = rest.pop(0)
        if not word.startswith("-") or word in ("-", "--"):
            fail(program, f"{word!r} is no flag")
        name, equals, text = word.lstrip("-").partition("=")
        name = name.replace("-", "_")
        if name in _HELP:
            _help(program, flags, about)
        if name == "version":
            _version(program)
        if (
            name not in flags
            and name.startswith("no")
            and isinstance(flags.get(name[2:], Flag("")).default, bool)
        ):
            name, equals, text = name[2:], "=", "false"
        if name not in flags:
            _take_unknown(program, word, rest, flags, may_be_unknown, in_file=bool(within))
        elif isinstance(flags[name].default, bool):
            if not equals and rest and rest[0].lower() in _TRUE | _FALSE:
                text = rest.pop(0)
                equals = "="
            given[name] = _switch(program, name, text) if equals else True
        else:
            value = text if equals else _value(program, name, rest)
            if name == "flagfile" and value:
                given.update(_from_flag_files(program, value, flags, about, within))
            elif name in ("fromenv", "tryfromenv") and value:
                given.update(
                    _from_environment(program, name, value, flags, about, may_be_unknown, within)
                )
            else:
                given[name] = value
    return given


def parse(program: str, arguments: list[str], flags: Mapping[str, Flag], about: str) -> Values:
    """Return the values of all flags.

    Prints help for ``-help``. An unknown flag ends the program with the nearest right one, unless
    ``-undefok`` names it or the environment has ``KVCOVE_MOONCAKE_LENIENT=1``. The flags of a
    ``-flagfile``, ``-fromenv`` and ``-tryfromenv`` count as if they were in its place: of a flag that
    is given twice, the last value wins. What the command line does not say, the file of
    ``-config_path`` may.
    """
    given = _arguments(program, arguments, flags, about)
    if given.get("config_path"):
        given = {**_from_file(program, str(given["config_path"]), flags), **given}
    for name, value in given.items():
        if flags[name].refused and value != flags[name].default:
            fail(program, f"-{name}: {flags[name].refused}")
    warned = sorted(name for name, value in given.items() if value != flags[name].default)
    if ignored := ", ".join(f"-{name}" for name in warned if flags[name].ignored):
        print(f"{program}: warning: {ignored}: taken, and meaning nothing here", file=sys.stderr)
    for name in warned:
        if instead := flags[name].instead:
            print(f"{program}: warning: -{name}: {instead}", file=sys.stderr)
    values = Values({name: flag.default for name, flag in flags.items()})
    values.update(given)
    values.given = set(given)
    return values
