# SPDX-License-Identifier: Apache-2.0
"""Random models, requests and failures on vLLM's own planner, scheduler and KV managers (make test-vllm).

After every step each block that has a hash holds what its hash says; each load that has ended has written
all of its blocks; nothing of before a reset or an update is loaded; at the end nothing is left, and a fresh
engine finds only what is right in the pool. A seed that fails is printed; `KVCOVE_VLLM_SEEDS=FIRST:LAST`
runs these, `KVCOVE_VLLM_SECONDS` as many as there is time for.
"""

from __future__ import annotations

import dataclasses
import os
import random
import time
from pathlib import Path
from typing import Any

import pytest
from kvcove.vllm import _versions

pytest.importorskip("vllm")
torch = pytest.importorskip("torch")
if (_versions.installed() or _versions.NEWEST) < (0, 30):
    pytest.skip("needs vLLM 0.30, whose allocator it uses", allow_module_level=True)

from real_vllm import Engine, Fault, configuration, drafting, make_model  # noqa: E402
from vllm.v1.kv_cache_interface import (  # noqa: E402
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowSpec,
)

from kvcove import engines  # noqa: E402

MOST_TOKENS = 320
SEEDS = [int(part) for part in os.environ.get("KVCOVE_VLLM_SEEDS", "1:15").split(":")]
SECONDS = float(os.environ.get("KVCOVE_VLLM_SECONDS", "0"))


@dataclasses.dataclass
class World:
    """What a seed stands for."""

    kind: str
    specs: dict[str, Any]
    layout: str
    blocks: int
    settings: dict[str, Any]
    extra: dict[str, Any]
    resets: bool
    drafts: tuple[int, bool] | None  # tokens, by several modules
    updates: str  # "": none; "emptied": the own cache is; "kept": it is not
    overlapping: bool  # a step is scheduled before the scheduler has heard of the last one

    def __str__(self) -> str:
        layers = ", ".join(
            f"{name}: {type(spec).__name__}({spec.block_size}"
            f"{''.join(f', {key}={value}' for key, value in vars(spec).items() if 'window' in key or 'chunk_size' in key)})"
            for name, spec in self.specs.items()
        )
        return (
            f"{self.kind} [{layers}] {self.layout} {self.blocks} blocks {self.settings} {self.extra} "
            f"drafts {self.drafts}{', overlapping steps' * self.overlapping}"
        )


