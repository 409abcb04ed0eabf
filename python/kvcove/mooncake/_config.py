# SPDX-License-Identifier: Apache-2.0
"""What a store is set up with: sizes, addresses, forms of setup()."""

from __future__ import annotations

import contextlib
import ipaddress
import json
import logging
import math
import os
import re
import stat
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvcove._environment import is_true
from kvcove.mooncake import _job

_log = logging.getLogger("kvcove.mooncake")

_UNITS = {"": 1, "b": 1}
for _power, _letter in enumerate("kmgt", start=1):
    _UNITS[_letter] = _UNITS[f"{_letter}b"] = _UNITS[f"{_letter}ib"] = 1024**_power

POOL_SCHEMES = ("embedded:", "unix:", "kvcove://", "auto")
ETCD = "etcd://"
CLUSTER_ID = "mooncake_cluster"  # where nobody names one


def parse_size(value: object) -> int:
    """Return a number of bytes from an int or from text such as ``"16MB"`` or ``"1.5 GiB"``.

    Raises
    ------
    ValueError
        It is no size, or a negative one.
    """
    if isinstance(value, bool):
        raise ValueError(f"{value!r} is no size")
    if isinstance(value, int | float):
        size = value
    else:
        text = str(value).strip().lower()
        digits = text.rstrip("bkmgti ")
        unit = text[len(digits) :].strip()
        if not digits or unit not in _UNITS:
            raise ValueError(f"{value!r} is no size; 1073741824, '16MB' and '4 GiB' are")
        size = float(digits) * _UNITS[unit] if "." in digits else int(digits) * _UNITS[unit]
    if not math.isfinite(size) or size < 0:
        raise ValueError(f"{value!r} is no size: it is negative or without end")
    return int(size)


def _is_ipv6(text: str) -> bool:
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return True


def split_address(address: str, default_port: int) -> tuple[str, int]:
    """Return host and port of ``host``, ``host:port``, ``v6``, ``[v6]`` or ``[v6]:port``.

    Raises
    ------
    ValueError
        It is none of them; the message says what would be.
    """
    host, colon, port = address, "", ""
    if address.startswith("["):
        host, bracket, rest = address[1:].partition("]")
        colon, port = rest[:1], rest[1:]
        if not bracket or colon not in ("", ":") or not _is_ipv6(host):
            raise ValueError(f"{address!r} is not [IPv6 ADDRESS]:PORT, such as [fd00::1]:50053")
    elif address.count(":") < 2:
        host, colon, port = address.partition(":")
    elif not _is_ipv6(address):
        raise ValueError(
            f"{address!r} is neither HOST:PORT nor an IPv6 address; [fd00::1]:50053 is one with a port"
        )
    if not colon:
        return host, default_port
    if not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise ValueError(f"{address!r}: {port!r} is no port")
    return host, int(port)


