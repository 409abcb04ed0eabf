# SPDX-License-Identifier: Apache-2.0
"""Each public name of the original is here, or docs/mooncake.md says that it is not."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest

DOCS = Path(__file__).parents[2] / "docs" / "mooncake.md"
NAMES: dict[str, Any] = json.loads(Path(__file__).with_name("original_names.json").read_text())

pytestmark = pytest.mark.skipif(
    not DOCS.exists(), reason="the documentation is not beside the tests"
)


def excused(name: str) -> bool:
    rows = [line for line in DOCS.read_text().splitlines() if line.startswith("|")]
    return any(f"`{name}`" in row for row in rows)


@pytest.mark.parametrize("module", sorted(NAMES))
def test_a_module(module: str) -> None:
    if excused(module):
        return
    pytest.importorskip("numpy")
    ours = importlib.import_module(module)
    missing = [name for name in NAMES[module] if not hasattr(ours, name) and not excused(name)]
    assert missing == []
    for name, members in NAMES[module].items():
        if not members or excused(name):
            continue
        kind = getattr(ours, name)
        # Fields of data classes and members of enumerations are not attributes of the class.
        known = {*dir(kind), *getattr(kind, "__dataclass_fields__", ()), "name", "value"}
        if name.endswith("LeaseView"):
            continue  # a memoryview here: what the other's class gives with .buffer
        if module == "mooncake.store" and kind.__init__ is not object.__init__:
            known |= {one for one in members if _on_an_object(kind, one)}
        assert sorted(set(members) - known) == [], name


def _on_an_object(kind: Any, name: str) -> bool:
    try:
        return hasattr(kind(), name)
    except TypeError:
        return False
