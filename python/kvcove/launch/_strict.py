# SPDX-License-Identifier: Apache-2.0
"""Models that refuse what they do not know, and errors that say where it stands."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import PydanticCustomError

from kvcove.launch._document import Document, KeyPath
from kvcove.launch._errors import ConfigError, Problem, nearest

__all__ = ["Strict", "problems_of", "raise_if", "wrong_at"]


class Strict(BaseModel):
    """A block of a configuration. Unknown keys are errors; a value cannot be changed later."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


def wrong_at(key: str, text: str) -> PydanticCustomError:
    """Return the error of a check on several keys, for one of them.

    Parameters
    ----------
    key : str
        Below the model, with dots.
    text : str
        What is wrong with it, and what would be right.
    """
    return PydanticCustomError("wrong_at", "{key}: {text}", {"key": key, "text": text})


def problems_of(
    error: ValidationError,
    document: Document,
    block: KeyPath,
    keys_at: Mapping[KeyPath, Iterable[str]],
) -> list[Problem]:
    """Return pydantic's findings as problems of a document.

    Parameters
    ----------
    error : pydantic.ValidationError
        From a model of the block.
    document : Document
        Which has the block.
    block : tuple of str
        The block's path.
    keys_at : mapping of tuple of str to iterable of str
        The known keys of the block, by the path below it: ``{(): ["type", "cpu"], ("cpu",): ...}``.
    """
    found = []
    items = error.errors()
    unknown = {tuple(str(part) for part in i["loc"]) for i in items if i["type"] in _UNKNOWN}
    for item in items:
        below = tuple(str(part) for part in item["loc"])
        if item["type"] == "wrong_at":
            below += tuple(item["ctx"]["key"].split("."))
        if item["type"] == "missing" and _misspelt(below, unknown):
            continue
        found.append(document.problem(block + below, _text(item, below, keys_at)))
    return found


_UNKNOWN = ("extra_forbidden", "unexpected_keyword_argument")


def _misspelt(missing: KeyPath, unknown: Iterable[KeyPath]) -> bool:
    """Return whether an unknown key beside it is named like the missing one."""
    beside = [path[-1] for path in unknown if path[:-1] == missing[:-1]]
    return bool(difflib.get_close_matches(missing[-1], beside, 1))


def _text(item: Mapping[str, Any], below: KeyPath, keys_at: Mapping[KeyPath, Iterable[str]]) -> str:
    kind = item["type"]
    if kind == "wrong_at":
        return str(item["ctx"]["text"])
    if kind in _UNKNOWN:
        return f"unknown key; {nearest(below[-1], keys_at.get(below[:-1], ()))}"
    if kind == "missing":
        return "missing"
    if kind == "literal_error":
        return f"{item['input']!r}: give {item['ctx']['expected']}"
    if kind in ("model_type", "dataclass_type", "model_attributes_type", "dict_type"):
        return f"{item['input']!r} is no table of keys and values"
    text = str(item["msg"]).removeprefix("Value error, ")
    if kind.endswith(("_type", "_parsing")):
        return f"{item['input']!r}: {text[0].lower()}{text[1:]}"
    return text


def raise_if(problems: Iterable[Problem]) -> None:
    """Raise a :class:`ConfigError` where there are problems."""
    found = list(problems)
    if found:
        raise ConfigError(found)
