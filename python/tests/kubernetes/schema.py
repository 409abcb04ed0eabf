# SPDX-License-Identifier: Apache-2.0
"""Checks a value by a JSON schema, of the few keywords that these tests' schemas have; others are refused."""

from __future__ import annotations

import re
from typing import Any

TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "boolean": (bool,),
}
KNOWN = {
    *("$ref", "$schema", "additionalProperties", "definitions", "description", "enum", "items"),
    *(
        "maxItems",
        "maximum",
        "minimum",
        "not",
        "oneOf",
        "pattern",
        "properties",
        "required",
        "title",
        "type",
    ),
}


class SchemaError(Exception):
    """A value is not as its schema says."""


def is_of(value: Any, name: str) -> bool:
    return isinstance(value, TYPES[name]) and (name == "boolean" or not isinstance(value, bool))


def check(
    value: Any, schema: dict[str, Any], where: str, root: dict[str, Any] | None = None
) -> None:
    """Raise a ``SchemaError`` that names the place where ``value`` differs."""
    root = root or schema
    if unknown := set(schema) - KNOWN:
        raise SchemaError(f"{where}: this check does not know the schema's {sorted(unknown)}")
    if "$ref" in schema:
        return check(value, root["definitions"][schema["$ref"].rsplit("/", 1)[1]], where, root)
    names = schema.get("type", [])
    names = [names] if isinstance(names, str) else names
    if names and not any(is_of(value, name) for name in names):
        raise SchemaError(f"{where}: {value!r} is no {' or '.join(names)}")
    if "enum" in schema and value not in schema["enum"]:
        raise SchemaError(f"{where}: {value!r} is none of {schema['enum']}")
    if isinstance(value, str) and re.search(schema.get("pattern", ""), value) is None:
        raise SchemaError(f"{where}: {value!r} is not of the form {schema['pattern']}")
    if is_of(value, "integer") and not schema.get("minimum", value) <= value <= schema.get(
        "maximum", value
    ):
        raise SchemaError(f"{where}: {value} is out of range")
    if "not" in schema and holds(value, schema["not"], where, root):
        raise SchemaError(f"{where}: {value!r} is not allowed")
    if "oneOf" in schema:
        check_one(value, schema["oneOf"], where, root)
    if isinstance(value, list):
        if len(value) > schema.get("maxItems", len(value)):
            raise SchemaError(f"{where}: more than {schema['maxItems']} items")
        for at, item in enumerate(value):
            check(item, schema.get("items", {}), f"{where}[{at}]", root)
    if isinstance(value, dict):
        check_fields(value, schema, where, root)
    return None


def holds(value: Any, schema: dict[str, Any], where: str, root: dict[str, Any]) -> bool:
    try:
        check(value, schema, where, root)
    except SchemaError:
        return False
    return True


def check_one(value: Any, choices: list[dict[str, Any]], where: str, root: dict[str, Any]) -> None:
    count = sum(holds(value, choice, where, root) for choice in choices)
    if count != 1:
        raise SchemaError(f"{where}: exactly one of {choices} must hold, and {count} do")


def check_fields(
    value: dict[str, Any], schema: dict[str, Any], where: str, root: dict[str, Any]
) -> None:
    for name in schema.get("required", []):
        if name not in value:
            raise SchemaError(f"{where}: '{name}' is missing")
    known = schema.get("properties", {})
    others = schema.get("additionalProperties", {})
    for name, item in value.items():
        if name in known:
            check(item, known[name], f"{where}.{name}", root)
        elif others is False:
            raise SchemaError(
                f"{where}: there is no '{name}'; there are {', '.join(sorted(known))}"
            )
        else:
            check(item, others, f"{where}.{name}", root)
