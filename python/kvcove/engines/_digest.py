# SPDX-License-Identifier: Apache-2.0
"""Digests of tensors: at memory speed on the host, on the device where they lie there."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from kvcove import _native

__all__ = ["DeviceLanes", "Digest", "observe_model", "tensors_of"]

_SPLITMIX = (0x9E3779B97F4A7C15 - (1 << 64), 0xBF58476D1CE4E5B9 - (1 << 64), 0x94D049BB133111EB)
_SECOND = _SPLITMIX[2] - (1 << 64)


def _plain(tensor: Any) -> Any:
    """Return a tensor's bytes one behind the other, whatever its type, strides and lazy bits."""
    import torch

    tensor = tensor.detach()
    if tensor.element_size() == 1:
        # torch copies no types below a byte (uint4), and reorders their bytes when they are bytes.
        flat = tensor.view(torch.uint8).contiguous().reshape(-1)
    else:
        flat = tensor.resolve_conj().resolve_neg().contiguous().reshape(-1)
    # One element is contiguous whatever its stride is, which a view as bytes does not take.
    return flat.as_strided((flat.numel(),), (1,)).view(torch.uint8)


class _Words(NamedTuple):
    """Words whose sums go into a row, the first of which is in place ``first``."""

    kept: Any  # a tensor: the words themselves where torch sums, else what keeps their memory
    address: int
    length: int
    first: int
    row: int