def layers_of(kind: str, pick: random.Random) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a model's layers, and what of vLLM's configuration goes with them."""
    block = pick.choice([4, 8, 16])
    attention = {"block_size": block, "head_size": pick.choice([4, 8]), "dtype": torch.float32}
    heads = {"num_kv_heads": pick.choice([1, 2])}
    full = FullAttentionSpec(**attention, **heads)
    settings: dict[str, Any] = {}

    def window(heads: dict[str, Any] = heads) -> Any:
        return SlidingWindowSpec(
            **attention, **heads, sliding_window=pick.randint(block // 2, 6 * block)
        )

    if kind == "full":
        specs = [full] * pick.randint(1, 3)
    elif kind == "MLA":
        latent = {**attention, "head_size": pick.choice([8, 16])}
        specs = [MLAAttentionSpec(**latent, num_kv_heads=1)] * pick.randint(1, 3)
    elif kind == "windows alone":
        specs = [window()] * pick.randint(1, 2)
        specs = [specs[0]] * len(specs)
    elif kind == "windows":
        specs = [full, *([window()] * pick.randint(1, 3))]
        if pick.random() < 0.4:
            specs.append(window())
    elif kind == "windows of other sizes":  # whose blocks have other numbers of tokens
        two = {"num_kv_heads": 2}
        full = FullAttentionSpec(**attention, num_kv_heads=pick.choice([1, 2, 4]))
        specs = [full, *([window(two)] * pick.randint(1, 2))]
    elif kind == "chunked":
        local = ChunkedLocalAttentionSpec(
            **attention, **heads, attention_chunk_size=block * pick.randint(1, 5)
        )
        specs = [full, *([local] * pick.randint(1, 2))]
    else:  # states
        page = full.page_size_bytes
        state = MambaSpec(
            block_size=block,
            shapes=((2, 4), (page // 64, 2)) if page >= 128 else ((2, 2),),
            dtypes=(torch.float32, torch.float32) if page >= 128 else (torch.float32,),
            page_size_padded=page,
            mamba_cache_mode="align",
        )
        specs = [full, *([state] * pick.randint(1, 2))]
        if kind == "states and windows":
            specs.append(window())
        settings["mamba_cache_mode"] = "align"
        settings["mamba_block_size"] = block
    if len(set(map(repr, specs))) > 1 and kind != "chunked" and pick.random() < 0.5:
        smaller = [size for size in (1, 2, 4, 8) if block % size == 0 and size < block]
        settings["prefix_match_unit"] = pick.choice([block, *smaller])
    if kind not in ("full", "MLA", "chunked") and pick.random() < 0.6:
        settings["prefix_cache_retention_interval"] = pick.choice([None, 0])
    return {f"layers.{at}": spec for at, spec in enumerate(specs)}, settings


KINDS = (
    *("full", "MLA", "windows alone", "windows", "windows of other sizes", "chunked"),
    *("states", "states and windows"),
)


def drafts_of(kind: str, specs: dict[str, Any], pick: random.Random) -> tuple[int, bool] | None:
    if "states" in kind or kind == "chunked" or pick.random() < 0.6:
        return None
    least = min(spec.block_size for spec in specs.values())
    return pick.randint(1, min(4, least)), pick.random() < 0.5


def world_of(seed: int) -> World:
    pick = random.Random(seed)
    kind = KINDS[seed % len(KINDS)]
    specs, settings = layers_of(kind, pick)
    several = kind not in ("full", "MLA", "windows alone")
    layout = pick.choice(["LBHNC", "LBNHC"] if several else ["LBHNC", "LBNHC", "BLHNC", "BLNHC"])
    updates = pick.choice(["", "", "emptied", "kept"])
    extra: dict[str, Any] = {
        "weight_version_source": "engine" if updates else pick.choice(["engine", "none"]),
        "save_decoded": pick.random() < 0.3,
        "load_async": several or pick.random() < 0.7,
    }
    least = MOST_TOKENS // min(spec.block_size for spec in specs.values()) * (3 if several else 1)
    blocks = int(least * pick.uniform(1.1, 2.5)) + 16
    resets = pick.random() < 0.6
    drafts = drafts_of(kind, specs, pick)
    # With drafts the worker would have to know the guesses of a step that the scheduler has not heard of.
    overlapping = drafts is None and seed // len(KINDS) % 2 == 1
    if overlapping:
        extra["load_async"] = True  # as the connector sees to it
        # Steps under way keep the blocks that have left a window.
        blocks += 3 * 1024 // min(spec.block_size for spec in specs.values()) if several else 0
    return World(
        kind=kind,
        specs=specs,
        layout=layout,
        blocks=blocks,
        settings=settings,
        extra=extra,
        resets=resets,
        drafts=drafts,
        updates=updates,
        overlapping=overlapping,
    )


def engine_of(
    world: World,
    model: Path,
    pool: str,
    name: str,
    seed: int,
    events: Any = None,
    **extra: Any,
) -> Engine:
    config = configuration(model, pool, name, MOST_TOKENS, events, **{**world.extra, **extra})
    for key, value in world.settings.items():
        setattr(config.cache_config, key, value)
    if world.drafts is not None:
        config.speculative_config = drafting(*world.drafts)
    pick = random.Random(seed)
    config.scheduler_config.max_num_batched_tokens = pick.choice([64, 128, 512])
    config.scheduler_config.max_num_seqs = pick.choice([4, 8])
    config.scheduler_config.long_prefill_token_threshold = pick.choice([0, 0, 48])
    return Engine(config, world.specs, world.blocks, world.layout, seed, world.overlapping)


class Life:
    """What happens to an engine, by a seed."""

    def __init__(self, engine: Engine, world: World, seed: int) -> None:
        self.engine = engine
        self.world = world
        self.pick = random.Random(seed * 7919)
        self.count = 0
        self.prompts: list[list[int]] = []
        self.trunks = [[self.pick.randrange(1000) for _ in range(MOST_TOKENS)] for _ in range(3)]

    def prompt(self) -> list[int]:
        pick = self.pick
        if self.prompts and pick.random() < 0.45:
            before = pick.choice(self.prompts)
            if pick.random() < 0.3:
                return list(before)
            kept = before[: pick.randint(1, len(before))]
        else:
            kept = pick.choice(self.trunks)[: pick.randint(0, MOST_TOKENS - 40)]
        tail = [pick.randrange(1000) for _ in range(pick.randint(1, 60))]
        return [*kept, *tail][: MOST_TOKENS - 20]

    def ask(self) -> None:
        self.count += 1
        tokens = self.prompt()
        self.prompts.append(tokens)
        self.engine.add(f"r{self.count}", tokens, self.pick.choice([1, 1, 2, 5, 18]))

    def lose(self) -> None:
        """Take values that a waiting load is to bring out of the pool, or any."""
        engine, pick = self.engine, self.pick
        known = list(engine._known)
        groups = len(engine.connector._scheduler._group_ids)
        hashes = pick.sample(known, min(len(known), pick.randint(1, 12)))
        engine.forget([f"g{g}.h0of1@{each.hex()}" for each in hashes for g in range(groups)])

    def loses_at_allocation(self) -> None:
        """Let some loads find less than their look-up did."""
        engine, pick = self.engine, self.pick
        role = engine.connector._scheduler.role
        allocated = engine.connector.update_state_after_alloc

        def lossy(request: Any, blocks: Any, external: int) -> None:
            allocated(request, blocks, external)
            if external > 0 and pick.random() < 0.25:
                hashes = request.block_hashes
                lost = [each for each in hashes if pick.random() < 0.2] or hashes[-1:]
                groups = range(len(engine.connector._scheduler._group_ids))
                group = pick.choice([*groups])
                engine.forget([f"g{group}.h0of1@{each.hex()}" for each in lost])

        assert role is not None
        engine.connector.update_state_after_alloc = lossy

    def event(self) -> None:
        engine, pick, world = self.engine, self.pick, self.world
        what = pick.random()
        if what < 0.35 and len(engine.names) < 10:
            self.ask()
        elif what < 0.40 and engine.names:
            engine.abort(pick.choice(engine.names))
        elif what < 0.44:
            self.lose()
        elif what < 0.47:  # the own cache alone
            engine.reset(running=pick.random() < 0.5, connector=False)
        elif what < 0.49 and world.resets:
            engine.reset(running=True, connector=True)
        elif what < 0.505 and world.updates:
            engine.change_weights()
            if world.updates == "emptied":
                engine.reset(running=True, connector=pick.random() < 0.3)


def live(seed: int, model: Path, directory: Path) -> dict[str, int]:
    """Run a seed; raises what it finds."""
    world = world_of(seed)
    print(f"seed {seed}: {world}", flush=True)
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    pool = engines.Embedded(directory / "p.sock", 64 << 20)
    opened = []
    try:
        engine = engine_of(world, model, pool.address, f"e{seed}", seed)
        opened.append(engine)
        life = Life(engine, world, seed)
        life.loses_at_allocation()
        hold = life.pick.choice([0.0, 0.3, 0.7])
        for _ in range(150):
            life.event()
            engine.step(hold)
        engine.drain()
        fresh = engine_of(world, model, pool.address, f"f{seed}", seed, assume_weights=True)
        opened.append(fresh)
        fresh.weights = engine.weights
        if engine.version == "engine":
            fresh.connector._scheduler.role.set_version(str(fresh.weights))
        for at, tokens in enumerate(life.prompts[-24:]):
            fresh.add(f"again{at}", tokens, 1)
            fresh.drain()
        return {**engine.counts, "fresh": fresh.counts["loaded"]}
    finally:
        for each in reversed(opened):
            each.close()
        pool.close()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model"))


@pytest.mark.parametrize("seed", range(SEEDS[0], SEEDS[-1] + 1))
def test_with_vllm_every_block_holds_what_its_hash_says(
    seed: int, model: Path, tmp_path: Path
) -> None:
    counts = live(seed, model, tmp_path)
    print(counts)


@pytest.mark.skipif(SECONDS == 0, reason="KVCOVE_VLLM_SECONDS is not set")
def test_with_vllm_many_seeds(model: Path, tmp_path: Path) -> None:
    until = time.monotonic() + SECONDS
    first = seed = int(os.environ.get("KVCOVE_VLLM_FROM", "1000"))
    found = []
    while time.monotonic() < until:
        seed += 1
        try:
            print(live(seed, model, tmp_path / str(seed)), flush=True)
        except (Fault, AssertionError, RuntimeError, ValueError) as error:
            found.append((seed, repr(error)))
            print(f"seed {seed}: {error!r}", flush=True)
    print(f"{seed - first} seeds, {len(found)} failed")
    assert not found, found
