# SPDX-License-Identifier: Apache-2.0
"""What the adapter does without where a vLLM is older, on fakes of it; make test-vllm runs the real ones."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import fake_vllm
import pytest
from fake_vllm import installed, module_of

OLD = {
    "CacheHitSource",
    "KVConnectorBlockState",
    "KVConnectorTransferResults",
    "kv_cache_layout",
    "resolve_none_hash_seed",
    "to_event_extra_keys",
}


@pytest.fixture
def old(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """vLLM 0.24, as far as kvcove.vllm imports it."""
    monkeypatch.setattr(fake_vllm, "LACKING", OLD)
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    monkeypatch.delenv("VLLM_KV_CACHE_LAYOUT", raising=False)
    with installed(monkeypatch):
        sys.modules["vllm"].__dict__["__version__"] = "0.24.0"
        yield module_of("_compat")


def parallel(**sizes: int) -> Any:
    return SimpleNamespace(
        cache_config=SimpleNamespace(calculate_kv_scales=False),
        parallel_config=SimpleNamespace(
            **{"prefill_context_parallel_size": 1, "decode_context_parallel_size": 1, **sizes}
        ),
    )


def cache(groups: int = 1, **more: Any) -> Any:
    return SimpleNamespace(kv_cache_groups=[f"group {i}" for i in range(groups)], **more)


def test_a_model_that_needs_what_this_vllm_lacks_is_refused_in_one_line(old: Any) -> None:
    def of(*specs: Any) -> Any:
        return SimpleNamespace(
            kv_cache_groups=[SimpleNamespace(kv_cache_spec=spec) for spec in specs]
        )

    full, window = old.FullAttentionSpec(), old.SlidingWindowSpec()
    old.check_model(parallel(), of(full))
    old.check_model(parallel(), of(SimpleNamespace(kv_cache_specs={"layer": full})))
    for groups, what in (((full, window), "2 groups"), ((window,), "no full attention")):
        with pytest.raises(
            ValueError, match=rf"{what} .* vLLM 0\.24 .* Upgrade to vLLM 0\.30"
        ) as told:
            old.check_model(parallel(), of(*groups))
        assert "\n" not in str(told.value)
    scaled = parallel()
    scaled.cache_config.calculate_kv_scales = True
    with pytest.raises(ValueError, match=r"calculate_kv_scales .* leave it out"):
        old.check_model(scaled, of(full))
    with pytest.raises(ValueError, match=r"prefill context parallelism \(2 ranks\)"):
        old.check_model(parallel(prefill_context_parallel_size=2), of(full))


def test_its_groups_all_have_hashes_and_full_attention_alone_is_cut(old: Any) -> None:
    assert old.cacheable_groups(cache(1)) == ("group 0",)
    assert old.cacheable_group_ids(cache(2)) == (0, 1)
    two = parallel(decode_context_parallel_size=2)
    assert old.dcp_ranks_of(old.FullAttentionSpec(), two) == 2
    assert old.dcp_ranks_of(old.SlidingWindowSpec(), two) == 1
    old._kv_cache_utils.resolve_kv_cache_block_sizes = lambda cache, config: (64, 32)
    assert old.hash_tokens_of(cache(), two, 64) == 32
    assert old.use_eagle_block_drop(SimpleNamespace(use_eagle=lambda: True))


def test_what_it_does_not_know_is_left_out_of_events(old: Any) -> None:
    class BlockStored:
        __struct_fields__ = ("block_hashes", "medium")

        def __init__(self, **fields: Any) -> None:
            self.fields = fields

    old.BlockStored = BlockStored
    made = old.block_stored(block_hashes=[1], medium="cpu", session_id="s")
    assert made.fields == {"block_hashes": [1], "medium": "cpu"}
    assert old.event_extra_keys([("lora",), None]) == [("lora",), None]
    assert old.event_extra_keys([]) is None


class Backend:
    """An attention backend with keys and values apart."""

    @staticmethod
    def get_kv_cache_shape(
        num_blocks: int, block_size: int, num_kv_heads: int, head_size: int
    ) -> tuple[int, ...]:
        return (num_blocks, 2, block_size, num_kv_heads, head_size)


class Tensor:
    """As much of a torch.Tensor as is read."""

    def __init__(self, shape: tuple[int, ...], strides: tuple[int, ...]) -> None:
        self.shape, self._strides = shape, strides

    def element_size(self) -> int:
        return 2

    def stride(self) -> tuple[int, ...]:
        return self._strides

    def data_ptr(self) -> int:
        return 4096


def engine(backend: Any = Backend) -> Any:
    layer = SimpleNamespace(get_attn_backend=lambda: backend)
    made = parallel()
    made.compilation_config = SimpleNamespace(static_forward_context={"a": layer})
    return made


def on_a_gpu(compat: Any) -> None:
    compat.platform = lambda: SimpleNamespace(is_cpu=lambda: False)


def test_its_backends_are_asked_for_the_axes_of_their_tensors(old: Any) -> None:
    assert old.axes_of("a", 5, engine()) == ("block", "kv", "token", "head", "element")
    with pytest.raises(ValueError, match="which are not those of this one"):
        old.axes_of("a", 4, engine())


def test_a_rank_whose_blocks_lie_otherwise_than_the_engine_says_refuses(
    old: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_a_gpu(old)
    shape = module_of("_shape")
    group = SimpleNamespace(layer_names=["a"], kv_cache_spec=None)
    config = SimpleNamespace(num_blocks=8, kv_cache_groups=[group])
    # 8 blocks of keys and values, 16 tokens, 4 heads of 32.
    tokens_first = Tensor((8, 2, 16, 4, 32), (4096, 2048, 128, 32, 1))
    heads_first = Tensor((8, 2, 16, 4, 32), (4096, 2048, 32, 512, 1))
    ((name, number, at, element, axes),) = shape.layers_of({"a": tokens_first}, config, engine())
    assert (name, number, at, element) == ("a", 0, 4096, 64)
    assert axes == [
        *(("block", 8, 8192), ("kv", 2, 4096), ("token", 16, 256), ("head", 4, 64)),
    ]
    with pytest.raises(ValueError, match=r"order KHNC .* layout is KNHC: set VLLM_KV_CACHE_LAYOUT"):
        shape.layers_of({"a": heads_first}, config, engine())
    monkeypatch.setenv("VLLM_KV_CACHE_LAYOUT", "HND")
    shape.layers_of({"a": heads_first}, config, engine())

    class Packed(Backend):
        @staticmethod
        def get_kv_cache_shape(
            num_blocks: int, block_size: int, num_kv_heads: int, head_size: int
        ) -> tuple[int, ...]:
            return (num_blocks, num_kv_heads, block_size, 2 * head_size)

    packed = Tensor((8, 4, 16, 64), (4096, 1024, 64, 1))
    with pytest.raises(ValueError, match=r"order HNC .* layout is KHNC"):
        shape.layers_of({"a": packed}, config, engine(Packed))


def schedules_with(scheduler: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("vllm.v1.core.sched", "vllm.v1.core.sched.output", "vllm.v1.core.sched.scheduler"):
        made: Any = ModuleType(name)
        monkeypatch.setitem(sys.modules, name, made)
        parent, _, own = name.rpartition(".")
        monkeypatch.setattr(sys.modules[parent], own, made, raising=False)
    sys.modules["vllm.v1.core.sched.scheduler"].Scheduler = scheduler  # type: ignore[attr-defined]


def test_its_scheduler_hands_over_its_block_tables(
    old: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[Any] = []

    class Scheduler:
        kv_cache_manager = SimpleNamespace(get_block_ids=lambda request: ([len(request)],))

        def _build_kv_connector_meta(self, connector: Any, output: Any) -> str:
            state = output.kv_connector_block_state
            given.append((state.get_block_ids("abc"), getattr(state, "more", None)))
            return "meta"

    schedules_with(Scheduler, monkeypatch)
    old.offer_block_tables()
    old.offer_block_tables()
    output = SimpleNamespace()
    assert Scheduler()._build_kv_connector_meta("connector", output) == "meta"
    # As 0.29 has it, for a connector beside this one.
    output = SimpleNamespace(kv_connector_block_state=SimpleNamespace(more=7))
    Scheduler()._build_kv_connector_meta("connector", output)
    assert given == [(([3],), None), (([3],), 7)]
    assert output.kv_connector_block_state.more == 7, "what goes to the ranks is vLLM's"


class Waiting(list[Any]):
    """A queue of vLLM's requests."""

    remove_request = list.remove

    def prepend_request(self, request: Any) -> None:
        self.insert(0, request)


