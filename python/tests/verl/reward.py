# SPDX-License-Identifier: Apache-2.0
"""The reward of the test's training run: how many numbers of an answer are even."""

from __future__ import annotations

from typing import Any


def compute_score(data_source: str, solution_str: str, ground_truth: str, **_: Any) -> float:
    """Return a share, from 0 to 1; words of the test's tokenizer are numbers."""
    words = [word for word in solution_str.split() if word.isdigit()]
    return sum(int(word) % 2 == 0 for word in words) / max(len(words), 1)
