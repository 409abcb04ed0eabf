# SPDX-License-Identifier: Apache-2.0
"""Writes the files of a job, as prime-rl's launcher does."""

from __future__ import annotations

import json
import sys
from typing import Any

from prime_rl.configs.inference import InferenceConfig
from prime_rl.utils.config import cli


def write(config: Any, inference: InferenceConfig) -> None:
    config.output_dir.mkdir(parents=True, exist_ok=True)
    left_out = {"deployment", "slurm", "output_dir", "dry_run"}
    engine = inference.model_dump(mode="json", exclude=left_out)
    (config.output_dir / "inference.json").write_text(json.dumps(engine))
    if config.slurm is None:
        return
    from jinja2 import Environment, FileSystemLoader

    template = config.slurm.template_path
    folder = FileSystemLoader(template.parent)
    offload = inference.kv_cache_offload
    text = (
        Environment(loader=folder, keep_trailing_newline=True)
        .get_template(template.name)
        .render(
            kv_offload=offload is not None,
            kv_offload_mooncake=offload is not None and offload.type == "mooncake",
            output_dir=config.output_dir,
        )
    )
    (config.output_dir / "inference.sbatch").write_text(text)


def main() -> None:
    config = cli(InferenceConfig)
    print(json.dumps(sys.argv))
    write(config, config)


if __name__ == "__main__":
    main()
