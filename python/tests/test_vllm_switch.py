# SPDX-License-Identifier: Apache-2.0
"""KVCOVE_VLLM_CONNECTOR=auto: engines without a kv_transfer_config get the connector. On fakes of vLLM."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import fake_vllm
import pytest
from fake_vllm import installed, module_of

VARIABLES = (
    *("KVCOVE_VLLM_CONNECTOR", "KVCOVE_VLLM_EXTRA_CONFIG", "KVCOVE_MEMORY", "KVCOVE_POOL"),
    *("MOONCAKE_CONFIG_PATH", "MOONCAKE_MASTER", "PYTHONHASHSEED", "PYTORCH_CUDA_ALLOC_CONF"),
)


@pytest.fixture
def switch(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module, with vLLM 0.32's fake and nothing in the environment."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    with installed(monkeypatch):
        vllm: Any = sys.modules["vllm"]
        vllm.__version__ = "0.32.0"
        config: Any = sys.modules["vllm.config"]
        config.KVTransferConfig = SimpleNamespace
        yield module_of("_switch")


def model(window: int | None = None, **more: Any) -> Any:
    kinds = {"is_hybrid": False, "is_attention_free": False, **more}
    return SimpleNamespace(get_sliding_window=lambda: window, **kinds)


class VllmConfig:
    """As vLLM's: it is completed when its fields are there."""

    def __init__(
        self,
        transfer: Any = None,
        of: Any = None,
        cache: Any = None,
        parallel: Any = None,
        outputs: Any = None,
        policy: str = "fcfs",
        overlaps: bool | None = None,
    ) -> None:
        if outputs is not None:  # since 0.31
            self.aux_output_config = outputs
        self.kv_transfer_config = transfer
        self.scheduler_config = SimpleNamespace(policy=policy, async_scheduling=overlaps)
        self.model_config = model() if of is None else of
        self.cache_config = SimpleNamespace(
            **{"enable_prefix_caching": True, "kv_offloading_size": None, **(cache or {})}
        )
        self.parallel_config = SimpleNamespace(
            **{
                **{"tensor_parallel_size": 1, "pipeline_parallel_size": 1},
                **{"distributed_executor_backend": "uni", **(parallel or {})},
            }
        )
        self.__post_init__()

    def __post_init__(self) -> None:
        self.seen = self.kv_transfer_config  # what vLLM goes on with


@pytest.fixture
def made(switch: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A configuration's class after vLLM has loaded the plugin, with the switch on."""
    monkeypatch.setenv("KVCOVE_VLLM_CONNECTOR", "auto")
    kind = type("VllmConfig", (VllmConfig,), {"__post_init__": VllmConfig.__post_init__})
    sys.modules["vllm.config"].__dict__["VllmConfig"] = kind
    factory = SimpleNamespace(_registry={"KvcoveConnector": None})
    name = "vllm.distributed.kv_transfer.kv_connector.factory"
    monkeypatch.setitem(sys.modules, name, SimpleNamespace(KVConnectorFactory=factory))
    module_of("_plugin").register()
    return kind


def test_an_engine_without_a_connector_gets_ours(
    made: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    transfer = made().seen
    assert vars(transfer) == {
        "kv_connector": "KvcoveConnector",
        "kv_connector_module_path": "kvcove.vllm",
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {"pool": "auto"},
    }
    made()
    assert caplog.messages == [
        'kvcove: KVCOVE_VLLM_CONNECTOR=auto: this engine gets KvcoveConnector with {"pool": "auto"}'
    ]
    monkeypatch.setenv("KVCOVE_VLLM_CONNECTOR", "off")
    assert made().seen is None


def test_a_configuration_of_ones_own_stays(made: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    own = SimpleNamespace(kv_connector="NixlConnector", kv_connector_extra_config={})
    assert made(own).seen is own
    assert "a kv_transfer_config of its own (NixlConnector), which stays" in caplog.text
    # vLLM makes configurations without a model, too; they are no engine's.
    bare = made(own)
    bare.model_config = bare.kv_transfer_config = None
    bare.__post_init__()
    assert bare.seen is None


@pytest.mark.parametrize(
    ("variables", "extra"),
    [
        ({"KVCOVE_MEMORY": "8GiB"}, {"pool": "auto", "memory": "8GiB"}),
        ({"KVCOVE_POOL": "unix:/x"}, {"pool": "unix:/x"}),
        # `kvcove run` hands both on: the memory is its owner's.
        ({"KVCOVE_MEMORY": "8GiB", "KVCOVE_POOL": "kvcove://h:7400"}, {"pool": "kvcove://h:7400"}),
        ({"MOONCAKE_MASTER": "head:50051"}, {"pool": "kvcove://head:50051"}),
        (
            {"KVCOVE_VLLM_EXTRA_CONFIG": '{"weights_check_s": 5}', "KVCOVE_MEMORY": "8GiB"},
            {"weights_check_s": 5, "pool": "auto", "memory": "8GiB"},
        ),
        (
            {
                "KVCOVE_VLLM_EXTRA_CONFIG": '{"pool": "embedded", "memory": "1GiB"}',
                "KVCOVE_MEMORY": "8GiB",
                "KVCOVE_POOL": "unix:/x",
            },
            {"pool": "embedded", "memory": "1GiB"},
        ),
    ],
)
def test_variables_say_which_pool_and_how_much_memory(
    switch: Any, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], extra: dict[str, Any]
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert switch.settings() == extra


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("KVCOVE_VLLM_EXTRA_CONFIG", "{", r"\$KVCOVE_VLLM_EXTRA_CONFIG: '\{' is no JSON"),
        ("KVCOVE_VLLM_EXTRA_CONFIG", "[]", "give an object of kv_connector_extra_config"),
        ("KVCOVE_VLLM_EXTRA_CONFIG", '{"treads": 1}', "did you mean 'threads'"),
        ("KVCOVE_VLLM_EXTRA_CONFIG", '{"pool": 7}', "pool: '7': give auto, embedded"),
        ("KVCOVE_MEMORY", "lots", r"\$KVCOVE_MEMORY: .*memory: 'lots'"),
        ("KVCOVE_POOL", "here", r"\$KVCOVE_POOL: 'here': give unix:/PATH"),
    ],
)
def test_a_mistake_in_a_variable_is_an_error(
    made: Any, monkeypatch: pytest.MonkeyPatch, name: str, value: str, told: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=told):
        made()


@pytest.mark.parametrize("value", ["1", "on", "Auto", "kvcove"])
def test_another_value_of_the_switch_is_an_error(
    switch: Any, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv("KVCOVE_VLLM_CONNECTOR", value)
    with pytest.raises(ValueError, match=rf"\$KVCOVE_VLLM_CONNECTOR: '{value}': give auto"):
        module_of("_plugin").register()


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"cache": {"enable_prefix_caching": False}}, "vllm.no_enable_prefix_caching=false"),
        ({"cache": {"kv_offloading_size": 4.0}}, "leave out kv_offloading_size"),
        ({"cache": {"use_replayssm": True}}, "no connector beside use_replayssm"),
        ({"cache": {"calculate_kv_scales": True}}, "scales its KV by its own first request"),
        ({"of": model(enable_return_routed_experts=True)}, "brings no routed experts"),
        (
            {"outputs": SimpleNamespace(enable_return_routed_experts=True)},
            "brings no routed experts",
        ),
        (
            {
                "parallel": {
                    "distributed_executor_backend": "external_launcher",
                    "tensor_parallel_size": 2,
                }
            },
            "each of its 2 ranks schedules by itself",
        ),
    ],
)
def test_an_engine_that_cannot_be_served_runs_without_and_is_told_why_once(
    made: Any, caplog: pytest.LogCaptureFixture, config: dict[str, Any], reason: str
) -> None:
    assert made(**config).seen is None
    assert made(**config).seen is None
    (line,) = caplog.messages
    assert line.startswith("kvcove: KVCOVE_VLLM_CONNECTOR=auto: this engine runs without kvcove: ")
    assert reason in line and "\n" not in line


