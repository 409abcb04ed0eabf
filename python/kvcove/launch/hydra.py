# SPDX-License-Identifier: Apache-2.0
"""Hydra's override syntax: ``KEY=VALUE`` arguments read, and written."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kvcove.launch._errors import LaunchError

__all__ = ["Override", "quote", "resolve", "split"]


@dataclass(frozen=True)
class Override:
    """One argument.

    Attributes
    ----------
    text : str
        As it was given.
    path : tuple of str
        The key.
    value : object
        Numbers, booleans, texts, None, lists, dicts; interpolations are not resolved.
    """

    text: str
    path: tuple[str, ...]
    value: Any


def split(arguments: Sequence[str], block: str) -> tuple[list[Override], list[str]]:
    """Part the overrides of a block from all other arguments.

    Parameters
    ----------
    arguments : sequence of str
        Of a command; most are no overrides of the block, or none at all.
    block : str
        ``actor_rollout_ref.rollout.kv_store``.

    Returns
    -------
    tuple of list of Override and list of str
        Both in their order.

    Raises
    ------
    LaunchError
        An override of the block that Hydra would not take, or hydra-core is not installed.
    """
    begin = re.compile(rf"(?:\+\+|\+|~)?{re.escape(block)}(?=[.=@]|$)")
    ours = [argument for argument in arguments if begin.match(argument)]
    rest = [argument for argument in arguments if not begin.match(argument)]
    return [_parse(argument) for argument in ours], rest


def _parse(text: str) -> Override:
    try:
        from hydra.core.override_parser.overrides_parser import OverridesParser
        from hydra.errors import HydraException
    except ImportError as error:
        raise LaunchError(
            f"{text}: to read Hydra's overrides hydra-core is needed; verl brings it, and so does "
            "`pip install hydra-core`"
        ) from error
    try:
        override = OverridesParser.create().parse_override(text)
    except HydraException as error:
        first = str(error).splitlines()[0]
        raise LaunchError(f"{text}: Hydra cannot read this: {first}") from error
    if override.is_delete():
        raise LaunchError(f"{text}: verl has nothing there to delete; leave it out")
    if override.is_sweep_override():
        raise LaunchError(f"{text}: one value is wanted, not several")
    return Override(text, tuple(override.key_or_group.split(".")), override.value())


def resolve(block: dict[str, Any], source: str) -> dict[str, Any]:
    """Return a block with its interpolations resolved: ``${oc.env:NAME}``, and those within it.

    Raises
    ------
    LaunchError
        One of them cannot be resolved, or omegaconf is not installed.
    """
    if not _interpolates(block):
        return block
    try:
        from omegaconf import OmegaConf
        from omegaconf.errors import OmegaConfBaseException
    except ImportError as error:
        raise LaunchError(
            f"{source}: to resolve ${{...}} omegaconf is needed; verl brings it, and so does `pip "
            "install omegaconf`"
        ) from error
    try:
        made = OmegaConf.to_container(OmegaConf.create(block), resolve=True)
    except OmegaConfBaseException as error:
        key = f".{error.full_key}" if getattr(error, "full_key", None) else ""
        raise LaunchError(
            f"{source}{key}: {str(error).splitlines()[0]}; ${{oc.env:NAME}} of a variable that is "
            "set, or a key of this block, can be resolved here"
        ) from error
    assert isinstance(made, dict)
    return {str(key): value for key, value in made.items()}


def _interpolates(value: Any) -> bool:
    if isinstance(value, dict):
        return any(_interpolates(below) for below in value.values())
    if isinstance(value, list):
        return any(_interpolates(below) for below in value)
    return isinstance(value, str) and "${" in value


_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")


def quote(value: Any) -> str:
    """Return a value as an override has it behind ``=``.

    What Hydra and OmegaConf make of it is the value again: texts are quoted, and ``${`` in them is
    no interpolation.

    Parameters
    ----------
    value : dict, list, str, int, float, bool or None
        Keys are texts that Hydra takes without quotes.

    Raises
    ------
    LaunchError
        A key that its grammar cannot have.
    """
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str) or not _KEY.fullmatch(key):
                raise LaunchError(f"{key!r}: Hydra's overrides cannot have this key")
        return "{" + ",".join(f"{key}:{quote(below)}" for key, below in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(quote(item) for item in value) + "]"
    return _quote_text(str(value))


def _quote_text(text: str) -> str:
    # OmegaConf takes \${ as ${, and reads \\ before it as one backslash.
    text = re.sub(r"(\\*)\$\{", lambda m: m[1] * 2 + r"\${", text)
    # Hydra takes \' as ', and reads \\ as one backslash before a quote only.
    text = re.sub(r"(\\*)('|\Z)", lambda m: m[1] * 2 + (r"\'" if m[2] else ""), text)
    return f"'{text}'"
