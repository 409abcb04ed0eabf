# SPDX-License-Identifier: Apache-2.0
"""Configuration files: what they say, and on which line."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from kvcove.launch._errors import ConfigError, Problem

__all__ = ["Document", "KeyPath", "Statement", "at", "dump", "read", "toml_statements"]

KeyPath = tuple[str, ...]


@dataclass(frozen=True)
class Document:
    """A configuration and where it came from.

    Attributes
    ----------
    data : dict
        As the parser gives it.
    source : str
        The file as the user named it; empty for a configuration that a program made.
    language : str
        ``toml`` or ``yaml``: how to write down what would be right.
    lines : dict of tuple of str to int
        The line, from 1, of each key, by its path.
    """

    data: dict[str, Any]
    source: str = ""
    language: str = "toml"
    lines: Mapping[KeyPath, int] = field(default_factory=dict)

    def problem(self, path: KeyPath, text: str) -> Problem:
        """Return what is wrong at a path; its line is that of the nearest key above it."""
        line = 0
        for depth in range(len(path), 0, -1):
            line = self.lines.get(path[:depth], 0)
            if line:
                break
        return Problem(".".join(path), text, self.source, line)


def read(file: str | Path, language: str | None = None) -> Document:
    """Read a TOML or YAML file, by its suffix unless told otherwise.

    Raises
    ------
    ConfigError
        It cannot be read, or is not what its suffix says.
    """
    path = Path(file)
    source = str(file)
    if language is None:
        suffixes = {".toml": "toml", ".yaml": "yaml", ".yml": "yaml"}
        language = suffixes.get(path.suffix.lower())
        if language is None:
            raise ConfigError([Problem("", "a name that ends in .toml, .yaml or .yml", source)])
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError([Problem("", f"cannot be read: {reason}", source)]) from error
    return parse(text, language, source)


def parse(text: str, language: str, source: str = "") -> Document:
    """Return the document of a text.

    Raises
    ------
    ConfigError
        It is no such text; the message has the line.
    """
    if language == "toml":
        try:
            data = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise ConfigError([Problem("", f"this is no TOML: {error}", source)]) from error
        lines: dict[KeyPath, int] = {}
        for statement in toml_statements(text):
            for path in statement.paths:
                lines.setdefault(path, statement.line)
        return Document(data, source, "toml", lines)
    return _parse_yaml(text, source)


def at(data: Mapping[str, Any], path: KeyPath) -> Any:
    """Return what is at a path, or None."""
    found: Any = data
    for key in path:
        if not isinstance(found, Mapping) or key not in found:
            return None
        found = found[key]
    return found


def _parse_yaml(text: str, source: str) -> Document:
    lines: dict[KeyPath, int] = {}
    twice: list[Problem] = []
    seen: set[int] = set()

    def walk(node: yaml.Node | None, path: KeyPath) -> None:
        # An anchor may be met again, within itself even.
        if not isinstance(node, yaml.MappingNode) or id(node) in seen:
            return
        seen.add(id(node))
        for key_node, value in node.value:
            here = (*path, str(key_node.value))
            line = key_node.start_mark.line + 1
            # YAML's parser takes the last one and says nothing.
            if here in lines and key_node.value != "<<":
                twice.append(Problem(".".join(here), "this key is there twice", source, line))
            lines[here] = line
            walk(value, here)

    try:
        walk(yaml.compose(text, Loader=yaml.SafeLoader), ())
        data = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = mark.line + 1 if mark is not None else 0
        reason = getattr(error, "problem", None) or str(error)
        raise ConfigError([Problem("", f"this is no YAML: {reason}", source, line)]) from error
    if twice:
        raise ConfigError(twice)
    if data is None:
        data = {}
    if not isinstance(data, dict):
        raise ConfigError([Problem("", "a mapping is wanted at the top", source, 1)])
    return Document(data, source, "yaml", lines)


@dataclass(frozen=True)
class Statement:
    """A header, or a key with its value, of a TOML text.

    Attributes
    ----------
    line, end : int
        Its first line, and the one behind its last; from 1.
    table : tuple of str
        The table that it opens or is in.
    header : bool
        Whether it opens that table.
    paths : list of tuple of str
        What it defines, each from the root of the file.
    """

    line: int
    end: int
    table: KeyPath
    header: bool
    paths: list[KeyPath]


def toml_statements(text: str) -> Iterator[Statement]:
    """Yield the statements of a valid TOML text."""
    rows = text.split("\n")  # as TOML has lines; splitlines() knows more ends of them
    table: KeyPath = ()
    number = 0
    while number < len(rows):
        first = number
        statement = rows[number]
        # A value may go over several lines; it is whole when the parser takes it.
        while True:
            try:
                parsed = tomllib.loads(statement.removesuffix("\r"))
                break
            except tomllib.TOMLDecodeError:
                number += 1
                if number >= len(rows):
                    return
                statement += "\n" + rows[number]
        number += 1
        header = statement.lstrip().startswith("[")
        if header:
            table = _header_path(parsed)
            yield Statement(first + 1, number + 1, table, True, _prefixes(table))
        elif parsed:
            paths = [table + path for path in _leaves(parsed, ())]
            yield Statement(first + 1, number + 1, table, False, paths)


def _header_path(parsed: Any) -> KeyPath:
    path: KeyPath = ()
    while parsed:
        if isinstance(parsed, list):
            parsed = parsed[-1]
            continue
        key = next(iter(parsed))
        path, parsed = (*path, key), parsed[key]
    return path


def _prefixes(path: KeyPath) -> list[KeyPath]:
    return [path[:depth] for depth in range(1, len(path) + 1)]


def _leaves(value: Any, path: KeyPath) -> list[KeyPath]:
    if not isinstance(value, dict):
        return [path]
    found = [path] if path else []
    for key, below in value.items():
        found += _leaves(below, (*path, key))
    return found


def dump(data: Mapping[str, Any], path: KeyPath, language: str) -> str:
    """Return a block as its file would have it, under its path.

    Parameters
    ----------
    data : mapping
        Of texts, numbers, booleans, lists of these, and mappings.
    path : tuple of str
        Where it stands in the file.
    language : str
        ``toml`` or ``yaml``.
    """
    if language == "yaml":
        nested: Any = dict(data)
        for key in reversed(path):
            nested = {key: nested}
        return str(yaml.safe_dump(nested, sort_keys=False, allow_unicode=True)).rstrip("\n")
    return "\n\n".join(_toml_tables(data, path))


def _toml_tables(data: Mapping[str, Any], path: KeyPath) -> Iterator[str]:
    rows = [f"[{'.'.join(_toml_key(key) for key in path)}]"]
    rows += [
        f"{_toml_key(key)} = {_toml_value(value)}"
        for key, value in data.items()
        if not isinstance(value, Mapping)
    ]
    tables = {key: value for key, value in data.items() if isinstance(value, Mapping)}
    # A table of nothing but tables needs no header of its own.
    if len(rows) > 1 or not tables:
        yield "\n".join(rows)
    for key, value in tables.items():
        yield from _toml_tables(value, (*path, key))


def _toml_key(key: str) -> str:
    plain = key and all(c.isascii() and (c.isalnum() or c in "-_") for c in key)
    return key if plain else _toml_text(key)


def _toml_value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_toml_value(item) for item in value) + "]"
    return _toml_text(str(value))


def _toml_text(text: str) -> str:
    escaped = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"}
    return (
        '"'
        + "".join(
            escaped.get(c, c) if ord(c) >= 32 or c in escaped else f"\\u{ord(c):04x}" for c in text
        )
        + '"'
    )
