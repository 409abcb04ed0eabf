# SPDX-License-Identifier: Apache-2.0
"""An engine of SGLang without a model that computes: its tree, controller, host and device pools, and weight updater."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import time
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from kvcove.sglang import _weights
from sglang.srt.managers.scheduler_components.weight_updater import SchedulerWeightUpdaterManager
from sglang.srt.mem_cache.allocator import TokenToKVPoolAllocator
from sglang.srt.mem_cache.allocator.swa import SWATokenToKVPoolAllocator
from sglang.srt.mem_cache.base_prefix_cache import (
    CacheRequestHandle,
    InsertParams,
    MatchPrefixParams,
)
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool, MLATokenToKVPool, ReqToTokenPool
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.mem_cache.swa_memory_pool import SWAKVPool
from sglang.srt.mem_cache.unified_cache.components.base import ComponentType
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache
from sglang.srt.runtime_context import get_parallel
from sglang.srt.server_args import ServerArgs, set_global_server_args_for_scheduler

PAGE = 4
LAYERS = 3


_OWNER = """
import sys
from kvcove import _native
owner = _native.open_owner(master="", memory=int(sys.argv[2]), listen="", socket_path=sys.argv[1])
print("ready", flush=True)
sys.stdin.read()
"""


class Owner:
    def __init__(self, path: Path, memory: int = 64 << 20) -> None:
        self.address = f"unix:{path}"
        self.process = subprocess.Popen(
            [sys.executable, "-c", _OWNER, str(path), str(memory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == b"ready\n"

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


class Model(torch.nn.Module):
    """Weights, and SGLang's way to load them."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.full((32, 8), float(seed)), requires_grad=False)

    def load_weights(self, weights: Any) -> None:
        for name, tensor in weights:
            dict(self.named_parameters())[name].data.copy_(tensor)


