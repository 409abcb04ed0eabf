# SPDX-License-Identifier: Apache-2.0
"""What the launchers make of a configuration, given to vLLM's own parser (make test-vllm)."""

from __future__ import annotations

import json
from argparse import Namespace
from typing import Any

import pytest

pytest.importorskip("vllm")
pytest.importorskip("torch")  # python/tests/vllm has the name, too

from kvcove.launch import prime_rl, to_json
from kvcove.launch._document import parse
from pydantic import TypeAdapter
from vllm.config import KVTransferConfig
from vllm.engine.arg_utils import EngineArgs
from vllm.utils.argparse_utils import FlexibleArgumentParser
from vllm.v1.kv_offload.factory import OffloadingSpecFactory
from vllm.v1.kv_offload.tiering.factory import SecondaryTierFactory

try:
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
except ImportError:  # before vLLM 0.32
    from vllm.entrypoints.openai.cli_args import make_arg_parser

PD = '[deployment]\ntype = "disaggregated"\n'
CELLS = {
    "native": 'type = "native"\ncpu.num_bytes = 8_000_000_000\n',
    "native-disk": 'type = "native"\ncpu.num_bytes = 8_000_000_000\ndisk.path = "/kv"\n',
    "mooncake": 'type = "mooncake"\ncpu.num_bytes = 8_000_000_000\n',
    "kvcove": 'type = "kvcove"\ncpu.num_bytes = "8GiB"\n',
}


def parsed(*words: str, **given: Any) -> Any:
    parser = make_arg_parser(FlexibleArgumentParser())
    arguments = parser.parse_args([*words], namespace=Namespace(**given))
    # As the field of VllmConfig does: a dict becomes the dataclass, and its own checks run.
    made = EngineArgs.from_cli_args(arguments).kv_transfer_config
    return TypeAdapter(KVTransferConfig).validate_python(made)


@pytest.mark.parametrize("pd", [False, True], ids=["plain", "pd"])
@pytest.mark.parametrize("cell", CELLS)
def test_with_vllm_a_configuration_of_prime_rl_is_taken(cell: str, pd: bool) -> None:
    text = f"[slurm]\n{PD if pd else ''}[kv_cache_offload]\n{CELLS[cell]}"
    made = prime_rl.load(parse(text, "toml")).build_kv_transfer_config()
    assert made is not None
    # As text behind --kv-transfer-config, and as prime-rl puts it into the namespace.
    for config in (parsed("--kv-transfer-config", to_json(made)), parsed(kv_transfer_config=made)):
        assert config.kv_connector == made["kv_connector"]
        assert config.kv_role == "kv_both"
        assert config.kv_connector_extra_config == made["kv_connector_extra_config"]
        policy = made.get("kv_load_failure_policy", "fail")
        assert (config.kv_load_failure_policy, policy == "fail") == (policy, "native" in cell)
    connectors = made["kv_connector_extra_config"].get("connectors", [made])
    assert len(connectors) == 1 + pd
    options = connectors[-1]["kv_connector_extra_config"]
    if "native" in cell:
        # vLLM resolves both names when the engine starts, and refuses what it does not know.
        spec = OffloadingSpecFactory._registry[options.get("spec_name", "CPUOffloadingSpec")]()
        assert spec.__name__ == ("TieringOffloadingSpec" if "disk" in cell else "CPUOffloadingSpec")
        for tier in options.get("secondary_tiers", ()):
            assert (
                SecondaryTierFactory._registry[tier["type"]]().__name__ == "FileSystemTierManager"
            )
            assert json.dumps(tier["root_dir"]) == '"/kv"'
