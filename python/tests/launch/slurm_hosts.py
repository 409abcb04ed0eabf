# SPDX-License-Identifier: Apache-2.0
"""Two hosts for a job of SLURM, and the job: what the tests with and without vLLM share.

The hosts are network namespaces of this machine, and `scontrol`, `scancel` and `srun` are fakes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from conftest import command_path, wait_until

NODES = 2
JOB = 4711
PORT = 20000 + JOB % 1250 * 8

SRUN = """\
#!{python}
# SPDX-License-Identifier: Apache-2.0
# A task on each node. SIGTERM kills them at once, with all that they have started.
import os, signal, subprocess, sys
command = sys.argv[next(i for i, word in enumerate(sys.argv) if i and not word.startswith("-")):]
tasks = []
signal.signal(signal.SIGTERM, lambda *_: subprocess.run(["{directory}/scancel", "--signal=KILL", "{job}"]))
given = dict(os.environ)
if given.get("SLURM_EXPORT_ENV") == "NONE":
    given = {{name: value for name, value in given.items() if name.startswith("SLURM")}}
for rank in range({nodes}):
    environment = {{**given, "SLURM_PROCID": str(rank), "SLURMD_NODENAME": f"node{{rank}}", "SLURM_STEP_ID": "0"}}
    task = subprocess.Popen(["{directory}/on", str(rank), *command], env=environment)
    tasks.append(task)
    with open("{directory}/tasks", "a") as file:
        print(task.pid, file=file)
statuses = [task.wait() for task in tasks]
sys.exit(max(status if status >= 0 else 128 - status for status in statuses))
"""


SCANCEL = """\
#!{python}
# SPDX-License-Identifier: Apache-2.0
# A signal for all processes of the tasks.
import os, signal, sys
from pathlib import Path
number = getattr(signal, "SIG" + sys.argv[1].removeprefix("--signal="))
assert sys.argv[2:] == ["{job}"]
for place in Path("/proc").glob("[0-9]*"):
    try:
        names = (place / "environ").read_bytes().split(b"\\0")
        if b"SLURM_STEP_ID=0" in names and b"OUTPUT_DIR={out}" in names:
            os.kill(int(place.name), number)
    except OSError:
        continue