def join_address(host: str, port: int) -> str:
    """Return ``host:port``, with brackets where the host is an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def etcd_endpoints(text: str) -> tuple[list[str], str]:
    """Return etcd's members, ``host:port`` each, and the prefix that follows the last one.

    Parameters
    ----------
    text : str
        ``h1:2379;h2:2379``; also with commas, with ``http://`` and with ``/PREFIX`` behind it.

    Raises
    ------
    ValueError
        It is none of that; the message says what would be.
    """
    members = []
    prefix = ""
    if "?" in text:
        raise ValueError(
            f"etcd's endpoints {text!r}: options are for kvcove://{ETCD}HOST:2379/PREFIX?..."
        )
    for part in re.split("[;,]", text):
        scheme, separator, rest = part.strip().removeprefix(ETCD).rpartition("://")
        if separator and scheme not in ("http", "https"):
            raise ValueError(
                f"etcd's endpoints {text!r}: {scheme}:// is no etcd; HOST:2379 and http://HOST:2379 are"
            )
        if scheme == "https" and not os.environ.get("KVCOVE_STORE_TLS_AUTHORITY"):
            raise ValueError(
                f"etcd's endpoints {text!r}: for https, KVCOVE_STORE_TLS_AUTHORITY names the file of "
                "the authority that has signed etcd's certificate"
            )
        if not rest:
            continue
        if prefix:
            raise ValueError(f"etcd's endpoints {text!r}: the prefix {prefix!r} stands last")
        member, _, path = rest.partition("/")
        host, port = split_address(member, 2379)
        if not host:
            raise ValueError(f"etcd's endpoints {text!r}: {rest!r} names no host")
        address = join_address(host, port)
        if address not in members:
            members.append(address)
        prefix = f"/{path.strip('/')}" if path.strip("/") else ""
    if not members:
        raise ValueError(
            f"etcd's endpoints {text!r}: none is named; 10.0.0.1:2379;10.0.0.2:2379 are two"
        )
    return members, prefix


def etcd_place(endpoints: str, cluster_id: str = "") -> str:
    """Return where the masters of a cluster keep their facts, as ``kvcove master --store`` takes it.

    Parameters
    ----------
    endpoints : str
        As of :func:`etcd_endpoints`. A prefix in it is that of a pool of ``kvcove master --store``.
    cluster_id : str
        Empty: ``$MC_STORE_CLUSTER_ID``, else ``mooncake_cluster``.

    Raises
    ------
    ValueError
        One of them is not usable.
    """
    members, prefix = etcd_endpoints(endpoints)
    place = f"{ETCD}{','.join(members)}"
    if prefix:
        if cluster_id:
            raise ValueError(
                f"etcd's endpoints {endpoints!r} have a prefix, and -cluster_id={cluster_id} is another "
                "one: give one of them"
            )
        return place + prefix
    named = cluster_id or os.environ.get("MC_STORE_CLUSTER_ID") or CLUSTER_ID
    name = named.rstrip("/")
    # A name has no slash, so no cluster's prefix lies within another's.
    if not re.fullmatch("[0-9A-Za-z_.-]{1,128}", name):
        raise ValueError(
            f"the cluster id {named!r} (-cluster_id, MC_STORE_CLUSTER_ID): 1 to 128 letters, digits, "
            "'_', '-' and '.' are wanted"
        )
    return f"{place}/kvcove-mooncake/{name}"


def master_of(named: str) -> str:
    """Return the master, or where the masters are found, as ``kvcove owner --master`` takes it.

    Parameters
    ----------
    named : str
        A ``master_server_address``: ``host:port``, ``etcd://h1:2379;h2:2379``.

    Raises
    ------
    ValueError
        It is none.
    """
    for scheme in ("redis://", "k8s://"):
        if named.startswith(scheme):
            raise ValueError(
                f"master_server_addr {named!r}: masters are found through etcd "
                f"(etcd://HOST:2379;HOST:2379) or by their address (HOST:PORT), not through "
                f"{scheme.removesuffix('://')}"
            )
    if named.startswith(ETCD):
        return etcd_place(named)
    host, port = split_address(named, 50051)
    if not host:
        raise ValueError(f"master_server_addr {named!r} names no host")
    return join_address(host, port)


def private_directory() -> Path:
    """Return a directory that only this user may enter, for sockets; it is made if need be.

    Raises
    ------
    PermissionError
        It is there already, and others may enter it or it is somebody else's: they could read what
        is put there, or put something there that is then believed.
    """
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    path = (
        Path(runtime) / "kvcove"
        if runtime
        else Path(tempfile.gettempdir()) / f"kvcove-{os.getuid()}"
    )
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700)
    found = path.lstat()  # a link is refused: another user may have made it
    if not stat.S_ISDIR(found.st_mode):
        wrong = "is a link" if stat.S_ISLNK(found.st_mode) else "is no directory"
    elif found.st_uid != os.getuid():
        wrong = f"belongs to uid {found.st_uid}, not to this user ({os.getuid()})"
    elif found.st_mode & 0o077:
        wrong = f"has mode {stat.S_IMODE(found.st_mode):04o}: others than this user may enter it"
    else:
        return path
    raise PermissionError(
        f"{path} {wrong}; kvcove keeps sockets and data there and makes it itself, for this user "
        "alone: look who made it and what is in it, and remove it, or set XDG_RUNTIME_DIR to a "
        "directory of this user's own"
    )


def master_in(path: str) -> str:
    """Return what a store's JSON file gives as ``master_server_address``.

    Raises
    ------
    ValueError
        The file cannot be read, is no JSON, or names no master.
    """
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise ValueError(f"{path}:{error.lineno}: this is no JSON: {error.msg}") from error
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is no JSON: it is no text in UTF-8") from error
    master = content.get("master_server_address") if isinstance(content, dict) else None
    if not isinstance(master, str) or not master.strip():
        raise ValueError(f"{path}: master_server_address is missing")
    return master.strip()


def _port(value: object, name: str) -> int:
    text = str(value).strip()
    if isinstance(value, bool) or not (text.isascii() and text.isdigit()) or int(text) > 65535:
        raise ValueError(f"{name}={value!r}: a port is wanted, from 0 to 65535")
    return int(text)


def _devices(value: object) -> str:
    """Return the RDMA devices that setup() names, as a pool's address has them; empty: any."""
    named: dict[tuple[str, int], str] = {}
    for part in filter(None, map(str.strip, str(value or "").split(","))):
        match = re.fullmatch(r"([0-9A-Za-z_.-]+)(?::([0-9]+)(?:/([0-9]+))?)?", part)
        port, gid = (int(match[2] or 1), int(match[3] or 0)) if match else (0, 0)
        if not match or not 1 <= port <= 255 or gid > 255:
            _log.warning(
                "setup(): rdma_devices %r: mlx5_0,mlx5_1 are two; any device is used", value
            )
            return ""
        named.setdefault((match[1], port), part)
    return ",".join(named.values())


