# SPDX-License-Identifier: Apache-2.0
"""A put that vLLM's MooncakeStoreConnector has queued when another client resets: queued.py ROLE MODEL OUT.

No engine: the connector's own worker side with its own sending thread, over kvcove's mooncake.store and the master in
$MOONCAKE_CONFIG_PATH. The thread waits for the event that says the blocks are computed; the reset comes meanwhile.
Writes what became of the put, with the fence as it is by itself and without it, to OUT (JSON).
"""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import importlib
import json
import os
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest import mock

FENCE = "KVCOVE_MOONCAKE_QUEUE_FENCE"
BLOCKS = 4
LAYER = "model.layers.0.self_attn.attn"
PATIENCE = 60.0


def use_the_drop_in() -> None:
    """Where kvcove is installed without the package that has the name: under that name all the same."""
    with suppress(ImportError):
        importlib.import_module("mooncake.store")
        return
    sys.modules["mooncake"] = importlib.import_module("kvcove.mooncake")
    sys.modules["mooncake.store"] = importlib.import_module("kvcove.mooncake.store")


def store_config() -> Any:
    """Return vLLM's class of the store's configuration; 0.30 and older have it in the connector's worker."""
    for name in (
        "vllm.distributed.mooncake_store",
        "vllm.distributed.kv_transfer.kv_connector.v1.mooncake.store.worker",
    ):
        with suppress(ImportError):
            return importlib.import_module(name).MooncakeStoreConfig
    raise ImportError("this vLLM has no MooncakeStoreConfig")


class Computed:
    """The event behind the forward pass, which ends when the test says so."""

    def __init__(self, *_args: Any, **_options: Any) -> None:
        self.waited_for = threading.Event()
        self.done = threading.Event()

    def record(self, *_args: Any) -> None:
        pass

    def synchronize(self) -> None:
        self.waited_for.set()
        assert self.done.wait(PATIENCE)


class Told:
    """The connector's store, and what it answered to puts."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.keys: list[str] = []
        self.answers: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def batch_put_from_multi_buffers(self, *arguments: Any) -> Any:
        self.keys = list(arguments[0])
        answers = self._store.batch_put_from_multi_buffers(*arguments)
        self.answers += answers
        return answers


class Rank:
    """The worker side of a rank other than 0: no reset empties its queue."""

    def __init__(self, vllm_config: Any, name: str) -> None:
        import torch
        from vllm.config import KVTransferConfig
        from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
        from vllm.distributed.kv_transfer.kv_connector.v1.mooncake.store.connector import (
            MooncakeStoreConnector,
        )
        from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec

        config = copy.copy(vllm_config)
        config.kv_transfer_config = KVTransferConfig(
            kv_connector="MooncakeStoreConnector", kv_role="kv_both"
        )
        config.kv_events_config = None
        config.parallel_config = copy.copy(vllm_config.parallel_config)
        config.parallel_config.rank = 1
        config.cache_config = copy.copy(vllm_config.cache_config)
        config.cache_config.num_gpu_blocks = BLOCKS
        self._block_size = config.cache_config.block_size
        spec = FullAttentionSpec(
            block_size=self._block_size, num_kv_heads=1, head_size=8, dtype=torch.float32
        )
        self._blocks = torch.zeros(BLOCKS, spec.page_size_bytes // 4)
        self._connector = MooncakeStoreConnector(
            config,
            KVConnectorRole.WORKER,
            KVCacheConfig(BLOCKS, [], [KVCacheGroupSpec([LAYER], spec)]),
        )
        self._worker = self._connector.connector_worker
        self._connector.register_kv_caches({LAYER: self._blocks})
        self._thread = self._worker.kv_send_thread
        self.store = self._thread.store = Told(self._thread.store)
        self._hashes = [hashlib.sha256(f"{name} {i}".encode()).digest() for i in range(2)]
        self._jobs = 0

    def names(self) -> list[str]:
        """Return those of the last put: each version of vLLM makes them in its own way."""
        assert len(self.store.keys) == len(self._hashes)
        return self.store.keys

    def value(self, i: int) -> bytes:
        return bytes(self._blocks[1 + i].numpy().tobytes())

    def queue(self, filling: float) -> Computed:
        """Have blocks 1 and 2 computed, and their saves queued as a step does it."""
        from vllm.distributed.kv_transfer.kv_connector.v1.mooncake.store.data import (
            MooncakeStoreConnectorMetadata,
            ReqMeta,
        )

        self._blocks.fill_(filling)
        self._jobs += 1
        tokens = len(self._hashes) * self._block_size
        name = f"request {self._jobs}"
        step = MooncakeStoreConnectorMetadata({name}, set())
        told = {
            "req_id": name,
            "token_len_chunk": tokens,
            "block_ids": ([1, 2],),
            "block_hashes": list(self._hashes),
            "can_save": True,
            "prefill_end_tokens": tokens,
            "store_job_id": self._jobs,
            "is_last_chunk": True,
        }
        known = {each.name for each in dataclasses.fields(ReqMeta)}
        step.add_request(ReqMeta(**{key: told[key] for key in told if key in known}))
        event = Computed()
        self._connector.bind_connector_metadata(step)
        with mock.patch("torch.cuda.Event", lambda *_args, **_options: event):
            self._connector.wait_for_save()
            if not self._thread.request_queue.unfinished_tasks:  # vLLM 0.29 and older queue later
                self._connector.get_finished(set())
        self._connector.clear_connector_metadata()
        return event

    def work_off(self) -> list[int]:
        """Return what the queue's puts answered."""
        until = time.monotonic() + PATIENCE
        while self._thread.request_queue.unfinished_tasks:
            assert time.monotonic() < until, "the sending thread does not end its work"
            time.sleep(0.01)
        answers, self.store.answers = self.store.answers, []
        return answers

    def close(self) -> None:
        self._connector.shutdown()


