# SPDX-License-Identifier: Apache-2.0
"""Launches as published guides have them: two hosts, fixed ports, flags, who gets in.

The hosts are network namespaces with a pair of virtual interfaces between them, so these tests need
root; the others do not.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import (
    MIB,
    Cluster,
    Program,
    command_path,
    free_port,
    http,
    new_store,
    own,
    setup,
    wait_until,
)

pytestmark = own("launches and who gets in")

MASTER = [sys.executable, "-m", "kvcove.mooncake.master"]
CLIENT = [sys.executable, "-m", "kvcove.mooncake.client"]


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, timeout=20)


class Host:
    """A network namespace: a host with two addresses, its own loopback, and nothing else."""

    def __init__(self, name: str, number: int, directory: Path) -> None:
        self.name = name
        self.address = f"10.213.7.{number}"
        self.address6 = f"fd00:213:7::{number}"
        self.run_dir = directory / f"run-{number}"
        self.run_dir.mkdir(mode=0o700)
        self._directory = directory
        self.programs: list[Program] = []

    def start(self, command: list[str], **environment: str) -> Program:
        environment = {
            "XDG_RUNTIME_DIR": str(self.run_dir),
            "KVCOVE_HOST_ID": self.name,  # the two share a kernel, and must not know it
            "PYTHONUNBUFFERED": "1",
            **environment,
        }
        log = self._directory / f"{self.name}-{time.monotonic_ns()}.log"
        program = Program(["ip", "netns", "exec", self.name, *command], log, **environment)
        self.programs.append(program)
        return program

    def ended(self, command: list[str], **environment: str) -> tuple[int, str]:
        """Run a command to its end; its status and what it wrote."""
        program = self.start(command, **environment)
        status = program.process.wait(60)
        self.programs.remove(program)
        return status, program.log.read_text(errors="replace")

    def python(self, code: str, **environment: str) -> Any:
        """Run code; the JSON of its last line."""
        status, said = self.ended([sys.executable, "-c", code], **environment)
        assert status == 0, said
        return json.loads(said.splitlines()[-1])

    def http(self, url: str, method: str = "GET", bearer: str = "") -> tuple[int, str]:
        code = (
            "import json, urllib.request, urllib.error\n"
            f"r = urllib.request.Request({url!r}, method={method!r})\n"
            f"b = {bearer!r}\n"
            "if b: r.add_header('Authorization', 'Bearer ' + b)\n"
            "try:\n"
            "    a = urllib.request.urlopen(r, timeout=10); print(json.dumps([a.status, a.read().decode()]))\n"
            "except urllib.error.HTTPError as e: print(json.dumps([e.code, e.read().decode()]))\n"
            "except OSError as e: print(json.dumps([0, str(e)]))\n"
        )
        status, text = self.python(code)
        return status, text


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[tuple[Host, Host]]:
    """Two hosts of one network: where the master is, and another one."""
    if os.getuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need root and ip")
    names = [f"kvcove-{os.getpid()}-{n}" for n in (1, 2)]
    made = [Host(name, n, tmp_path) for n, name in enumerate(names, start=1)]
    try:
        for name in names:
            _ip("netns", "add", name)
            _ip("-n", name, "link", "set", "lo", "up")
            # The servers' usual ports lie among those of passing connections, which hold them for a minute after their end.
            reserve = "echo 50051-50099 >/proc/sys/net/ipv4/ip_local_reserved_ports"
            _ip("netns", "exec", name, "sh", "-c", reserve)
        links = [f"kv{os.getpid()}{n}" for n in (1, 2)]
        _ip("link", "add", links[0], "type", "veth", "peer", "name", links[1])
        for host, link in zip(made, links, strict=True):
            _ip("link", "set", link, "netns", host.name)
            _ip("-n", host.name, "link", "set", link, "name", "eth0")
            _ip("-n", host.name, "address", "add", f"{host.address}/24", "dev", "eth0")
            _ip("-n", host.name, "address", "add", f"{host.address6}/64", "dev", "eth0", "nodad")
            _ip("-n", host.name, "link", "set", "eth0", "up")
        yield made[0], made[1]
        for program in (program for host in made for program in host.programs):
            assert program.stop() in (0, -15), program.log.read_text(errors="replace")
    finally:
        for program in (program for host in made for program in host.programs):
            if program.process.poll() is None:
                program.kill()
        for name in names:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)


def start_master(host: Host, *flags: str, **environment: str) -> Program:
    program = host.start([*MASTER, "-rpc_port=50051", *flags], **environment)
    program.wait_for("serving at")
    return program


def start_client(host: Host, *flags: str, **environment: str) -> tuple[Program, str]:
    """The program and its segment, when it is ready."""
    program = host.start([*CLIENT, "-global_segment_size=64MB", *flags], **environment)
    program.wait_for("ready: segment")
    found = re.search(r"ready: segment (\S+) of", program.log.read_text())
    assert found is not None
    return program, found[1]


PUT_AND_TELL = """
import json, sys
from mooncake.store import MooncakeDistributedStore, ReplicateConfig
s = MooncakeDistributedStore()
assert s.setup({name!r}, "P2PHANDSHAKE", {memory}, 16 << 20, "tcp", "", {master!r}) == 0
c = ReplicateConfig()
c.preferred_segment = {segment!r}
put = s.put({key!r}, b"value of " + {key!r}.encode(), c)
where = [d.get_memory_descriptor().buffer_descriptor.transport_endpoint for d in s.get_replica_desc({key!r})]
print(json.dumps([put, where, s.get_hostname()]))
s.close()
"""

GET = """
import json
from mooncake.store import MooncakeDistributedStore
s = MooncakeDistributedStore()
assert s.setup("localhost", "P2PHANDSHAKE", 0, 16 << 20, "tcp", "", {master!r}) == 0
print(json.dumps([s.get(key).decode() for key in {keys!r}]))
s.close()
"""


def put_and_tell(host: Host, master: str, key: str, segment: str = "", **more: Any) -> Any:
    code = PUT_AND_TELL.format(
        name=more.pop("name", "localhost"),
        memory=more.pop("memory", 0),
        master=master,
        segment=segment,
        key=key,
    )
    return host.python(code, **more)


# ---- hosts


def test_a_put_on_one_host_is_a_get_on_the_other(hosts: tuple[Host, Host]) -> None:
    """As the SLURM template starts it, with the one flag that says who may come."""
    head, node = hosts
    start_master(
        head,
        "-rpc_address=0.0.0.0",
        "-enable_http_metadata_server",
        "-http_metadata_server_host=0.0.0.0",
        "-default_kv_lease_ttl=3600000",
    )
    master = f"{head.address}:50051"
    metadata = f"-metadata_server=http://{head.address}:8080/metadata"
    common = [f"-master_server_address={master}", metadata, "-protocol=rdma"]
    _, first = start_client(head, f"-host={head.address}", "-port=50052", *common)
    _, second = start_client(node, f"-host={node.address}:50053", "-port=50052", *common)
    # Both names could be written down before anything ran.
    assert (first, second) == (f"{head.address}:12300", f"{node.address}:50053")
    assert put_and_tell(head, master, "k1", second)[:2] == [0, [second]]
    assert put_and_tell(node, master, "k2", first)[:2] == [0, [first]]
    for host in hosts:
        got = host.python(GET.format(master=master, keys=["k1", "k2"]))
        assert got == ["value of k1", "value of k2"]
    # Thin clients look on this host, launchers at its address.
    for address in ("127.0.0.1", node.address):
        assert node.http(f"http://{address}:50052/health")[0] == 200
    pool = json.loads(head.http(f"http://{node.address}:50052/v1/pool")[1])
    assert pool == {"pool": f"kvcove://{master}", "segment": second}
    assert node.http(f"http://{head.address}:8080/health")[0] == 200


def test_away_from_the_master_the_route_names_this_host(hosts: tuple[Host, Host]) -> None:
    head, node = hosts
    start_master(head, "-rpc_address=0.0.0.0")
    master = f"{head.address}:50051"
    program, segment = start_client(node, f"-master_server_address={master}")
    assert segment == f"{node.address}:12300"
    assert "the address of the route to the master" in program.log.read_text()
    # All interfaces have no name: that of the route stands for them.
    _, other = start_client(
        node, f"-master_server_address={master}", "-host=0.0.0.0", "-port=50153"
    )
    assert other == f"{node.address}:12401"
    assert put_and_tell(head, master, "k", segment)[:2] == [0, [segment]]
    assert put_and_tell(head, master, "o", other)[:2] == [0, [other]]
    # A port that is in use gives way to the next one, and that is said.
    late, next_one = start_client(node, f"-master_server_address={master}", "-port=52053")
    assert next_one == f"{node.address}:12301"
    assert "port 12300 is in use, so data goes through 12301" in late.log.read_text()
    # The same for a store with memory of its own, by whatever name of loopback.
    for name in ("localhost", "127.0.0.1", "0.0.0.0"):
        put, where, hostname = put_and_tell(node, master, name, "", memory=64 * MIB, name=name)
        host, _, port = hostname.rpartition(":")
        assert (put, host) == (0, node.address), (name, where)
        assert 12300 <= int(port) <= 14300


def test_ipv6_addresses_stand_in_brackets(hosts: tuple[Host, Host]) -> None:
    head, node = hosts
    start_master(head, "-rpc_address=::")
    master = f"[{head.address6}]:50051"
    _, named = start_client(
        node, f"-master_server_address={master}", f"-host=[{node.address6}]:50053"
    )
    _, found = start_client(node, f"-master_server_address={master}", "-port=50054")
    assert (named, found) == (f"[{node.address6}]:50053", f"[{node.address6}]:12302")
    assert put_and_tell(head, master, "k", named)[:2] == [0, [named]]
    assert node.python(GET.format(master=master, keys=["k"])) == ["value of k"]


# ---- who gets in


def connects(host: Host, address: str, port: int) -> bool:
    code = f"import socket; print(int(socket.socket().connect_ex(({address!r}, {port})) == 0))"
    return bool(host.python(code))


def test_without_being_told_only_this_host_gets_in(hosts: tuple[Host, Host]) -> None:
    head, node = hosts
    program = start_master(head, "-enable_http_metadata_server")
    for port in (50051, 9003, 8080):
        assert connects(head, "127.0.0.1", port)
        assert not connects(node, head.address, port)
        assert not connects(head, head.address, port)
    (line,) = [x for x in program.log.read_text().splitlines() if "only this host gets in" in x]
    for way in ("KVCOVE_CREDENTIALS=", "-rpc_address=", "KVCOVE_INSECURE=1"):
        assert way in line


@pytest.mark.parametrize("said", ["insecure", "interface", "address"])
def test_who_says_so_lets_other_hosts_in(hosts: tuple[Host, Host], said: str) -> None:
    head, node = hosts
    flags = {"insecure": [], "interface": ["-rpc_interface=eth0"]}.get(
        said, [f"-rpc_address={head.address}"]
    )
    environment = {"KVCOVE_INSECURE": "1"} if said == "insecure" else {}
    program = start_master(head, "-enable_http_metadata_server", *flags, **environment)
    log = program.log.read_text()
    assert "without credentials: any client may do everything" in log
    assert "only this host gets in" not in log
    assert connects(head, "127.0.0.1", 50051) == (said == "insecure")
    _, segment = start_client(node, f"-master_server_address={head.address}:50051")
    assert connects(node, head.address, 8080)
    # A scraper on another host, and a script on this one.
    for host, address in ((node, head.address), (head, "127.0.0.1")):
        status, metrics = host.http(f"http://{address}:9003/metrics")
        assert status == 200
        assert f'segment_total_capacity_bytes{{segment="{segment}"}}' in metrics


def job_of(directory: Path, rank: int, job: int = 4711) -> dict[str, str]:
    """What a program on a node of a job finds, as prime-rl's template starts it."""
    node = directory / "mooncake" / f"node_{rank}"
    node.mkdir(parents=True, exist_ok=True)
    return {"SLURM_JOB_ID": str(job), "MOONCAKE_CONFIG_PATH": str(node / "config.json")}


