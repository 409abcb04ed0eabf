# SPDX-License-Identifier: Apache-2.0
"""What is wrong with a configuration: where it is, and what would be right."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["ConfigError", "LaunchError", "Problem", "nearest"]


class LaunchError(Exception):
    """What every exception of :mod:`kvcove.launch` is."""


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong.

    Attributes
    ----------
    path : str
        The key in the configuration, from its root: ``inference.kv_cache_offload.cpu.num_bytes``.
        Empty where a rule concerns the configuration as a whole.
    text : str
        What is wrong with it, and what to write instead.
    source : str
        The file, or empty where the configuration came from a program.
    line : int
        Of that file, from 1; 0 where it is not known.
    """

    path: str
    text: str
    source: str = ""
    line: int = 0

    def __str__(self) -> str:
        place = f"{self.source}:{self.line}" if self.line else self.source
        return ": ".join(part for part in (place, self.path, self.text) if part)


class ConfigError(LaunchError, ValueError):
    """A configuration that cannot be used.

    Attributes
    ----------
    problems : tuple of Problem
        All that was found, in the order of the configuration. The message has a line for each.
    """

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))


def nearest(key: str, known: Iterable[str]) -> str:
    """Return the hint that follows "unknown key": the nearest known key, else all of them."""
    names = list(known)
    near = difflib.get_close_matches(key, names, 1)
    return f"did you mean '{near[0]}'?" if near else f"known: {', '.join(names)}"
