# SPDX-License-Identifier: Apache-2.0
"""SLURM itself, as Debian has it, on two nodes of this machine: munged, slurmctld and a slurmd for each node.

Nodes are network namespaces (`slurm_hosts.two_hosts`). They are entered with nsenter: `ip netns exec` mounts another
/sys, in which slurmd finds no control groups. All files are in one directory, which the end removes.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from conftest import wait_until
from slurm_hosts import CLIENT, NODES, PROMISED, around, inside, kill, two_hosts

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch")
DAEMONS = ("munged", "slurmctld", "slurmscriptd", "slurmd")
PR_SET_PDEATHSIG = 1
GROUPS = Path("/sys/fs/cgroup")
# A job that ends takes a while on a machine with other things to do.
PATIENCE = 180
ENDED = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")

CONFIGURATION = """\
ClusterName=kvcove
SlurmctldHost={host}(10.78.0.1)
SlurmUser=root
MailProg=/bin/true
AuthType=auth/munge
CredType=cred/munge
# A job that is put into the queue again waits until its credentials have expired.
AuthInfo=socket={directory}/munge.sock,cred_expire=5
ProctrackType=proctrack/{tracking}
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
# As many jobs at once as the tests want.
SlurmdParameters=config_overrides
NodeName={nodes[0]} NodeAddr=10.78.0.1 CPUs=64 RealMemory=1000
NodeName={nodes[1]} NodeAddr=10.78.0.2 CPUs=64 RealMemory=1000
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE
SchedulerParameters=batch_sched_delay=0,sched_interval=1,sched_min_interval=0
SlurmdTimeout=10
ReturnToService=2
SlurmctldPidFile={directory}/slurmctld.pid
SlurmctldLogFile={directory}/slurmctld.log
StateSaveLocation={directory}/state
SlurmdPidFile={directory}/%n.pid
SlurmdLogFile={directory}/%n.log
SlurmdSpoolDir={directory}/spool-%n
"""


class NoSlurm(Exception):
    """Debian's SLURM is not installed."""


