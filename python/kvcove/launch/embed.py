# SPDX-License-Identifier: Apache-2.0
"""For a trainer's own code: from a block of its configuration to its engines' connector."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from kvcove.launch import _shared, _stale, prime_rl, verl
from kvcove.launch._document import Document
from kvcove.launch._errors import LaunchError
from kvcove.launch.connector import build_kv_transfer_config
from kvcove.launch.kv_store import KVStoreConfig
from kvcove.launch.probe import probe

__all__ = ["PoolUnreachable", "ask", "for_prime_rl", "for_verl"]

_log = logging.getLogger("kvcove.launch")


class PoolUnreachable(LaunchError, ConnectionError):
    """``on_failure`` is ``crash``, and the pool does not answer."""


def for_verl(
    kv_store: KVStoreConfig | Mapping[str, Any] | None,
    *,
    timeout: float = 2.0,
    vllm_version: str | None = None,
    tensor_parallel_size: int = 1,
    pipeline_parallel_size: int = 1,
    nnodes: int = 1,
    strict: bool = False,
) -> dict[str, Any] | None:
    """Return the connector of verl's rollout engines; called once, before they are started.

    Parameters
    ----------
    kv_store : KVStoreConfig, mapping or None
        ``config.actor_rollout_ref.rollout.kv_store``, as it is (a DictConfig is a mapping).
    timeout : float
        Seconds that the pool may take to answer.
    vllm_version : str, optional
        Of the engines, where they are not this environment's.
    tensor_parallel_size : int
        Of one engine (``rollout.tensor_model_parallel_size``).
    pipeline_parallel_size : int
        Of one engine (``rollout.pipeline_model_parallel_size``).
    nnodes : int
        Hosts that run engines (``trainer.nnodes``): where they would share nothing, a warning says so.
    strict : bool
        Where engines may be given KV of old weights, that is an error; else a warning is logged.

    Returns
    -------
    dict or None
        The value of ``--kv-transfer-config``. None: there is no block, or it is not enabled. Where the
        pool does not answer and ``on_failure`` is ``fallback`` a warning is logged, and each engine asks
        again where it runs.

    Raises
    ------
    ConfigError
        The block is wrong: a ``ValueError`` that names key and remedy.
    LaunchError
        Nothing says where MooncakeStoreConnector's master is; or ``strict`` refuses.
    PoolUnreachable
        The pool does not answer and ``on_failure`` is ``crash``.
    """
    if kv_store is None:
        return None
    config = kv_store
    if not isinstance(config, KVStoreConfig):
        path = tuple(verl.BLOCK.split("."))
        config = verl.parse_block(_plain(config), Document({}, language="yaml"), path)
    made = build_kv_transfer_config(config, vllm_version=vllm_version)
    if made is None:
        return None
    ask(config, timeout=timeout)
    _shared.tell(config, nnodes)
    ranks = tensor_parallel_size * pipeline_parallel_size
    _stale.tell(made, ranks=ranks, resets=True, strict=strict)
    return made


def for_prime_rl(
    config: Mapping[str, Any], *, vllm_version: str | None = None, strict: bool = False
) -> dict[str, Any] | None:
    """Return the connector of prime-rl's inference engines.

    Parameters
    ----------
    config : mapping
        The whole configuration of ``rl`` (with ``inference``) or of ``inference``, as parsed.
    vllm_version : str, optional
        Of the engines, where they are not this environment's.
    strict : bool
        Where engines may be given KV of old weights, that is an error; else a warning is logged.

    Returns
    -------
    dict or None
        The value of ``--kv-transfer-config``; None where nothing is offloaded and prefill and
        decode are not apart.

    Raises
    ------
    ConfigError
        The configuration is wrong: a ``ValueError`` that names key and remedy.
    LaunchError
        ``strict`` refuses.
    """
    found = prime_rl.load(Document(_plain(config)))
    made = found.build_kv_transfer_config(vllm_version)
    _stale.tell(made, ranks=found.ranks, resets=False, strict=strict)
    return made


def ask(
    config: KVStoreConfig, *, timeout: float = 2.0, environ: Mapping[str, str] | None = None
) -> None:
    """Ask the pool once, from this host, and apply ``on_failure``: a warning, or an error.

    Raises
    ------
    LaunchError
        Nothing says where the pool is.
    PoolUnreachable
        It does not answer, and ``on_failure`` is ``crash``.
    """
    reason = probe(config, timeout=timeout, environ=environ)
    if reason is None:
        return
    if config.on_failure == "crash":
        raise PoolUnreachable(
            f"{verl.BLOCK}: {reason}. Start it, or let the engines start without it: "
            "on_failure=fallback"
        )
    _log.warning(
        "%s: %s. Each engine asks again where it runs, and starts without a pool if it gets no answer "
        "there. To make this an error: on_failure=crash",
        verl.BLOCK,
        reason,
    )


def _plain(value: Any) -> Any:
    """Return dicts and lists for mappings and sequences; OmegaConf's resolve themselves so."""
    if isinstance(value, Mapping):
        return {str(key): _plain(below) for key, below in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [_plain(item) for item in value]
    return value