JOB = [
    "-enable_http_metadata_server",
    "-http_metadata_server_host=0.0.0.0",
    "-http_metadata_server_port=8080",
]
STRANGER = """
import json
from mooncake.store import MooncakeDistributedStore
s = MooncakeDistributedStore()
print(json.dumps(s.setup("localhost", "P2PHANDSHAKE", 0, 16 << 20, "rdma", "", {master!r})))
"""


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_job_of_slurm_lets_its_own_programs_in_and_nobody_else(
    hosts: tuple[Host, Host], tmp_path: Path, nodes: int
) -> None:
    """Nothing says where to listen and who gets in, and the template waits for open ports."""
    head, node = hosts
    output = tmp_path / "a run"
    begin = time.monotonic()
    program = start_master(head, *JOB, "-default_kv_lease_ttl=3600000", **job_of(output, 0))
    master = f"{head.address}:50051"
    for port in (50051, 8080):
        assert connects(head, head.address, port)
        assert connects(node, head.address, port)
    made = output / "mooncake" / "kvcove-4711-0"
    assert [oct(path.stat().st_mode & 0o777) for path in (made, *sorted(made.iterdir()))] == [
        "0o700",
        *["0o600"] * 3,
    ]
    metadata = f"-metadata_server=http://{head.address}:8080/metadata"
    common = [f"-master_server_address={master}", metadata, "-protocol=rdma", "-port=50052"]
    for rank, host in enumerate(hosts[:nodes]):
        client, _ = start_client(host, f"-host={host.address}", *common, **job_of(output, rank))
        assert "without credentials" not in client.log.read_text()
    assert put_and_tell(head, master, "k", **job_of(output, 0))[0] == 0
    got = hosts[nodes - 1].python(
        GET.format(master=master, keys=["k"]), **job_of(output, nodes - 1)
    )
    assert got == ["value of k"]
    assert time.monotonic() - begin < 60  # before, two waits of 60 s and more for a port
    for strange in ({}, job_of(output, 0, 4712), {"SLURM_JOB_ID": "4711"}):
        assert node.python(STRANGER.format(master=master), **strange) < 0
    # Another master of this job finds the port in use; what the first one has made stays.
    status, _ = head.ended([*MASTER, "-rpc_port=50051", *JOB], **job_of(output, 0))
    assert status == 2
    assert head.python(GET.format(master=master, keys=["k"]), **job_of(output, 0)) == got
    assert program.stop() == 0
    head.programs.remove(program)
    assert not made.exists()


