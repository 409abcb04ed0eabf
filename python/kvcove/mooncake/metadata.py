# SPDX-License-Identifier: Apache-2.0
"""``mooncake_http_metadata_server``: a small key-value server over HTTP.

kvcove needs none; programs that expect one at ``http://host:8080/metadata`` find it.
"""

from __future__ import annotations

import argparse
import enum
import sys
import threading

from kvcove.mooncake._http import Answer, Handler, HttpServers, Request, text_answer, with_loopback
from kvcove.mooncake._process import wait_for_stop

__all__ = ["KVBootstrapServer", "KVPoll", "MetadataServer", "main", "parse_args"]

_MAX_KEYS = 100_000
_MAX_BYTES = 256 << 20  # of all values


class MetadataServer:
    """``/metadata?key=K`` with GET, PUT, DELETE, and ``/health``."""

    def __init__(self, host: str, port: int) -> None:
        self._lock = threading.Lock()
        self._values: dict[str, bytes] = {}
        self._bytes = 0
        routes: dict[tuple[str, str], Handler] = {
            (method, "/metadata"): self._serve for method in ("GET", "PUT", "DELETE")
        }
        routes["GET", "/health"] = lambda _request: text_answer("OK")
        self._server = HttpServers(with_loopback(host), port, routes)
        self.port = self._server.port

    def _serve(self, request: Request) -> Answer:
        key = request.query.get("key", "").strip()
        if not key:
            return text_answer("metadata key is required", 400)
        with self._lock:
            if request.method == "PUT":
                if key not in self._values and len(self._values) >= _MAX_KEYS:
                    return text_answer("too many keys", 507)
                grown = len(request.body) - len(self._values.get(key, b""))
                if self._bytes + grown > _MAX_BYTES:
                    return text_answer("the values are too large together", 507)
                self._bytes += grown
                self._values[key] = bytes(request.body)
                return text_answer("metadata updated")
            if key not in self._values:
                return text_answer("metadata not found", 404)
            if request.method == "DELETE":
                self._bytes -= len(self._values.pop(key))
                return text_answer("metadata deleted")
            return Answer(200, self._values[key], "application/json")

    def close(self) -> None:
        """Stop."""
        self._server.close()


class KVPoll(enum.Enum):
    """What :meth:`KVBootstrapServer.poll` may answer."""

    Failed = 0
    Bootstrapping = 1
    WaitingForInput = 2
    Transferring = 3
    Success = 4


class KVBootstrapServer(MetadataServer):
    """The same, by the name and with the life cycle of that program's class."""

    def __init__(self, port: int, host: str = "127.0.0.1") -> None:
        self._listen = (host, port)
        self._serving = False

    def run(self) -> None:
        """Start to serve."""
        super().__init__(*self._listen)
        self._serving = True

    def poll(self) -> KVPoll:
        """Return ``Success`` while it serves, ``Failed`` before and after."""
        return KVPoll.Success if self._serving else KVPoll.Failed

    def close(self) -> None:
        """Stop."""
        if self._serving:
            self._serving = False
            super().close()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="mooncake_http_metadata_server", description="Keys and values over HTTP."
    )
    parser.add_argument("--host", default="127.0.0.1", help="where to listen (default: loopback)")
    parser.add_argument("--port", type=int, default=8080)
    parser.add_argument("--log-level", "--log_level", default="info", help="taken, not used")
    return parser


def parse_args() -> argparse.Namespace:
    """Return the options of the command line."""
    return _parser().parse_args()


def main() -> None:
    """Serve until SIGTERM."""
    parser = _parser()
    options = parser.parse_args()
    try:
        server = MetadataServer(options.host, options.port)
    except OSError as error:
        parser.exit(2, f"{parser.prog}: {options.host}:{options.port}: {error}\n")
    print(f"{parser.prog}: serving at http://{options.host}:{server.port}/metadata", flush=True)
    status = wait_for_stop()
    server.close()
    sys.exit(status)


if __name__ == "__main__":
    main()
