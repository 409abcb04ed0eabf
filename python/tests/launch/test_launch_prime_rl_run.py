# SPDX-License-Identifier: Apache-2.0
"""prime-rl's launchers with a type of kvcove's: on a stand-in, and on a checkout of prime-rl.

`prime_rl.json` is what the real configuration package said when it was exported: the stand-in has to say the
same, and so does `check`. KVCOVE_PRIME_RL=CHECKOUT runs the tests on prime-rl itself, too.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import prime_rl_shape
import pytest
from kvcove.launch import _cli, prime_rl
from kvcove.launch._document import parse

HERE = Path(__file__).parent
EXPORTED = json.loads((HERE / "prime_rl.json").read_text())
CHECKOUT = os.environ.get("KVCOVE_PRIME_RL", "")
STAND_IN = str(HERE / "prime_rl_like")
REAL = os.pathsep.join(f"{CHECKOUT}/{part}" for part in ("packages/prime-rl-configs/src", "src"))

JOB = "[slurm]\n"
PD = '[deployment]\ntype = "disaggregated"\n'
KVCOVE = '[kv_cache_offload]\ntype = "kvcove"\n'
CPU = 'cpu.num_bytes = "2GiB"\n'
CONNECTOR = {
    "kv_connector": "KvcoveConnector",
    "kv_role": "kv_both",
    "kv_connector_module_path": "kvcove.vllm",
    "kv_load_failure_policy": "recompute",
}


@pytest.fixture(
    params=[
        "stand-in",
        pytest.param(
            "prime-rl", marks=pytest.mark.skipif(not CHECKOUT, reason="KVCOVE_PRIME_RL is not set")
        ),
    ]
)
def path(request: pytest.FixtureRequest) -> str:
    """PYTHONPATH with prime-rl, or what stands in for it."""
    return STAND_IN if request.param == "stand-in" else REAL


class Launched:
    """A run of a launcher in a directory: what it printed, and the files that it wrote."""

    def __init__(
        self,
        directory: Path,
        path: str,
        text: str,
        *words: str,
        name: str = "inference",
        module: str = "",
    ) -> None:
        directory.mkdir(exist_ok=True)
        (directory / "run.toml").write_text(f'output_dir = "{directory}/out"\n{text}')
        inherited = os.environ.get("PYTHONPATH", "")
        run = [sys.executable, "-m", "kvcove.launch", "prime-rl", *words, "--", name]
        if module:
            run = [sys.executable, "-m", module]
        ran = subprocess.run(
            [*run, "@", "run.toml", "--dry-run"],
            cwd=directory, capture_output=True, text=True, timeout=300, check=False,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [path, inherited]))},
        )  # fmt: skip
        self.status, self.said, self.out = (
            ran.returncode,
            ran.stderr + ran.stdout,
            directory / "out",
        )

    def engine(self) -> dict[str, Any]:
        """The configuration of the engines' processes, on whatever node."""
        (file,) = self.out.rglob("inference.json")
        return dict(json.loads(file.read_text()))

    def job(self) -> str:
        (file,) = self.out.rglob("*.sbatch")
        return file.read_text()


def as_an_engine_reads_it(engine: dict[str, Any], path: str) -> Any:
    """The connector that unmodified prime-rl gives to vLLM, in a process without kvcove's type."""
    code = (
        "import json, sys\nfrom prime_rl.configs.inference import InferenceConfig\n"
        "made = InferenceConfig.model_validate(json.loads(sys.argv[1]))\n"
        "print(json.dumps([made.to_namespace().kv_transfer_config, made.vllm.enable_prefix_caching]))\n"
    )
    inherited = os.environ.get("PYTHONPATH", "")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [path, inherited]))}
    run = [sys.executable, "-c", code, json.dumps(engine)]
    ran = subprocess.run(run, capture_output=True, text=True, env=environment, check=True)
    connector, caching = json.loads(ran.stdout.splitlines()[-1])
    assert caching is True
    return connector


def test_a_job_of_prefill_and_decode(tmp_path: Path, path: str) -> None:
    text = f'{JOB}{PD}{KVCOVE}{CPU}disk.path = "/local disk/kv"\nextra_config.namespace = "mine"\n'
    ran = Launched(tmp_path, path, text)
    assert ran.status == 0, ran.said
    engine = ran.engine()
    assert (engine["kv_cache_offload"], engine["use_pd_kv_transfer"]) == (None, False)
    nixl = {
        "kv_connector": "NixlConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"num_threads": 1},
    }
    options = {"pool": "auto", "namespace": "mine"}
    assert as_an_engine_reads_it(engine, path) == {
        "kv_connector": "MultiConnector",
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {
            "connectors": [nixl, {**CONNECTOR, "kv_connector_extra_config": options}]
        },
    }
    # The memory is the nodes': one pool, which engines find in their environment.
    job = ran.job()
    assert [
        line for line in job.splitlines() if re.match("export KV_(NAME|MEMORY|DISK)=", line)
    ] == [
        "export KV_NAME=kvcove",
        "export KV_MEMORY=2GiB",
        'export KV_DISK="/local disk/kv"',
    ]
    assert "\nkv_join\n" in job and "ulimit -l unlimited" in job
    assert "mooncake_master -" not in job and "own part" not in job
    # Where prime-rl's lock does not name kvcove, an exact sync would remove it.
    syncs = re.findall(r"uv sync (\S+) --all", job)
    assert syncs and set(syncs) == {"--inexact"}
    checked = subprocess.run(["bash", "-n"], input=job, text=True, capture_output=True, check=False)
    assert (checked.returncode, checked.stderr) == (0, "")


