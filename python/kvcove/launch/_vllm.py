# SPDX-License-Identifier: Apache-2.0
"""Names in ``--kv-transfer-config`` that differ between versions of vLLM."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

from kvcove.vllm._versions import installed_version, serves

__all__ = ["disk_tier", "has_own_connector", "refuses_verls_abort"]

# vLLM 0.22 brought the tier as `fs_python`. 0.23 and later know `fs` only, and refuse to start with another name.
_FIRST_WITH_FS = (0, 23)


def has_own_connector(version: str | None = None) -> bool:
    """Return whether KvcoveConnector runs in a version of vLLM.

    Parameters
    ----------
    version : str, optional
        None: what is installed; yes where nothing is, for what will be installed is newer.
    """
    return serves(version or installed_version())


def disk_tier(version: str | None = None) -> str:
    """Return the name of the disk tier of vLLM's offloading: ``fs``, or ``fs_python`` before 0.23.

    Parameters
    ----------
    version : str, optional
        Of vLLM. None: what is installed, and the newest name where nothing is.

    Raises
    ------
    ValueError
        It is no version.
    """
    if version is None:
        registered = _registered_tier()
        if registered is not None:
            return registered
        version = installed_version()
    if version is None:
        return "fs"
    found = re.match(r"v?(\d+)\.(\d+)", version)
    if found is None:
        raise ValueError(f"{version!r} is no version of vLLM; 0.32.0 is one")
    return "fs" if (int(found[1]), int(found[2])) >= _FIRST_WITH_FS else "fs_python"


def refuses_verls_abort() -> bool:
    """Whether the installed verl aborts requests with an argument that the installed vLLM does not take.

    verl 0.9.1 does, and vLLM 0.32 has dropped it. Asynchronous trainers abort at each update of weights.
    """
    argument = "wait_for_inflight_requests"
    verl = _text_of("verl", "workers/rollout/vllm_rollout/vllm_async_server.py")
    vllm = _text_of("vllm", "v1/engine/async_llm.py")
    return f"{argument}=False" in verl and vllm != "" and argument not in vllm


def _registered_tier() -> str | None:
    text = _text_of("vllm", "v1/kv_offload/tiering/factory.py")
    return next((name for name in ("fs", "fs_python") if f'"{name}"' in text), None)


def _text_of(package: str, file: str) -> str:
    """Return a source of an installed package, empty where there is none: to import it takes seconds."""
    try:
        spec = importlib.util.find_spec(package)
    except ValueError:  # a stand-in without a spec
        return ""
    for directory in (spec.submodule_search_locations or ()) if spec else ():
        try:
            return Path(directory, file).read_text(encoding="utf-8")
        except OSError:
            continue
    return ""
