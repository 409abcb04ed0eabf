# SPDX-License-Identifier: Apache-2.0
"""What engines may suffer although a configuration is right: KV of old weights, ended requests."""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kvcove.launch._errors import LaunchError

__all__ = ["program_of", "ranks_of", "tell"]

_log = logging.getLogger("kvcove.launch")

_SIZES = {
    "--tensor-parallel-size": "tensor",
    "-tp": "tensor",
    "--pipeline-parallel-size": "pipeline",
    "-pp": "pipeline",
}
_INSTEAD = "KvcoveConnector keeps KV under a fingerprint of the weights"
_PRIME_RL = "prime-rl"


def tell(
    config: Mapping[str, Any] | None,
    *,
    ranks: int | None,
    resets: bool,
    strict: bool = False,
    source: str = "",
    program: str = _PRIME_RL,
) -> None:
    """Warn of each way to KV of old weights, and where a load that fails ends a user's request.

    Parameters
    ----------
    config : mapping or None
        The value of ``--kv-transfer-config``.
    ranks : int or None
        Of one engine, tensor times pipeline parallel; None where nothing can say.
    resets : bool
        The trainer resets the connector at each change of weights, as verl does and prime-rl does not.
    strict : bool
        Refuse instead.
    source : str
        The file, for the text.
    program : str
        What is launched, for the text, where it does not reset.

    Raises
    ------
    LaunchError
        ``strict``, and there is one.
    """
    salt = _salt(program)
    found = [] if config is None else list(_risks(config, ranks, resets, salt))
    where = f"{source}: " if source else ""
    if found and strict:
        raise LaunchError("\n".join(f"{where}{text}" for text in found))
    for text in found:
        _log.warning("%s%s", where, text)


def ranks_of(command: Sequence[str]) -> int | None:
    """Return how many ranks a ``vllm serve`` is told to have, None where a shell is to fill it in."""
    words = iter(command)
    sizes = dict.fromkeys(_SIZES.values(), "1")
    for word in words:
        name, equals, value = word.partition("=")
        if (size := _SIZES.get(name.replace("_", "-"))) is not None:
            sizes[size] = value if equals else next(words, "1")
    numbers = [size.strip("'\" ") for size in sizes.values()]
    if not all(number.isascii() and number.isdigit() for number in numbers):
        return None
    return math.prod(map(int, numbers))


def program_of(command: Sequence[str]) -> str:
    """Return how a text calls a command: ``vllm serve``; where none is known, the program that runs the engines."""
    words = list(itertools.dropwhile(lambda word: word == "env" or "=" in word, command))
    name = " ".join(itertools.takewhile(lambda word: not word.startswith("-"), words[:2]))
    return f"'{name}'" if name else "the program that runs the engines"


def _salt(program: str) -> str:
    if program == _PRIME_RL:
        remedy = (
            "each request needs a cache_salt with their version (prime-rl's have one, those of an "
            "evaluation client may not)"
        )
    else:
        remedy = (
            "reset it with reset_prefix_cache(reset_connector=True) at each change, or give each "
            "request a cache_salt with their version"
        )
    return (
        f"has no version of the weights, and {program} does not reset it when they change: {remedy}"
    )


def _risks(config: Mapping[str, Any], ranks: int | None, resets: bool, salt: str) -> Iterator[str]:
    options = config.get("kv_connector_extra_config") or {}
    name = config.get("kv_connector")
    if name == "MultiConnector":
        for child in options.get("connectors", ()):
            yield from _risks(child, ranks, resets, salt)
    elif name == "OffloadingConnector":
        if not resets:
            yield f"OffloadingConnector keeps KV in host memory and {salt}. {_INSTEAD}"
        for tier in options.get("secondary_tiers", ()):
            yield (
                f"OffloadingConnector finds what lies in {tier.get('root_dir')!r} again when a run "
                "starts anew, also with other weights: give each run a directory of its own, or an "
                f"empty one. {_INSTEAD}, on disk, too"
            )
    elif name == "MooncakeStoreConnector":
        if resets:
            yield (
                "MooncakeStoreConnector keeps KV in a pool that outlives its engines: a run that begins "
                "with other weights finds KV of the run before until its first reset. Start the master "
                f"anew for each run. {_INSTEAD}"
            )
        else:
            yield f"MooncakeStoreConnector keeps KV in a pool and {salt}. {_INSTEAD}"
        if ranks != 1:
            several = "several ranks, if it has them" if ranks is None else f"{ranks} ranks"
            yield (
                f"MooncakeStoreConnector on an engine of {several}: its reset "
                "empties the queue of puts of rank 0 only. kvcove refuses what other ranks call back "
                "to back after it (KVCOVE_MOONCAKE_QUEUE_FENCE); a queue that stalls for 0.1 s is not "
                "told from new puts. KvcoveConnector has no such gap: what a save belongs to is fixed "
                "when its request is scheduled"
            )
        if config.get("kv_load_failure_policy") != "recompute":
            yield (
                "kv_load_failure_policy is not 'recompute': a block that is evicted between its look-up "
                "and its load ends a user's request"
            )
    elif (
        name == "KvcoveConnector" and options.get("weight_version_source") == "none" and not resets
    ):
        yield f"KvcoveConnector with weight_version_source 'none' {salt}; 'fingerprint' needs none"
