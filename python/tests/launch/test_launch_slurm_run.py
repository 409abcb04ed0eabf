# SPDX-License-Identifier: Apache-2.0
"""Jobs as `python -m kvcove.launch slurm` renders them, run on two hosts.

The hosts are network namespaces of this machine, `scontrol`, `scancel` and `srun` are fakes, and everything
else is real: master, owners, the drop-in's programs, processes that cache and find prefixes.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest import wait_until
from kvcove.launch import slurm
from slurm_hosts import (
    CLIENT,
    NODES,
    PORT,
    Job,
    around,
    inside,
    job_on,
    kill,
)

SEGMENTS = {"kvcove": rf"10\.78\.0\.\d:{PORT + 2}", "mooncake": r"10\.78\.0\.\d:\d+"}


@pytest.fixture
def job(namespaces: list[str], request: pytest.FixtureRequest) -> Iterator[Job]:
    kind, form = request.param
    with job_on(namespaces, kind, form) as made:
        command = ["python3", str(CLIENT), kind, "leave"]
        if form == "whole":
            text = made.render("--nodes", "2", "--output-dir", str(made.out), "--", *command)
        else:
            text = around(made.render("--part"), " ".join(command))
        made.script.write_text(text)
        yield made


FUNCTIONS = Path(slurm.__file__).parent / "shell" / "functions.sh"
WHOLE, MOONCAKE, PART = ("kvcove", "whole"), ("mooncake", "whole"), ("kvcove", "part")
FORMS = [(kind, form) for kind in ("kvcove", "mooncake") for form in ("whole", "part")]


def until_ready(job: Job) -> float:
    job.start()
    assert wait_until(lambda: len(job.segments()) == NODES), job.told()
    return time.monotonic() - job.began


@pytest.mark.parametrize("job", FORMS, indirect=True, ids="-".join)
def test_a_prefix_of_one_node_is_served_on_the_other(job: Job) -> None:
    print(f"{job.kind}: both owners are listed after {until_ready(job):.2f} s")
    assert all(re.fullmatch(SEGMENTS[job.kind], segment) for segment in job.segments())
    # Only this user can read them.
    assert job.secrets().stat().st_mode & 0o777 == 0o700
    assert {f.name: f.stat().st_mode & 0o777 for f in job.secrets().glob("*.toml")} == {
        name: 0o600 for name in ("servers.toml", "job.toml", "cluster.toml")
    }
    found = job.found(1)
    assert (found["prefix"], found["right"]) == (16, 16), job.told()
    assert all(str(place).startswith("10.78.0.1:") for place in found["where"])  # type: ignore[attr-defined]
    environment = found["environment"]
    assert isinstance(environment, dict)
    assert environment["PYTHONHASHSEED"] == "0"
    assert environment["KVCOVE_POOL"] == f"kvcove://10.78.0.1:{PORT}"
    assert environment["KVCOVE_TOKEN"] == str(job.secrets() / "job.toml")
    assert "KVCOVE_CREDENTIALS" not in environment
    # An engine without the token is refused, and told what is missing.
    code = f"import kvcove; kvcove.open('kvcove://10.78.0.1:{PORT}')"
    refused = subprocess.run(
        ["ip", "netns", "exec", job.names[1], sys.executable, "-c", code],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert refused.returncode != 0
    assert "DeniedError" in refused.stderr and "KVCOVE_TOKEN" in refused.stderr
    job.leave()
    assert job.process is not None and job.process.wait(120) == 0, job.told()
    job.assert_nothing_is_left()


@pytest.mark.parametrize("job", [WHOLE, MOONCAKE], indirect=True, ids="-".join)
def test_sbatch_export_none_and_setup(job: Job) -> None:
    """srun then gives its tasks nothing of the shell that calls it, unless that shell sees to it."""
    job.environment = {"SLURM_EXPORT_ENV": "NONE"}
    command = job.script.read_text().split("kv_run python3 ")[1].split("\n")[0]
    setup = 'export SET_UP="it\'s $SLURMD_NODENAME"'
    job.script.write_text(
        job.render("--setup", setup, "--setup", "cd /", "--nodes", "2", "--output-dir", str(job.out),
                   "--", "python3", *command.split())
    )  # fmt: skip
    until_ready(job)
    for rank in range(NODES):
        environment = job.found(rank)["environment"]
        assert isinstance(environment, dict)
        assert environment["SET_UP"] == f"it's node{rank}"
        assert environment["PWD"] == "/"
    job.leave()
    assert job.process is not None and job.process.wait(120) == 0, job.told()
    job.assert_nothing_is_left()


@pytest.mark.parametrize("job", [WHOLE], indirect=True, ids="-".join)
def test_what_killed_jobs_have_left_is_removed_by_the_next_one(job: Job) -> None:
    """On the nodes where they were, and of the user only; here on node 0."""
    begin = 'SLURMD_NODENAME=$1 SLURM_STEP_ID=$1; KV_NAME=kvcove; kv_begin; kv_node 0; mkdir -p "$KV_DIR"; kv_own "$KV_DIR"'
    for node in ("node0", "node9"):
        environment = {
            **os.environ,
            "SLURM_JOB_ID": "1",
            "KV_FIRST_PORT": "20000",
            "OUTPUT_DIR": str(job.out),
            "TMPDIR": str(job.directory / "tmp"),
        }
        text = f". {FUNCTIONS}; {begin}; kill -KILL $$"
        ran = subprocess.run(["bash", "-c", text, "job", node], env=environment, check=False)
        assert ran.returncode == -signal.SIGKILL
    left = {*(job.directory / "tmp").iterdir(), *job.out.glob("kvcove/job_*")}
    assert len(left) == 4
    job.leave()
    job.start()
    assert job.process is not None and job.process.wait(120) == 0, job.told()
    stay = [path for path in left if path.exists()]
    assert sorted((path / "shell").read_text().split()[0] for path in stay) == ["/node9"] * 2
    for path in stay:
        shutil.rmtree(path)
    job.assert_nothing_is_left()


def scancel(job: Job) -> None:
    """SIGTERM to all processes of the job but srun, which SLURM gives word of the end."""
    pids = {pid for name in job.names for pid in inside(name)}
    srun = f"{job.directory}/srun".encode()
    kill(
        [pid for pid in pids if srun not in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")],
        signal.SIGTERM,
    )


def sigterm(job: Job) -> None:
    assert job.process is not None
    job.process.terminate()


def sigkill_the_batch_shell(job: Job) -> None:
    assert job.process is not None
    job.process.kill()


def sigkill_all_wrappers(job: Job) -> None:
    kill(job.tasks(), signal.SIGKILL)
    if job.form == "part":
        # The command is of what is around the part.
        job.leave()


def the_command_fails(job: Job) -> None:
    job.leave(7)


ENDS = [
    (WHOLE, the_command_fails, 7),
    (WHOLE, scancel, 143),
    (WHOLE, sigterm, 143),
    (WHOLE, sigkill_all_wrappers, 137),
    (WHOLE, sigkill_the_batch_shell, -9),
    (MOONCAKE, scancel, 143),
    (MOONCAKE, sigkill_all_wrappers, 137),
    (PART, the_command_fails, 7),
    (PART, scancel, -15),
    (PART, sigkill_all_wrappers, 137),
]


@pytest.mark.parametrize(
    ("job", "end", "status"),
    ENDS,
    indirect=["job"],
    ids=[f"{'-'.join(job)}-{end.__name__}" for job, end, _ in ENDS],
)
def test_nothing_but_what_is_promised_is_left(
    job: Job, end: Callable[[Job], None], status: int
) -> None:
    until_ready(job)
    job.found(1)
    end(job)
    assert job.process is not None
    assert job.process.wait(120) == status, job.told()
    job.assert_nothing_is_left()


@pytest.mark.skipif(shutil.which("setpriv") is None, reason="setpriv is not installed")
@pytest.mark.parametrize("job", [WHOLE, MOONCAKE], indirect=True, ids="-".join)
def test_no_process_outlives_all_shells(job: Job) -> None:
    until_ready(job)
    job.found(1)
    pids = [pid for name in job.names for pid in inside(name)]
    kill([pid for pid in pids if Path(f"/proc/{pid}/comm").read_text() == "bash\n"], signal.SIGKILL)
    assert wait_until(job.ended), job.told()


@pytest.mark.parametrize("job", [WHOLE], indirect=True, ids="-".join)
def test_a_node_that_fails_leaves_the_other_working(job: Job) -> None:
    until_ready(job)
    job.found(1)
    # A node fails as a whole: a supervisor that lived a moment longer would start its owner again.
    processes = inside(job.names[1])
    kill(processes, signal.SIGSTOP)
    kill(processes, signal.SIGKILL)
    assert wait_until(lambda: len(job.segments()) == 1), job.told()
    # A new engine on the first node, with what the job exports.
    environment = job.found(0)["environment"]
    assert isinstance(environment, dict)
    code = (
        "import kvcove; s = kvcove.open('auto', timeout=60).session('model', follow_always=True)\n"
        "print(s.put(['after'], [b'1'], timeout=60).all_ok,"
        " s.longest_prefix([f'chunk-{i}' for i in range(16)], timeout=60))"
    )
    ran = subprocess.run(
        ["ip", "netns", "exec", job.names[0], sys.executable, "-c", code],
        env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert ran.stdout == "True 16\n"
    job.leave()
    assert job.process is not None and job.process.wait(120) == 137
    # What the dead node had on its own disk is not in anybody's hands any more.
    shutil.rmtree(job.directory / "tmp")
    (job.directory / "tmp").mkdir()
    job.assert_nothing_is_left()


@pytest.mark.parametrize("job", [WHOLE, ("mooncake", "part")], indirect=True, ids="-".join)
@pytest.mark.parametrize("host", [0, 1])
def test_a_port_in_use(job: Job, host: int) -> None:
    """The master's on the first node, the owner's on the second one."""
    offset = 0 if host == 0 else 2 if job.kind == "kvcove" else 4
    address = f"10.78.0.{host + 1}"
    code = (
        f"import socket, time; s = socket.create_server(('{address}', {PORT + offset}))\n"
        "print(1, flush=True); time.sleep(600)"
    )
    holder = subprocess.Popen(
        ["ip", "netns", "exec", job.names[host], sys.executable, "-c", code], stdout=subprocess.PIPE
    )
    assert holder.stdout is not None and holder.stdout.readline() == b"1\n"
    job.leave()
    job.start()
    assert job.process is not None
    assert job.process.wait(120) == 1, job.told()
    holder.kill()
    holder.communicate()
    told = (job.directory / "job.log").read_text()
    assert "ended before it was ready" in told, told
    assert f"{address}:{PORT + offset}" in told, "the end of the log says which port"
    job.assert_nothing_is_left()


@pytest.mark.parametrize("job", [PART], indirect=True, ids="-".join)
def test_the_part_leaves_jobs_and_traps_around_it_alone(job: Job) -> None:
    text = job.script.read_text()
    body = text.index("python3 ")
    trap = 'trap "echo theirs >> \\"$OUTPUT_DIR/node_$INFER_NODE_RANK.out.log\\"" EXIT\n'
    # A wait for all jobs of the shell, as prime-rl's templates have it, waits for theirs only.
    job.script.write_text(
        text.replace("INFER_NODE_RANK=$SLURM_PROCID\n", "set -euo pipefail\nINFER_NODE_RANK=$SLURM_PROCID\n" + trap)
        .replace(text[body:], "sleep 0.1 &\nwait\nexit 5\n'\n")
    )  # fmt: skip
    job.start()
    assert job.process is not None
    assert job.process.wait(120) == 5, job.told()
    for rank in range(NODES):
        assert (job.out / f"node_{rank}.out.log").read_text() == "theirs\n"
    job.assert_nothing_is_left()


@pytest.mark.parametrize("job", [MOONCAKE], indirect=True, ids="-".join)
def test_a_disk_and_the_connectors_file(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES", str(64 << 20))
    disk = job.directory / "tmp" / "the disk"
    command = job.script.read_text().split("kv_run python3 ")[1].split("\n")[0]
    job.script.write_text(
        job.render("--disk", str(disk), "--device-name", "mlx5_0,mlx5_1", "--nodes", "2",
                   "--output-dir", str(job.out), "--", "python3", *command.split())
    )  # fmt: skip
    until_ready(job)
    environment = job.found(1)["environment"]
    assert isinstance(environment, dict)
    assert environment["MOONCAKE_OFFLOAD_FSDIR"] == str(disk)
    assert environment["MOONCAKE_OFFLOAD_FILE_STORAGE_PATH"] == str(disk)
    assert environment["MOONCAKE_OFFLOAD_ENABLE_EVICTION"] == "true"
    assert environment["MOONCAKE_CONFIG_PATH"] == str(job.logs(1) / "config.json")
    assert json.loads(Path(environment["MOONCAKE_CONFIG_PATH"]).read_text()) == {
        "mode": "standalone-store",
        "global_segment_size": 0,
        "local_buffer_size": 4294967296,
        "protocol": "rdma",
        "device_name": "mlx5_0,mlx5_1",
        "master_server_address": f"10.78.0.1:{PORT}",
        "metadata_server": f"http://10.78.0.1:{PORT + 3}/metadata",
        "enable_offload": True,
    }
    job.leave()
    assert job.process is not None and job.process.wait(120) == 0, job.told()
    # It was made, and is the user's; the nodes of this test have one file system.
    assert sorted(each.name for each in disk.iterdir()) == ["kvcove-0", "kvcove-1"]
    shutil.rmtree(disk)
    job.assert_nothing_is_left()


@pytest.mark.parametrize("job", [WHOLE], indirect=True, ids="-".join)
def test_the_owners_of_a_job_have_disks_that_go_with_it(job: Job) -> None:
    disk = job.directory / "tmp" / "the disk"
    command = job.script.read_text().split("kv_run python3 ")[1].split("\n")[0]
    job.script.write_text(
        job.render("--disk", f"{disk}:64MiB", "--nodes", "2", "--output-dir", str(job.out), "--",
                   "python3", *command.split())
    )  # fmt: skip
    until_ready(job)
    job.found(1)
    assert len(list(disk.glob("kvcove-*/kvcove.disk"))) == 2
    for rank in range(NODES):
        log = (job.logs(rank) / "owner.log").read_text()
        assert f", disk {disk}/kvcove-" in log
        assert f"disk {disk}/kvcove-" in (job.logs(rank) / "disk.log").read_text()
    job.leave()
    assert job.process is not None and job.process.wait(120) == 0, job.told()
    disk.rmdir()  # what was in it was the job's, and went with it
    job.assert_nothing_is_left()


def pid_in(log: Path) -> int:
    """Return the process that has begun to write a log last."""
    return int(re.findall(r"kvcove\[(\d+)\]", log.read_text())[-1])


OWNER_LOGS = {"kvcove": "owner.log", "mooncake": "client.log"}


@pytest.mark.parametrize("job", [WHOLE, MOONCAKE], indirect=True, ids="-".join)
def test_an_owner_that_dies_is_started_again(job: Job) -> None:
    until_ready(job)
    job.found(1)
    log = job.logs(1) / OWNER_LOGS[job.kind]
    first = pid_in(log)
    os.kill(first, signal.SIGKILL)
    assert wait_until(lambda: pid_in(log) != first), job.told()
    assert wait_until(lambda: len(job.segments()) == NODES), job.told()
    job.leave()
    assert job.process is not None and job.process.wait(120) == 0, job.told()
    job.assert_nothing_is_left()


def prefix_for_a_new_engine(job: Job) -> int:
    """Return how much an engine that is started on node 1 now finds of what node 0 has cached."""
    ran = subprocess.run(
        ["ip", "netns", "exec", job.names[1], sys.executable, str(CLIENT), job.kind, "prefix"],
        env=job.found(1)["environment"],  # type: ignore[arg-type]
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    return int(ran.stdout) if ran.returncode == 0 else 0


@pytest.mark.parametrize("job", [WHOLE, ("mooncake", "part")], indirect=True, ids="-".join)
def test_a_master_that_dies_is_started_again_and_nothing_is_lost(job: Job) -> None:
    until_ready(job)
    job.found(1)
    log = job.logs(0) / "master.log"
    first = pid_in(log)
    os.kill(first, signal.SIGKILL)
    assert wait_until(lambda: pid_in(log) != first), job.told()
    assert wait_until(lambda: prefix_for_a_new_engine(job) == 16), job.told()
    assert re.search(
        rf"what writes {re.escape(str(log))} has ended with status \d+: it is started again \(1 of 5\)",
        (job.directory / "job.log").read_text(),
    )
    job.leave()
    assert job.process is not None and job.process.wait(120) == 0, job.told()
    job.assert_nothing_is_left()


@pytest.mark.parametrize("job", [WHOLE], indirect=True, ids="-".join)
def test_a_master_that_does_not_stay_is_left_alone(job: Job) -> None:
    until_ready(job)
    job.found(1)
    log = job.logs(0) / "master.log"
    for again in range(6):
        pid = pid_in(log)
        os.kill(pid, signal.SIGKILL)
        if again < 5:
            assert wait_until(lambda pid=pid: pid_in(log) != pid), job.told()
    said = f"what writes {log} has ended 6 times, now with status 137: it is not started again"
    assert wait_until(lambda: said in (job.directory / "job.log").read_text()), job.told()
    job.leave()
    assert job.process is not None and job.process.wait(120) == 0, job.told()
    job.assert_nothing_is_left()
