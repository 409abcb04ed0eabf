# SPDX-License-Identifier: Apache-2.0
"""verl with ``actor_rollout_ref.rollout.kv_store``, without a change to verl.

verl 0.9.1 has no such block. It hands ``actor_rollout_ref.rollout.engine_kwargs.vllm`` on to vLLM,
a dict as JSON, so :func:`plan` takes the block out of a command and puts what it means there.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter, ValidationError

from kvcove.launch import hydra
from kvcove.launch._document import Document, KeyPath, at
from kvcove.launch._errors import ConfigError, LaunchError
from kvcove.launch._strict import problems_of
from kvcove.launch.connector import build_kv_transfer_config
from kvcove.launch.kv_store import KVStoreConfig

__all__ = ["BLOCK", "TARGET", "Plan", "find_block", "load", "plan"]

BLOCK = "actor_rollout_ref.rollout.kv_store"
TARGET = "actor_rollout_ref.rollout.engine_kwargs.vllm.kv_transfer_config"

_PATH = tuple(BLOCK.split("."))
# Of verl's config/rollout/rollout.yaml.
_DEFAULT_SIZES = {"tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 1}
_DEFAULT_RANKS = math.prod(_DEFAULT_SIZES.values())
_ADAPTER: TypeAdapter[KVStoreConfig] = TypeAdapter(KVStoreConfig)


@dataclass(frozen=True)
class Plan:
    """What is to be run.

    Attributes
    ----------
    config : KVStoreConfig
        The block that the command had.
    command : list of str
        Without the block, and without a connector.
    overrides : list of str
        What gives its engines the connector; empty where none is wanted.
    environment : dict of str to str
        Variables that go with the overrides.
    connector : dict or None
        The value of ``--kv-transfer-config`` that the overrides give.
    ranks : int or None
        Of one engine, as the command says; else by verl's defaults. None: nothing can say.
    """

    config: KVStoreConfig
    command: list[str]
    overrides: list[str]
    environment: dict[str, str]
    connector: dict[str, Any] | None = None
    ranks: int | None = _DEFAULT_RANKS


def find_block(data: Mapping[str, Any]) -> KeyPath | None:
    """Return where a file has the block: at its full path, or at an end of it."""
    for start in range(len(_PATH)):
        if at(data, _PATH[start:]) is not None:
            return _PATH[start:]
    return None


def load(document: Document | None, overrides: Sequence[hydra.Override] = ()) -> KVStoreConfig:
    """Read the block from a file and from overrides, which go over it.

    Raises
    ------
    ConfigError
        All that is wrong with it.
    LaunchError
        An interpolation that cannot be resolved.
    """
    path = _PATH
    block: dict[str, Any] = {}
    if document is not None:
        path = find_block(document.data) or _PATH
        found = at(document.data, path)
        if found is not None and not isinstance(found, Mapping):
            raise ConfigError([document.problem(path, f"{found!r} is no mapping")])
        block = _copied(found or {})
    for override in overrides:
        _put(block, override)
    source = document.source if document is not None and document.source else BLOCK
    return parse_block(
        hydra.resolve(block, source), document or Document({}, language="yaml"), path
    )


def parse_block(block: Mapping[str, Any], document: Document, path: KeyPath) -> KVStoreConfig:
    """Check a block.

    Raises
    ------
    ConfigError
        All that is wrong with it.
    """
    keys: dict[KeyPath, list[str]] = {
        (): [field.name for field in dataclasses.fields(KVStoreConfig)]
    }
    try:
        return _ADAPTER.validate_python(dict(block))
    except ValidationError as error:
        raise ConfigError(problems_of(error, document, path, keys)) from error


def plan(command: Sequence[str], document: Document | None = None) -> Plan:
    """Work out what to run; nothing is run, and nobody is asked.

    Parameters
    ----------
    command : sequence of str
        A program and its arguments, Hydra's overrides among them.
    document : Document, optional
        A YAML file with the block; the command's overrides go over it.

    Raises
    ------
    ConfigError, LaunchError
        The block cannot be used, or the command has something that would undo it.
    """
    overrides, rest = hydra.split(command, BLOCK)
    config = load(document, overrides)
    made = build_kv_transfer_config(config)
    if made is None:
        return Plan(config, rest, [], {})
    _refuse_conflicts(rest)
    environment = {}
    if config.config_path is not None:
        # vLLM 0.32 knows the variable only; 0.33 reads the key in the JSON.
        environment["MOONCAKE_CONFIG_PATH"] = config.config_path
    # Hydra merges a dict that is added into one that is there. To add null is an error of Hydra's
    # then: a connector in verl's own files is not mixed with this one in silence.
    added = [f"+{TARGET}=null", f"{TARGET}={hydra.quote(made)}"]
    return Plan(config, rest, added, environment, made, ranks_of(rest, document))


def ranks_of(arguments: Sequence[str], document: Document | None = None) -> int | None:
    """Return what Hydra's overrides say of an engine, else a file, else verl's defaults.

    None: one of them is no number, as where Hydra is to interpolate it.
    """
    sizes: dict[str, Any] = dict(_DEFAULT_SIZES)
    if document is not None:
        block = (find_block(document.data) or _PATH)[:-1]
        sizes = {name: at(document.data, (*block, name)) or sizes[name] for name in sizes}
    for argument in arguments:
        key, _, value = argument.partition("=")
        name = key.rpartition(".")[2]
        if name in sizes and key.lstrip("+") == ".".join((*_PATH[:-1], name)):
            value = value.strip("'\"")
            sizes[name] = int(value) if value.isascii() and value.isdigit() else None
    if not all(isinstance(size, int) for size in sizes.values()):
        return None
    return int(math.prod(sizes.values()))


_CONFLICTS = (
    (
        rf"(\+\+|\+)?{re.escape(TARGET)}[.=]",
        f"{BLOCK} makes this; give one of them",
    ),
    (
        r"(\+\+|\+)?actor_rollout_ref\.rollout\.name=(?!['\"]?(vllm|null)\b)",
        f"{BLOCK} is for the vLLM rollout; this is another one",
    ),
    (
        r"(\+\+|\+)?actor_rollout_ref\.rollout\.disaggregation\.enabled=['\"]?(?i:true|1|yes|on)\b",
        f"verl gives disaggregated engines a connector of its own and drops the one of {BLOCK}; "
        "turn one of them off",
    ),
)


def _refuse_conflicts(arguments: Sequence[str]) -> None:
    for argument in arguments:
        for pattern, text in _CONFLICTS:
            if re.match(pattern, argument):
                raise LaunchError(f"{argument}: {text}")


def _copied(block: Mapping[str, Any]) -> dict[str, Any]:
    return {
        str(key): _copied(value) if isinstance(value, Mapping) else value
        for key, value in block.items()
    }


def _put(block: dict[str, Any], override: hydra.Override) -> None:
    below = override.path[len(_PATH) :]
    if not below:
        if not isinstance(override.value, dict):
            raise LaunchError(f"{override.text}: {{enable:true,...}} is wanted")
        _merge(block, override.value)
        return
    for key in below[:-1]:
        inner = block.setdefault(key, {})
        if not isinstance(inner, dict):
            raise LaunchError(f"{override.text}: {key} is no mapping")
        block = inner
    last = below[-1]
    if isinstance(override.value, dict) and isinstance(block.get(last), dict):
        _merge(block[last], override.value)
    else:
        block[last] = override.value


def _merge(block: dict[str, Any], value: Mapping[str, Any]) -> None:
    """Merge as Hydra does: dicts key by key, all else is replaced."""
    for key, below in value.items():
        if isinstance(below, dict) and isinstance(block.get(key), dict):
            _merge(block[key], below)
        else:
            block[str(key)] = below
