# SPDX-License-Identifier: Apache-2.0
"""Where an owner listens, and the address that it tells other hosts."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import os
import socket
from dataclasses import dataclass

import kvcove
from kvcove import _native
from kvcove.mooncake import _config

__all__ = [
    "Place",
    "data_port",
    "interface_address",
    "is_loopback",
    "is_wildcard",
    "leader_of",
    "place",
    "ports",
]


@dataclass
class Place:
    """An owner's place in the network.

    Attributes
    ----------
    listen : str
        The address to listen at.
    advertise : str
        The host that others are told.
    """

    listen: str
    advertise: str


def is_wildcard(host: str) -> bool:
    """Whether it stands for all interfaces."""
    return host in ("0.0.0.0", "::")


def is_loopback(address: str) -> bool:
    """Whether only this host reaches the address."""
    if address == "localhost":
        return True
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def _is_literal(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _resolved(host: str, port: int, whose: str) -> list[tuple[int, tuple[object, ...]]]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)
    except OSError as error:
        raise OSError(f"{whose} {host!r} is not known here: {error}") from error
    return [(family, address) for family, _, _, _, address in found]


_FIND_SECONDS = 5.0  # for a master that etcd names


def leader_of(master: str) -> str:
    """Return the master, or the list of them, as it is; where etcd names them, the one that leads.

    Raises
    ------
    OSError
        Etcd names none.
    """
    if not master.startswith(_config.ETCD):
        return master
    try:
        return _native.find_master(master, timeout=_FIND_SECONDS)
    except kvcove.Error as error:
        raise OSError(str(error)) from error


def _towards(master: str) -> str:
    """Return the address of this host that packets to the master carry. Sends nothing to it."""
    found: list[str] = []
    unknown: OSError | None = None
    for one in leader_of(master).split(","):
        try:
            addresses = _resolved(*_config.split_address(one, 50051), "the master's host")
        except OSError as error:  # another of the list may be known
            unknown = error
            continue
        for family, address in addresses:
            with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect(address)
                found.append(str(probe.getsockname()[0]))
    if not found:
        raise unknown or OSError(f"there is no route from this host to the master at {master}")
    return next((address for address in found if not is_loopback(address)), found[0])


def place(host: str, master: str) -> Place:
    """Return where an owner of this host listens, and what it is called.

    A loopback address means nothing on other hosts. Where the master is on another one, the address
    of the route to it takes the place of loopback; a name stays what the owner is called.

    Parameters
    ----------
    host : str
        An address or a name of this host, or the wildcard.
    master : str
        ``host:port``, or where masters are found (``etcd://...``).

    Raises
    ------
    ValueError
        The host is not known.
    OSError
        The master's is not, there is no route to it, or etcd names none.
    """
    if is_wildcard(host):
        return Place(host, _towards(master))
    try:
        here = [str(address[0]) for _, address in _resolved(host, 0, "the host")]
    except OSError as error:
        raise ValueError(str(error)) from error
    outside = next((address for address in here if not is_loopback(address)), None)
    if outside is not None:
        return Place(outside, host)
    route = _towards(master)
    if is_loopback(route):
        return Place(here[0] if host != "localhost" else "127.0.0.1", host)
    named = host != "localhost" and not _is_literal(host)
    return Place(route, host if named else route)


def ports() -> tuple[int, int]:
    """Return the lowest and the highest port for owners' data.

    Raises
    ------
    ValueError
        The variables that name them do not.
    """
    low, high = (
        os.environ.get(f"MC_STORE_CLIENT_{end}_PORT", default)
        for end, default in (("MIN", "12300"), ("MAX", "14300"))
    )
    if not (low.isdigit() and high.isdigit() and 0 < int(low) <= int(high) <= 65535):
        raise ValueError(
            f"MC_STORE_CLIENT_MIN_PORT={low}, MC_STORE_CLIENT_MAX_PORT={high}: two ports are wanted, "
            "the first not above the second, such as 12300 and 14300"
        )
    return int(low), int(high)


def data_port(address: str, first: int) -> int:
    """Return a free port out of MC_STORE_CLIENT_MIN_PORT to _MAX_PORT.

    Firewalls are open for these, so an owner without a port of its own takes one of them.

    Parameters
    ----------
    address : str
        Where it is to be free.
    first : int
        The one to try first, counted from the lowest; the next ones follow it.

    Raises
    ------
    OSError
        The address is none of this host, or all of the ports are in use.
    ValueError
        The variables name no ports.
    """
    low, high = ports()
    count = high - low + 1
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    refused = OSError()
    for step in range(count):
        port = low + (first + step) % count
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            # As the owner's own listener: connections that have just ended keep nobody out.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((address, port))
                return port
            except PermissionError as error:
                refused = error
            except OSError as error:
                refused = error
                if error.errno != errno.EADDRINUSE:
                    break
    raise OSError(f"no port from {low} to {high} is free at {address}: {refused}")


def interface_address(name: str) -> str:
    """Return the first address of a network interface, IPv4 before IPv6.

    Raises
    ------
    OSError
        There is no such interface, or it has no address.
    """
    import fcntl
    import struct

    known = [interface for _, interface in socket.if_nameindex()]
    if name not in known:
        raise OSError(f"there is no interface {name!r}; there are {', '.join(known)}")
    with (
        contextlib.suppress(OSError),
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe,
    ):
        # SIOCGIFADDR of netdevice(7): the address lies behind the name, a family and a port.
        answer = fcntl.ioctl(probe, 0x8915, struct.pack("256s", name.encode()))
        return socket.inet_ntoa(answer[20:24])
    with contextlib.suppress(OSError), open("/proc/net/if_inet6", encoding="ascii") as table:
        for line in table:
            digits, _, _, scope, _, interface = line.split()
            if interface == name and scope == "00":  # not of the link alone
                return str(ipaddress.IPv6Address(int(digits, 16)))
    raise OSError(f"the interface {name!r} has no address")
