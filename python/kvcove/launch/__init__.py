# SPDX-License-Identifier: Apache-2.0
"""Typed configuration of KV offload for trainers, and what their engines are started with.

Needs ``pip install 'kvcove[launch]'`` (pydantic, PyYAML); vLLM is never imported. For the command
see ``python -m kvcove.launch --help``; for programs, two calls:

>>> from kvcove import launch
>>> launch.for_verl({"enable": True, "kv_connector": "KvcoveConnector"})["kv_connector"]
'KvcoveConnector'
>>> launch.for_prime_rl(
...     {"kv_cache_offload": {"type": "native", "cpu": {"num_bytes": 64 << 30}}}
... )["kv_connector_extra_config"]
{'cpu_bytes_to_use': 68719476736}

docs/verl.md and docs/prime-rl.md have the configurations.
"""

from __future__ import annotations

try:
    import pydantic as _pydantic
    import yaml as _yaml
except ImportError as error:
    # Without the traceback of the import that failed: the message has all of it.
    raise ImportError(
        f"kvcove.launch needs what is not installed ({error}): pip install 'kvcove[launch]'"
    ) from None

from kvcove.launch._document import Document, read
from kvcove.launch._errors import ConfigError, LaunchError, Problem
from kvcove.launch._size import format_size, parse_size
from kvcove.launch.connector import build_kv_transfer_config, to_json
from kvcove.launch.embed import for_prime_rl, for_verl
from kvcove.launch.kv_store import KVStoreConfig
from kvcove.launch.offload import (
    CpuTier,
    DiskTier,
    KVCacheOffload,
    KvcoveOffload,
    MooncakeOffload,
    NativeOffload,
)
from kvcove.launch.probe import probe

__all__ = [
    "ConfigError",
    "CpuTier",
    "DiskTier",
    "Document",
    "KVCacheOffload",
    "KVStoreConfig",
    "KvcoveOffload",
    "LaunchError",
    "MooncakeOffload",
    "NativeOffload",
    "Problem",
    "build_kv_transfer_config",
    "for_prime_rl",
    "for_verl",
    "format_size",
    "parse_size",
    "probe",
    "read",
    "to_json",
]

del _pydantic, _yaml
