# SPDX-License-Identifier: Apache-2.0
"""A small HTTP server for what that API serves over HTTP: JSON and text, a thread a request."""

from __future__ import annotations

import json
import logging
import socket
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

__all__ = [
    "Answer",
    "Handler",
    "HttpServer",
    "Request",
    "json_answer",
    "last_segment",
    "text_answer",
]

_log = logging.getLogger("kvcove.mooncake")

MAX_BODY = 100 << 20
_SILENT_SECONDS = 10.0
_MAX_CONNECTIONS = 256


class Request:
    """One request."""

    def __init__(self, method: str, path: str, raw_query: str, body: bytes) -> None:
        self.method = method
        self.path = path  # as it came: not decoded
        self.raw_query = raw_query
        self.query = {
            key: values[0] for key, values in parse_qs(raw_query, keep_blank_values=True).items()
        }
        self.body = body

    def json(self) -> dict[str, Any]:
        """Return the body as an object.

        Raises
        ------
        ValueError
            It is none.
        """
        value = json.loads(self.body or b"{}")
        if not isinstance(value, dict):
            raise ValueError("the body is no JSON object")
        return value

    def raw(self, name: str) -> str | None:
        """Return a parameter of the query, not decoded."""
        for pair in self.raw_query.split("&"):
            key, _, value = pair.partition("=")
            if key == name:
                return value
        return None


class Answer:
    """A status and a body."""

    def __init__(self, status: int, body: bytes, kind: str) -> None:
        self.status = status
        self.body = body
        self.kind = kind


def json_answer(value: Any, status: int = 200) -> Answer:
    """Return a JSON answer."""
    return Answer(status, json.dumps(value).encode(), "application/json")


def text_answer(text: str, status: int = 200) -> Answer:
    """Return a text answer."""
    return Answer(status, text.encode(), "text/plain; charset=utf-8")


Handler = Callable[[Request], Answer]


class HttpServer:
    """Serves from its construction until :meth:`close`.

    Parameters
    ----------
    host, port : str, int
        Where to listen; port 0 is any, see :attr:`port`.
    routes : dict
        ``(method, path)`` to a function; a path that ends in ``/*`` takes one more segment.
    """

    def __init__(self, host: str, port: int, routes: dict[tuple[str, str], Handler]) -> None:
        slots = threading.BoundedSemaphore(_MAX_CONNECTIONS)

        class RequestHandler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            timeout = _SILENT_SECONDS

            def _answer(self) -> None:
                parts = urlsplit(self.path)
                length = self.headers.get("Content-Length", "0")
                if not length.isdigit() or int(length) > MAX_BODY:
                    self.close_connection = True
                    return self._send(text_answer("the body is too long", 413))
                body = self.rfile.read(int(length))
                request = Request(self.command, parts.path, parts.query, body)
                handler = routes.get((self.command, parts.path))
                if handler is None:
                    handler = routes.get((self.command, parts.path.rpartition("/")[0] + "/*"))
                if handler is None:
                    known = any(path == parts.path for _, path in routes)
                    text = "Method not allowed" if known else "not found"
                    return self._send(text_answer(text, 405 if known else 404))
                try:
                    self._send(handler(request))
                except ValueError as error:
                    self._send(json_answer({"error": str(error)}, 400))
                except (OSError, RuntimeError) as error:
                    self._send(json_answer({"error": str(error)}, 503))

            def _send(self, answer: Answer) -> None:
                self.send_response(answer.status)
                self.send_header("Content-Type", answer.kind)
                self.send_header("Content-Length", str(len(answer.body)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(answer.body)

            do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _answer

            def log_message(self, format: str, *args: Any) -> None:
                _log.debug(format, *args)

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 128
            address_family = socket.AF_INET6 if ":" in host else socket.AF_INET

            def process_request(self, request: Any, client_address: Any) -> None:
                if not slots.acquire(blocking=False):
                    self.shutdown_request(request)
                    return
                super().process_request(request, client_address)

            def process_request_thread(self, request: Any, client_address: Any) -> None:
                try:
                    super().process_request_thread(request, client_address)
                finally:
                    slots.release()

            def handle_error(self, request: Any, client_address: Any) -> None:
                _log.debug("a connection ended", exc_info=True)

        self._server = Server((host, port), RequestHandler)
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.1,), name="kvcove-http", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stop listening; requests that run end by themselves."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def last_segment(request: Request) -> str:
    """Return the last segment of the path, decoded."""
    return unquote(request.path.rpartition("/")[2])
