# SPDX-License-Identifier: Apache-2.0
"""Layouts of an engine, each run for real: ranks, stages, contexts, kinds of layers, modules that guess.

For each: an engine without connector says what is right; one on an empty pool of a host goes through all phases of shaped.py; a
fresh one on the same pool then finds a wrong value under a right key. A layout that this vLLM cannot run on CPUs is told with
vLLM's own line. $KVCOVE_SHAPES names some of them, with semicolons between.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tiny_models import model_of

# Of the four prompts, the tokens in whole chunks of 128; of 16 for MLA.
TOKENS = 4 * (1499 // 128) * 128
LATENT_TOKENS = 4 * (1499 // 16) * 16
MOST_DRIFT = 0.05  # of a value's norm


@dataclass(frozen=True)
class Shape:
    name: str
    model: str
    options: dict[str, Any] = field(default_factory=dict)
    ranks: int = 1
    # Beside the forward pass, and in it: not with several groups of KV caches, nor with several steps at a time.
    loads: tuple[bool, ...] = (True, False)
    # In 16 bits outputs depend on what else is in a step, and on where a prompt is cut; so do a state's, which vLLM's
    # kernel for CPUs rounds at each cut (log-probabilities of an engine without connector move by 0.04).
    exact: bool = True
    tokens: int = TOKENS


def tensor(ranks: int) -> dict[str, Any]:
    return {"tensor_parallel_size": ranks}


# vLLM's own CPU kernel for rotary embeddings takes the strided keys of MLA for contiguous ones, and turns other rows (0.29 to 0.31):
# the KV of a token would depend on how many tokens its step has. What vLLM has in PyTorch is right.
LATENT = {
    "dtype": "bfloat16",
    "max_num_seqs": 1,
    "compilation_config": {"custom_ops": ["-rotary_embedding"]},
}
STATES = {"enable_prefix_caching": True, "mamba_cache_mode": "align"}
SHAPES = (
    Shape("TP 4", "four heads", tensor(4), 4),
    Shape("one KV head, TP 2", "one head", tensor(2), 2),
    Shape("one KV head, TP 4", "one head", tensor(4), 4),
    Shape("two KV heads, TP 4", "two heads", tensor(4), 4),
    Shape("MLA, TP 1", "latent", LATENT, exact=False, tokens=LATENT_TOKENS),
    Shape("MLA, TP 2", "latent", {**LATENT, **tensor(2)}, 2, exact=False, tokens=LATENT_TOKENS),
    Shape("MLA, TP 4", "latent", {**LATENT, **tensor(4)}, 4, exact=False, tokens=LATENT_TOKENS),
    Shape("PP 2", "four heads", {"pipeline_parallel_size": 2}, 2, loads=(True,)),
    Shape("TP 2, PP 2", "four heads", {"pipeline_parallel_size": 2, **tensor(2)}, 4, loads=(True,)),
    Shape("DCP 2", "one head", {"decode_context_parallel_size": 2, **tensor(2)}, 2),
    Shape("windows, TP 2", "windows", tensor(2), 2, loads=(True,)),
    Shape("windows, PP 2", "windows", {"pipeline_parallel_size": 2}, 2, loads=(True,)),
    Shape("states, TP 2", "states", {**STATES, **tensor(2)}, 2, loads=(True,), exact=False),
    *(
        Shape(
            f"MTP, {modules} module{'s' * (modules > 1)}{', TP 2' * (ranks > 1)}",
            f"guessing{' twice' * (modules > 1)}",
            {
                "speculative_config": {"method": "mtp", "num_speculative_tokens": modules},
                **tensor(ranks),
            },
            ranks,
        )
        for modules, ranks in ((1, 1), (2, 1), (1, 2))
    ),
)


def checks(
    shape: Shape, plain: dict[str, Any], seen: dict[str, Any], fresh: list[dict[str, Any]]
) -> Iterator[tuple[bool, str]]:
    """Yield what must hold, and whether it does."""
    name, least = shape.name, 0.8 * shape.tokens
    yield (
        seen["first"] == plain["first"] and seen["first_hits"] == 0 and seen["own"] == plain["own"],
        f"{name}: outputs as without connector, cold and from the own cache",
    )
    yield (
        seen["warm"] == plain["own"] and least <= seen["warm_hits"] <= shape.tokens,
        f"{name}: {seen['warm_hits']} tokens from the pool, outputs as from the engine's own cache",
    )
    yield (
        seen["reset"] and seen["after"] == plain["first"] and seen["after_hits"] == 0,
        f"{name}: none after a reset",
    )
    yield (
        seen["other_hits"] == 0
        and seen["other"] == plain["other"]
        and seen["other_warm"] == seen["other_own"] == plain["other_own"]
        and seen["other_warm_hits"] >= least
        and plain["other"] != plain["first"],
        f"{name}: none with other weights, then {seen['other_warm_hits']} tokens of their own",
    )
    yield (
        seen["back"] == plain["own"] and seen["back_hits"] >= least,
        f"{name}: the old weights' again, {seen['back_hits']} tokens",
    )
    yield from losses(f"{name}", shape, plain, seen["losing"])
    loaded = seen["loaded"]
    yield (
        (loaded["equal"] or not shape.exact)
        and loaded["finished"] > 0
        and all(loaded["first_resets"]),
        f"{name}: aborts and preemptions, {loaded['finished']} finished; the resets behind them",
    )
    for loads, other in zip(shape.loads, fresh, strict=True):
        how = "a fresh engine" + ("" if loads else ", load_async false")
        yield (
            other["warm"] == plain["own"] and other["warm_hits"] >= least,
            f"{name}: {how}: {other['warm_hits']} tokens of the first one's, outputs equal",
        )
        yield from losses(f"{name}: {how}", shape, plain, other["losing"])


def losses(
    name: str, shape: Shape, plain: dict[str, Any], losing: dict[str, Any]
) -> Iterator[tuple[bool, str]]:
    right = [plain["first"], plain["own"]]
    wrong = sum(outputs not in right for outputs in losing["outputs"])
    # Outputs of 16 bits may differ; KV may not, but for the last bits. Of states, whose types differ, nothing is compared.
    compared = shape.model != "states"
    yield (
        losing["failed"] > 0
        and losing["pinned"] == 0
        and (wrong == 0 or not shape.exact)
        and (losing["drift"] <= MOST_DRIFT or not compared),
        f"{name}: {losing['taken']} values taken away, {losing['failed']} loads failed: {wrong} of "
        f"{len(losing['outputs'])} outputs differ, also from the own cache and the pool"
        + (f"; values by {losing['drift']:.1%} at most" if compared else ""),
    )


def why_not(log: str) -> str:
    """Return vLLM's own line of why an engine without connector did not start."""
    lines = [line for line in log.splitlines() if "Error: " in line or "Error(" in line]
    return lines[-1].strip()[-300:] if lines else "it did not start"


