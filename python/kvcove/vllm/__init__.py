# SPDX-License-Identifier: Apache-2.0
"""vLLM's connector: ``--kv-transfer-config`` with ``kv_connector_module_path: kvcove.vllm``.

Importing this module imports vLLM. docs/connector.md says how a request passes through it.
"""

from kvcove.vllm._connector import KvcoveConnector

__all__ = ["KvcoveConnector"]
