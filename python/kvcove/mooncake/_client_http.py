# SPDX-License-Identifier: Apache-2.0
"""What a store serves over HTTP, and how a thin client finds the pool of a ``mooncake_client``."""

from __future__ import annotations

import json
from typing import Any

from kvcove.mooncake import _config
from kvcove.mooncake._http import Answer, HttpServers, Request, json_answer, open_url, text_answer

__all__ = ["ClientHttp", "pool_of"]


class ClientHttp:
    """``/health`` and ``/metrics`` of a store: totals only, nothing is changed by them."""

    def __init__(self, store: Any, port: int, hosts: list[str]) -> None:
        self._store = store
        self._server = HttpServers(
            hosts,
            port,
            {
                ("GET", "/health"): self._health,
                ("GET", "/metrics"): self._metrics,
                ("GET", "/metrics/summary"): self._summary,
            },
        )
        self.port = self._server.port

    def _health(self, _request: Request) -> Answer:
        code = self._store.health_check()
        status = {0: "healthy", 1: "not set up"}.get(code, "master unreachable")
        return json_answer({"status": status, "code": code}, 200 if code == 0 else 503)

    def _stat(self) -> Any:
        now = self._store._now
        if now is None:
            raise RuntimeError("not set up")
        return now.pool.stat()

    def _metrics(self, _request: Request) -> Answer:
        stat = self._stat()
        lines = []
        for name, text, value in (
            ("kvcove_pool_capacity_bytes", "memory of the pool", stat.payload_bytes),
            ("kvcove_pool_free_bytes", "memory of the pool that is free", stat.free_bytes),
            ("kvcove_pool_objects", "objects and replicas in the pool", stat.objects),
        ):
            lines += [f"# HELP {name} {text}", f"# TYPE {name} gauge", f"{name} {value}"]
        return text_answer("\n".join(lines) + "\n")

    def _summary(self, _request: Request) -> Answer:
        stat = self._stat()
        used = stat.payload_bytes - stat.free_bytes
        return text_answer(f"Pool: {used} of {stat.payload_bytes} bytes, {stat.objects} objects\n")

    def close(self) -> None:
        """Stop."""
        self._server.close()


def pool_of(server_address: str) -> str:
    """Return the address of the pool that a ``mooncake_client`` belongs to.

    Raises
    ------
    ValueError
        The address is none.
    OSError
        Nobody answers, or somebody else does.
    """
    if server_address.startswith(_config.POOL_SCHEMES):
        return server_address
    host, port = _config.split_address(server_address, 50052)
    if not host:
        raise ValueError(f"{server_address!r} is no host:port")
    url = f"http://{_config.join_address(host, port)}/v1/pool"
    try:
        with open_url(url, timeout=3) as answer:
            pool = json.load(answer)["pool"]
    except (KeyError, TypeError, ValueError) as error:
        raise OSError(f"{url} does not answer like a mooncake_client") from error
    return str(pool)
