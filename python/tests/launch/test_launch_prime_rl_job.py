# SPDX-License-Identifier: Apache-2.0
"""Jobs that prime-rl's launcher writes, run on two hosts: what its template starts on each node.

With KVCOVE_PRIME_RL=CHECKOUT also the templates of that checkout, and its own command with
`type = "mooncake"`. Their clean-up of other jobs is left out: it ends processes by name.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import wait_until
from slurm_hosts import CLIENT, Job, job_on
from test_launch_prime_rl_run import CHECKOUT, REAL, STAND_IN

FAKES = {
    # What prime-rl's environment has.
    "uv": '#!/bin/bash\n[ "$1 $2" != "run inference" ] || exec {python} {engine} {kind} leave\n',
    "hostname": '#!/bin/bash\necho "10.78.0.$((SLURM_PROCID + 1)) 172.17.0.1"\n',
    "vllm-router": "#!/bin/bash\nexec sleep infinity\n",
    "ibv_devinfo": "#!/bin/bash\n",
}
CASES = [("stand-in", "kvcove", True), ("stand-in", "mooncake", True)]
REAL_CASES = [
    ("prime-rl", "kvcove", True),
    ("prime-rl", "mooncake", True),
    ("prime-rl", "mooncake", False),
]


def write_job(job: Job, path: str, *, launched: bool) -> None:
    """Let the launcher write its job, and take out of it what each node runs."""
    directory = job.directory
    project = directory / "project"
    (project / ".venv" / "bin").mkdir(parents=True)
    (project / ".venv" / "bin" / "activate").touch()
    for name, text in FAKES.items():
        fake = text.format(python=sys.executable, engine=CLIENT, kind=job.kind)
        (directory / name).write_text(fake)
        (directory / name).chmod(0o755)
    (directory / "run.toml").write_text(
        f'output_dir = "{job.out}"\n[slurm]\n[deployment]\ntype = "multi_node"\nnum_nodes = 2\n'
        f'gpus_per_node = 1\n[kv_cache_offload]\ntype = "{job.kind}"\ncpu.num_bytes = {64 << 20}\n'
    )
    launcher = ["kvcove.launch", "prime-rl", "--", "inference"]
    if not launched:
        launcher = ["prime_rl.entrypoints.inference"]
    inherited = os.environ.get("PYTHONPATH", "")
    subprocess.run(
        [sys.executable, "-m", *launcher, "@", "run.toml", "--dry-run"],
        cwd=directory, check=True, capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [path, inherited]))},
    )  # fmt: skip
    text = (job.out / "inference.sbatch").read_text()
    found = re.search(r"^srun[^\n]* bash -s <<'LAUNCH_SH'\n(.*?)^LAUNCH_SH$", text, re.M | re.S)
    assert found is not None and "pkill" not in found[1]
    (directory / "launch.sh").write_text(found[1])
    job.script.write_text(f"srun bash {directory}/launch.sh\n")
    (job.out / "logs" / "inference").mkdir(parents=True)
    job.environment = {
        "PROJECT_DIR": str(project),
        "CONFIG_PATH": str(job.out / "configs" / "inference.json"),
        "LOG_DIR": str(job.out / "logs"),
        "HOSTNAMES_STR": "node0 node1",
        "GPUS_PER_NODE": "1",
        "BACKEND_PORT": "8100",
        "ROUTER_PORT": "8000",
        "RPC_PORT": "13345",
        "ROUTER_ARGS": "",
        "USER": f"kvs-{os.getpid()}",
    }


@pytest.mark.parametrize(
    ("package", "kind", "launched"),
    [
        *CASES,
        *(
            pytest.param(
                *case,
                marks=pytest.mark.skipif(not CHECKOUT, reason="KVCOVE_PRIME_RL is not set"),
            )
            for case in REAL_CASES
        ),
    ],
)
def test_nodes_of_prime_rls_job_share_a_pool(
    namespaces: list[str], package: str, kind: str, launched: bool
) -> None:
    with job_on(namespaces, kind) as job:
        write_job(job, STAND_IN if package == "stand-in" else REAL, launched=launched)
        job.start()
        found = job.found(1)
        took = time.monotonic() - job.began
        print(
            f"{package}, {kind}, {launched=}: node 1 has found what node 0 has cached after {took:.1f} s"
        )
        assert (found["prefix"], found["right"]) == (16, 16), job.told()
        environment = found["environment"]
        assert isinstance(environment, dict)
        assert environment["PYTHONHASHSEED"] == "0"
        # Nothing was set beside what prime-rl's file says.
        assert "KVCOVE_INSECURE" not in environment and "KVCOVE_CREDENTIALS" not in environment
        if launched and kind == "mooncake":
            assert environment["PATH"].split(":")[0].endswith("/kvcove/mooncake/overlay/bin")
        job.leave()
        assert job.process is not None and job.process.wait(120) == 0, job.told()
        assert wait_until(job.ended)
        kept = [path for path in job.out.rglob("*") if path.suffix == ".toml" or path.is_socket()]
        # The drop-in's programs keep their directory there; kvcove's part gives them one of the job.
        private = [] if launched else [f"kvcove-{os.getuid()}"]
        assert (kept, [path.name for path in (job.directory / "tmp").iterdir()]) == ([], private)
    for left in Path("/tmp").glob(f"vllm-rpc-kvs-{os.getpid()}-*"):  # of prime-rl's template
        left.rmdir()
