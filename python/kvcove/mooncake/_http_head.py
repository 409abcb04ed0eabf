# SPDX-License-Identifier: Apache-2.0
"""The head of an HTTP request: its syntax, and the origins that may send it.

Whatever two programs could read in two ways is refused, so that nothing in front of this server sees
other requests than it does. What a browser sends on behalf of another site's page is refused, too:
such a page reaches servers of its visitor's host and network, and they have no passwords.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass

__all__ = ["Head", "Refused", "parse_head"]

_TOKEN = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
_REQUEST = re.compile(rb"(" + _TOKEN + rb") (/[!-~\x80-\xff]*) HTTP/1\.([01])")
_FIELD = re.compile(rb"(" + _TOKEN + rb"):[ \t]*([\t -~\x80-\xff]*)")
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[0-9A-Za-z._-]+)(:[0-9]{0,5})?")
_LENGTH = re.compile(r"[0-9]{1,15}")
# Of these a second one would be for somebody else to choose from.
_ONCE = {"host", "content-length", "expect", "origin", "sec-fetch-site", "authorization"}


class Refused(Exception):
    """A request that is not served; the connection ends with it."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


@dataclass
class Head:
    """The head of a request that may be served."""

    method: str
    target: str  # as it came: not decoded
    length: int
    keep_alive: bool
    expects_continue: bool
    authorization: str


def parse_head(raw: bytes, *, on_loopback: bool) -> Head:
    """Read a head that ends with an empty line.

    Parameters
    ----------
    raw : bytes
    on_loopback : bool
        The server listens on loopback: it is asked by an address or as ``localhost``, never by
        another name. A page may give a name of its own any address, this host's, too.

    Raises
    ------
    Refused
        It is not served, and why.
    """
    request, *lines = raw.removesuffix(b"\r\n\r\n").split(b"\r\n")
    match = _REQUEST.fullmatch(request)
    if match is None:
        raise Refused(400, "the request line is not METHOD /path HTTP/1.1")
    fields = _fields(lines)
    if "transfer-encoding" in fields:
        raise Refused(501, "Transfer-Encoding is not served; send a Content-Length")
    old = match[3] == b"0"
    if "host" not in fields and not old:
        raise Refused(400, "Host is missing")
    _check_sender(fields, on_loopback)
    length = fields.get("content-length", "0")
    if not _LENGTH.fullmatch(length):
        raise Refused(400, "Content-Length is no number of bytes")
    expects = fields.get("expect", "").lower()
    if expects not in ("", "100-continue"):
        raise Refused(417, "of all expectations only 100-continue is met")
    return Head(
        method=match[1].decode(),
        target=match[2].decode("latin-1"),
        length=int(length),
        keep_alive=not old and "close" not in fields.get("connection", "").lower(),
        expects_continue=bool(expects),
        authorization=fields.get("authorization", ""),
    )


def _fields(lines: list[bytes]) -> dict[str, str]:
    fields: dict[str, str] = {}
    for line in lines:
        # A line that begins with a blank, or has one in front of the colon, is no field.
        match = _FIELD.fullmatch(line)
        if match is None:
            raise Refused(400, "a line of the head is not 'Name: value'")
        name, value = match[1].decode().lower(), match[2].decode("latin-1").rstrip(" \t")
        if name in fields and name in _ONCE:
            raise Refused(400, f"{match[1].decode()} is there twice")
        fields[name] = f"{fields[name]}, {value}" if name in fields else value
    return fields


def _check_sender(fields: dict[str, str], on_loopback: bool) -> None:
    host = fields.get("host", "").lower()
    match = _HOST.fullmatch(host)
    if match is None and "host" in fields:
        raise Refused(400, "Host is no host and port")
    name = match[1] if match is not None else ""
    by_address = name == "localhost" or _is_address(name)
    if on_loopback and name and not by_address:
        raise Refused(403, f"this server is asked by its address or as localhost, not as {name!r}")
    origin = fields.get("origin")
    # A page may have made its own name resolve to this server, so its Origin equals Host. Programs
    # send no Origin.
    own = (f"http://{host}", f"https://{host}") if by_address else ()
    if origin is not None and origin.lower() not in own:
        raise Refused(403, "pages of other sites may not use this server")
    if fields.get("sec-fetch-site", "none").lower() not in ("none", "same-origin"):
        raise Refused(403, "pages of other sites may not use this server")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True
