# SPDX-License-Identifier: Apache-2.0
"""Command lines as the rival's programs take them: ``-name value``, ``--name=value``, ``-noname``."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import NoReturn

__all__ = ["Flag", "fail", "parse"]


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
    """

    default: str | bool
    help: str = ""
    refused: str = ""
    ignored: bool = False


_TRUE = {"true", "1", "yes", "t", "y"}
_FALSE = {"false", "0", "no", "f", "n"}


def fail(program: str, message: str) -> NoReturn:
    """Say what is wrong and end with status 2."""
    print(f"{program}: {message}", file=sys.stderr)
    raise SystemExit(2)


def _switch(program: str, name: str, text: str) -> bool:
    if text.lower() not in _TRUE | _FALSE:
        fail(program, f"-{name}={text}: true or false is wanted")
    return text.lower() in _TRUE


def parse(
    program: str, arguments: list[str], flags: Mapping[str, Flag], about: str
) -> dict[str, str | bool]:
    """Return the values of all flags.

    Prints help for ``-help``. Unknown flags end the program with the nearest right one.
    """
    values: dict[str, str | bool] = {name: flag.default for name, flag in flags.items()}
    given: list[str] = []
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        if word in ("-h", "-help", "--help", "--helpfull", "-helpshort"):
            print(f"{program}: {about}\n\nflags:")
            for name, flag in flags.items():
                if flag.help and not flag.ignored and not flag.refused:
                    print(f"  -{name:<32} {flag.help} (default: {flag.default!r})")
            taken = [name for name, flag in flags.items() if flag.ignored]
            print(f"taken and meaning nothing here: {', '.join(taken)}")
            raise SystemExit(0)
        if not word.startswith("-") or word in ("-", "--"):
            fail(program, f"{word!r} is no flag")
        name, equals, text = word.lstrip("-").partition("=")
        name = name.replace("-", "_")
        if (
            name not in flags
            and name.startswith("no")
            and isinstance(flags.get(name[2:], Flag("")).default, bool)
        ):
            name, equals, text = name[2:], "=", "false"
        if name not in flags:
            near = get_close_matches(name, flags, 1)
            hint = f"; did you mean -{near[0]}?" if near else ""
            fail(program, f"unknown flag -{name}{hint}")
        flag = flags[name]
        if isinstance(flag.default, bool):
            if not equals and rest and rest[0].lower() in _TRUE | _FALSE:
                text = rest.pop(0)
                equals = "="
            values[name] = _switch(program, name, text) if equals else True
        else:
            if not equals:
                if not rest:
                    fail(program, f"-{name} wants a value")
                text = rest.pop(0)
            values[name] = text
        given.append(name)
    for name in given:
        flag = flags[name]
        if flag.refused and values[name] != flag.default:
            fail(program, f"-{name}: {flag.refused}")
    ignored = sorted({name for name in given if flags[name].ignored})
    if ignored:
        names = ", ".join(f"-{name}" for name in ignored)
        print(f"{program}: warning: {names}: taken, and meaning nothing here", file=sys.stderr)
    return values