class ProtocolError(ValueError):
    """A protocol that is not known."""


@dataclass
class Setup:
    """The arguments of setup(), checked.

    Attributes
    ----------
    pool : str
        The address of the pool as :func:`kvcove.open` takes it.
    master : str
        ``host:port`` of the master, or where etcd says who leads, as ``kvcove owner --master`` takes
        them; empty where the pool has none.
    prefetches : bool or None
        Whether look-ups start to read what is on a disk; None: nothing says it.
    transport : str
        How payload moves between hosts, as in a pool's address: what that says, else ``auto`` for
        the protocol ``rdma``, else ``tcp``.
    devices : str
        RDMA devices with commas between; empty: those of this host.
    """

    local_hostname: str
    global_segment_size: int
    local_buffer_size: int
    tenant_id: str
    pool: str
    master: str
    http_port: int | None
    enable_ssd_offload: bool
    ssd_offload_path: str
    prefetches: bool | None
    transport: str
    devices: str

    @staticmethod
    def of(arguments: Mapping[str, Any]) -> Setup:
        """Check the arguments.

        Raises
        ------
        ValueError
            One of them is not usable; the message says which and what would be.
        """
        unknown = set(arguments) - _KNOWN
        if unknown:
            _log.warning(
                "setup(): %s mean nothing here; known: %s", sorted(unknown), sorted(_KNOWN)
            )
        host = str(arguments.get("local_hostname", "")).strip()
        if not host:
            raise ValueError("local_hostname is missing")
        if not str(arguments.get("metadata_server", "")).strip():
            raise ValueError("metadata_server is missing; P2PHANDSHAKE is enough")
        protocol = str(arguments.get("protocol", "tcp") or "tcp").strip().lower()
        if protocol not in _PROTOCOLS:
            raise ProtocolError(f"protocol {protocol!r} is not known; one of {sorted(_PROTOCOLS)}")
        if not split_address(host, 0)[0]:
            raise ValueError(f"local_hostname {host!r} names no host")
        tenant = str(arguments.get("tenant_id") or "default")
        segment = parse_size(arguments.get("global_segment_size", "16MiB"))
        if is_true(arguments.get("enable_egm_store_pool")):
            raise ValueError(
                "enable_egm_store_pool: memory of GPUs' extended address space is not here"
            )
        named = str(arguments.get("master_server_addr") or "127.0.0.1:50051").strip()
        embedded = arguments.get("enable_embedded_master")
        if embedded is None:
            embedded = os.environ.get("MOONCAKE_ENABLE_EMBEDDED_MASTER")
        if is_true(embedded) and not named.startswith("embedded"):
            named = "embedded:"
        pool, master = pool_of(named, segment)
        asked = named.startswith(POOL_SCHEMES) or os.environ.get("KVCOVE_TOKEN")
        if not asked and (token := _job.token_file()):
            pool += f"?token={token}"
        transport, devices = "tcp", ""
        if pool.startswith("kvcove://"):
            # What the address says counts for this store's own memory, too.
            parts = [part.partition("=") for part in pool.partition("?")[2].split("&")]
            keys = {key: value for key, _, value in parts}
            transport = keys.get("transport", "auto" if protocol == "rdma" else "tcp")
            if transport != "tcp":
                devices = keys.get("devices", _devices(arguments.get("rdma_devices")))
            for key, value in (("transport", transport), ("devices", devices)):
                if key not in keys and value not in ("tcp", ""):
                    pool += f"{'&' if '?' in pool else '?'}{key}={value}"
        http = _port(arguments.get("client_http_port", 9300), "client_http_port")
        prefetch = arguments.get("enable_ssd_prefetch")
        return Setup(
            local_hostname=host,
            global_segment_size=segment,
            local_buffer_size=parse_size(arguments.get("local_buffer_size", "16MiB")),
            tenant_id=tenant,
            pool=pool,
            master=master,
            http_port=http if arguments.get("enable_client_http_server") else None,
            enable_ssd_offload=is_true(arguments.get("enable_ssd_offload")),
            ssd_offload_path=str(arguments.get("ssd_offload_path") or ""),
            prefetches=None if prefetch is None else is_true(prefetch),
            transport=transport,
            devices=devices,
        )


