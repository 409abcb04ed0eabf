#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The reference of the Python API as a Markdown page, made from stubs and docstrings: python_reference.py [ROOT]

Nothing is imported, so the page needs no built extension. What a module's __all__ names is on it.
"""

from __future__ import annotations

import ast
import pathlib
import re
import sys
import textwrap

MODULES = ("kvcove", "kvcove.aio", "kvcove.engines")
SECTIONS = {"Parameters", "Returns", "Raises", "Attributes", "Yields", "Notes", "Examples"}
OF_CONTENT = {"Notes", "Examples"}  # sections whose text is no list of entries
Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def file_of(root: pathlib.Path, module: str) -> pathlib.Path:
    """Return the source of a module; of the extension, its stub."""
    path = root / "python" / module.replace(".", "/")
    for candidate in (path / "__init__.py", path.with_suffix(".py"), path.with_suffix(".pyi")):
        if candidate.is_file():
            return candidate
    raise FileNotFoundError(f"{module}: no source below {root / 'python'}")


def definitions(tree: ast.Module) -> dict[str, Definition]:
    """Return what a module defines itself, by name."""
    return {node.name: node for node in tree.body if isinstance(node, Definition)}


def imports(tree: ast.Module) -> dict[str, tuple[str, str]]:
    """Return what a module imports from kvcove: module and name there."""
    return {
        alias.asname or alias.name: (node.module, alias.name)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("kvcove")
        for alias in node.names
    }


def public(tree: ast.Module) -> list[str]:
    """Return what __all__ has; without it, what the module defines and does not begin with "_"."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return [ast.literal_eval(element) for element in node.value.elts]
    return [name for name in definitions(tree) if not name.startswith("_")]


def resolve(root: pathlib.Path, module: str, name: str) -> Definition | None:
    """Return the definition of a public name, through imports; None for a constant."""
    tree = ast.parse(file_of(root, module).read_text())
    if name in (found := definitions(tree)):
        return found[name]
    if name in (brought := imports(tree)):
        return resolve(root, *brought[name])
    return None


# ---- docstrings


def inline(text: str) -> str:
    """Return reStructuredText's roles and literals as Markdown has them."""
    text = re.sub(r":\w+:`~?\.?([^`]+)`", r"`\1`", text)
    text = re.sub(r"``([^`]+)``", r"`\1`", text)
    # Outside of code Markdown would take these for markup.
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(
        part if part.startswith("`") else re.sub(r"([*_<])", r"\\\1", part) for part in parts
    )


def indent_of(line: str) -> int:
    return len(line) - len(line.lstrip())


def entries(lines: list[str], depth: int) -> list[str]:
    """Return terms with what is indented below them as a list, other text as paragraphs.

    At depth 0 each line that begins a section's entry is a term.
    """
    made: list[str] = []
    pad = "    " * depth
    paragraph: list[str] = []

    def flush() -> None:
        if paragraph:
            made.extend([pad + inline(" ".join(paragraph)), ""])
            paragraph.clear()

    at = 0
    while at < len(lines):
        line = lines[at]
        at += 1
        if not line.strip():
            flush()
            continue
        below: list[str] = []
        while at < len(lines) and (not lines[at].strip() or indent_of(lines[at]) > indent_of(line)):
            below.append(lines[at])
            at += 1
        if depth > 0 and not any(each.strip() for each in below):
            paragraph.append(line.strip())
            if below:
                flush()
            continue
        flush()
        term = line.strip()
        made += [f"{pad}- {inline(term) if '`' in term else f'`{term}`'}", ""]
        made += entries(textwrap.dedent("\n".join(below)).splitlines(), depth + 1)
    flush()
    return made


def prose(lines: list[str]) -> list[str]:
    """Return text with its examples and indented parts as code."""
    made: list[str] = []
    code: list[str] = []
    language = ""

    def flush() -> None:
        nonlocal language
        if code:
            body = textwrap.dedent("\n".join(code)).strip("\n").splitlines()
            made.extend(["", f"```{language}", *body, "```", ""])
            code.clear()
        language = ""

    for line in lines:
        example = line.startswith(">>>")
        if example or (language == "pycon" and line.strip()):
            if language != "pycon":
                flush()
            language = "pycon"
            code.append(line)
        elif line.startswith("    ") or (language == "text" and not line.strip()):
            language = language or "text"
            code.append(line)
        else:
            flush()
            made.append(inline(re.sub(r"::$", ":", line)))
    flush()
    return made