@pytest.mark.parametrize(
    ("keeping", "promote"),
    [
        ("kv_holding_waiting", "_handle_blocked_waiting_request"),
        ("skipped_waiting", "_try_promote_blocked_waiting_request"),  # 0.30 and older
    ],
)
def test_a_load_that_failed_is_not_in_front_of_those_that_keep_blocks(
    old: Any, monkeypatch: pytest.MonkeyPatch, keeping: str, promote: str
) -> None:
    requests = {
        name: SimpleNamespace(
            request_id=name,
            num_computed_tokens=computed,
            status="loads",
            is_finished=lambda: False,
        )
        for name, computed in (("fails", 0), ("in part", 16), ("loaded", 64), ("under way", 0))
    }
    gave_back: list[str] = []

    class Scheduler:
        failed_recving_kv_req_ids = frozenset({"fails", "in part", "under way"})
        finished_recving_kv_req_ids = frozenset({"fails", "in part", "loaded"})

        def __init__(self) -> None:
            self.waiting = Waiting(["new"])
            setattr(self, keeping, Waiting(requests.values()))

        def schedule(self, most: int) -> Any:
            return most, [each.request_id for each in getattr(self, keeping)], self.waiting

    setattr(Scheduler, promote, lambda self, request: gave_back.append(request.request_id))
    schedules_with(Scheduler, monkeypatch)
    loading = SimpleNamespace(WAITING_FOR_REMOTE_KVS="loads")
    monkeypatch.setattr(old, "request_status", lambda: loading)
    old.let_failed_loads_go()
    old.let_failed_loads_go()
    assert Scheduler().schedule(7) == (
        *(7, ["in part", "loaded", "under way"]),
        [requests["fails"], "new"],
    )
    assert gave_back == ["fails"]


