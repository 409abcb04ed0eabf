# SPDX-License-Identifier: Apache-2.0
"""The environment of a process that runs one engine."""

from __future__ import annotations

from release import vllm_release

ENGINE_ENVIRONMENT = {
    # vLLM 0.28 and older compile for a minute and more at each start on a CPU, whatever the engine is told.
    **({"TORCHDYNAMO_DISABLE": "1"} if vllm_release() < (0, 29) else {}),
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_ALLOW_INSECURE_SERIALIZATION": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_HOST_IP": "127.0.0.1",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}
