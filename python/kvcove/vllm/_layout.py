# SPDX-License-Identifier: Apache-2.0
"""The layout of vLLM's KV memory that moves fastest (docs/device.md).

vLLM's layouts are named by the order of their axes: blocks, layers, heads, tokens (N) and content.
Where blocks come first, a block of all layers is one run of bytes. Its inner order stays what the
engine's own default has, as it is the order of the bytes in the pool: engines with either layout
share.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from kvcove.vllm import _compat
from kvcove.vllm._config import Config

__all__ = ["natural", "required_layout", "why_not_by_layers"]


def natural(name: str) -> list[tuple[bool, int, str]]:
    """Return a key that sorts ``layers.10`` behind ``layers.9``: the order in a block's memory."""
    return [
        (part.isdigit(), int(part) if part.isdigit() else 0, part)
        for part in re.split(r"(\d+)", name)
    ]


def why_not_by_layers(vllm_config: Any, layers: Iterable[str]) -> str | None:
    """Return why a step cannot wait for its loads layer by layer, or None where it can.

    vLLM calls wait_for_layer_load in the operators of Attention and MLAAttention alone. What has
    an operator of its own (states of Mamba, sparse indexers, some models' attention) reads its KV
    without it. Micro-batches have streams of their own, and only the first to call would wait.
    """
    if getattr(vllm_config.parallel_config, "use_ubatching", False):
        return "micro-batches overlap"
    known = vllm_config.compilation_config.static_forward_context
    calling = [kind.forward for kind in _compat.attention_layers()]
    for name in layers:
        kind = type(known.get(name))
        if getattr(kind, "forward", None) not in calling:
            return f"layer {name} ({kind.__name__}) reads its KV without being waited for"
    return None


def _has_siblings(vllm_config: Any) -> bool:
    """Return whether this connector is a child of MultiConnector, or cannot know.

    vLLM hands each child a copy of the configuration with the child's own part in it; the engine's
    is the current one. All children must want the same layout, or none: another one is an error.
    """
    current = _compat.current_config()
    transfer = getattr(current, "kv_transfer_config", None)
    if transfer is not None:
        return "connectors" in (transfer.kv_connector_extra_config or {})
    name = getattr(vllm_config.kv_transfer_config, "kv_connector", "")
    return name != "KvcoveConnector" or _asked_by_multi_connector()


def _asked_by_multi_connector() -> bool:
    """Return whether MultiConnector asks, when no configuration is the current one."""
    import inspect

    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_globals.get("__name__", "").endswith(".multi_connector"):
            return True
        frame = frame.f_back
    return False


def _prefers_heads_first(vllm_config: Any) -> bool:
    """Return whether the engine's own default has heads outside of tokens, as on Blackwell GPUs."""
    if vllm_config.model_config is not None and vllm_config.model_config.use_mla:
        return True  # there is one head: it makes no difference, and sparse MLA wants it
    capability = _compat.platform().get_device_capability()
    return capability is not None and capability.major == 10


def required_layout(vllm_config: Any) -> str | None:
    """Return the layout to ask vLLM for; None: its own.

    vLLM takes another one, with a warning, where a backend does not support what is asked for.
    """
    if not _compat.LAYOUTS_BY_AXES:
        return None
    config = Config.of(vllm_config.kv_transfer_config.kv_connector_extra_config or {})
    if config.kv_layout == "engine":
        return None
    if config.kv_layout == "auto" and (
        not _compat.platform().is_cuda() or _has_siblings(vllm_config)
    ):
        return None
    return "BLHNC" if _prefers_heads_first(vllm_config) else "BLNHC"