@pytest.mark.parametrize(
    ("keeping", "promote", "first"),
    [
        ("kv_holding_waiting", "_handle_blocked_waiting_request", False),
        ("skipped_waiting", "_try_promote_blocked_waiting_request", True),  # 0.30 and older
    ],
)
def test_a_look_up_that_waits_is_not_in_front_of_those_that_keep_blocks(
    old: Any, monkeypatch: pytest.MonkeyPatch, keeping: str, promote: str, first: bool
) -> None:
    requests = [
        SimpleNamespace(
            request_id=name,
            num_computed_tokens=computed,
            status=status,
            is_finished=lambda: False,
        )
        for name, computed, status in (
            ("asks", 0, "waits"),
            ("loaded", 64, "waits"),
            ("asks, too", 0, "waits"),
            ("under way", 0, "loads"),
        )
    ]

    class Scheduler:
        failed_recving_kv_req_ids: frozenset[str] = frozenset()
        finished_recving_kv_req_ids = frozenset({"loaded"})

        def __init__(self) -> None:
            self.waiting = Waiting(["new"])
            setattr(self, keeping, Waiting(requests))

        def schedule(self) -> Any:
            return [each.request_id for each in getattr(self, keeping)]

    setattr(Scheduler, promote, None)
    schedules_with(Scheduler, monkeypatch)
    loading = SimpleNamespace(WAITING_FOR_REMOTE_KVS="loads")
    monkeypatch.setattr(old, "request_status", lambda: loading)
    old.let_failed_loads_go()
    scheduler = Scheduler()
    for _ in range(2):
        assert scheduler.schedule() == (
            ["loaded", "under way", "asks", "asks, too"]
            if first
            else ["asks", "loaded", "asks, too", "under way"]
        )


