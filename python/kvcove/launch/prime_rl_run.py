# SPDX-License-Identifier: Apache-2.0
"""prime-rl's own launchers with ``inference.kv_cache_offload.type = "kvcove"``, without a change to prime-rl.

prime-rl reads the configuration, with one more type in its union. Then the connector is written down in
the form that unmodified prime-rl takes, ``inference.vllm.kv_transfer_config``: its launchers write files
that other processes read, also on other nodes, and those need nothing of this module.
"""

from __future__ import annotations

import contextlib
import importlib
import re
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, Literal, get_args

from pydantic import Field, ValidationError, model_validator

from kvcove.launch import _stale, slurm
from kvcove.launch._document import Document
from kvcove.launch._errors import LaunchError
from kvcove.launch._strict import problems_of
from kvcove.launch.connector import build_kv_transfer_config
from kvcove.launch.offload import CpuTier, KvcoveOffload, check_writable

__all__ = ["LAUNCHERS", "add_type", "lower", "run"]

LAUNCHERS = ("rl", "inference")
"""Those of prime-rl's commands that start engines, or write a job that does."""

_PART = "_mooncake_store.sh.j2"
_FOLDER = Path(__file__).parents[1] / "mooncake" / "overlay"
# prime-rl's environment has the original `mooncake`, too: as `python -m kvcove.mooncake run` does.
_OVERLAY = f"""\
export PATH={slurm.quoted(f"{_FOLDER}/bin")}:"$PATH"
export PYTHONPATH={slurm.quoted(str(_FOLDER))}"${{PYTHONPATH:+:$PYTHONPATH}}"
"""


def run(command: Sequence[str], *, strict: bool = False) -> None:
    """Run one of prime-rl's launchers in this process.

    Parameters
    ----------
    command : sequence of str
        ``rl`` or ``inference``, and its arguments.
    strict : bool
        Where engines may be given KV of old weights, that is an error; else a warning is logged.

    Raises
    ------
    LaunchError
        It is no such command, prime-rl is not installed here, or its configuration cannot be used.
    """
    name = Path(command[0]).name
    if name not in LAUNCHERS:
        raise LaunchError(f"prime-rl: {command[0]}: give 'rl' or 'inference', and its arguments")
    inference = _module("configs.inference")
    try:
        add_type(inference)
        launcher = _module(f"entrypoints.{name}")
        read, _ = launcher.cli, launcher.main
    except (AttributeError, IndexError, KeyError, TypeError) as error:
        raise LaunchError(
            f"prime-rl: this version is not known here ({error}); 0.8.0 is (docs/prime-rl.md)"
        ) from error
    with contextlib.ExitStack() as until_written:

        def read_and_lower(*arguments: Any, **options: Any) -> Any:
            config = read(*arguments, **options)
            lower(config, until_written, strict=strict)
            return config

        launcher.cli = read_and_lower
        sys.argv = [name, *command[1:]]
        try:
            launcher.main()
        finally:
            launcher.cli = read


def _module(name: str) -> Any:
    try:
        return importlib.import_module(f"prime_rl.{name}")
    except ImportError as error:
        raise LaunchError(
            f"prime-rl: prime_rl.{name} cannot be imported ({error}): run this with the Python in whose "
            "environment prime-rl is (uv run python -m kvcove.launch ...), with kvcove installed there"
        ) from error


def add_type(inference: ModuleType) -> None:
    """Add the type to ``kv_cache_offload`` of ``prime_rl.configs.inference``, unless it is there.

    Models that contain ``InferenceConfig`` must be imported later: each copies its schema.
    """
    known = get_args(get_args(inference.KVCacheOffloadConfig)[0])
    if any(model.model_fields["type"].default == "kvcove" for model in known):
        return
    union: Any = inference.KVCacheOffloadConfig.__origin__ | _kvcove_type(inference)
    field = inference.InferenceConfig.model_fields["kv_cache_offload"]
    field.annotation = Annotated[union, Field(discriminator="type")] | None
    inference.InferenceConfig.model_rebuild(force=True)


def _kvcove_type(inference: ModuleType) -> Any:
    """Return prime-rl's counterpart of :class:`KvcoveOffload`."""

    class KvcoveKVCacheOffloadConfig(inference.BaseKVCacheOffloadConfig):  # type: ignore[misc, name-defined]
        """kvcove's pool (docs/prime-rl.md)."""

        type: Literal["kvcove"] = "kvcove"
        cpu: CpuTier | None = None
        pool: str = "auto"
        extra_config: dict[str, Any] = Field(default_factory=dict)

        @model_validator(mode="after")
        def valid_tiers(self) -> Any:
            # In the place of the base's rule: a pool may have memory of its own.
            try:
                # Whether its disk can be written is for the node that will have it.
                KvcoveOffload.model_validate(
                    self.model_dump(exclude_none=True), context={"elsewhere": True}
                )
            except ValidationError as error:
                found = problems_of(error, Document({}), (), {})
                raise ValueError("; ".join(map(str, found))) from error
            return self

        def to_connector_dict(self) -> dict[str, Any]:
            offload = KvcoveOffload.model_construct(
                cpu=self.cpu, disk=self.disk, pool=self.pool, extra_config=self.extra_config
            )
            made = build_kv_transfer_config(offload)
            assert made is not None
            return made

    return KvcoveKVCacheOffloadConfig


