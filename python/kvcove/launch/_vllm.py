# SPDX-License-Identifier: Apache-2.0
"""Names in ``--kv-transfer-config`` that differ between versions of vLLM."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

from kvcove.vllm._versions import installed_version, serves

__all__ = ["disk_tier", "has_own_connector"]

# vLLM 0.22 brought the tier as `fs_python`. 0.28, 0.32 and 0.33 know `fs` only, and refuse to start
# with another name. For the versions between, what is installed says it (below).
_FIRST_WITH_FS = (0, 28)


def has_own_connector(version: str | None = None) -> bool:
    """Return whether KvcoveConnector runs in a version of vLLM.

    Parameters
    ----------
    version : str, optional
        None: what is installed; yes where nothing is, for what will be installed is newer.
    """
    return serves(version or installed_version())


def disk_tier(version: str | None = None) -> str:
    """Return the name of the disk tier of vLLM's offloading: ``fs``, or ``fs_python`` before 0.28.

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


def _registered_tier() -> str | None:
    """Look into the installed vLLM's list of tiers, as text: to import it takes seconds."""
    try:
        spec = importlib.util.find_spec("vllm")
    except ValueError:  # a stand-in without a spec
        return None
    for directory in (spec.submodule_search_locations or ()) if spec else ():
        factory = Path(directory) / "v1/kv_offload/tiering/factory.py"
        try:
            text = factory.read_text(encoding="utf-8")
        except OSError:
            continue
        for name in ("fs", "fs_python"):
            if f'"{name}"' in text:
                return name
    return None