class DeviceLanes:
    """Two sums of 64 bits over each tensor's bytes, computed where they lie.

    Each word goes into both sums with odd factors of its place. With Triton (which vLLM has on
    GPUs) all tensors are one pass of one kernel; without it several passes of torch each, with the
    same sums. Nothing comes back from the device before :meth:`read`, which is one copy for all
    tensors; till then their memory must stay what it is.
    """

    _STEP = 1 << 22  # words: torch's passes go over a part that the caches hold
    _COPIES = 256 << 20  # bytes of tensors that had to be copied first, before a pass begins

    def __init__(self, device: Any, fused: bool | None = None) -> None:
        """Begin with no tensors.

        Parameters
        ----------
        device : torch.device
            Where all of them lie.
        fused : bool, optional
            Use the kernel; by default where Triton can run it.
        """
        import torch

        self._device = torch.device(device)
        if fused is None:
            fused = self._device.type == "cuda"
        self._kernel = _kernel() if fused else None
        self._words: list[_Words] = []  # of the next pass
        self._rows = 0  # of it
        self._copied = 0  # bytes
        self._sums: list[Any] = []  # of passes that have begun

    def add_rows(self, tensor: Any) -> None:
        """Queue a tensor, with sums for each of its rows."""
        for row in _plain(tensor).reshape(tensor.shape[0], -1):
            self.add(row)

    def add(self, tensor: Any) -> None:
        """Queue a tensor; its pass will be behind what the device does by then."""
        import torch

        tensor = tensor.detach()
        size = tensor.numel() * tensor.element_size()
        row, whole = self._rows, size // 8 * 8
        self._rows += 1
        in_order = tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()
        if self._kernel is not None and in_order and size == whole and tensor.data_ptr() % 8 == 0:
            self._words.append(_Words(tensor, tensor.data_ptr(), size // 8, 0, row))
            return
        data = _plain(tensor)
        words = data[:whole]
        if words.data_ptr() % 8 != 0 or words.storage_offset() % 8 != 0:
            words = words.clone()  # where it lies, it can't be read in words
        self._add_words(words, 0, row)
        if whole < size:
            tail = torch.zeros(8, dtype=torch.uint8, device=self._device)
            tail[: size - whole] = data[whole:]
            self._add_words(tail, whole // 8, row)
        self._copied += size if words.data_ptr() != tensor.data_ptr() else 0
        if self._copied > self._COPIES:
            self._pass()

    def _add_words(self, data: Any, first: int, row: int) -> None:
        import torch

        if data.numel() > 0:
            words = data.view(torch.int64)
            self._words.append(_Words(words, words.data_ptr(), words.numel(), first, row))

    def _pass(self) -> None:
        """Begin to sum what was queued."""
        import torch

        if self._rows == 0:
            return
        sums = torch.zeros((self._rows, 2), dtype=torch.int64, device=self._device)
        self._sums.append(sums)
        if self._kernel is not None:
            self._kernel([each[1:] for each in self._words], sums)
        else:
            for each in self._words:
                for at in range(0, each.length, self._STEP):
                    part = each.kept[at : at + self._STEP]
                    self._sum_part(part, each.first + at, sums[each.row])
        # The device's work is in order, so this memory may have other uses now.
        self._words, self._rows, self._copied = [], 0, 0

    def _sum_part(self, part: Any, first: int, row: Any) -> None:
        import torch

        place = torch.arange(first + 1, first + 1 + part.numel(), device=self._device)
        mixed = place * _SPLITMIX[0]
        mixed = (mixed ^ (mixed >> 30)) * _SPLITMIX[1]
        flip = mixed ^ (mixed >> 27)
        row[0] += ((part ^ flip) * (flip | 1)).sum()
        row[1] += ((part + (part >> 32)) * ((flip * _SECOND) | 1)).sum()

    def read(self) -> list[tuple[int, int]]:
        """Return the sums of all tensors since the last call, in their order: one copy."""
        import torch

        self._pass()
        passes, self._sums = self._sums, []
        if not passes:
            return []
        sums = torch.cat(passes).cpu().tolist()
        return [(int(first), int(second)) for first, second in sums]


def _kernel() -> Any | None:
    """Return what sums words in one pass: :func:`kvcove.engines._kernel.sum_words`."""
    try:
        from kvcove.engines._kernel import sum_words
    except ImportError:
        return None
    return sum_words


def _parts(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the tensors of a tensor: those of a subclass that is made of others (torchao's)."""
    flatten = getattr(value, "__tensor_flatten__", None)
    if flatten is None:
        yield name, value
        return
    inner, facts = flatten()
    yield f"{name}.facts", str(facts)
    for each in inner:
        yield from _parts(f"{name}.{each}", getattr(value, each))


class Digest:
    """128 bits of named tensors and facts, in the order in which they are added."""

    def __init__(self) -> None:
        self.total_bytes = 0
        self._text = hashlib.sha256()
        self._pieces: list[tuple[int, int]] = []
        self._kept: list[Any] = []  # what the addresses point to
        self._seen: set[Any] = set()
        self._devices: dict[Any, DeviceLanes] = {}

    def rows(self, value: Any) -> list[str]:
        """Return a digest of each row of a tensor; nothing of it counts in this one."""
        plain = value.detach()
        self.total_bytes += plain.numel() * plain.element_size()
        if plain.device.type == "cpu":
            data = _plain(plain)
            size = data.numel() // plain.shape[0]
            return [
                _native.fingerprint([(data.data_ptr() + at * size, size)])
                for at in range(plain.shape[0])
            ]
        lanes = DeviceLanes(plain.device)
        lanes.add_rows(plain)
        return [f"{first:x}.{second:x}" for first, second in lanes.read()]

    def add(self, name: str, value: Any) -> None:
        """Add a tensor (torch.Tensor) or a plain fact; a view that was added before costs nothing.

        What is skipped is the very same view: a larger one at the same address has more bytes.
        """
        if not hasattr(value, "data_ptr"):
            self._text.update(f"{name}={value!r}|".encode())
            return
        for part_name, part in _parts(name, value):
            if hasattr(part, "data_ptr"):
                self._add_tensor(part_name, part)
            else:
                self._text.update(f"{part_name}={part}|".encode())

    def _add_tensor(self, name: str, value: Any) -> None:
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
            self._pieces.append((plain.data_ptr(), plain.numel()))
            return
        if value.device not in self._devices:
            self._devices[value.device] = DeviceLanes(value.device)
        self._devices[value.device].add(value)

    def value(self) -> str:
        """Return 32 hex digits. Adds nothing more afterwards."""
        for device, lanes in self._devices.items():
            self._text.update(f"{device.type}:{lanes.read()}|".encode())
        text = self._text.copy()
        text.update(_native.fingerprint(self._pieces).encode())
        return text.hexdigest()[:32]


def tensors_of(model: Any) -> Iterator[tuple[str, Any]]:
    """Return a model's parameters, then its buffers, each in the order of their names."""
    yield from sorted(model.named_parameters(), key=lambda item: item[0])
    yield from sorted(model.named_buffers(), key=lambda item: item[0])


def observe_model(model: Any, changing: Callable[[], None]) -> None:
    """Call ``changing`` whenever somebody in this process loads weights into the model.

    By the engine's ``load_weights``, or torch's ``load_state_dict`` of the model or of any part of it.
    """
    for module in model.modules():
        module.register_load_state_dict_pre_hook(lambda *_: changing())
    load = model.load_weights

    @functools.wraps(load)
    def observed(*args: Any, **kwargs: Any) -> Any:
        changing()
        return load(*args, **kwargs)

    model.load_weights = observed
