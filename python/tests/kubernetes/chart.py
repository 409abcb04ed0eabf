# SPDX-License-Identifier: Apache-2.0
"""Renders the chart of deploy/kubernetes as helm does: chart.py RELEASE NAMESPACE [VALUES.yaml...]

It knows a subset of helm's templates, and refuses whatever else it meets, so that the chart keeps to what this test can render:
``if``, ``else``, ``range``, ``with``, ``define``, variables, pipelines, parentheses, white space trimmed by ``-``, comments,
and the functions of ``FUNCTIONS`` with ``include``. Where helm prints nothing for a value that is missing, this one refuses it.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from schema import check

CHART = Path(__file__).resolve().parents[3] / "deploy/kubernetes/kvcove"

TOKEN = re.compile(
    r'\s*(?:(?P<text>"(?:[^"\\]|\\.)*")|(?P<number>\d+)|(?P<variable>\$\w*(?:\.\w+)*)'
    r"|(?P<path>(?:\.\w+)+)|(?P<dot>\.)|(?P<word>[A-Za-z]\w*)|(?P<sign>:=|[()|]))"
)
ACTION = re.compile(r"\{\{(?P<left>-\s)?\s*(?P<body>/\*.*?\*/|.*?)\s*(?P<right>-)?\}\}", re.DOTALL)


class ChartError(Exception):
    """A template has a fault, or a construct outside of the subset."""


# ---- what a template is made of


@dataclass
class Block:
    """``if``, ``with`` or ``range`` with its pipeline, the part inside, and that of ``else``."""

    kind: str
    pipeline: list[Any]
    variable: str = ""
    inside: list[Any] = field(default_factory=list)
    otherwise: list[Any] = field(default_factory=list)


@dataclass
class Set:
    name: str
    pipeline: list[Any]


@dataclass
class Show:
    pipeline: list[Any]


def tokens(text: str, where: str) -> list[tuple[str, str]]:
    found, at = [], 0
    text = text.rstrip()
    while at < len(text):
        match = TOKEN.match(text, at)
        if match is None:
            raise ChartError(f"{where}: '{text[at:].strip()}' is outside of the subset")
        kind = match.lastgroup or ""
        found.append((kind, match.group(kind)))
        at = match.end()
    return found


def pipeline(words: list[tuple[str, str]], where: str) -> list[Any]:
    """Parse ``command | command``; a command is a list of terms."""
    commands: list[Any] = [[]]
    while words and words[0] != ("sign", ")"):
        kind, word = words.pop(0)
        if (kind, word) == ("sign", "|"):
            commands.append([])
        elif (kind, word) == ("sign", "("):
            commands[-1].append(("pipeline", pipeline(words, where)))
            if not words:
                raise ChartError(f"{where}: a parenthesis is not closed")
            words.pop(0)
        elif kind == "sign":
            raise ChartError(f"{where}: '{word}' is outside of the subset here")
        else:
            commands[-1].append((kind, word))
    if any(not command for command in commands):
        raise ChartError(f"{where}: a command is empty")
    return commands


def whole(words: list[tuple[str, str]], where: str) -> list[Any]:
    parsed = pipeline(words, where)
    if words:
        raise ChartError(f"{where}: a parenthesis is not open")
    return parsed


class Parser:
    """Reads one file into a tree, and its ``define`` parts into ``named``."""

    def __init__(self, name: str, source: str, named: dict[str, list[Any]]) -> None:
        self.named = named
        self.pieces = self._pieces(name, source)

    @staticmethod
    def _pieces(name: str, source: str) -> list[tuple[str, str, str]]:
        pieces, at, trim = [], 0, False
        for action in ACTION.finditer(source):
            text = source[at : action.start()]
            text = text.lstrip() if trim else text
            pieces.append(("text", text.rstrip() if action["left"] else text, ""))
            line = source.count("\n", 0, action.start()) + 1
            if not action["body"].startswith("/*"):
                pieces.append(("action", action["body"], f"{name}:{line}"))
            at, trim = action.end(), bool(action["right"])
        rest = source[at:].lstrip() if trim else source[at:]
        if "{{" in rest:
            raise ChartError(f"{name}: an action is not closed")
        return [*pieces, ("text", rest, "")]

    def parse(self) -> list[Any]:
        tree, ended = self._until_end()
        if ended:
            raise ChartError(f"{ended}: nothing is open here")
        return tree

    def _until_end(self) -> tuple[list[Any], str]:
        """Return what comes up to ``end`` or ``else``, and that action with its place; "": the file's end."""
        tree: list[Any] = []
        while self.pieces:
            kind, text, where = self.pieces.pop(0)
            if kind == "text":
                tree.append(text)
                continue
            word, _, rest = text.partition(" ")
            if word in ("end", "else"):
                return tree, f"{where}: {text}"
            if word == "define":
                self.named[json.loads(rest)] = self._closed(where)
            elif word in ("if", "with", "range"):
                tree.append(self._block(word, rest, where))
            elif match := re.fullmatch(r"(\$\w+)\s*:=\s*(.*)", text, re.DOTALL):
                tree.append(Set(match[1], whole(tokens(match[2], where), where)))
            else:
                tree.append(Show(whole(tokens(text, where), where)))
        return tree, ""

    def _closed(self, where: str) -> list[Any]:
        tree, ended = self._until_end()
        if not ended.endswith(": end"):
            raise ChartError(f"{where}: 'end' is missing")
        return tree

    def _block(self, kind: str, rest: str, where: str) -> Block:
        variable = ""
        if match := re.fullmatch(r"(\$\w+)\s*:=\s*(.*)", rest, re.DOTALL):
            variable, rest = match[1], match[2]
        block = Block(kind, whole(tokens(rest, where), where), variable)
        block.inside, ended = self._until_end()
        if ended.endswith(": else"):
            block.otherwise = self._closed(where)
        elif ": else " in ended:
            raise ChartError(f"{ended.split(': else')[0]}: 'else {kind}' is outside of the subset")
        elif not ended:
            raise ChartError(f"{where}: '{kind}' has no 'end'")
        return block


