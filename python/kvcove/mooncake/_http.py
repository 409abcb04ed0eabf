# SPDX-License-Identifier: Apache-2.0
"""A small HTTP server for what that API serves over HTTP: JSON and text.

One thread reads requests and writes answers; what may wait runs in a thread of its own. So a client
that is slow costs a connection and no thread, and everything that it may be slow with has a deadline.
"""

from __future__ import annotations

import asyncio
import contextlib
import difflib
import errno
import inspect
import ipaddress
import json
import logging
import re
import socket
import threading
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Mapping
from http import HTTPStatus
from typing import Any, TypeVar
from urllib.parse import parse_qs, unquote

from kvcove.mooncake._address import is_loopback, is_wildcard
from kvcove.mooncake._config import join_address
from kvcove.mooncake._http_head import Head, Refused, parse_head

__all__ = [
    "Answer",
    "AsyncHandler",
    "Handler",
    "HttpServer",
    "HttpServers",
    "Request",
    "check_names",
    "in_thread",
    "json_answer",
    "last_segment",
    "open_url",
    "text_answer",
    "with_loopback",
]

_log = logging.getLogger("kvcove.mooncake")

# The proxies that the environment names lead out of the cluster, not to its own hosts.
open_url = urllib.request.build_opener(urllib.request.ProxyHandler({})).open

MAX_BODY = 100 << 20
_MAX_BODIES = 256 << 20  # of all requests that are under way together
_MAX_HEAD = 16 << 10
_GRACE_SECONDS = 5.0  # for a head; for a body or an answer beside what its bytes take
_SLOWEST_BYTES_PER_SECOND = 1 << 20
# Connections that have no request under way: a new one ends the one that has waited longest.
_MAX_WAITING = 128
# Requests under way. Launchers kill a server whose /health does not answer, so /health has some more.
_MAX_REQUESTS = 256
_NO_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")
_RESERVED_FOR_HEALTH = 16

_Made = TypeVar("_Made")


class Request:
    """One request."""

    def __init__(self, method: str, target: str, authorization: str = "") -> None:
        self.method = method
        self.authorization = authorization  # that header's value
        self.path, _, self.raw_query = target.partition("?")  # as they came: not decoded
        self.query = {
            key: values[0]
            for key, values in parse_qs(self.raw_query, keep_blank_values=True).items()
        }
        self.body: bytes | bytearray = b""

    def json(self) -> dict[str, Any]:
        """Return the body as an object.

        Raises
        ------
        ValueError
            It is none, or names a field twice.
        """
        try:
            value = json.loads(self.body or b"{}", object_pairs_hook=_object)
        except UnicodeDecodeError:
            raise ValueError("the body is no UTF-8") from None
        except json.JSONDecodeError as error:
            raise ValueError(f"the body is no JSON: {error}") from None
        except RecursionError:
            raise ValueError("the body is nested too deeply") from None
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

    def __init__(self, status: int, body: bytes | bytearray, kind: str) -> None:
        self.status = status
        self.body = body
        self.kind = kind

    @property
    def text(self) -> str:
        """The body as text."""
        return self.body.decode()

    @property
    def content_type(self) -> str:
        """The kind without its parameters."""
        return self.kind.partition(";")[0]


def json_answer(value: Any, status: int = 200) -> Answer:
    """Return a JSON answer."""
    return Answer(status, json.dumps(value).encode(), "application/json")


def text_answer(text: str, status: int = 200) -> Answer:
    """Return a text answer."""
    return Answer(status, text.encode(), "text/plain; charset=utf-8")


Handler = Callable[[Request], Answer]  # runs in a thread of its own
AsyncHandler = Callable[[Request], Awaitable[Answer]]  # a coroutine function, in the server's loop
_Routes = Mapping[tuple[str, str], Handler | AsyncHandler]


