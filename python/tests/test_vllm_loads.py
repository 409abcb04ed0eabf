# SPDX-License-Identifier: Apache-2.0
"""Loads that fail, on vLLM's own scheduler and KV managers: what random worlds have found (make test-vllm)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kvcove.vllm import _versions

pytest.importorskip("vllm")
torch = pytest.importorskip("torch")
if (_versions.installed() or _versions.NEWEST) < (0, 30):
    pytest.skip("needs vLLM 0.30, whose allocator it uses", allow_module_level=True)

from real_vllm import Engine, configuration, make_model  # noqa: E402
from vllm.v1.kv_cache_interface import FullAttentionSpec, SlidingWindowSpec  # noqa: E402

from kvcove import engines  # noqa: E402

TOKENS = 240
SIZES = {"block_size": 4, "num_kv_heads": 1, "head_size": 4, "dtype": torch.float32}
FULL = FullAttentionSpec(**SIZES)
WINDOW = SlidingWindowSpec(**SIZES, sliding_window=9)

Make = Callable[..., Engine]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Makes engines on one pool."""
    made: list[Engine] = []
    pool = engines.Embedded(tmp_path / "p.sock", 16 << 20)
    model = make_model(tmp_path / "model")

    def engine(
        *specs: Any,
        blocks: int = 400,
        step_tokens: int = 512,
        request_tokens: int = 0,
        **extra: Any,
    ) -> Engine:
        extra = {"weight_version_source": "engine", **extra}
        config = configuration(model, pool.address, f"e{len(made)}", TOKENS, **extra)
        config.scheduler_config.max_num_batched_tokens = step_tokens
        config.scheduler_config.long_prefill_token_threshold = request_tokens
        layers = {f"layers.{at}": spec for at, spec in enumerate(specs)}
        made.append(Engine(config, layers, blocks, "LBHNC"))
        return made[-1]

    yield engine
    for each in reversed(made):
        each.close()
    pool.close()


def prompt(seed: int, count: int) -> list[int]:
    return [(seed * 7919 + at * at) % 1000 for at in range(count)]


def lose(engine: Engine, wanted: Callable[[Any], list[tuple[int, int]]]) -> None:
    """Take values out of the pool when a load of them is ordered, by group and chunk of a block."""
    allocated = engine.connector.update_state_after_alloc

    def lossy(request: Any, blocks: Any, external: int) -> None:
        allocated(request, blocks, external)
        if external > 0:
            hashes = request.block_hashes
            engine.forget([f"g{g}.h0of1@{hashes[at].hex()}" for g, at in wanted(request)])

    engine.connector.update_state_after_alloc = lossy


@pytest.mark.parametrize("specs", [(WINDOW,), (WINDOW, WINDOW), (FULL, WINDOW)])
def test_with_vllm_a_load_for_a_window_that_fails_is_computed_from_the_beginning(
    make: Make, specs: tuple[Any, ...]
) -> None:
    # From the block that failed on, the tokens before it were needed: nobody has loaded them.
    engine = make(*specs)
    engine.add("stored", prompt(1, 100), 1)
    engine.drain()
    assert engine.reset(running=False, connector=False)
    lose(engine, lambda request: [(int(specs[0] is FULL), 23)])
    engine.add("loads", prompt(1, 100), 2)
    engine.drain()
    assert engine.counts["failed"] == 1


@pytest.mark.parametrize("when", ["in the same step", "in the next step", "when it is aborted"])
def test_with_vllm_nobody_computes_on_a_synchronous_load_that_failed(make: Make, when: str) -> None:
    # vLLM leaves the blocks their hashes; the request that loaded them needs several steps to compute them.
    engine = make(FULL, step_tokens=64, request_tokens=24, load_async=False)
    engine.add("stored", prompt(1, 200), 1)
    engine.drain()
    assert engine.reset(running=False, connector=False)
    lose(engine, lambda request: [(0, 5), (0, 40)] if request.request_id == "loads" else [])
    engine.add("loads", prompt(1, 200), 2)
    if when == "in the same step":
        engine.add("shares", prompt(1, 200) + prompt(2, 20), 2)
    engine.step()
    if when == "when it is aborted":
        engine.abort("loads")
    if when != "in the same step":
        engine.add("shares", prompt(1, 200) + prompt(2, 20), 2)
    engine.drain()
    fresh = make(FULL, load_async=False)  # nothing wrong is in the pool
    fresh.add("again", prompt(1, 200) + prompt(2, 20), 1)
    fresh.drain()
    assert fresh.counts["loads"] == 1


def test_with_vllm_a_load_that_failed_does_not_stand_in_the_way_of_others(make: Make) -> None:
    engine = make(FULL, WINDOW, blocks=141)
    for at in (1, 2):
        engine.add(f"stored{at}", prompt(at, 200), 1)
        engine.drain()
    assert engine.reset(running=False, connector=False)
    lose(
        engine,
        lambda request: [(0, at) for at in range(50)] if request.request_id == "fails" else [],
    )
    engine.add("fails", prompt(1, 200), 1)
    engine.add("loads", prompt(2, 200), 1)
    for _ in range(400):  # both have ended when the scheduler hears of one
        engine.step(hold=1.0)
        if sum(len(each[0]) for each in engine._held) == 2:
            break
    engine.drain(seconds=20)
    assert engine.counts["failed"] == 1, engine.counts


@pytest.mark.parametrize("connector", [False, True])
def test_with_vllm_a_request_that_a_reset_made_begin_anew_finds_its_blocks(
    make: Make, connector: bool
) -> None:
    # It needs more than half of them; what vLLM keeps free for it must not be asked for twice.
    engine = make(FULL, blocks=75)
    engine.add("stored", prompt(1, 200), 1)
    engine.drain()
    assert engine.reset(running=False, connector=False)
    engine.add("loads", prompt(1, 200), 1)
    for _ in range(400):
        engine.step(hold=1.0)
        if engine._held:
            break
    assert engine.reset(running=True, connector=connector)
    if connector:
        fresh = make(FULL)  # stores the same again
        fresh.add("stored", prompt(1, 200), 1)
        fresh.drain()
    engine.drain(seconds=20)


def test_with_vllm_a_block_that_a_load_leaves_as_it_was_fails_it(
    make: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    import kvcove.vllm._check as check

    engine = make(FULL)
    engine.add("stored", prompt(1, 100), 1)
    engine.drain()
    assert engine.reset(running=False, connector=False)
    unwritten = check.LoadCheck.unwritten
    left: list[int] = []

    def as_it_was(self: Any, ended: Any, failed: Any, failed_blocks: Any) -> Any:
        for request in ended:
            group, block = self._loads[request][7]
            left.append(block)
            for _, words in self._groups[group]:
                words[block].fill_(self._pattern(words))
        return unwritten(self, ended, failed, failed_blocks)

    monkeypatch.setattr(check.LoadCheck, "unwritten", as_it_was)
    monkeypatch.setattr(logging.getLogger("vllm"), "propagate", True)
    engine.add("loads", prompt(1, 100), 1)
    with caplog.at_level(logging.ERROR, logger="vllm.kvcove"):
        engine.drain()
    (line,) = {line for line in caplog.messages if "is not written" in line}
    assert f"request loads: its load has ended, but block {left[0]} of KV group 0" in line
    assert engine.counts["failed"] == 1
