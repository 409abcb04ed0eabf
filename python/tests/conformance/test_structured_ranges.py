# SPDX-License-Identifier: Apache-2.0
"""Ranges of structured members' bytes, read into registered memory; plans that serve several objects."""

from __future__ import annotations

import random
from typing import Any

import pytest
from conftest import since

numpy = pytest.importorskip("numpy")
pytestmark = since("0.3.14")
ROOM = 1 << 12


class Memory:
    """Registered memory, and the destination that it is."""

    def __init__(self, module: Any, store: Any, size: int = ROOM) -> None:
        self.array = numpy.full(size, 0xEE, dtype=numpy.uint8)
        self.address = int(self.array.ctypes.data)
        assert store.register_buffer(self.address, size) == 0
        self.whole = module.raw_destination(self.address, size, self.array, pre_registered=True)


@pytest.fixture
def memory(module: Any, store: Any) -> Any:
    return Memory(module, store)


def spans(module: Any, name: str, *of: tuple[int, int, int]) -> list[Any]:
    return [module.StructuredMemberRange(name, *one) for one in of]


def put(module: Any, transfer: Any, chunk_bytes: int, **members: Any) -> Any:
    return transfer.put_structured_object(
        module.StructuredObjectPayload({"step": 7}, members), chunk_bytes=chunk_bytes
    )


def test_ranges_of_several_members_are_read(module: Any, transfer: Any, store: Any) -> None:
    pick = random.Random(1)
    raw = pick.randbytes(1000)
    numbers = numpy.arange(300, dtype=numpy.int32)
    for chunk_bytes in (1 << 20, 256, 12):
        spec = transfer.read_spec(
            put(module, transfer, chunk_bytes, raw=raw, numbers=numbers, other=b"o")
        )
        a, b = Memory(module, store), Memory(module, store)
        of_raw = [
            (at, pick.randint(1, 30), to) for at, to in ((3, 0), (950, 40), (500, 80), (3, 120))
        ]
        of_numbers = [(4 * 100, 4 * 7, 4 * 50), (0, 4, 0)]
        result = transfer.materialize_ranges_into(
            spec,
            [*spans(module, "raw", *of_raw), *spans(module, "numbers", *of_numbers)],
            {"raw": a.whole, "numbers": b.whole},
        )
        wanted = numpy.full(ROOM, 0xEE, dtype=numpy.uint8)
        for at, size, to in of_raw:
            wanted[to : to + size] = list(raw[at : at + size])
        assert a.array.tolist() == wanted.tolist()
        found = b.array.view(numpy.int32)
        assert (found[50:57].tolist(), int(found[0])) == (list(range(100, 107)), 0)
        assert b.array[4:200].tolist() == [0xEE] * 196
        assert result.metadata["step"] == 7
        assert result.objects == {"raw": a.whole, "numbers": b.whole}
        for each in (a, b):
            assert store.unregister_buffer(each.address) == 0, "as the caller had it"


def test_a_plan_serves_objects_of_its_layout(
    module: Any, transfer: Any, store: Any, memory: Any
) -> None:
    first, second = numpy.arange(64, dtype=numpy.int64), numpy.arange(64, 128, dtype=numpy.int64)
    spec = transfer.read_spec(put(module, transfer, 100, n=first))
    plan = transfer.prepare_member_ranges(
        spec, spans(module, "n", (8 * 3, 8 * 20, 0), (8 * 60, 8, 8 * 30)), memory.whole
    )
    assert isinstance(plan, module.PreparedStructuredMemberRanges)
    assert (plan.member_name, memory.array.tolist()) == ("n", [0xEE] * ROOM)
    found = memory.array.view(numpy.int64)
    for values in (first, second):
        spec = transfer.read_spec(put(module, transfer, 100, n=values))
        transfer.materialize_prepared_ranges_into(spec, plan, memory.whole)
        assert found[:20].tolist() == values[3:23].tolist()
        assert found[30] == values[60]
    for other in (
        put(module, transfer, 200, n=first),
        put(module, transfer, 100, n=first.astype(numpy.int32)),
        put(module, transfer, 100, n=numpy.arange(65, dtype=numpy.int64)),
    ):
        with pytest.raises(module.PreparedRangeLayoutChanged):
            transfer.materialize_prepared_ranges_into(transfer.read_spec(other), plan, memory.whole)
    small = module.raw_destination(memory.address, 8 * 31 - 1, memory.array, pre_registered=True)
    with pytest.raises(ValueError, match="n"):
        transfer.materialize_prepared_ranges_into(spec, plan, small)
    with pytest.raises(TypeError, match="prepare"):
        transfer.materialize_prepared_ranges_into(spec, None, memory.whole)