@pytest.mark.parametrize(
    ("block", "options"),
    [
        (CPU, {"pool": "auto", "memory": "2GiB"}),
        ('pool = "kvcove://head:7400"\n', {"pool": "kvcove://head:7400"}),
        (f'{CPU}disk.path = "HERE"\n', {"pool": "auto", "memory": "2GiB", "disk": "HERE"}),
    ],
)
def test_engines_of_this_host(
    tmp_path: Path, path: str, block: str, options: dict[str, str]
) -> None:
    ran = Launched(tmp_path, path, KVCOVE + block.replace("HERE", f"{tmp_path}/kv"))
    assert ran.status == 0, ran.said
    if path != STAND_IN:
        return  # it writes nothing for an engine in its own process
    wanted = {key: value.replace("HERE", f"{tmp_path}/kv") for key, value in options.items()}
    assert as_an_engine_reads_it(ran.engine(), path) == {
        **CONNECTOR,
        "kv_connector_extra_config": wanted,
    }


def test_a_job_whose_pool_is_elsewhere_starts_none(tmp_path: Path, path: str) -> None:
    ran = Launched(tmp_path, path, f'{JOB}{KVCOVE}pool = "kvcove://head:7400"\n')
    assert ran.status == 0, ran.said
    assert "kv_join" not in ran.job()
    made = as_an_engine_reads_it(ran.engine(), path)
    assert made["kv_connector_extra_config"] == {"pool": "kvcove://head:7400"}


def test_mooncake_is_on_kvcoves_programs(tmp_path: Path, path: str) -> None:
    text = f'{JOB}{PD}[kv_cache_offload]\ntype = "mooncake"\ncpu.num_bytes = 4096_000\n'
    ran = Launched(tmp_path, path, text)
    assert ran.status == 0, ran.said
    assert "MooncakeStoreConnector keeps KV in a pool and has no version of the weights" in ran.said
    engine = ran.engine()
    assert engine["kv_cache_offload"]["type"] == "mooncake"
    assert "kv_transfer_config" not in engine["vllm"]
    job = ran.job()
    assert "export KV_BYTES=4096000\n" in job
    # Before the original's, which are in prime-rl's environment.
    (programs,) = re.findall(r'^export PATH=(\S+):"\$PATH"$', job, re.M)
    assert Path(programs, "mooncake_master").is_file()
    (modules,) = re.findall(r'^export PYTHONPATH=([^"]+)"', job, re.M)
    assert str(Path(programs).parent) == modules
    ran = Launched(tmp_path / "strict", path, text, "--strict")
    assert ran.status == 2
    assert ran.said.startswith("kvcove.launch: MooncakeStoreConnector keeps KV")


@pytest.mark.parametrize(
    ("text", "status", "told"),
    [
        (f"{KVCOVE}", 1, "requires a cpu tier"),
        (f'{KVCOVE}cpu.num_bytes = "2 gigs"\n', 1, "'2 gigs' is not a size"),
        (f"{KVCOVE}{CPU}extra_config.threds = 3\n", 1, "did you mean 'threads'?"),
        (
            f'{KVCOVE}{CPU}[vllm]\nkv_transfer_config = "x"\n',
            2,
            "kvcove.launch: inference.vllm.kv_transfer_config: inference.kv_cache_offload makes it",
        ),
        (f'{KVCOVE}{CPU}disk.path = "kv"\n', 1, "disk: 'kv': an absolute directory"),
        (
            f'{KVCOVE}{CPU}disk.path = "TEMPLATE/kv"\n',
            2,
            "kvcove.launch: inference.kv_cache_offload.disk.path: ",
        ),
        (
            f'{KVCOVE}{CPU}[slurm]\ntemplate_path = "TEMPLATE"\n',
            2,
            "in a way that is not known here",
        ),
    ],
)
def test_what_is_wrong_is_told(
    tmp_path: Path, path: str, text: str, status: int, told: str
) -> None:
    (tmp_path / "x.sbatch.j2").write_text(
        '{% if other %}{% include "_mooncake_store.sh.j2" %}{% endif %}'
    )
    ran = Launched(tmp_path, path, text.replace("TEMPLATE", str(tmp_path / "x.sbatch.j2")))
    assert ran.status == status
    assert told in ran.said
    assert not list((tmp_path / "out").rglob("*.json"))


