# SPDX-License-Identifier: Apache-2.0
"""Copies and moves of single values, as tasks of the master (its admin endpoint)."""

from __future__ import annotations

import json
import os
import secrets
import threading
import time
import urllib.error
import urllib.request
from typing import Any

from kvcove.mooncake import _config
from kvcove.mooncake._http import open_url
from kvcove.mooncake._types import Code, QueryTaskResponse, TaskStatus, TaskType

__all__ = ["Tasks"]

_PORTS = (9003, 7480)  # of mooncake_master, of `kvcove master`


def admin_urls(setup: _config.Setup) -> list[str]:
    """Return where the master's admin endpoint may be; ``$KVCOVE_ADMIN`` names it."""
    named = os.environ.get("KVCOVE_ADMIN")
    if named:
        return [named.rstrip("/")]
    host, _ = _config.split_address(setup.master, 0)
    return [f"http://{_config.join_address(host, port)}" for port in _PORTS]


def _ask(url: str, body: dict[str, Any] | None = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(
        url,
        data=data,
        headers={"Content-Type": "application/json"},  # the master asks for it
        method="GET" if data is None else "POST",
    )
    with open_url(request, timeout=3) as answer:
        return json.load(answer)


class Tasks:
    """The tasks that one store has begun. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tasks: dict[tuple[int, int], tuple[QueryTaskResponse, str, list[int]]] = {}

    def create(
        self,
        setup: _config.Setup,
        kind: TaskType,
        key: bytes,
        source: str,
        targets: list[str],
    ) -> tuple[tuple[int, int], int]:
        """Begin a task of the master for each target."""
        action = "move" if kind == TaskType.REPLICA_MOVE else "copy"
        namespace = "mooncake" if setup.tenant_id == "default" else f"mooncake/{setup.tenant_id}"
        for url in admin_urls(setup):
            try:
                known = {owner["address"] for owner in _ask(f"{url}/v1/segments")["segments"]}
            except (OSError, ValueError, KeyError, TypeError):
                continue
            if not set(targets) <= known:
                return (0, 0), int(Code.INVALID_PARAMS)
            try:
                begun = [
                    int(
                        _ask(
                            f"{url}/v1/{action}",
                            {
                                "from": source,
                                "to": target,
                                "namespace": namespace,
                                "key": key.decode("utf-8", "surrogateescape"),
                            },
                        )["task"]
                    )
                    for target in targets
                ]
            except urllib.error.HTTPError as error:
                pending = error.code in (409, 429)
                code = Code.TASK_PENDING_LIMIT_EXCEEDED if pending else Code.INVALID_PARAMS
                return (0, 0), int(code)
            except (OSError, ValueError, KeyError, TypeError):
                return (0, 0), int(Code.RPC_FAIL)
            task = QueryTaskResponse()
            task.id = (secrets.randbits(63), secrets.randbits(63) | 1)
            task.type = kind
            task.created_at_ms_epoch = task.last_updated_at_ms_epoch = time.time_ns() // 10**6
            with self._lock:
                self._tasks[task.id] = (task, url, begun)
                while len(self._tasks) > 10_000:
                    self._tasks.pop(next(iter(self._tasks)))
            return task.id, 0
        return (0, 0), int(Code.RPC_FAIL)

    def query(self, task_id: tuple[int, ...]) -> tuple[QueryTaskResponse | None, int]:
        """Return the state of a task, or (None, -1400)."""
        with self._lock:
            known = self._tasks.get((task_id[0], task_id[1]) if len(task_id) == 2 else (0, 0))
        if known is None:
            return None, int(Code.TASK_NOT_FOUND)
        task, url, numbers = known
        if task.status in (TaskStatus.SUCCESS, TaskStatus.FAILED):
            return task, 0
        try:
            states = {t["id"]: t for t in _ask(f"{url}/v1/tasks")["tasks"]}
        except (OSError, ValueError, KeyError, TypeError):
            return None, int(Code.RPC_FAIL)
        mine = [
            states.get(number, {"state": "failed", "message": "forgotten"}) for number in numbers
        ]
        if any(state["state"] in ("failed", "cancelled") for state in mine):
            task.status = TaskStatus.FAILED
        elif all(state["state"] == "done" for state in mine):
            task.status = TaskStatus.SUCCESS
        else:
            task.status = TaskStatus.PROCESSING
        task.message = "; ".join(str(s.get("message", "")) for s in mine if s.get("message"))
        task.last_updated_at_ms_epoch = time.time_ns() // 10**6
        return task, 0