"""


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


class NoNamespaces(Exception):
    """This user may not make hosts on this machine."""


@contextlib.contextmanager
def two_hosts() -> Iterator[list[str]]:
    """Make two network namespaces that reach each other, and nothing else; give their names."""
    names = [f"kvs-{os.getpid()}-{i}" for i in range(NODES)]
    try:
        for name in names:
            ip("netns", "add", name)
            ip("-n", name, "link", "set", "lo", "up")
        ip("link", "add", "eth0", "netns", names[0], "type", "veth",
           "peer", "name", "eth0", "netns", names[1])  # fmt: skip
        for i, name in enumerate(names):
            ip("-n", name, "addr", "add", f"10.78.0.{i + 1}/24", "dev", "eth0", "nodad")
            ip("-n", name, "link", "set", "eth0", "up")
    except (OSError, subprocess.CalledProcessError) as error:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
        raise NoNamespaces(
            "this machine does not let this user make network namespaces with 'ip'"
        ) from error
    try:
        yield names
    finally:
        for name in names:
            ip("netns", "del", name)


def inside(name: str) -> set[int]:
    """Return the processes of a host."""
    ran = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True, check=True)
    return {int(pid) for pid in ran.stdout.split()}


def kill(pids: Iterable[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


@dataclasses.dataclass
class Job:
    directory: Path
    names: list[str]
    kind: str
    form: str = "whole"
    environment: dict[str, str] = dataclasses.field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None
    began: float = 0

    @property
    def out(self) -> Path:
        return self.directory / "out dir"

    @property
    def client(self) -> Path:
        """Where slurm_client.py writes."""
        return self.out / f"client_{JOB}_0"

    @property
    def script(self) -> Path:
        return self.directory / "job.sh"

    def render(self, *words: str) -> str:
        ran = subprocess.run(
            [sys.executable, "-m", "kvcove.launch", "slurm", "--type", self.kind,
             "--memory", "64MiB", "--timeout", "20", *words],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        return ran.stdout

    def start(self) -> None:
        environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith(("KVCOVE_", "MOONCAKE_"))},
            "PATH": f"{self.directory}:{Path(sys.executable).parent}:{os.environ['PATH']}",
            "TMPDIR": str(self.directory / "tmp"),
            "SLURM_JOB_ID": str(JOB),
            "SLURM_JOB_NODELIST": "node[0-1]",
            "SLURMD_NODENAME": "node0",
            "OUTPUT_DIR": str(self.out),
            **self.environment,
        }
        self.began = time.monotonic()
        with (self.directory / "job.log").open("wb") as log:
            self.process = subprocess.Popen(
                [str(self.directory / "on"), "0", "bash", str(self.script)],
                env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip

    def told(self) -> str:
        logs = [self.directory / "job.log", *sorted(self.out.glob("**/*.log"))]
        return "\n".join(f"== {log}\n{log.read_text(errors='replace')}" for log in logs)

    def segments(self) -> dict[str, int]:
        """Return the owners that the master lists with a lease, and how many objects each has."""
        admin = f"127.0.0.1:{PORT + 1}"
        if self.kind == "mooncake":
            with contextlib.suppress(FileNotFoundError):
                log = (self.logs(0) / "master.log").read_text()
                found = re.findall(r"admin http://(127\.0\.0\.1:\d+)\)", log)
                admin = found[-1] if found else admin
        ran = subprocess.run(
            ["ip", "netns", "exec", self.names[0], command_path(), "admin", "--admin", admin,
             "--token", str(self.secrets() / "cluster.toml"), "--json", "segments"],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if ran.returncode != 0:
            return {}
        listed = json.loads(ran.stdout)["segments"]
        return {s["address"]: s["objects"] for s in listed if s["state"] == "live"}

    def logs(self, rank: int) -> Path:
        """Return where a node has its logs; the part begins within a step."""
        name = f"{JOB}_0_{'batch' if self.form == 'whole' else '0'}"
        return self.out / self.kind / name / f"node_{rank}"

    def secrets(self) -> Path:
        found = list((self.out / "kvcove").glob("job_*"))
        return found[0] if found else Path("/nowhere")

    def found(self, rank: int) -> dict[str, object]:
        """Wait until no engine looks any more, as a test may harm next what they look at."""
        paths = [self.client / f"found-{each}" for each in range(NODES)]
        assert wait_until(lambda: all(path.exists() for path in paths)), self.told()
        return json.loads(paths[rank].read_text())

    def tasks(self) -> list[int]:
        return [int(pid) for pid in (self.directory / "tasks").read_text().split()]

    def leave(self, status: int = 0) -> None:
        self.client.mkdir(exist_ok=True)
        (self.client / "leave.new").write_text(str(status))
        (self.client / "leave.new").rename(self.client / "leave")

    def ended(self) -> bool:
        """Return whether nothing runs or listens. A process that ends may have a port when its first thread has ended."""
        return not any(inside(name) or ports(name) for name in self.names)

    def left(self) -> list[str]:
        """Return what is still there of the job, though nobody was promised it."""
        wait_until(self.ended)
        found = []
        for name in self.names:
            for pid in inside(name):
                words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
                found.append(f"{name}: process {pid}: {words}")
            found += [f"{name}: port {port}" for port in ports(name)]
        found += [str(path) for path in (self.directory / "tmp").iterdir()]
        files = [path for path in self.out.glob("**/*") if path.is_file()]
        names = [str(path.relative_to(self.out)) for path in files]
        return found + [name for name in names if not PROMISED.fullmatch(name)]

    def assert_nothing_is_left(self) -> None:
        assert self.left() == []


# Files that stay in a job's output directory: its logs, and those of the tests' engines.
PROMISED = re.compile(
    r"client_\d+_\d/.*|node_\d\.out\.log|kvcove-\d+\.log"
    r"|(kvcove|mooncake)/\d+_\d_(batch|0)/node_\d/((master|run|owner|client|disk)\.log|config\.json)"
)

CLIENT = Path(__file__).resolve().parent / "slurm_client.py"


def around(part: str, command: str) -> str:
    """Return a job as prime-rl's templates have it around the part."""
    return (
        "srun bash -c '\nINFER_NODE_RANK=$SLURM_PROCID\n"
        'LOCAL_IP=$(ip -o -4 addr show dev eth0 | awk "{print \\$4}" | cut -d/ -f1)\n'
        + part
        + command
        + ' 2>&1 | tee "$OUTPUT_DIR/node_$INFER_NODE_RANK.out.log"\nexit "${PIPESTATUS[0]}"\n\'\n'
    )


# Listening sockets of a host, by port.
PORTS = """\
rows = [line.split() for name in ("tcp", "tcp6") for line in open(f"/proc/net/{name}").readlines()[1:]]
print([int(row[1].rsplit(":", 1)[1], 16) for row in rows if row[3] == "0A"])
"""


def ports(name: str) -> list[int]:
    """Return the ports on which a host listens."""
    ran = subprocess.run(
        ["ip", "netns", "exec", name, sys.executable, "-c", PORTS],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return json.loads(ran.stdout)


@contextlib.contextmanager
def job_on(names: list[str], kind: str, form: str = "whole") -> Iterator[Job]:
    """Make the directory of a job, with the fakes of SLURM; end the job and remove it at the end."""
    # Sockets' paths are short.
    directory = Path("/tmp") / f"kvs-{os.getpid()}"
    directory.mkdir(mode=0o700)
    (directory / "tmp").mkdir()
    (directory / "hosts").write_text("".join(f"10.78.0.{i + 1} node{i}\n" for i in range(NODES)))
    on = f"""#!/bin/bash
rank=$1
shift
exec ip netns exec kvs-{os.getpid()}-$rank bash -c 'mount --bind {directory}/hosts /etc/hosts; exec "$@"' bash "$@"
"""
    made = Job(directory, names, kind, form)
    values = {"python": sys.executable, "nodes": NODES, "directory": directory, "job": JOB}
    srun = SRUN.format(**values)
    scancel = SCANCEL.format(**values, out=made.out)
    scontrol = "#!/bin/bash\n[ \"$*\" = 'show hostnames node[0-1]' ] && printf 'node0\\nnode1\\n'\n"
    texts = {"on": on, "srun": srun, "scancel": scancel, "scontrol": scontrol}
    for name, text in texts.items():
        (directory / name).write_text(text)
        (directory / name).chmod(0o755)
    made.out.mkdir()
    try:
        yield made
    finally:
        if made.process is not None and made.process.poll() is None:
            made.process.kill()
            made.process.wait()
        for name in names:
            kill(inside(name), signal.SIGKILL)
        shutil.rmtree(directory)
