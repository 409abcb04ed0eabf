# SPDX-License-Identifier: Apache-2.0
"""vLLM's connector: ``--kv-transfer-config`` with ``kv_connector_module_path: kvcove.vllm``.

vLLM is imported with ``KvcoveConnector``, not before. docs/connector.md says how a request passes
through it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvcove.vllm._connector import KvcoveConnector

__all__ = ["KvcoveConnector"]


def __getattr__(name: str) -> Any:
    if name != "KvcoveConnector":
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    from kvcove.vllm._versions import check_version

    check_version()
    from kvcove.vllm._connector import KvcoveConnector

    return KvcoveConnector
