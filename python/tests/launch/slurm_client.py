# SPDX-License-Identifier: Apache-2.0
"""An engine's part in a job of SLURM: node 0 caches a prefix, node 1 looks it up and loads it.

slurm_client.py KIND all | leave | again | slow | prefix. It ends when all nodes have looked; when the file `leave`
is there; then, after another look; as `leave`, but a while after SIGTERM; or after nothing but a look.
Values are the job's own, so that the pool of another job shows.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

JOB = f"{os.environ['SLURM_JOB_ID']}_{os.environ.get('SLURM_RESTART_COUNT', '0')}"
OUT = Path(os.environ["OUTPUT_DIR"]) / f"client_{JOB}"
RANK = int(os.environ["SLURM_PROCID"])
KEYS = [f"chunk-{i}" for i in range(16)]
VALUES = [f"{JOB}-{i:02}".encode() * 10_000 for i in range(16)]


class Kvcove:
    def __init__(self) -> None:
        import kvcove

        # The calls have the time of a busy machine.
        self._session = kvcove.open("auto", timeout=60).session("model", follow_always=True)

    def put(self) -> bool:
        return all(result.ok for result in self._session.put(KEYS, VALUES, timeout=60))

    def prefix(self) -> int:
        return self._session.longest_prefix(KEYS, timeout=60)

    def get(self) -> list[bytes | None]:
        return [*self._session.get(KEYS, timeout=60)]

    def where(self) -> list[str]:
        return [place for places in self._session.where(KEYS, timeout=60) for place in places]


class Mooncake:
    def __init__(self) -> None:
        os.environ["KVCOVE_TIMEOUT_MS"] = "60000"
        from mooncake.store import MooncakeDistributedStore

        config = json.loads(Path(os.environ["MOONCAKE_CONFIG_PATH"]).read_text())
        self._store = MooncakeDistributedStore()
        status = self._store.setup(
            os.environ["MOONCAKE_PREFERRED_SEGMENT"].rsplit(":", 1)[0],
            config["metadata_server"],
            config["global_segment_size"],
            config["local_buffer_size"],
            config["protocol"],
            config["device_name"],
            config["master_server_address"],
        )
        assert status == 0

    def put(self) -> bool:
        return self._store.put_batch(KEYS, VALUES) == 0

    def prefix(self) -> int:
        return sum(self._store.batch_is_exist(KEYS))

    def get(self) -> list[bytes | None]:
        return [*self._store.get_batch(KEYS)]

    def where(self) -> list[str]:
        return [
            place.get_memory_descriptor().buffer_descriptor.transport_endpoint
            for key in KEYS
            for place in self._store.batch_get_replica_desc([key])[key]
        ]


def write(name: str, text: str) -> None:
    (OUT / f"{name}.new").write_text(text)
    (OUT / f"{name}.new").rename(OUT / name)


def wait(test: Callable[[], bool]) -> None:
    while not test():
        time.sleep(0.05)


def look(engine: Kvcove | Mooncake) -> dict[str, Any]:
    """Look the prefix up, and load it."""
    got = engine.get()
    try:
        where = engine.where()
    except KeyError:  # of mooncake.store, for a key that is a miss
        where = []
    return {
        "prefix": engine.prefix(),
        "right": sum(a == b for a, b in zip(got, VALUES, strict=True)),
        "where": where,
    }


def ends_late(*_: object) -> None:
    time.sleep(3)
    write(f"ended-{RANK}", "")
    sys.exit(0)


def main() -> int:
    kind, mode = sys.argv[1:]
    OUT.mkdir(exist_ok=True)
    if mode == "slow":
        signal.signal(signal.SIGTERM, ends_late)
    engine = Kvcove() if kind == "kvcove" else Mooncake()
    if mode == "prefix":
        print(engine.prefix(), flush=True)
        return 0
    if RANK == 0:
        assert engine.put()
        write("cached", "")
    wait((OUT / "cached").exists)
    # An owner that a busy machine keeps from answering is passed over for a while.
    end = time.monotonic() + 60
    found = look(engine)
    while found["prefix"] + found["right"] < 32 and time.monotonic() < end:
        time.sleep(1)
        found = look(engine)
    write(f"found-{RANK}", json.dumps(found | {"environment": dict(os.environ)}))
    if mode == "all":
        nodes = range(int(os.environ["SLURM_NNODES"]))
        wait(lambda: all((OUT / f"found-{rank}").exists() for rank in nodes))
        return 0 if (found["prefix"], found["right"]) == (16, 16) else 1
    wait((OUT / "leave").exists)
    if mode == "again":
        # What a suspended or a lost node had is there again a while later, or never.
        end = time.monotonic() + 30
        while engine.prefix() != 16 and time.monotonic() < end:
            time.sleep(0.2)
        write(f"again-{RANK}", str(engine.prefix()))
    return int((OUT / "leave").read_text() or 0) if RANK == 1 else 0


if __name__ == "__main__":
    sys.exit(main())
