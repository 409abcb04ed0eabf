# SPDX-License-Identifier: Apache-2.0
"""Which ranks have equal bytes, where they have one KV head each. On fakes of vLLM."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from fake_vllm import installed, module_of


@pytest.fixture
def heads(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    with installed(monkeypatch):
        yield module_of("_heads")


def model(heads: int, **facts: Any) -> Any:
    facts = {"num_attention_heads": 64, "num_key_value_heads": heads, **facts}
    return SimpleNamespace(
        get_total_num_kv_heads=lambda: heads,
        hf_text_config=SimpleNamespace(to_dict=lambda: facts),
    )


def count(
    heads: Any,
    of: Any,
    ranks: int,
    layer: int,
    kind: str = "FullAttentionSpec",
    stages: int = 1,
    **more: Any,
) -> int:
    """Return the heads of a group whose layers have so many in all ranks."""
    parallel = SimpleNamespace(tensor_parallel_size=ranks, pipeline_parallel_size=stages)
    config = SimpleNamespace(model_config=of, parallel_config=parallel)
    made = getattr(module_of("_compat"), kind)()
    made.num_kv_heads = max(1, layer // ranks)
    made.__dict__.update(more.pop("spec", {}))
    return int(heads.heads_of(made, config, **more))


@pytest.mark.parametrize("ranks", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("many", [1, 2, 8])
def test_a_model_whose_layers_are_equal_has_as_many_as_it_says(
    heads: Any, ranks: int, many: int
) -> None:
    vision = {"num_key_value_heads": 16}  # of another part of the model
    for stages in (1, 2):
        of = model(many, vision_config=vision)
        assert count(heads, of, ranks, many, stages=stages) == many


@pytest.mark.parametrize(
    ("of", "layer"),
    [
        (model(4, swa_num_key_value_heads=8), 8),  # MiMo V2: its windows
        (model(4, attention_other_setting={"num_attention_groups": 8}), 8),  # Step 3.5
        (model(4, num_key_value_heads_per_layer=[4, 8, 4]), 8),
        (model(4, block_configs=[{"n_heads_in_group": 16}, {"n_heads_in_group": 8}]), 8),
    ],
)
def test_ranks_share_nothing_where_a_group_has_more_heads_than_the_model(
    heads: Any, of: Any, layer: int
) -> None:
    # 8 ranks have a head each. Two of them have the same of 4 heads, and others of 8.
    assert count(heads, of, 8, layer) == 8
    assert count(heads, of, 4, layer) == layer, "each rank has two"
    assert count(heads, of, 16, layer) == 8, "then two ranks have equal ones again"


def test_a_head_is_one_ranks_alone_where_counts_do_not_fit(heads: Any) -> None:
    assert count(heads, model(2, swa_num_key_value_heads=6), 8, 6) == 8


def test_the_layers_of_a_model_that_drafts_count(heads: Any) -> None:
    assert count(heads, model(4), 8, 4, drafting=model(8)) == 8
    assert count(heads, model(8), 8, 8, drafting=model(4)) == 8


def test_all_pipeline_stages_come_to_one_number(heads: Any) -> None:
    of = model(4, swa_num_key_value_heads=16)
    for ranks in (1, 2, 8):
        assert {count(heads, of, ranks, layer, stages=2) for layer in (4, 16)} == {16}


def test_a_configuration_that_names_too_few_makes_no_ranks_equal_that_have_heads_of_their_own(
    heads: Any,
) -> None:
    assert count(heads, model(2, heads_by_layer=[2, 8]), 4, 8, stages=2) == 8


@pytest.mark.parametrize("stages", [1, 2])
@pytest.mark.parametrize(
    ("ranks", "many", "expected"), [(1, 8, 1), (2, 8, 2), (8, 2, 2), (8, 1, 1), (6, 4, 6)]
)
def test_latents_and_the_heads_of_a_plain_draft_in_one_group_are_stored_by_rank(
    heads: Any, stages: int, ranks: int, many: int, expected: int
) -> None:
    latent, plain = model(1), model(many)
    latent.use_mla, plain.use_mla = True, False
    # Whichever layer a process knows the group by, and whichever of the models drafts.
    for of, drafting in ((latent, plain), (plain, latent)):
        for kind, layer in (("MLAAttentionSpec", 1), ("FullAttentionSpec", many)):
            found = count(heads, of, ranks, layer, kind, stages, drafting=drafting)
            assert found == expected
    both = model(1)
    both.use_mla = True  # MTP: a layer of the model's own kind
    assert count(heads, latent, ranks, 1, "MLAAttentionSpec", stages, drafting=both) == 1


def test_every_rank_has_all_of_a_latent_vector(heads: Any) -> None:
    for ranks in (1, 8):
        assert count(heads, model(128), ranks, 1, "MLAAttentionSpec") == 1
        assert count(heads, model(128), ranks, 1, "MambaSpec") == 1
        # A window over latents is no MLAAttentionSpec.
        latent = {"max_tp_shards": 1}
        assert count(heads, model(128), ranks, 1, "SlidingWindowSpec", spec=latent) == 1