def test_rl_reads_it_below_inference(tmp_path: Path) -> None:
    below = f"[inference]\n{PD}{KVCOVE}{CPU}".replace("[dep", "[inference.dep").replace(
        "[kv", "[inference.kv"
    )
    ran = Launched(tmp_path, STAND_IN, JOB + below, name="rl")
    assert ran.status == 0, ran.said
    assert as_an_engine_reads_it(ran.engine(), STAND_IN)["kv_connector"] == "MultiConnector"
    assert "\nkv_join\n" in ran.job()
    ran = Launched(
        tmp_path / "replay",
        STAND_IN,
        JOB + "[trainer]\nenable_router_replay = true\n" + below,
        name="rl",
    )
    assert ran.status == 1
    assert "Router replay with inference.kv_cache_offload is not supported" in ran.said
    # prime-rl's own failure keeps its traceback.
    ran = Launched(tmp_path / "none", STAND_IN, "", name="rl")
    assert ran.status == 1
    assert "Traceback" in ran.said and "ValueError: prime-rl's own failure" in ran.said


RL = """\
max_steps = 1
[slurm]
[trainer]
[model]
name = "Qwen/Qwen3-0.6B"
[deployment]
type = "multi_node"
num_train_nodes = 1
num_infer_nodes = 2
[inference.deployment]
type = "disaggregated"
[inference.kv_cache_offload]
type = "kvcove"
cpu.num_bytes = "2GiB"
[[orchestrator.train.source]]
name = "x"
[orchestrator.train.source.env.taskset]
id = "kvcove-taskset"
[orchestrator.train.source.env.agent.harness]
id = "null"
"""
TASKSET = 'import verifiers.v1 as vf\nclass T(vf.Taskset): pass\n__all__ = ["T"]\n'


@pytest.mark.skipif(
    not CHECKOUT or importlib.util.find_spec("verifiers") is None,
    reason="KVCOVE_PRIME_RL is not set, or verifiers, which its rl needs, is not installed",
)
def test_rl_of_prime_rl_itself(tmp_path: Path) -> None:
    (tmp_path / "kvcove_taskset.py").write_text(TASKSET)
    path = os.pathsep.join([REAL, str(tmp_path)])
    ran = Launched(tmp_path, path, RL, name="rl")
    assert ran.status == 0, ran.said
    made = as_an_engine_reads_it(ran.engine(), path)
    assert [made["kv_connector"], made["kv_load_failure_policy"]] == ["MultiConnector", "recompute"]
    assert "\nkv_join\n" in ran.job() and "mooncake_master -" not in ran.job()
    replay = RL.replace("[trainer]", "[trainer]\nenable_router_replay = true")
    ran = Launched(tmp_path / "replay", path, replay, name="rl")
    assert ran.status == 1
    assert "Router replay with inference.kv_cache_offload is not" in ran.said


