# SPDX-License-Identifier: Apache-2.0
"""Functions that others import from ``mooncake.store`` beside the store itself."""

from __future__ import annotations

import ctypes
import logging
import os
from typing import Any

from kvcove.mooncake._tensors import HEADER_BYTES, decode, encode

__all__ = ["_deserialize_tensor", "_serialize_tensor", "_tensor_metadata_size", "bind_to_numa_node"]

_log = logging.getLogger("kvcove.mooncake")

_MPOL_PREFERRED = 1
_SYS_SET_MEMPOLICY = {"x86_64": 238, "aarch64": 237}


def _tensor_metadata_size() -> int:
    """Return the bytes of the header in front of a tensor's elements."""
    return HEADER_BYTES


def _serialize_tensor(tensor: Any) -> tuple[bytes, int, int, Any]:
    """Return a tensor's header, the address and the bytes of its elements, and what keeps them.

    Raises
    ------
    ValueError
        It is no tensor, or of a dtype that is not known.
    """
    encoded = encode(tensor)
    if encoded is None:
        raise ValueError("unsupported tensor for Mooncake tensor serialization")
    owner = tensor.detach().cpu().contiguous()
    size = owner.numel() * owner.element_size()
    return encoded[0], owner.data_ptr() if size else 0, size, owner


def _deserialize_tensor(value: bytes) -> Any:
    """Return the tensor of a header and elements.

    Raises
    ------
    TypeError
        The value is not bytes.
    ValueError
        It is no tensor.
    """
    if not isinstance(value, bytes):
        raise TypeError(f"_deserialize_tensor(): bytes are wanted, not {type(value).__name__}")
    tensor = decode(value)
    if tensor is None:
        raise ValueError("invalid serialized Mooncake tensor payload")
    return tensor


def _cpus_of(node: int) -> set[int]:
    with open(f"/sys/devices/system/node/node{node}/cpulist", encoding="ascii") as file:
        text = file.read().strip()
    cpus: set[int] = set()
    for part in text.split(",") if text else ():
        first, _, last = part.partition("-")
        cpus.update(range(int(first), int(last or first) + 1))
    return cpus


def bind_to_numa_node(node: int) -> None:
    """Run this thread on a NUMA node's processors, and prefer its memory.

    A node that this host does not have changes nothing; the log says so.
    """
    if not isinstance(node, int):
        raise TypeError(f"bind_to_numa_node(): a number is wanted, not {type(node).__name__}")
    try:
        cpus = _cpus_of(node) & os.sched_getaffinity(0)
        if not cpus:
            raise OSError("this process may use none of its processors")
        os.sched_setaffinity(0, cpus)
    except OSError as error:
        _log.warning("bind_to_numa_node(%d): %s; nothing is changed", node, error)
        return
    number = _SYS_SET_MEMPOLICY.get(os.uname().machine)
    if number is None:
        return
    words = (ctypes.c_ulong * (node // 64 + 1))()
    words[node // 64] = 1 << (node % 64)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(number, _MPOL_PREFERRED, words, len(words) * 64 + 1) != 0:
        reason = os.strerror(ctypes.get_errno())
        _log.warning("bind_to_numa_node(%d): memory is not preferred: %s", node, reason)