_POSITIONAL = (
    "local_hostname",
    "metadata_server",
    "global_segment_size",
    "local_buffer_size",
    "protocol",
    "rdma_devices",
    "master_server_addr",
    "engine",
    "enable_ssd_offload",
    "ssd_offload_path",
    "tenant_id",
    "enable_client_http_server",
    "client_http_port",
    "enable_embedded_master",
)
_KNOWN = {
    *_POSITIONAL,
    *("ipc_socket_path", "enable_ssd_prefetch", "ssd_get_wait_ms"),
    *("ssd_prefetch_cooldown_sec", "ssd_prefetch_dedup_ttl_sec"),
    *("enable_egm_store_pool", "egm_numa_nodes"),
}
_PROTOCOLS = {
    *("tcp", "rdma", "efa", "nvmeof", "nvlink", "nvlink_intra", "musa", "hip", "barex", "cxl"),
    *("ascend", "ub", "ubshmem", "maca", "sunrise_link", "rpc_only", "shm"),
}


def arguments_of(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return setup()'s arguments by name, from its positional and its dict form.

    Raises
    ------
    TypeError
        They fit neither form.
    """
    if len(args) == 1 and isinstance(args[0], Mapping):
        return {**args[0], **kwargs}
    if len(args) > len(_POSITIONAL):
        raise TypeError(f"setup(): {len(args)} arguments, at most {len(_POSITIONAL)} are known")
    named = dict(zip(_POSITIONAL, args, strict=False))
    twice = set(named) & set(kwargs)
    if twice:
        raise TypeError(f"setup(): {sorted(twice)[0]!r} is given twice")
    named.update(kwargs)
    missing = [name for name in _POSITIONAL[:7] if name not in named]
    if missing:
        raise TypeError(f"setup(): {missing[0]!r} is missing; positional, or one dict, is right")
    return named


def pool_of(master: str, segment: int) -> tuple[str, str]:
    """Return the pool's address and its master's, empty where it has none.

    Raises
    ------
    ValueError
        ``master_server_address`` names neither a master nor a pool.
    """
    if master.startswith("embedded") and "memory=" not in master:
        joint = "&" if "?" in master else "?"
        scheme = "embedded:" if master in ("embedded", "embedded:") else master
        return f"{scheme}{joint}memory={max(segment, 16 << 20)}", ""
    if master.startswith("kvcove://"):
        address = master.removeprefix("kvcove://").split("?")[0]
        if address.startswith(ETCD):
            return master, address
        masters = [split_address(one, 7400) for one in address.split(",")]
        return master, ",".join(join_address(host, port) for host, port in masters)
    if master.startswith(POOL_SCHEMES):
        return master, ""
    address = master_of(master)
    return f"kvcove://{address}", address
