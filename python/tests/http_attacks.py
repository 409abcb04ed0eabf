# SPDX-License-Identifier: Apache-2.0
"""Bad requests for the HTTP interfaces, and what each may be answered. The seed decides all of them."""

from __future__ import annotations

import json
import random
import socket
import string
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

#: In which an answer must come, whatever was asked: longer than any deadline of a server's.
PATIENCE = 30.0
_MONITORING = ("/healthz", "/readyz", "/metrics", "/", "/health")


@dataclass
class Case:
    """What one route takes."""

    #: Each parameter, with a value that is valid or names nothing that is there.
    parameters: Mapping[str, Any] = field(default_factory=dict)
    #: Its parameters are a JSON object whose fields may be lists, not text alone.
    own_body: bool = False
    #: A valid request would destroy what the test compares, so it is attacked with refused ones only.
    harmful: bool = False

    def ignores_parameters(self, path: str) -> bool:
        """Whether probes and browsers may add some."""
        return path in _MONITORING or path.startswith("/page.")


@dataclass
class Attack:
    """The bytes of one connection."""

    raw: bytes
    why: str
    #: Whether each answer must be an error of the client's.
    refused: bool = False
    #: Its text must have this.
    names: str = ""
    #: Whether there may be no answer: no whole request came.
    silent: bool = False
    #: Answers that must come before that of the bad request.
    before: int = 0


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes


def answers_of(raw: bytes, heads: tuple[int, ...] = ()) -> list[Answer]:
    """Return the answers in what a connection has sent; those with these numbers have no body.

    Raises
    ------
    ValueError
        They are no HTTP.
    """
    answers: list[Answer] = []
    while raw:
        head, end, rest = raw.partition(b"\r\n\r\n")
        if not end:
            raise ValueError(f"an answer ends in its head: {raw[:200]!r}")
        line, *lines = head.decode("latin-1").split("\r\n")
        version, status, _ = line.split(" ", 2)
        if version not in ("HTTP/1.1", "HTTP/1.0"):
            raise ValueError(f"no answer: {line!r}")
        if status == "100":
            raw = rest
            continue
        headers = {
            name.lower(): value.strip() for name, _, value in (x.partition(":") for x in lines)
        }
        length = 0 if len(answers) in heads else int(headers["content-length"])
        if len(rest) < length:
            raise ValueError(f"an answer of {length} bytes has {len(rest)}")
        answers.append(Answer(int(status), headers, rest[:length]))
        raw = rest[length:]
    return answers


def exchange(connect: Callable[[], socket.socket], raw: bytes) -> bytes:
    """Send, say that this is all, and return what comes until the server ends the connection.

    Raises
    ------
    TimeoutError
        It does not end it.
    """
    with connect() as connection:
        connection.settimeout(PATIENCE)
        try:
            connection.sendall(raw)
            connection.shutdown(socket.SHUT_WR)
        except (BrokenPipeError, ConnectionResetError):
            pass  # it has refused the head, and read no more
        answer = bytearray()
        try:
            while piece := connection.recv(1 << 16):
                answer += piece
        except ConnectionResetError:
            pass
        return bytes(answer)