def lower(config: Any, until_written: contextlib.ExitStack, *, strict: bool = False) -> None:
    """Write the connector of a configuration down as prime-rl takes it without this type.

    Parameters
    ----------
    config : RLConfig or InferenceConfig
        As prime-rl has read and checked it. It is changed.
    until_written : contextlib.ExitStack
        Holds the templates that prime-rl needs until it has written its job.
    strict : bool
        As of :func:`run`.

    Raises
    ------
    LaunchError
        The engines' connector is there twice, its disk cannot be written, or the template of the job has
        no place for a pool.
    """
    inference = config if hasattr(config, "kv_cache_offload") else config.inference
    if inference is None:
        return
    offload = inference.kv_cache_offload
    kind = offload.type if offload is not None else ""
    if kind == "kvcove" and (inference.vllm.model_extra or {}).get("kv_transfer_config"):
        raise LaunchError(
            "inference.vllm.kv_transfer_config: inference.kv_cache_offload makes it; leave it out"
        )
    if kind in ("kvcove", "mooncake") and config.slurm is not None and config.slurm.template_path:
        shared = _with_own_template(config.slurm, offload, until_written)
        if kind == "kvcove" and shared:
            # The nodes' owners have the memory; where they are is in the engines' environment.
            offload = offload.model_copy(update={"cpu": None, "disk": None})
            inference.kv_cache_offload = offload
    elif kind == "kvcove" and offload.disk is not None:
        try:
            check_writable(offload.disk.path)
        except ValueError as error:
            raise LaunchError(f"inference.kv_cache_offload.disk.path: {error}") from error
    made = inference.build_kv_transfer_config()
    stages = (inference.vllm.model_extra or {}).get("pipeline_parallel_size", 1)
    ranks = inference.vllm.tensor_parallel_size * stages
    _stale.tell(made, ranks=ranks, resets=False, strict=strict)
    if kind != "kvcove":
        return
    if made["kv_connector"] == "MultiConnector":
        # vLLM's scheduler reads the policy of the whole, and no connector's own.
        made = {**made, "kv_load_failure_policy": "recompute"}
    inference.vllm.kv_transfer_config = made
    inference.kv_cache_offload = None
    inference.use_pd_kv_transfer = False


def _with_own_template(job: Any, offload: Any, until_written: contextlib.ExitStack) -> bool:
    """Give a job a copy of its template that keeps kvcove installed, and starts a pool of its nodes.

    Returns
    -------
    bool
        Whether it starts a pool: that of a job of one node may have no place for that.
    """
    template = Path(job.template_path)
    copy = Path(until_written.enter_context(tempfile.TemporaryDirectory(prefix="kvcove-")))
    for file in template.parent.iterdir():  # what the template may include
        if file.name != template.name:
            (copy / file.name).symlink_to(file.absolute())
    text = template.read_text(encoding="utf-8")
    # `uv sync` removes what prime-rl's lock does not name.
    text = re.sub(r"^([^#\n]*)\buv sync (?!.*--inexact)", r"\1uv sync --inexact ", text, flags=re.M)
    shared = _PART in text and getattr(offload, "pool", "auto") == "auto"
    if shared:
        text, places = re.subn(r"(\{%-? if )kv_offload(_mooncake)?( -?%\})", r"\1true\3", text)
        if not places:
            raise LaunchError(
                f"slurm.template_path: {template} includes {_PART} in a way that is not known here: leave "
                'template_path out, or give type = "kvcove" with pool = "kvcove://HOST:7400"'
            )
        block = offload.model_dump(mode="json", exclude_none=True)
        pool = slurm.pool_of(Document({"slurm": {}, "kv_cache_offload": block}))
        part = (_OVERLAY if pool.kind == "mooncake" else "") + slurm.render_part(pool)
        (copy / _PART).unlink(missing_ok=True)  # the link to prime-rl's own
        # Nothing in it is for Jinja.
        (copy / _PART).write_text(f"{{% raw %}}{part}{{% endraw %}}\n", encoding="utf-8")
    (copy / template.name).write_text(text, encoding="utf-8")
    job.template_path = copy / template.name
    return shared
