# SPDX-License-Identifier: Apache-2.0
"""Weights that are written past every observed call (weights_check_s)."""

from __future__ import annotations

import threading

import pytest
from kvcove.vllm import _watch
from kvcove.vllm._config import Config


def never() -> bool:
    return False


def test_weights_that_stay_are_not_found() -> None:
    known = _watch.Known()
    assert _watch.check(known, lambda: "a", never) is None, "nothing was told yet"
    known.told("a")
    assert _watch.check(known, lambda: "a", never) is None


def test_weights_that_were_written_unseen_are_found() -> None:
    known = _watch.Known()
    known.told("a")
    assert _watch.check(known, lambda: "b", never) == "b"


@pytest.mark.parametrize(
    ("now", "found"),
    [
        ("a;4;0.0=p,0.1=q", False),
        ("a;4;0.1=q,0.3=s", False),  # a balancer has moved experts
        ("a;4;0.0=x,0.3=s", True),
        ("b;4;0.0=p,0.1=q", True),
    ],
)
def test_experts_that_move_are_no_other_weights(now: str, found: bool) -> None:
    known = _watch.Known()
    known.told("a;4;0.0=p,0.1=q")
    assert (_watch.check(known, lambda: now, never) is not None) == found


def test_an_update_that_the_scheduler_knows_of_is_none() -> None:
    known = _watch.Known()
    known.told("a")
    assert _watch.check(known, lambda: "b", lambda: True) is None


@pytest.mark.parametrize("during", ["digest", "answer"])
@pytest.mark.parametrize("what", ["moving", "told"])
def test_an_update_that_is_seen_during_a_check_is_none(during: str, what: str) -> None:
    known = _watch.Known()
    known.told("a")

    def update(when: str) -> None:
        if when == during:
            known.moving() if what == "moving" else known.told("c")

    def digest() -> str:
        update("digest")
        return "b"

    def closed() -> bool:
        update("answer")
        return False

    assert _watch.check(known, digest, closed) is None


def test_the_thread_finds_a_write_once() -> None:
    known = _watch.Known()
    known.told("a")
    found: list[str] = []
    event = threading.Event()

    def take(value: str) -> None:
        found.append(value)
        event.set()

    watch = _watch.Watch(0.001, known, lambda: "b", never, take)
    assert event.wait(60)
    watch.close()
    assert found == ["b"], "until a rank has told another fingerprint"


def test_nothing_is_read_while_weights_are_away() -> None:
    known = _watch.Known()
    known.told("a")
    reading, go_on = threading.Event(), threading.Event()
    reads: list[int] = []

    def digest() -> str:
        reads.append(1)
        reading.set()
        assert go_on.wait(60)
        return "a"

    watch = _watch.Watch(0.001, known, digest, never, lambda value: None)
    assert reading.wait(60)
    paused = threading.Thread(target=watch.pause)
    paused.start()
    paused.join(0.05)
    assert paused.is_alive(), "sleep waits for the check that runs"
    go_on.set()
    paused.join(60)
    after = len(reads)
    threading.Event().wait(0.05)
    assert len(reads) == after
    watch.close()


def test_a_check_that_fails_is_not_the_last() -> None:
    known = _watch.Known()
    known.told("a")
    turns: list[int] = []
    event = threading.Event()

    def digest() -> str:
        turns.append(1)
        if len(turns) == 1:
            raise RuntimeError("no memory")
        return "b"

    watch = _watch.Watch(0.001, known, digest, never, lambda value: event.set())
    assert event.wait(60)
    watch.close()


@pytest.mark.parametrize(
    ("extra", "text"),
    [
        ({"weights_check_s": 0.5}, "1 to 86400"),
        ({"weights_check_s": 10, "weight_version_source": "engine"}, "only with"),
        ({"load_when": "sometimes"}, "'faster' or 'always'"),
    ],
)
def test_settings_that_mean_nothing_are_refused(
    extra: dict[str, object], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("KVCOVE_POOL", "MOONCAKE_CONFIG_PATH", "MOONCAKE_MASTER"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ValueError, match=text):
        Config.of(extra)
