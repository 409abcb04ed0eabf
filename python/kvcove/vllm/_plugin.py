# SPDX-License-Identifier: Apache-2.0
"""What vLLM calls in every process (entry point ``vllm.general_plugins``)."""

from __future__ import annotations


def register() -> None:
    """Make ``"kv_connector": "KvcoveConnector"`` enough, without a module path."""
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

    if "KvcoveConnector" not in KVConnectorFactory._registry:
        KVConnectorFactory.register_connector("KvcoveConnector", "kvcove.vllm", "KvcoveConnector")
