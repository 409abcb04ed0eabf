# SPDX-License-Identifier: Apache-2.0
"""The storage of LMCache's server: its L1, its controllers and the L2 adapter, in this process."""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from kvcove.lmcache import KvcoveL2Adapter
from lmcache.v1.distributed import api
from lmcache.v1.distributed.config import add_storage_manager_args, parse_args_to_config
from lmcache.v1.distributed.storage_manager import StorageManager

MODEL = "meta-llama/Llama-3.1-8B"
LAYOUT = api.MemoryLayoutDesc([torch.Size([2, 4, 16, 256])], [torch.bfloat16])
CHUNK_BYTES = 2 * 4 * 16 * 256 * 2

_OWNER = """
import sys
from kvcove import _native
owner = _native.open_owner(
    master="", memory=int(sys.argv[2]), listen="", socket_path=sys.argv[1], disk=sys.argv[3],
    data=sys.argv[4], disk_admit="all",
)
print("ready", flush=True)
sys.stdin.read()
owner.close()
"""


class Owner:
    """A pool of this host in a process of its own."""

    def __init__(self, path: Path, memory: int = 64 << 20, disk: str = "", data: str = "") -> None:
        self.address = f"unix:{path}"
        self.process = subprocess.Popen(
            [sys.executable, "-c", _OWNER, str(path), str(memory), disk, data],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == b"ready\n"

    def stop(self) -> None:
        self.process.communicate()
        assert self.process.returncode == 0

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


def keys_of(
    prompt: str, count: int = 8, *, salt: str = "", model: str = MODEL, rank: int = 0x01000100
) -> list[Any]:
    """Return the keys of a prompt's chunks."""
    hashes = [hashlib.sha256(f"{prompt}{i}".encode()).digest() for i in range(count)]
    return [api.ObjectKey(each, model, rank, 0, salt) for each in hashes]


def spec_of(pool: str, **settings: Any) -> dict[str, Any]:
    """Return ``--l2-adapter``."""
    patient = dict.fromkeys(("lookup_timeout_ms", "timeout_ms", "reset_timeout_ms"), 30_000)
    return {
        "type": "plugin",
        "module_path": "kvcove.lmcache",
        "class_name": "KvcoveL2Adapter",
        # As long as nothing hangs, a machine that is full passes.
        "adapter_params": {"pool": pool, **patient, **settings},
    }


class Storage:
    """The storage of one server."""

    def __init__(
        self,
        pool: str,
        l1_bytes: int = 64 << 20,
        outer: dict[str, Any] | None = None,
        **settings: Any,
    ) -> None:
        parser = argparse.ArgumentParser()
        add_storage_manager_args(parser)
        words = [
            "--l1-size-gb",
            str(l1_bytes / (1 << 30)),
            "--no-l1-use-lazy",
            "--eviction-policy",
            "LRU",
        ]
        spec = {**spec_of(pool, **settings), **(outer or {})}
        config = parse_args_to_config(parser.parse_args([*words, "--l2-adapter", json.dumps(spec)]))
        config.l1_manager_config.memory_config.shm_name = ""
        self.manager = StorageManager(config)
        adapter = next(iter(self.manager._l2_adapters.values()))
        while not isinstance(adapter, KvcoveL2Adapter):
            adapter = adapter._inner
        self.adapter: KvcoveL2Adapter = adapter

    def begin(self, keys: Sequence[Any]) -> dict[Any, Any]:
        """Reserve room in L1, as an engine does before it writes."""
        try:
            return dict(self.manager.reserve_write(list(keys), LAYOUT))
        except TypeError:  # before 0.5.6
            return dict(self.manager.reserve_write(list(keys), LAYOUT, "new"))

    def end(self, reserved: dict[Any, Any]) -> None:
        """Write, which begins the store into L2."""
        for key, each in reserved.items():
            each.raw_data[:CHUNK_BYTES].copy_(expected(key))
        self.manager.finish_write(list(reserved))

    def store(self, keys: Sequence[Any]) -> None:
        """Store KV, and wait until the store into L2 has ended."""
        before = self.counts()
        self.end(self.begin(keys))
        self.settle(before)

    def settle(self, before: dict[str, int]) -> None:
        names = ("stored_objects", "failed_stores", "stale_stores")
        wait_for(lambda: any(self.counts().get(n, 0) > before.get(n, 0) for n in names))

    def counts(self) -> dict[str, int]:
        return dict(self.adapter._counts)

    def fetch(self, keys: Sequence[Any]) -> int:
        """Look up and load KV, compare its bytes, and return how many chunks there are from the first on."""
        handle = self.manager.submit_prefetch_task(_prefetch(list(keys)))
        found: list[Any] = []

        def ended() -> bool:
            answer = self.manager.query_prefetch_status(handle)
            if answer is not None:
                found.append(answer)
            return bool(found)

        wait_for(ended)
        bits = found[0].hit_cells[0] if hasattr(found[0], "hit_cells") else found[0]
        hits = bits.count_leading_ones()
        if hits:
            there = list(keys[:hits])
            with self.manager.read_prefetched_results(there) as objects:
                assert objects is not None
                for key, each in zip(there, objects, strict=True):
                    assert torch.equal(each.raw_data[:CHUNK_BYTES], expected(key))
            self.manager.finish_read_prefetched(there)
        return int(hits)

    def forget(self) -> None:
        """Empty L1 alone, as LMCache's own clear does."""
        for l1 in self.l1s():
            l1.clear()

    def l1s(self) -> list[Any]:
        several = getattr(self.manager, "_l1_managers_by_id", None)
        return list(several.values()) if several else [self.manager._l1_manager]

    def l1_bytes(self) -> int:
        return sum(int(l1.get_memory_usage()[0]) for l1 in self.l1s())

    def close(self) -> None:
        self.manager.close()


def _prefetch(keys: list[Any]) -> Any:
    if hasattr(api, "PrefetchTaskSpec"):
        return api.PrefetchTaskSpec([api.GroupedObjectKeys(keys, 0, LAYOUT)])
    return api.PrefetchRequestSpec(keys, {0: LAYOUT})  # before 0.5.6


def expected(key: Any) -> Any:
    """Return the bytes of a chunk."""
    seed = int.from_bytes(hashlib.sha256(repr(key).encode()).digest()[:7])
    return torch.randint(
        256, (CHUNK_BYTES,), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed)
    )


def wait_for(done: Any, seconds: float = 120.0) -> None:
    until = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < until
        time.sleep(0.002)


@contextmanager
def storage(pool: str, **options: Any) -> Iterator[Storage]:
    made = Storage(pool, **options)
    try:
        yield made
    finally:
        made.close()
