# SPDX-License-Identifier: Apache-2.0
"""Configurations of prime-rl: of ``rl``, with an ``[inference]`` table, and of ``inference`` alone.

Only what decides about KV is read; the rest is prime-rl's.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from kvcove.launch._document import Document, KeyPath, at, dump
from kvcove.launch._errors import ConfigError, Problem, nearest
from kvcove.launch._outdated import changes, migrated
from kvcove.launch._strict import problems_of, raise_if
from kvcove.launch.connector import build_kv_transfer_config
from kvcove.launch.offload import (
    NO_CPU_TIER,
    OFFLOADS,
    CpuTier,
    DiskTier,
    KvcoveOffload,
    MooncakeOffload,
    NativeOffload,
)

__all__ = [
    "MOONCAKE_NEEDS_SLURM",
    "NO_ROUTER_REPLAY",
    "PrimeRl",
    "block_path",
    "check_deployment",
    "load",
    "misplaced",
]

MOONCAKE_NEEDS_SLURM = (
    "Mooncake KV offload requires SLURM — the per-node store is launched by the sbatch template. "
    "Use inference.kv_cache_offload.type='native' for local runs."
)
NODES_NEED_SLURM = "Must use SLURM for multi-node / disaggregated deployment."
NO_ROUTER_REPLAY = (
    "Router replay with inference.kv_cache_offload is not supported. External KV cache hits do not "
    "carry routed-expert decisions."
)


@dataclass(frozen=True)
class PrimeRl:
    """What a configuration says about KV.

    Attributes
    ----------
    offload : NativeOffload, MooncakeOffload, KvcoveOffload or None
        ``inference.kv_cache_offload``.
    use_pd_kv_transfer : bool
        Prefill and decode are engines of their own (``deployment.type = "disaggregated"``).
    slurm : bool
        The run goes through SLURM, so another host runs the engines.
    ranks : int
        Of one engine, tensor times pipeline parallel.
    """

    offload: NativeOffload | MooncakeOffload | KvcoveOffload | None
    use_pd_kv_transfer: bool
    slurm: bool
    ranks: int = 1

    def build_kv_transfer_config(self, vllm_version: str | None = None) -> dict[str, Any] | None:
        """Return the value of vLLM's ``--kv-transfer-config``, or None."""
        return build_kv_transfer_config(
            self.offload, use_pd_kv_transfer=self.use_pd_kv_transfer, vllm_version=vllm_version
        )


def inference_path(data: Mapping[str, Any]) -> KeyPath:
    """Return where the inference configuration is: it may be the whole file."""
    return ("inference",) if isinstance(data.get("inference"), Mapping) else ()


def block_path(data: Mapping[str, Any]) -> KeyPath:
    """Return where ``kv_cache_offload`` is, or would be."""
    return (*inference_path(data), "kv_cache_offload")


def load(document: Document) -> PrimeRl:
    """Read a configuration.

    Raises
    ------
    ConfigError
        All that is wrong with it, each with its key, its line and what to write.
    """
    data = document.data
    inference = inference_path(data)
    block = at(data, block_path(data))
    slurm = at(data, ("slurm",)) is not None
    deployment = at(data, (*inference, "deployment", "type"))
    raise_if(misplaced(document))
    if block is None:
        raise_if(_misspelt(document))
    offload = None
    if block is not None:
        problems = list(_rules(document, inference, slurm))
        try:
            offload = _offload(document, block_path(data), block, elsewhere=slurm)
        except ConfigError as error:
            raise ConfigError([*problems, *error.problems]) from error
        raise_if(problems)
    pd = deployment == "disaggregated" or at(data, (*inference, "use_pd_kv_transfer")) is True
    return PrimeRl(offload, pd, slurm, _ranks(data, inference))


def check_deployment(document: Document) -> None:
    """Check what prime-rl's launchers ask of a whole configuration; engines of a job read one without it.

    Raises
    ------
    ConfigError
        Engines are on several nodes, and no job has these.
    """
    if at(document.data, ("slurm",)) is not None:
        return
    for table in dict.fromkeys([(), inference_path(document.data)]):
        where = (*table, "deployment", "type")
        if at(document.data, where) in ("multi_node", "disaggregated"):
            problem = document.problem(where, NODES_NEED_SLURM)
            raise ConfigError([dataclasses.replace(problem, path="")])


def _ranks(data: Mapping[str, Any], inference: KeyPath) -> int:
    ranks = 1
    for parallel, name in (("tp", "tensor_parallel_size"), ("pp", "pipeline_parallel_size")):
        for key in (("parallel", parallel), ("vllm", name)):
            size = at(data, (*inference, *key))
            if isinstance(size, int):
                ranks *= size
                break
    return ranks


