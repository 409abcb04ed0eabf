# SPDX-License-Identifier: Apache-2.0
"""What the ranks of an engine must agree on before anything is found or stored. SGLang need not be there."""

from __future__ import annotations

import socket
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from kvcove.sglang._weights import Weights  # noqa: E402


class Told:
    """Ranks in one process: what each told last."""

    def __init__(self, texts: list[str | None], rank: int) -> None:
        self._texts = texts
        self.rank = rank

    def tell(self, text: str) -> None:
        self._texts[self.rank] = text

    def told(self, _own: str) -> list[str] | None:
        return None if None in self._texts else [text or "" for text in self._texts]


class Model(torch.nn.Module):
    def __init__(self, seed: float) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.full((4,), seed), requires_grad=False)

    def load_weights(self, seed: float) -> None:
        self.weight.data.fill_(seed)


def engine(seed: float = 1.0, ranks: int = 2) -> list[Weights]:
    texts: list[str | None] = [None] * ranks
    return [
        Weights([SimpleNamespace(model=Model(seed + rank))], Told(texts, rank), True, lambda: None)
        for rank in range(ranks)
    ]


def update(weights: Weights, seed: float, empty: bool = True) -> None:
    with weights.change(empty):
        weights.runners[0].model.load_weights(seed)


def version(weights: Weights) -> str | None:
    now = weights.now()
    return None if now is None else now.version


def test_a_rank_alone_knows_nothing() -> None:
    texts: list[str | None] = [None, None]
    one = SimpleNamespace(model=Model(1.0))
    first = Weights([one], Told(texts, 0), True, lambda: None)
    assert first.now() is None
    second = Weights([one], Told(texts, 1), True, lambda: None)
    assert version(first) == version(second) is not None


def test_ranks_in_different_updates_find_and_store_nothing() -> None:
    first, second = engine()
    before = version(first)
    update(first, 7.0)
    # The other rank's weights are those of before: each refuses until both have ended the update.
    assert first.now() is None
    assert second.now() is None
    update(second, 8.0)
    assert version(first) == version(second) not in (None, before)


def test_a_change_of_one_rank_alone_is_one_of_the_engine() -> None:
    first, second = engine()
    before = version(first)
    update(first, 1.0)
    update(second, 9.0)
    assert version(first) not in (None, before)


def test_equal_weights_have_the_same_version_after_however_many_updates() -> None:
    first, second = engine()
    before = version(first)
    for seed in (5.0, 1.0):
        update(first, seed)
        update(second, seed + 1)
    assert version(first) == version(second) == before == version(engine()[0])


def test_ranks_that_flush_more_often_than_others_agree() -> None:
    first, second = engine()
    before = version(first)
    with first.emptying():
        assert first.now() is None
    assert version(first) == version(second) == before


@pytest.mark.parametrize("empty", [True, False])
def test_after_a_change_an_engine_stores_if_it_held_no_kv(empty: bool) -> None:
    first, second = engine()
    for each in (first, second):
        update(each, 3.0, empty)
    now = first.now()
    assert now is not None and now.stores == empty
    with first.emptying():
        pass
    now = first.now()
    assert now is not None and now.stores


def test_weights_written_past_the_calls_close_the_rank_until_it_is_flushed() -> None:
    (first,) = engine(ranks=1)
    before = version(first)
    first.runners[0].model.load_weights(4.0)
    assert first.now() is None
    with first.emptying():
        pass
    assert version(first) not in (None, before)


def test_a_call_that_raises_ends_the_change() -> None:
    (first,) = engine(ranks=1)
    before = version(first)
    with pytest.raises(RuntimeError), first.change(True):
        first.runners[0].model.weight.data[0] = 5.0
        raise RuntimeError
    assert version(first) not in (None, before)


_RANK = """
import sys, torch.distributed as dist
from kvcove.sglang._weights import Ranks
rank = int(sys.argv[1])
dist.init_process_group("gloo", f"tcp://127.0.0.1:{sys.argv[2]}", rank=rank, world_size=2)
ranks = Ranks()
if rank == 0:
    assert ranks.told("") is None
dist.barrier()
ranks.tell(f"text of {rank}")
dist.barrier()
assert ranks.told("") == ["text of 0", "text of 1"]
dist.barrier()
print(ranks.engine(), flush=True)
dist.barrier()
"""


def test_processes_of_an_engine_tell_each_other_through_torchs_store() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    ranks: list[Any] = [
        subprocess.Popen(
            [sys.executable, "-c", _RANK, str(rank), str(port)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    answers = [each.communicate(timeout=180) for each in ranks]
    assert [each.returncode for each in ranks] == [0, 0], answers
    assert answers[0][0] == answers[1][0] != ""


def test_a_store_that_does_not_answer_closes_the_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    def fault(*_: Any) -> None:
        raise torch.distributed.DistStoreError("no answer")

    (first,) = engine(ranks=1)
    before = version(first)
    monkeypatch.setattr(first._ranks, "told", fault, raising=False)
    assert first.now() is None
    monkeypatch.undo()
    monkeypatch.setattr(first._ranks, "tell", fault, raising=False)
    update(first, 2.0)  # the call goes on
    assert first.now() is None
    monkeypatch.undo()
    update(first, 1.0)
    assert version(first) == before


def test_a_rank_that_the_others_know_by_older_weights_finds_and_stores_nothing() -> None:
    first, second = engine()
    first._ranks.tell("0:of before")
    assert first.now() is None
    assert second.now() is not None
