# SPDX-License-Identifier: Apache-2.0
"""Which versions of LMCache the adapters know. LMCache need not be there to import this."""

from __future__ import annotations

import logging
import re
from importlib import metadata

from kvcove import __version__

__all__ = ["check_version", "installed_version"]

_log = logging.getLogger("lmcache.kvcove")
# pyproject.toml has the same bounds (extra "lmcache").
OLDEST, NEWEST = (0, 5, 4), (0, 5, 6)
_warned: set[str] = set()


def installed_version() -> str:
    """Return the version of the LMCache of this environment, empty where nobody can say. LMCache is not imported."""
    try:
        return metadata.version("lmcache")
    except metadata.PackageNotFoundError:
        return ""


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
    if version is None:
        version = installed_version()
    numbers = re.match(r"(\d+)\.(\d+)\.(\d+)", version)
    if numbers is None or numbers[0] == "0.0.0":
        return  # a checkout without tags: nobody can say
    found = tuple(map(int, numbers.groups()))
    known = (
        f"kvcove {__version__} knows LMCache {'.'.join(map(str, OLDEST))} to "
        f"{'.'.join(map(str, NEWEST))}; this is {version}"
    )
    if found < OLDEST:
        raise ValueError(f"{known}: upgrade LMCache")
    if found > NEWEST and version not in _warned:
        _warned.add(version)
        _log.warning("kvcove: %s: it is tried; look for a newer kvcove if it fails", known)
