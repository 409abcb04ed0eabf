# SPDX-License-Identifier: Apache-2.0
"""Pods of the chart and of the example beside it share memory on a node, by the socket's directory alone."""

from __future__ import annotations

import copy
import itertools
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import chart
import pytest
import yaml
from conftest import Program, command_path, wait_until
from pods import Container, Node, NoNamespaces, Pod, run

DEPLOY = chart.CHART.parent
SMALL = {"memory": "64MiB", "resources": {"requests": {}, "limits": {}}}
FOUND = {"right": True, "loaded": 96}
COMPUTED = {"right": True, "loaded": 0}
_FETCHED = DEPLOY.parents[1] / "build/etcd/etcd"
ETCD = str(_FETCHED) if _FETCHED.exists() else shutil.which("etcd")


class Pool:
    """A release on one node: a master, an owner, and engines that a test starts."""

    def __init__(self, node: Node, values: dict[str, Any], token: Path | None = None) -> None:
        self.node, self.token = node, token
        values = chart.merged({"master": {"replicas": 1}, **values}, {"owner": SMALL})
        node.objects = list(chart.objects(chart.manifest(values)))
        self.number = 0
        self.masters = [self.master(number) for number in range(values["master"]["replicas"])]
        self.owner = self.start_owner()

    def run(self, thing: dict[str, Any], name: str, known_as: str) -> Container:
        pod = Pod(self.node, thing, name)
        self.node.publish(known_as.format(address=pod.ip.replace(".", "-")), pod.ip)
        container = pod.start()
        if "exec" in container.spec["readinessProbe"]:
            container.becomes_ready()
        return container

    def master(self, number: int) -> Container:
        thing = self.node.find("StatefulSet", "kvcove-master", "kvcove")
        name = f"kvcove-master-{number}"
        return self.run(thing, name, f"{name}.kvcove-master.kvcove.svc")

    def start_owner(self) -> Container:
        thing = self.node.find("DaemonSet", "kvcove-owner", "kvcove")
        return self.run(thing, "kvcove-owner-x7f2k", "{address}.kvcove-owner.kvcove.svc")

    def engine(self, without: str = "") -> Container:
        """Start the example's engine; the program of engine.py takes vLLM's place."""
        thing = copy.deepcopy(list(chart.objects((DEPLOY / "examples/vllm.yaml").read_text()))[-1])
        spec = thing["spec"]["template"]["spec"]
        (container,) = spec["containers"]
        self.number += 1
        container["command"] = [sys.executable, "/opt/engine/kubernetes/engine.py"]
        container["args"] = [f"engine{self.number}"]
        dropped = [without] if without else []
        if self.token is None:  # the comment of the example says what to take out
            dropped += ["token", "tls"]
        kept = re.compile("|".join(f"KVCOVE_{name.upper()}" for name in dropped) or "never")
        container["env"] = [each for each in container["env"] if not kept.match(each["name"])]
        container["volumeMounts"] = [
            each for each in container["volumeMounts"] if each["name"] not in dropped
        ]
        return self.run(thing, f"vllm-{self.number}", f"vllm-{self.number}.inference")

    def metric(self, name: str) -> float:
        """Return a figure of the owner, which the machine's root asks in the owner's network."""
        command = ["nsenter", f"--net=/run/netns/{self.owner.pod.net}", command_path()]
        command += ["admin", "--admin", "127.0.0.1:7481"]
        command += ["--token", str(self.token)] if self.token else []
        text = run(*command, "metrics")
        return sum(
            float(each) for each in re.findall(rf"^{name}(?:\{{.*\}})? (\S+)$", text, re.MULTILINE)
        )

    def moved(self) -> float:
        """Return how many bytes of values went through the owner's port."""
        return self.metric("kvcove_owner_sent_bytes_total") + self.metric(
            "kvcove_owner_received_bytes_total"
        )


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path, "node-7")
    try:
        made.start()
    except NoNamespaces as error:
        pytest.skip(str(error))
    tmp_path.chmod(0o755)
    try:
        yield made
    finally:
        for each in run("ip", "netns", "list").split("\n"):
            if each.startswith(made.router + "-"):
                for pid in run("ip", "netns", "pids", each.split()[0]).split():
                    subprocess.run(["kill", "-9", pid], check=False)
                run("ip", "netns", "del", each.split()[0])
        made.stop()