@pytest.mark.parametrize(
    "said", ["KVCOVE_INSECURE", "-rpc_address", "a directory in the way", "a directory of others"]
)
def test_a_job_of_slurm_that_says_who_gets_in_has_no_credentials_of_its_own(
    hosts: tuple[Host, Host], tmp_path: Path, said: str
) -> None:
    head, node = hosts
    environment = job_of(tmp_path, 0)
    flags = [*JOB]
    if said == "KVCOVE_INSECURE":
        environment[said] = "1"
    elif said == "-rpc_address":
        flags.append(f"-rpc_address={head.address}")
    elif said == "a directory in the way":
        (tmp_path / "mooncake" / "kvcove-4711-0").write_text("")
    else:  # with credentials that somebody else knows
        Keys(tmp_path)
        theirs = tmp_path / "mooncake" / "kvcove-4711-0"
        theirs.mkdir(mode=0o755)
        shutil.copy(tmp_path / "servers.toml", theirs)
        shutil.copy(tmp_path / "acme.toml", theirs / "job.toml")
    log = start_master(head, *flags, **environment).log.read_text()
    assert connects(node, head.address, 50051) == (not said.startswith("a directory"))
    assert ("no credentials for this job: " in log) == said.startswith("a directory")
    assert ("only this host gets in" in log) == said.startswith("a directory")


def test_an_interface_that_is_not_there(hosts: tuple[Host, Host]) -> None:
    status, said = hosts[0].ended([*MASTER, "-rpc_interface=eth7"])
    assert status == 2
    assert "there is no interface 'eth7'; there are" in said
    assert "eth0" in said


class Keys:
    """Credentials of a cluster with one tenant, and certificates where they are wanted."""

    def __init__(self, directory: Path, *hosts: Host) -> None:
        self.servers = directory / "servers.toml"
        self._directory = directory
        for tenant, scopes in (("acme", "read,write,reset"), ("cluster", "owner,admin")):
            self._token(tenant, scopes)
        self.server = {"KVCOVE_CREDENTIALS": str(self.servers)}
        self.engine = {"KVCOVE_TOKEN": str(directory / "acme.toml")}
        bearer = [command_path(), "token", "--bearer", str(directory / "cluster.toml")]
        self.bearer = subprocess.run(
            bearer, check=True, capture_output=True, text=True, timeout=20
        ).stdout.strip()
        self.tls = {host.name: self._certificate(host) for host in hosts}

    def _token(self, tenant: str, scopes: str) -> None:
        command = [command_path(), "token", tenant, "--scopes", scopes]
        command += ["--credentials", str(self.servers)]
        command += ["--output", str(self._directory / f"{tenant}.toml")]
        subprocess.run(command, check=True, capture_output=True, timeout=20)

    def _openssl(self, *words: str) -> None:
        subprocess.run(
            ["openssl", *words], check=True, capture_output=True, timeout=60, cwd=self._directory
        )

    def _certificate(self, host: Host) -> dict[str, str]:
        new = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
        if not (self._directory / "ca.pem").exists():
            self._openssl(
                "req", "-x509", *new, "-subj", "/CN=ca", "-keyout", "ca.key", "-out", "ca.pem"
            )
        name = host.name
        self._openssl(
            *("req", *new[:-2], "-subj", f"/CN={name}", "-keyout", f"{name}.key"),
            *("-out", f"{name}.csr"),
        )
        (self._directory / f"{name}.ext").write_text(f"subjectAltName=IP:{host.address}\n")
        self._openssl(
            *("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key"),
            *("-CAcreateserial", "-days", "2", "-extfile", f"{name}.ext", "-out", f"{name}.pem"),
        )
        (self._directory / f"{name}.key").chmod(0o600)
        return {
            "KVCOVE_TLS_AUTHORITY": str(self._directory / "ca.pem"),
            "KVCOVE_TLS_CERTIFICATE": str(self._directory / f"{name}.pem"),
            "KVCOVE_TLS_KEY": str(self._directory / f"{name}.key"),
        }