@pytest.mark.parametrize(
    ("promote", "policy", "load_async", "overlaps", "specs", "served"),
    [
        ("_handle_blocked_waiting_request", "priority", True, True, ["FullAttentionSpec"], True),
        ("_try_promote_blocked_waiting_request", "fcfs", True, True, ["FullAttentionSpec"], True),
        ("_try_promote_blocked_waiting_request", "priority", True, True, ["FullAttentionSpec"], False),
        # Synchronous loads keep no request waiting, where they are taken for such.
        ("_try_promote_blocked_waiting_request", "priority", False, False, ["FullAttentionSpec"], True),
        ("_try_promote_blocked_waiting_request", "priority", False, True, ["FullAttentionSpec"], False),
        ("_try_promote_blocked_waiting_request", "priority", False, False, ["SlidingWindowSpec"], False),
    ],
)  # fmt: skip
def test_priorities_are_refused_where_loaded_requests_wait_behind_others(
    old: Any,
    monkeypatch: pytest.MonkeyPatch,
    promote: str,
    policy: str,
    load_async: bool,
    overlaps: bool,
    specs: list[str],
    served: bool,
) -> None:
    schedules_with(type("Scheduler", (), {promote: None}), monkeypatch)
    config = SimpleNamespace(
        scheduler_config=SimpleNamespace(policy=policy, async_scheduling=overlaps),
        parallel_config=SimpleNamespace(pipeline_parallel_size=1),
    )
    groups = [SimpleNamespace(kv_cache_spec=getattr(old, spec)()) for spec in specs]
    kv_cache = SimpleNamespace(kv_cache_groups=groups)
    loads = SimpleNamespace(lookup=True, load_async=load_async)
    # One that loads nothing keeps no request waiting.
    old.check_policy(config, kv_cache, loads, False)
    old.check_policy(config, kv_cache, SimpleNamespace(lookup=False, load_async=load_async), True)
    if served:
        old.check_policy(config, kv_cache, loads, True)
        return
    with pytest.raises(ValueError, match=r"priority vLLM 0\.24 .* fcfs, .* 0\.31") as told:
        old.check_policy(config, kv_cache, loads, True)
    assert "\n" not in str(told.value)


