# SPDX-License-Identifier: Apache-2.0
"""Which versions of an engine an adapter knows. Neither the engine nor kvcove's extension need be there."""

from __future__ import annotations

import logging
import re
from importlib import metadata

from kvcove import __version__

__all__ = ["KnownVersions", "installed_version"]

# The versions that builds of a checkout without tags have: setuptools_scm gives them.
_WITHOUT_TAGS = re.compile(r"0\.0\.0|0\.1\.dev")


def installed_version(*distributions: str) -> str:
    """Return the version of the first distribution that this environment has, else ''. Nothing is imported."""
    for each in distributions:
        try:
            return metadata.version(each)
        except metadata.PackageNotFoundError:
            continue
    return ""


class KnownVersions:
    """The versions of an engine that its adapter knows, from the oldest to the newest one."""

    def __init__(
        self,
        engine: str,
        oldest: tuple[int, ...],
        newest: tuple[int, ...],
        *,
        upgrade: str,
        failing: str = "the engine fails",
    ) -> None:
        """Take the range.

        Parameters
        ----------
        engine : str
            Its name, for messages.
        oldest, newest : tuple of int
            As many numbers each as count in a version.
        upgrade : str
            What a user of an older one can do.
        failing : str
            When a user of a newer one shall look for a newer kvcove.
        """
        self.engine, self.oldest, self.newest = engine, oldest, newest
        self._upgrade, self._failing = upgrade, failing
        self._warned: set[str] = set()

    def numbers_of(self, version: str) -> tuple[int, ...] | None:
        """Return the numbers that count in a version; None if it has none, or is of a checkout without tags."""
        found = re.match(r"\.".join([r"(\d+)"] * len(self.oldest)), version)
        if found is None or _WITHOUT_TAGS.match(version):
            return None
        return tuple(map(int, found.groups()))

    def check(self, version: str, log: logging.Logger) -> None:
        """Refuse a version that is older than the range, and warn once of one that is newer.

        Raises
        ------
        ValueError
            With the versions that are known and what to do.
        """
        found = self.numbers_of(version)
        if found is None:
            return
        known = (
            f"kvcove {__version__} knows {self.engine} {text_of(self.oldest)} to "
            f"{text_of(self.newest)}; this is {version}"
        )
        if found < self.oldest:
            raise ValueError(f"{known}: {self._upgrade}")
        if found > self.newest and version not in self._warned:
            self._warned.add(version)
            log.warning(
                "kvcove: %s: it is tried; look for a newer kvcove if %s", known, self._failing
            )


def text_of(version: tuple[int, ...]) -> str:
    """Return ``0.32`` for (0, 32)."""
    return ".".join(map(str, version))
