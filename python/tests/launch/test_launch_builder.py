# SPDX-License-Identifier: Apache-2.0
"""Each cell of P/D and offload has its --kv-transfer-config in a file under golden/."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from kvcove.launch import _vllm

from kvcove import launch

GOLDEN = Path(__file__).parent / "golden"
DISK = "/scratch/kv"


def configuration(offload: str, pd: bool) -> dict[str, Any]:
    """A configuration of prime-rl's inference, with SLURM: so nobody looks for the disk here."""
    config: dict[str, Any] = {"slurm": {}}
    if pd:
        config["deployment"] = {"type": "disaggregated"}
    if offload != "none":
        kind, _, disk = offload.partition("-")
        block: dict[str, Any] = {"type": kind, "cpu": {"num_bytes": 64 << 30}}
        if disk:
            block["disk"] = {"path": DISK}
        config["kv_cache_offload"] = block
    return config


CELLS = ["none", "native", "native-disk", "mooncake", "mooncake-disk", "kvcove", "kvcove-disk"]


@pytest.mark.parametrize("pd", [False, True], ids=["plain", "pd"])
@pytest.mark.parametrize("offload", CELLS)
def test_a_cell(offload: str, pd: bool) -> None:
    made = launch.for_prime_rl(configuration(offload, pd), vllm_version="0.33.0")
    golden = GOLDEN / f"{'pd' if pd else 'plain'}-{offload}.json"
    assert made == json.loads(golden.read_text())
    # What is printed is that value, with NIXL first where there are two.
    assert json.loads(launch.to_json(made) or "null") == made
    if pd and offload != "none":
        assert made is not None
        first, second = made["kv_connector_extra_config"]["connectors"]
        assert first["kv_connector"] == "NixlConnector" != second["kv_connector"]


@pytest.mark.parametrize(
    ("version", "name"),
    [
        ("0.22.1", "fs_python"),
        ("0.23.0", "fs"),
        ("0.28.0", "fs"),
        ("0.32.0+cpu", "fs"),
        ("v0.33.0", "fs"),
        ("1.0", "fs"),
    ],
)
def test_the_disk_tiers_name_follows_vllms_version(version: str, name: str) -> None:
    made = launch.for_prime_rl(configuration("native-disk", False), vllm_version=version)
    assert made is not None
    assert made["kv_connector_extra_config"]["secondary_tiers"] == [
        {"type": name, "root_dir": DISK}
    ]


def test_a_version_that_is_none() -> None:
    with pytest.raises(ValueError, match="'newest' is no version of vLLM"):
        _vllm.disk_tier("newest")


@pytest.mark.parametrize("name", ["fs", "fs_python"])
def test_the_installed_vllm_is_asked_without_an_import(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "vllm"
    factory = package / "v1/kv_offload/tiering/factory.py"
    factory.parent.mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('imported')\n")
    factory.write_text(f'SecondaryTierFactory.register_tier(\n    "{name}",\n    "a.b",\n)\n')
    monkeypatch.delitem(sys.modules, "vllm", raising=False)  # a stand-in of another test
    monkeypatch.syspath_prepend(str(tmp_path))
    assert _vllm.disk_tier() == name


@pytest.mark.parametrize(
    ("block", "golden"),
    [
        ({"kv_connector": "MooncakeStoreConnector"}, "verl-mooncake"),
        ({"config_path": "/etc/mooncake.json"}, "verl-mooncake-path"),
        ({"kv_connector": "KvcoveConnector"}, "verl-kvcove"),
        ({}, "verl-kvcove"),
        (
            {
                "kv_connector": "KvcoveConnector",
                "kv_role": "kv_producer",
                "extra_config": {
                    "kv_connector_extra_config": {"pool": "kvcove://head:7400"},
                    "engine_id": "e",
                },
            },
            "verl-kvcove-extra",
        ),
    ],
)
def test_a_block_of_verl(block: dict[str, Any], golden: str) -> None:
    config = launch.KVStoreConfig(enable=True, **block)
    made = launch.build_kv_transfer_config(config)
    assert made == json.loads((GOLDEN / f"{golden}.json").read_text())
    assert launch.build_kv_transfer_config(launch.KVStoreConfig(**block)) is None


def test_the_users_keys_win_at_the_top(caplog: pytest.LogCaptureFixture) -> None:
    config = launch.KVStoreConfig(
        enable=True,
        config_path="/a.json",
        extra_config={"kv_role": "kv_consumer", "kv_connector_extra_config": {"load_async": False}},
    )
    assert launch.build_kv_transfer_config(config) == {
        "kv_connector": "MooncakeStoreConnector",
        "kv_role": "kv_consumer",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {"on_unreachable": "fallback", "load_async": False},
    }
    assert "kv_store.config_path is not used" in caplog.text


def test_the_connector_takes_what_is_built() -> None:
    from kvcove.vllm._config import Config

    for size in ("64GiB", "1000000000", 1 << 20, "16TiB", "1.5 GB"):
        offload = launch.KvcoveOffload(
            cpu=launch.CpuTier(num_bytes=size), extra_config={"tier_log": True}
        )
        made = launch.build_kv_transfer_config(offload)
        assert made is not None
        config = Config.of(made["kv_connector_extra_config"])
        assert offload.cpu is not None
        assert launch.parse_size(config.memory) == offload.cpu.num_bytes
        assert config.tier_log
