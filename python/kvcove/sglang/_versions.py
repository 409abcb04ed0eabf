# SPDX-License-Identifier: Apache-2.0
"""Which versions of SGLang the storage backend knows. SGLang need not be there to import this."""

from __future__ import annotations

import logging

from kvcove.engines import _versions

__all__ = ["check_version", "installed_version"]

_log = logging.getLogger("sglang.kvcove")
# pyproject.toml has the same oldest one (extra "sglang").
_KNOWN = _versions.KnownVersions("SGLang", (0, 5, 21), (0, 5, 23), upgrade="upgrade SGLang")


def installed_version() -> str:
    """Return the version of the SGLang of this environment, empty where nobody can say. SGLang is not imported."""
    return _versions.installed_version("sglang")


def check_version(version: str | None = None) -> None:
    """Refuse an SGLang that is older than the range, and warn once of one that is newer.

    Parameters
    ----------
    version : str, optional
        Of SGLang; else that of the one which is installed.

    Raises
    ------
    ValueError
        With the versions that are known and what to do.
    """
    _KNOWN.check(installed_version() if version is None else version, _log)
