# SPDX-License-Identifier: Apache-2.0
"""Regular expressions as the pool's patterns, in which ``*`` stands for any bytes and ``?`` for one.

Owners walk over their memory and their disks themselves for a pattern; for an expression that is none
the caller must list all keys.
"""

from __future__ import annotations

import importlib
import itertools
import re
from collections.abc import Iterable
from typing import Any

__all__ = ["patterns_of"]

_MOST = 64  # patterns of one expression: each is a walk of every owner
_BEGIN, _END = "^", "$"  # in a list of parts; a literal is a part of one byte
_Parts = tuple[bytes | str, ...]


class _NoPattern(Exception):
    """The expression says more than patterns can."""


def patterns_of(expression: bytes) -> list[str] | None:
    """Return patterns that together match the keys in which an expression is found, or None.

    Parameters
    ----------
    expression : bytes
        One that :func:`re.compile` takes.
    """
    if re.compile(expression).flags:  # such as (?i)
        return None
    try:
        tree = importlib.import_module("re._parser").parse(expression)
        found = {_finished(parts) for parts in _sequence(tree)}
    except (ImportError, AttributeError, _NoPattern):
        return None
    return ["*"] if "*" in found else sorted(found)


def _finished(parts: _Parts) -> str:
    begins, ends = parts[:1] == (_BEGIN,), parts[-1:] == (_END,)
    inner = parts[1 if begins else 0 : len(parts) - 1 if ends else len(parts)]
    if _BEGIN in inner or _END in inner or (begins and ends and len(parts) == 1):
        raise _NoPattern
    text = b"".join(part for part in inner if isinstance(part, bytes))
    text = (b"" if begins else b"*") + text + (b"" if ends else b"*")
    while b"**" in text:
        text = text.replace(b"**", b"*")
    try:
        return text.decode()
    except UnicodeDecodeError:  # a piece of a character
        raise _NoPattern from None


def _sequence(tree: Iterable[Any]) -> list[_Parts]:
    """Return every sequence of parts that a part of an expression stands for."""
    found: list[_Parts] = [()]
    for kind, argument in tree:
        ways = _ways(str(kind), argument)
        if len(found) * len(ways) > _MOST:
            raise _NoPattern
        found = [one + way for one, way in itertools.product(found, ways)]
    return found


def _ways(kind: str, argument: Any) -> list[_Parts]:
    if kind == "LITERAL":
        return [(_literal(argument),)]
    if kind == "ANY":
        return [(b"?",)]
    if kind == "AT":
        at = str(argument)
        if at in ("AT_BEGINNING", "AT_BEGINNING_STRING"):
            return [(_BEGIN,)]
        if at in ("AT_END", "AT_END_STRING"):
            return [(_END,)]
    if kind == "IN":
        return [(_literal(byte),) for byte in _members(argument)]
    if kind == "BRANCH":
        return [way for branch in argument[1] for way in _sequence(branch)]
    if kind == "SUBPATTERN" and not argument[1] and not argument[2]:
        return _sequence(argument[3])
    if kind in ("MAX_REPEAT", "MIN_REPEAT"):
        return _repeated(*argument)
    raise _NoPattern


def _literal(byte: int) -> bytes:
    if byte in b"*?":  # there is no pattern for the two themselves
        raise _NoPattern
    return bytes([byte])


def _members(members: Iterable[Any]) -> list[int]:
    found: set[int] = set()
    for kind, argument in members:
        if str(kind) == "LITERAL":
            found.add(argument)
        elif str(kind) == "RANGE":
            found.update(range(argument[0], argument[1] + 1))
        elif str(kind) == "CATEGORY" and str(argument) == "CATEGORY_DIGIT":
            found.update(b"0123456789")
        else:
            raise _NoPattern
    if len(found) > _MOST:
        raise _NoPattern
    return sorted(found)


def _repeated(least: int, most: Any, tree: Iterable[Any]) -> list[_Parts]:
    once = _sequence(tree)
    if once == [(b"?",)]:
        if str(most) == "MAXREPEAT":
            if least > _MOST:
                raise _NoPattern
            return [(b"?",) * least + (b"*",)]
    elif str(most) == "MAXREPEAT":
        raise _NoPattern
    if most - least >= _MOST or most > _MOST:
        raise _NoPattern
    ways: list[_Parts] = []
    for count in range(least, most + 1):
        ways += _sequence_of(once, count)
    return ways


def _sequence_of(once: list[_Parts], count: int) -> list[_Parts]:
    if len(once) ** count > _MOST:
        raise _NoPattern
    return [tuple(itertools.chain(*ways)) for ways in itertools.product(once, repeat=count)]