def outdated_text(document: Document, path: KeyPath, new: Mapping[str, Any]) -> str:
    """Return the end of an error: the block as it is right, and the command that writes it."""
    text = f"write this:\n\n{dump(new, path, document.language)}\n"
    if document.source and document.language == "toml":
        text += f"\nor let `python -m kvcove.launch migrate --write {document.source}` do it"
    return text


def _offload(
    document: Document, path: KeyPath, block: Any, *, elsewhere: bool
) -> NativeOffload | MooncakeOffload | KvcoveOffload:
    if not isinstance(block, Mapping):
        raise ConfigError([document.problem(path, f"{block!r} is no table of keys and values")])
    outdated = changes(block)
    if outdated:
        raise ConfigError(_outdated_problems(document, path, block))
    kind = block.get("type")
    if not isinstance(kind, str) or kind not in OFFLOADS:
        told = (
            "missing" if kind is None else f"{kind!r} is not known; {nearest(str(kind), OFFLOADS)}"
        )
        text = f"{told}; give 'native', 'mooncake' or 'kvcove'"
        raise ConfigError([document.problem((*path, "type"), text)])
    model = OFFLOADS[kind]
    keys = {
        (): list(model.model_fields),
        ("cpu",): list(CpuTier.model_fields),
        ("disk",): list(DiskTier.model_fields),
    }
    try:
        offload = model.model_validate(block, context={"elsewhere": elsewhere})
    except ValidationError as error:
        problems = problems_of(error, document, path, keys)
        raise ConfigError(_as_a_rule(problem, NO_CPU_TIER) for problem in problems) from error
    size = at(block, ("cpu", "num_bytes"))
    if isinstance(size, str) and not size.strip().isdecimal() and kind != "kvcove":
        assert offload.cpu is not None
        text = (
            f"{size!r}: prime-rl takes a number here for '{kind}': {offload.cpu.num_bytes}; a size as "
            "text is for 'kvcove'"
        )
        raise ConfigError([document.problem((*path, "cpu", "num_bytes"), text)])
    return offload


def _outdated_problems(
    document: Document, path: KeyPath, block: Mapping[str, Any]
) -> list[Problem]:
    found = [document.problem(path + change.path, change.why) for change in changes(block)]
    try:
        text = outdated_text(document, path, migrated(block))
    except ValueError as error:
        text = str(error)
    return [*found[:-1], dataclasses.replace(found[-1], text=f"{found[-1].text}; {text}")]


def _as_a_rule(problem: Problem, rule: str) -> Problem:
    """Leave the path out where the text of a rule names it."""
    return dataclasses.replace(problem, path="") if problem.text == rule else problem


def misplaced(document: Document) -> list[Problem]:
    """Find the block where it was when only disaggregated deployments had one."""
    inference = inference_path(document.data)
    old = (*inference, "deployment", "kv_cache_offload")
    block = at(document.data, old)
    if not isinstance(block, Mapping):
        return []
    new = {key: value for key, value in block.items() if key != "block_size"}
    text = dump(migrated(new), (*inference, "kv_cache_offload"), document.language)
    return [document.problem(old, f"it is no part of deployment any more; write this:\n\n{text}\n")]


def _misspelt(document: Document) -> list[Problem]:
    """Find the block under a name that is nearly right, or beside ``inference``."""
    path = block_path(document.data)
    found = []
    for table in dict.fromkeys([(), path[:-1]]):
        for key in at(document.data, table) or ():
            if difflib.get_close_matches(str(key), path[-1:], cutoff=0.85):
                text = f"unknown key; did you mean '{'.'.join(path)}'?"
                found.append(document.problem((*table, str(key)), text))
    return found


def _rules(document: Document, inference: KeyPath, slurm: bool) -> Iterator[Problem]:
    data, path = document.data, (*inference, "kv_cache_offload")

    def rule(where: KeyPath, text: str) -> Problem:
        return dataclasses.replace(document.problem(where, text), path="")

    if at(data, (*path, "type")) == "mooncake" and not slurm:
        yield rule((*path, "type"), MOONCAKE_NEEDS_SLURM)
    if at(data, ("trainer", "enable_router_replay")) is True:
        yield rule(("trainer", "enable_router_replay"), NO_ROUTER_REPLAY)
    for vllm in ((*inference, "vllm"), inference):
        key = (*vllm, "enable_prefix_caching")
        if at(data, key) is False:
            name = ".".join(("inference", *key[len(inference) :]))
            yield rule(key, f"KV cache offloading requires {name} to be true.")
