# SPDX-License-Identifier: Apache-2.0
"""What a trainer does to an engine's weights. A module of its own: engines' processes import it."""

from __future__ import annotations

from typing import Any


def change(model: Any) -> int:
    """Add the same noise to every parameter, whoever calls."""
    import torch

    generator = torch.Generator().manual_seed(7)
    changed = 0
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float32)
            parameter.add_(noise.to(parameter.dtype) * 0.2)
            changed += 1
    return changed


_BEFORE: list[Any] = []


def change_and_remember(model: Any) -> int:
    """As :func:`change`, for :func:`restore`."""
    _BEFORE[:] = [parameter.detach().clone() for parameter in model.parameters()]
    return change(model)


def restore(model: Any) -> int:
    """Put back what was there before, bit for bit."""
    import torch

    with torch.no_grad():
        for parameter, before in zip(model.parameters(), _BEFORE, strict=True):
            parameter.copy_(before)
    return len(_BEFORE)
