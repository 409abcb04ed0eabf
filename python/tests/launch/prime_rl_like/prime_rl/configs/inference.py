# SPDX-License-Identifier: Apache-2.0
"""A stand-in for prime-rl's configuration of inference: the fields and rules that decide about KV.

`prime_rl.json` beside this package has the fields of the real one, and test_launch_prime_rl_run.py
compares them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator


class BaseConfig(BaseModel):
    model_config = ConfigDict(extra="forbid")


class VllmConfig(BaseConfig):
    model_config = ConfigDict(extra="allow")

    tensor_parallel_size: int = 1
    enable_prefix_caching: bool | None = None


class CPUOffloadTier(BaseConfig):
    num_bytes: int = Field(..., gt=0)


class DiskOffloadTier(BaseConfig):
    path: Path


class BaseKVCacheOffloadConfig(BaseConfig):
    cpu: CPUOffloadTier | None = None
    disk: DiskOffloadTier | None = None

    @model_validator(mode="after")
    def valid_tiers(self) -> Any:
        if self.cpu is None:
            raise ValueError("a cpu tier is wanted")
        return self


class NativeKVCacheOffloadConfig(BaseKVCacheOffloadConfig):
    type: Literal["native"] = "native"

    def to_connector_dict(self) -> dict[str, Any]:
        assert self.cpu is not None
        extra: dict[str, Any] = {"cpu_bytes_to_use": self.cpu.num_bytes}
        if self.disk is not None:
            extra["spec_name"] = "TieringOffloadingSpec"
            extra["secondary_tiers"] = [{"type": "fs_python", "root_dir": str(self.disk.path)}]
        return {
            "kv_connector": "OffloadingConnector",
            "kv_role": "kv_both",
            "kv_connector_extra_config": extra,
        }


class MooncakeKVCacheOffloadConfig(BaseKVCacheOffloadConfig):
    type: Literal["mooncake"] = "mooncake"
    device_name: str = ""

    def to_connector_dict(self) -> dict[str, Any]:
        return {
            "kv_connector": "MooncakeStoreConnector",
            "kv_role": "kv_both",
            "kv_connector_extra_config": {},
        }


KVCacheOffloadConfig = Annotated[
    NativeKVCacheOffloadConfig | MooncakeKVCacheOffloadConfig, Field(discriminator="type")
]


class DeploymentConfig(BaseConfig):
    type: Literal["single_node", "multi_node", "disaggregated"] = "single_node"
    num_nodes: int = 2
    gpus_per_node: int = 8


class SlurmConfig(BaseConfig):
    job_name: str = "prime-rl"
    template_path: Path | None = None


class InferenceConfig(BaseConfig):
    vllm: VllmConfig = Field(default_factory=VllmConfig)
    kv_cache_offload: KVCacheOffloadConfig | None = None
    use_pd_kv_transfer: bool = False
    deployment: DeploymentConfig = DeploymentConfig()
    slurm: SlurmConfig | None = None
    output_dir: Path = Path("outputs")
    dry_run: bool = False

    @model_validator(mode="after")
    def resolve(self) -> Any:
        if self.kv_cache_offload is not None:
            if self.vllm.enable_prefix_caching is False:
                raise ValueError("KV cache offloading requires prefix caching")
            self.vllm.enable_prefix_caching = True
        if self.deployment.type != "single_node" and self.slurm is None:
            raise ValueError("Must use SLURM for multi-node / disaggregated deployment.")
        if self.deployment.type == "disaggregated":
            self.use_pd_kv_transfer = True
        if self.slurm is not None and self.slurm.template_path is None:
            templates = Path(__file__).parents[1] / "templates"
            self.slurm.template_path = templates / "inference.sbatch.j2"
        return self

    def build_kv_transfer_config(self) -> dict[str, Any] | None:
        connectors = []
        if self.use_pd_kv_transfer:
            nixl: dict[str, Any] = {"kv_connector": "NixlConnector", "kv_role": "kv_both"}
            connectors.append({**nixl, "kv_connector_extra_config": {"num_threads": 1}})
        if self.kv_cache_offload is not None:
            connectors.append(self.kv_cache_offload.to_connector_dict())
        if len(connectors) < 2:
            return connectors[0] if connectors else None
        extra = {"connectors": connectors}
        return {
            "kv_connector": "MultiConnector",
            "kv_role": "kv_both",
            "kv_connector_extra_config": extra,
        }

    def to_namespace(self) -> Any:
        from argparse import Namespace

        made = self.build_kv_transfer_config()
        given = {**(self.vllm.model_extra or {})}
        return Namespace(**(given | ({"kv_transfer_config": made} if made else {})))
