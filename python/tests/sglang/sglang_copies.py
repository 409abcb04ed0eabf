# SPDX-License-Identifier: Apache-2.0
"""The CUDA kernels of SGLang's host pools that a CPU lacks, each by its name, as torch copies them.

Nothing else of SGLang is replaced. docs/sglang.md lists them.
"""

from __future__ import annotations

import ctypes
from typing import Any

__all__ = ["KERNELS", "install"]


def transfer_kv_direct(
    src_layers: Any, dst_layers: Any, src_indices: Any, dst_indices: Any, page_size: int
) -> None:
    for src, dst in zip(src_layers, dst_layers, strict=True):
        dst[dst_indices] = src[src_indices]


def transfer_kv_per_layer_direct_pf_lf(
    src_ptrs: Any, dst_ptrs: Any, src_indices: Any, dst_indices: Any, layer_id: int, page_size: int
) -> None:
    for src, dst in zip(src_ptrs, dst_ptrs, strict=True):
        dst[dst_indices] = src[src_indices // page_size, layer_id, src_indices % page_size]


def transfer_kv_all_layer_direct_lf_pf(
    src_ptrs: Any, dst_ptrs: Any, src_indices: Any, dst_indices: Any, page_size: int
) -> None:
    layers = len(src_ptrs) // len(dst_ptrs)
    for number, src in enumerate(src_ptrs):
        dst = dst_ptrs[number // layers]
        dst[dst_indices // page_size, number % layers, dst_indices % page_size] = src[src_indices]


def transfer_kv_per_layer_pf_lf(
    src_k: Any,
    dst_k: Any,
    src_v: Any,
    dst_v: Any,
    src_indices: Any,
    dst_indices: Any,
    layer_id: int,
    item_size: int,
    src_layout_dim: int,
    **_: Any,
) -> None:
    dst_k[dst_indices] = src_k[src_indices, layer_id]
    dst_v[dst_indices] = src_v[src_indices, layer_id]


def _copy_layers(
    layers: Any, dst: Any, src_indices: Any, dst_indices: Any, item: int, dst_token: int, count: int
) -> None:
    """Copy from addresses of layers to tokens of all layers."""
    for layer in range(count):
        for i, j in zip(src_indices.tolist(), dst_indices.tolist(), strict=True):
            to = dst.data_ptr() + j * dst_token + layer * item
            ctypes.memmove(to, int(layers[layer]) + i * item, item)


def transfer_kv_all_layer_lf_pf(
    src_k_layers: Any,
    dst_k: Any,
    src_v_layers: Any,
    dst_v: Any,
    src_indices: Any,
    dst_indices: Any,
    item_size: int,
    dst_layout_dim: int,
    num_layers: int,
    **_: Any,
) -> None:
    for layers, dst in ((src_k_layers, dst_k), (src_v_layers, dst_v)):
        _copy_layers(layers, dst, src_indices, dst_indices, item_size, dst_layout_dim, num_layers)


def transfer_kv_per_layer_mla_pf_lf(
    src: Any, dst: Any, src_indices: Any, dst_indices: Any, layer_id: int, **_: Any
) -> None:
    dst[dst_indices] = src[src_indices, layer_id]


def transfer_kv_all_layer_mla_lf_pf(
    src_layers: Any,
    dst: Any,
    src_indices: Any,
    dst_indices: Any,
    item_size: int,
    dst_layout_dim: int,
    num_layers: int,
    **_: Any,
) -> None:
    _copy_layers(src_layers, dst, src_indices, dst_indices, item_size, dst_layout_dim, num_layers)


KERNELS = {
    each.__name__: each
    for each in (
        transfer_kv_direct,
        transfer_kv_per_layer_direct_pf_lf,
        transfer_kv_all_layer_direct_lf_pf,
        transfer_kv_per_layer_pf_lf,
        transfer_kv_all_layer_lf_pf,
        transfer_kv_per_layer_mla_pf_lf,
        transfer_kv_all_layer_mla_lf_pf,
    )
}


def _cuda_host_register(*_: Any) -> None:
    """Pin nothing: there is no device to pin for."""


def install() -> None:
    from sglang.srt.mem_cache.pool_host import common, mamba, mha, mla

    common._cuda_host_register = _cuda_host_register

    for module in (mha, mla, mamba):
        for name, kernel in KERNELS.items():
            setattr(module, name, kernel)