def environment_of(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return []


def name_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def tracking() -> str:
    """Return how slurmd can find a job's processes here: control groups of version 1, else parents."""
    probe = GROUPS / "freezer" / f"kvs-{os.getpid()}"
    try:
        probe.mkdir()
        probe.rmdir()
    except OSError:
        return "linuxproc"
    return "cgroup"


class Cluster:
    def __init__(self, directory: Path, names: list[str]) -> None:
        self.directory = directory
        self.names = names
        self.nodes = [f"kvs{os.getpid()}n{rank}" for rank in range(NODES)]
        self.tracking = tracking()
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        self._environment = {**os.environ, "SLURM_CONF": str(directory / "slurm.conf")}

    def start(self) -> None:
        directory = self.directory
        (directory / "state").mkdir()
        (directory / "hosts").write_text(
            "127.0.0.1 localhost\n"
            + "".join(f"10.78.0.{rank + 1} {node}\n" for rank, node in enumerate(self.nodes))
        )
        (directory / "munge.key").touch(mode=0o600)
        (directory / "munge.key").write_bytes(os.urandom(128))
        (directory / "slurm.conf").write_text(
            CONFIGURATION.format(
                directory=directory, nodes=self.nodes, host=self.nodes[0], tracking=self.tracking
            )
        )
        (directory / "cgroup.conf").write_text("ConstrainCores=no\nConstrainRAMSpace=no\n")
        at = f"{directory}/munge"
        self._run("munged", None, "munged", "--foreground", "--force", f"--socket={at}.sock",
                  f"--key-file={at}.key", f"--pid-file={at}.pid", f"--log-file={at}.log",
                  f"--seed-file={at}.seed")  # fmt: skip
        assert wait_until((directory / "munge.sock").exists, 30), self.told()
        self._run("slurmctld", 0, "slurmctld", "-D", "-c")
        for rank in range(NODES):
            self.start_node(rank)

    def start_node(self, rank: int) -> None:
        node = self.nodes[rank]
        self._run(node, rank, "slurmd", "-D", "-N", node)
        assert wait_until(lambda: self.node_state(rank) in ("IDLE", "MIXED"), 60), self.told()

    def node_state(self, rank: int) -> str:
        told = self.ask("scontrol", "-o", "show", "node", self.nodes[rank], check=False)
        found = re.search(r"State=(\w+\S*)", told)
        return found[1] if found else ""

    def _run(self, name: str, rank: int | None, *words: str) -> None:
        command = [*words] if rank is None else self.on(rank, *words)
        with (self.directory / f"{name}.out").open("wb") as log:
            self._daemons[name] = subprocess.Popen(
                command, env=self._environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip

    def on(self, rank: int, *words: str) -> list[str]:
        """Return a command that runs another one on a node, under the node's name."""
        enter = f'hostname {self.nodes[rank]}; mount --bind {self.directory}/hosts /etc/hosts; exec "$@"'
        return ["nsenter", f"--net=/run/netns/{self.names[rank]}", "unshare", "--mount", "--uts",
                "bash", "-c", enter, "bash", *words]  # fmt: skip

    def ask(
        self, *words: str, check: bool = True, environment: Mapping[str, str] | None = None
    ) -> str:
        """Run one of SLURM's programs on the first node, and return what it prints."""
        ran = subprocess.run(
            ["nsenter", f"--net=/run/netns/{self.names[0]}", *words],
            env={**self._environment, **(environment or {})},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert not check or ran.returncode == 0, f"{words}: {ran.stderr}\n{self.told()}"
        return ran.stdout

    def kill_node(self, rank: int) -> None:
        """End everything on a node at once, but for the controller."""
        pids = {
            pid
            for pid in inside(self.names[rank])
            if name_of(pid) not in ("slurmctld", "slurmscriptd")
        }
        kill(pids, signal.SIGSTOP)
        kill(pids, signal.SIGKILL)
        self._daemons[self.nodes[rank]].wait()

    def told(self) -> str:
        logs = [path for path in self.directory.glob("*.log") if path.name != "munge.log"]
        return "\n".join(f"== {log}\n{log.read_text(errors='replace')[-2000:]}" for log in logs)

    def job(self, number: int) -> dict[str, str]:
        return dict(
            re.findall(r"(\w+)=(\S*)", self.ask("scontrol", "-o", "show", "job", str(number)))
        )

    def array(self, number: int) -> list[int]:
        """Return the numbers of the jobs of an array, all of which have begun or ended."""
        return [
            int(each)
            for each in re.findall(
                r"^JobId=(\d+)", self.ask("scontrol", "-o", "show", "job", str(number)), re.M
            )
        ]

    def of_job(self, number: int) -> list[int]:
        """Return the processes of a job, on both nodes; each has the job's number in its environment."""
        mark = f"SLURM_JOB_ID={number}"
        return [
            pid
            for name in self.names
            for pid in inside(name)
            if mark in environment_of(pid) and name_of(pid) not in DAEMONS
        ]

    def strangers(self) -> dict[int, str]:
        """Return the processes on the nodes that are not SLURM's, each with its name."""
        names = {pid: name_of(pid) for name in self.names for pid in inside(name)}
        return {pid: name for pid, name in names.items() if name not in DAEMONS}

    def stop(self) -> None:
        kill(self.strangers(), signal.SIGKILL)
        for daemon in reversed([*self._daemons.values()]):
            daemon.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                daemon.wait(5)
            daemon.kill()
            daemon.wait()
        for name in self.names:
            kill(inside(name), signal.SIGKILL)
            wait_until(lambda name=name: not inside(name), 10)
        # A group is busy until somebody has asked for the status of its last process.
        wait_until(self._remove_groups, 20)

    def _remove_groups(self) -> bool:
        groups = [group for node in self.nodes for group in GROUPS.glob(f"*/slurm_{node}")]
        for group in groups:
            for path, _, _ in os.walk(group, topdown=False):
                with contextlib.suppress(OSError):
                    Path(path).rmdir()
        return not any(group.exists() for group in groups)


@contextlib.contextmanager
def real_cluster() -> Iterator[Cluster]:
    """Start a cluster, and end it with all of its jobs."""
    path = f"{os.environ['PATH']}:/usr/sbin:/sbin"
    missing = [name for name in PROGRAMS if shutil.which(name, path=path) is None]
    if missing:
        raise NoSlurm(f"SLURM is not installed: there is no {missing[0]}; scripts/setup.sh --slurm")
    # As at an interrupt, everything is ended; also where the script that has started this process ends.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    with two_hosts() as names:
        # Sockets' paths are short.
        directory = Path(tempfile.mkdtemp(prefix="kvs-", dir="/tmp"))
        cluster = Cluster(directory, names)
        try:
            cluster.start()
            yield cluster
        finally:
            cluster.stop()
            shutil.rmtree(directory)


class Place:
    """An output directory, which may be another place's, too, and a job in it."""

    def __init__(
        self,
        cluster: Cluster,
        kind: str,
        form: str,
        out: Path | None = None,
        temporary: Path | None = None,
    ) -> None:
        def directory(prefix: str) -> Path:
            return Path(tempfile.mkdtemp(prefix=prefix, dir=cluster.directory))

        self.cluster, self.kind, self.form = cluster, kind, form
        self.out = out or directory("out ")
        self.temporary = temporary or directory("tmp")
        self.path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        self.number = 0
        self.restart = 0

    def submit(self, mode: str, *options: str, nodes: int = 2, words: tuple[str, ...] = ()) -> None:
        """Submit a job of slurm_client.py in a mode, with options of sbatch."""
        command = ["python3", str(CLIENT), self.kind, mode]
        render = [sys.executable, "-m", "kvcove.launch", "slurm", "--type", self.kind,
                  "--memory", "64MiB", "--timeout", "60", *words]  # fmt: skip
        if self.form == "whole":
            render += ["--nodes", str(nodes), "--output-dir", str(self.out), "--", *command]
        else:
            render.append("--part")
        text = subprocess.run(render, capture_output=True, text=True, check=True).stdout
        if self.form == "part":
            head = f"#!/bin/bash\n#SBATCH --nodes={nodes} --ntasks-per-node=1 --no-kill\n"
            text = head + f'export OUTPUT_DIR="{self.out}"\n' + around(text, " ".join(command))
        script = self.cluster.directory / "job.sbatch"
        script.write_text(text)
        answer = self.cluster.ask(
            "sbatch", "--parsable", f"--output={self.out}/kvcove-%j.log", *options, str(script),
            environment={"PATH": self.path, "TMPDIR": str(self.temporary)},
        )  # fmt: skip
        self.number = int(answer)

    def client(self) -> Path:
        return self.out / f"client_{self.number}_{self.restart}"

    def read(self, name: str) -> str:
        """Return a file that the job's client on some node has written, once it is there."""
        path = self.client() / name
        assert wait_until(path.exists, PATIENCE), f"no {path}\n{self.told()}"
        return path.read_text()

    def found(self, rank: int = 1) -> dict[str, Any]:
        found = json.loads(self.read(f"found-{rank}"))
        assert isinstance(found, dict)
        return found

    def assert_found(self) -> None:
        """Wait until both nodes have looked, and all was found and right."""
        for rank in range(NODES):
            found = self.found(rank)
            assert (found["prefix"], found["right"]) == (16, 16), self.told()

    def leave(self, status: int = 0) -> None:
        place = self.client()
        (place / "leave.new").write_text(str(status))
        (place / "leave.new").rename(place / "leave")

    def job(self, number: int | None = None) -> dict[str, str]:
        """Return what SLURM has of the job, or of another one."""
        return self.cluster.job(number or self.number)

    def ended(self, number: int | None = None) -> tuple[str, str]:
        """Return a job's state and exit code, when it has ended and its processes are gone."""
        number = number or self.number
        assert wait_until(lambda: self.job(number)["JobState"] in ENDED, PATIENCE), self.told()
        assert wait_until(lambda: not self.cluster.of_job(number), PATIENCE), self.told()
        job = self.job(number)
        return job["JobState"], job["ExitCode"]

    def assert_completed(self) -> None:
        assert self.ended() == ("COMPLETED", "0:0"), self.told()
        assert self.left() == []

    def left(self) -> list[str]:
        """Return the files that nobody was promised."""
        files = [path for path in self.out.glob("**/*") if path.is_file()]
        names = [str(path.relative_to(self.out)) for path in files]
        return [
            *map(str, self.temporary.iterdir()),
            *map(str, self.out.glob("kvcove/job_*")),
            *[name for name in names if not PROMISED.fullmatch(name)],
        ]

    def told(self) -> str:
        logs = [*sorted(self.out.glob("*.log")), *sorted(self.out.glob("*/*/*/*.log"))]
        texts = [f"== {log}\n{log.read_text(errors='replace')[-4000:]}" for log in logs]
        return "\n".join([*texts, self.cluster.told()])
