# SPDX-License-Identifier: Apache-2.0
"""The one builder of vLLM's ``--kv-transfer-config``.

>>> from kvcove.launch.connector import build_kv_transfer_config, to_json
>>> from kvcove.launch.offload import CpuTier, KvcoveOffload
>>> print(to_json(build_kv_transfer_config(KvcoveOffload(cpu=CpuTier(num_bytes="8GiB")))))
{"kv_connector":"KvcoveConnector","kv_role":"kv_both","kv_connector_module_path":"kvcove.vllm",\
"kv_load_failure_policy":"recompute","kv_connector_extra_config":{"pool":"auto","memory":"8GiB"}}
"""

from __future__ import annotations

import json
import logging
from typing import Any

from kvcove.launch import _vllm
from kvcove.launch.kv_store import KVStoreConfig
from kvcove.launch.offload import KvcoveOffload, MooncakeOffload, NativeOffload

__all__ = ["build_kv_transfer_config", "to_json"]

_log = logging.getLogger("kvcove.launch")

Offload = NativeOffload | MooncakeOffload | KvcoveOffload | KVStoreConfig

_NIXL = {
    "kv_connector": "NixlConnector",
    "kv_role": "kv_both",
    "kv_connector_extra_config": {"num_threads": 1},
}
# vLLM's default ends a user's request when a block is evicted between look-up and load.
_RECOMPUTE = {"kv_load_failure_policy": "recompute"}


def build_kv_transfer_config(
    offload: Offload | None = None,
    *,
    use_pd_kv_transfer: bool = False,
    vllm_version: str | None = None,
) -> dict[str, Any] | None:
    """Return the value of ``--kv-transfer-config``, or None where no connector is wanted.

    Parameters
    ----------
    offload : NativeOffload, MooncakeOffload, KvcoveOffload or KVStoreConfig, optional
        What was configured. A KVStoreConfig that is not enabled counts as None.
    use_pd_kv_transfer : bool
        Prefill and decode are engines of their own, and NIXL carries KV from one to the other.
    vllm_version : str, optional
        Names differ between versions of vLLM. None: those of the installed one.

    Returns
    -------
    dict or None
        One connector as itself; NIXL and an offload as MultiConnector, NIXL first: vLLM loads
        from the first one that has a hit, and KV of the prefill engine is never on another way.

    Raises
    ------
    ValueError
        The version is none.
    """
    connectors: list[dict[str, Any]] = []
    if use_pd_kv_transfer:
        connectors.append({**_NIXL, "kv_connector_extra_config": {"num_threads": 1}})
    if isinstance(offload, KVStoreConfig):
        if offload.enable:
            connectors.append(_of_kv_store(offload, vllm_version))
    elif isinstance(offload, NativeOffload):
        connectors.append(_native(offload, vllm_version))
    elif isinstance(offload, MooncakeOffload):
        connectors.append(_connector("MooncakeStoreConnector", {}) | _RECOMPUTE)
    elif offload is not None:
        connectors.append(_kvcove("kv_both", offload.connector_options()))
    if len(connectors) < 2:
        return connectors[0] if connectors else None
    # vLLM's scheduler reads the policy of the whole, each connector that of its own.
    policies = [c["kv_load_failure_policy"] for c in connectors if "kv_load_failure_policy" in c]
    return {
        "kv_connector": "MultiConnector",
        "kv_role": "kv_both",
        **({"kv_load_failure_policy": policies[0]} if policies else {}),
        "kv_connector_extra_config": {"connectors": connectors},
    }


def to_json(config: dict[str, Any] | None) -> str:
    """Return what follows ``--kv-transfer-config``, in one line; empty for None."""
    return "" if config is None else json.dumps(config, separators=(",", ":"), ensure_ascii=False)


def _connector(name: str, options: dict[str, Any], role: str = "kv_both") -> dict[str, Any]:
    return {"kv_connector": name, "kv_role": role, "kv_connector_extra_config": options}


def _native(offload: NativeOffload, vllm_version: str | None) -> dict[str, Any]:
    assert offload.cpu is not None
    options: dict[str, Any] = {"cpu_bytes_to_use": offload.cpu.num_bytes}
    if offload.disk is not None:
        options["spec_name"] = "TieringOffloadingSpec"
        options["secondary_tiers"] = [
            {"type": _vllm.disk_tier(vllm_version), "root_dir": str(offload.disk.path)}
        ]
    return _connector("OffloadingConnector", options)


def _kvcove(role: str, options: dict[str, Any]) -> dict[str, Any]:
    return {
        "kv_connector": "KvcoveConnector",
        "kv_role": role,
        # Beside vLLM's plugin, which VLLM_PLUGINS may have turned off.
        "kv_connector_module_path": "kvcove.vllm",
        **_RECOMPUTE,
        **({"kv_connector_extra_config": options} if options else {}),
    }


def _of_kv_store(config: KVStoreConfig, vllm_version: str | None) -> dict[str, Any]:
    name = config.connector(vllm_version)
    if name == "KvcoveConnector":
        made = _kvcove(config.kv_role, {})
    else:
        made = {"kv_connector": name, "kv_role": config.kv_role, **_RECOMPUTE}
    made |= config.extra_config
    options = config.connector_options()
    if config.config_path is not None and "mooncake_config_path" not in options:
        _log.warning(
            "kv_store.config_path is not used: extra_config.kv_connector_extra_config takes "
            "its place; put mooncake_config_path: %s into it",
            config.config_path,
        )
    # An engine starts later than the launcher, and on another host: it asks the pool itself. To
    # MooncakeStoreConnector the key means nothing, and kvcove's plugin reads it (kvcove/vllm/_fallback.py).
    if name == "KvcoveConnector" or config.on_failure == "fallback":
        options = {"on_unreachable": config.on_failure} | options
    if options:
        made["kv_connector_extra_config"] = options
    return made