# ---- what it is rendered with


def to_yaml(value: Any) -> str:
    return (
        yaml.safe_dump(value, default_flow_style=False, width=1000).removesuffix("...\n").rstrip()
    )


def fail(message: str) -> None:
    raise ChartError(message)


def required(message: str, value: Any) -> Any:
    return value if value not in (None, "") else fail(message)


def printf(text: str, *values: Any) -> str:
    if re.sub(r"%[sd]", "", text).count("%") or len(re.findall(r"%[sd]", text)) != len(values):
        raise ChartError(f"printf: '{text}' is outside of the subset, or has other values")
    return text % values


def pairs(*words: Any) -> dict[str, Any]:
    return dict(zip(words[::2], words[1::2], strict=True))


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "and": lambda *values: next((value for value in values if not value), values[-1]),
    "default": lambda other, value: value or other,
    "dict": pairs,
    "eq": lambda one, other: one == other,
    "fail": fail,
    "gt": lambda one, other: one > other,
    "int": int,
    "join": lambda between, values: between.join(values),
    "nindent": lambda count, text: "".join(
        "\n" + (" " * count + line if line else "") for line in text.split("\n")
    ),
    "not": lambda value: not value,
    "or": lambda *values: next((value for value in values if value), values[-1]),
    "printf": printf,
    "quote": lambda value: json.dumps(str(value)),
    "required": required,
    "toYaml": to_yaml,
    "trim": str.strip,
    "until": range,
}


