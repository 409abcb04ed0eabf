# SPDX-License-Identifier: Apache-2.0
"""Where engines may be given KV of old weights, a launcher says so, or refuses."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from kvcove.launch import _cli
from kvcove.launch._stale import program_of, ranks_of

from kvcove import launch

NATIVE = '[inference.kv_cache_offload]\ntype = "native"\ncpu.num_bytes = 1024\n'
DISK = NATIVE + 'disk.path = "{}"\n'
MOONCAKE = '[slurm]\n[inference.kv_cache_offload]\ntype = "mooncake"\ncpu.num_bytes = 1048576\n'
KVCOVE = '[inference.kv_cache_offload]\ntype = "kvcove"\ncpu.num_bytes = 1048576\n'
UNVERSIONED = KVCOVE + 'extra_config.weight_version_source = "none"\n'
PD = '[inference.deployment]\ntype = "disaggregated"\n'
TP = "[inference.parallel]\ntp = 2\n"
VERL = "actor_rollout_ref:\n  rollout:\n    kv_store: {{enable: true, kv_connector: {}}}\n"
SALT = "cache_salt"
QUEUE = "empties the queue of puts of rank 0 only"

CASES = [
    ("native.toml", NATIVE, [SALT]),
    ("disk.toml", DISK, [SALT, "give each run a directory of its own"]),
    ("mooncake.toml", MOONCAKE, [SALT]),
    ("mooncake.toml", PD + MOONCAKE, [SALT]),
    ("mooncake.toml", TP + MOONCAKE, [SALT, QUEUE]),
    ("mooncake.toml", MOONCAKE + "[inference.vllm]\ntensor_parallel_size = 8\n", [SALT, QUEUE]),
    ("mooncake.toml", MOONCAKE + "[inference.vllm]\npipeline_parallel_size = 2\n", [SALT, QUEUE]),
    ("kvcove.toml", TP + KVCOVE, []),
    ("kvcove.toml", UNVERSIONED, [SALT]),
    ("none.toml", "max_steps = 1\n", []),
    ("kvcove.yaml", VERL.format("KvcoveConnector"), []),
    # verl's default is two.
    ("mooncake.yaml", VERL.format("MooncakeStoreConnector"), ["until its first reset", QUEUE]),
    (
        "one.yaml",
        VERL.format("MooncakeStoreConnector") + "    tensor_model_parallel_size: 1\n",
        ["until its first reset"],
    ),
    (
        "stages.yaml",
        VERL.format("MooncakeStoreConnector")
        + "    tensor_model_parallel_size: 1\n    pipeline_model_parallel_size: 2\n",
        ["until its first reset", QUEUE],
    ),
    (
        "unknown.yaml",
        VERL.format("MooncakeStoreConnector") + "    tensor_model_parallel_size: ${oc.env:TP}\n",
        ["until its first reset", QUEUE],
    ),
]


@pytest.mark.parametrize("command", ["check", "build"])
@pytest.mark.parametrize(("name", "text", "expected"), CASES)
def test_a_file(
    command: str,
    name: str,
    text: str,
    expected: list[str],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = tmp_path / name
    file.write_text(text.format(tmp_path) if "{}" in text else text)
    assert _cli.main([command, str(file)]) == 0
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == len(expected)
    assert all(part in said for part, said in zip(expected, messages, strict=True))
    assert all("KvcoveConnector" in said for said in messages)
    capsys.readouterr()
    caplog.clear()
    assert _cli.main([command, "--strict", str(file)]) == (2 if expected else 0)
    refused = capsys.readouterr()
    assert not caplog.records
    assert all(part in refused.err for part in expected)
    assert bool(refused.out) == (not expected and (command, name) != ("build", "none.toml"))


def test_a_run_of_verl(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    block = "actor_rollout_ref.rollout.kv_store={enable:true,config_path:/m.json}"
    size = "actor_rollout_ref.rollout.tensor_model_parallel_size="
    for number, queues in (("4", True), ("1", False)):
        command = ["--print", "--", "python3", "-m", "verl", block, size + number]
        assert _cli.main(["verl", *command]) == 0
        assert any(QUEUE in r.getMessage() for r in caplog.records) == queues
        assert _cli.main(["verl", "--strict", *command]) == 2
        caplog.clear()
    capsys.readouterr()


def test_a_job_of_slurm(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    job = ["--memory", "1GiB", "--nodes", "2", "--output-dir", str(tmp_path)]
    engine = ["--", "vllm", "serve", "m", "--tensor-parallel-size", "2"]
    assert _cli.main(["slurm", "--type", "mooncake", *job, *engine]) == 0
    assert [QUEUE in r.getMessage() for r in caplog.records] == [False, True]
    assert "'vllm serve' does not reset it" in caplog.text
    assert "prime-rl" not in caplog.text
    caplog.clear()
    assert _cli.main(["slurm", "--type", "mooncake", "--memory", "1GiB", "--part"]) == 0
    assert "the program that runs the engines does not reset it" in caplog.text
    assert "prime-rl" not in caplog.text
    caplog.clear()
    file = tmp_path / "inference.toml"
    file.write_text(MOONCAKE)
    assert _cli.main(["slurm", str(file), "--part"]) == 0
    assert "prime-rl does not reset it" in caplog.text
    caplog.clear()
    assert _cli.main(["slurm", "--type", "kvcove", *job, *engine]) == 0
    assert not caplog.records
    capsys.readouterr()
    assert _cli.main(["slurm", "--strict", "--type", "mooncake", *job, *engine]) == 2
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("command", "ranks"),
    [
        (["vllm", "serve", "m"], 1),
        (["vllm", "serve", "m", "-tp", "4"], 4),
        (["vllm", "serve", "m", "-tp=4"], 4),
        (["vllm", "serve", "m", "--tensor-parallel-size=8", "--port", "1"], 8),
        (["vllm", "serve", "m", "--tensor_parallel_size", "8"], 8),
        (["vllm", "serve", "m", "-tp"], 1),
        (["vllm", "serve", "m", "-tp", "$TP"], None),
        (["vllm", "serve", "m", "-tp", "'2'"], 2),
        (["vllm", "serve", "m", "-tp", "2", "-pp=2"], 4),
        (["vllm", "serve", "m", "--pipeline_parallel_size", "2"], 2),
    ],
)
def test_the_ranks_of_an_engine(command: list[str], ranks: int | None) -> None:
    assert ranks_of(command) == ranks


@pytest.mark.parametrize(
    ("command", "program"),
    [
        (["vllm", "serve", "m", "-tp", "2"], "'vllm serve'"),
        (["env", "A=1", "vllm", "serve", "m"], "'vllm serve'"),
        (["python3", "-m", "sglang.launch_server"], "'python3'"),
        ([], "the program that runs the engines"),
    ],
)
def test_the_program_that_is_launched(command: list[str], program: str) -> None:
    assert program_of(command) == program


def test_a_trainers_own_code(serve: str, caplog: pytest.LogCaptureFixture) -> None:
    config = {"inference": {"kv_cache_offload": {"type": "native", "cpu": {"num_bytes": 1024}}}}
    assert launch.for_prime_rl(config) is not None
    assert SALT in caplog.text
    with pytest.raises(launch.LaunchError, match=SALT):
        launch.for_prime_rl(config, strict=True)
    caplog.clear()
    block = {
        "enable": True,
        "kv_connector": "KvcoveConnector",
        "extra_config": {"kv_connector_extra_config": {"pool": f"unix:{serve}"}},
    }
    assert launch.for_verl(block, tensor_parallel_size=4, strict=True) is not None
    assert not caplog.records


def test_a_load_that_fails_ends_no_request(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    block = "actor_rollout_ref.rollout.kv_store={enable:true,config_path:/m.json%s}"
    with caplog.at_level(logging.WARNING):
        assert _cli.main(["build", block % ""]) == 0
        assert '"kv_load_failure_policy":"recompute"' in capsys.readouterr().out
        assert "kv_load_failure_policy" not in caplog.text
        failing = block % ",extra_config:{kv_load_failure_policy:fail}"
        assert _cli.main(["build", failing]) == 0
    assert '"kv_load_failure_policy":"fail"' in capsys.readouterr().out
    assert "ends a user's request" in caplog.text
    assert _cli.main(["build", "--strict", failing]) == 2
