# SPDX-License-Identifier: Apache-2.0
"""The examples of the documentation and of the docstrings are true."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.mark.parametrize("name", ["python.md", "mooncake.md", "verl.md", "prime-rl.md"])
def test_a_page(name: str) -> None:
    failed, tried = doctest.testfile(str(DOCS / name), module_relative=False)
    assert tried > 0
    assert failed == 0


@pytest.mark.parametrize("name", ["kvcove", "kvcove.aio", "kvcove.mooncake.async_store"])
def test_a_module(name: str) -> None:
    failed, tried = doctest.testmod(importlib.import_module(name))
    assert tried > 0
    assert failed == 0
