# SPDX-License-Identifier: Apache-2.0
"""``mooncake_client``: gives this host's memory to a cluster, for thin clients and for everybody."""

from __future__ import annotations

import os
import socket as socket_module
import sys
import uuid

from kvcove.mooncake import _config
from kvcove.mooncake._flags import Flag, fail, parse
from kvcove.mooncake._http import HttpServer, json_answer, text_answer
from kvcove.mooncake._process import Child, allow_open, wait_for_stop

__all__ = ["main"]

_PROGRAM = "mooncake_client"
_FLAGS = {
    "host": Flag("127.0.0.1", "this host's name, where it listens"),
    "port": Flag("50052", "where thin clients find it"),
    "master_server_address": Flag("127.0.0.1:50051", "the master"),
    "global_segment_size": Flag("4 GB", "memory to give"),
    "metadata_server": Flag("http://127.0.0.1:8080/metadata", ignored=True),
    "device_names": Flag("", ignored=True),
    "protocol": Flag("tcp", ignored=True),
    "local_buffer_size": Flag("0", ignored=True),
    "threads": Flag("1", ignored=True),
    "tenant_id": Flag("default", "the only tenant that is served; needs credentials"),
    "enable_offload": Flag(False, ignored=True),
    "start_offload_rpc_server": Flag(True, ignored=True),
    "http_port": Flag("0", "admin endpoint of the owner; 0: off"),
}


def _free_port(host: str) -> int:
    with socket_module.socket(
        socket_module.AF_INET6 if ":" in host else socket_module.AF_INET
    ) as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def _address_towards(master: str) -> str:
    """Return the address of this host that packets to the master carry."""
    host, port = _config.split_address(master, 50051)
    family, _, _, _, address = socket_module.getaddrinfo(host, port)[0]
    with socket_module.socket(family, socket_module.SOCK_DGRAM) as probe:
        probe.connect(address)
        return str(probe.getsockname()[0])


def main() -> None:
    """Serve until SIGTERM."""
    values = parse(_PROGRAM, sys.argv[1:], _FLAGS, "gives this host's memory to a cluster")
    host = str(values["host"])
    try:
        port = int(str(values["port"]))
        size = _config.parse_size(values["global_segment_size"])
        master = _config.join_address(
            *_config.split_address(str(values["master_server_address"]), 50051)
        )
        sockets = _config.private_directory()
    except (OSError, ValueError) as error:
        fail(_PROGRAM, str(error))
    everywhere = host in ("0.0.0.0", "::")
    listen, advertise = _config.join_address(host, 0), []
    if everywhere:
        # Others must be told one address: the one that this host reaches the master from.
        data_port = _free_port(host)
        listen = _config.join_address(host, data_port)
        address = _config.join_address(_address_towards(master), data_port)
        advertise = ["--advertise", address]
    socket = sockets / f"client-{port}-{uuid.uuid4().hex[:8]}.sock"
    arguments = ["owner", "--master", master, "--listen", listen, *advertise]
    arguments += ["--memory", str(max(size, 1 << 20)), "--socket", str(socket)]
    admin = str(values["http_port"])
    arguments += ["--admin", "off" if admin == "0" else _config.join_address(host, int(admin))]
    arguments += allow_open(_PROGRAM, host)
    if values["tenant_id"] != "default":
        if not os.environ.get("KVCOVE_CREDENTIALS"):
            fail(_PROGRAM, "-tenant_id: without KVCOVE_CREDENTIALS there are no tenants")
        arguments += ["--tenant", str(values["tenant_id"])]
    child = None
    try:
        pool = f"kvcove://{master}"
        routes = {
            ("GET", "/health"): lambda _request: json_answer({"status": "healthy", "code": 0}),
            ("GET", "/v1/pool"): lambda _request: json_answer({"pool": pool}),
            ("GET", "/metrics"): lambda _request: text_answer(f"# {pool}\n"),
        }
        server = HttpServer(host, port, routes)
        child = Child(arguments, r"owner of .* at (\S+?),? ")
    except (OSError, RuntimeError) as error:
        fail(_PROGRAM, f"{host}:{port}: {error}")
    print(f"{_PROGRAM}: {size} bytes for {pool}; thin clients: {host}:{server.port}", flush=True)
    status = wait_for_stop(child)
    server.close()
    child.stop()
    sys.exit(status)


if __name__ == "__main__":
    main()
