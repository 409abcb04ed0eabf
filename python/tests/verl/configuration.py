# SPDX-License-Identifier: Apache-2.0
"""What verl's own configuration makes of a connector: configuration.py OUT [--own=FILE] ARGUMENTS...

Writes the `--kv-transfer-config` that vLLM's parser gets from verl, as JSON; null where there is none.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any


def composed(arguments: list[str], own: str = "") -> Any:
    """Return what `python3 -m verl.trainer.main_ppo ARGUMENTS` is configured with.

    With a file of the user's own, DIRECTORY/NAME, as with --config-path and --config-name.
    """
    import hydra

    if own:
        with hydra.initialize_config_dir(str(Path(own).parent), version_base=None):
            return hydra.compose(Path(own).name, arguments)
    with hydra.initialize_config_module("verl.trainer.config", version_base=None):
        return hydra.compose("ppo_trainer", arguments)


def transfer_of(rollout: Any) -> dict[str, Any] | None:
    """Return what vLLM is given, by the way that vLLMHttpServer.launch_server has for it."""
    from verl.utils.config import omega_conf_to_dataclass
    from verl.workers.rollout.vllm_rollout.utils import build_cli_args_from_config
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    config = omega_conf_to_dataclass(rollout)
    kwargs = {
        key: value for key, value in config.engine_kwargs["vllm"].items() if value is not None
    }
    store = getattr(config, "kv_store", None)  # of contrib/verl.patch
    if store is not None and store.enable:
        kwargs["kv_transfer_config"] = store.to_kv_transfer_config()
    parser = AsyncEngineArgs.add_cli_args(FlexibleArgumentParser())
    told = parser.parse_args(build_cli_args_from_config(kwargs)).kv_transfer_config
    if told is None:
        return None
    made = {field.name: getattr(told, field.name) for field in dataclasses.fields(told)}
    return {key: value for key, value in made.items() if key != "engine_id"}


def main() -> None:
    out, *arguments = sys.argv[1:]
    own = [each.removeprefix("--own=") for each in arguments if each.startswith("--own=")]
    rest = [each for each in arguments if not each.startswith("--own=")]
    made = transfer_of(composed(rest, *own).actor_rollout_ref.rollout)
    Path(out).write_text(json.dumps(made, indent=1))


if __name__ == "__main__":
    main()