def test_with_credentials_other_hosts_get_in_and_strangers_do_not(
    hosts: tuple[Host, Host], tmp_path: Path
) -> None:
    head, node = hosts
    keys = Keys(tmp_path)
    program = start_master(head, "-enable_http_metadata_server", **keys.server)
    assert connects(head, "127.0.0.1", 8080)
    assert not connects(node, head.address, 8080)  # it knows no credentials
    assert "any client may do everything" not in program.log.read_text()
    master = f"{head.address}:50051"
    _, segment = start_client(node, f"-master_server_address={master}", **keys.server)
    assert put_and_tell(head, master, "k", segment, **keys.engine)[:2] == [0, [segment]]
    assert node.python(GET.format(master=master, keys=["k"]), **keys.engine) == ["value of k"]
    refused = head.python(
        "import json\n"
        "from mooncake.store import MooncakeDistributedStore\n"
        "s = MooncakeDistributedStore()\n"
        f"print(json.dumps(s.setup('localhost', 'P2P', 0, 1 << 20, 'tcp', '', {master!r})))\n"
    )
    assert refused == -600
    # What only tells that it runs is open; all else asks for the bearer, on this host, too.
    for host, address in ((node, head.address), (head, "127.0.0.1")):
        url = f"http://{address}:9003"
        assert host.http(f"{url}/health")[0] == 200
        for method, path in (
            ("GET", "/metrics"),
            ("GET", "/get_all_keys"),
            ("GET", "/get_all_segments"),
            ("POST", "/api/v1/remove_all?force=true"),
            ("POST", "/v1/reset"),
        ):
            for bearer in ("", "acme.00", keys.bearer[:-1]):
                status, said = host.http(url + path, method, bearer)
                assert status == 401, (path, said)
                assert "kvcove token --bearer" in said
        status, metrics = host.http(f"{url}/metrics", "GET", keys.bearer)
        assert status == 200
        assert segment in metrics
        assert segment in host.http(f"{url}/get_all_segments", "GET", keys.bearer)[1]
    # So does an owner's own: it has no tenant's metrics for strangers.
    _, other = start_client(
        node,
        *(f"-master_server_address={master}", "-port=50152", "-enable_http_server"),
        **keys.server,
    )
    assert other.startswith(node.address)
    assert head.http(f"http://{node.address}:9300/health")[0] == 200
    assert head.http(f"http://{node.address}:9300/metrics")[0] == 401
    status, metrics = head.http(f"http://{node.address}:9300/metrics", "GET", keys.bearer)
    assert status == 200
    assert "kvcove_owner_capacity_bytes" in metrics


def test_with_certificates_everything_is_tls(hosts: tuple[Host, Host], tmp_path: Path) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    head, node = hosts
    keys = Keys(tmp_path, head, node)
    start_master(head, **keys.server, **keys.tls[head.name])
    master = f"{head.address}:50051"
    there = keys.tls[node.name]
    _, segment = start_client(node, f"-master_server_address={master}", **keys.server, **there)
    here = {**keys.engine, **keys.tls[head.name]}
    assert put_and_tell(head, master, "k", segment, **here)[:2] == [0, [segment]]
    # An engine that gives memory is a server, too.
    own = {**keys.server, **keys.engine, **there}
    put, where, hostname = put_and_tell(node, master, "own", "", memory=64 * MIB, **own)
    assert put == 0
    assert hostname.startswith(node.address), where
    # Without a certificate nobody gets as far as its token.
    status, said = node.ended(
        [sys.executable, "-c", GET.format(master=master, keys=["k"])],
        **keys.engine,
        KVCOVE_SETUP_TIMEOUT_MS="500",
    )
    assert status != 0, said


def test_a_stores_own_metrics_are_scraped_from_other_hosts(hosts: tuple[Host, Host]) -> None:
    head, node = hosts
    start_master(head, "-rpc_address=0.0.0.0")
    code = (
        "import sys, time\n"
        "from mooncake.store import MooncakeDistributedStore\n"
        "s = MooncakeDistributedStore()\n"
        "assert s.setup('localhost', 'P2P', 64 << 20, 1 << 20, 'tcp', '',"
        f" '{head.address}:50051', enable_client_http_server=True) == 0\n"
        "print('set up', flush=True); time.sleep(60)\n"
    )
    node.start([sys.executable, "-c", code]).wait_for("set up")
    for host, address in ((head, node.address), (node, "127.0.0.1")):
        assert host.http(f"http://{address}:9300/health")[0] == 200
        assert "kvcove_pool_capacity_bytes" in host.http(f"http://{address}:9300/metrics")[1]


# ---- ready


Start = Callable[..., Program]


@pytest.fixture
def on_loopback(tmp_path: Path) -> Iterator[Start]:
    """Start programs on this host; none of them outlives a test that fails."""
    programs: list[Program] = []

    def start(name: str, *command: str, **environment: str) -> Program:
        given = {"XDG_RUNTIME_DIR": str(tmp_path / "run"), "PYTHONUNBUFFERED": "1", **environment}
        log = tmp_path / f"{name}-{len(programs)}.log"
        programs.append(Program(list(command), log, **given))
        return programs[-1]

    yield start
    for program in programs:
        if program.process.poll() is None:
            program.stop()


