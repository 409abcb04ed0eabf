# SPDX-License-Identifier: Apache-2.0
"""``python -m kvcove.launch``, as it is run."""

from __future__ import annotations

import doctest
import importlib
import json
import os
import shlex
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from kvcove.launch import _cli

GOLDEN = Path(__file__).parent / "golden"
KV = "actor_rollout_ref.rollout.kv_store"
TARGET = "actor_rollout_ref.rollout.engine_kwargs.vllm.kv_transfer_config"

RL = """\
[inference.deployment]
type = "disaggregated"

[inference.kv_cache_offload]
type = "kvcove"

[inference.kv_cache_offload.cpu]
num_bytes = "64GiB"

[slurm]
"""
VERL = """\
actor_rollout_ref:
  rollout:
    kv_store:
      enable: true
      kv_connector: KvcoveConnector
"""
# Says what it was started with.
FAKE_VERL = """\
import json, os, sys
print(json.dumps([sys.argv[1:], os.environ.get("MOONCAKE_CONFIG_PATH")]))
sys.exit(7)
"""


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "rl.toml").write_text(RL)
    (tmp_path / "verl.yaml").write_text(VERL)
    (tmp_path / "old.toml").write_text("[kv_cache_offload]\ncpu_bytes = 7\n")
    (tmp_path / "fake_verl.py").write_text(FAKE_VERL)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith("MOONCAKE_")}
    return subprocess.run(
        [sys.executable, "-m", "kvcove.launch", *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        env={**kept, **environment},
        check=False,
    )


def build(capsys: pytest.CaptureFixture[str], *arguments: str) -> object:
    assert _cli.main(["build", *arguments]) == 0
    return json.loads(capsys.readouterr().out or "null")


def test_build(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cell = json.loads((GOLDEN / "pd-kvcove.json").read_text())
    assert build(capsys, "rl.toml") == cell
    assert build(capsys, "--pretty", "rl.toml") == cell
    cell = json.loads((GOLDEN / "verl-kvcove.json").read_text())
    assert build(capsys, "verl.yaml") == cell
    (files / "none.toml").write_text("max_steps = 1\n")
    assert build(capsys, "none.toml") is None


def test_build_from_overrides(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("hydra")
    made = build(capsys, "verl.yaml", f"{KV}.kv_role=kv_consumer")
    assert isinstance(made, dict) and made["kv_role"] == "kv_consumer"
    cell = json.loads((GOLDEN / "verl-mooncake.json").read_text())
    assert build(capsys, f"{KV}.enable=true", f"{KV}.kv_connector=MooncakeStoreConnector") == cell
    assert build(capsys, f"{KV}.enable=true", "--vllm-version", "0.23.0") == cell
    cell = json.loads((GOLDEN / "verl-kvcove.json").read_text())
    assert build(capsys, f"{KV}.enable=true", "--vllm-version", "0.24.0") == cell


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["nowhere.toml"], "nowhere.toml: cannot be read: No such file"),
        (["rl.json"], "rl.json: a name that ends in .toml, .yaml or .yml"),
        (["rl.toml", "verl.yaml"], "verl.yaml: one file is enough"),
        (["trainer.x=1"], f"trainer.x=1: neither a file nor a key of {KV}"),
        (["old.toml"], "old.toml:2: kv_cache_offload.cpu_bytes: it is cpu.num_bytes now"),
    ],
)
def test_build_of_what_is_wrong(
    files: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], told: str
) -> None:
    assert _cli.main(["build", *arguments]) == 2
    assert f"kvcove.launch: {told}" in capsys.readouterr().err


