# SPDX-License-Identifier: Apache-2.0
"""``mooncake_client``: gives this host's memory to a cluster, for thin clients and for everybody."""

from __future__ import annotations

import os
import sys
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Mapping

import kvcove
from kvcove._environment import asked_for_disk
from kvcove.mooncake import _address, _config, _job
from kvcove.mooncake._flags import LOG_FLAGS, Flag, Values, fail, log_arguments, parse
from kvcove.mooncake._http import (
    Answer,
    HttpServers,
    Request,
    json_answer,
    open_url,
    text_answer,
    with_loopback,
)
from kvcove.mooncake._mixed import check_commands
from kvcove.mooncake._offload import (
    DiskPlace,
    Offload,
    from_master,
    incarnation_of,
    wanted,
)
from kvcove.mooncake._process import Child, StopSignals, allow_open, begin, credentials

__all__ = ["main"]

_PROGRAM = "mooncake_client"
_RPC_PORT = 50052
_FLAGS = {
    "host": Flag(
        "",
        "this host's address, or ADDRESS:PORT with the port that data goes through; 0.0.0.0: all "
        "interfaces (empty: the address of the route to the master)",
    ),
    "port": Flag(str(_RPC_PORT), "where thin clients find it, and /health"),
    "master_server_address": Flag(
        "127.0.0.1:50051", "the master; of several etcd's members, etcd://HOST:2379;HOST:2379"
    ),
    "global_segment_size": Flag("4 GB", "memory to give"),
    "metadata_server": Flag("http://127.0.0.1:8080/metadata", ignored=True),
    "device_names": Flag("", ignored=True),
    "protocol": Flag("tcp", instead="data goes over TCP, and over shared memory on one host"),
    "local_buffer_size": Flag("0", ignored=True),
    "threads": Flag("1", ignored=True),
    "tenant_id": Flag("default", "the only tenant that is served; needs credentials"),
    "enable_offload": Flag(
        False, "keep what memory evicts on a disk in MOONCAKE_OFFLOAD_FILE_STORAGE_PATH"
    ),
    "start_offload_rpc_server": Flag(True, ignored=True),
    "mmap_arena_pool_size": Flag("", ignored=True),
    "use_mmap_arena_allocator": Flag(False, ignored=True),
    "enable_http_server": Flag(False, "serve /health and /metrics at -http_port, too"),
    "http_port": Flag("9300", "where; given alone it switches -enable_http_server on"),
    **LOG_FLAGS,
}


class _Owner:
    """The owner that this program runs, as its HTTP paths show it."""

    def __init__(self, pool: str, segment: str) -> None:
        self.pool = pool
        self.segment = segment
        self._admin = ""

    def start(self, arguments: list[str]) -> Child:
        """Start it."""
        child = Child(arguments, r"owner of .* at (\S+?),? .*, admin (http://\S+)")
        assert child.match is not None
        self._admin = child.match[2]
        return child

    def _ask(self, path: str, authorization: str = "") -> Answer:
        request = urllib.request.Request(self._admin + path)
        if authorization:
            request.add_header("Authorization", authorization)
        try:
            with open_url(request, timeout=2) as answer:
                kind = answer.headers.get("Content-Type", "text/plain")
                return Answer(answer.status, answer.read(), kind)
        except urllib.error.HTTPError as error:
            return Answer(error.code, error.read(), error.headers.get("Content-Type", "text/plain"))

    def ready(self) -> bool:
        """Whether it holds a lease: the master has it in its list, and its memory may be read."""
        try:
            return bool(self._admin) and self._ask("/readyz").status == 200
        except OSError:
            return False

    def health(self, _request: Request) -> Answer:
        if self.ready():
            return json_answer({"status": "healthy", "code": 0})
        status = "no lease: the master does not answer" if self._admin else "starting"
        return json_answer({"status": status, "code": 2 if self._admin else 1}, 503)

    def metrics(self, request: Request) -> Answer:
        if not self._admin:
            return text_answer("starting\n", 503)
        return self._ask("/metrics", request.authorization)

    def summary(self, request: Request) -> Answer:
        answer = self.metrics(request)
        if answer.status != 200:
            return answer
        wanted = ("kvcove_owner_capacity_bytes", "kvcove_owner_free_bytes", "kvcove_owner_objects")
        lines = [
            f"{line.partition('{')[0].partition(' ')[0]}={line.rpartition(' ')[2]}"
            for line in answer.body.decode().splitlines()
            if line.startswith(wanted)
        ]
        return text_answer(f"segment={self.segment}, {', '.join(lines)}\n")

    def named(self, _request: Request) -> Answer:
        return json_answer({"pool": self.pool, "segment": self.segment})


def _seconds() -> float:
    text = os.environ.get("KVCOVE_READY_TIMEOUT", "120")
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"KVCOVE_READY_TIMEOUT={text}: seconds are wanted, such as 120") from None


def _place(host: str, master: str, until: float) -> _address.Place:
    """Find out where to listen; launchers may start this program before the master has a name.

    Of several masters one must lead: the owner waits less long for it than this program.
    """
    told = False
    while True:
        try:
            return _address.place(host or "127.0.0.1", _address.leader_of(master))
        except OSError as error:
            if time.monotonic() > until:
                raise
            if not told:
                print(f"{_PROGRAM}: waiting: {error}", file=sys.stderr)
            told = True
        time.sleep(0.5)