async def in_thread(call: Callable[[], _Made]) -> _Made:
    """Run a call in a thread of its own, and wait for it.

    There is no bound to these threads but the caller's, and no process waits for them at its end.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[_Made] = loop.create_future()

    def finish(result: _Made | None, error: BaseException | None) -> None:
        if done.cancelled():
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(result)  # type: ignore[arg-type]  # None where the call makes it

    def work() -> None:
        result, error = None, None
        try:
            result = call()
        except Exception as raised:
            error = raised
        with contextlib.suppress(RuntimeError):  # the loop has been closed
            loop.call_soon_threadsafe(finish, result, error)

    threading.Thread(target=work, name="kvcove-http-request", daemon=True).start()
    return await done


class HttpServer:
    """Serves from its construction until :meth:`close`.

    Parameters
    ----------
    host, port : str, int
        Where to listen; port 0 is any, see :attr:`port`.
    routes : mapping
        ``(method, path)`` to a function; a path that ends in ``/*`` takes one more segment.

    Raises
    ------
    OSError
        It cannot listen there.
    """

    def __init__(self, host: str, port: int, routes: _Routes) -> None:
        self._routes = routes
        everywhere = host == "::" and socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server(
            (host, port), family=family, backlog=128, dualstack_ipv6=everywhere
        )
        address, self.port = listener.getsockname()[:2]
        self._on_loopback = ipaddress.ip_address(address).is_loopback
        # All that follows belongs to the thread.
        self._loop = asyncio.SelectorEventLoop()
        self._closing = asyncio.Event()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._waiting: dict[asyncio.StreamWriter, None] = {}  # the longest wait comes first
        self._requests = 0
        self._body_bytes = 0
        self._thread = threading.Thread(
            target=self._run, args=(listener,), name="kvcove-http", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stop listening. Requests that run have a second to end."""
        self._loop.call_soon_threadsafe(self._closing.set)
        self._thread.join()

    def _run(self, listener: socket.socket) -> None:
        self._loop.run_until_complete(self._live(listener))
        self._loop.close()

    async def _live(self, listener: socket.socket) -> None:
        server = await asyncio.start_server(self._converse, sock=listener, limit=_MAX_HEAD)
        await self._closing.wait()
        server.close()
        for writer in self._waiting:
            writer.transport.abort()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=1)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        writer.transport.set_write_buffer_limits(high=0)  # drain() means that all has gone
        try:
            while await self._serve_one(reader, writer):
                pass
            writer.close()
        except (OSError, EOFError, TimeoutError) as error:
            _log.debug("a connection ended: %r", error)
        finally:
            writer.transport.abort()
            self._tasks.discard(task)

    async def _serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Serve the next request; whether another may follow."""
        method = ""
        try:
            head = parse_head(await self._read_head(reader, writer), on_loopback=self._on_loopback)
            method = head.method
            request = Request(head.method, head.target, head.authorization)
            handler = self._handler_of(request)
            with self._counted(request.path):
                await self._read_body(reader, writer, head, request)
                try:
                    answer = await self._handle(handler, request)
                    await self._send(writer, answer, method, head.keep_alive)
                finally:
                    self._body_bytes -= len(request.body)
            return head.keep_alive
        except Refused as refused:
            answer = json_answer({"error": str(refused)}, refused.status)
        await self._send(writer, answer, method, False)
        # What was sent already would reset the connection, and the answer with it.
        writer.write_eof()
        with contextlib.suppress(TimeoutError):
            async with self._patience(writer, 1):
                while await reader.read(_MAX_HEAD):
                    pass
        return False

    @contextlib.asynccontextmanager
    async def _patience(self, writer: asyncio.StreamWriter, seconds: float) -> AsyncIterator[None]:
        """Wait for a client that has no request under way."""
        if len(self._waiting) >= _MAX_WAITING:
            longest = next(iter(self._waiting))
            del self._waiting[longest]
            longest.transport.abort()
        self._waiting[writer] = None
        try:
            async with asyncio.timeout(seconds):
                yield
        finally:
            self._waiting.pop(writer, None)

    async def _read_head(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
        try:
            async with self._patience(writer, _GRACE_SECONDS):
                return await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            raise Refused(431, "the head of the request is too long") from None

    def _handler_of(self, request: Request) -> Handler | AsyncHandler:
        method, path = request.method, request.path
        for known in (path, path.rpartition("/")[0] + "/*"):
            if (method, known) in self._routes:
                return self._routes[method, known]
        if any(known == path for _, known in self._routes):
            methods = ", ".join(sorted(method for method, known in self._routes if known == path))
            raise Refused(405, f"Method not allowed: {path} takes {methods}")
        near = difflib.get_close_matches(path, {known for _, known in self._routes}, 1)
        raise Refused(
            404, f"not found: {path[:64]}" + (f"; did you mean {near[0]}?" if near else "")
        )

    @contextlib.contextmanager
    def _counted(self, path: str) -> Iterator[None]:
        reserved = _RESERVED_FOR_HEALTH if path == "/health" else 0
        if self._requests >= _MAX_REQUESTS + reserved:
            raise Refused(503, "too many requests are under way")
        self._requests += 1
        try:
            yield
        finally:
            self._requests -= 1

    async def _read_body(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        head: Head,
        request: Request,
    ) -> None:
        if head.length > MAX_BODY:
            raise Refused(413, "the body is too long")
        if head.length and head.expects_continue:
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        body = bytearray()
        begin = self._loop.time()
        try:
            # Each byte that arrives earns time; a large announced length earns none.
            async with asyncio.timeout(_GRACE_SECONDS) as timeout:
                while len(body) < head.length:
                    piece = await reader.read(min(head.length - len(body), 1 << 16))
                    if not piece:
                        raise EOFError("the body ends early")
                    if self._body_bytes + len(piece) > _MAX_BODIES:
                        raise Refused(503, "too many bytes are under way")
                    self._body_bytes += len(piece)
                    body += piece
                    timeout.reschedule(begin + _seconds_for(len(body)))
        except BaseException:
            self._body_bytes -= len(body)
            raise
        request.body = body

    async def _handle(self, handler: Handler | AsyncHandler, request: Request) -> Answer:
        try:
            if inspect.iscoroutinefunction(handler):
                answer = await handler(request)
            else:
                answer = await in_thread(lambda: handler(request))
        except Exception as error:
            return _answer_for(error, request)
        assert isinstance(answer, Answer)
        return answer

    async def _send(
        self, writer: asyncio.StreamWriter, answer: Answer, method: str, keep_alive: bool
    ) -> None:
        lines = [
            f"HTTP/1.1 {answer.status} {HTTPStatus(answer.status).phrase}",
            f"Content-Type: {answer.kind}",
            f"Content-Length: {len(answer.body)}",
            *([] if keep_alive else ["Connection: close"]),
        ]
        body = answer.body if method != "HEAD" else b""
        async with asyncio.timeout(_seconds_for(len(body))):
            writer.write("\r\n".join([*lines, "\r\n"]).encode() + body)
            await writer.drain()


def with_loopback(host: str) -> list[str]:
    """Return where to listen so that this host reaches the server at 127.0.0.1, too.

    Raises
    ------
    OSError
        The host is not known.
    """
    address = host if ":" in host else socket.gethostbyname(host)
    if is_loopback(address) or is_wildcard(address):
        return [address]
    return [address, "127.0.0.1"]


class HttpServers:
    """The same routes at several addresses of this host, at one port.

    Parameters
    ----------
    hosts : list of str
    port : int
        0 is any; see :attr:`port`.
    routes : mapping
        As of :class:`HttpServer`.

    Raises
    ------
    OSError
        It cannot listen at one of them.
    """

    def __init__(self, hosts: list[str], port: int, routes: _Routes) -> None:
        self._servers: list[HttpServer] = []
        self.port = port
        try:
            for host in hosts:
                self._servers.append(HttpServer(host, self.port, routes))
                self.port = self._servers[0].port
        except OSError as error:
            self.close()
            raise OSError(f"{join_address(host, port)}: {error}{_way_out(error, port)}") from error

    def close(self) -> None:
        """Stop."""
        for server in self._servers:
            server.close()


def _way_out(error: OSError, port: int) -> str:
    """Return what frees a port that nobody listens at: this host's connections are given such ports, too."""
    if error.errno != errno.EADDRINUSE:
        return ""
    return (
        f"; another program listens there, or a connection of this host was given the port: "
        f"`sysctl net.ipv4.ip_local_reserved_ports={port}` keeps it free"
    )


def _seconds_for(count: int) -> float:
    return _GRACE_SECONDS + count / _SLOWEST_BYTES_PER_SECOND


def _answer_for(error: Exception, request: Request) -> Answer:
    """Return what a handler's exception answers."""
    if isinstance(error, ValueError):
        return json_answer({"error": str(error)}, 400)
    if isinstance(error, OSError | RuntimeError):
        return json_answer({"error": str(error)}, 503)
    _log.error("%s %s", request.method, request.path, exc_info=error)
    return json_answer({"error": "internal error"}, 500)


def last_segment(request: Request) -> str:
    """Return the last segment of the path, decoded.

    Raises
    ------
    ValueError
        It is no UTF-8, or a ``%`` in it begins no escape: another text would be taken for it.
    """
    segment = request.path.rpartition("/")[2]
    if wrong := _NO_ESCAPE.search(segment):
        raise ValueError(f"{segment[wrong.start() :][:3]!r} in the URL is no escape; '%' is '%25'")
    try:
        return unquote(segment, errors="strict")
    except UnicodeDecodeError:
        raise ValueError("the end of the path is no UTF-8") from None


def check_names(given: Collection[str], known: Collection[str], what: str) -> None:
    """Refuse a name that would be ignored.

    Raises
    ------
    ValueError
        One that is not known is given; with the nearest that is.
    """
    for name in given:
        if name in known:
            continue
        near = difflib.get_close_matches(name, known, 1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ValueError(
            f"unknown {what} {name[:64]!r}{hint} (known: {', '.join(sorted(known)) or 'none'})"
        )


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object whose names differ: two programs may take another one of two."""
    fields = dict(pairs)
    if len(fields) < len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:  # one pass: a body has room for millions of names
            if name in seen:
                raise ValueError(f"{name[:64]!r} is given twice")
            seen.add(name)
    return fields