class RunnersUpdater:
    """A runner's own part of an update, from wherever the bytes come."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self.fails = False

    def _load(self, seed: int) -> tuple[bool, str]:
        self._model.load_weights([("weight", torch.full((32, 8), float(seed)))])
        return (not self.fails, "as told")

    def update_weights_from_disk(self, path: str, *_: Any, **__: Any) -> tuple[bool, str]:
        return self._load(int(path))

    def receive_weights_from_distributed(self, names: Any, **_: Any) -> int:
        return int(names[0])

    def load_weights_from_distributed(self, seed: int) -> tuple[bool, str]:
        return self._load(seed)

    def update_weights_from_tensor(self, named_tensors: Any, **_: Any) -> tuple[bool, str]:
        return self._load(int(named_tensors))

    def update_weights_from_ipc(self, recv_req: Any) -> tuple[bool, str]:
        return self._load(int(recv_req.zmq_handles))

    def begin_weight_update(self) -> None: ...

    def end_weight_update(self, **_: Any) -> None: ...


class Engine:
    """One rank. ``kind``: mha, mla or swa (a window of two pages beside full attention)."""

    def __init__(
        self,
        pool: str,
        *,
        seed: int = 1,
        kind: str = "mha",
        layout: str = "layer_first",
        io: str = "direct",
        tp: tuple[int, int] = (0, 1),
        pp: tuple[int, int] = (0, 1),
        heads: int = 2,
        host_ratio: float = 4.0,
        dtype: torch.dtype = torch.float32,
        attached: bool = True,
        **extra: Any,
    ) -> None:
        self.kind = kind
        self.model = Model(seed)
        self.dtype = dtype
        self.runner = SimpleNamespace(
            model=self.model,
            model_config=None,
            kv_cache_dtype=dtype,
            weight_updater=RunnersUpdater(self.model),
        )
        self.size = 128
        self.heads = heads
        extra_config = json.dumps(
            {
                "backend_name": "kvcove",
                "module_path": "kvcove.sglang",
                "class_name": "KvcoveStorage",
                "interface_v1": 1,
                "prefetch_threshold": 1,
                "pool": pool,
                # As long as nothing hangs, a machine that is full passes.
                "lookup_timeout_ms": 8_000,
                "timeout_ms": 8_000,
                "reset_timeout_ms": 30_000,
                **extra,
            }
        )
        args = ServerArgs(
            model_path="dummy",
            page_size=PAGE,
            device="cpu",
            hicache_io_backend=io,
            hicache_mem_layout=layout,
            hicache_ratio=host_ratio,
            hicache_write_policy="write_through",
            hicache_storage_backend="dynamic" if attached else None,
            hicache_storage_backend_extra_config=extra_config if attached else None,
            hicache_storage_prefetch_policy="wait_complete",
        )
        args._mamba_cache_chunk_size = 64
        set_global_server_args_for_scheduler(args)
        self.req_to_token = ReqToTokenPool(
            size=8, max_context_len=256, device="cpu", enable_memory_saver=False
        )
        self.device_pool, self.allocator = self._device()
        params = CacheInitParams(
            req_to_token_pool=self.req_to_token,
            token_to_kv_pool_allocator=self.allocator,
            page_size=PAGE,
            disable=False,
            sliding_window_size=2 * PAGE if kind == "swa" else None,
            tree_components=(ComponentType.FULL, ComponentType.SWA)
            if kind == "swa"
            else (ComponentType.FULL,),
        )
        self.tree = UnifiedRadixCache(params=params)
        self._parallel = {
            "tp_rank": tp[0],
            "tp_size": tp[1],
            "attn_tp_rank": tp[0],
            "attn_tp_size": tp[1],
            "moe_tp_rank": tp[0],
            "moe_tp_size": tp[1],
            "pp_rank": pp[0],
            "pp_size": pp[1],
        }
        self._extra_config = extra_config
        with self._as_rank():
            self.tree.init_hicache(args, params)
            self.manager = self._manager()
        assert self.tree.write_through_threshold == 1
        self.tree.load_back_threshold = 0
        self.controller = self.tree.cache_controller
        self.controller.prefetch_capacity_limit = 1 << 30
        self._model_name = args.served_model_name
        self._rid = 0

    @property
    def storage(self) -> Any:
        return self.controller.storage_backend

    @contextmanager
    def _as_rank(self) -> Iterator[None]:
        """Be this rank of its engine, whose model runner is the only one of its process."""
        found = _weights.runners_of_process
        _weights.runners_of_process = lambda: [self.runner]
        try:
            with get_parallel().override(**self._parallel):
                yield
        finally:
            _weights.runners_of_process = found

    def detach(self) -> None:
        """As PUT and DELETE of /hicache/storage-backend do it."""
        done, message = self.tree.detach_storage_backend()
        assert done, message

    def attach(self) -> None:
        with self._as_rank():
            done, message = self.tree.attach_storage_backend(
                storage_backend="dynamic",
                storage_backend_extra_config_json=self._extra_config,
                served_model_name=self._model_name,
                hicache_storage_prefetch_policy="wait_complete",
            )
        assert done, message
        self.controller.prefetch_capacity_limit = 1 << 30

    def _device(self) -> tuple[Any, Any]:
        common = {"page_size": PAGE, "dtype": self.dtype, "device": "cpu"}
        heads = {"head_num": self.heads, "head_dim": 8}
        if self.kind == "swa":
            pool = SWAKVPool(
                size=self.size,
                size_swa=self.size,
                swa_attention_layer_ids=[1],
                full_attention_layer_ids=[0, 2],
                **heads,
                **common,
            )
            allocator = SWATokenToKVPoolAllocator(
                size=self.size, size_swa=self.size, kvcache=pool, need_sort=False, **common
            )
            return pool, allocator
        if self.kind == "mla":
            pool = MLATokenToKVPool(
                size=self.size,
                kv_lora_rank=12,
                qk_rope_head_dim=4,
                layer_num=LAYERS,
                enable_memory_saver=False,
                **common,
            )
        else:
            pool = MHATokenToKVPool(
                size=self.size, layer_num=LAYERS, enable_memory_saver=False, **heads, **common
            )
        allocator = TokenToKVPoolAllocator(
            size=self.size, dtype=self.dtype, device="cpu", kvcache=pool, need_sort=False
        )
        return pool, allocator

    def _manager(self) -> SchedulerWeightUpdaterManager:
        worker = SimpleNamespace(
            model_runner=self.runner,
            weight_update_runners=lambda: [("target", self.runner)],
            deserialize_own_rank=lambda tensors: tensors,
        )
        scheduler = SimpleNamespace(
            tree_cache=self.tree,
            record_weight_version_change=lambda **_: None,
            _engine_paused=False,
            disaggregation_mode=None,
        )
        memory_saver = SimpleNamespace(pause=lambda _: None, resume=lambda _: None)
        group = torch.distributed.group.WORLD
        fields = {each.name: each for each in dataclasses.fields(SchedulerWeightUpdaterManager)}
        more = {"tp_cpu_group": group} if fields["tp_cpu_group"].init else {}  # before 0.5.22
        with get_parallel().override(tp_group=SimpleNamespace(cpu_group=group)):
            return SchedulerWeightUpdaterManager(
                tp_worker=worker,
                draft_worker=None,
                memory_saver_adapter=memory_saver,
                flush_cache=self.flush,
                is_fully_idle=lambda **_: True,
                scheduler=scheduler,
                **more,
            )

    # ---- what a scheduler does

    def flush(self, empty_cache: bool = True) -> bool:
        """As Scheduler.flush_cache."""
        self.tree.reset()
        self.req_to_token.clear()
        self.allocator.clear()
        return True

    def _alloc(self, count: int) -> Any:
        if self.kind != "swa":
            return self.allocator.alloc(count)
        full = self.allocator.full_attn_allocator.alloc(count)
        self.allocator.full_to_swa_index_mapping[full] = self.allocator.swa_attn_allocator.alloc(
            count
        )
        return full

    def _buffers(self, indices: Any) -> list[tuple[Any, Any]]:
        """Return each layer's buffers with the slots of tokens in them."""
        pool = self.device_pool
        if self.kind == "mla":
            return [(buffer, indices) for buffer in pool.kv_buffer]
        if self.kind == "swa":
            window = self.allocator.full_to_swa_index_mapping[indices]
            return [
                (buffer, where)
                for part, where in ((pool.full_kv_pool, indices), (pool.swa_kv_pool, window))
                for buffer in (*part.k_buffer, *part.v_buffer)
            ]
        return [(buffer, indices) for buffer in (*pool.k_buffer, *pool.v_buffer)]

    def _kv(self, tokens: list[int], number: int, shape: Any) -> Any:
        """Return what this engine's weights make of tokens: other bytes for each layer, place and weight."""
        seed = float(self.model.weight[0, 0])
        place = torch.arange(len(tokens)) + 1
        value = torch.tensor(tokens) * 7.0 + place * 131.0 + number * 1009.0 + seed * 100003.0
        return value.view(-1, *[1] * (len(shape) - 1)).expand(-1, *shape[1:])

    def compute(self, tokens: list[int]) -> None:
        """Compute a prompt: its KV lies in device memory and in the tree, which begins to write it through."""
        indices = self._alloc(len(tokens))
        for number, (buffer, where) in enumerate(self._buffers(indices)):
            buffer[where] = self._kv(tokens, number, buffer[where].shape)
        key = RadixKey(array("q", tokens))
        self.tree.insert(InsertParams(key=key, value=indices))

    def drain(self, timeout: float = 20.0) -> None:
        """Let copies to the host and stores end, as the scheduler does between its steps."""
        deadline = time.monotonic() + timeout
        while True:
            self.tree.flush_pending_backups()
            self.tree.check_hicache_events()
            if not self.tree.ongoing_write_through and not self.tree.ongoing_backup:
                return
            assert time.monotonic() < deadline, "the backups hang"
            time.sleep(0.005)

    def store(self, tokens: list[int]) -> None:
        self.compute(tokens)
        self.drain()

    def begin_prefetch(self, tokens: list[int]) -> CacheRequestHandle:
        self._rid += 1
        request = CacheRequestHandle(f"r{id(self)}-{self._rid}", 0)
        self.tree.prefetch_from_storage(
            request, self.tree.root_node_handle(), array("q", tokens), None, None
        )
        return request

    def end_prefetch(self, request: CacheRequestHandle, timeout: float = 20.0) -> int:
        deadline = time.monotonic() + timeout
        while True:
            self.tree.check_hicache_events()
            if self.tree.check_prefetch_progress(request):
                return int(self.tree.pop_prefetch_loaded_tokens(request))
            assert time.monotonic() < deadline, "the prefetch hangs"
            time.sleep(0.005)

    def fetch(self, tokens: list[int]) -> int:
        """Return for how many tokens the pool had KV, after each byte was compared on the device."""
        self.end_prefetch(self.begin_prefetch(tokens))
        match = self.tree.match_prefix(MatchPrefixParams(key=RadixKey(array("q", tokens))))
        if not match.host_hit_length:
            return 0
        assert self.tree.load_back(match.best_match_node)
        assert self.tree.ready_to_load_host_cache() != -1
        self.tree.loading_check()
        after = self.tree.match_prefix(MatchPrefixParams(key=RadixKey(array("q", tokens))))
        if hasattr(after, "device_indices"):  # before 0.5.22
            indices = after.device_indices
        else:
            indices = self.tree.path_device_indices(after.last_device_node)
        self.check(tokens[: len(indices)], indices)
        return len(indices)

    def check(self, tokens: list[int], indices: Any) -> None:
        for number, (buffer, where) in enumerate(self._buffers(indices)):
            want = self._kv(tokens, number, buffer[where].shape)
            got = buffer[where]
            if self.kind == "swa" and where is not indices:
                got, want = got[-2 * PAGE :], want[-2 * PAGE :]
            assert torch.equal(got, want), f"wrong bytes in buffer {number}"

    # ---- updates, each by SGLang's own call

    def update(self, how: str, seed: int, flush: bool = True) -> Any:
        request = SimpleNamespace(
            flush_cache=flush,
            torch_empty_cache=False,
            weight_version=None,
            model_path=str(seed),
            load_format=None,
            recapture_cuda_graph=False,
            names=[str(seed)],
            dtypes=[],
            shapes=[],
            group_name="",
            selector="all",
            serialized_named_tensors=seed,
            zmq_handles=seed,
        )
        session = how in ("distributed", "tensor")
        if session:
            self.manager.begin_weight_update(request)
        answer = getattr(self.manager, f"update_weights_from_{how}")(request)
        if session:
            self.manager.end_weight_update(request)
        return answer

    def host_free(self) -> int:
        group = self.controller.mem_pool_host
        return sum(each.host_pool.available_size() for each in group.entries)

    def close(self) -> None:
        self.controller.detach_storage_backend()
        self.tree.release_host_resources()


@contextmanager
def engine(pool: str, **options: Any) -> Any:
    made = Engine(pool, **options)
    try:
        yield made
    finally:
        made.close()
