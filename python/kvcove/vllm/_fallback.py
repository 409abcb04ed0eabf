# SPDX-License-Identifier: Apache-2.0
"""An engine without a connector where MooncakeStoreConnector's master is not there, if that was asked for.

``"on_unreachable": "fallback"`` is a key of KvcoveConnector. vLLM's MooncakeStoreConnector does not know
it and ends the engine when its store cannot be set up, so the plugin asks the master first, in the
process that makes the engine's configuration: on the engine's host, which a launcher need not be.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import kvcove
from kvcove.engines import no_pool
from kvcove.mooncake._config import ETCD, etcd_endpoints, master_in, pool_of, split_address

__all__ = ["settle"]

_log = logging.getLogger("vllm.kvcove")

# As long as a store's setup() waits: launchers start masters and engines side by side.
_WAIT_S = 5.0


def settle(config: Any) -> None:
    """Take MooncakeStoreConnector out of a configuration whose master does not answer.

    Parameters
    ----------
    config : VllmConfig
        Only with ``"on_unreachable": "fallback"``, which is taken out.

    Raises
    ------
    ValueError
        The engine has ranks on several hosts: each would decide for itself.
    """
    transfer = getattr(config, "kv_transfer_config", None)
    extra = getattr(transfer, "kv_connector_extra_config", None) or {}
    if getattr(transfer, "kv_connector", None) != "MooncakeStoreConnector":
        return
    if extra.pop("on_unreachable", "crash") != "fallback":
        return
    reason = _why_no_master(extra)
    if reason is None:
        return
    if getattr(config.parallel_config, "nnodes", 1) > 1:
        raise ValueError(
            f"kvcove: {reason}, and an engine on several hosts cannot fall back: its hosts might not "
            "agree. Start the master, or start the engine without --kv-transfer-config"
        )
    _log.warning(
        "kvcove: %s; this engine runs without a connector until it is started again "
        '("on_unreachable": "crash" makes this an error)',
        reason,
    )
    config.kv_transfer_config = None


def _why_no_master(extra: Mapping[str, Any]) -> str | None:
    """Return why the master cannot be used. None: it can, or the store itself says what is wrong."""
    file = extra.get("mooncake_config_path") or os.environ.get("MOONCAKE_CONFIG_PATH", "")
    try:
        named = master_in(file) if file else os.environ.get("MOONCAKE_MASTER", "")
        pool, master = pool_of(named, 0)
    except ValueError:
        return None
    if not named or not master:
        return None
    until = time.monotonic() + _WAIT_S
    ask = _ask_kvcove if _is_kvcoves() else _ask_original
    while (reason := ask(named, pool)) is not None and time.monotonic() < until:
        time.sleep(0.2)
    return reason


def _ask_kvcove(named: str, pool: str) -> str | None:
    try:
        kvcove.open(pool, timeout=1.0).close()
    except kvcove.Error as error:
        if no_pool(error):
            return f"there is no master at {named} ({error})"
    return None


def _ask_original(named: str, pool: str) -> str | None:
    """Ask whether anybody listens: this package does not speak the original's protocol."""
    reason = ""
    for one in etcd_endpoints(named)[0] if named.startswith(ETCD) else [named]:
        try:
            socket.create_connection(split_address(one, 50051), 1.0).close()
        except OSError as error:
            reason = f"there is no master at {one} ({error.strerror or error})"
        else:
            return None
    return reason


def _is_kvcoves() -> bool:
    """Whether ``mooncake.store`` is kvcove's: the original's is an extension."""
    try:
        spec = importlib.util.find_spec("mooncake")
    except ValueError:  # a stand-in without a spec
        return False
    places = (spec.submodule_search_locations or ()) if spec else ()
    return any(Path(place, "store.py").exists() for place in places)