def test_check(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _cli.main(["check", "rl.toml", "verl.yaml"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "rl.toml: right; NixlConnector and KvcoveConnector",
        "verl.yaml: right; KvcoveConnector",
    ]
    (files / "wrong.toml").write_text(RL.replace("num_bytes", "num_byts"))
    (files / "else.yaml").write_text("a: 1\n")
    (files / "rl.yaml").write_text("kv_cache_offload: {type: native, cpu: {num_bytes: 5}}\n")
    assert _cli.main(["check", "wrong.toml", "else.yaml", "rl.yaml"]) == 2
    told = capsys.readouterr()
    assert "wrong.toml:8: inference.kv_cache_offload.cpu.num_byts: unknown key" in told.err
    assert told.out.splitlines() == [
        f"else.yaml: there is no {KV}",
        "rl.yaml: right; OffloadingConnector",
    ]


def test_migrate(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _cli.main(["migrate", "--check", "rl.toml", "old.toml"]) == 1
    assert capsys.readouterr().out == (
        "old.toml: outdated; `python -m kvcove.launch migrate --write old.toml`\n"
    )
    new = '[kv_cache_offload]\ntype = "native"\ncpu.num_bytes = 7\n'
    assert _cli.main(["migrate", "old.toml"]) == 0
    assert capsys.readouterr().out == new
    assert _cli.main(["migrate", "--write", "rl.toml", "old.toml"]) == 0
    assert (files / "old.toml").read_text() == new
    assert (files / "rl.toml").read_text() == RL
    assert _cli.main(["migrate", "nowhere.toml"]) == 2


def test_verl_runs_the_command(files: Path) -> None:
    pytest.importorskip("hydra")
    command = ["--", sys.executable, "fake_verl.py", "a=1"]
    ran = run("verl", *command, f"{KV}.enable=true", f"{KV}.kv_connector=KvcoveConnector", "b=2")
    assert (ran.returncode, ran.stderr) == (7, "")
    arguments, path = json.loads(ran.stdout)
    assert arguments[:3] == ["a=1", "b=2", f"+{TARGET}=null"]
    assert arguments[3].startswith(f"{TARGET}={{kv_connector:'KvcoveConnector',")
    assert path is None
    ran = run("verl", "--kv-store", "verl.yaml", *command)
    assert json.loads(ran.stdout) == [["a=1", *arguments[2:]], None]
    ran = run("verl", "--print", *command, f"{KV}.enable=true", f"{KV}.config_path=/m.json")
    assert ran.returncode == 0
    assert ran.stdout.startswith(f"env MOONCAKE_CONFIG_PATH=/m.json {sys.executable} fake_verl.py")


@pytest.mark.parametrize(
    ("arguments", "behind"),
    [
        (["a=1", "b.c=2", "--cfg", "job"], "b.c=2"),
        (["--config-path", "/c", "++a='x y'", "+d@e=f", "--config-name=x"], "+d@e=f"),
        (["a=1", "~b.c", "--resolve", "--cfg=job"], "~b.c"),
        (["--config-name", "x"], "x"),
        (["a=1"], "a=1"),
        ([], "fake_verl.py"),
    ],
)
def test_verl_gets_the_connector_behind_its_last_override(
    files: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], behind: str
) -> None:
    pytest.importorskip("hydra")
    block = [f"{KV}.enable=true", f"{KV}.kv_connector=KvcoveConnector"]
    start = ["env", "A=1", "B=2", "python3", "fake_verl.py"]
    assert _cli.main(["verl", "--print", "--", *start, *arguments[:2], *block, *arguments[2:]]) == 0
    made = shlex.split(capsys.readouterr().out)
    first = made.index(f"+{TARGET}=null")
    assert made[first - 1] == behind
    assert [*made[:first], *made[first + 2 :]] == [*start, *arguments]
    # Hydra's own parser takes it; with the overrides at the end, the first three are errors.
    from hydra._internal.utils import get_args_parser

    parser = get_args_parser()
    taken = parser.parse_args(made[made.index("fake_verl.py") + 1 :])
    assert taken.overrides[-2:] == made[first : first + 2]


def test_verl_without_the_block(files: Path) -> None:
    ran = run("verl", "--", sys.executable, "fake_verl.py", "a=1")
    assert (ran.returncode, json.loads(ran.stdout)) == (7, [["a=1"], None])
    assert ran.stderr == (
        f"kvcove.launch: {KV} is not enabled: the engines get no connector from it\n"
    )


def test_verl_without_a_master(files: Path) -> None:
    pytest.importorskip("hydra")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        (files / "m.json").write_text(json.dumps({"master_server_address": f"127.0.0.1:{port}"}))
        command = ["--", sys.executable, "fake_verl.py", f"{KV}.enable=true"]
        command.append(f"{KV}.config_path={files}/m.json")
        arguments, path = json.loads(run("verl", *command).stdout)
        assert arguments[0] == f"+{TARGET}=null" and path == f"{files}/m.json"
    ran = run("verl", *command)
    assert (ran.returncode, json.loads(ran.stdout)) == (7, [arguments, path])
    assert ran.stderr.startswith(f"kvcove.launch: WARNING: {KV}: the master at 127.0.0.1:{port} ")
    ran = run("verl", *command, f"{KV}.on_failure=crash")
    assert (ran.returncode, ran.stdout) == (1, "")
    assert "does not answer: Connection refused. Start it, or" in ran.stderr


@pytest.mark.parametrize(("argument", "told"), [("", True), ("wait_for_inflight_requests", False)])
def test_a_vllm_that_verl_cannot_abort(argument: str, told: bool, files: Path) -> None:
    pytest.importorskip("hydra")
    for package, module, text in (
        (
            "verl",
            "workers/rollout/vllm_rollout/vllm_async_server",
            "wait_for_inflight_requests=False",
        ),
        ("vllm", "v1/engine/async_llm", f"def pause_generation({argument}): ..."),
    ):
        file = files / package / f"{module}.py"
        file.parent.mkdir(parents=True)
        file.write_text(text)
        (files / package / "__init__.py").write_text("")
    block = f"{KV}={{enable:true,kv_connector:KvcoveConnector}}"
    ran = run("verl", "--", sys.executable, "fake_verl.py", block, PYTHONPATH=str(files))
    assert ran.returncode == 7
    assert ("this verl cannot abort requests of this vLLM" in ran.stderr) == told


def test_verl_on_several_hosts(files: Path) -> None:
    pytest.importorskip("hydra")
    block = f"{KV}={{enable:true,kv_connector:KvcoveConnector}}"
    command = ["--", sys.executable, "fake_verl.py", block, "trainer.nnodes=2"]
    ran = run("verl", *command, KVCOVE_POOL="auto")
    assert ran.returncode == 7
    assert "engines of different hosts share nothing. To share: start 'kvcove master'" in ran.stderr
    (files / "verl.yaml").write_text(VERL + "trainer:\n  nnodes: 2\n")
    ran = run("check", "verl.yaml", KVCOVE_POOL="auto")
    assert "verl.yaml: 2 hosts, and the pool 'auto' is of one host" in ran.stderr
    assert ran.stdout == "verl.yaml: right; KvcoveConnector\n"


@pytest.mark.parametrize(
    ("arguments", "status", "told"),
    [
        (["verl"], 2, "a command is wanted"),
        (["verl", "--", "no-such-command"], 127, "no-such-command: no such command"),
        (["verl", "--kv-store", "rl.yaml", "--", "true"], 2, "rl.yaml: cannot be read"),
        (["verl", "--kv-store", "else.yaml", "--", "true"], 2, f"else.yaml: there is no {KV}"),
    ],
)
def test_verl_that_cannot_run(
    files: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    status: int,
    told: str,
) -> None:
    (files / "else.yaml").write_text("a: 1\n")
    assert _cli.main(arguments) == status
    assert told in capsys.readouterr().err


@pytest.mark.parametrize("command", ["build", "check", "migrate", "prime-rl", "slurm", "verl"])
def test_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        _cli.main([command, "--help"])
    assert caught.value.code == 0
    assert f"python -m kvcove.launch {command}" in capsys.readouterr().out


def test_what_is_missing_is_named() -> None:
    code = "import sys; sys.modules['pydantic'] = None; import kvcove.launch"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "pip install 'kvcove[launch]'" in ran.stderr


def test_no_engine_is_imported() -> None:
    code = "import sys, kvcove.launch; print([m for m in ('vllm', 'torch', 'hydra') if m in sys.modules])"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "[]\n"


@pytest.mark.parametrize("name", ["", ".connector", ".kv_store", ".offload", ".slurm"])
def test_examples(name: str) -> None:
    failed, tried = doctest.testmod(importlib.import_module(f"kvcove.launch{name}"))
    assert tried > 0
    assert failed == 0