def test_healthy_is_who_holds_a_lease(on_loopback: Start) -> None:
    rpc, admin, port, own = (free_port() for _ in range(4))

    def master() -> Program:
        program = on_loopback(
            *("master", *MASTER),
            *(f"-rpc_port={rpc}", f"-metrics_port={admin}"),
        )
        program.wait_for("serving at")
        return program

    client = on_loopback(
        *("client", *CLIENT, f"-master_server_address=127.0.0.1:{rpc}"),
        *(f"-port={port}", "-global_segment_size=64MB"),
        *("-enable_http_server", f"-http_port={own}"),
    )

    def health(of: int = port) -> tuple[int, Any]:
        try:
            return http(f"http://127.0.0.1:{of}/health")
        except OSError:
            return 0, None

    assert wait_until(lambda: health()[0] == 503, 30)
    assert wait_until(lambda: health()[1] == {"status": NO_LEASE, "code": 2}, 30)
    assert health(own)[0] == 503
    assert "ready" not in client.log.read_text()
    first = master()
    assert wait_until(lambda: health() == (200, {"status": "healthy", "code": 0}), 30)
    client.wait_for("ready: segment 127.0.0.1:")
    # Healthy is known to the master, at once.
    segment = json.loads(json.dumps(http(f"http://127.0.0.1:{port}/v1/pool")[1]))["segment"]
    listed = http(f"http://127.0.0.1:{admin}/get_all_segments")[1].decode()
    assert listed == f"{segment}\n"
    assert health(own)[0] == 200
    assert f"segment={segment}" in http(f"http://127.0.0.1:{own}/metrics/summary")[1].decode()
    assert b"kvcove_owner_capacity_bytes" in http(f"http://127.0.0.1:{own}/metrics")[1]
    first.kill()
    assert wait_until(lambda: health()[0] == 503, 30)
    second = master()
    assert wait_until(lambda: health()[0] == 200, 30)
    assert client.stop() == 0
    assert second.stop() == 0


NO_LEASE = "no lease: the master does not answer"


def test_a_proxy_of_the_environment_is_not_asked(on_loopback: Start, run_dir: Path) -> None:
    rpc, admin, port = free_port(), free_port(), free_port()
    proxy = f"http://127.0.0.1:{free_port()}"  # where nobody answers
    elsewhere = {"http_proxy": proxy, "HTTP_PROXY": proxy, "no_proxy": "", "NO_PROXY": ""}
    master = on_loopback(
        *("master", *MASTER, f"-rpc_port={rpc}", f"-metrics_port={admin}"), **elsewhere
    )
    master.wait_for("serving at")
    client = on_loopback(
        *("client", *CLIENT, f"-master_server_address=127.0.0.1:{rpc}"),
        *(f"-port={port}", "-global_segment_size=64MB"),
        **elsewhere,
    )
    client.wait_for("ready: segment")
    assert http(f"http://127.0.0.1:{admin}/get_all_segments")[0] == 200
    code = (
        "from mooncake.store import MooncakeDistributedStore\n"
        "s = MooncakeDistributedStore()\n"
        f"assert s.setup_dummy(1 << 20, 1 << 20, '127.0.0.1:{port}') == 0\n"
        "assert s.put('k', b'v') == 0 and s.get('k') == b'v'\n"
    )
    done = ended(sys.executable, "-c", code, **elsewhere)
    assert done.returncode == 0, done.stderr
    assert client.stop() == 0
    assert master.stop() == 0


def test_waiting_for_a_lease_has_an_end(on_loopback: Start) -> None:
    rpc = free_port()
    began = time.monotonic()
    client = on_loopback(
        *("client", *CLIENT, f"-master_server_address=127.0.0.1:{rpc}"),
        *(f"-port={free_port()}", "-global_segment_size=64MB"),
        KVCOVE_READY_TIMEOUT="2",
    )
    assert client.process.wait(60) == 2
    assert time.monotonic() - began > 2
    said = client.log.read_text()
    assert "ready" not in said
    told = said[said.index("mooncake_client: the owner has no lease") :]
    assert f"the master at 127.0.0.1:{rpc} has not answered in time" in told
    assert re.search(r"\n  .*cannot be reached", told), told


def test_an_owner_that_ends_says_why(on_loopback: Start) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        client = on_loopback(
            *("client", *CLIENT, f"-host=127.0.0.1:{port}", f"-port={free_port()}"),
            "-global_segment_size=64MB",
        )
        assert client.process.wait(60) == 2
    said = client.log.read_text()
    told = said[said.index("kvcove did not start; the end of its log:") :]
    assert f"listening on 127.0.0.1:{port}: Address already in use" in told


def test_a_master_without_a_name_is_waited_for(run_dir: Path) -> None:
    began = time.monotonic()
    said = ended(
        *(*CLIENT, "-master_server_address=no-such-master.invalid", "-global_segment_size=64MB"),
        KVCOVE_READY_TIMEOUT="1",
    )
    assert said.returncode == 2
    assert time.monotonic() - began > 1
    lines = [
        x for x in said.stderr.splitlines() if "'no-such-master.invalid' is not known here" in x
    ]
    assert len(lines) == 2
    assert "waiting" in lines[0]


# ---- flags


def ended(*command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        list(command),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={**os.environ, **environment},
    )


@pytest.mark.parametrize(
    ("host", "says"),
    [
        ("10.0.0.1:", "'' is no port"),
        ("10.0.0.1:x", "'x' is no port"),
        ("10.0.0.1:70000", "'70000' is no port"),
        (":50053", "the host in front of the colon is missing"),
        ("[fd00::1", "is not [IPv6 ADDRESS]:PORT"),
        ("[fd00::1]50053", "is not [IPv6 ADDRESS]:PORT"),
        ("[10.0.0.1]:50053", "is not [IPv6 ADDRESS]:PORT"),
        ("a:b:50053", "is neither HOST:PORT nor an IPv6 address"),
        ("127.0.0.1:50052", "give two ports"),
        ("no-such-host.invalid:50053", "'no-such-host.invalid' is not known here"),
    ],
)
def test_a_host_that_is_none(host: str, says: str, run_dir: Path) -> None:
    said = ended(*CLIENT, f"-host={host}")
    assert said.returncode == 2
    assert says in said.stderr
    assert "Traceback" not in said.stderr


def test_a_port_that_is_none(run_dir: Path) -> None:
    for command, flag in ((CLIENT, "-port"), (CLIENT, "-http_port"), (MASTER, "-metrics_port")):
        said = ended(*command, f"{flag}=70000")
        assert said.returncode == 2
        assert f"{flag}=70000: a port is wanted" in said.stderr


