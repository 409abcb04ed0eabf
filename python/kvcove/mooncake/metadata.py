# SPDX-License-Identifier: Apache-2.0
"""``mooncake_http_metadata_server``: a small key-value server over HTTP.

kvcove needs none; programs that expect one at ``http://host:8080/metadata`` find it.
"""

from __future__ import annotations

import argparse
import enum
import hmac
import os
import sys
import threading
from typing import Any
from urllib.parse import urlencode

from kvcove._environment import is_true
from kvcove.mooncake._address import is_loopback
from kvcove.mooncake._http import (
    MAX_BODY,
    Answer,
    Handler,
    HttpServers,
    Request,
    text_answer,
    with_loopback,
)
from kvcove.mooncake._process import StopSignals, begin, insecure

__all__ = ["KVBootstrapServer", "KVPoll", "MetadataServer", "main", "parse_args"]

_MAX_KEYS = 100_000
_MAX_BYTES = 256 << 20  # of all values
_TOKEN = "MC_METADATA_HTTP_TOKEN"
_ALLOW_INSECURE = "MC_METADATA_HTTP_ALLOW_INSECURE"


def _bound(what: str, default: int) -> int:
    name = f"MC_METADATA_MAX_{what}"
    text = os.environ.get(name) or str(default)
    if not (text.isascii() and text.isdigit()) or int(text) < 1:
        raise ValueError(f"{name}={text}: a number of 1 or more is wanted")
    return int(text)


def _check_open(host: str, port: int) -> None:
    """Refuse to let other hosts in unasked."""
    if is_loopback(host) or os.environ.get(_TOKEN):
        return
    if is_true(os.environ.get(_ALLOW_INSECURE)) or insecure():
        return
    raise PermissionError(
        f"{host}:{port} would let every host that reaches it read and change all metadata: set {_TOKEN}, "
        f"here and for every engine, listen on loopback, or set {_ALLOW_INSECURE}=1 where the network "
        "keeps strangers out"
    )


class MetadataServer:
    """``/metadata?key=K`` with GET, PUT, DELETE, and ``/health``.

    With ``MC_METADATA_HTTP_TOKEN`` in the environment ``/metadata`` answers those only who show it as
    bearer. ``MC_METADATA_MAX_KEYS``, ``_MAX_TOTAL_BYTES`` and ``_MAX_BODY_BYTES`` bound what is kept.

    Raises
    ------
    OSError
        It cannot listen there.
    ValueError
        One of the variables is no number.
    """

    def __init__(self, host: str, port: int) -> None:
        self._begin()
        self._open(host, port)

    def _begin(self) -> None:
        self._token = os.environ.get(_TOKEN, "").encode()
        self._max_keys = _bound("KEYS", _MAX_KEYS)
        self._max_bytes = _bound("TOTAL_BYTES", _MAX_BYTES)
        self._max_body = _bound("BODY_BYTES", MAX_BODY)
        self._lock = threading.Lock()
        self._values: dict[str, bytes] = {}
        self._bytes = 0

    def _open(self, host: str, port: int) -> None:
        routes: dict[tuple[str, str], Handler] = {
            (method, "/metadata"): self._serve for method in ("GET", "PUT", "DELETE")
        }
        routes["GET", "/health"] = lambda _request: text_answer("OK")
        self._server = HttpServers(with_loopback(host), port, routes)
        self.port = self._server.port

    def _knows_token(self, request: Request) -> bool:
        kind, _, shown = request.authorization.partition(" ")
        return kind.lower() == "bearer" and hmac.compare_digest(shown.encode(), self._token)

    def _serve(self, request: Request) -> Answer:
        if self._token and not self._knows_token(request):
            return text_answer("unauthorized", 401)
        key = request.query.get("key", "").strip()
        if not key:
            return Answer(400, b"metadata key is required", "application/json")
        with self._lock:
            if request.method == "PUT":
                return self._put(key, bytes(request.body))
            if key not in self._values:
                return text_answer("metadata not found", 404)
            if request.method == "DELETE":
                self._bytes -= len(self._values.pop(key))
                return text_answer("metadata deleted")
            return Answer(200, self._values[key], "application/json")

    def _put(self, key: str, value: bytes) -> Answer:
        """Keep a value; with the lock."""
        old = self._values.get(key)
        if old is not None and "rpc_meta" in key:
            # An engine's own place: a second engine of its name would take its traffic.
            if old == value:
                return text_answer("metadata unchanged")
            return text_answer("Duplicate rpc_meta key not allowed", 400)
        if len(value) > self._max_body:
            return text_answer("request body too large", 413)
        if old is None and len(self._values) >= self._max_keys:
            return text_answer("too many keys", 507)
        grown = len(value) - len(old or b"")
        if self._bytes + grown > self._max_bytes:
            return text_answer("the values are too large together", 507)
        self._bytes += grown
        self._values[key] = value
        return text_answer("metadata updated")

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
        self._begin()

    @property
    def store(self) -> dict[str, bytes]:
        """The values under their keys."""
        return self._values

    async def _handle_metadata(self, request: Any) -> Answer:
        """Answer a request of aiohttp, as a server that somebody builds around this class asks for it."""
        shown = getattr(request, "headers", {}).get("Authorization", "")
        asked = Request(request.method, f"/metadata?{urlencode(request.query)}", shown)
        asked.body = await request.read()
        return self._serve(asked)

    def run(self) -> None:
        """Start to serve.

        Raises
        ------
        PermissionError
            Other hosts would get in, and neither a token nor the environment's consent is there.
        """
        _check_open(*self._listen)
        self._open(*self._listen)
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
        prog="mooncake_http_metadata_server",
        description="Keys and values over HTTP.",
        epilog=f"With {_TOKEN} set, requests must show it as bearer. An address other than loopback needs "
        f"that, or {_ALLOW_INSECURE}=1.",
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
    begin()
    parser = _parser()
    options = parser.parse_args()
    try:
        _check_open(options.host, options.port)
        stop = StopSignals()
        server = MetadataServer(options.host, options.port)
    except (OSError, ValueError) as error:
        parser.exit(2, f"{parser.prog}: {options.host}:{options.port}: {error}\n")
    print(f"{parser.prog}: serving at http://{options.host}:{server.port}/metadata", flush=True)
    status = stop.wait()
    server.close()
    sys.exit(status)


if __name__ == "__main__":
    main()