def _segment(values: Values, master: str, port: int, until: float) -> tuple[str, str]:
    """Return where the owner listens, and what its segment is called."""
    try:
        host, data = _config.split_address(str(values["host"]), 0)
    except ValueError as error:
        raise ValueError(f"-host: {error}") from None
    if not host and values["host"]:
        raise ValueError(f"-host={values['host']}: the host in front of the colon is missing")
    if data and data == port:
        raise ValueError(
            f"-host={values['host']}: data goes through the port that it names, and thin clients use "
            f"-port={port}: give two ports"
        )
    place = _place(host, master, until)
    if not data:
        # Known beforehand, so that a launcher can name the segment.
        data = _address.data_port(place.listen, port - _RPC_PORT)
        low, high = _address.ports()
        usual = low + (port - _RPC_PORT) % (high - low + 1)
        if data != usual:
            print(
                f"{_PROGRAM}: warning: port {usual} is in use, so data goes through {data}; "
                "-host=ADDRESS:PORT names one",
                file=sys.stderr,
            )
    if not host and not _address.is_loopback(place.listen):
        print(
            f"{_PROGRAM}: no -host: this host is {place.listen}, the address of the route to the "
            f"master at {master}",
            flush=True,
        )
    join = _config.join_address
    return join(place.listen, data), join(place.advertise, data)


def _arguments(values: Values, master: str, listen: str, segment: str, port: int) -> list[str]:
    socket = _config.private_directory() / f"client-{port}-{uuid.uuid4().hex[:8]}.sock"
    size = _config.parse_size(values["global_segment_size"])
    arguments = [*log_arguments(values), "owner", "--master", master]
    arguments += ["--listen", listen, "--advertise", segment]
    arguments += ["--memory", str(max(size, 1 << 20)), "--socket", str(socket)]
    arguments += ["--admin", "127.0.0.1:0"]
    tenant = str(values["tenant_id"])
    if tenant != "default" and not credentials():
        raise ValueError("-tenant_id: without KVCOVE_CREDENTIALS there are no tenants")
    if tenant == "default" and credentials() == _job.servers_file() != "":
        tenant = (
            _job.TENANT
        )  # the job's only one, so engines of this host share memory with the owner
    if tenant != "default":
        arguments += ["--tenant", tenant]
    return arguments


def _pool_at(master: str, until: float) -> kvcove.Pool | None:
    """Return the pool, when its master is there; none where it wants a token."""
    while True:
        try:
            return kvcove.open(f"kvcove://{master}")
        except (kvcove.UnavailableError, kvcove.TimedOutError):
            if time.monotonic() > until:
                return None  # the owner's own wait says what is wrong
        except kvcove.Error:
            return None
        time.sleep(0.2)


def _take_disk(values: Values, master: str, until: float) -> tuple[DiskPlace, Offload] | None:
    """Return the disk of this program, if it is to have one."""
    asked = bool(values["enable_offload"])
    told: Mapping[str, object] = {}
    incarnation = ""
    # Who asks for no disk gets one by the master's -root_fs_dir alone, and waits for no master here.
    pool = _pool_at(master, until if asked or asked_for_disk() else 0.0)
    if pool is not None:
        with pool:
            _, admin = pool.settings()
            told = from_master(f"http://{admin}" if admin else "")
            incarnation = incarnation_of(pool)
    memory = _config.parse_size(values["global_segment_size"])
    offload = wanted(asked, "", told, memory)
    return None if offload is None else (offload.take(incarnation), offload)


def _await_lease(owner: _Owner, child: Child, master: str, until: float, stop: StopSignals) -> None:
    while not owner.ready() and not stop.asked():
        if (status := child.poll()) is not None:
            fail(_PROGRAM, f"the owner ended with status {status}; its log:\n{child.log_end()}")
        if time.monotonic() > until:
            end = child.log_end()
            child.stop()
            fail(
                _PROGRAM,
                f"the owner has no lease: the master at {master} has not answered in time; is it "
                f"there, and do the credentials fit? The end of the owner's log:\n{end}",
            )
        time.sleep(0.05)


def main() -> None:
    """Serve until SIGTERM."""
    begin()
    values = parse(_PROGRAM, sys.argv[1:], _FLAGS, "gives this host's memory to a cluster")
    if mixed := check_commands():
        fail(_PROGRAM, mixed)
    child = None
    disk: DiskPlace | None = None
    try:
        until = time.monotonic() + _seconds()
        port, http_port = values.port("port"), values.port("http_port")
        master = _config.master_of(str(values["master_server_address"]))
        listen, segment = _segment(values, master, port, until)
        arguments = _arguments(values, master, listen, segment, port)
        address, _ = _config.split_address(listen, 0)
        arguments += allow_open(_PROGRAM, address)
        owner = _Owner(f"kvcove://{master}", segment)
        routes = {
            ("GET", "/health"): owner.health,
            ("GET", "/metrics"): owner.metrics,
            ("GET", "/metrics/summary"): owner.summary,
        }
        hosts = with_loopback(address)
        servers = [HttpServers(hosts, port, {**routes, ("GET", "/v1/pool"): owner.named})]
        if http_port and (values["enable_http_server"] or "http_port" in values.given):
            servers.append(HttpServers(hosts, http_port, routes))
        if (taken := _take_disk(values, master, until)) is not None:
            disk, offload = taken
            arguments += ["--disk", disk.spec, "--data", disk.data, "--disk-admit", offload.admit]
        stop = StopSignals()
        child = owner.start(arguments)
    except (OSError, RuntimeError, ValueError) as error:
        fail(_PROGRAM, str(error))
    _await_lease(owner, child, master, until, stop)
    here = "127.0.0.1" if _address.is_wildcard(address) else hosts[-1]
    if not stop.asked():
        print(
            f"{_PROGRAM}: ready: segment {segment} of {owner.pool}; thin clients: "
            f"{_config.join_address(here, servers[0].port)}",
            flush=True,
        )
    status = stop.wait(child)
    for server in servers:
        server.close()
    child.stop()
    if disk is not None:
        disk.close()
    sys.exit(status)


if __name__ == "__main__":
    main()
