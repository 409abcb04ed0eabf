# SPDX-License-Identifier: Apache-2.0
"""What vLLM calls in every process (entry point ``vllm.general_plugins``)."""

from __future__ import annotations

import functools
import logging
import os
from typing import Any

from kvcove.vllm import _switch

_log = logging.getLogger("vllm.kvcove")


def register() -> None:
    """Make ``"kv_connector": "KvcoveConnector"`` enough, or $KVCOVE_VLLM_CONNECTOR=auto alone.

    vLLM lets what this raises end the process. An engine that asks for nothing of ours must not end so.

    Raises
    ------
    ValueError
        The variable has another value than ``auto`` and ``off``.
    """
    wanted = _switch.is_on()
    try:
        _register()
    except Exception:
        if wanted:
            raise
        _log.warning(
            "kvcove: its connector cannot be used with this vLLM; engines without it run as ever",
            exc_info=True,
        )


def _register() -> None:
    from vllm.config import VllmConfig
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

    if "KvcoveConnector" not in KVConnectorFactory._registry:
        KVConnectorFactory.register_connector("KvcoveConnector", "kvcove.vllm", "KvcoveConnector")
    check_early(VllmConfig)


def check_early(config: Any) -> None:
    """Let a configuration of vLLM, when it is made, get ours by the switch, fall back, and refuse a mistake.

    The connectors are made when the model has been loaded, half a minute later.
    """
    from kvcove.vllm import _fallback

    made = config.__post_init__
    if getattr(made, "_kvcove", False):
        return

    @functools.wraps(made)
    def checked(self: Any, *args: Any, **kwargs: Any) -> Any:
        if _switch.is_on():
            _switch.give(self)
        _fallback.settle(self)
        check(getattr(self, "kv_transfer_config", None))
        return made(self, *args, **kwargs)

    checked._kvcove = True  # type: ignore[attr-defined]
    config.__post_init__ = checked


def check(transfer: Any) -> None:
    """Refuse a mistake in the configuration of our connector, or of a child that is ours.

    Raises
    ------
    ValueError
        As ``Config.of``; or vLLM is of a version that the connector does not know.
    """
    extra = getattr(transfer, "kv_connector_extra_config", None) or {}
    ours = [extra] if getattr(transfer, "kv_connector", None) == "KvcoveConnector" else []
    for child in extra.get("connectors") or ():
        if isinstance(child, dict) and child.get("kv_connector") == "KvcoveConnector":
            ours.append(child.get("kv_connector_extra_config") or {})
    if not ours:
        return  # nor is anything imported for it
    from kvcove.vllm._config import Config
    from kvcove.vllm._versions import check_version, installed

    for each in ours:
        check_version()
        if Config.of(each).weight_version_source == "engine" and (installed() or (1, 0)) < (0, 27):
            raise ValueError(
                "kvcove: weight_version_source: 'engine': an engine is told the name of its weights "
                "in vLLM 0.27 or later; give 'fingerprint'"
            )
    name_hash_seed()


def name_hash_seed() -> None:
    """Give block hashes a seed that all engines have, where vLLM draws one for each (before 0.29).

    Engines whose hashes begin with another number never share. The engine's processes inherit it.
    """
    from kvcove.vllm._versions import installed

    version = installed()
    if version is None or version >= (0, 29) or "PYTHONHASHSEED" in os.environ:
        return
    os.environ["PYTHONHASHSEED"] = "0"
    _log.info(
        "kvcove: PYTHONHASHSEED=0 is set for this engine: without it this vLLM draws a random seed "
        "for its block hashes, and no other engine would find its KV"
    )