class Renderer:
    def __init__(self, named: dict[str, list[Any]]) -> None:
        self.named = named

    def render(self, tree: list[Any], dot: Any, variables: dict[str, Any]) -> str:
        out = ""
        for node in tree:
            if isinstance(node, str):
                out += node
            elif isinstance(node, Set):
                variables[node.name] = self.value(node.pipeline, dot, variables)
            elif isinstance(node, Show):
                shown = self.value(node.pipeline, dot, variables)
                if shown is None:
                    raise ChartError(f"{node.pipeline}: there is no such value")
                out += (
                    {True: "true", False: "false"}[shown] if isinstance(shown, bool) else str(shown)
                )
            else:
                out += self._block(node, dot, variables)
        return out

    def _block(self, block: Block, dot: Any, variables: dict[str, Any]) -> str:
        value = self.value(block.pipeline, dot, variables)
        if not value:
            return self.render(block.otherwise, dot, dict(variables))
        out = ""
        for each in value if block.kind == "range" else [value]:
            inner = {**variables, block.variable: each} if block.variable else dict(variables)
            out += self.render(block.inside, dot if block.kind == "if" else each, inner)
        return out

    def value(self, commands: list[Any], dot: Any, variables: dict[str, Any]) -> Any:
        last: list[Any] = []
        for command in commands:
            (kind, word), arguments = command[0], command[1:]
            if kind == "word" and word not in ("true", "false"):
                values = [self.term(term, dot, variables) for term in arguments] + last
                last = [self.call(word, values)]
            elif arguments or last:
                raise ChartError(f"'{word}' is no function")
            else:
                last = [self.term(command[0], dot, variables)]
        return last[0]

    def call(self, name: str, values: list[Any]) -> Any:
        if name == "include":
            if values[0] not in self.named:
                raise ChartError(f"no template is named '{values[0]}'")
            return self.render(self.named[values[0]], values[1], {"$": values[1]})
        if name not in FUNCTIONS:
            raise ChartError(f"the function '{name}' is outside of the subset")
        return FUNCTIONS[name](*values)

    def term(self, term: tuple[str, Any], dot: Any, variables: dict[str, Any]) -> Any:
        kind, word = term
        if kind == "text":
            return json.loads(word)
        if kind == "number":
            return int(word)
        if kind == "pipeline":
            return self.value(word, dot, variables)
        if kind == "dot":
            return dot
        if kind == "path":
            return self._field(dot, word)
        if kind == "variable":
            name, _, path = word.partition(".")
            if name not in variables:
                raise ChartError(f"the variable '{name}' is not set")
            return self._field(variables[name], "." + path) if path else variables[name]
        if word in ("true", "false"):
            return word == "true"
        raise ChartError(f"'{word}' is a function; put it into parentheses")

    @staticmethod
    def _field(value: Any, path: str) -> Any:
        for name in path[1:].split("."):
            if not isinstance(value, dict):
                raise ChartError(f"'{path}': what is before '{name}' has no fields")
            value = value.get(name)
        return value


# ---- the chart


def merged(base: Any, over: Any) -> Any:
    if not isinstance(base, dict) or not isinstance(over, dict):
        return over
    return {
        **base,
        **{key: merged(base[key], over[key]) if key in base else over[key] for key in over},
    }


def render(
    values: dict[str, Any], release: str = "kvcove", namespace: str = "kvcove"
) -> dict[str, str]:
    """Return the text of each template that shows anything, by its file's name."""
    metadata = yaml.safe_load((CHART / "Chart.yaml").read_text())
    given = merged(yaml.safe_load((CHART / "values.yaml").read_text()), values)
    check(given, json.loads((CHART / "values.schema.json").read_text()), "values")
    dot = {
        "Values": given,
        "Release": {"Name": release, "Namespace": namespace},
        "Chart": {"Name": metadata["name"], "AppVersion": metadata["appVersion"]},
    }
    named: dict[str, list[Any]] = {}
    files = sorted((CHART / "templates").iterdir())
    trees = {file.name: Parser(file.name, file.read_text(), named).parse() for file in files}
    shown = {}
    for name, tree in trees.items():
        text = Renderer(named).render(tree, dot, {"$": dot}).strip()
        if text and name != "_helpers.tpl":
            shown[name] = text + "\n"
    return shown


def manifest(values: dict[str, Any], release: str = "kvcove", namespace: str = "kvcove") -> str:
    """Return all objects as one file, as `helm template` does."""
    shown = render(values, release, namespace)
    return "---\n".join(text for name, text in shown.items() if name != "NOTES.txt")


def objects(text: str) -> Iterator[dict[str, Any]]:
    yield from (each for each in yaml.safe_load_all(text) if each is not None)


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    given: dict[str, Any] = {}
    for name in sys.argv[3:]:
        given = merged(given, yaml.safe_load(Path(name).read_text()))
    sys.stdout.write(manifest(given, sys.argv[1], sys.argv[2]))
