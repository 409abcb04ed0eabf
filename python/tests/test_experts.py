# SPDX-License-Identifier: Apache-2.0
"""Experts on the ranks of several engines: what each tells, and what it makes of its peers'."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from kvcove.vllm import _experts

import kvcove

OWN = (3, "d|;4;0.0=p,0.1=q")
PEER = "d|;4;0.2=r,0.3=s"


def test_peers_are_given_when_they_have_told_and_once() -> None:
    board = _experts.Board()
    assert board.take(OWN, [None], 0.0) == (3, [], False)
    assert board.take(OWN, [None], 1.0) is None
    assert board.take(OWN, [PEER], 2.0) == (3, [PEER], False)
    assert board.take(OWN, [PEER], 3.0) is None
    assert board.take(OWN, [None], 4.0) == (3, [], False), "it changes"
    assert board.take((4, OWN[1]), [None], 5.0) == (4, [], False)


@pytest.mark.parametrize("peer", [None, "e|;4;0.2=r,0.3=s"])
def test_an_engine_does_not_wait_for_its_peers_for_ever(peer: str | None) -> None:
    board = _experts.Board(patience=30.0)
    there = [] if peer is None else [peer]
    assert board.take(OWN, [peer], 100.0) == (3, there, False)
    assert board.take(OWN, [peer], 129.9) is None
    assert board.take(OWN, [peer], 130.0) == (3, there, True)
    assert board.take(OWN, [PEER], 140.0) == (3, [PEER], False), "they are there at last"
    assert board.take(OWN, [peer], 150.0) == (3, there, False), "and the wait begins anew"
    board.forget()
    assert board.take(OWN, [peer], 160.0) == (3, there, False)


class Role:
    """A scheduler's role that keeps what it is given."""

    def __init__(self, own: tuple[int, str] | None) -> None:
        self.own = own
        self.given: list[tuple[int, list[str], bool]] = []

    def takes_peers(self) -> tuple[int, str] | None:
        return self.own

    def set_peers(self, number: int, peers: list[str], alone: bool) -> None:
        self.given.append((number, peers, alone))


@pytest.fixture
def session() -> Iterator[Any]:
    with kvcove.open("embedded:?memory=64MiB") as pool:
        yield pool.session("kvcove-facts")


def exchange(session: Any, role: Role, rank: int, **options: Any) -> Any:
    # Its thread sleeps: the test looks.
    return _experts.Exchange(role, session, ("group", 2, rank), look_s=3600, **options)


def test_engines_read_what_their_peers_have_told(session: Any) -> None:
    first, second = Role(OWN), Role(None)
    one, two = exchange(session, first, 0), exchange(session, second, 1)
    one.look()
    two.look()
    assert first.given == [(3, [], False)]
    assert second.given == [], "it knows nothing of its own weights"
    second.own = (7, PEER)
    two.look()
    assert second.given == [(7, [OWN[1]], False)]
    one.look()
    one.look()
    assert first.given[1:] == [(3, [PEER], False)]
    second.own = None  # its weights change
    two.look()
    one.look()
    assert first.given[2:] == [(3, [], False)]
    second.own = (8, PEER)
    two.look()
    session.remove(["experts of group, 1"])  # evicted
    two.look()
    one.look()
    assert first.given[3:] == [(3, [PEER], False)]
    two.close()
    one.look()
    assert first.given[4:] == [(3, [], False)], "an engine that ends takes it back"
    one.close()


def test_a_pool_that_no_peer_reaches_is_not_waited_for(session: Any) -> None:
    role = Role(OWN)
    alone = exchange(session, role, 0, patience=0.0)
    alone.look()
    assert role.given == [(3, [], True)]
    alone.close()


class Config:
    """As vLLM's parallel configuration."""

    def __init__(self, size: int) -> None:
        self.parallel_config = self
        self.data_parallel_size = size
        self.data_parallel_rank = self.data_parallel_index = 1
        self.data_parallel_master_ip = "10.0.0.1"
        self.data_parallel_master_port = 4000


def test_engines_of_one_data_parallel_group_have_one_name() -> None:
    assert _experts.group_of(Config(1)) is None
    assert _experts.group_of(Config(2)) == ("10.0.0.1:4000:2", 2, 1)
