# SPDX-License-Identifier: Apache-2.0
"""Rewrites ``kv_cache_offload`` of a prime-rl TOML file as it is written today.

The rest of the file, comments and order included, stays as it is: lines are edited, and what comes
out is read again and compared with what must come out.
"""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
import tomllib
from pathlib import Path
from typing import Any

from kvcove.launch._document import KeyPath, Statement, at, dump, parse, toml_statements
from kvcove.launch._errors import ConfigError
from kvcove.launch._outdated import Change, changes, migrated
from kvcove.launch._strict import raise_if
from kvcove.launch.prime_rl import block_path, misplaced

__all__ = ["migrate_file", "migrate_text"]

# A key of bare parts, as it stands before its value: indentation, the key, "=" and what follows.
_BARE = re.compile(r"(\s*)([A-Za-z0-9_-]+(?:\s*\.\s*[A-Za-z0-9_-]+)*)(\s*=.*)", re.DOTALL)


def migrate_text(text: str, source: str = "") -> str:
    """Return a TOML text without outdated keys; the same text where it has none.

    Raises
    ------
    ConfigError
        It is no TOML, its old and new keys contradict each other, or it is written in a form that
        cannot be edited safely (an inline table): the message has the block as it would be right.
    """
    document = parse(text, "toml", source)
    path = block_path(document.data)
    raise_if(misplaced(document))
    block = at(document.data, path)
    if not isinstance(block, dict) or not changes(block):
        return text
    try:
        new = migrated(block)
    except ValueError as error:
        raise ConfigError([document.problem(path, str(error))]) from error
    edited = _edit(text, path, changes(block), None if "type" in block else new["type"])
    if edited is None or not _says(edited, text, path):
        told = f"this form cannot be rewritten; write this:\n\n{dump(new, path, 'toml')}\n"
        raise ConfigError([document.problem(path, told)])
    return edited


def migrate_file(file: str | Path) -> bool:
    """Rewrite a file in place, and return whether it had to be.

    A new file takes its place at once, with the same mode and owner, so that nobody reads half of one.

    Raises
    ------
    ConfigError
        As :func:`migrate_text`; the file is as it was.
    OSError
        It cannot be read or written.
    """
    path = Path(file).resolve()
    text = path.read_bytes().decode("utf-8")
    edited = migrate_text(text, str(file))
    if edited == text:
        return False
    was = path.stat()
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file_:
            file_.write(edited.encode("utf-8"))
        os.chmod(temporary, was.st_mode & 0o7777)
        with contextlib.suppress(PermissionError):
            os.chown(temporary, was.st_uid, was.st_gid)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
    return True


def _says(edited: str, text: str, path: KeyPath) -> bool:
    """Return whether a text is another one with its block migrated, and nothing else."""

    # Floats as they are written: nan is not equal to nan.
    def data(text: str) -> dict[str, Any]:
        return tomllib.loads(text, parse_float=str)

    old = data(text)
    try:
        return data(edited) == _replaced(old, path, migrated(at(old, path)))
    except tomllib.TOMLDecodeError:
        return False


def _replaced(data: dict[str, Any], path: KeyPath, block: dict[str, Any]) -> dict[str, Any]:
    if not path:
        return block
    return {**data, path[0]: _replaced(data.get(path[0], {}), path[1:], block)}


def _edit(text: str, path: KeyPath, outdated: list[Change], kind: str | None) -> str | None:
    """Return the text with its lines edited; None for a form that this does not know."""
    rows = [row + "\n" for row in text.split("\n")]
    rows[-1] = rows[-1][:-1]
    newline = "\r\n" if "\r\n" in text else "\n"
    statements = list(toml_statements(text))
    for change in outdated:
        found = [s for s in statements if path + change.path in s.paths and not s.header]
        if len(found) != 1 or not _change(rows, found[0], path + change.path, change):
            return None
    if kind is not None and not _insert_type(rows, statements, path, kind, newline):
        return None
    return "".join(rows)


def _in(statement: Statement, path: KeyPath) -> bool:
    return any(defined[: len(path)] == path for defined in statement.paths)


def _change(rows: list[str], at_: Statement, full: KeyPath, change: Change) -> bool:
    start, end = at_.line - 1, at_.end - 1
    found = _BARE.match("".join(rows[start:end]))
    if found is None:
        return False
    written = tuple(part.strip() for part in found[2].split("."))
    if at_.table + written != full:
        return False  # an inline table
    rows[start:end] = [""] * (end - start)
    if change.becomes:
        kept = written[: len(written) - len(change.path)]
        rows[start] = f"{found[1]}{'.'.join((*kept, *change.becomes))}{found[3]}"
    return True


def _insert_type(
    rows: list[str], statements: list[Statement], path: KeyPath, kind: str, newline: str
) -> bool:
    for statement in statements:
        if statement.header and statement.table == path:
            row = statement.line - 1
            if not rows[row].endswith("\n"):
                rows[row] += newline
            rows[row] += f'type = "{kind}"{newline}'
            return True
    # Dotted keys in a table above: `kv_cache_offload.cpu_bytes = 1`.
    for statement in statements:
        if statement.header or not _in(statement, path):
            continue
        if statement.table != path[: len(statement.table)]:
            return False
        row = statement.line - 1
        indent = rows[row][: len(rows[row]) - len(rows[row].lstrip())]
        prefix = ".".join(path[len(statement.table) :])
        rows[row] = f'{indent}{prefix}.type = "{kind}"{newline}{rows[row]}'
        return True
    return False
