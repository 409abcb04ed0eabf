# SPDX-License-Identifier: Apache-2.0
"""The connector by a variable alone, for trainers that hand no ``kv_transfer_config`` to their engines."""

from __future__ import annotations

import json
import logging
import os
from typing import Any

__all__ = ["give", "is_on", "settings", "transfer_config", "why_not"]

_log = logging.getLogger("vllm.kvcove")
VARIABLE = "KVCOVE_VLLM_CONNECTOR"
SETTINGS = "KVCOVE_VLLM_EXTRA_CONFIG"
MEMORY = "KVCOVE_MEMORY"  # as `kvcove run` and `kvcove serve` take it
_reported: set[str] = set()


def is_on() -> bool:
    """Return whether engines without a ``kv_transfer_config`` get the connector.

    Raises
    ------
    ValueError
        The variable has another value than ``auto`` and ``off``.
    """
    value = os.environ.get(VARIABLE, "")
    if value not in ("", "auto", "off"):
        raise ValueError(
            f"kvcove: ${VARIABLE}: {value!r}: give auto (engines without a kv_transfer_config get "
            "KvcoveConnector) or off"
        )
    return value == "auto"


def settings() -> dict[str, Any]:
    """Return the ``kv_connector_extra_config`` that the environment asks for.

    The pool is the one that ``"pool": "auto"`` finds ($KVCOVE_POOL and so on). $KVCOVE_MEMORY is used for a pool of the
    engine's own only: `kvcove run` hands on the variable that gave its owner memory.

    Raises
    ------
    ValueError
        A variable is no setting of the connector.
    """
    from kvcove.engines import named_pool
    from kvcove.vllm._config import Config

    text = os.environ.get(SETTINGS, "") or "{}"
    try:
        extra = json.loads(text)
    except ValueError as error:
        raise ValueError(f"kvcove: ${SETTINGS}: {text!r} is no JSON: {error}") from error
    if not isinstance(extra, dict):
        raise ValueError(
            f"kvcove: ${SETTINGS}: {text!r}: give an object of kv_connector_extra_config, "
            '{"save_decoded": true} for example'
        )
    extra.setdefault("pool", "auto")
    if extra["pool"] == "auto":
        # Processes of this engine on other hosts need not have the variable that names it.
        extra["pool"] = named_pool()[0]
    variable = ""
    if os.environ.get(MEMORY) and "memory" not in extra and extra["pool"] in ("auto", "embedded"):
        extra["memory"] = os.environ[MEMORY]
        variable = f", ${MEMORY}"
    try:
        Config.of(extra)
    except ValueError as error:
        raise ValueError(f"kvcove: ${SETTINGS}{variable}: {error}") from error
    return extra


def transfer_config(extra: dict[str, Any]) -> Any:
    """Return vLLM's ``KVTransferConfig`` for the connector with these settings."""
    from vllm.config import KVTransferConfig

    return KVTransferConfig(
        kv_connector="KvcoveConnector",
        kv_connector_module_path="kvcove.vllm",
        kv_role="kv_both",
        # vLLM's default ends a user's request when a block is evicted between look-up and load.
        kv_load_failure_policy="recompute",
        kv_connector_extra_config=extra,
    )


def give(config: Any) -> None:
    """Give the connector to an engine whose configuration has none, or log why not, once a process.

    Parameters
    ----------
    config : VllmConfig
        Before vLLM completes it. One without a model is no engine's.

    Raises
    ------
    ValueError
        As ``settings``.
    """
    if getattr(config, "model_config", None) is None:
        return
    own = getattr(config.kv_transfer_config, "kv_connector", None)
    if own:
        _report(
            logging.INFO, f"this engine has a kv_transfer_config of its own ({own}), which stays"
        )
        return
    extra = settings()
    reason = why_not(config, extra)
    if reason is not None:
        _report(logging.WARNING, f"this engine runs without kvcove: {reason}")
        return
    config.kv_transfer_config = transfer_config(extra)
    _report(logging.INFO, f"this engine gets KvcoveConnector with {json.dumps(extra)}")


