# SPDX-License-Identifier: Apache-2.0
"""``inference.kv_cache_offload`` of prime-rl: where KV goes that an engine's GPUs have no room for.

>>> from kvcove.launch.offload import CpuTier, NativeOffload
>>> NativeOffload(cpu=CpuTier(num_bytes="64GiB")).cpu.num_bytes
68719476736
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from kvcove.launch._size import Size, format_size
from kvcove.launch._strict import Strict, wrong_at
from kvcove.vllm._config import Config

__all__ = [
    "NO_CPU_TIER",
    "CpuTier",
    "DiskTier",
    "KVCacheOffload",
    "KvcoveOffload",
    "MooncakeOffload",
    "NativeOffload",
    "OFFLOADS",
    "check_writable",
]

LEAST_DISK = 64 << 20
"""Bytes of the smallest disk that an owner gets from here."""

MOST_OF_AN_OWNER = 16 << 40
"""Bytes that one owner, or one embedded pool, may have (kvcove/segment/allocator.h)."""

NO_CPU_TIER = "inference.kv_cache_offload requires a cpu tier (disk-only offload is not supported)."


def check_writable(path: Path) -> None:
    """Check that this process may make files at a path, which need not be there yet.

    Raises
    ------
    ValueError
        It may not; the message says which directory is in the way.
    """
    if not path.is_absolute():
        raise ValueError(f"{str(path)!r}: give an absolute path")
    there = path
    while not there.exists() and there != there.parent:
        there = there.parent
    if not there.is_dir():
        raise ValueError(f"{str(path)!r} cannot be written: {there} is no directory")
    if not os.access(there, os.W_OK | os.X_OK):
        raise ValueError(
            f"{str(path)!r} cannot be written: this user may not write to {there}; give another "
            f"directory, or let its owner change it"
        )


class CpuTier(Strict):
    """Host memory."""

    num_bytes: Size
    """Bytes, or a size such as ``"64GiB"``. ``native``: of one engine, all its ranks together;
    ``mooncake``: of each inference node; ``kvcove``: of the pool that an engine has to itself where
    its host has no owner, 1MiB to 16TiB."""


class DiskTier(Strict):
    """A directory, whose file system bounds what goes there.

    ``kvcove`` takes a quarter of what is free for each engine's own pool, and half of it for a node of a
    SLURM job.
    """

    path: Path
    """An absolute path that can be written, or made."""

    @field_validator("path")
    @classmethod
    def _can_be_written(cls, path: Path, info: ValidationInfo) -> Path:
        # Where another host will run the engine, only that host can tell.
        if not (info.context or {}).get("elsewhere"):
            check_writable(path)
        return path


class _Offload(Strict):
    cpu: CpuTier | None = None
    disk: DiskTier | None = None

    @model_validator(mode="after")
    def _has_a_cpu_tier(self) -> _Offload:
        if self.cpu is None and self._needs_cpu():
            raise ValueError(NO_CPU_TIER)
        return self

    def _needs_cpu(self) -> bool:
        return True


class NativeOffload(_Offload):
    """vLLM's own ``OffloadingConnector``: host memory, and a directory behind it."""

    type: Literal["native"] = "native"


class MooncakeOffload(_Offload):
    """``MooncakeStoreConnector``: one store over all inference nodes of a SLURM job."""

    type: Literal["mooncake"] = "mooncake"

    device_name: str = ""
    """RDMA devices, with commas between them. Empty: detected."""


_POOLS_WITH_MEMORY_OF_THEIR_OWN = ("unix:", "kvcove://")


class KvcoveOffload(_Offload):
    """``KvcoveConnector``: the owner of the host, a cluster, or a pool of the engine's own."""

    type: Literal["kvcove"] = "kvcove"

    pool: str = "auto"
    """``auto`` (the owner of this host if there is one, else ``embedded``), ``embedded``,
    ``unix:/path`` or ``kvcove://host:7400``. The last two have memory of their own: without
    ``cpu`` then."""

    extra_config: dict[str, Any] = Field(default_factory=dict)
    """Other keys of the connector's ``kv_connector_extra_config`` (docs/connector.md)."""

    def _needs_cpu(self) -> bool:
        return not self.pool.startswith(_POOLS_WITH_MEMORY_OF_THEIR_OWN)

    @model_validator(mode="after")
    def _the_connector_takes_it(self) -> KvcoveOffload:
        for key, instead in (
            ("pool", "pool"),
            ("memory", "cpu.num_bytes"),
            ("disk", "disk.path"),
        ):
            if key in self.extra_config:
                raise wrong_at(f"extra_config.{key}", f"write it as {instead}")
        if self.cpu is not None and not self._needs_cpu():
            raise wrong_at(
                "cpu",
                f"the pool at {self.pool} has memory of its own; leave cpu out, or give "
                'pool = "auto"',
            )
        if self.disk is not None and not self._needs_cpu():
            raise wrong_at(
                "disk",
                f"the pool at {self.pool} has disks, or none: start its owners with "
                f"'kvcove owner --disk {self.disk.path}:SIZE', and leave disk out",
            )
        if self.disk is not None and ":" in str(self.disk.path):
            raise wrong_at("disk.path", "a path without ':' is wanted")
        if self.cpu is not None and not 1 << 20 <= self.cpu.num_bytes <= MOST_OF_AN_OWNER:
            raise wrong_at(
                "cpu.num_bytes",
                f"an engine's own pool has 1MiB to 16TiB, not {format_size(self.cpu.num_bytes)}; "
                "for more share the pool of several hosts, each with an owner (kvcove owner "
                '--memory ..., 16TiB at most), and give pool = "kvcove://HOST:7400"',
            )
        try:
            Config.of(self.connector_options())
        except ValueError as error:
            text = str(error).removeprefix("kv_connector_extra_config: ")
            key, _, rest = text.partition(": ")
            if key == "pool":
                raise wrong_at(key, rest.replace('"pool": ', "pool = ")) from error
            raise wrong_at("extra_config", text) from error
        return self

    def connector_options(self) -> dict[str, Any]:
        """Return the connector's ``kv_connector_extra_config``."""
        options: dict[str, Any] = {"pool": self.pool}
        if self.cpu is not None:
            options["memory"] = format_size(self.cpu.num_bytes)
        if self.disk is not None:
            options["disk"] = str(self.disk.path)
        return {**options, **self.extra_config}


KVCacheOffload = Annotated[
    NativeOffload | MooncakeOffload | KvcoveOffload, Field(discriminator="type")
]
"""Any of them, as a field of another pydantic model: chosen by ``type``."""

OFFLOADS: dict[str, type[NativeOffload] | type[MooncakeOffload] | type[KvcoveOffload]] = {
    "native": NativeOffload,
    "mooncake": MooncakeOffload,
    "kvcove": KvcoveOffload,
}
