# SPDX-License-Identifier: Apache-2.0
"""LMCache's engine in process, on a CPU: all of it but the CUDA kernel that copies KV between chunks and paged layers."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from lmcache.v1.cache_engine import LMCacheEngineBuilder
from lmcache.v1.config import LMCacheEngineConfig
from lmcache.v1.gpu_connector.gpu_connectors import GPUConnectorInterface
from lmcache.v1.metadata import LMCacheMetadata

LAYERS, HEADS, HEAD, CHUNK, BLOCKS = 3, 2, 8, 4, 64
_names = itertools.count()


class Copies(GPUConnectorInterface):
    """What ``VLLMPagedMemGPUConnectorV2`` does with ``multi_layer_kv_transfer``, in torch."""

    def __init__(self, layers: Sequence[Any]) -> None:
        self._layers = layers

    def _flat(self, layer: Any) -> Any:
        return layer.view(2, -1, HEADS * HEAD)

    def to_gpu(self, memory_obj: Any, start: int, end: int, **kwargs: Any) -> None:
        slots = kwargs["slot_mapping"][start:end]
        for number, layer in enumerate(self._layers):
            self._flat(layer)[:, slots] = memory_obj.tensor[:, number]

    def from_gpu(self, memory_obj: Any, start: int, end: int, **kwargs: Any) -> None:
        slots = kwargs["slot_mapping"][start:end]
        for number, layer in enumerate(self._layers):
            memory_obj.tensor[:, number] = self._flat(layer)[:, slots]

    def batched_to_gpu(self, memory_objs: Any, starts: Any, ends: Any, **kwargs: Any) -> None:
        for each, start, end in zip(memory_objs, starts, ends, strict=True):
            self.to_gpu(each, start, end, **kwargs)

    def batched_from_gpu(self, memory_objs: Any, starts: Any, ends: Any, **kwargs: Any) -> None:
        for each, start, end in zip(memory_objs, starts, ends, strict=True):
            self.from_gpu(each, start, end, **kwargs)

    def get_shape(self, num_tokens: int) -> Any:
        return torch.Size([2, LAYERS, num_tokens, HEADS * HEAD])


class Engine:
    """One worker of an engine."""

    def __init__(
        self, pool: str, *, model: str = "llama", unfull: bool = True, **settings: Any
    ) -> None:
        self.layers = [
            torch.zeros(2, BLOCKS, CHUNK, HEADS, HEAD, dtype=torch.bfloat16) for _ in range(LAYERS)
        ]
        self.name = f"engine-{next(_names)}"
        timeouts = dict.fromkeys(("lookup_timeout_ms", "timeout_ms", "reset_timeout_ms"), 30_000)
        config = LMCacheEngineConfig.from_defaults(
            chunk_size=CHUNK,
            local_cpu=False,
            max_local_cpu_size=0.05,
            save_unfull_chunk=unfull,
            pre_caching_hash_algorithm="sha256_cbor",
            remote_storage_plugins=["kvcove"],
            extra_config={
                "remote_storage_plugin.kvcove.module_path": "kvcove.lmcache",
                "remote_storage_plugin.kvcove.class_name": "KvcoveConnectorAdapter",
                "save_chunk_meta": False,
                **{
                    f"kvcove.{key}": value
                    for key, value in {"pool": pool, **timeouts, **settings}.items()
                },
            },
        )
        metadata = LMCacheMetadata(
            model_name=model,
            world_size=1,
            local_world_size=1,
            worker_id=0,
            local_worker_id=0,
            kv_dtype=torch.bfloat16,
            kv_shape=(LAYERS, 2, CHUNK, HEADS, HEAD),
            chunk_size=CHUNK,
            role="worker",
        )
        self.engine = LMCacheEngineBuilder.get_or_create(
            self.name, config, metadata, Copies(self.layers), lambda *_: None, lambda each, _: each
        )
        self.engine.post_init(async_lookup_server=None)

    def connector(self) -> Any:
        backends = self.engine.storage_manager.storage_backends
        found = [each for each in backends.values() if hasattr(each, "connection")]
        return found[0].connection.getWrappedConnector()

    def fill(self, tokens: Sequence[int]) -> None:
        """Write KV that tells the tokens' places and values apart."""
        for number, layer in enumerate(self.layers):
            flat = layer.view(2, -1, HEADS * HEAD)
            flat.zero_()
            for place, token in enumerate(tokens):
                flat[:, place] = _value(number, token)

    def holds(self, tokens: Sequence[int], first: int, last: int) -> bool:
        return all(
            bool((layer.view(2, -1, HEADS * HEAD)[:, place] == _value(number, tokens[place])).all())
            for number, layer in enumerate(self.layers)
            for place in range(first, last)
        )

    def store(self, tokens: Sequence[int], salt: str = "") -> None:
        self.fill(tokens)
        self.engine.store(
            torch.tensor(tokens),
            slot_mapping=torch.arange(len(tokens)),
            request_configs=_tags(salt),
        )

    def lookup(self, tokens: Sequence[int], salt: str = "") -> int:
        return int(self.engine.lookup(torch.tensor(tokens), request_configs=_tags(salt)))

    def fetch(self, tokens: Sequence[int], salt: str = "") -> int:
        """Load KV, compare it, and return of how many tokens there is some."""
        for layer in self.layers:
            layer.zero_()
        mask = self.engine.retrieve(
            torch.tensor(tokens),
            slot_mapping=torch.arange(len(tokens)),
            request_configs=_tags(salt),
        )
        found = int(mask.sum())
        assert self.holds(tokens, 0, found)
        return found

    def close(self) -> None:
        LMCacheEngineBuilder.destroy(self.name)


def _value(layer: int, token: int) -> float:
    return float((token * 7 + layer) % 251)


def _tags(salt: str) -> dict[str, str] | None:
    return {"lmcache.tag.cache_salt": salt} if salt else None


@contextmanager
def engine(pool: str, **options: Any) -> Iterator[Engine]:
    made = Engine(pool, **options)
    try:
        yield made
    finally:
        made.close()