def test_flags_of_published_guides(
    on_loopback: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES", str(64 * MIB))
    rpc, admin = free_port(), free_port()
    master = on_loopback(
        *("master", *MASTER, f"--rpc_port={rpc}", f"--metrics_port={admin}"),
        *("--v=1", "--logtostderr", "--colorlogtostderr", "--minloglevel=1", "--log_dir=/tmp"),
        *("--rpc_thread_num=8", "--eviction_high_watermark_ratio=0.95", "--enable_ha=false"),
        *("--enable_oplog=false", "--etcd_endpoints=", "--enable_metric_reporting=true"),
        *("-enable_offload=true", f"-root_fs_dir={tmp_path / 'kv'}"),
    )
    master.wait_for("serving at")
    client = on_loopback(
        *("client", *CLIENT, f"--master_server_address=127.0.0.1:{rpc}"),
        *(f"--port={free_port()}", "--host=0.0.0.0:0", "--global_segment_size=64MB", "--v=1"),
        *("--metadata_server=P2PHANDSHAKE", "--device_names=mlx5_0", "--protocol=rdma"),
        *("--logtostderr=1", "--minloglevel=2", "--log_dir=/var/log", "--threads=8"),
        *("--enable_offload=true", "--enable_http_server=true", f"--http_port={free_port()}"),
    )
    client.wait_for("ready: segment")
    said = client.log.read_text()
    assert f"{tmp_path / 'kv' / 'kvcove-0' / 'kvcove.disk'}: 64MiB are allocated for it" in said
    assert "-protocol: data goes over TCP" in said
    assert "-logtostderr: taken" not in said  # it is what happens
    assert client.stop() == 0
    assert master.stop() == 0


@pytest.mark.parametrize("command", [MASTER, CLIENT], ids=["master", "client"])
def test_versions_are_told(command: list[str]) -> None:
    said = ended(*command, "--version")
    assert (said.returncode, said.stderr) == (0, "")
    assert re.fullmatch(
        r"mooncake_(master|client) of kvcove [0-9.]+ \(protocol .*\)\n", said.stdout
    )


@pytest.mark.parametrize(
    ("flag", "says"),
    [
        ("--enable_ha=true", "-etcd_endpoints is missing"),
        ("--fromenv=rpc_port", "-fromenv=rpc_port: $FLAGS_rpc_port is not set"),
        ("--v=high", "a number is wanted"),
    ],
)
def test_flags_that_are_refused_say_why(flag: str, says: str, run_dir: Path) -> None:
    said = ended(*MASTER, flag)
    assert said.returncode == 2
    assert says in said.stderr


FLAGS = json.loads((Path(__file__).parents[1] / "original_flags.json").read_text())


@pytest.mark.parametrize("program", sorted(FLAGS))
def test_flags_of_both_versions_of_the_original_are_known(program: str) -> None:
    from kvcove.mooncake import _flags, client, master

    ours = {"mooncake_master": master, "mooncake_client": client}[program]._FLAGS
    shown = {*_flags._HELP, "version"}
    for kind, is_switch in (("switch", True), ("value", False)):
        wrong = [
            name
            for name in FLAGS[program][kind]
            if name not in shown
            and (name not in ours or isinstance(ours[name].default, bool) != is_switch)
        ]
        assert wrong == [], kind


def test_no_flags_are_the_defaults() -> None:
    from kvcove.mooncake import _flags, client, master

    for ours in (master._FLAGS, client._FLAGS):
        values = _flags.parse("program", [], ours, "")
        assert values == {name: flag.default for name, flag in ours.items()}
        assert values.given == set()


def test_features_that_are_not_here_are_taken_and_say_what_is(on_loopback: Start) -> None:
    rpc = free_port()
    taken = (
        *("enable_oplog", "enable_oplog_snapshot", "enable_cxl", "enable_kv_events"),
        *("enable_multi_tenants", "enable_snapshot", "enable_snapshot_restore"),
    )
    master = on_loopback(
        *("master", *MASTER, f"--rpc_port={rpc}", "--metrics_port=0"),
        *("--dynamic_replication_mode=on", *(f"--{name}=true" for name in taken)),
    )
    master.wait_for(f"serving at 127.0.0.1:{rpc}")
    said = master.log.read_text()
    for name in (*taken, "dynamic_replication_mode"):
        assert said.count(f"mooncake_master: warning: -{name}: ") == 1, name
    stores = [new_store() for _ in range(2)]
    for store, tenant in zip(stores, "ab", strict=True):
        assert setup(store, f"127.0.0.1:{rpc}", tenant_id=tenant) == 0
    assert stores[0].put("k", b"a") == 0
    assert (stores[0].get("k"), stores[1].get("k")) == (b"a", b"")
    for store in stores:
        assert store.close() == 0
    assert master.stop() == 0


def test_a_switch_takes_nothing_from_the_flag_behind_it(on_loopback: Start) -> None:
    rpc = free_port()
    master = on_loopback(
        *("master", *MASTER, "--allow_evict_soft_pinned_objects", f"--port={rpc}"),
        *("--metrics_port=0",),
    )
    master.wait_for(f"serving at 127.0.0.1:{rpc}")
    assert master.stop() == 0


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (
            ["--rpc_port", "--metrics_port=0"],
            "-rpc_port wants a value, and --metrics_port=0 is another flag",
        ),
        (["-cluster_id", "-metrics_port=0"], "-cluster_id=-metrics_port=0 if it is the value"),
        (["-rpc_port"], "-rpc_port wants a value: -rpc_port=VALUE"),
        (["-of_tomorrow=1"], "KVCOVE_MOONCAKE_LENIENT=1"),
        (["-undefok=x,y", "-z=1"], "unknown flag -z"),
        (["-weight_management_oplog_capability_confirmed"], "manages no weights"),
    ],
)
def test_a_flag_that_lacks_its_value_or_is_not_known_is_refused(
    flags: list[str], says: str, run_dir: Path
) -> None:
    said = ended(*MASTER, *flags, KVCOVE_MOONCAKE_LENIENT="")
    assert said.returncode == 2
    assert says in said.stderr


