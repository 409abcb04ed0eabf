# SPDX-License-Identifier: Apache-2.0
"""What verl is started with, composed by Hydra over a configuration of verl's shape."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest
from kvcove.launch import verl
from kvcove.launch._document import at, parse
from kvcove.launch.hydra import quote

from kvcove import launch

hydra = pytest.importorskip("hydra")
omegaconf = pytest.importorskip("omegaconf")

# What verl 0.9.1 has there: a struct, in which unknown keys are errors.
CONFIG = """\
actor_rollout_ref:
  rollout:
    name: ???
    engine_kwargs:
      vllm: {}
      sglang: {}
    disaggregation:
      enabled: false
trainer:
  project_name: p
"""
KV = "actor_rollout_ref.rollout.kv_store"
CONNECTOR = ("actor_rollout_ref", "rollout", "engine_kwargs", "vllm", "kv_transfer_config")


@pytest.fixture
def compose(tmp_path: Path) -> Any:
    """The arguments of a command to the configuration that verl sees."""
    (tmp_path / "ppo_trainer.yaml").write_text(CONFIG)

    def composed(arguments: list[str]) -> Any:
        with hydra.initialize_config_dir(str(tmp_path), version_base=None):
            made = hydra.compose("ppo_trainer", arguments)
        made.actor_rollout_ref.rollout.name = "vllm"
        return omegaconf.OmegaConf.to_container(made, resolve=True)

    return composed


def planned(*overrides: str, document: Any = None) -> list[str]:
    """The arguments behind `python3 -m verl.trainer.main_ppo`."""
    start = ["python3", "-m", "verl.trainer.main_ppo"]
    made = verl.plan([*start, "trainer.project_name=q", *overrides], document)
    assert made.command[:3] == start
    return made.command[3:] + made.overrides


def test_verl_takes_it(compose: Any) -> None:
    arguments = planned(f"{KV}.enable=true", f"+{KV}.kv_connector=KvcoveConnector")
    made = compose(arguments)
    assert made["trainer"]["project_name"] == "q"
    assert at(made, CONNECTOR) == launch.build_kv_transfer_config(
        launch.KVStoreConfig(enable=True, kv_connector="KvcoveConnector")
    )
    # verl writes a dict as JSON behind --kv_transfer_config; a DictConfig would not do.
    assert isinstance(at(made, CONNECTOR), dict)
    assert json.loads(json.dumps(at(made, CONNECTOR))) == at(made, CONNECTOR)


@pytest.mark.parametrize(
    ("overrides", "options"),
    [
        (
            [
                f"{KV}.extra_config.kv_connector_extra_config.pool=kvcove://head:7400",
                f"++{KV}.extra_config.kv_connector_extra_config.threads=4",
            ],
            {"pool": "kvcove://head:7400", "threads": 4},
        ),
        (
            [
                f"{KV}.extra_config={{kv_connector_extra_config:{{pool:'unix:/a b/\\'c',lookup:false}}}}"
            ],
            {"pool": "unix:/a b/'c", "lookup": False},
        ),
        (
            [
                f"+{KV}={{extra_config:{{kv_connector_extra_config:{{hold_s:1.5}}}},kv_role:kv_both}}"
            ],
            {"hold_s": 1.5},
        ),
        (
            [
                f"{KV}.extra_config.kv_connector_extra_config.namespace='${{oc.env:KVCOVE_TEST_RUN}}'"
            ],
            {"namespace": "run-7"},
        ),
        (
            [f"{KV}.extra_config.kv_connector_extra_config.namespace=a/b\\,c"],
            {"namespace": "a/b,c"},
        ),
    ],
)
def test_options_arrive_as_they_were_given(
    overrides: list[str], options: dict[str, Any], compose: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVCOVE_TEST_RUN", "run-7")
    arguments = planned(f"{KV}.enable=true", f"{KV}.kv_connector=KvcoveConnector", *overrides)
    assert not [argument for argument in arguments if KV in argument]
    assert at(compose(arguments), (*CONNECTOR, "kv_connector_extra_config")) == {
        "on_unreachable": "fallback",
        **options,
    }


def test_the_path_of_mooncakes_file_comes_from_the_environment(
    compose: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MOONCAKE_CONFIG_PATH", "/etc/mooncake.json")
    command = ["x", f"{KV}.enable=True", f"{KV}.config_path=${{oc.env:MOONCAKE_CONFIG_PATH}}"]
    made = verl.plan(command)
    assert made.environment == {"MOONCAKE_CONFIG_PATH": "/etc/mooncake.json"}
    assert at(compose(made.overrides), CONNECTOR) == {
        "kv_connector": "MooncakeStoreConnector",
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {
            "on_unreachable": "fallback",
            "mooncake_config_path": "/etc/mooncake.json",
        },
    }
    monkeypatch.delenv("MOONCAKE_CONFIG_PATH")
    with pytest.raises(launch.LaunchError, match=r"MOONCAKE_CONFIG_PATH.* not found"):
        verl.plan(command)


def test_overrides_go_over_a_file(compose: Any) -> None:
    document = parse(
        "actor_rollout_ref:\n  rollout:\n    kv_store:\n      enable: true\n"
        "      kv_connector: KvcoveConnector\n      kv_role: kv_both\n"
        "      extra_config: {kv_connector_extra_config: {pool: auto, threads: 3}}\n",
        "yaml",
        "v.yaml",
    )
    made = compose(
        planned(
            f"{KV}.kv_role=kv_consumer",
            f"{KV}.extra_config.kv_connector_extra_config.threads=5",
            document=document,
        )
    )
    assert at(made, (*CONNECTOR, "kv_role")) == "kv_consumer"
    assert at(made, (*CONNECTOR, "kv_connector_extra_config")) == {
        "on_unreachable": "fallback",
        "pool": "auto",
        "threads": 5,
    }
    assert planned(f"{KV}.enable=false", document=document) == ["trainer.project_name=q"]


def test_what_the_page_leads_with(compose: Any) -> None:
    page = (Path(__file__).parents[3] / "docs" / "verl.md").read_text()
    (argument,) = re.findall(r'^  "(\+\S+kv_transfer_config=\{.*\})"$', page, re.MULTILINE)
    block = launch.KVStoreConfig(
        enable=True, extra_config={"kv_connector_extra_config": {"pool": "auto"}}
    )
    made = launch.build_kv_transfer_config(block, vllm_version="0.24.0")
    assert at(compose([argument]), CONNECTOR) == made


def test_without_the_block_a_command_stays_as_it_is(compose: Any) -> None:
    assert planned() == ["trainer.project_name=q"]
    assert planned(f"{KV}.enable=false", f"{KV}.on_failure=crash") == ["trainer.project_name=q"]
    assert at(compose(planned()), CONNECTOR) is None


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        ([f"{KV}.enabled=true"], f"{KV}.enabled: unknown key; did you mean 'enable'"),
        ([f"{KV}.on_failure=maybe"], f"{KV}.on_failure: 'maybe' is not known"),
        ([f"{KV}.enable=[true"], "Hydra cannot read this"),
        ([f"{KV}.enable=true,false"], "one value is wanted, not several"),
        ([f"~{KV}"], "nothing there to delete"),
        ([f"{KV}=true"], "{enable:true,...} is wanted"),
        ([f"{KV}.kv_role.x=1", f"{KV}.kv_role=kv_both", f"{KV}.kv_role.x=1"], "kv_role is no map"),
        ([f"{KV}.config_path=${{trainer.nowhere}}"], "trainer"),
        (
            ["actor_rollout_ref.rollout.name=sglang"],
            "actor_rollout_ref.rollout.name=sglang: .* is for the vLLM rollout",
        ),
        (
            ["actor_rollout_ref.rollout.disaggregation.enabled=True"],
            "drops the one of",
        ),
        (
            ["+actor_rollout_ref.rollout.engine_kwargs.vllm.kv_transfer_config={kv_role:kv_both}"],
            "give one of them",
        ),
    ],
)
def test_what_would_not_work_is_refused(overrides: list[str], told: str) -> None:
    with pytest.raises(launch.LaunchError, match=told):
        planned(f"{KV}.enable=true", *overrides)


DROPPED = [
    ("disaggregation: {enabled: true}", "disaggregation.enabled: True: verl gives"),
    ("name: sglang", "name: sglang: .* is for the vLLM rollout"),
]


@pytest.mark.parametrize(("below", "told"), DROPPED)
@pytest.mark.parametrize("name", ["v.yaml", "verl's own"])
def test_what_would_not_work_is_refused_in_files(
    name: str, below: str, told: str, tmp_path: Path
) -> None:
    rollout = f"actor_rollout_ref:\n  rollout:\n    {below}\n"
    block = f"{KV}={{enable:true,kv_connector:KvcoveConnector}}"
    if name == "v.yaml":
        document = parse(rollout + "    kv_store: {enable: true}\n", "yaml", name)
        told = rf"v\.yaml:3: actor_rollout_ref\.rollout\.{told}"

        def plan(*more: str) -> list[str]:
            return planned(*more, document=document)
    else:
        (tmp_path / "mine.yaml").write_text("defaults: [ppo_trainer, _self_]\n" + rollout)
        told = rf"mine\.yaml:4: actor_rollout_ref\.rollout\.{told}"

        def plan(*more: str) -> list[str]:
            return planned(f"--config-path={tmp_path}", "--config-name", "mine", block, *more)

    with pytest.raises(launch.LaunchError, match=told):
        plan()
    # An override goes over a file.
    over = ["actor_rollout_ref.rollout.disaggregation.enabled=false"]
    assert plan(*over, "actor_rollout_ref.rollout.name=vllm")


def test_a_rollout_that_hydra_is_to_find_out(compose: Any) -> None:
    document = parse("kv_store: {enable: true}\nname: ${oc.env:ROLLOUT}\n", "yaml", "v.yaml")
    assert at(compose(planned(document=document)), CONNECTOR) is not None


def test_a_file_that_is_not_enabled_may_have_any_rollout(tmp_path: Path) -> None:
    document = parse("kv_store: {enable: false}\nname: sglang\n", "yaml", "v.yaml")
    assert planned(document=document) == ["trainer.project_name=q"]


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        (["--config-dir={0}", "--config-name=mine"], True),
        (["-cd", "{0}", "-cn", "mine.yaml"], True),
        (["-cp={0}", "-cn=mine"], True),
        (["--config-path", "{0}"], False),  # it has no ppo_trainer.yaml
        (["--config-name", "other"], False),
        ([], False),
    ],
)
def test_the_file_that_a_command_names(arguments: list[str], found: bool, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("trainer: {nnodes: 3}\n")
    command = ["python3", "-m", "verl", *(each.format(tmp_path) for each in arguments), "a=1"]
    document = verl.own_file(command)
    assert (document is not None) == found
    if document is not None:
        assert verl.hosts_of(command, [document]) == 3
        assert verl.hosts_of([*command, "trainer.nnodes=2"], [document]) == 2
    (tmp_path / "mine.yaml").write_text("trainer: {nnodes: 3\n")  # Hydra says that this is no YAML
    assert verl.own_file(command) is None


def test_hosts_of_a_rollout_of_its_own() -> None:
    assert verl.hosts_of([]) == 1
    assert verl.hosts_of(["trainer.nnodes=2", "actor_rollout_ref.rollout.nnodes=4"]) == 4
    assert verl.hosts_of(["trainer.nnodes=${oc.env:N}"]) == 1


def test_a_connector_in_verls_own_file_is_not_replaced_in_silence(
    compose: Any, tmp_path: Path
) -> None:
    (tmp_path / "ppo_trainer.yaml").write_text(
        CONFIG.replace("vllm: {}", "vllm: {kv_transfer_config: {kv_role: kv_both}}")
    )
    with pytest.raises(hydra.errors.HydraException, match="already at"):
        compose(planned(f"{KV}.enable=true"))


def test_keys_that_begin_alike_are_left_alone() -> None:
    assert planned(f"{KV}_other=1") == ["trainer.project_name=q", f"{KV}_other=1"]


def test_every_text_comes_through_hydra(compose: Any) -> None:
    seed = 20
    random.seed(seed)
    alphabet = "ab'\"\\${}[](),:=~+ #%@\tü\n"
    values = ["".join(random.choices(alphabet, k=random.randint(0, 12))) for _ in range(300)]
    values += ["true", "null", "1e3", "${oc.env:HOME}", "\\${x}", "\\\\${x}", "'", "\\", "\\'"]
    for start in range(0, len(values), 50):
        part = values[start : start + 50]
        override = f"+{'.'.join(CONNECTOR)}={quote({'values': part})}"
        assert at(compose([override]), (*CONNECTOR, "values")) == part, f"seed {seed}, {part}"


def test_every_value_comes_through_hydra(compose: Any) -> None:
    value = {
        "yes": True,
        "no": False,
        "nothing": None,
        "whole": -3,
        "big": 1 << 40,
        "half": 0.5,
        "small": 1e-07,
        "huge": 1e22,
        "list": [1, "a", {"deep": []}],
        "empty": {},
        "a.b-c": "dotted",
    }
    made = compose([f"+{'.'.join(CONNECTOR)}={quote(value)}"])
    assert at(made, CONNECTOR) == value


def test_a_key_that_hydra_cannot_have() -> None:
    with pytest.raises(launch.LaunchError, match="cannot have this key"):
        quote({"a b": 1})
