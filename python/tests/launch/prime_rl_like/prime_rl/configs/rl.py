# SPDX-License-Identifier: Apache-2.0
"""The same for a configuration of rl: trainer, inference, job."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from prime_rl.configs.inference import BaseConfig, InferenceConfig, SlurmConfig
from pydantic import Field, model_validator


class TrainerConfig(BaseConfig):
    enable_router_replay: bool = False


class RLConfig(BaseConfig):
    trainer: TrainerConfig = Field(default_factory=TrainerConfig)
    inference: InferenceConfig | None = None
    slurm: SlurmConfig | None = None
    output_dir: Path = Path("outputs")
    dry_run: bool = False

    @model_validator(mode="before")
    @classmethod
    def propagate(cls, data: Any) -> Any:
        if "slurm" in data and "inference" in data:
            data["inference"].setdefault("slurm", {})
        return data

    @model_validator(mode="after")
    def resolve(self) -> Any:
        offload = self.inference.kv_cache_offload if self.inference is not None else None
        if self.trainer.enable_router_replay and offload is not None:
            raise ValueError("Router replay with inference.kv_cache_offload is not supported.")
        if self.slurm is not None and self.slurm.template_path is None:
            templates = Path(__file__).parents[1] / "templates"
            self.slurm.template_path = templates / "multi_node_rl.sbatch.j2"
        return self
