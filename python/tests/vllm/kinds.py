# SPDX-License-Identifier: Apache-2.0
"""Kinds of requests other than tokens that are answered with tokens: kinds.py ROLE MODEL OUT.

Roles: `embeds` (prompts that are embeddings), `pooling` (a model that answers with a vector), `pictures` (a model that looks at
pictures, whose placeholders are equal tokens). $KVCOVE_PLAIN: without connector. $KVCOVE_EXTRA is the connector's extra
configuration. Writes JSON to OUT.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from driver import PROMPTS, Engine, say, start
from own import OwnEngine
from tiny_models import PICTURE_TOKEN, model_of

PLAIN = bool(os.environ.get("KVCOVE_PLAIN"))
Prompts = list[dict[str, Any]]


class Plain(Engine):
    """An engine without connector."""

    def __init__(self, model: str, **options: Any) -> None:
        self.llm = start(model, **options)

    def settle(self, key_count: int = 44) -> None:
        assert self.llm.reset_prefix_cache()


class Asked:
    """An engine that is asked for something else than tokens of tokens."""

    def __init__(
        self, model: str, ask: Callable[[Any, Prompts], list[Any]], **options: Any
    ) -> None:
        self.engine = (Plain if PLAIN else OwnEngine)(model, **options)
        self._ask = ask
        self._short: Prompts = [{"prompt_token_ids": [5, 6, 7]}]

    def measured(self, prompts: Prompts) -> tuple[list[Any], int]:
        """Return the answers, and the tokens that came from the pool."""
        before = self._loaded()
        answers = self._ask(self.engine.llm, prompts)
        return answers, self._loaded() - before

    def _loaded(self) -> int:
        return 0 if PLAIN else self.engine.stats()["hit_tokens"]

    def settle(self) -> None:
        """Wait until all is stored; the engine's own cache is away then."""
        while not PLAIN and self.engine.stats()["pinned_blocks"]:
            self._ask(self.engine.llm, self._short)
        assert self.engine.llm.reset_prefix_cache()


def tokens_of(llm: Any, prompts: Prompts) -> list[Any]:
    from vllm import SamplingParams

    sampling = SamplingParams(temperature=0.0, max_tokens=12, detokenize=False, ignore_eos=True)
    done = llm.generate(prompts, sampling, use_tqdm=False)
    return [list(output.outputs[0].token_ids) for output in done]


def vectors_of(llm: Any, prompts: Prompts) -> list[Any]:
    done = llm.embed(prompts, use_tqdm=False)
    return [[round(x, 3) for x in output.outputs.embedding] for output in done]


def phases(asked: Asked, prompts: Prompts, others: Prompts) -> dict[str, Any]:
    """`others` begin with the same placeholders, and are something else."""
    seen: dict[str, Any] = {}
    seen["first"], seen["first_hits"] = asked.measured(prompts)
    asked.settle()
    seen["warm"], seen["warm_hits"] = asked.measured(prompts)
    asked.settle()
    seen["others"], seen["others_hits"] = asked.measured(others)
    asked.settle()
    seen["others_warm"], seen["others_warm_hits"] = asked.measured(others)
    seen["reset"] = bool(asked.engine.llm.reset_prefix_cache(reset_connector=not PLAIN))
    seen["after"], seen["after_hits"] = asked.measured(prompts)
    asked.settle()
    say(f"{seen['warm_hits']} tokens from the pool, {seen['others_hits']} for others")
    return seen


def embeds(model: str) -> dict[str, Any]:
    import torch

    def made(seed: int) -> Prompts:
        random = torch.Generator().manual_seed(seed)
        size = 256
        return [
            {"prompt_embeds": 0.3 * torch.randn(1500, size, generator=random)} for _ in range(3)
        ]

    asked = Asked(model, tokens_of, enable_prompt_embeds=True)
    return phases(asked, made(1), made(2))


def pooling(model: str) -> dict[str, Any]:
    asked = Asked(
        model,
        vectors_of,
        runner="pooling",
        enable_prefix_caching=True,
        skip_tokenizer_init=False,
    )
    longer: Prompts = [{"prompt_token_ids": prompt[::-1]} for prompt in PROMPTS]
    return phases(asked, [{"prompt_token_ids": prompt} for prompt in PROMPTS], longer)


def pictures(model: str) -> dict[str, Any]:
    import numpy
    from PIL import Image

    def made(seed: int) -> Prompts:
        random = numpy.random.default_rng(seed)
        return [
            {
                "prompt_token_ids": [*PROMPTS[i][:300], PICTURE_TOKEN, *PROMPTS[i][300:800]],
                "multi_modal_data": {
                    "image": Image.fromarray(random.integers(0, 255, (32, 32, 3), dtype="u1"))
                },
            }
            for i in range(3)
        ]

    asked = Asked(model, tokens_of, skip_tokenizer_init=False)
    return phases(asked, made(1), made(2))


KINDS: dict[str, tuple[str, Callable[[str], dict[str, Any]], str]] = {
    "embeds": ("four heads", embeds, "prompts that are embeddings"),
    "pooling": ("words", pooling, "a pooling model"),
    "pictures": ("pictures", pictures, "pictures"),
}


def checks(
    name: str, plain: dict[str, Any], seen: dict[str, Any], fresh: dict[str, Any]
) -> Iterator[tuple[bool, str]]:
    same = ("first", "warm", "others", "others_warm", "after")
    yield (
        all(seen[each] == plain[each] for each in same) and plain["first"] != plain["others"],
        f"{name}: answers as without connector, cold, from the pool, and after a reset",
    )
    # Pictures come behind 300 tokens that all share.
    yield (
        seen["first_hits"] == 0
        and seen["warm_hits"] > 0
        and seen["others_hits"] < seen["warm_hits"]
        and seen["others_warm_hits"] == seen["warm_hits"],
        f"{name}: {seen['warm_hits']} tokens from the pool, {seen['others_hits']} for others with equal placeholders",
    )
    yield seen["reset"] and seen["after_hits"] == 0, f"{name}: none after a reset"
    yield (
        fresh["first"] == plain["first"] and fresh["first_hits"] == seen["warm_hits"],
        f"{name}: a fresh engine has {fresh['first_hits']} tokens of the first one's, answers equal",
    )


def run_kinds(
    directory: Path,
    check: Callable[[bool, str], None],
    drive: Callable[..., dict[str, Any]],
    owner_of: Callable[[Path], Any],
) -> None:
    for role, (model, _, name) in KINDS.items():
        print(f"== {name}")
        path = model_of(directory, model)

        def engine(how: str, *, role: str = role, path: Path = path, **more: str) -> Any:
            return drive(
                role, path, directory / f"kind-{role}-{how}.json", driver="kinds.py", **more
            )

        owner = owner_of(directory)
        told = json.dumps({"pool": f"unix:{owner.socket}", "load_when": "always"})
        try:
            plain = engine("plain", KVCOVE_PLAIN="1")
            seen = engine("pooled", KVCOVE_EXTRA=told)
            fresh = engine("fresh", KVCOVE_EXTRA=told)
        except SystemExit as error:
            check(False, f"{name}: {error}")
            continue
        finally:
            owner.stop()
        for right, text in checks(name, plain, seen, fresh):
            check(right, text)


def main() -> None:
    role, model, out = sys.argv[1:4]
    Path(out).write_text(json.dumps(KINDS[role][1](model)))


if __name__ == "__main__":
    main()
