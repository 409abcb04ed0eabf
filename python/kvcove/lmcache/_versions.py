# SPDX-License-Identifier: Apache-2.0
"""Which versions of LMCache the adapters know. LMCache need not be there to import this."""

from __future__ import annotations

import logging

from kvcove.engines import _versions

__all__ = ["check_version", "installed_version"]

_log = logging.getLogger("lmcache.kvcove")
# pyproject.toml has the same bounds (extra "lmcache").
_KNOWN = _versions.KnownVersions(
    "LMCache", (0, 5, 4), (0, 5, 6), upgrade="upgrade LMCache", failing="it fails"
)


def installed_version() -> str:
    """Return the version of the LMCache of this environment, empty where nobody can say. LMCache is not imported."""
    return _versions.installed_version("lmcache")


def check_version(version: str | None = None) -> None:
    """Refuse an LMCache that is older than the range, and warn once of one that is newer.

    Parameters
    ----------
    version : str, optional
        Of LMCache; else that of the one which is installed.

    Raises
    ------
    ValueError
        With the versions that are known and what to do.
    """
    _KNOWN.check(installed_version() if version is None else version, _log)
