# SPDX-License-Identifier: Apache-2.0
"""The package kvcove: pools, sessions, buffers, results, exceptions, fork, threads."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import multiprocessing
import os
import random
import sys
import threading
import time
import tracemalloc
import types
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest
from conftest import Cluster, python, wait_until
from kvcove.aio import AsyncSession

import kvcove

numpy = pytest.importorskip("numpy")

#: Seconds for a call on a busy machine. A master's first removal or reset waits a second for leases of
#: a predecessor that it cannot know of, which leaves 1.5 s of the default.
PATIENT = 60.0


@pytest.fixture(params=["embedded", "host", "cluster"])
def pool(request: pytest.FixtureRequest, run_dir: Any) -> Iterator[kvcove.Pool]:
    if request.param == "embedded":
        address = "embedded:?memory=128MiB"
    elif request.param == "host":
        address = "unix:" + request.getfixturevalue("serve")
    else:
        cluster: Cluster = request.getfixturevalue("cluster")
        from kvcove import _native

        owner = _native.open_owner(
            master=cluster.address,
            memory=128 << 20,
            listen="127.0.0.1:0",
            socket_path=str(run_dir / "owner.sock"),
        )
        request.addfinalizer(owner.close)
        address = f"kvcove://{cluster.address}"
    opened = kvcove.open(address, timeout=PATIENT)
    assert wait_until(lambda: opened.stat(timeout=PATIENT).payload_bytes > 0)
    yield opened
    opened.close()


@pytest.fixture
def session(pool: kvcove.Pool) -> kvcove.Session:
    return pool.session("test/model@1")


def test_hints_come_with_values(session: kvcove.Session) -> None:
    hints = kvcove.Hints(output_tokens=700, ephemeral=True, session_ends=True, request_goes_on=True)
    assert (hints.output_tokens, hints.ephemeral) == (700, True)
    assert (hints.session_ends, hints.request_goes_on) == (True, True)
    assert session.put(["a", "b"], [b"1", b"2"], hints=hints).all_ok
    each = [kvcove.Hints(), kvcove.Hints(ephemeral=True)]
    assert session.put(["c", "d"], [b"1", b"2"], after="b", hints=each).all_ok
    assert session.get(["a", "b", "c", "d"]) == [b"1", b"2", b"1", b"2"]
    with pytest.raises(TypeError):
        kvcove.Hints(output_tokens=-1)

    async def put() -> kvcove.Results:
        return await AsyncSession(session).put(["e"], [b"1"], hints=hints)

    assert asyncio.run(put()).all_ok


# What its caller says goes on is spared while other requests give way.
def test_a_request_that_goes_on_is_spared() -> None:
    with kvcove.open("embedded:?memory=1MiB") as pool:
        session = pool.session("test/model@1")
        value = b"v" * (64 << 10)  # 16 of them

        def put(name: str, goes_on: bool) -> list[str]:
            keys = [f"{name}{i}" for i in range(7)]
            hints = kvcove.Hints(request_goes_on=goes_on)
            assert session.put(keys, [value] * 7, hints=hints).all_ok
            return keys

        opened = put("open", True)
        for i in range(4):
            put(f"ended{i}-", False)
        assert all(result.ok for result in session.exists(opened))


# What a namespace of high priority has is not given to one of low priority that writes more.
def test_priorities_of_namespaces_share_the_memory() -> None:
    with kvcove.open("embedded:?memory=4MiB") as pool:
        sessions = {name: pool.session(f"test/{name}@1") for name in ("low", "normal", "high")}
        value = b"v" * (16 << 10)  # 256 of them

        def count(name: str) -> int:
            return sessions[name].exists([str(i) for i in range(600)]).ok_count

        for i in range(600):
            for name, session in sessions.items():
                hints = kvcove.Hints(priority=name)
                assert hints.priority == name
                assert session.put([str(i)], [value], hints=hints).all_ok
        low, normal, high = (count(name) for name in ("low", "normal", "high"))
        assert 3 * low < normal < 5 * low, (low, normal, high)
        assert 3 * normal < high < 5 * normal, (low, normal, high)
    with pytest.raises(kvcove.InvalidError, match="low, normal or high"):
        kvcove.Hints(priority="urgent")


def test_a_value_goes_in_and_comes_out(session: kvcove.Session) -> None:
    results = session.put(["a", b"\xff\x00", "ä"], [b"1", bytearray(b"22"), memoryview(b"333")])
    assert results.all_ok
    assert len(results) == results.ok_count == 3
    assert session.get([b"a", b"\xff\x00", "ä".encode(), "nothing"]) == [b"1", b"22", b"333", None]
    found = session.exists(["a", "nothing"])
    assert list(found.codes) == [kvcove.Code.OK, kvcove.Code.MISS]
    assert found[1].reason in (kvcove.MissReason.NEVER_PUT, kvcove.MissReason.WARMING_UP)
    assert found[-2].nbytes == 1
    with pytest.raises(IndexError):
        found[2]
    assert session.longest_prefix(["a", "ä", "nothing", "a"]) == 2
    assert [s and s.nbytes for s in session.stat(["ä", "nothing"])] == [3, None]
    assert sorted(stored.key for stored in session.stored()) == [b"a", "ä".encode(), b"\xff\x00"]
    assert [bool(owners) for owners in session.where(["a", "nothing"])] == [True, False]


def test_a_reset_is_a_fence(session: kvcove.Session) -> None:
    token = session.capture()
    assert session.put(["before"], [b"1"], token=token).all_ok
    session.reset(timeout=PATIENT)
    assert session.exists(["before"])[0].code == kvcove.Code.MISS
    assert session.put(["late"], [b"1"], token=token)[0].code == kvcove.Code.STALE
    assert session.put(["after"], [b"1"]).all_ok
    assert session.get(["before", "late", "after"]) == [None, None, b"1"]


def test_a_token_travels_as_text(session: kvcove.Session) -> None:
    token = session.capture()
    same = kvcove.Token.parse(str(token))
    assert same == token
    assert hash(same) == hash(token)
    assert token != "token"
    with pytest.raises(kvcove.InvalidError):
        kvcove.Token.parse("no token")


def test_weight_versions_do_not_mix(pool: kvcove.Pool) -> None:
    session = pool.session("test/versions")
    session.name_versions(["w1", "w2"])
    session.put(["k"], [b"one"], token=session.capture("w1"))
    session.put(["k"], [b"two"], token=session.capture("w2"))
    assert session.get(["k"], version="w1") == [b"one"]
    assert session.get(["k"], version="w2") == [b"two"]
    assert session.get(["k"]) == [None]


def test_versions_before_one_are_declared_dead(pool: kvcove.Pool) -> None:
    session = pool.session("test/prune")
    tokens = {version: session.capture(version) for version in ["w9", "w10", "now"]}
    for version, token in tokens.items():
        session.put(["k"], [version.encode()], token=token)
    with pytest.raises(kvcove.InvalidError, match="nobody has named the weight version 'w11'"):
        session.prune("w11", timeout=PATIENT)
    assert session.prune("now", timeout=PATIENT) == 2
    assert session.get(["k"], version="w9") == [None]
    assert session.get(["k"], version="now") == [b"now"]
    assert session.put(["late"], [b"old"], token=tokens["w10"])[0].code == kvcove.Code.STALE
    with pytest.raises(kvcove.DeniedError, match="'w10' of namespace 'test/prune' is dead"):
        session.capture("w10")
    assert not session.closed
    assert session.prune("now", timeout=PATIENT) == 0


def test_holds_pins_and_removals(session: kvcove.Session) -> None:
    session.put(["a", "b", "c1", "c2"], [b"1"] * 4)
    assert list(session.hold(["a", "nothing"], 5).codes) == [0, kvcove.Code.MISS]
    assert wait_until(lambda: bool(session.stat(["a"])[0] and session.stat(["a"])[0].held))
    assert session.pin(["b"]).all_ok
    assert session.stat(["b"])[0].hard_pinned
    assert session.unpin(["b"]).all_ok
    assert session.pin(["b"], 60).all_ok
    assert session.stat(["b"])[0].soft_pinned
    assert session.pin(["b"], 600, hard=True).all_ok
    assert session.stat(["b"])[0].hard_pinned
    assert session.unpin(["b"]).all_ok
    assert session.pin(["b"], 0.001, hard=True).all_ok
    assert wait_until(lambda: not session.stat(["b"])[0].hard_pinned)
    for wrong in (0, 0.0001, -1, 86_401, float("nan")):
        with pytest.raises(kvcove.InvalidError):
            session.pin(["b"], wrong, hard=True)
    assert not session.stat(["b"])[0].hard_pinned
    assert session.remove(["a", "nothing"], timeout=PATIENT).ok_count == 1
    assert session.remove_matching("c*", timeout=PATIENT) == 2
    assert [stored.key for stored in session.stored()] == [b"b"]


def test_a_rollout_keeps_pinned_what_is_stored_before_and_during_it(
    session: kvcove.Session,
) -> None:
    session.put(["before"], [b"1"])

    def pinned(key: str) -> bool:
        stat = session.stat([key], timeout=PATIENT)[0]
        return stat is not None and stat.hard_pinned

    with kvcove.Rollout(session, ["before", "during"], seconds=3) as rollout:
        assert wait_until(lambda: pinned("before"))
        session.put(["during", "more"], [b"2"] * 2)
        assert wait_until(lambda: pinned("during")), "its thread has pinned it"
        assert rollout.add(["more", "nothing", "more"]) == 1
        assert rollout.renew() == 3
    assert not any(map(pinned, ["before", "during", "more"]))
    rollout.close()
    with pytest.raises(kvcove.InvalidError, match="closed"):
        rollout.add(["before"])
    assert rollout.renew() == 0
    assert not pinned("before")
    with pytest.raises(kvcove.InvalidError):
        kvcove.Rollout(session, ["before"], seconds=0)


class PinCalls:
    """A session that keeps which keys are pinned; ``before`` runs before each pin."""

    def __init__(self) -> None:
        self.pinned: set[str] = set()
        self.calls = 0
        self.before: Callable[[list[str]], None] = lambda keys: None

    def pin(self, keys: list[str], seconds: float, **more: Any) -> Any:
        self.calls += 1
        self.before(keys)
        self.pinned.update(keys)
        return types.SimpleNamespace(ok_count=len(keys))

    def unpin(self, keys: list[str], **more: Any) -> None:
        self.pinned.difference_update(keys)


@pytest.mark.parametrize("call", ["add", "renew"])
def test_a_rollout_that_ends_during_a_call_leaves_no_pin(call: str) -> None:
    calls = PinCalls()
    rollout = kvcove.Rollout(cast(Any, calls), ["a"], seconds=3600)
    calls.before = lambda keys: rollout.close()
    if call == "add":
        with pytest.raises(kvcove.InvalidError, match="closed meanwhile"):
            rollout.add(["b"])
    else:
        assert rollout.renew() == 0
    assert calls.calls == 2
    assert not calls.pinned


def test_a_rollout_repeats_a_renewal_that_failed(caplog: pytest.LogCaptureFixture) -> None:
    calls = PinCalls()
    with kvcove.Rollout(cast(Any, calls), ["a"], seconds=0.06):

        def fail(keys: list[str]) -> None:
            raise kvcove.UnavailableError("the pool is gone")

        calls.before = fail
        before = calls.calls
        assert wait_until(lambda: calls.calls > before + 3)
        calls.pinned.clear()
        calls.before = lambda keys: None
        assert wait_until(lambda: calls.pinned == {"a"})
    assert caplog.text.count("not renewed now: the pool is gone") == 1


def test_anything_that_is_memory_is_a_buffer(session: kvcove.Session) -> None:
    array = numpy.arange(1000, dtype=numpy.float32)
    target = numpy.zeros(1000, numpy.float32)
    stored = session.put(
        ["array", "pieces"], [array, [array[:10], b"tail", kvcove.Memory(array.ctypes.data, 8)]]
    )
    assert stored.all_ok, list(stored)
    results = session.get_into(["array", "pieces"], [target, [bytearray(40), bytearray(100)]])
    assert results.all_ok
    assert list(results.nbytes) == [4000, 52]
    assert (target == array).all()

    class Borrowed:
        def __dlpack__(self, **more: Any) -> Any:
            return array.__dlpack__(**more)

        def __dlpack_device__(self) -> Any:
            return array.__dlpack_device__()

    assert session.put(["dlpack"], [Borrowed()]).all_ok
    assert session.get(["dlpack"]) == [array.tobytes()]
    small = session.get_into(["array"], [bytearray(10)])
    assert small[0].code == kvcove.Code.BUFFER_TOO_SMALL
    assert small[0].nbytes == 4000


def test_torch_tensors_with_lazy_signs_are_refused(session: kvcove.Session) -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(kvcove.InvalidError, match="resolve_conj"):
        session.put(["k"], [torch.tensor([1 + 2j]).conj()])
    with pytest.raises(kvcove.InvalidError, match="resolve_neg"):
        session.put(["k"], [torch._neg_view(torch.ones(1))])


def test_torch_tensors_are_buffers(session: kvcove.Session) -> None:
    torch = pytest.importorskip("torch")
    value = torch.arange(100, dtype=torch.bfloat16)
    target = torch.zeros(100, dtype=torch.bfloat16)
    assert session.put(["t"], [value]).all_ok
    assert session.get_into(["t"], [target]).all_ok
    assert torch.equal(value, target)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda s: s.put("key", [b"1"]), "a list is wanted, not one str"),
        (lambda s: s.put([1], [b"1"]), "keys[0]: a key is str or bytes, not int"),
        (
            lambda s: s.put(["a", "b\ud800"], [b"1", b"2"]),
            r"keys[1]: 'b\ud800' has a lone surrogate",
        ),
        (lambda s: s.exists(["\udcff"]), "text.encode('utf-8', 'surrogatepass')"),
        (lambda s: s.put(["a"], [b"1"], after="\ud800"), r"after: '\ud800' has a lone surrogate"),
        (lambda s: s.put(["a"], []), "1 keys but 0 values"),
        (lambda s: s.put(["a"], [3]), "neither the buffer protocol nor DLPack"),
        (lambda s: s.put(["a"], [numpy.zeros(4)[::2]]), "C-contiguous"),
        (lambda s: s.get_into(["a"], [b"1234"]), "must be writable"),
        (lambda s: s.put(["a", "b"], [b"1", b"2"], after=["x"]), "after: 1 keys for 2 values"),
        (
            lambda s: s.put(["a", "b"], [b"1", b"2"], hints=[kvcove.Hints()]),
            "hints: 1 for 2 values",
        ),
        (lambda s: s.put(["a"], [b"1"], hints="ephemeral"), "hints must be a kvcove.Hints"),
        (lambda s: s.exists(["a"], timeout=-1), "is no duration"),
        (lambda s: kvcove.Memory(0, 8), "address 0"),
        (lambda s: kvcove.open("nonsense"), "is not a pool's address"),
        (lambda s: kvcove.open("embedded:?memry=1GiB"), "memory"),
        (lambda s: kvcove.open("embedded:?memory=9000TiB"), "memory"),
    ],
)
def test_misuse_says_what_would_be_right(session: kvcove.Session, call: Any, says: str) -> None:
    with pytest.raises(kvcove.InvalidError) as caught:
        call(session)
    assert says in str(caught.value)
    assert isinstance(caught.value, kvcove.Error | ValueError)


def _structured_with_objects() -> Any:
    return numpy.array([(1, "a")], dtype=[("O", "i4"), ("b", object)])


@pytest.mark.parametrize(
    "objects",
    [
        numpy.array([1, "a"], object),
        memoryview(numpy.array([1, "a"], object)),
        _structured_with_objects(),
        # Its format cannot be asked for.
        numpy.array([(0, None)], dtype=[("t", "M8[s]"), ("o", object)]),
    ],
    ids=["objects", "view", "structure", "times"],
)
def test_arrays_of_python_objects_are_refused(session: kvcove.Session, objects: Any) -> None:
    with pytest.raises(kvcove.InvalidError, match=r"holds Python objects.*pickle\.dumps"):
        session.put(["k"], [objects])
    assert not session.exists(["k"]).all_ok
    with pytest.raises(kvcove.InvalidError, match="holds Python objects"):
        session.get_into(["k"], [objects])


@pytest.mark.parametrize(
    "addresses", [ctypes.c_char_p(b"x"), (ctypes.c_void_p * 2)(), ctypes.pointer(ctypes.c_int(1))]
)
def test_memory_that_holds_addresses_is_refused(session: kvcove.Session, addresses: Any) -> None:
    with pytest.raises(kvcove.InvalidError, match="addresses"):
        session.put(["k"], [addresses])
    assert not session.exists(["k"]).all_ok


def test_arrays_whose_format_only_looks_like_objects_are_stored(session: kvcove.Session) -> None:
    for array in (
        numpy.array([(1, 2)], dtype=[("O", "i4"), ("b", "i4")]),
        numpy.array([5], dtype="M8[s]"),
    ):
        assert session.put(["k"], [array]).all_ok
        assert session.get(["k"]) == [array.tobytes()]
        session.remove(["k"], timeout=PATIENT)


@pytest.mark.parametrize(
    ("lazy", "remedy"), [("is_conj", "resolve_conj"), ("is_neg", "resolve_neg")]
)
def test_a_tensor_whose_memory_has_other_numbers_is_refused(
    session: kvcove.Session, lazy: str, remedy: str
) -> None:
    array = numpy.arange(3, dtype=numpy.float32)

    def tensor(answer: bool) -> Any:
        class Tensor:
            def __dlpack__(self, **more: Any) -> Any:
                return array.__dlpack__(**more)

            def __dlpack_device__(self) -> Any:
                return array.__dlpack_device__()

        setattr(Tensor, lazy, lambda self: answer)
        return Tensor()

    with pytest.raises(kvcove.InvalidError, match=remedy):
        session.put(["k"], [tensor(True)])
    assert session.put(["k"], [tensor(False)]).all_ok


def test_items_that_cannot_be_stored_say_so_one_by_one(session: kvcove.Session) -> None:
    results = session.put(["", "empty", "x" * 2000, "good"], [b"1", b"", b"1", b"1"])
    invalid = kvcove.Code.INVALID
    assert [result.code for result in results] == [invalid, invalid, invalid, kvcove.Code.OK]
    assert list(session.put(["good"], [b"2"]).codes) == [kvcove.Code.EXISTS]


def test_an_invalid_item_says_what_is_valid(session: kvcove.Session) -> None:
    results = session.put(["empty"], [b""])
    assert repr(results[0]).startswith("<kvcove.Result invalid (a key has 1 to 1024 bytes, a value")


def test_an_option_of_an_address_stands_once() -> None:
    for address in (
        "embedded:?memory=16MiB&memory=32MiB",
        "kvcove://127.0.0.1:1?local=0&checksum=1&local=1",
        "unix:/nowhere?warm=off&warm=all",
    ):
        with pytest.raises(kvcove.InvalidError, match="more than once"):
            kvcove.open(address)


def test_a_session_without_a_name_is_refused(pool: kvcove.Pool) -> None:
    with pytest.raises(kvcove.InvalidError, match="needs the name of a namespace"):
        pool.session("")


def test_what_is_no_token_is_refused(session: kvcove.Session) -> None:
    text = str(session.capture())
    with pytest.raises(kvcove.InvalidError, match=r"not str; Token\.parse"):
        session.put(["k"], [b"v"], token=text)  # type: ignore[arg-type]
    with pytest.raises(kvcove.InvalidError, match="not int"):
        session.reserve(["k"], [1], token=3)  # type: ignore[arg-type]
    with pytest.raises(kvcove.InvalidError, match=r"not str; Token\.parse"):
        asyncio.run(AsyncSession(session).put(["k"], [b"v"], token=text))  # type: ignore[arg-type]
    assert session.put(["k"], [b"v"], token=kvcove.Token.parse(text)).all_ok


def test_objects_print_what_they_are(pool: kvcove.Pool) -> None:
    session = pool.session("test/prints")
    assert repr(pool) == f"<kvcove.Pool {pool.form}>"
    assert repr(session) == "<kvcove.Session 'test/prints'>"
    assert (
        repr(AsyncSession(session)) == "<kvcove.aio.AsyncSession of <kvcove.Session 'test/prints'>>"
    )
    assert session.put(["k"], [b"v"]).all_ok
    assert repr(session.stat(["k"])) == "[<kvcove.ObjectStat 1 bytes>]"
    assert repr(session.stored()) == "[<kvcove.StoredObject b'k': 1 bytes in memory>]"
    assert repr(pool.stat()).startswith("<kvcove.PoolStat ")
    assert repr(kvcove.Hints(ephemeral=True)) == "kvcove.Hints(ephemeral=True)"
    assert repr(kvcove.Hints(output_tokens=3, priority="low")) == (
        "kvcove.Hints(output_tokens=3, priority='low')"
    )
    assert repr(kvcove.Memory(4096, 8)) == "<kvcove.Memory 8 bytes at 0x1000>"
    session.close()
    assert repr(session) == "<kvcove.Session 'test/prints' closed>"


def test_every_public_class_prints_what_it_is() -> None:
    classes = [value for name in kvcove.__all__ if isinstance(value := getattr(kvcove, name), type)]
    assert kvcove.Pool in classes
    plain = [one.__name__ for one in classes if one.__repr__ is object.__repr__]
    assert plain == []


def test_nobody_there() -> None:
    with pytest.raises(kvcove.UnavailableError):
        kvcove.open("unix:/nowhere/at/all.sock")
    with pytest.raises((kvcove.UnavailableError, kvcove.TimedOutError)):
        kvcove.open("kvcove://127.0.0.1:1")


def test_what_is_closed_says_so(pool: kvcove.Pool) -> None:
    session = pool.session("test/closing")
    with session:
        session.put(["a"], [b"1"])
    assert session.closed
    with pytest.raises(kvcove.InvalidError, match="closed"):
        session.exists(["a"])


def test_a_session_outlives_its_pool_object() -> None:
    session = kvcove.open("embedded:?memory=64MiB").session("test/outlives")
    gc.collect()
    assert session.put(["a"], [b"1"]).all_ok
    assert session.get(["a"]) == [b"1"]


# ---- await


def test_the_same_with_await(session: kvcove.Session) -> None:
    async def main(loop: str) -> None:
        aio = AsyncSession(session)
        results = await aio.put(["a", "b"], [b"1", [b"2", b"3"]])
        assert results.all_ok
        assert await aio.get(["a", "b", "nothing"]) == [b"1", b"23", None]
        target = bytearray(2)
        assert (await aio.get_into(["b"], [target])).all_ok
        assert target == b"23"
        assert await aio.longest_prefix(["a", "nothing"]) == 1
        assert (await aio.exists(["a", "nothing"])).ok_count == 1
        assert (await aio.hold(["a"])).all_ok
        assert (await aio.pin(["a"], 5)).all_ok
        assert (await aio.pin(["a"], 500, hard=True)).all_ok
        assert session.stat(["a"])[0].hard_pinned
        assert (await aio.unpin(["a"])).all_ok
        assert (await aio.remove(["a"], timeout=PATIENT)).all_ok
        assert await aio.remove_matching("b*", timeout=PATIENT) == 1
        for version in [f"{loop}-1", f"{loop}-2"]:
            session.capture(version)
        assert await aio.prune(f"{loop}-2", timeout=PATIENT) >= 1
        token = session.capture()
        await aio.reset(timeout=PATIENT)
        stale = await aio.put(["late"], [b"1"], token=token)
        assert stale[0].code == kvcove.Code.STALE
        with pytest.raises(kvcove.InvalidError):
            await aio.put(["a"], [])
        many = await asyncio.gather(
            *(aio.put([f"m{i}"], [b"x" * 1000], timeout=60) for i in range(200))
        )
        assert all(one.all_ok for one in many)
        assert await aio.longest_prefix([f"m{i}" for i in range(200)]) == 200

    asyncio.run(main("first"))
    asyncio.run(main("second"))


def test_a_call_with_await_that_is_refused_keeps_nothing(session: kvcove.Session) -> None:
    keys = tuple(["a"])

    async def main() -> None:
        aio = AsyncSession(session)
        with pytest.raises(kvcove.InvalidError):
            await aio.pin(keys, 0, hard=True)
        with pytest.raises(kvcove.InvalidError):
            await aio.exists(keys, timeout=-1)

    before = sys.getrefcount(keys)
    asyncio.run(main())
    gc.collect()
    assert sys.getrefcount(keys) == before


def test_async_with_closes_and_with_says_so(session: kvcove.Session) -> None:
    async def main() -> None:
        async with AsyncSession(session) as aio:
            assert (await aio.put(["a"], [b"1"])).all_ok

    asyncio.run(main())
    assert session.closed
    with (
        pytest.raises(kvcove.InvalidError, match="'async with'"),
        AsyncSession(session),  # type: ignore[misc]
    ):
        pass
    with pytest.raises(kvcove.InvalidError, match=r"pool\.session"):
        AsyncSession("name")  # type: ignore[arg-type]


def test_a_cancelled_call_hurts_nobody(session: kvcove.Session) -> None:
    async def main() -> None:
        aio = AsyncSession(session)
        await aio.put(["big"], [bytes(8 << 20)])
        for _ in range(20):
            buffer = bytearray(8 << 20)
            task = asyncio.create_task(aio.get_into(["big"], [buffer]))
            await asyncio.sleep(0)
            task.cancel()
            del buffer
        assert (await aio.exists(["big"])).all_ok

    asyncio.run(main())
    gc.collect()


# ---- processes and threads


def test_a_forked_child_is_told(session: kvcove.Session) -> None:
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        told = b"nothing"
        try:
            session.exists(["a"])
        except kvcove.ForkedError as error:
            told = str(error).encode()
        finally:
            os.write(write, told)
            gc.collect()
            os._exit(0)
    os.close(write)
    _, status = os.waitpid(child, 0)
    assert status == 0
    assert b"open the pool again in the child" in os.read(read, 1000)
    os.close(read)
    assert session.put(["parent"], [b"1"]).all_ok


def _in_child(session: Any) -> str:
    try:
        session.put(["a"], [b"1"])
    except kvcove.ForkedError:
        with kvcove.open("embedded:?memory=64MiB") as pool:
            own = pool.session("test/child")
            return "ok" if own.put(["a"], [b"1"]).all_ok else "no"
    return "not told"


_inherited: Any = None


def _child(_: int) -> str:
    return _in_child(_inherited)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_multiprocessing_with_fork_is_told_and_goes_on_with_a_pool_of_its_own() -> None:
    global _inherited
    with kvcove.open("embedded:?memory=64MiB") as pool:
        _inherited = pool.session("test/parent")
        with multiprocessing.get_context("fork").Pool(2) as workers:
            assert workers.map(_child, range(4)) == ["ok"] * 4
        assert _inherited.put(["a"], [b"1"]).all_ok
        _inherited = None


def test_an_interpreter_ends_with_everything_open() -> None:
    ended = python(
        "import kvcove\n"
        "pool = kvcove.open('embedded:?memory=64MiB')\n"
        "session = pool.session('a')\n"
        "session.put(['k'], [b'1'])\n"
        "print('ok')\n"
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "ok\n", "")


def test_a_call_makes_no_object_a_key(session: kvcove.Session) -> None:
    keys = [f"key-{i}" for i in range(4096)]
    session.put(keys[:100], [b"1"] * 100)
    session.exists(keys)
    tracemalloc.start()
    before = tracemalloc.take_snapshot()
    results = session.exists(keys)
    after = tracemalloc.take_snapshot()
    tracemalloc.stop()
    made = sum(max(s.count_diff, 0) for s in after.compare_to(before, "filename"))
    assert made < 200
    assert results.ok_count == 100


def test_the_gil_is_free_during_a_call(session: kvcove.Session) -> None:
    session.put(["big"], [bytes(64 << 20)])
    buffer = bytearray(64 << 20)
    counted = [0]
    stop = threading.Event()

    def count() -> None:
        while not stop.is_set():
            counted[0] += 1

    old = sys.getswitchinterval()
    sys.setswitchinterval(1.0)  # who computes keeps the GIL: the others get it from who waits
    thread = threading.Thread(target=count)
    try:
        thread.start()
        before = counted[0]
        for _ in range(8):  # a busy machine may not wake the other thread in time
            assert session.get_into(["big"], [buffer]).all_ok
            if counted[0] > before:
                break
        assert counted[0] > before
    finally:
        stop.set()
        sys.setswitchinterval(old)
        thread.join()


def test_eight_threads_at_once(pool: kvcove.Pool) -> None:
    """Every byte that is read is that of one put, of its key, and of the session's generation."""
    session = pool.session("test/threads", follow_always=True, assume_weights=True)
    wrong: list[str] = []
    until = time.monotonic() + 3

    def work(n: int) -> None:
        random_ = random.Random(n)
        buffers = [bytearray(40_000) for _ in range(8)]
        while time.monotonic() < until:
            keys = [f"k{random_.randrange(64)}" for _ in range(8)]
            choice = random_.randrange(10)
            if choice < 4:
                session.put(keys, [(key.encode() * 20_000)[: 20_000 + len(key)] for key in keys])
            elif choice < 8:
                results = session.get_into(keys, buffers)
                for key, result, buffer in zip(keys, results, buffers, strict=True):
                    if result.ok:
                        size = 20_000 + len(key)
                        if result.nbytes != size or buffer[:size] != (key.encode() * 20_000)[:size]:
                            wrong.append(key)
            elif choice == 8:
                session.remove(keys[:2], timeout=PATIENT)
            elif random_.random() < 0.05:
                session.reset(all_void=True, timeout=PATIENT)
            else:
                session.longest_prefix(keys)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert wrong == []


def test_closing_while_others_call() -> None:
    for _ in range(20):
        pool = kvcove.open("embedded:?memory=64MiB")
        session = pool.session("test/closing")
        session.put(["a"], [bytes(1 << 20)])
        stop = threading.Event()

        def read(session: kvcove.Session = session, stop: threading.Event = stop) -> None:
            while not stop.is_set():
                try:
                    session.get(["a"])
                except kvcove.Error:
                    return

        threads = [threading.Thread(target=read) for _ in range(4)]
        for thread in threads:
            thread.start()
        session.close()
        pool.close()
        stop.set()
        for thread in threads:
            thread.join(20)
            assert not thread.is_alive()
