# SPDX-License-Identifier: Apache-2.0
"""Digests of tensors: at memory speed on the host, on the device where they lie there."""

from __future__ import annotations

import hashlib
from typing import Any

from kvcove import _native

__all__ = ["DeviceLanes", "Digest"]

_SPLITMIX = (0x9E3779B97F4A7C15 - (1 << 64), 0xBF58476D1CE4E5B9 - (1 << 64), 0x94D049BB133111EB)
_MASK = (1 << 64) - 1
_FOLD = 0xD6E8FEB86659FD93  # odd: folds the sums of a tensor's parts


def _plain(tensor: Any) -> Any:
    """Return a tensor's values one behind the other, whatever its strides and lazy bits."""
    return tensor.detach().resolve_conj().resolve_neg().contiguous()


class DeviceLanes:
    """Two sums of 64 bits over a tensor's bytes, computed where it lies.

    Each word goes into both with odd factors of its place, which are made once: 16 passes over the
    data, a part that the caches hold at a time, and one answer a tensor.
    """

    _STEP = 1 << 22  # words

    def __init__(self, device: Any) -> None:
        import torch

        place = torch.arange(1, self._STEP + 1, device=device)
        mixed = place * _SPLITMIX[0]
        mixed = (mixed ^ (mixed >> 30)) * _SPLITMIX[1]
        self._flip = mixed ^ (mixed >> 27)
        self._first = self._flip | 1
        self._second = (self._flip * _SPLITMIX[2]) | 1

    def __call__(self, tensor: Any) -> tuple[int, int]:
        import torch

        flat = _plain(tensor).reshape(-1)
        # One element is contiguous whatever its stride is, which a view as bytes does not take.
        data = flat.as_strided((flat.numel(),), (1,)).view(torch.uint8)
        whole = data.numel() // 8 * 8
        words = data[:whole]
        if words.storage_offset() % 8 != 0 or words.data_ptr() % 8 != 0:
            words = words.clone()  # where it lies, it can't be read in words
        words = words.view(torch.int64)
        sums = []
        for part in words.split(self._STEP):
            count = part.numel()
            sums.append(((part ^ self._flip[:count]) * self._first[:count]).sum())
            sums.append(((part + (part >> 32)) * self._second[:count]).sum())
        lanes = [0, int.from_bytes(bytes(data[whole:].cpu().tolist()), "little")]
        for at, value in enumerate(torch.stack(sums).cpu().tolist() if sums else ()):
            lanes[at % 2] = (lanes[at % 2] * _FOLD + value) & _MASK
        return lanes[0], lanes[1]


class Digest:
    """128 bits of named tensors and facts, in the order in which they are added."""

    def __init__(self) -> None:
        self.total_bytes = 0
        self._text = hashlib.sha256()
        self._pieces: list[tuple[int, int]] = []
        self._kept: list[Any] = []  # what the addresses point to
        self._seen: set[Any] = set()
        self._devices: dict[Any, DeviceLanes] = {}

    def add(self, name: str, value: Any) -> None:
        """Add a tensor (torch.Tensor) or a plain fact; a view that was added before costs nothing.

        What is skipped is the very same view: a larger one at the same address has more bytes.
        """
        if not hasattr(value, "data_ptr"):
            self._text.update(f"{name}={value!r}|".encode())
            return
        shape = tuple(value.shape)
        self._text.update(f"{name}|{shape}|{value.dtype}|".encode())
        view = (value.device, value.data_ptr(), shape, value.stride(), value.dtype)
        if value.numel() == 0 or view in self._seen:
            return
        self._seen.add(view)
        self.total_bytes += value.numel() * value.element_size()
        if value.device.type == "cpu":
            plain = _plain(value)
            self._kept.append(plain)
            self._pieces.append((plain.data_ptr(), plain.numel() * plain.element_size()))
        else:
            if value.device not in self._devices:
                self._devices[value.device] = DeviceLanes(value.device)
            self._text.update(str(self._devices[value.device](value)).encode())

    def value(self) -> str:
        """Return 32 hex digits."""
        text = self._text.copy()
        text.update(_native.fingerprint(self._pieces).encode())
        return text.hexdigest()[:32]