def test_its_block_hashes_get_a_seed_that_others_have(
    old: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugin, shape = module_of("_plugin"), module_of("_shape")
    hashes = SimpleNamespace(
        cache_config=SimpleNamespace(prefix_caching_hash_algo="sha256"),
        kv_transfer_config=SimpleNamespace(engine_id="e"),
    )
    assert shape.hashing_of(hashes) == "sha256:random:e"
    others = SimpleNamespace(kv_connector="NixlConnector", kv_connector_extra_config={})
    plugin.check(others)
    assert "PYTHONHASHSEED" not in os.environ
    monkeypatch.setenv("PYTHONHASHSEED", "7")
    ours = SimpleNamespace(kv_connector="KvcoveConnector", kv_connector_extra_config={})
    plugin.check(ours)
    assert os.environ["PYTHONHASHSEED"] == "7"
    monkeypatch.delenv("PYTHONHASHSEED")
    plugin.check(ours)
    assert os.environ["PYTHONHASHSEED"] == "0"
    assert shape.hashing_of(hashes) == "sha256:0"


def test_a_version_without_a_name_for_weights_refuses_it_as_their_source(old: Any) -> None:
    plugin = module_of("_plugin")
    ours = SimpleNamespace(
        kv_connector="KvcoveConnector",
        kv_connector_extra_config={"weight_version_source": "engine"},
    )
    with pytest.raises(ValueError, match=r"vLLM 0\.27 or later"):
        plugin.check(ours)
    sys.modules["vllm"].__dict__["__version__"] = "0.27.0"
    plugin.check(ours)


def script(name: str) -> Any:
    path = Path(__file__).parent / "vllm" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def test_a_tree_of_vllm_is_looked_through_by_its_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = script("names")
    (tmp_path / "vllm-0.40.0.dist-info").mkdir()
    package = tmp_path / "vllm"
    package.mkdir()
    (package / "__init__.py").write_text("from .inner import Moved as Renamed\n")
    (package / "inner.py").write_text(
        textwrap.dedent("""
        from abc import abstractmethod

        class Below:
            inherited: int

        class Moved(Below):
            field: int = 0

            def __init__(self):
                self.attribute = 1

            def call(self, one, two): ...

        class Base:
            @abstractmethod
            def start_load_kv(self, forward_context, **kwargs): ...

            @abstractmethod
            def new(self): ...

            def shutdown(self, how): ...

        class SupportsHMA: ...
        """)
    )
    monkeypatch.setattr(
        looked, "imports", lambda: iter([("vllm", "Renamed"), ("vllm.inner", "No")])
    )
    monkeypatch.setattr(looked, "BASES", "vllm.inner")
    monkeypatch.setattr(looked, "BASE", "Base")
    ours = looked.hooks()
    kept = {name: ours[name] for name in ("start_load_kv", "shutdown", "reset_cache")}
    monkeypatch.setattr(looked, "hooks", lambda: kept)
    used = "field inherited attribute call(one,two) gone dropped renamed"
    monkeypatch.setattr(looked, "UNTIL", {"dropped": (0, 39), "renamed": (0, 40)})
    monkeypatch.setattr(
        looked, "USED", (("vllm", "Renamed", used), ("vllm.inner", "Moved", "call(one,three)"))
    )
    tree = looked.Tree(tmp_path)
    assert tree.version == (0, 40)
    assert list(looked.lacks(tree)) == [
        "vllm.inner: no No",
        "Base.shutdown has the parameters ['how'], ours []",
        "Base: no hook reset_cache: nobody would call it",
        "Base.new is abstract, and ours does not have it",
        "vllm.Renamed: no gone",
        "vllm.Renamed: no renamed",
        "vllm.inner.Moved.call has the parameters ['one', 'two'], ['one', 'three'] are given",
    ]


def test_a_tree_of_vllm_is_looked_through_where_kvcove_is_not_built(tmp_path: Path) -> None:
    package = tmp_path / "vllm" / "v1" / "kv_offload" / "tiering"
    package.mkdir(parents=True)
    (package / "factory.py").write_text('SecondaryTierFactory.register_tier("other", None)\n')
    (tmp_path / "vllm-0.40.0.dist-info").mkdir()
    # -S: no packages but Python's own.
    ran = subprocess.run(
        [sys.executable, "-I", "-S", Path(__file__).parent / "vllm" / "names.py", tmp_path],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "vllm.v1.kv_offload.tiering.factory: no tier fs: there are other\n" in ran.stdout, ran


def test_a_table_of_what_was_seen_keeps_what_is_not_run_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    matrix = script("matrix")
    page = tmp_path / "page.md"
    page.write_text(f"before\n{matrix.BEGIN}\n{matrix.END}\nafter\n")

    def run(version: str, day: str, **parts: Any) -> list[str]:
        made = {"vllm": version, "date": day, "parts": parts}
        (tmp_path / "results.json").write_text(json.dumps(made))
        assert matrix.main(["--write", str(page), str(tmp_path)]) == 0
        return page.read_text().splitlines()

    right = [True, "two ranks: right"]
    run("0.31", "2026-11-28", ranks=[right, right], queued=[right])
    wrong = [[False, "TP 4: wrong"], [True, "TP 4: right"], [True, "PP 2: right"]]
    run("0.32", "2026-11-29", hints=[right], shapes=wrong)
    assert run("0.31", "2026-11-30", ranks=[right], shapes=[[True, "PP 2: right"]]) == [
        "before",
        matrix.BEGIN,
        "| | 0.32, 2026-11-29 | 0.31, 2026-11-28 to 2026-11-30 |",
        "| --- | --- | --- |",
        f"| {matrix.PARTS['hints']} | 1 |  |",
        "| TP 4 | 1 of 2 failed |  |",
        "| PP 2 | 1 | 1 |",
        f"| {matrix.PARTS['ranks']} |  | 1 |",
        f"| {matrix.PARTS['queued']} |  | 1 |",
        "",
        "Made by `python/tests/vllm/matrix.py`.",
        matrix.END,
        "after",
    ]


def test_what_the_connector_costs_is_in_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parent / "vllm"))
    measure, matrix = script("measure"), script("matrix")
    turns = {"cold, pairs": 1.0212, "again, pairs": 0.99}
    checks = list(measure.checks(turns, {"median of 20": 1.2}, {"p50_us": 31.4}))
    told = {"vllm": "0.32", "date": "2026-12-01", "parts": {"overhead": checks}}
    (tmp_path / "results.json").write_text(json.dumps(told))
    assert matrix.main([str(tmp_path)]) == 0
    rows = capsys.readouterr().out.splitlines()[2:6]
    assert [row.rpartition(" | ")[2] for row in rows] == [
        *("1.021 |", "0.990 |", "1.200, too much |", "31 us |")
    ]
    assert rows[0].startswith(
        "| cold, with saves, beside an engine without connector (at most 1.05) |"
    )
    ended = {**told, "parts": {"overhead": [[False, "overhead: SystemExit(1)"]]}}
    (tmp_path / "results.json").write_text(json.dumps(ended))
    assert matrix.main([str(tmp_path)]) == 0
    assert "| overhead | 1 of 1 failed |" in capsys.readouterr().out
    page = tmp_path / "page.md"
    page.write_text(f"{matrix.BEGIN}\n{matrix.END}\n")
    for each, has in ((ended, True), (told, False)):
        (tmp_path / "results.json").write_text(json.dumps(each))
        assert matrix.main(["--write", str(page), str(tmp_path)]) == 0
        assert ("| overhead |" in page.read_text()) is has