def test_a_job_of_one_node_has_no_place_for_a_pool(tmp_path: Path) -> None:
    template = Path(STAND_IN) / "prime_rl" / "templates" / "single_node_rl.sbatch.j2"
    text = f'[slurm]\ntemplate_path = "{template}"\n[inference.kv_cache_offload]\ntype = "kvcove"\n{CPU}'
    ran = Launched(tmp_path, STAND_IN, text, name="rl")
    assert ran.status == 0, ran.said
    assert ran.job().splitlines()[1] == "uv sync --inexact --all-extras"
    made = as_an_engine_reads_it(ran.engine(), STAND_IN)
    assert made["kv_connector_extra_config"] == {"pool": "auto", "memory": "2GiB"}


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "prime-rl: a command is wanted"),
        (["--", "trainer", "@", "x.toml"], "prime-rl: trainer: give 'rl' or 'inference'"),
        (["--", "uv", "run", "rl"], "prime-rl: uv: give 'rl' or 'inference'"),
        (["--", "rl", "@", "x.toml"], "prime_rl.configs.inference cannot be imported (No module"),
    ],
)
def test_commands_that_are_none(
    words: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _cli.main(["prime-rl", *words]) == 2
    assert told in capsys.readouterr().err


def test_another_version_of_prime_rl_is_told(tmp_path: Path) -> None:
    package = tmp_path / "prime_rl" / "configs"
    package.mkdir(parents=True)
    (package / "inference.py").write_text("")
    ran = Launched(tmp_path, str(tmp_path), "")
    assert ran.status == 2
    assert ran.said.startswith("kvcove.launch: prime-rl: this version is not known here (module")


# ---- the export


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The stand-in's module, as nobody has changed it."""
    monkeypatch.syspath_prepend(STAND_IN)
    yield importlib.import_module("prime_rl.configs.inference")
    for name in [name for name in sys.modules if name.partition(".")[0] == "prime_rl"]:
        del sys.modules[name]


def test_the_stand_in_is_as_prime_rl_was(stand_in: Any) -> None:
    assert prime_rl_shape.fields(stand_in) == EXPORTED["fields"]
    assert prime_rl_shape.cases(stand_in) == EXPORTED["cases"]


@pytest.mark.skipif(not CHECKOUT, reason="KVCOVE_PRIME_RL is not set")
def test_the_export_is_as_prime_rl_is() -> None:
    run = [sys.executable, str(HERE / "prime_rl_shape.py"), CHECKOUT]
    ran = subprocess.run(run, capture_output=True, text=True, check=True)
    assert json.loads(ran.stdout) == EXPORTED


@pytest.mark.parametrize("name", prime_rl_shape.CASES)
def test_check_takes_what_prime_rl_takes(name: str, tmp_path: Path) -> None:
    """And makes the connector that it makes, but for the policy and the disk tier's later name."""
    text, expected = prime_rl_shape.CASES[name], EXPORTED["cases"][name]
    if name == "native, disk":
        text = f"[slurm]\n{text}"  # so nobody looks for /d here
    (tmp_path / "x.toml").write_text(text)
    assert _cli.main(["check", str(tmp_path / "x.toml")]) == (2 if expected is False else 0)
    if expected is False:
        return
    made = prime_rl.load(parse(text, "toml")).build_kv_transfer_config("0.22.0")
    assert without_policy(made) == expected


def without_policy(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: without_policy(v) for k, v in value.items() if k != "kv_load_failure_policy"}
    return [without_policy(item) for item in value] if isinstance(value, list) else value


# ---- what is proposed to prime-rl

PATCH = HERE.parents[2] / "contrib" / "prime-rl.patch"


@pytest.mark.skipif(not PATCH.is_file(), reason="the patch is in the repository only")
def test_the_patch_names_its_version_and_only_adds() -> None:
    text = PATCH.read_text()
    assert f"prime-rl {EXPORTED['version']} " in text
    ran = subprocess.run(
        ["git", "apply", "--numstat", "--unidiff-zero", str(PATCH)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    counts = [line.split("\t") for line in ran.stdout.splitlines()]
    assert 30 <= sum(int(added) for added, _, _ in counts) <= 50
    assert {removed for _, removed, _ in counts} == {"0"}


@pytest.mark.skipif(not CHECKOUT, reason="KVCOVE_PRIME_RL is not set")
def test_prime_rl_with_the_patch_needs_no_launcher(tmp_path: Path) -> None:
    for part in ("packages/prime-rl-configs/src", "src"):
        shutil.copytree(Path(CHECKOUT, part, "prime_rl"), tmp_path / part / "prime_rl")
    environment = {**os.environ, "GIT_CEILING_DIRECTORIES": str(tmp_path.parent)}
    subprocess.run(
        ["git", "apply", "--unidiff-zero", str(PATCH)], cwd=tmp_path, check=True, env=environment
    )
    part = [sys.executable, "-m", "kvcove.launch", "slurm", "--type", "kvcove", "--part"]
    made = subprocess.run(part, capture_output=True, text=True, check=True).stdout
    (tmp_path / "src/prime_rl/templates/_kvcove_store.sh.j2").write_text(made)
    path = os.pathsep.join([f"{tmp_path}/packages/prime-rl-configs/src", f"{tmp_path}/src"])
    text = f'{JOB}{PD}{KVCOVE}cpu.num_bytes = 2147483648\ndisk.path = "/local/kv"\n'
    ran = Launched(tmp_path / "alone", path, text, module="prime_rl.entrypoints.inference")
    assert ran.status == 0, ran.said
    assert "export KV_MEMORY=2147483648\n" in ran.job()
    assert 'export KV_DISK="/local/kv"\n' in ran.job()
    assert "\nkv_join\n" in ran.job() and "mooncake_master -" not in ran.job()
    config = as_an_engine_reads_it(ran.engine(), path)
    assert (config["kv_connector"], config["kv_load_failure_policy"]) == (
        "MultiConnector",
        "recompute",
    )
    nixl, ours = config["kv_connector_extra_config"]["connectors"]
    options = {"pool": "auto", "memory": "2147483648", "disk": "/local/kv"}
    assert (nixl["kv_connector"], ours) == (
        "NixlConnector",
        {**CONNECTOR, "kv_connector_extra_config": options},
    )
    # kvcove's launcher adds nothing to it, and works.
    ran = Launched(tmp_path / "launched", path, text)
    assert ran.status == 0, ran.said
    assert ran.job().count("\nkv_join\n") == 1
