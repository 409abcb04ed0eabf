# SPDX-License-Identifier: Apache-2.0
"""Settings that engines' adapters and the drop-in for ``mooncake.store`` both read."""

from __future__ import annotations

import os

__all__ = ["asked_for_disk", "is_true"]


def is_true(value: object) -> bool:
    """Whether a setting, as a bool, number or text, is switched on."""
    if isinstance(value, str):
        return value.strip().lower() in ("1", "true", "yes", "on")
    return bool(value)


def asked_for_disk() -> str:
    """Return the variable that asks for an SSD tier, with its value; empty: none does."""
    for name in ("MOONCAKE_ENABLE_OFFLOAD", "MOONCAKE_OFFLOAD_ENABLED"):
        if is_true(os.environ.get(name, "")):
            return f"{name}={os.environ[name]}"
    return ""
