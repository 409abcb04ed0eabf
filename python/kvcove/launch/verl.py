# SPDX-License-Identifier: Apache-2.0
"""verl with ``actor_rollout_ref.rollout.kv_store``, without a change to verl.

verl 0.9.1 has no such block. It hands ``actor_rollout_ref.rollout.engine_kwargs.vllm`` on to vLLM,
a dict as JSON, so :func:`plan` takes the block out of a command and puts what it means there.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from kvcove.launch import hydra
from kvcove.launch._document import Document, KeyPath, at, read
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
    hosts : int
        On which engines run, as the command says; 1 where nothing says it.
    """

    config: KVStoreConfig
    command: list[str]
    overrides: list[str]
    environment: dict[str, str]
    connector: dict[str, Any] | None = None
    ranks: int | None = _DEFAULT_RANKS
    hosts: int = 1


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
    _refuse_connector(rest)
    documents = [each for each in (own_file(rest), document) if each is not None]
    refuse_conflicts(rest, documents)
    environment = {}
    if config.config_path is not None:
        # vLLM 0.32 knows the variable only; 0.33 reads the key in the JSON.
        environment["MOONCAKE_CONFIG_PATH"] = config.config_path
    # Hydra merges a dict that is added into one that is there. To add null is an error of Hydra's
    # then: a connector in verl's own files is not mixed with this one in silence.
    added = [f"+{TARGET}=null", f"{TARGET}={hydra.quote(made)}"]
    hosts = hosts_of(rest, documents)
    return Plan(config, rest, added, environment, made, ranks_of(rest, documents), hosts)


def own_file(command: Sequence[str]) -> Document | None:
    """Return the file that a command's --config-path and --config-name name, where it is a file here.

    A path that is not absolute is one from the module that Hydra runs, so from verl's ``trainer``.
    """
    named = {"path": "", "dir": "", "name": ""}
    words = iter(command)
    for word in words:
        found = re.fullmatch(r"(?:--config-(path|dir|name)|-c([pdn]))(?:=(.*))?", word, re.DOTALL)
        if found:
            key = found[1] or {"p": "path", "d": "dir", "n": "name"}[found[2]]
            named[key] = found[3] if found[3] is not None else next(words, "")
    if not any(named.values()):
        return None
    name = (named["name"] or "ppo_trainer").removesuffix(".yaml") + ".yaml"
    for directory in _directories(named["path"], named["dir"]):
        if (directory / name).is_file():
            try:
                return read(directory / name)
            except ConfigError:
                return None  # Hydra says what is wrong with it
    return None


def _directories(path: str, more: str) -> Iterator[Path]:
    if more:
        yield Path(more)
    yield Path(path)
    spec = importlib.util.find_spec("verl")
    for place in (spec.submodule_search_locations or ()) if spec else ():
        yield Path(place, "trainer", path or "config")


def _said(
    arguments: Sequence[str], documents: Sequence[Document], path: KeyPath
) -> tuple[Any, str]:
    """Return what is said of a key, and where: by the last override, else by a file. None: nothing."""
    for argument in reversed(arguments):
        key, equals, value = argument.partition("=")
        if equals and key.lstrip("+") == ".".join(path):
            return value.strip("'\""), argument
    for document in documents:
        # A file may begin at the block, or above it.
        block = find_block(document.data) or _PATH
        inner = path[len(_PATH) - len(block) :] if path[: len(_PATH) - 1] == _PATH[:-1] else path
        found = at(document.data, inner)
        if found is not None:
            return found, str(document.problem(inner, str(found)))
    return None, ""


def ranks_of(arguments: Sequence[str], documents: Sequence[Document] = ()) -> int | None:
    """Return what Hydra's overrides say of an engine, else files, else verl's defaults.

    None: one of them is no number, as where Hydra is to interpolate it.
    """
    sizes = []
    for name, default in _DEFAULT_SIZES.items():
        size, _ = _said(arguments, documents, (*_PATH[:-1], name))
        sizes.append(default if size is None else _number(size))
    return None if None in sizes else math.prod(size for size in sizes if size is not None)


def hosts_of(arguments: Sequence[str], documents: Sequence[Document] = ()) -> int:
    """Return on how many hosts engines run: the trainer's, or those of a rollout of its own."""
    said = [
        _said(arguments, documents, path)[0]
        for path in (("trainer", "nnodes"), (*_PATH[:-1], "nnodes"))
    ]
    return max(1, *(_number(each) or 0 for each in said))


def _number(value: Any) -> int | None:
    text = str(value)
    return int(text) if text.isascii() and text.isdigit() else None


def _refuse_connector(arguments: Sequence[str]) -> None:
    for argument in arguments:
        if re.match(rf"(\+\+|\+)?{re.escape(TARGET)}[.=]", argument):
            raise LaunchError(f"{argument}: {BLOCK} makes this; give one of them")


def refuse_conflicts(arguments: Sequence[str], documents: Sequence[Document]) -> None:
    """Refuse a rollout that drops the connector, on the command line or in a file.

    Raises
    ------
    LaunchError
        With the override, or the line of the file.
    """
    name, where = _said(arguments, documents, (*_PATH[:-1], "name"))
    if name not in (None, "vllm", "null", "???") and "${" not in str(name):
        raise LaunchError(f"{where}: {BLOCK} is for the vLLM rollout; this is another one")
    apart, where = _said(arguments, documents, (*_PATH[:-1], "disaggregation", "enabled"))
    if str(apart).lower() in ("true", "1", "yes", "on"):
        raise LaunchError(
            f"{where}: verl gives disaggregated engines a connector of its own and drops the one of "
            f"{BLOCK}; turn one of them off"
        )


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