class Attacks:
    """Makes attacks on the routes of one server.

    Parameters
    ----------
    routes : mapping
        ``(method, path)`` to what it takes.
    seed : int
    host : str
        The header's value.
    header : str
        Lines that each request has: a credential, or the mark of a program.
    """

    def __init__(
        self, routes: Mapping[tuple[str, str], Case], seed: int, host: str, header: str = ""
    ) -> None:
        self._routes = sorted(routes)
        self._cases = routes
        self._random = random.Random(seed)
        self._host = host
        self._header = header
        self._turn = 0
        self._kinds = [
            getattr(self, name) for name in sorted(dir(self)) if name.startswith("_attack_")
        ]

    def next(self) -> Attack:
        """Return the next one. Each route and each kind has its turn."""
        self._turn += 1
        method, path = self._routes[self._turn % len(self._routes)]
        case = self._cases[method, path]
        kinds = self._kinds
        if case.harmful:
            kinds = [self._attack_unknown_in_the_query, self._attack_escapes, self._attack_host,
                     self._attack_method]  # fmt: skip
        kind: Callable[[str, str, Case], Attack] = self._random.choice(kinds)
        return kind(method, path, case)

    # ---- requests

    def _target(self, path: str) -> str:
        if path.endswith("/*"):  # one more segment
            return path[:-1] + quote(self._word(), safe="")
        return path

    def _request(
        self,
        method: str,
        target: str,
        body: bytes | None = None,
        *,
        host: str | None = None,
        kind: str = "application/json",
        lines: str = "",
    ) -> bytes:
        head = f"{method} {target} HTTP/1.1\r\nHost: {self._host if host is None else host}\r\n"
        head += self._header + lines
        if body is not None:
            head += f"Content-Type: {kind}\r\n" if kind else ""
            head += f"Content-Length: {len(body)}\r\n"
        elif method not in ("GET", "HEAD"):
            head += f"Content-Type: {kind}\r\n" if kind else ""
        return (head + "\r\n").encode("latin-1") + (body or b"")

    def _carried(self, method: str, path: str, values: Mapping[str, Any]) -> bytes:
        """Return a request with these parameters: in the query of GET and DELETE, else in the body."""
        target = self._target(path)
        if method in ("GET", "DELETE"):
            text = {
                name: value if isinstance(value, str | bytes) else json.dumps(value)
                for name, value in values.items()
            }
            query = "&".join(f"{quote(name)}={quote(value)}" for name, value in text.items())
            return self._request(method, f"{target}?{query}" if query else target)
        return self._request(method, target, json.dumps(values).encode("utf-8", "surrogatepass"))

    # ---- values

    def _word(self) -> str:
        return "".join(self._random.choices(string.ascii_lowercase, k=self._random.randint(1, 12)))

    def _strange(self) -> Any:
        """Return a value that few expect."""
        pick = self._random.choice
        made: list[Callable[[], Any]] = [
            lambda: "",
            lambda: pick([0, -1, 1.5, 1e308, 2**63, 2**64, 2**64 - 1, 10**100, -(2**63)]),
            lambda: str(pick([0, -1, 2**32, 2**63, 2**64, 10**300])),
            lambda: pick([True, False]),
            lambda: "x" * pick([63, 1024, 1025, 5000]),
            lambda: "\x00",
            lambda: "a\x00b\r\nX: y",
            lambda: "../" * 20,
            lambda: "%s%n{}{0}",
            lambda: "'; reboot #",
            lambda: "\ufffd\U0001f600\u202e",
            lambda: "*?" * 200,
            lambda: "0.0.0.0.0",
            lambda: ".".join(str(pick([0, 1, 2**32 - 1, 2**32, 2**64 - 1])) for _ in range(5)),
            lambda: "0" * 40,
            self._word,
        ]
        return pick(made)()

    def _nested(self) -> bytes:
        """Return JSON that is nested deeply."""
        depth = self._random.choice([3, 100, 1000, 10_000, 30_000])
        if self._random.random() < 0.5:
            return b"[" * depth + b"]" * depth
        depth = max(depth // 4, 1)
        return b'{"a":' * depth + b"1" + b"}" * depth

    def _misspelt(self, case: Case) -> str:
        if not case.parameters or self._random.random() < 0.3:
            return "fuzz" + self._word()
        name = self._random.choice(sorted(case.parameters))
        at = self._random.randrange(len(name))
        return name[:at] + "Z" + name[at:]

    def _some(self, case: Case) -> dict[str, Any]:
        """Return most of the parameters, some with strange values."""
        values: dict[str, Any] = {}
        for name, value in case.parameters.items():
            if self._random.random() < 0.1:
                continue
            values[name] = self._strange() if self._random.random() < 0.3 else value
        return values

    # ---- attacks on what is said

    def _attack_strange_values(self, method: str, path: str, case: Case) -> Attack:
        return Attack(self._carried(method, path, self._some(case)), "strange values")

    def _attack_strange_bytes(self, method: str, path: str, case: Case) -> Attack:
        query = "&".join(
            f"{name}={quote(self._random.randbytes(self._random.randint(0, 40)))}"
            for name in case.parameters
        )
        # A server that reads its parameters from the body takes none here.
        return Attack(self._request(method, f"{self._target(path)}?{query}"), "strange bytes")

    def _attack_unknown_parameter(self, method: str, path: str, case: Case) -> Attack:
        name = self._misspelt(case)
        raw = self._carried(method, path, {**case.parameters, name: "1"})
        refused = not case.ignores_parameters(path)
        return Attack(raw, f"unknown parameter {name}", refused, "unknown" if refused else "")

    def _attack_unknown_in_the_query(self, method: str, path: str, case: Case) -> Attack:
        name = self._misspelt(case)
        raw = self._request(method, f"{self._target(path)}?{name}=1")
        refused = not case.ignores_parameters(path)
        return Attack(raw, f"unknown parameter {name} in the query", refused)

    def _attack_given_twice(self, method: str, path: str, case: Case) -> Attack:
        name = self._random.choice(sorted(case.parameters) or ["a"])
        if method in ("GET", "DELETE"):
            raw = self._request(method, f"{self._target(path)}?{name}=1&{name}=2")
        else:
            raw = self._request(
                method, self._target(path), f'{{"{name}":"1","{name}":"2"}}'.encode()
            )
        return Attack(
            raw, f"{name} is given twice", method == "POST" or not case.ignores_parameters(path)
        )

    def _attack_wrong_types(self, method: str, path: str, case: Case) -> Attack:
        name = self._random.choice(sorted(case.parameters) or ["a"])
        value = self._random.choice([b"[]", b"{}", b"null", b'["a"]', b'{"a":1}', self._nested()])
        body = json.dumps({k: v for k, v in case.parameters.items() if k != name}).encode()
        more = b"," if body != b"{}" else b""
        body = body[:-1] + more + json.dumps(name).encode() + b":" + value + b"}"
        refused = method == "POST" and not case.own_body
        return Attack(
            self._request(method, self._target(path), body), f"{name} is {value[:20]!r}", refused
        )

    def _attack_bad_json(self, method: str, path: str, case: Case) -> Attack:
        good = json.dumps(dict(case.parameters)).encode()
        body = self._random.choice(
            [
                b"{", b"[", b"[]", b"1", b'"a"', b"null", b"{'a':1}", b"{a:1}", good[:-1], good + good,
                good + b"\x00", b"\xef\xbb\xbf" + b"x", b'{"a":"\xff"}', b'{"a":"\xc0\x80"}',
                b'{"a":"\x00"}', b'{"a":"\\ud800"', b'{"a":NaN', b'{"a":1,}', b'{"a":01}', b"\x00" * 100,
                b"a=1&b=2", b"<a/>", self._nested()[:-1], self._random.randbytes(200) + b"\xff",
            ]
        )  # fmt: skip
        refused = method in ("POST", "PUT")
        return Attack(
            self._request(method, self._target(path), body), f"bad JSON {body[:40]!r}", refused
        )

    # ---- attacks on how it is said

    def _attack_kind_of_content(self, method: str, path: str, case: Case) -> Attack:
        kind = self._random.choice(
            ["", "text/plain", "multipart/form-data; boundary=x", "application/x-www-form-urlencoded",
             "application/json; charset=utf-16", "application/jsonp", "a" * 3000, "application/json, text/plain"]
        )  # fmt: skip
        body = json.dumps(dict(case.parameters)).encode()
        return Attack(
            self._request(method, self._target(path), body, kind=kind), f"content is {kind[:40]!r}"
        )

    def _attack_escapes(self, method: str, path: str, case: Case) -> Attack:
        bad = self._random.choice(["%", "%4", "%zz", "%%", "%0g", "a%", "%u0041"])
        if self._random.random() < 0.5:
            name = self._random.choice(sorted(case.parameters) or ["a"])
            return Attack(
                self._request(method, f"{self._target(path)}?{name}={bad}"), f"escape {bad} in the query",
                not case.ignores_parameters(path),
            )  # fmt: skip
        return Attack(
            self._request(method, path.removesuffix("*") + bad), f"escape {bad} in the path", True
        )

    def _attack_path(self, method: str, path: str, _case: Case) -> Attack:
        strange = self._random.choice(
            [path + "%00", path + "/", "/" + path, path + "/..", path.upper() + "x", "/v1/" + self._word(),
             "//", "/%2e%2e/etc/passwd", "*", "http://localhost" + path, path + "\x7f", "/" + "a" * 9000,
             "/" + "%41" * 3000, path + "#a"]
        )  # fmt: skip
        return Attack(self._request(method, strange), f"path {strange[:40]!r}")

    def _attack_method(self, _method: str, path: str, _case: Case) -> Attack:
        other = self._random.choice(
            ["TRACE", "CONNECT", "PATCH", "OPTIONS", "PROPFIND", "get", "X" * 5000, "G\x00T"]
        )
        return Attack(self._request(other, self._target(path)), f"method {other[:20]!r}", True)

    def _attack_host(self, method: str, path: str, _case: Case) -> Attack:
        host = self._random.choice(["", "evil.com", "a b", "localhost:x", "[::1", "127.0.0.1.evil.com", "u@localhost",
                                    "localhost\r\nHost: localhost", "x" * 5000])  # fmt: skip
        return Attack(
            self._request(method, self._target(path), host=host), f"host {host[:40]!r}", True
        )

    def _attack_head(self, method: str, path: str, case: Case) -> Attack:
        lines = self._random.choice(
            [f"X: {'x' * 20_000}\r\n", "".join(f"X{i}: y\r\n" for i in range(3000)), "no colon\r\n", " folded\r\n",
             "X : y\r\n", "X\x00: y\r\n", "X: \x00\r\n", "Content-Length: -1\r\n", "Content-Length: 1e3\r\n",
             f"Content-Length: {10**30}\r\n", "Content-Length: 3\r\nContent-Length: 4\r\n",
             "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n", "Origin: http://evil.com\r\n",
             "Sec-Fetch-Site: cross-site\r\n"]
        )  # fmt: skip
        raw = self._request(method, self._target(path), lines=lines) + b"abc"
        # A line that some servers take for a part of the one before it is no error of all.
        return Attack(
            raw, f"head {lines[:40]!r}", lines.startswith(("Content", "Origin", "Sec", "X: x"))
        )

    def _attack_no_http(self, _method: str, path: str, _case: Case) -> Attack:
        raw = self._random.choice(
            [self._random.randbytes(self._random.randint(1, 300)), b"GET\r\n\r\n", b"\r\n\r\n\r\n\r\n", b"\x16\x03\x01\x02",
             f"GET {path} HTTP/9.9\r\n\r\n".encode(), f"GET {path}\r\n\r\n".encode(), b"GET / HTTP/1.1\n\n",
             b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"\x00" * 1000, b"A" * 100_000]
        )  # fmt: skip
        return Attack(raw, f"no HTTP {raw[:40]!r}", True, silent=True)

    def _attack_chunks(self, method: str, path: str, case: Case) -> Attack:
        body = json.dumps(dict(case.parameters)).encode()
        size = f"{len(body):x}".encode()
        chunks = self._random.choice(
            [size + b"\r\n" + body, size + b"\r\n" + body[:3], b"zz\r\n" + body, b"-1\r\n" + body,
             b"FFFFFFFFFFFFFFFF\r\n" + body, b"FFFFFFFFFFFFFFFFF\r\n" + body, b"", b"5;" + b"x" * 3000,
             size + b"\r\n" + body + b"XX0\r\n\r\n"]
        )  # fmt: skip
        raw = (
            self._request(method, self._target(path), lines="Transfer-Encoding: chunked\r\n")
            + chunks
        )
        return Attack(raw, f"chunks {chunks[:40]!r}", silent=True)

    def _attack_cut_off(self, method: str, path: str, case: Case) -> Attack:
        raw = self._request(
            method, self._target(path), json.dumps(dict(case.parameters)).encode() + b" " * 5
        )
        return Attack(raw[: self._random.randrange(len(raw))], "cut off", silent=True)

    def _attack_pipelined(self, method: str, path: str, _case: Case) -> Attack:
        count = self._random.randint(1, 5)
        health = self._request("GET", self._monitored())
        bad = self._request(
            method, "/" + self._word() + "x" * 20, b"{}" if method != "GET" else None
        )
        return Attack(
            health * count + bad + b"\x00garbage", "pipelined", silent=False, before=count
        )

    def _monitored(self) -> str:
        return "/healthz" if ("GET", "/healthz") in self._cases else "/health"