def values_of(form: str) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((DEPLOY / f"manifests/{form}.values.yaml").read_text())
    return loaded


numbers = itertools.count()


def finds(engine: Container, seed: int) -> bool:
    """Return whether the engine loads a prompt; one that it must compute it stores."""
    answer = engine.ask(name=f"request{next(numbers)}", seed=seed)
    assert answer in (FOUND, COMPUTED)
    return answer == FOUND


def finds_soon(engine: Container, seed: int) -> bool:
    return wait_until(lambda: finds(engine, seed))


def shares(log: Path) -> bool:
    return "its memory is mapped by way of '/run/kvcove/kvcove.sock'" in log.read_text()


def test_two_pods_of_a_node_share_memory_through_all_restarts(node: Node) -> None:
    pool = Pool(node, values_of("minimal"))
    first = pool.engine()
    assert not finds(first, 1)
    stored = range(1, 6)  # several: a machine that stands still for a lease costs a look-up
    assert all(finds_soon(first, seed) for seed in stored)
    assert shares(first.log)

    first.kill()  # another pod of the engine, with another address
    second = pool.engine()
    assert any(finds(second, seed) for seed in stored)
    assert shares(second.log)
    assert pool.metric("kvcove_owner_local_gets_total") > 0
    assert pool.moved() == 0

    pool.owner.kill()  # the kubelet starts the container again, in the same pod
    pool.owner = pool.owner.pod.start()
    pool.owner.becomes_ready()
    assert finds_soon(second, 11)
    assert wait_until(
        lambda: finds(second, 11) and pool.metric("kvcove_owner_local_gets_total") > 0
    )
    assert pool.moved() == 0

    pool.owner.pod.delete()  # another pod of the owner, at another address, as an upgrade makes one
    pool.owner = pool.start_owner()
    assert wait_until(
        lambda: finds(second, 12) and pool.metric("kvcove_owner_local_gets_total") > 0
    )
    assert pool.moved() == 0


def test_without_the_nodes_name_values_travel_and_the_log_says_why(node: Node) -> None:
    pool = Pool(node, values_of("minimal"))
    engine = pool.engine(without="host_id")
    assert finds_soon(engine, 1)
    assert pool.moved() > 0
    assert not shares(engine.log)
    assert "no owner of the pool is on this host" in engine.log.read_text()


def make_secrets(directory: Path) -> tuple[dict[str, dict[str, str]], Path]:
    """Make what docs/kubernetes.md makes: tokens, and a certificate for the names of masters and owners."""
    made = directory / "secrets"
    made.mkdir(mode=0o700)
    servers = str(made / "servers.toml")
    for tenant, scopes in (("cluster", "owner,admin"), ("acme", "read,write,reset")):
        run(command_path(), "token", tenant, "--scopes", scopes, "--credentials", servers,
            "--output", str(made / f"{tenant}.toml"))  # fmt: skip
    new = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    run("openssl", "req", "-x509", *new, "-days", "2", "-subj", "/CN=kvcove",
        "-keyout", f"{made}/ca.key", "-out", f"{made}/ca.crt")  # fmt: skip
    signed = ["-CA", f"{made}/ca.crt", "-CAkey", f"{made}/ca.key", "-CAcreateserial", "-days", "2"]
    servers_names = "DNS:*.kvcove-master.kvcove.svc,DNS:*.kvcove-owner.kvcove.svc"
    for name, hosts in (("tls", servers_names), ("engine", "DNS:engine")):
        (made / "hosts").write_text(f"subjectAltName={hosts}")
        run("openssl", "req", *new, "-subj", f"/CN={name}",
            "-keyout", f"{made}/{name}.key", "-out", f"{made}/{name}.csr")  # fmt: skip
        run("openssl", "x509", "-req", "-in", f"{made}/{name}.csr", *signed,
            "-extfile", f"{made}/hosts", "-out", f"{made}/{name}.crt")  # fmt: skip

    def files(*names: str) -> dict[str, str]:
        return {name: (made / name).read_text() for name in names}

    engine = {f"tls.{kind}": (made / f"engine.{kind}").read_text() for kind in ("crt", "key")}
    secrets = {
        "kvcove-servers": files("servers.toml"),
        "kvcove-acme": files("acme.toml"),
        "kvcove-tls": files("ca.crt", "tls.crt", "tls.key"),
        "kvcove-engine-tls": {**files("ca.crt"), **engine},
    }
    return secrets, made / "cluster.toml"


