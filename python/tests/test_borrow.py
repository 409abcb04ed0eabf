# SPDX-License-Identifier: Apache-2.0
"""Values in place: borrowed and reserved memory."""

import gc
from collections.abc import Iterator

import numpy as np
import pytest

import kvcove


@pytest.fixture
def pool() -> Iterator[kvcove.Pool]:
    with kvcove.open("embedded:?memory=64MiB&policy=lru") as pool:
        yield pool


@pytest.fixture
def session(pool: kvcove.Pool) -> Iterator[kvcove.Session]:
    with pool.session("acme/model", follow_always=True) as session:
        yield session


def test_values_are_read_where_they_lie(session: kvcove.Session) -> None:
    block = np.arange(100_000, dtype=np.float32)
    assert session.put(["a", "b"], [block, b"bytes"]).all_ok
    with session.borrow(["a", "none", "b"]) as loan:
        assert len(loan) == 3
        assert [result.ok for result in loan.results] == [True, False, True]
        assert loan.results[1].reason == kvcove.MissReason.NEVER_PUT
        assert not loan.results[1].elsewhere
        assert loan.nbytes == block.nbytes + 5
        assert b"".join(loan[0]) == block.tobytes()
        assert loan[1] == ()
        assert bytes(loan[-1][0]) == b"bytes"
        assert loan[0][0].readonly
        with pytest.raises(IndexError):
            loan[3]
        assert loan.revalidate().ok_count == 2
        assert loan.release().ok_count == 2


def test_nothing_is_readable_after_the_release(session: kvcove.Session) -> None:
    session.put(["a"], [b"bytes"])
    loan = session.borrow(["a"])
    (view,) = loan[0]
    assert loan.release().all_ok
    with pytest.raises(ValueError, match="released memoryview"):
        bytes(view)
    for use in (lambda: loan[0], loan.revalidate, loan.release):
        with pytest.raises(kvcove.InvalidError, match="has been released"):
            use()
    assert loan.nbytes == 0


def test_an_array_on_a_view_refuses_the_release(session: kvcove.Session) -> None:
    session.put(["a"], [np.arange(10, dtype=np.int64)])
    loan = session.borrow(["a"])
    array = np.frombuffer(loan[0][0], dtype=np.int64)
    assert array.sum() == 45
    assert not array.flags.writeable
    with pytest.raises(BufferError):
        loan.release()
    assert array.sum() == 45
    assert loan.nbytes == 80
    del array
    assert loan.release().all_ok


def test_the_last_view_keeps_the_loan_and_the_pool(pool: kvcove.Pool) -> None:
    session = pool.session("acme/model", follow_always=True)
    session.put(["a"], [b"x" * 100_000])
    view = session.borrow(["a"])[0][0]
    gc.collect()
    for i in range(1000):
        session.put([f"pressure-{i}"], [b"y" * 100_000])
    assert not session.exists(["a"])[0].ok
    assert bytes(view) == b"x" * 100_000
    session.close()
    pool.close()
    assert bytes(view) == b"x" * 100_000
    view.release()


def test_a_reset_makes_what_is_borrowed_a_miss(session: kvcove.Session) -> None:
    session.put(["a"], [b"bytes"])
    loan = session.borrow(["a"])
    session.reset()
    assert loan.revalidate()[0].reason == kvcove.MissReason.RESET
    assert bytes(loan[0][0]) == b"bytes"
    assert loan.release()[0].reason == kvcove.MissReason.RESET


def test_beyond_the_budget_keys_are_limited(pool: kvcove.Pool) -> None:
    session = pool.session("acme/model", borrow_bytes=150_000)
    session.put(["a", "b"], [b"x" * 100_000] * 2)
    with session.borrow(["a", "b"]) as loan:
        assert loan.results[0].ok
        assert loan.results[1].code == kvcove.Code.LIMIT
        assert loan.results[1].nbytes == 100_000
    with session.borrow(["b"]) as loan:
        assert loan.results[0].ok


def test_reserved_memory_becomes_values(session: kvcove.Session) -> None:
    token = session.capture()
    block = np.arange(50_000, dtype=np.float32)
    space = session.reserve(["a", "b", "c"], [block.nbytes, 4, 4], token=token, after="before")
    assert space.results.all_ok
    assert space.nbytes == block.nbytes + 8
    assert not session.exists(["a"])[0].ok
    array = np.frombuffer(space[0][0], dtype=np.float32)
    array[:] = block
    space[1][0][:] = b"four"
    space.drop(2)
    with pytest.raises(BufferError):
        space.commit()
    del array
    results = space.commit()
    assert [result.code for result in results] == [
        kvcove.Code.OK,
        kvcove.Code.OK,
        kvcove.Code.CORRUPT,
    ]
    assert [result.code for result in space.commit()] == [result.code for result in results]
    assert session.get(["a", "b", "c"]) == [block.tobytes(), b"four", None]
    for use in (lambda: space[0], lambda: space.drop(0)):
        with pytest.raises(kvcove.InvalidError, match="committed"):
            use()


def test_what_is_not_committed_is_given_back(session: kvcove.Session) -> None:
    with session.reserve(["a"], [100]) as space:
        view = space[0][0]
        assert session.reserve(["a"], [100]).results[0].code == kvcove.Code.IN_PROGRESS
    with pytest.raises(ValueError, match="released memoryview"):
        view[0] = 1
    with pytest.raises(kvcove.InvalidError, match="given up"):
        space.commit()
    assert session.reserve(["a"], [100]).results[0].ok
    assert session.reserve(["a"], [100]).results[0].ok, "the end of the last one was enough"


def test_a_commit_behind_a_reset_is_stale(session: kvcove.Session) -> None:
    space = session.reserve(["a"], [100])
    session.reset()
    assert space.commit()[0].code == kvcove.Code.STALE
    assert session.reserve(["a"], [100], token=session.capture()).results[0].ok


def test_misuse_is_named(session: kvcove.Session) -> None:
    with pytest.raises(kvcove.InvalidError, match="1 keys but 2 sizes"):
        session.reserve(["a"], [1, 2])
    with pytest.raises(kvcove.InvalidError, match="after: 2 keys for 1 values"):
        session.reserve(["a"], [1], after=["x", "y"])
    with pytest.raises(kvcove.InvalidError, match="a list is wanted"):
        session.borrow("a")  # type: ignore[arg-type]


def test_segments_say_where_pieces_may_lie(session: kvcove.Session, pool: kvcove.Pool) -> None:
    assert pool.wait_populated()
    (segment,) = session.segments()
    assert segment.nbytes == segment.populated_bytes == 64 << 20
    assert segment.address % 4096 == 0
    session.put(["a"], [b"x" * 100_000])
    with session.borrow(["a"]) as loan:
        array = np.frombuffer(loan[0][0], dtype=np.uint8)
        at = array.__array_interface__["data"][0]
        assert segment.address <= at < segment.address + segment.nbytes
        del array
