# SPDX-License-Identifier: Apache-2.0
"""The same for rl."""

from __future__ import annotations

from prime_rl.configs.rl import RLConfig
from prime_rl.entrypoints.inference import write
from prime_rl.utils.config import cli


def main() -> None:
    config = cli(RLConfig)
    if config.inference is None:
        raise ValueError("prime-rl's own failure")
    write(config, config.inference)
