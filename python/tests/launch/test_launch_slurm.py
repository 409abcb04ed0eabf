# SPDX-License-Identifier: Apache-2.0
"""Jobs of SLURM as they are rendered; test_launch_slurm_run.py runs them."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import time
from pathlib import Path

import jinja2
import pytest
from conftest import wait_until
from kvcove.launch import _cli, slurm
from kvcove.launch._errors import LaunchError

ROOT = Path(__file__).resolve().parents[3]
DEPLOY = ROOT / "deploy" / "slurm"

PRIME_RL = """\
[slurm]

[inference.deployment]
type = "disaggregated"

[inference.kv_cache_offload]
type = "mooncake"
device_name = "mlx5_0"
cpu.num_bytes = 137_438_953_472
disk.path = "/local disk/kv"
"""


def render(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert _cli.main(["slurm", *words]) == 0
    return capsys.readouterr().out


def settings(text: str) -> dict[str, str]:
    """Return what the shell makes of the assignments."""
    exports = [line for line in text.splitlines() if line.startswith("export KV_")]
    names = [line.split("=")[0].removeprefix("export ") for line in exports]
    shown = [f'printf "%s\\0" "${name}"' for name in names]
    ran = subprocess.run(
        ["bash", "-c", "\n".join([*exports, *shown])], capture_output=True, text=True, check=True
    )
    return dict(zip(names, ran.stdout.split("\0"), strict=False))


ODD = [
    "plain",
    "a b",
    "it's",
    'say "so"',
    "$HOME",
    "`id`",
    "back\\slash",
    "ünï",
    "*",
    "",
    "#x",
    "~",
]


@pytest.mark.parametrize("text", ODD)
def test_every_text_is_one_word_within_single_quotes_too(text: str) -> None:
    word = slurm.quoted(text)
    assert "'" not in word
    for command in (f"printf %s {word}", f"bash -c 'printf %s {word}'"):
        ran = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
        assert ran.stdout == text


@pytest.mark.parametrize("text", ["a\nb", "a\tb", "\x7f"])
def test_control_characters_are_refused(text: str) -> None:
    with pytest.raises(LaunchError, match="control characters"):
        slurm.quoted(text)


PARTS = [
    ("kvcove",),
    ("kvcove", "--disk", "/a b:1GiB"),
    ("mooncake",),
    ("mooncake", "--disk", "/a b", "--device-name", "mlx5_0"),
]


@pytest.mark.parametrize("words", PARTS, ids="-".join)
def test_the_part_fits_where_it_is_included(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    text = render(capsys, "--part", "--memory", "64GiB", "--type", *words)
    assert "'" not in text, "it stands within bash -c '...'"
    assert not re.search(r"\{\{|\{%|\{#", text), "Jinja would read it"
    # By name, other people's processes on a shared node would end, too.
    assert not re.search(r"\b(pkill|killall|pgrep)\b", text)
    assert 'eval "' not in text.replace('eval "before=($(trap -p EXIT))"', "")


@pytest.mark.parametrize("kind", ["kvcove", "mooncake"])
def test_a_part_takes_the_values_of_prime_rls_template(
    capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    part = ("--type", kind, "--part")
    text = render(capsys, *part)
    assert "'" not in text
    template = jinja2.Environment(keep_trailing_newline=True).from_string(text)
    devices = "mlx5_0,mlx5_1" if kind == "mooncake" else ""
    for odd in ["", *(f"/local/{text}" for text in ODD)]:
        made = template.render(
            kv_offload_cpu_bytes=4096_000,
            kv_offload_disk_path=odd,
            kv_offload_device_name=devices,
        )
        assert "'" not in made
        more = [*(["--disk", odd] if odd else []), *(["--device-name", devices] if devices else [])]
        written = settings(render(capsys, *part, "--memory", "4096000", *more))
        assert settings(made) == {**written, "KV_MEMORY": "4096000"}
        ran = subprocess.run(
            ["bash", "-n"], input=made, text=True, capture_output=True, check=False
        )
        assert (ran.returncode, ran.stderr) == (0, "")
    # For a type that prime-rl does not know it gives 0.
    made = template.render(
        kv_offload_cpu_bytes=0, kv_offload_disk_path="", kv_offload_device_name=""
    )
    ran = subprocess.run(["bash"], input=made, text=True, capture_output=True, check=False)
    assert (ran.returncode, "has no kv_offload_cpu_bytes" in ran.stderr) == (1, True)
    assert _cli.main(["slurm", *part, "--disk", "/d"]) == 2
    assert "--memory is missing: or leave --disk" in capsys.readouterr().err


def scripts(capsys: pytest.CaptureFixture[str]) -> list[str]:
    parts = [render(capsys, "--part", "--memory", "1GiB", "--type", *words) for words in PARTS]
    jobs = [
        render(capsys, "--type", kind, "--memory", "1GiB", "--nodes", "2", "--output-dir", "/x y",
               "--sbatch=--time=1:00:00", "--", "vllm", "serve", "it's $odd")
        for kind in ("kvcove", "mooncake")
    ]  # fmt: skip
    return [*(f"#!/bin/bash\n{part}" for part in parts), *jobs]


def test_bash_reads_them(capsys: pytest.CaptureFixture[str]) -> None:
    for text in scripts(capsys):
        ran = subprocess.run(
            ["bash", "-n"], input=text, capture_output=True, text=True, check=False
        )
        assert (ran.returncode, ran.stderr) == (0, "")


def test_shellcheck_finds_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    if shutil.which("shellcheck") is None:
        pytest.skip("shellcheck is not installed")
    for text in scripts(capsys):
        ran = subprocess.run(
            ["shellcheck", "-"], input=text, capture_output=True, text=True, check=False
        )
        assert ran.stdout == "", text
    # srun's shell is a text to shellcheck; here it is what it will be.
    jobs = [text for text in scripts(capsys) if 'bash -c "$(declare -f)"' in text]
    assert len(jobs) == 2
    for text in jobs:
        head, _, rest = text.partition("# This shell has the master")
        inner = rest.split('"$(declare -f)"\'\n')[1].removesuffix("'\n")
        ran = subprocess.run(
            ["shellcheck", "-"], input=head + inner, capture_output=True, text=True, check=False
        )
        assert ran.stdout == "", inner


def test_a_configuration_of_prime_rl(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "rl.toml"
    file.write_text(PRIME_RL)
    found = settings(render(capsys, str(file), "--part"))
    assert found["KV_CONFIG"] == (
        '{"mode": "standalone-store", "global_segment_size": 0, "local_buffer_size": 4294967296, '
        '"protocol": "rdma", "device_name": "mlx5_0", "enable_offload": true}'
    )
    assert {name: value for name, value in found.items() if name != "KV_CONFIG"} == {
        "KV_NAME": "mooncake",
        "KV_MEMORY": "128GiB",
        "KV_FIRST_PORT": "20000",
        "KV_TIMEOUT": "120",
        "KV_BYTES": str(128 << 30),
        "KV_DISK": "/local disk/kv",
        "KV_DEVICES": "mlx5_0",
    }
    # Options go over it.
    words = ("--memory", "1GiB", "--disk", "/d", "--device-name", "x", "--first-port", "5000")
    found = settings(render(capsys, str(file), "--part", *words))
    assert [found[f"KV_{name}"] for name in ("BYTES", "DISK", "DEVICES", "FIRST_PORT")] == [
        str(1 << 30),
        "/d",
        "x",
        "5000",
    ]


def test_a_vllm_gets_the_connector(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "rl.toml"
    file.write_text(PRIME_RL)
    job = ("--memory", "1GiB", "--nodes", "2", "--output-dir", "/o", "--")

    def command(*words: str) -> list[str]:
        (line,) = (x for x in render(capsys, *words).splitlines() if x.startswith("kv_run vllm"))
        return shlex.split(line)[1:]

    kvcove = (
        '{"kv_connector":"KvcoveConnector","kv_role":"kv_both","kv_connector_module_path":"kvcove.vllm",'
        '"kv_load_failure_policy":"recompute","kv_connector_extra_config":{"pool":"auto"}}'
    )
    plain = ["vllm", "serve", "m"]
    assert command("--type", "kvcove", *job, *plain) == [*plain, "--kv-transfer-config", kvcove]
    made = command(str(file), *job, *plain)
    assert made[3] == "--kv-transfer-config"
    assert '"kv_connector":"MultiConnector"' in made[4]
    assert made[4].index("NixlConnector") < made[4].index("MooncakeStoreConnector")
    own = [*plain, "--kv-transfer-config={}"]
    assert command("--type", "kvcove", *job, *own) == own
    for name in ("kv-transfer-config", "kv_transfer_config"):
        (tmp_path / "engine.yaml").write_text(f"port: 1\n{name}: '{{}}'\n")
        for option in (
            ["--config", f"{tmp_path}/engine.yaml"],
            [f"--config={tmp_path}/engine.yaml"],
        ):
            own = [*plain, *option]
            assert command("--type", "mooncake", *job, *own) == own
    caplog.clear()  # of what is said of MooncakeStoreConnector
    (tmp_path / "engine.yaml").write_text("port: 1\n")
    own = [*plain, "--config", f"{tmp_path}/engine.yaml"]
    assert command("--type", "kvcove", *job, *own) == [*own, "--kv-transfer-config", kvcove]
    assert caplog.text == ""
    own = [*plain, "--config", f"{tmp_path}/elsewhere.yaml"]
    assert command("--type", "kvcove", *job, *own) == [*own, "--kv-transfer-config", kvcove]
    assert "elsewhere.yaml cannot be read here" in caplog.text
    assert command("--type", "kvcove", *job, "vllm", "bench") == ["vllm", "bench"]
    file.write_text(
        '[kv_cache_offload]\ntype = "kvcove"\ncpu.num_bytes = "8GiB"\n'
        'extra_config.namespace = "mine"\n'
    )
    made = command(str(file), *job, *plain)
    assert '"kv_connector_extra_config":{"pool":"auto","namespace":"mine"}' in made[4]


def test_the_type_without_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    def connector(*words: str) -> str:
        assert _cli.main(["slurm", "--memory", "1GiB", "--part", *words]) == 0
        return "Mooncake" if "mooncake_master" in capsys.readouterr().out else "Kvcove"

    assert connector("--vllm-version", "0.24.0") == "Kvcove"
    assert connector("--vllm-version", "0.23.0") == "Mooncake"
    assert connector("--vllm-version", "0.24.0", "--type", "mooncake") == "Mooncake"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "--memory is missing"),
        (["--type", "kvcove"], "--memory is missing"),
        (["--type", "kvcove", "--memory", "lots"], "--memory: 'lots' is not a size"),
        (["--type", "kvcove", "--memory", "1GiB", "--disk", "/d:1MiB"], "a disk has 64MiB or more"),
        (
            ["--type", "kvcove", "--memory", "1GiB", "--disk", "/d:x"],
            "--disk /d:x: 'x' is not a size",
        ),
        (["--type", "mooncake", "--memory", "1GiB", "--disk", "/d:1GiB"], "takes a path alone"),
        (["--type", "kvcove", "--memory", "1GiB", "--device-name", "x"], "only --type mooncake"),
        (
            ["--type", "kvcove", "--memory", "17TiB"],
            "--memory 17TiB: the owner on each node gives",
        ),
        (["--type", "mooncake", "--memory", "1KiB"], "gives 1MiB to 16TiB"),
        (["--type", "mooncake", "--memory", "1GiB", "--disk", "d"], "--disk d: give an absolute"),
        (["--type", "kvcove", "--memory", "1GiB", "--first-port", "60000"], "give 1024 to 55536"),
        (["--type", "kvcove", "--memory", "1GiB", "--timeout", "0"], "--timeout 0: give 1 to"),
        (["--type", "kvcove", "--memory", "1GiB"], "--nodes is missing (or --part)"),
        (["--type", "kvcove", "--memory", "1GiB", "--part", "--nodes", "2"], "leave --nodes"),
        (["--type", "kvcove", "--memory", "1GiB", "--part", "--", "x"], "leave --nodes"),
        (["JOB", "--output-dir", "/o"], "a command is wanted: ... -- vllm serve MODEL"),
        (["JOB", "--output-dir", "o", "--", "x"], "--output-dir o: give an absolute path"),
        (["JOB", "--output-dir", "/%j", "--", "x"], "no % and no"),
        (["JOB", "--output-dir", "/a\nb", "--", "x"], "control characters"),
        (["JOB", "--output-dir", "/o", "--sbatch", "time=1", "--", "x"], "begins with -"),
        (["JOB", "--output-dir", "/o", "--sbatch=-a\n-b", "--", "x"], "control characters"),
        (["JOB", "--nodes", "0", "--output-dir", "/o", "--", "x"], "--nodes 0: give 1 or more"),
        (["JOB", "--output-dir", "/o", "--setup", " ", "--", "x"], "--setup: give a command"),
        (["JOB", "--output-dir", "/o", "--setup", "a\nb", "--", "x"], "--setup may be repeated"),
        (["PART", "--setup", "echo ${#x}"], "Jinja would read this"),
        (["native.toml", "--part"], "native.toml: type = 'native': only 'kvcove' and 'mooncake'"),
        (["none.toml", "--part"], "none.toml: no kv_cache_offload"),
        (["else.toml", "--part"], "pool = 'kvcove://h:1': the job starts a pool of its own"),
        (["kvcove.toml", "--type", "mooncake", "--part"], "--type mooncake: kvcove.toml says"),
    ],
)
def test_what_is_wrong_is_named(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    told: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    block = "[kv_cache_offload]\n"
    size = "cpu.num_bytes = 1073741824\n"
    Path("native.toml").write_text(f'{block}type = "native"\n{size}')
    Path("none.toml").write_text("max_steps = 1\n")
    Path("else.toml").write_text(f'{block}type = "kvcove"\npool = "kvcove://h:1"\n')
    Path("kvcove.toml").write_text(f'{block}type = "kvcove"\n{size}')
    if words[:1] == ["JOB"]:
        words = ["--type", "kvcove", "--memory", "1GiB", "--nodes", "2", *words[1:]]
    if words[:1] == ["PART"]:
        words = ["--type", "kvcove", "--memory", "1GiB", "--part", *words[1:]]
    assert _cli.main(["slurm", *words]) == 2
    error = capsys.readouterr().err
    assert error.startswith("kvcove.launch: ")
    assert told in error


@pytest.mark.skipif(not DEPLOY.is_dir(), reason="the examples are in the repository only")
def test_the_examples_are_what_is_rendered(capsys: pytest.CaptureFixture[str]) -> None:
    commands = re.findall(
        r"^python -m kvcove\.launch slurm (.*) > (\S+)$",
        (DEPLOY / "README.md").read_text().replace("\\\n", ""),
        re.MULTILINE,
    )
    names = {path.name for path in DEPLOY.iterdir() if path.suffix in (".sbatch", ".j2")}
    assert {name for _, name in commands} == names
    for words, name in commands:
        assert render(capsys, *shlex.split(words)) == (DEPLOY / name).read_text(), name


def test_setup_runs_first_and_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    setup = "module load 'cuda 12'  # \"ours\""
    words = ("--type", "kvcove", "--memory", "1GiB", "--setup", setup, "--setup", "false")
    stub = 'module() { printf \'<%s>\' "$@"; }\nkv_fail() { echo "$1"; exit 9; }\n'
    job = render(capsys, *words, "--nodes", "2", "--output-dir", "/o", "--", "x")
    part = render(capsys, *words, "--part")
    texts = [
        job.partition("unset SLURM_EXPORT_ENV\n")[2].partition("kv_need")[0],
        job.partition("INFER_NODE_RANK=$SLURM_PROCID\n")[2].partition("LOCAL_IP=")[0],
        part.rpartition("kv_begin\n")[0][-300:].partition("}\n")[2],
    ]
    for text in texts:
        assert "'" not in text
        ran = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", stub + text], capture_output=True, text=True, check=False
        )  # fmt: skip
        assert ran.stdout == "<load><cuda 12>--setup failed with status 1: false\n", text
        assert ran.returncode == 9


def functions(text: str, **environment: str) -> str:
    """Return what a text prints that has the functions of jobs."""
    file = Path(slurm.__file__).parent / "shell" / "functions.sh"
    ran = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", f'. "{file}"\n{text}'],
        env={**os.environ, "SLURM_CLUSTER_NAME": "c", "SLURMD_NODENAME": "n", **environment},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return ran.stdout


def test_jobs_share_no_file_of_an_output_directory(tmp_path: Path) -> None:
    """Also a job that runs a second time, and two steps of one job."""
    text = 'kv_begin; kv_node 1; echo "$KV_DIR $KV_LOGS $KV_LOCAL"'
    runs: list[dict[str, str]] = [
        {"SLURM_JOB_ID": "7"},
        {"SLURM_JOB_ID": "8"},
        {"SLURM_JOB_ID": "8", "SLURM_RESTART_COUNT": "1"},
        {"SLURM_JOB_ID": "8", "SLURM_STEP_ID": "0"},
    ]
    settings = {"OUTPUT_DIR": str(tmp_path), "KV_NAME": "mooncake", "KV_FIRST_PORT": "20000"}
    names = [functions(text, **settings, **run).split() for run in runs]
    assert len({name for three in names for name in three}) == 12
    assert names[2][1] == f"{tmp_path}/mooncake/8_1_batch/node_1"


# The file of a directory that a job has left, and whether the directory is known to be nobody's any more.
MARKS = {
    "ended": ("${mine% * *} $(bash -c 'echo $$') 1", True),
    "another-process": ("${mine% *} 1", True),
    "another-boot": ("${mine/ * pid/ x pid}", True),
    "mine": ("$mine", False),
    "another-node": ("c/m ${mine#* }1", False),
    "another-cluster": ("d/n ${mine#* }1", False),
    "another-namespace": ("${mine/pid:*/pid:[1] 1 1}", False),
    "empty": ("", False),
}


def test_only_directories_of_shells_that_have_ended_are_removed(tmp_path: Path) -> None:
    text = "mine=$(kv_process $$)\n"
    for name, (mark, _) in MARKS.items():
        (tmp_path / f"kvcove-{name}").mkdir()
        text += f'echo "{mark}" > "{tmp_path}/kvcove-{name}/shell"\n'
    (tmp_path / "kvcove-without").mkdir()
    (tmp_path / "else").mkdir()
    (tmp_path / "kvcove-link").symlink_to(tmp_path / "else")
    text += f'cp "{tmp_path}/kvcove-ended/shell" "{tmp_path}/else"\n'
    text += f'kv_sweep "{tmp_path}"/kvcove-* "{tmp_path}"/none-*\n'
    functions(text)
    stay = {f"kvcove-{name}" for name, (_, ended) in MARKS.items() if not ended}
    assert {path.name for path in tmp_path.iterdir()} == {
        *stay,
        "kvcove-without",
        "kvcove-link",
        "else",
    }
    assert (tmp_path / "else" / "shell").exists()


def test_directories_of_another_user_are_left_alone(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root makes directories of another user")
    place = tmp_path / "kvcove-x"
    place.mkdir()
    functions(f'kv_process "$BASHPID" > "{place}/shell"')
    os.chown(place, 1, 1)
    functions(f'kv_sweep "{place}"')
    assert place.exists()
    os.chown(place, 0, 0)
    functions(f'kv_sweep "{place}"')
    assert not place.exists()


@pytest.mark.parametrize(
    ("array", "name"),
    [({}, "5"), ({"SLURM_ARRAY_JOB_ID": "5", "SLURM_ARRAY_TASK_ID": "2"}, "5_2")],
)
def test_the_batch_shell_passes_sigterm_to_the_steps_of_its_job(
    tmp_path: Path, array: dict[str, str], name: str
) -> None:
    """And not to srun, which would kill them, nor to other jobs of its array."""
    for program, line in {
        "srun": "trap 'exit 9' TERM; touch srun; until [ -s scancel ]; do sleep 0.05; done; exit 7",
        "scancel": 'echo "$@" > scancel',
    }.items():
        (tmp_path / "bin").mkdir(exist_ok=True)
        (tmp_path / "bin" / program).write_text(f"#!/bin/bash\ncd {tmp_path}\n{line}\n")
        (tmp_path / "bin" / program).chmod(0o755)
    folder = Path(slurm.__file__).parent / "shell"
    shell = subprocess.Popen(
        ["bash", "-c", f'. {folder}/functions.sh; . {folder}/job.sh; KV_LOCAL="$1"; kv_srun x', "job", str(tmp_path)],
        env={**os.environ, "PATH": f"{tmp_path}/bin:{os.environ['PATH']}", "SLURM_JOB_ID": "5", **array},
    )  # fmt: skip
    assert wait_until((tmp_path / "srun").exists)
    shell.terminate()
    assert shell.wait(60) == 7
    assert (tmp_path / "scancel").read_text() == f"--signal=TERM {name}\n"


def test_a_command_that_signals_end_gives_its_status(tmp_path: Path) -> None:
    """They reach all processes of a job: the shell, the keeper and the command."""
    functions = Path(slurm.__file__).parent / "shell" / "functions.sh"
    text = f'. "{functions}"; KV_LOCAL=$1; kv_run bash -c "touch $1/$2; exec sleep 60" "$@"'
    shells = [
        subprocess.Popen(
            ["bash", "-euo", "pipefail", "-c", text, "job", str(tmp_path), str(i)],
            start_new_session=True, stderr=subprocess.DEVNULL,
        )
        for i in range(60)
    ]  # fmt: skip
    begun = wait_until(lambda: len([*tmp_path.iterdir()]) == len(shells), 120)
    for shell in shells:
        with contextlib.suppress(ProcessLookupError):
            for _ in range(30):
                os.killpg(shell.pid, signal.SIGTERM)
                time.sleep(0.002)
    assert [shell.wait(120) for shell in shells] == [143] * len(shells)
    assert begun