def reset_beside_a_queue(vllm_config: Any, fence: str) -> dict[str, Any]:
    """Return the answers to the queued put, what of it another client finds, and of a later put."""
    from mooncake.store import MooncakeDistributedStore

    use = {FENCE: fence} if fence else {}
    with mock.patch.dict(os.environ, use):
        if not fence:
            os.environ.pop(FENCE, None)
        rank = Rank(vllm_config, f"fence {fence}")
        other = MooncakeDistributedStore()
        master = store_config().load_from_config().master_server_address
        assert other.setup("127.0.0.1", "P2PHANDSHAKE", 0, 64 << 20, "tcp", "", master) == 0
    try:
        event = rank.queue(1.0)
        assert event.waited_for.wait(PATIENCE), "the sending thread has not begun the put"
        proven = other.remove_all(force=True) >= 0
        event.done.set()
        queued = rank.work_off()
        stale = other.batch_is_exist(rank.names())
        time.sleep(0.3)  # the queue has run dry
        event = rank.queue(2.0)
        event.done.set()
        later = rank.work_off()
        found = [bytes(other.get(key)) for key in rank.names()]
        new = [rank.value(i) for i in range(len(found))]
        return {
            "proven": proven,
            "queued": queued,
            "stale": stale,
            "later": later,
            "new": found == new,
        }
    finally:
        other.close()
        rank.close()


def both(vllm_config: Any) -> dict[str, Any]:
    """Return what becomes of a queued put with the fence as it is by itself, and without it."""
    use_the_drop_in()
    return {
        "fenced": reset_beside_a_queue(vllm_config, ""),
        "unfenced": reset_beside_a_queue(vllm_config, "0"),
    }


def checks(seen: dict[str, Any]) -> list[tuple[bool, str]]:
    """Return what must hold of the answer of `both`, each with its text."""
    fenced, unfenced = seen["fenced"], seen["unfenced"]
    return [
        (
            fenced["proven"] and fenced["queued"] == [-300, -300] and fenced["stale"] == [0, 0],
            f"a put that was queued before another's reset answers {fenced['queued']}, and nobody finds it",
        ),
        (
            fenced["later"] == [0, 0] and fenced["new"],
            "the next put of the same blocks is stored, and its value is found",
        ),
        (
            unfenced["proven"] and unfenced["queued"] == [0, 0] and unfenced["stale"] == [1, 1],
            "without the fence the old value is found after the reset",
        ),
    ]


def main() -> None:
    from vllm.config import set_current_vllm_config
    from vllm.distributed import ensure_model_parallel_initialized, init_distributed_environment
    from vllm.engine.arg_utils import EngineArgs

    model, out = sys.argv[2:]
    config = EngineArgs(
        model=model, skip_tokenizer_init=True, dtype="float32", enforce_eager=True, block_size=128
    ).create_engine_config()
    with set_current_vllm_config(config):
        init_distributed_environment(1, 0, f"file://{out}.rendezvous", 0, "gloo")
        ensure_model_parallel_initialized(1, 1)
        seen = both(config)
    Path(out).write_text(json.dumps(seen))
    os._exit(0)  # the connector's threads never end


if __name__ == "__main__":
    main()
