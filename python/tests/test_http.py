# SPDX-License-Identifier: Apache-2.0
"""The drop-in's HTTP server, attacked over loopback with raw sockets."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator

import pytest
from conftest import wait_until
from kvcove.mooncake import _http
from kvcove.mooncake._http import Answer, HttpServer, Request, json_answer, text_answer


class Served:
    """A server that remembers what its handlers were asked."""

    def __init__(self, host: str = "127.0.0.1") -> None:
        self.seen: list[tuple[str, str, int]] = []
        self.hold = threading.Event()
        self.server = HttpServer(
            host,
            0,
            {
                ("GET", "/health"): lambda _: text_answer("OK"),
                ("GET", "/get"): self._remember,
                ("POST", "/do"): self._remember,
                ("PUT", "/do"): self._remember,
                ("DELETE", "/do"): self._remember,
                ("GET", "/large"): lambda _: Answer(200, bytes(64 << 20), "text/plain"),
                ("GET", "/bad"): lambda _: json_answer({}[1]),  # type: ignore[index]
                ("GET", "/slow"): self._wait,
            },
        )
        self.port = self.server.port

    def _remember(self, request: Request) -> Answer:
        self.seen.append((request.method, request.path, len(request.body)))
        return json_answer({"done": request.method})

    def _wait(self, _request: Request) -> Answer:
        assert self.hold.wait(30)
        return text_answer("waited")

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=60)

    def send(self, request: bytes) -> bytes:
        """All that is answered until the server ends the connection."""
        with self.connect() as connection:
            connection.sendall(request)
            answer = b""
            with contextlib.suppress(ConnectionError):
                while piece := connection.recv(1 << 16):
                    answer += piece
            return answer

    def ask(self, line: str = "GET /get", *fields: str, body: bytes = b"") -> int:
        lines = [f"{line} HTTP/1.1", *fields, "Connection: close", "\r\n"]
        return int(self.send("\r\n".join(lines).encode() + body).split(b" ")[1])

    def health(self) -> int:
        return self.ask("GET /health", "Host: localhost")


@pytest.fixture
def served() -> Iterator[Served]:
    made = Served()
    yield made
    made.hold.set()
    made.server.close()


@pytest.fixture
def everywhere() -> Iterator[Served]:
    made = Served("0.0.0.0")
    yield made
    made.server.close()


# ---- who asks


@pytest.mark.parametrize(
    ("host", "status"),
    [
        *(
            (host, 200)
            for host in ("127.0.0.1", "127.0.0.1:1", "LocalHost:9003", "[::1]:80", "10.0.0.1")
        ),
        *(
            (f"{host}{port}", 403)
            for host in ("evil.com", "127.evil.com", "127.0.0.1.evil.com")
            for port in ("", ":80")
        ),
        *(
            (host, 403)
            for host in ("localhost.evil.com", "0x7f.0.0.1", "127.1", "2130706433", "[1:2]")
        ),
        *(
            (host, 400)
            for host in (
                "",
                "a b",
                "127.0.0.1/x",
                "u@127.0.0.1",
                "[::1",
                "127.0.0.1:80:80",
                "127.0.0.1:x",
            )
        ),
    ],
)
def test_on_loopback_only_addresses_and_localhost_are_asked(
    served: Served, host: str, status: int
) -> None:
    assert served.ask("GET /get", f"Host: {host}") == status
    assert served.ask("POST /do", f"Host: {host}") == status
    assert len(served.seen) == (2 if status == 200 else 0)


def test_elsewhere_names_are_asked_by_programs_only(everywhere: Served) -> None:
    for host in ("head-node:8080", "master.default.svc", "10.0.0.1:80", "localhost"):
        assert everywhere.ask("POST /do", f"Host: {host}") == 200
    # A page may have any name point here, and then it is the origin of that name.
    name = "head-node:8080"
    assert everywhere.ask("POST /do", f"Host: {name}", f"Origin: http://{name}") == 403
    address = f"127.0.0.1:{everywhere.port}"
    assert everywhere.ask("POST /do", f"Host: {address}", f"Origin: http://{address}") == 200
    assert len(everywhere.seen) == 5


@pytest.mark.parametrize("line", ["GET /get", "POST /do", "PUT /do", "DELETE /do"])
def test_pages_of_other_sites_do_nothing(served: Served, line: str) -> None:
    own = f"127.0.0.1:{served.port}"
    host = f"Host: {own}"
    kinds = ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "")
    foreign = [
        *(
            f"Origin: {origin}"
            for origin in ("http://evil.com", "null", "", f"http://{own}.evil.com")
        ),
        *(
            f"Origin: {origin}"
            for origin in ("http://127.0.0.1:1", f"http://localhost:{served.port}")
        ),
        *(f"Sec-Fetch-Site: {site}" for site in ("cross-site", "same-site", "x")),
    ]
    for field in foreign:
        for kind in kinds:
            fields = [host, field, f"Content-Type: {kind}", "Content-Length: 2"]
            assert served.ask(line, *fields, body=b"{}") == 403, (field, kind)
    assert served.seen == []
    for field in (f"Origin: http://{own}", "Sec-Fetch-Site: same-origin", "Sec-Fetch-Site: none"):
        assert served.ask(line, host, field) == 200
    assert served.ask(line, host) == 200  # a program
    assert served.ask("OPTIONS /do", host, "Origin: http://evil.com") == 403


# ---- which request is which

NEXT = "DELETE /do HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        (["Transfer-Encoding: chunked"], 501),
        (["Transfer-Encoding: chunked", "Content-Length: 5"], 501),
        (["Transfer-Encoding: identity"], 501),
        (["transfer-encoding:\tchunked"], 501),
        (["Transfer-Encoding : chunked"], 400),
        (["Content-Length: 0", "Content-Length: 0"], 400),
        (["Content-Length: 5", "Content-Length: 0"], 400),
        (["Content-Length: 0, 0"], 400),
        (["Content-Length: +0"], 400),
        (["Content-Length: -1"], 400),
        (["Content-Length: 0x0"], 400),
        (["Content-Length: \u0660"], 400),
        (["Content-Length: \u00b2"], 400),
        (["Content-Length: 0 0"], 400),
        (["Content-Length: "], 400),
        (["Content-Length : 0"], 400),
        (["Content-Length: 9" + "9" * 20], 400),
        (["Host: localhost"], 400),
        ([" folded: x"], 400),
        (["A: b", "\tfolded"], 400),
        (["no colon"], 400),
        ([": no name"], 400),
        (["A: b\nContent-Length: 0"], 400),
        (["A: b\rContent-Length: 0"], 400),
        (["A: b\0"], 400),
        (["Origin: http://localhost", "Origin: http://localhost"], 400),
        (["Expect: the worst"], 417),
    ],
)
def test_what_can_be_read_in_two_ways_is_refused(
    served: Served, fields: list[str], status: int
) -> None:
    head = "\r\n".join(["POST /do HTTP/1.1", "Host: localhost", *fields, "\r\n"])
    answer = served.send((head + NEXT).encode())
    assert answer.startswith(b"HTTP/1.1 %d " % status)
    assert answer.count(b"HTTP/1.1 ") == 1
    assert served.seen == []


@pytest.mark.parametrize(
    "line",
    [
        *(
            "POST  /do HTTP/1.1",
            "POST /do",
            "POST /do HTTP/2.0",
            "POST do HTTP/1.1",
            " POST /do HTTP/1.1",
        ),
        *(
            "POST http://localhost/do HTTP/1.1",
            "P@ST /do HTTP/1.1",
            "POST /do\t HTTP/1.1",
            "POST /d o HTTP/1.1",
        ),
    ],
)
def test_lines_that_are_no_request(served: Served, line: str) -> None:
    answer = served.send(f"{line}\r\nHost: localhost\r\n\r\n{NEXT}".encode())
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert answer.count(b"HTTP/1.1 ") == 1
    assert served.seen == []


def test_requests_follow_each_other(served: Served) -> None:
    put = "PUT /do HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\n12345"
    last = "GET /get HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    answer = served.send((put + NEXT + last).encode())
    assert answer.count(b"HTTP/1.1 200 OK") == 3
    assert served.seen == [("PUT", "/do", 5), ("DELETE", "/do", 0), ("GET", "/get", 0)]
    assert served.send(b"GET /get HTTP/1.0\r\n\r\n").startswith(b"HTTP/1.1 200 OK")
    assert served.send(b"GET /get HTTP/1.1\r\n\r\n").startswith(b"HTTP/1.1 400 ")


def test_other_answers(served: Served) -> None:
    host = "Host: localhost"
    assert served.ask("GET /nothing", host) == 404
    assert served.ask("POST /get", host) == 405
    assert served.ask("GET /bad", host) == 500
    assert served.ask("GET /get", host, "A: " + "x" * 20_000) == 431
    assert served.ask("PUT /do", host, f"Content-Length: {_http.MAX_BODY + 1}") == 413
    with served.connect() as connection:
        connection.sendall(
            b"PUT /do HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\n"
        )
        assert connection.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(b"1234")
        assert connection.recv(100).startswith(b"HTTP/1.1 200 OK")
    assert served.seen == [("PUT", "/do", 4)]


# ---- who takes his time


def is_ended(connection: socket.socket) -> bool:
    connection.settimeout(0)
    try:
        return connection.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


@pytest.mark.parametrize(
    "begun",
    [
        b"",
        b"GET /get HTTP/1.1\r\nA: ",
        b"PUT /do HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999\r\n\r\n",
    ],
    ids=["nothing", "head", "body"],
)
def test_who_drips_is_cut(served: Served, monkeypatch: pytest.MonkeyPatch, begun: bytes) -> None:
    monkeypatch.setattr(_http, "_GRACE_SECONDS", 0.3, raising=False)
    with served.connect() as connection:
        connection.sendall(begun)
        until = time.monotonic() + 60
        while not is_ended(connection):
            assert time.monotonic() < until, "it may go on for ever"
            with contextlib.suppress(OSError):
                connection.send(b"x")
            time.sleep(0.05)  # the drip itself
    assert served.seen == []


def test_who_does_not_read_is_cut(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_http, "_GRACE_SECONDS", 0.2)
    monkeypatch.setattr(_http, "_SLOWEST_BYTES_PER_SECOND", 1 << 30)
    with served.connect() as connection:
        connection.sendall(b"GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert wait_until(lambda: served.server._requests == 1)
        assert wait_until(lambda: served.server._requests == 0)


@pytest.mark.parametrize(
    "begun",
    [
        b"",
        b"GET /health HTTP/1.1\r\n",
        b"PUT /do HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n",
    ],
    ids=["nothing", "head", "body"],
)
def test_many_slow_ones_do_not_hold_up_health(served: Served, begun: bytes) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(300):
            connection = stack.enter_context(served.connect())
            connection.sendall(begun)
        for _ in range(5):
            assert served.health() == 200


def test_health_has_room_beside_requests_that_wait(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_http, "_MAX_REQUESTS", 4)
    with contextlib.ExitStack() as stack:
        waiting = [stack.enter_context(served.connect()) for _ in range(4)]
        for connection in waiting:
            connection.sendall(b"GET /slow HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert wait_until(lambda: served.server._requests == 4)
        assert served.ask("GET /get", "Host: localhost") == 503
        assert served.health() == 200
        served.hold.set()
        for connection in waiting:
            assert connection.recv(100).startswith(b"HTTP/1.1 200 OK")
    assert wait_until(lambda: served.server._requests == 0)
    assert served.ask("GET /get", "Host: localhost") == 200


def test_all_bodies_together_have_a_bound(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_http, "_MAX_BODIES", 1 << 20)
    head = b"PUT /do HTTP/1.1\r\nHost: localhost\r\nContent-Length: 800000\r\n\r\n"
    with served.connect() as first:
        first.sendall(head + bytes(700_000))
        assert wait_until(lambda: served.server._body_bytes == 700_000)
        assert served.send(head + bytes(800_000)).startswith(b"HTTP/1.1 503 ")
        assert served.ask("PUT /do", "Host: localhost", "Content-Length: 3", body=b"123") == 200
        first.sendall(bytes(100_000))
        assert first.recv(100).startswith(b"HTTP/1.1 200 OK")
    assert wait_until(lambda: served.server._body_bytes == 0)
    assert served.send(
        head.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n") + bytes(800_000)
    ).startswith(b"HTTP/1.1 200 OK")


def test_a_name_that_is_given_twice_is_found_in_one_pass() -> None:
    """A body has room for millions of names, and the requests of others wait meanwhile."""
    request = Request("POST", "/")
    names = [f'"a{i}":1' for i in range(100_000)]
    request.body = f"{{{','.join([*names, names[-1]])}}}".encode()
    with pytest.raises(ValueError, match="'a99999' is given twice"):
        request.json()


def test_a_server_closes_under_its_clients() -> None:
    served = Served()
    with served.connect() as one, served.connect() as two:
        one.sendall(b"GET /get HTTP/1.1\r\n")
        two.sendall(b"GET /slow HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert wait_until(lambda: served.server._requests == 1)
        served.server.close()
        assert wait_until(lambda: is_ended(one) and is_ended(two))
        with pytest.raises(ConnectionRefusedError):
            served.connect()
    served.hold.set()


def test_what_the_metadata_server_keeps_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    from conftest import http
    from kvcove.mooncake import metadata

    monkeypatch.setattr(metadata, "_MAX_BYTES", 10, raising=False)
    server = metadata.MetadataServer("127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.port}/metadata?key="
    assert http(url + "a", b"123456", "PUT")[0] == 200
    assert http(url + "b", b"12345", "PUT")[0] == 507
    assert http(url + "a", b"1234567890", "PUT")[0] == 200
    assert http(url + "a", method="DELETE")[0] == 200
    assert http(url + "b", b"1234567890", "PUT")[0] == 200
    server.close()


def test_a_port_that_a_connection_left_says_what_keeps_it_free() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        connection = socket.create_connection(other.getsockname())
        port = connection.getsockname()[1]
        accepted, _ = other.accept()
        connection.close()  # the first to close holds the port
        accepted.close()
        with pytest.raises(OSError, match=f"ip_local_reserved_ports={port}"):
            _http.HttpServers(["127.0.0.1"], port, {})
