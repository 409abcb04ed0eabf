# SPDX-License-Identifier: Apache-2.0
"""Copies, moves and removals of single replicas, as tasks of the master (its admin endpoint)."""

from __future__ import annotations

import json
import secrets
import threading
import time
import urllib.error
import urllib.request
from typing import Any

from kvcove.mooncake._http import open_url
from kvcove.mooncake._types import Code, QueryTaskResponse, TaskStatus, TaskType

__all__ = ["Tasks", "drop_replicas"]

_LONGEST = 10_000  # tasks that are remembered
_DONE = "Task completed successfully"
_ENDED = ("done", "failed", "cancelled")


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


def _begin(url: str, kind: TaskType, source: str, target: str, item: dict[str, str]) -> int:
    action = "move" if kind == TaskType.REPLICA_MOVE else "copy"
    return int(_ask(f"{url}/v1/{action}", {"from": source, "to": target, **item})["task"])


def states(url: str, numbers: list[int]) -> list[dict[str, Any]]:
    """Return the states of tasks of the master; one that it has forgotten has failed."""
    known = {task["id"]: task for task in _ask(f"{url}/v1/tasks")["tasks"]}
    return [known.get(number, {"state": "failed", "message": "forgotten"}) for number in numbers]


def drop_replicas(url: str, source: str, items: list[dict[str, str]], timeout: float) -> list[bool]:
    """Remove one replica of each value: a move to another of its owners, where it is already.

    Parameters
    ----------
    url : str
        The master's admin endpoint.
    source : str
        The owner that gives its replica up.
    items : list of dict
        ``namespace``, ``key``, and in ``to`` another owner of the value.
    timeout : float
        Seconds for all of them.

    Returns
    -------
    list of bool
        Whether each is gone from there.
    """
    until = time.monotonic() + timeout
    try:
        numbers = [int(_ask(f"{url}/v1/move", {"from": source, **item})["task"]) for item in items]
        while True:
            now = [state["state"] for state in states(url, numbers)]
            if time.monotonic() > until or not any(s not in _ENDED for s in now):
                return [state == "done" for state in now]
            time.sleep(0.005)
    except (OSError, ValueError, KeyError, TypeError):
        return [False] * len(items)


class Tasks:
    """The tasks that one store has begun. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tasks: dict[tuple[int, int], tuple[QueryTaskResponse, str, list[int]]] = {}

    def create(
        self, url: str, kind: TaskType, source: str, targets: list[str], item: dict[str, str]
    ) -> tuple[tuple[int, int], int]:
        """Begin a task of the master for each target.

        Parameters
        ----------
        url : str
            The master's admin endpoint.
        kind : TaskType
        source, targets : str, list[str]
            Owners, ``host:port``. A copy to one that has the value already is done at once.
        item : dict
            The ``namespace`` and the ``key`` as the admin endpoint takes them.

        Returns
        -------
        tuple
            ``(id, 0)``, or ``((0, 0), code)``.
        """
        try:
            known = {owner["address"] for owner in _ask(f"{url}/v1/segments")["segments"]}
            if not {source, *targets} <= known:
                return (0, 0), int(Code.INVALID_PARAMS)
            begun = [_begin(url, kind, source, target, item) for target in targets]
        except urllib.error.HTTPError as error:
            pending = error.code in (409, 429)
            code = Code.TASK_PENDING_LIMIT_EXCEEDED if pending else Code.INVALID_PARAMS
            return (0, 0), int(Code.RPC_FAIL if error.code in (401, 403) else code)
        except (OSError, ValueError, KeyError, TypeError):
            return (0, 0), int(Code.RPC_FAIL)
        task = QueryTaskResponse()
        task.id = (secrets.randbits(63), secrets.randbits(63) | 1)
        task.type = kind
        task.created_at_ms_epoch = task.last_updated_at_ms_epoch = time.time_ns() // 10**6
        if not begun:
            task.status, task.message = TaskStatus.SUCCESS, _DONE
        with self._lock:
            self._tasks[task.id] = (task, url, begun)
            while len(self._tasks) > _LONGEST:
                self._tasks.pop(next(iter(self._tasks)))
        return task.id, 0

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
            mine = states(url, numbers)
        except (OSError, ValueError, KeyError, TypeError):
            return None, int(Code.RPC_FAIL)
        if any(state["state"] in ("failed", "cancelled") for state in mine):
            task.status = TaskStatus.FAILED
        elif all(state["state"] == "done" for state in mine):
            task.status = TaskStatus.SUCCESS
        else:
            task.status = TaskStatus.PROCESSING
        task.message = "; ".join(str(s.get("message", "")) for s in mine if s.get("message"))
        if task.status == TaskStatus.SUCCESS:
            task.message = _DONE
        task.last_updated_at_ms_epoch = time.time_ns() // 10**6
        return task, 0
