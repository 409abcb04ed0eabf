# SPDX-License-Identifier: Apache-2.0
"""The settings that a user gives to an engine's adapter, as a dataclass whose fields are the keys."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

__all__ = ["STRICT", "settings_of"]

_T = TypeVar("_T")


def _float(value: Any) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise TypeError
    return float(value)


def _exactly(kind: type) -> Callable[[Any], Any]:
    def checked(value: Any) -> Any:
        if not isinstance(value, kind):
            raise TypeError
        return value

    return checked


# Take a value of a field's type only, by the type's name: "1" is no number.
STRICT: Mapping[str, Callable[[Any], Any]] = {
    "bool": _exactly(bool),
    "float": _float,
    "str": _exactly(str),
}

# A field's type as a message calls it; others are called by their own names.
_SPOKEN = {"bool": "boolean", "float": "number", "int": "whole number", "str": "string"}


def settings_of(
    kind: type[_T],
    given: Mapping[str, Any],
    where: str,
    converters: Mapping[str, Callable[[Any], Any]] = STRICT,
) -> _T:
    """Return the settings, with the defaults of those that are not given.

    Parameters
    ----------
    kind : type
        A dataclass.
    given : mapping of str to any
        What the user has given.
    where : str
        Where it was given, for messages.
    converters : mapping of str to callable
        What makes a field's value from what was given, by the name of the field's type. One that cannot raises
        TypeError or ValueError.

    Raises
    ------
    ValueError
        With the key, what was given and what would be right.
    """
    fields = {field.name: str(field.type) for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    values: dict[str, Any] = {}
    for key, value in given.items():
        if key not in fields:
            near = difflib.get_close_matches(key, fields, 1)
            hint = f"; did you mean '{near[0]}'?" if near else f"; known: {', '.join(fields)}"
            raise ValueError(f"{where}: unknown key '{key}'{hint}")
        try:
            values[key] = converters[fields[key]](value)
        except (TypeError, ValueError) as error:
            right = _SPOKEN.get(fields[key], fields[key])
            raise ValueError(f"{where}: {key}: {value!r} is no {right}") from error
    return kind(**values)
