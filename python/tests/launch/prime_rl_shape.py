# SPDX-License-Identifier: Apache-2.0
"""What prime-rl's configuration of inference is made of: prime_rl_shape.py CHECKOUT > prime_rl.json.

Field names, types and defaults of the models that decide about KV, and which configurations prime-rl
takes, with the connectors that it makes of them. Needs what `prime-rl-configs` needs of PyPI
(prime-pydantic-config), and a checkout.
"""

from __future__ import annotations

import importlib
import json
import sys
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

MODELS = {
    "CPUOffloadTier": ["num_bytes"],
    "DiskOffloadTier": ["path"],
    "NativeKVCacheOffloadConfig": ["cpu", "disk", "type"],
    "MooncakeKVCacheOffloadConfig": ["cpu", "disk", "type", "device_name"],
    "VllmConfig": ["tensor_parallel_size", "enable_prefix_caching"],
    "SlurmConfig": ["job_name", "template_path"],
    "InferenceConfig": [
        *("vllm", "kv_cache_offload", "use_pd_kv_transfer", "deployment", "slurm", "output_dir"),
        "dry_run",
    ],
}
"""What a stand-in must have as prime-rl has it."""

_OFFLOAD = "[kv_cache_offload]\n"
CASES = {
    "nothing": "",
    "native": f'{_OFFLOAD}type = "native"\ncpu.num_bytes = 1000\n',
    "no type": f"{_OFFLOAD}cpu.num_bytes = 1000\n",
    "native as a float": f'{_OFFLOAD}type = "native"\ncpu.num_bytes = 2e9\n',
    "native as digits": f'{_OFFLOAD}type = "native"\ncpu.num_bytes = "1000"\n',
    "native as a size": f'{_OFFLOAD}type = "native"\ncpu.num_bytes = "64GiB"\n',
    "native of nothing": f'{_OFFLOAD}type = "native"\ncpu.num_bytes = 0\n',
    "native of half a byte": f'{_OFFLOAD}type = "native"\ncpu.num_bytes = 0.5\n',
    "native, disk": f'{_OFFLOAD}type = "native"\ncpu.num_bytes = 5\ndisk.path = "/d"\n',
    "native, disk alone": f'{_OFFLOAD}type = "native"\ndisk.path = "/d"\n',
    "native, devices": f'{_OFFLOAD}type = "native"\ncpu.num_bytes = 5\ndevice_name = "x"\n',
    "native, old key": f'{_OFFLOAD}type = "native"\ncpu_bytes = 5\n',
    "native, disk's size": f'{_OFFLOAD}type = "native"\ncpu.num_bytes = 5\ndisk = {{path = "/d", num_bytes = 3}}\n',
    "native, no prefix caching": (
        f'{_OFFLOAD}type = "native"\ncpu.num_bytes = 5\n[vllm]\nenable_prefix_caching = false\n'
    ),
    "mooncake": f'[slurm]\n{_OFFLOAD}type = "mooncake"\ncpu.num_bytes = 5\ndevice_name = "x"\n',
    "mooncake as a size": f'[slurm]\n{_OFFLOAD}type = "mooncake"\ncpu.num_bytes = "1 GB"\n',
    "mooncake, its master": (
        f'[slurm]\n{_OFFLOAD}type = "mooncake"\ncpu.num_bytes = 5\nmaster_server_address = "h:1"\n'
    ),
    "another type": f'{_OFFLOAD}type = "lmcache"\ncpu.num_bytes = 5\n',
    "P/D": '[slurm]\n[deployment]\ntype = "disaggregated"\n',
    "P/D without a job": '[deployment]\ntype = "disaggregated"\n',
    "nodes without a job": f'[deployment]\ntype = "multi_node"\n{_OFFLOAD}type = "native"\ncpu.num_bytes = 5\n',
    "P/D, mooncake": (
        f'[slurm]\n[deployment]\ntype = "disaggregated"\n{_OFFLOAD}type = "mooncake"\ncpu.num_bytes = 5\n'
    ),
    "P/D, native": (
        f'[slurm]\n[deployment]\ntype = "disaggregated"\n{_OFFLOAD}type = "native"\ncpu.num_bytes = 5\n'
    ),
}


def use(checkout: Path) -> None:
    """Make the package of a checkout importable."""
    sys.path[:0] = [str(checkout / "packages/prime-rl-configs/src"), str(checkout / "src")]


def fields(inference: ModuleType) -> dict[str, dict[str, str]]:
    """Type and default of each field."""
    found: dict[str, dict[str, str]] = {}
    for model, names in MODELS.items():
        of_model = getattr(inference, model).model_fields
        found[model] = {name: _text(name, of_model[name]) for name in names}
    return found


def _text(name: str, field: Any) -> str:
    # Deployments are read by their `type` alone.
    kind = "" if name == "deployment" else str(field.annotation).replace("typing.", "")
    default = field.get_default(call_default_factory=True)
    told = "required" if field.is_required() else type(default).__name__
    if isinstance(default, bool | int | str | Path | None):
        told = str(default) if not field.is_required() else told
    if name in ("deployment", "vllm"):
        told = "itself"
    return f"{kind} = {told}".replace("prime_rl.configs.inference.", "").replace(
        "prime_rl.configs.shared.", ""
    )


def cases(inference: ModuleType) -> dict[str, Any]:
    """For each case the connector; False where prime-rl refuses the configuration."""
    from pydantic import ValidationError

    found: dict[str, Any] = {}
    for name, text in CASES.items():
        try:
            made = inference.InferenceConfig.model_validate(tomllib.loads(text))
            found[name] = made.build_kv_transfer_config()
        except ValidationError:
            found[name] = False
    return found


def export(checkout: Path) -> dict[str, Any]:
    """What `prime_rl.json` has."""
    use(checkout)
    inference = importlib.import_module("prime_rl.configs.inference")

    def version(file: str) -> str:
        return str(tomllib.loads((checkout / file).read_text())["project"]["version"])

    return {
        "source": "PrimeIntellect-ai/prime-rl",
        "version": version("pyproject.toml"),
        "configs": version("packages/prime-rl-configs/pyproject.toml"),
        "fields": fields(inference),
        "cases": cases(inference),
    }


if __name__ == "__main__":
    print(json.dumps(export(Path(sys.argv[1])), indent=1))