def test_what_does_not_fit_is_refused(module: Any, transfer: Any, store: Any, memory: Any) -> None:
    spec = transfer.read_spec(put(module, transfer, 10, raw=b"x" * 40, n=numpy.arange(10)))

    def read(*of: tuple[int, ...], name: str = "raw", into: Any = memory.whole) -> None:
        found = [module.StructuredMemberRange(name, *one) for one in of]
        transfer.materialize_ranges_into(spec, found, {name: into})

    for wrong in (
        [(-1, 2, 0)],
        [(0, 0, 0)],
        [(0, 2, -1)],
        [(39, 2, 0)],
        [(0, 2, ROOM - 1)],
        [(0, 4, 0), (8, 4, 3)],
        [(1, 4, 0, 4)],
        [(0, 4, 0, 3)],
        [(0, 4, 0, 0)],
        [],
    ):
        with pytest.raises(ValueError, match=r"."):
            read(*wrong)
    with pytest.raises(ValueError, match="align"):
        read((4, 8, 0), name="n")  # of eight bytes each
    with pytest.raises(TypeError, match="integer"):
        read((0.5, 2, 0))  # type: ignore[arg-type]
    with pytest.raises(KeyError, match="missing"):
        read((0, 2, 0), name="missing")
    for into in (
        module.raw_destination(memory.address, ROOM, memory.array),
        module.raw_destination(memory.address, ROOM, None, pre_registered=True),
        module.raw_destination(0, ROOM, memory.array, pre_registered=True),
    ):
        with pytest.raises(ValueError, match="raw"):
            read((0, 2, 0), into=into)
    with pytest.raises(TypeError, match="raw_destination"):
        read((0, 2, 0), into=memory.array)
    one = spans(module, "raw", (0, 2, 0))
    for destinations in ({}, {"raw": memory.whole, "n": memory.whole}):
        with pytest.raises(ValueError, match="destination"):
            transfer.materialize_ranges_into(spec, one, destinations)
    with pytest.raises(ValueError, match="overlap"):
        transfer.materialize_ranges_into(
            spec, [*one, *spans(module, "n", (0, 8, 0))], {"raw": memory.whole, "n": memory.whole}
        )
    with pytest.raises(ValueError, match="slices"):
        transfer.materialize_ranges_into(
            spec.slice_member("n", 0, 0, 2), one, {"raw": memory.whole}
        )
    assert set(memory.array.tolist()) == {0xEE}, "nothing was read"


def test_bytes_that_are_gone_are_an_error(
    module: Any, transfer: Any, store: Any, memory: Any
) -> None:
    ref = put(module, transfer, 10, raw=b"x" * 40)
    spec = transfer.read_spec(ref)
    plan = transfer.prepare_member_ranges(spec, spans(module, "raw", (5, 30, 0)), memory.whole)
    chunk = ref.manifest["buffers"]["raw"]["chunks"][1]["key"]
    assert store.remove(chunk, True) == 0
    with pytest.raises(RuntimeError, match="get"):
        transfer.materialize_prepared_ranges_into(spec, plan, memory.whole)
