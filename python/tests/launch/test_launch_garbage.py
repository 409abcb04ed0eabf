# SPDX-License-Identifier: Apache-2.0
"""Whatever a configuration has in it, it is taken or refused with a path."""

from __future__ import annotations

import random
from typing import Any

import pytest

from kvcove import launch

SEED = 2026
VALUES: list[Any] = [
    *(None, True, 0, -1, 1.5, 1 << 70, float("nan"), float("inf"), "", "64GiB", "auto", "unix:"),
    *("kvcove://h:7400", "embedded", "/tmp/kv", "native", "mooncake", "kvcove", [], ["a"], {}),
    {"num_bytes": 5},
    {"path": "/tmp"},
    {"kv_connector_extra_config": {"pool": "auto"}},
    {1: 2},
]
PRIME_RL = ["type", "cpu", "disk", "pool", "extra_config", "device_name", "cpu_bytes", "typ"]
PRIME_RL += ["metadata_server", "master_server_address"]
VERL = ["enable", "kv_connector", "kv_role", "config_path", "extra_config", "on_failure", "enabled"]


def block(generator: random.Random, keys: list[str], value: Any) -> dict[str, Any]:
    made = {
        key: generator.choice(VALUES) for key in generator.sample(keys, k=generator.randint(0, 2))
    }
    return {**value, **made}


def test_prime_rl() -> None:
    generator = random.Random(SEED)
    refused = 0
    for _ in range(2000):
        start = generator.choice([{}, {"type": "native", "cpu": {"num_bytes": 1 << 30}}])
        root = generator.choice([{}, {"slurm": {}}, {"deployment": 3}, {"trainer": []}])
        config = {**root, "kv_cache_offload": block(generator, PRIME_RL, start)}
        try:
            launch.for_prime_rl(config, vllm_version="0.32")
        except launch.ConfigError as error:
            refused += 1
            assert error.problems, config
            assert "kv_cache_offload" in str(error), config
    assert 200 < refused < 2000, f"seed {SEED}"


def test_verl(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvcove.launch.embed.ask", lambda *_, **__: None)
    generator = random.Random(SEED)
    refused = 0
    for _ in range(2000):
        made = block(generator, VERL, {"enable": True})
        try:
            launch.for_verl(made)
        except launch.ConfigError as error:
            refused += 1
            assert "rollout.kv_store" in str(error), made
    assert 200 < refused < 2000, f"seed {SEED}"