def test_flags_of_a_newer_original_are_taken_on_request(
    on_loopback: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVCOVE_MOONCAKE_LENIENT", "1")
    rpc = free_port()
    master = on_loopback(
        *("master", *MASTER, "-of_tomorrow", "3", "--noother", "-undefok", "named"),
        *("-named=4", f"-rpc_port={rpc}", "-metrics_port=0"),
    )
    master.wait_for(f"serving at 127.0.0.1:{rpc}")
    said = master.log.read_text()
    assert "warning: unknown flag -of_tomorrow is ignored" in said
    assert "-noother is ignored" in said
    assert "-named" not in said
    assert master.stop() == 0


@pytest.mark.parametrize("form", ["json", "yaml"])
def test_a_file_of_flags(tmp_path: Path, on_loopback: Start, form: str) -> None:
    import kvcove

    rpc, admin, metadata = free_port(), free_port(), free_port()
    flags = {
        "rpc_port": 1,  # the command line goes over it
        "metrics_port": admin,
        "rpc_address": "127.0.0.1",
        "enable_http_metadata_server": True,
        "http_metadata_server_port": metadata,
        "default_kv_lease_ttl": "7s",
        "local_hostname": "10.0.0.1:50051",  # a launcher's own key
    }
    path = tmp_path / f"master.{form}"
    yaml = "# flags\n---\n" + "".join(f"{k}: {json.dumps(v)}  # one\n" for k, v in flags.items())
    path.write_text(json.dumps(flags) if form == "json" else yaml)
    master = on_loopback("master", *MASTER, f"--config_path={path}", f"--rpc_port={rpc}")
    master.wait_for(f"serving at 127.0.0.1:{rpc}")
    assert "unknown key local_hostname" in master.log.read_text()
    assert kvcove.open(f"kvcove://127.0.0.1:{rpc}").settings()[0] == 7
    assert http(f"http://127.0.0.1:{admin}/health")[0] == 200
    assert http(f"http://127.0.0.1:{metadata}/health")[0] == 200
    assert master.stop() == 0


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("rpc_port 50051\n", "line 1: 'name: value' is wanted"),
        ("rpc:\n  port: 50051\n", "line 2: 'name: value' is wanted"),
        ('{"rpc_port": [1]}', "rpc_port: a number, a text, true or false is wanted"),
        ('{"rpc_port": 1', "Expecting"),
        ("enable_ha: true\netcd_endpoints: h1:2379;h2:2379\n", "an address of this host is wanted"),
        ("enable_http_metadata_server: maybe\n", "true or false is wanted"),
        (None, "No such file"),
    ],
)
def test_a_file_that_holds_no_flags(
    tmp_path: Path, run_dir: Path, content: str | None, says: str
) -> None:
    path = tmp_path / "master.conf"
    if content is not None:
        path.write_text(content)
    said = ended(*MASTER, f"--config_path={path}")
    assert said.returncode == 2
    assert says in said.stderr
    assert "Traceback" not in said.stderr


def test_a_flag_file_counts_in_its_place(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from kvcove.mooncake import _flags, master

    one, two, three = (tmp_path / f"{name}.flags" for name in ("one", "two", "three"))
    one.write_text(
        "# a comment\n\n  --rpc_port=1\n-metrics_port=2  \n--enable_metric_reporting\n"
        f"--noenable_http_metadata_server\n--flagfile={two}\n--rpc_thread_num=3\n--of_tomorrow=4\n"
        "mooncake_client other\n--rpc_port=5\n*_master\n--rpc_address=127.0.0.1\n"
    )
    two.write_text("--rpc_thread_num=6\n--http_metadata_server_port=7\n--default_kv_lease_ttl=8\n")
    three.write_text("--metrics_port=9")
    values = _flags.parse(
        "mooncake_master",
        [
            *("--metrics_port=10", "--default_kv_lease_ttl=11", f"--flagfile={one},{three}"),
            *("--http_metadata_server_port=12",),
        ],
        master._FLAGS,
        "",
    )
    got = {name: values[name] for name in values.given}
    assert got == {
        "rpc_port": "1",  # the later line is for other programs
        "metrics_port": "9",  # later than the command line's and than the first file's
        "enable_metric_reporting": True,
        "enable_http_metadata_server": False,
        "rpc_thread_num": "3",  # later than the nested file's
        "default_kv_lease_ttl": "8",
        "rpc_address": "127.0.0.1",
        "http_metadata_server_port": "12",  # the command line's is later
    }
    said = capsys.readouterr().err
    assert f"{one}:9: warning: unknown flag -of_tomorrow is ignored" in said


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "-flagfile={path}: [Errno 2] No such file"),
        ("\n--rpc_port 50051\n", "{path}:2: -name=value is wanted, not '--rpc_port 50051'"),
        ("--rpc_port\n", "{path}:1: -rpc_port wants a value"),
        ("--enable_ha=maybe\n", "{path}:1: -enable_ha=maybe: true or false is wanted"),
        ("--flagfile={path}\n", "{path}:1: -flagfile={path}: the file names itself"),
        ("--flagfile={path}.2\n", "{path}:1: -flagfile={path}.2: [Errno 2] No such file"),
        ("--fromenv=rpc_port\n", "{path}:1: -fromenv=rpc_port: $FLAGS_rpc_port is not set"),
    ],
)
def test_a_flag_file_that_is_wrong_says_where(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str | None, says: str
) -> None:
    from kvcove.mooncake import _flags, master

    path = tmp_path / "master.flags"
    if content is not None:
        path.write_text(content.format(path=path))
    with pytest.raises(SystemExit) as ended:
        _flags.parse("mooncake_master", [f"--flagfile={path}"], master._FLAGS, "")
    assert ended.value.code == 2
    assert says.format(path=path) in capsys.readouterr().err


