# SPDX-License-Identifier: Apache-2.0
"""What tests import from kvcove is there: those that need torch or an engine are skipped on most machines."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import kvcove

TESTS = Path(__file__).parent
PACKAGE = Path(kvcove.__file__).parent
COMPILED = {file.name.partition(".")[0] for file in PACKAGE.glob("*.so")}


def _source(module: str) -> Path | None:
    """Return a module's file, or None for one that is compiled."""
    path = PACKAGE.joinpath(*module.split(".")[1:])
    files = (path.with_suffix(".py"), path / "__init__.py")
    return next((file for file in files if file.exists()), None)


def _bound(statements: list[ast.stmt]) -> Iterator[str]:
    """Yield the names that statements bind, with those in their branches."""
    for statement in statements:
        for node in ast.walk(statement):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                yield node.name
            elif isinstance(node, ast.alias):
                yield (node.asname or node.name).partition(".")[0]
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                yield node.id


def _has(module: str, name: str) -> bool:
    source = _source(module)
    if source is None or _source(f"{module}.{name}") is not None or name in COMPILED:
        return True
    names = set(_bound(ast.parse(source.read_text()).body))
    return (
        name in names or "__getattr__" in names or (name.startswith("__") and name.endswith("__"))
    )


def _uses(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield each module of kvcove that a file names, with what the file takes of it."""
    modules: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "kvcove":
            for alias in node.names:
                yield str(node.module), alias.name
                # Within a function the name may be another thing elsewhere.
                if node in tree.body and _source(f"{node.module}.{alias.name}") is not None:
                    modules[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            module = modules.get(node.value.id)
            if module is not None:
                yield module, node.attr


@pytest.mark.parametrize(
    "file", sorted(TESTS.rglob("*.py")), ids=lambda path: str(path.relative_to(TESTS))
)
def test_what_is_imported_is_there(file: Path) -> None:
    missing = [
        f"{module}.{name}"
        for module, name in _uses(ast.parse(file.read_text()))
        if not _has(module, name)
    ]
    assert not missing
