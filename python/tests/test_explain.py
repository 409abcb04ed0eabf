# SPDX-License-Identifier: Apache-2.0
"""What an engine would share (python -m kvcove.vllm explain), on fakes of vLLM."""

from __future__ import annotations

import subprocess
import sys
import types
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from fake_vllm import installed, module_of
from kvcove.vllm import __main__ as command
from test_vllm_sides import engine, group


@pytest.fixture
def explain(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    for name in ("KVCOVE_POOL", "MOONCAKE_CONFIG_PATH", "MOONCAKE_MASTER", "PYTHONHASHSEED"):
        monkeypatch.delenv(name, raising=False)
    with installed(monkeypatch):
        yield module_of("_explain")


def told(explain: Any, tp: int = 1, extra: Any = None, **cache: Any) -> Any:
    made = engine()
    made.parallel_config.tensor_parallel_size = tp
    made.kv_transfer_config.kv_connector_extra_config = extra or {}
    for name, value in cache.items():
        setattr(made.cache_config, name, value)
    layers = group("FullAttentionSpec", True, "a", "b")
    layers.kv_cache_spec.page_size_bytes = 4096 // tp  # of a layer: 16 tokens, 8 heads
    config = SimpleNamespace(
        prefix_cacheable_groups=(layers,), kv_cache_layout=None, hash_block_size=16
    )
    return explain.explained(made, config)


def test_bytes_of_a_token_are_those_of_all_layers(explain: Any) -> None:
    one = told(explain)
    assert (one.ranks, one.stride_tokens) == (1, 16)
    assert one.rank_token_bytes == one.pool_token_bytes == 2 * 4096 / 16
    four = told(explain, tp=4)
    assert four.ranks == 4
    assert four.rank_token_bytes == one.rank_token_bytes / 4
    assert four.pool_token_bytes == one.pool_token_bytes
    assert four.groups[0]["objects"] == 4
    cut = told(explain, tp=2, extra={"store_tp": 4, "weight_version_source": "engine"})
    assert cut.groups[0]["objects"] == 4
    assert cut.pool_token_bytes == one.pool_token_bytes


def test_equal_engines_share_and_others_are_told_why(explain: Any) -> None:
    one = told(explain)
    assert explain.differences(one, told(explain)) == []
    other = told(explain, tp=2, cache_dtype="fp8", prefix_caching_hash_algo="sha256_cbor")
    why = explain.differences(one, other)
    assert [(fact, first, second) for fact, first, second, _ in why] == [
        ("KV type", "bfloat16", "fp8_e4m3"),
        ("parallelism", "TP 1, PP 1, PCP 1, DCP 1", "TP 2, PP 1, PCP 1, DCP 1"),
        ("block hashing", "sha256:fixed", "sha256_cbor:fixed"),
    ]
    assert all(advice for *_, advice in why)


def test_what_people_read_has_it_all(explain: Any) -> None:
    one = told(explain)
    text = explain.text_of(one)
    for part in (one.namespace, "512 B on a rank", "2 layers", "16 tokens", "sha256:fixed"):
        assert part in text
    assert all(fact in text for fact in one.facts)


def test_an_engine_is_explained_as_the_switch_would_make_it(
    explain: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from test_vllm_switch import VllmConfig

    class EngineArgs:
        kv_transfer_config: Any = None

        @classmethod
        def add_cli_args(cls, parser: Any) -> Any:
            return parser

        @classmethod
        def from_cli_args(cls, words: list[str]) -> Any:
            made = cls()
            made.caching = "--no-enable-prefix-caching" not in words  # type: ignore[attr-defined]
            return made

        def create_engine_config(self) -> Any:
            cache = {"enable_prefix_caching": self.caching}  # type: ignore[attr-defined]
            return VllmConfig(self.kv_transfer_config, cache=cache)

    class Parser:
        def __init__(self, prog: str) -> None:
            pass

        def parse_args(self, words: list[str]) -> list[str]:
            return words

    sys.modules["vllm.config"].__dict__["KVTransferConfig"] = SimpleNamespace
    vllm = SimpleNamespace(EngineArgs=EngineArgs, FlexibleArgumentParser=Parser)
    monkeypatch.setattr(explain._compat, "for_explain", lambda: vllm)
    settings = '{"weight_version_source": "salt"}'
    monkeypatch.setenv("KVCOVE_VLLM_EXTRA_CONFIG", settings)
    monkeypatch.delenv("KVCOVE_VLLM_CONNECTOR", raising=False)
    extra = explain._configured(["m"]).kv_transfer_config.kv_connector_extra_config
    assert extra == {}, "the variable is off"
    assert explain._configured(["m", "--no-enable-prefix-caching"]) is not None
    monkeypatch.setenv("KVCOVE_VLLM_CONNECTOR", "auto")
    extra = explain._configured(["m"]).kv_transfer_config.kv_connector_extra_config
    assert extra == {"weight_version_source": "salt", "pool": "auto"}
    with pytest.raises(ValueError, match="runs without kvcove: its prefix caching is off"):
        explain._configured(["m", "--no-enable-prefix-caching"])


def test_several_engines_are_divided_by_dashes(capsys: pytest.CaptureFixture[str]) -> None:
    assert command._engines_in(["m", "--tp", "2", "--", "n"]) == [["m", "--tp", "2"], ["n"]]
    assert command.main([]) == 2
    assert command.main(["explain", "--help"]) == 0
    assert "explain [--json] ENGINE_ARGS" in capsys.readouterr().out


@pytest.mark.parametrize("newer", [False, True])
def test_the_cache_is_planned_as_each_version_does(
    explain: Any, monkeypatch: pytest.MonkeyPatch, newer: bool
) -> None:
    core = sys.modules["vllm.v1.core"]
    if newer:  # 0.33
        name = "vllm.v1.core.kv_cache_planning"
        planning: Any = types.ModuleType(name)
        planning.get_global_kv_cache_groups = lambda config, specs: ("groups", config, specs)
        planning.get_kv_cache_configs = lambda *arguments: [arguments]
        monkeypatch.setitem(sys.modules, name, planning)
        monkeypatch.setattr(core, "kv_cache_planning", planning, raising=False)
    else:
        utils = explain._compat._kv_cache_utils
        monkeypatch.setattr(utils, "get_kv_cache_configs", lambda *given: [given], raising=False)
        monkeypatch.setitem(sys.modules, "vllm.v1.core", types.ModuleType("vllm.v1.core"))
    (made,) = explain._compat.kv_cache_configs_of("config", ["specs"], [7])
    assert made[:3] == ("config", ["specs"], [7])
    assert made[3:] == ((("groups", "config", ["specs"]),) if newer else ())


def test_without_vllm_one_line_says_where_to_run_it() -> None:
    ran = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys; sys.modules['vllm'] = None; "
            "from kvcove.vllm.__main__ import main; sys.exit(main(['explain', 'm']))",
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ran.returncode, ran.stdout) == (1, "")
    assert ran.stderr.startswith("explain plans an engine with vLLM")
    assert ran.stderr.count("\n") == 1