def _report(level: int, text: str) -> None:
    if text not in _reported:
        _reported.add(text)
        _log.log(level, "kvcove: %s=auto: %s", VARIABLE, text)


def why_not(config: Any, extra: dict[str, Any]) -> str | None:
    """Return why the connector cannot serve an engine, and what to do; None where it can.

    Parameters
    ----------
    config : VllmConfig
        Of the engine, with a model.
    extra : dict
        From :func:`settings`.
    """
    from kvcove.vllm._versions import check_version

    try:
        check_version()
    except ValueError as error:
        return str(error)
    from kvcove.vllm import _compat

    cache, model = config.cache_config, config.model_config
    if getattr(cache, "kv_offloading_size", None) is not None:
        return "vLLM's own offloading is asked for; leave out kv_offloading_size"
    if getattr(cache, "use_replayssm", False):
        return "vLLM takes no connector beside use_replayssm; leave it out"
    if not cache.enable_prefix_caching:
        return (
            "its prefix caching is off, so its blocks have no hashes by which they are found; set "
            "enable_prefix_caching=True (OpenRLHF: --vllm.enable_prefix_caching, AReaL: "
            "vllm.no_enable_prefix_caching=false)"
        )
    # Of the model before 0.31.
    outputs = getattr(config, "aux_output_config", model)
    if getattr(outputs, "enable_return_routed_experts", False):
        return "KV from a pool brings no routed experts with it; leave out enable_return_routed_experts"
    return (
        _why_not_ranks(config.parallel_config)
        or _why_not_memory(model)
        or _compat.why_not_scales(cache)
        or _why_not_model(model)
        or _why_not_policy(config, extra)
    )


def _why_not_ranks(parallel: Any) -> str | None:
    """Return why ranks with a scheduler each cannot have it: their look-ups end in different steps."""
    ranks = int(parallel.tensor_parallel_size) * int(parallel.pipeline_parallel_size)
    if str(parallel.distributed_executor_backend) != "external_launcher" or ranks == 1:
        return None
    return (
        f"with distributed_executor_backend external_launcher each of its {ranks} ranks schedules by "
        "itself, and hits in a pool would make them schedule otherwise; give each engine one rank, or "
        "let vLLM start the ranks (mp, ray)"
    )


def _why_not_policy(config: Any, extra: dict[str, Any]) -> str | None:
    """Return what the connector would refuse when the model is there."""
    from kvcove.vllm import _compat
    from kvcove.vllm._config import Config

    beside = (
        _has_windows_or_states(config.model_config) or _compat.why_steps_overlap(config) is not None
    )
    return _compat.why_not_policy(config, Config.of(extra), True, beside)


def _why_not_memory(model: Any) -> str | None:
    # As vLLM refuses it, which would end the engine. Its own allocator takes care of that.
    if "expandable_segments:True" not in os.environ.get("PYTORCH_CUDA_ALLOC_CONF", ""):
        return None
    if getattr(model, "enable_cumem_allocator", False) or getattr(
        model, "enable_sleep_mode", False
    ):
        return None
    return (
        "vLLM takes no connector with PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, as torch may move KV "
        "memory; set it to expandable_segments:False in the engine's environment (torchtitan sets True where "
        "nobody else has), or set enable_sleep_mode=True"
    )


def _why_not_model(model: Any) -> str | None:
    """Return what :func:`kvcove.vllm._compat.check_model` would refuse when the model is there."""
    from kvcove.vllm import _compat

    if _compat.FAILED_LOADS_BY_REQUEST or not _has_windows_or_states(model):
        return None
    return (
        f"this model has windows or states, and vLLM {_compat.release()} cannot be told that a load for "
        "them failed; upgrade to vLLM 0.30 or later"
    )


def _has_windows_or_states(model: Any) -> bool:
    """Return what :func:`kvcove.vllm._compat.fails_by_block` denies when the model is there."""
    windows = model.get_sliding_window() is not None
    chunks = bool(getattr(model, "attention_chunk_size", None))
    return windows or chunks or bool(model.is_hybrid or model.is_attention_free)