def test_one_rank_of_an_external_launcher_is_served(made: Any) -> None:
    assert made(parallel={"distributed_executor_backend": "external_launcher"}).seen is not None


def test_memory_that_torch_may_move_is_refused_where_vllm_does_not_take_care(
    made: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:64,expandable_segments:True")
    assert made().seen is None
    assert "set it to expandable_segments:False" in caplog.text
    assert made(of=model(enable_sleep_mode=True)).seen is not None


def test_an_older_vllm_goes_on_without(made: Any, caplog: pytest.LogCaptureFixture) -> None:
    sys.modules["vllm"].__dict__["__version__"] = "0.19.1"
    assert made().seen is None
    assert "this is 0.19.1: upgrade vLLM" in caplog.text


def test_windows_are_refused_where_vllm_cannot_be_told_of_failed_loads(
    switch: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVCOVE_VLLM_CONNECTOR", "auto")
    for lacking, served in ((set(), True), ({"KVConnectorTransferResults"}, False)):
        monkeypatch.setattr(fake_vllm, "LACKING", lacking)
        with installed(monkeypatch):
            vllm: Any = sys.modules["vllm"]
            vllm.__version__ = "0.29.0"
            why_not = module_of("_switch").why_not
            assert why_not(VllmConfig(), {}) is None
            assert (why_not(VllmConfig(of=model(window=128)), {}) is None) is served
            chunked = VllmConfig(of=model(attention_chunk_size=8192))
            assert (why_not(chunked, {}) is None) is served
            states = VllmConfig(of=model(is_attention_free=True))
            assert (why_not(states, {}) is None) is served


@pytest.mark.parametrize(
    ("extra", "config", "served"),
    [
        ({}, {}, False),
        ({}, {"overlaps": False}, False),
        ({"lookup": False}, {}, True),
        ({"load_async": False}, {"overlaps": False}, True),
        # Where the connector would take synchronous loads for others.
        ({"load_async": False}, {"overlaps": True}, False),
        ({"load_async": False}, {"overlaps": None}, False),
        ({"load_async": False}, {"overlaps": False, "of": model(window=128)}, False),
        (
            {"load_async": False},
            {"overlaps": False, "parallel": {"pipeline_parallel_size": 2}},
            False,
        ),
    ],
)
def test_priorities_are_refused_where_a_request_waits_for_its_load(
    made: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    extra: dict[str, Any],
    config: dict[str, Any],
    served: bool,
) -> None:
    monkeypatch.setenv("KVCOVE_VLLM_EXTRA_CONFIG", json.dumps(extra))
    compat = module_of("_compat")
    monkeypatch.setattr(compat, "runs_loaded_first", lambda: True)
    assert made(policy="priority", **config).seen is not None
    monkeypatch.setattr(compat, "runs_loaded_first", lambda: False)
    assert made(**config).seen is not None
    caplog.clear()
    assert (made(policy="priority", **config).seen is not None) is served
    assert served or ("Use fcfs" in caplog.text and len(caplog.messages) == 1)


def test_a_vllm_that_lacks_what_the_plugin_needs_runs_without_it(
    switch: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "vllm.config", None)  # cannot be imported
    module_of("_plugin").register()
    assert "engines without it run as ever" in caplog.text
    monkeypatch.setenv("KVCOVE_VLLM_CONNECTOR", "auto")
    with pytest.raises(ImportError):
        module_of("_plugin").register()