def test_flags_of_the_environment_count_in_their_place(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from kvcove.mooncake import _flags, master

    monkeypatch.setenv("FLAGS_rpc_port", "1")
    monkeypatch.setenv("FLAGS_metrics_port", "2")
    monkeypatch.setenv("FLAGS_enable_metric_reporting", "false")
    values = _flags.parse(
        "mooncake_master",
        [
            *("--rpc_port=3", "--fromenv=rpc_port,enable-metric-reporting"),
            *("--tryfromenv", "metrics_port,rpc_thread_num", "--metrics_port=4"),
        ],
        master._FLAGS,
        "",
    )
    assert {name: values[name] for name in values.given} == {
        "rpc_port": "1",  # the environment's is later
        "enable_metric_reporting": False,
        "metrics_port": "4",  # the command line's is later
    }
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("flag", "says"),
    [
        ("--fromenv=enable_ha", "$FLAGS_enable_ha: -enable_ha=maybe: true or false is wanted"),
        ("--tryfromenv=tryfromenv", "a flag of the environment names no others of it"),
        ("--tryfromenv=rpc_prot", "unknown flag -rpc_prot; did you mean -rpc_port?"),
    ],
)
def test_a_flag_of_the_environment_that_is_wrong_says_where(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], flag: str, says: str
) -> None:
    from kvcove.mooncake import _flags, master

    monkeypatch.setenv("FLAGS_enable_ha", "maybe")
    with pytest.raises(SystemExit) as ended:
        _flags.parse("mooncake_master", [flag], master._FLAGS, "")
    assert ended.value.code == 2
    assert says in capsys.readouterr().err


# ---- what a host is called


@pytest.mark.parametrize(
    ("host", "route", "listen", "advertise"),
    [
        ("localhost", "127.0.0.1", "127.0.0.1", "localhost"),
        ("localhost", "10.0.0.2", "10.0.0.2", "10.0.0.2"),
        ("127.0.0.1", "10.0.0.2", "10.0.0.2", "10.0.0.2"),
        ("0.0.0.0", "10.0.0.2", "0.0.0.0", "10.0.0.2"),
        ("::", "fd00::2", "::", "fd00::2"),
        ("10.0.0.3", "10.0.0.2", "10.0.0.3", "10.0.0.3"),
        # Debian's /etc/hosts: a host's own name is a loopback address, there.
        ("node-7", "10.0.0.2", "10.0.0.2", "node-7"),
        ("node-7", "127.0.0.1", "127.0.1.1", "node-7"),
        ("node-8", "10.0.0.2", "10.0.0.8", "node-8"),
    ],
)
def test_what_a_host_is_called(
    monkeypatch: pytest.MonkeyPatch, host: str, route: str, listen: str, advertise: str
) -> None:
    from kvcove.mooncake import _address

    names = {
        "localhost": ["127.0.0.1"],
        "node-7": ["127.0.1.1"],
        "node-8": ["127.0.1.1", "10.0.0.8"],
    }

    def getaddrinfo(name: str, port: int, type: int = 0) -> list[Any]:
        return [(socket.AF_INET, type, 0, "", (ip, port)) for ip in names.get(name, [name])]

    monkeypatch.setattr(_address.socket, "getaddrinfo", getaddrinfo)
    monkeypatch.setattr(_address, "_towards", lambda master: route)
    assert _address.place(host, "head:50051") == _address.Place(listen, advertise)


def two_free_ports() -> int:
    """The first of two."""
    while True:
        low = free_port()
        with contextlib.suppress(OSError), socket.socket() as two:
            two.bind(("127.0.0.1", low + 1))
            return low


def test_ports_come_from_the_range_that_firewalls_open(monkeypatch: pytest.MonkeyPatch) -> None:
    from kvcove.mooncake import _address

    assert _address.ports() == (12300, 14300)
    low = two_free_ports()
    monkeypatch.setenv("MC_STORE_CLIENT_MIN_PORT", str(low))
    monkeypatch.setenv("MC_STORE_CLIENT_MAX_PORT", str(low + 1))
    assert [_address.data_port("127.0.0.1", n) - low for n in (0, 1, 2, -1)] == [0, 1, 0, 1]
    with socket.create_server(("127.0.0.1", low)):
        assert _address.data_port("127.0.0.1", 0) == low + 1
        with (
            socket.create_server(("127.0.0.1", low + 1)),
            pytest.raises(OSError, match=f"no port from {low} to {low + 1} is free at 127.0.0.1"),
        ):
            _address.data_port("127.0.0.1", 0)
    with pytest.raises(OSError, match="Cannot assign"):
        _address.data_port("192.0.2.1", 0)
    monkeypatch.setenv("MC_STORE_CLIENT_MIN_PORT", "x")
    with pytest.raises(ValueError, match="two ports are wanted"):
        _address.data_port("127.0.0.1", 0)


@own("the original picks its port in C++")
def test_a_port_that_another_engine_took_meanwhile_gives_way(
    cluster: Cluster, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kvcove.mooncake import _address

    find = _address.data_port
    with socket.create_server(("127.0.0.1", free_port())) as other:
        taken = int(other.getsockname()[1])
        found = iter([taken])
        monkeypatch.setenv("MC_STORE_CLIENT_MIN_PORT", str(taken - 1))
        monkeypatch.setenv("MC_STORE_CLIENT_MAX_PORT", str(taken + 8))
        # As when the other engine binds it between the look and the owner's listening.
        monkeypatch.setattr(
            _address, "data_port", lambda address, first: next(found, None) or find(address, first)
        )
        store = new_store()
        try:
            assert setup(store, cluster.address) == 0
            assert taken < int(store.get_hostname().rsplit(":", 1)[1]) <= taken + 8
            assert store.put("k", b"v") == 0
        finally:
            store.close()


def test_disk_offload_without_a_directory_is_explained(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("MOONCAKE_ENABLE_OFFLOAD", "1")
    store = new_store()
    assert store.setup("localhost", "P2P", MIB, MIB, "tcp", "", "embedded:") == 0
    store.close()
    assert "MOONCAKE_ENABLE_OFFLOAD=1: SSD offload has no directory" in caplog.text
    assert "values lie in memory alone" in caplog.text