class Runs:
    """Parts of a test of vLLM, and the seconds that each takes."""

    def __init__(self, **seconds: float) -> None:
        self.seconds, self.now = seconds, 1000.0
        self.ran: list[str] = []

    def __call__(self, directory: Path, part: str, left: float) -> int | None:
        self.ran.append(part)
        self.now += min(left, self.seconds[part])
        return None if self.seconds[part] > left else int(part == "wrong")

    def within(self, module: Any, directory: Path, seconds: float) -> Any:
        self.ran = []
        return module.run_within(
            directory, list(self.seconds), self.now + seconds, self, lambda: self.now
        )


def test_parts_that_have_no_result_run_first_and_none_that_would_not_end(tmp_path: Path) -> None:
    within = script("within")
    runs = Runs(first=200.0, wrong=100.0, third=150.0)
    assert runs.within(within, tmp_path, 500.0) == (["wrong"], ["third"])
    assert runs.ran == ["first", "wrong"], "nobody knows how long the third one takes"
    assert runs.within(within, tmp_path, 450.0) == ([], ["wrong"])
    assert runs.ran == ["third", "first"], "the third had no result, the first one's is the oldest"
    assert runs.within(within, tmp_path, 120.0) == (["wrong"], ["first", "third"])
    assert runs.within(within, tmp_path, 1.0) == ([], ["first", "wrong", "third"])


def test_a_part_that_did_not_end_begins_where_there_is_more_time(tmp_path: Path) -> None:
    within = script("within")
    runs = Runs(long=400.0)
    assert runs.within(within, tmp_path, 300.0) == ([], ["long"])
    assert runs.ran == ["long"]
    assert runs.within(within, tmp_path, 300.0) == ([], ["long"])
    assert runs.ran == []
    assert runs.within(within, tmp_path, 500.0) == ([], [])


def test_a_part_that_is_late_is_ended_with_its_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    within = script("within")
    (tmp_path / "run.py").write_text(
        "import os, pathlib, subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-c', 'input()'], stdin=subprocess.PIPE)\n"
        "told = pathlib.Path(sys.argv[1], 'told')\n"
        "told.write_text(f\"{child.pid} {sys.argv[2]} {os.environ.get('KVCOVE_SHAPES')}\")\n"
        "if sys.argv[2] == 'late': child.wait()\n"
        "child.kill()\n"
        "sys.exit(int(sys.argv[2] == 'wrong'))\n"
    )
    monkeypatch.setattr(within, "HERE", tmp_path)
    assert within.run_part(tmp_path, "wrong", 60.0) == 1
    assert within.run_part(tmp_path, "shapes: TP 2, PP 2", 60.0) == 0
    told = tmp_path / "told"
    assert told.read_text().endswith(" shapes TP 2, PP 2")
    told.unlink()
    assert within.run_part(tmp_path, "late", 5.0) is None
    if not told.exists():
        return  # Python had not begun within these seconds: there is no child
    child = Path(f"/proc/{told.read_text().split()[0]}/stat")
    for _ in range(100):
        if not child.exists() or child.read_text().rpartition(")")[2].split()[0] == "Z":
            return
        time.sleep(0.05)
    raise AssertionError("the part's child still runs")


def test_older_versions_run_what_trainers_need_of_them() -> None:
    within = script("within")
    parts, shapes = ["own", "shapes", "kinds"], ["TP 4", "MLA, TP 1"]
    assert within.wanted((0, 32), parts, shapes) == [
        *("own", "shapes: TP 4", "shapes: MLA, TP 1", "kinds")
    ]
    assert "shapes: windows, TP 2" not in within.wanted((0, 29), parts, shapes)
    assert "shapes: windows, TP 2" in within.wanted((0, 30), parts, shapes)