def run_shapes(
    directory: Path,
    check: Callable[[bool, str], None],
    drive: Callable[..., dict[str, Any]],
    owner_of: Callable[[Path], Any],
) -> None:
    """Run all layouts, or those of $KVCOVE_SHAPES."""
    asked = [name.strip() for name in os.environ.get("KVCOVE_SHAPES", "").split(";") if name]
    if unknown := set(asked) - {shape.name for shape in SHAPES}:
        raise SystemExit(f"no layout is called {', '.join(sorted(unknown))}")
    for shape in SHAPES:
        if not asked or shape.name in asked:
            print(f"== {shape.name}")
            one_shape(shape, directory, check, drive, owner_of)


def one_shape(
    shape: Shape,
    directory: Path,
    check: Callable[[bool, str], None],
    drive: Callable[..., dict[str, Any]],
    owner_of: Callable[[Path], Any],
) -> None:
    path = model_of(directory, shape.model)
    common = {"KVCOVE_OPTIONS": json.dumps(shape.options), "driver": "shaped.py"}
    if shape.ranks > 1:
        common |= {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}
    stem = "shape-" + shape.name.replace(", ", "-").replace(" ", "-")

    def engine(role: str, name: str, **more: str) -> dict[str, Any]:
        return drive(role, path, directory / f"{stem}-{name}.json", **common, **more)

    try:
        plain = engine("plain", "plain")
    except SystemExit:
        why = why_not((directory / f"{stem}-plain.log").read_text(errors="replace"))
        print(f"  vLLM refuses it, without a connector: {why}")
        check(True, f"{shape.name}: not on CPUs: {why}")
        return
    owner = owner_of(directory)
    extra = {"pool": f"unix:{owner.socket}", "load_when": "always"}

    def with_pool(role: str, loads: bool = True) -> dict[str, Any]:
        told = json.dumps({**extra, "load_async": loads})
        return engine(role, role if loads else f"{role}-sync", KVCOVE_EXTRA=told)

    try:
        seen = with_pool("pooled")
        fresh = [with_pool("fresh", loads) for loads in shape.loads]
    except SystemExit as error:
        check(False, f"{shape.name}: {error}")
        return
    finally:
        owner.stop()
    for right, text in checks(shape, plain, seen, fresh):
        check(right, text)