def markdown(docstring: str) -> list[str]:
    """Return a docstring in numpy's style as Markdown."""
    lines = docstring.strip("\n").splitlines()
    sections: list[tuple[str, list[str]]] = [("", [])]
    at = 0
    while at < len(lines):
        title = lines[at].strip()
        if title in SECTIONS and at + 1 < len(lines) and set(lines[at + 1].strip()) == {"-"}:
            sections.append((title, []))
            at += 2
            continue
        sections[-1][1].append(lines[at])
        at += 1
    made: list[str] = []
    for title, body in sections:
        if title:
            made += ["", f"**{title}**", ""]
        made += prose(body) if not title or title in OF_CONTENT else entries(body, 0)
    return made


# ---- the page


def decorated(node: Definition, name: str) -> bool:
    return any(ast.unparse(each).split(".")[-1] == name for each in node.decorator_list)


def signature(node: ast.FunctionDef | ast.AsyncFunctionDef, name: str) -> str:
    """Return a call with its annotations, an argument a line where it is long."""
    arguments = ast.unparse(node.args)
    for own in ("self, /, ", "self, /", "self, ", "self", "cls, ", "cls"):
        if arguments == own.rstrip(", ") or (own.endswith(", ") and arguments.startswith(own)):
            arguments = arguments[len(own) :]
            break
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    before = "async " if isinstance(node, ast.AsyncFunctionDef) else ""
    line = f"{before}{name}({arguments}){returns}"
    if len(line) <= 100:
        return line
    split = re.split(r", (?![^\[(]*[\])])", arguments)
    return f"{before}{name}(\n    " + ",\n    ".join(split) + f",\n){returns}"


def of_function(node: ast.FunctionDef | ast.AsyncFunctionDef, name: str, level: int) -> list[str]:
    made = [f"{'#' * level} {name}", "", "```python", signature(node, name), "```", ""]
    return [*made, *markdown(ast.get_docstring(node) or ""), ""]


def of_class(node: ast.ClassDef, level: int) -> list[str]:
    bases = ", ".join(ast.unparse(base) for base in node.bases)
    made = [f"{'#' * level} {node.name}", ""]
    methods = [each for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]
    begins = next((each for each in methods if each.name == "__init__"), None)
    declared = signature(begins, node.name).removesuffix(" -> None") if begins else node.name
    made += ["```python", f"class {declared}" + (f"  # {bases}" if bases else ""), "```", ""]
    made += [*markdown(ast.get_docstring(node) or ""), ""]
    values = [
        ast.unparse(each)
        for each in node.body
        if isinstance(each, ast.Assign | ast.AnnAssign) and not ast.unparse(each).startswith("_")
    ]
    values += [
        f"{each.name}: {ast.unparse(each.returns) if each.returns else 'Any'}"
        for each in methods
        if decorated(each, "property") and not ast.get_docstring(each)
    ]
    if values:
        made += ["```python", *values, "```", ""]
    for each in methods:
        if decorated(each, "setter") or decorated(each, "overload") or each.name.startswith("_"):
            continue
        if decorated(each, "property"):
            if docstring := ast.get_docstring(each):
                kind = ast.unparse(each.returns) if each.returns else "Any"
                made += [f"{'#' * (level + 1)} {node.name}.{each.name}", ""]
                made += ["```python", f"{each.name}: {kind}", "```", "", *markdown(docstring), ""]
            continue
        made += of_function(each, f"{node.name}.{each.name}", level + 1)
    return made


def page(root: pathlib.Path) -> str:
    """Return the page."""
    made = ["# Python API", "", "Made from the stubs and docstrings of the package; `help()` shows the same.", ""]
    for module in MODULES:
        tree = ast.parse(file_of(root, module).read_text())
        made += [f"## {module}", "", *markdown(ast.get_docstring(tree) or ""), ""]
        constants = []
        for name in sorted(public(tree), key=str.lower):
            node = resolve(root, module, name)
            if node is None:
                constants.append(f"`{name}`")
            elif isinstance(node, ast.ClassDef):
                made += of_class(node, 3)
            else:
                made += of_function(node, f"{module}.{name}", 3)
        if constants:
            made += [f"Constants: {', '.join(constants)}.", ""]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(made)) + "\n"


if __name__ == "__main__":
    sys.stdout.write(page(pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".")))