@pytest.fixture
def etcd(node: Node, tmp_path: Path) -> Iterator[str]:
    """An etcd in a network of its own; gives the address that pods have for it."""
    if ETCD is None:
        pytest.skip("no etcd; scripts/etcd.sh fetches it")
    pod = Pod(
        node, {"metadata": {"namespace": "etcd"}, "spec": {"template": {"spec": {}}}}, "etcd-0"
    )
    node.publish("etcd-0.etcd.etcd.svc", pod.ip)
    client = f"http://{pod.ip}:2379"
    data = tempfile.mkdtemp(prefix="kvcove-etcd-", dir="/dev/shm")
    words = [str(ETCD), "--data-dir", f"{data}/data", "--log-level", "error"]
    words += ["--listen-client-urls", client, "--advertise-client-urls", client]
    program = Program(["ip", "netns", "exec", pod.net, *words], tmp_path / "etcd.log")
    yield "etcd-0.etcd.etcd.svc:2379"
    program.kill()
    shutil.rmtree(data)


def test_with_etcd_another_master_leads_when_the_leaders_pod_is_killed(
    node: Node, etcd: str
) -> None:
    values = {"master": {"replicas": 2, "etcd": {"endpoints": [etcd]}}}
    pool = Pool(node, {**values_of("minimal"), **values})
    engine = pool.engine()
    assert finds_soon(engine, 1)
    pool.masters[0].kill()
    assert finds_soon(engine, 2)
    second = pool.engine()  # it knows both masters, of which one is there
    assert wait_until(lambda: any(finds(second, seed) for seed in (1, 2)))
    assert shares(second.log)
    assert pool.moved() == 0
    pool.masters[0] = pool.masters[0].pod.start()
    pool.masters[0].becomes_ready()


def test_with_tokens_tls_and_a_disk(node: Node, tmp_path: Path) -> None:
    node.secrets, token = make_secrets(tmp_path)
    values = values_of("cluster")
    values["master"] = {"replicas": 1}
    disks = [{"name": "nvme0", "size": "64MiB", "hostPath": "/mnt/nvme0/kvcove"}]
    values["owner"] = {"tenant": "acme", "disks": disks}
    pool = Pool(node, values, token)
    engine = pool.engine()
    assert not finds(engine, 1)
    assert finds_soon(engine, 1)
    assert shares(engine.log)
    assert pool.metric("kvcove_owner_local_gets_total") > 0
    assert pool.moved() == 0
    name = f"{pool.owner.pod.ip.replace('.', '-')}.kvcove-owner.kvcove.svc:7401"
    assert f"advertising {name}" in pool.owner.log.read_text()
    disk = Path(f"{node.directory}/host/mnt/nvme0/kvcove")
    assert disk.stat().st_uid == disk.stat().st_gid == 65532 and list(disk.glob("kvcove.disk*"))

    pool.owner.pod.delete()  # the next one finds the disk and the identity that are its node's
    pool.owner = pool.start_owner()
    assert wait_until(lambda: finds(engine, 2) and pool.metric("kvcove_owner_local_gets_total") > 0)
    assert pool.moved() == 0

    pool.masters[0].pod.delete()  # the next one has its facts, and its name at another address
    pool.masters[0] = pool.master(0)
    pool.owner.becomes_ready()
    assert finds_soon(engine, 3)
    assert pool.moved() == 0
