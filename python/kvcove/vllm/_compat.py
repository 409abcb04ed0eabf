# SPDX-License-Identifier: Apache-2.0
"""Which versions of vLLM the connector knows, and what differs between them."""

from __future__ import annotations

import inspect
import logging
import re
from typing import Any

from kvcove import __version__

__all__ = ["check_version", "kv_cache_configs_of", "settle_interleave"]

_log = logging.getLogger("vllm.kvcove")
_OLDEST, _NEWEST = (0, 32), (0, 33)
_warned: set[str] = set()


def check_version(version: str | None = None) -> None:
    """Refuse a vLLM that lacks what the connector calls, and warn once of one that is newer.

    Parameters
    ----------
    version : str, optional
        Of vLLM; else that of the one which is installed.

    Raises
    ------
    ValueError
        With the versions that are known and what to do.
    """
    if version is None:
        import vllm

        version = str(getattr(vllm, "__version__", ""))
    numbers = re.match(r"(\d+)\.(\d+)", version)
    # One that was built from a checkout without tags: nobody can say.
    if numbers is None or (int(numbers[1]) == 0 and int(numbers[2]) < 2):
        return
    found = (int(numbers[1]), int(numbers[2]))
    known = (
        f"kvcove {__version__} knows vLLM {_text(_OLDEST)} to {_text(_NEWEST)}; this is {version}"
    )
    if found < _OLDEST:
        raise ValueError(
            f"{known}: upgrade vLLM, or use its MooncakeStoreConnector with kvcove's mooncake.store"
        )
    if found > _NEWEST and version not in _warned:
        _warned.add(version)
        _log.warning("kvcove: %s: it is tried; look for a newer kvcove if the engine fails", known)


def _text(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))


def settle_interleave(vllm_config: Any, kv_cache_config: Any) -> None:
    """Let a configuration of vLLM settle the interleave of its context-parallel ranks.

    vLLM 0.32 takes the KV cache's configuration for that, 0.33 its groups.
    """
    settle = vllm_config.adjust_dcp_kv_cache_interleave_size
    names = list(inspect.signature(settle).parameters)
    settle(kv_cache_config if names == ["kv_cache_config"] else kv_cache_config.kv_cache_groups)


def kv_cache_configs_of(vllm_config: Any, specs: list[Any], memory: list[int]) -> list[Any]:
    """Return the configuration of the KV cache of each rank, as vLLM's engine plans it.

    vLLM 0.33 plans in a module of its own, and groups the layers of the whole model first.
    """
    try:
        from vllm.v1.core import kv_cache_planning as planning
    except ImportError:
        from vllm.v1.core import kv_cache_utils

        return list(kv_cache_utils.get_kv_cache_configs(vllm_config, specs, memory))
    groups = planning.get_global_kv_cache_groups(vllm_config, specs)
    return list(planning.get_kv_cache_configs(vllm_config, specs, memory, groups))
