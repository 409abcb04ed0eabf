# SPDX-License-Identifier: Apache-2.0
"""What the structured store asks of a store and of a buffer pool, and what it refuses."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from conftest import own

numpy = pytest.importorskip("numpy")


@pytest.fixture
def module() -> Any:
    import mooncake.structured_object_store as module

    return module


@pytest.fixture
def transfer(module: Any, store: Any) -> Any:
    return module.MooncakeBundleTransfer(store, key_prefix="t")


def batch(**parts: Any) -> Any:
    empty: dict[str, Any] = {"batch": {}, "non_tensor_batch": {}, "meta_info": {}}
    return SimpleNamespace(**(empty | parts))


def nothing_left(store: Any) -> bool:
    return bool(store.remove_by_regex("^t/", True) == 0)


class Counting:
    """A store that counts the calls of each of its methods."""

    def __init__(self, store: Any) -> None:
        self.store = store
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        self.calls.append(name)
        return getattr(self.store, name)


# ---- removals


def test_a_bundle_is_removed_with_one_batch(module: Any, store: Any) -> None:
    batches: list[list[str]] = []

    class Watched(Counting):
        def batch_remove(self, keys: list[str], force: bool = False) -> list[int]:
            batches.append(keys)
            return list(self.store.batch_remove(keys, force))

    transfer = module.MooncakeBundleTransfer(Watched(store), key_prefix="t")
    ref = transfer.put_bundle(b"m", {"a": b"x" * 9, "b": b"y"}, chunk_bytes=4)
    transfer.remove_bundle(ref)
    assert len(batches) == 1
    assert len(set(batches[0])) == len(batches[0]) >= 5
    assert nothing_left(store)


def test_a_key_that_a_batch_does_not_remove_gets_a_second_attempt(module: Any, store: Any) -> None:
    class Busy(Counting):
        def batch_remove(self, keys: list[str], force: bool = False) -> list[int]:
            return [-1, *self.store.batch_remove(keys[1:], force)]

    transfer = module.MooncakeBundleTransfer(Busy(store), key_prefix="t")
    transfer.remove_bundle(transfer.put_bundle(b"m", {"a": b"x", "b": b"y"}))
    assert nothing_left(store)


@own("the original forgets the manifest, too")
def test_a_bundle_of_which_a_part_cannot_be_removed_keeps_its_manifest(
    module: Any, transfer: Any, store: Any
) -> None:
    class Stuck(Counting):
        def batch_remove(self, keys: list[str], force: bool = False) -> list[int]:
            return [-1, *self.store.batch_remove(keys[1:], force)]

        def remove(self, key: str, force: bool = False) -> int:
            return -1

    stuck = module.MooncakeBundleTransfer(Stuck(store), key_prefix="t")
    ref = stuck.put_bundle(b"m", {"a": b"x", "b": b"y"})
    with pytest.raises(RuntimeError, match="failed to remove 1 Mooncake keys"):
        stuck.remove_bundle(ref)
    transfer.remove_bundle({"manifest_key": ref.manifest_key})
    assert nothing_left(store)


# ---- reads


def test_a_store_that_registers_no_memory_is_read_value_by_value(module: Any, store: Any) -> None:
    class Unregistered(Counting):
        register_buffer = unregister_buffer = None

    unregistered = Unregistered(store)
    transfer = module.MooncakeBundleTransfer(unregistered, key_prefix="t")
    value = numpy.arange(60, dtype=numpy.int16)
    ref = transfer.put(batch(non_tensor_batch={"n": value}), chunk_bytes=50)
    unregistered.calls.clear()
    assert transfer.get(ref)["non_tensor_batch"]["n"].tolist() == value.tolist()
    rows = transfer.get(ref, rows=[59, 0, 24, 25])["non_tensor_batch"]["n"]
    assert rows.tolist() == [59, 0, 24, 25]
    assert not {"get_into", "batch_get_into", "get_into_ranges"} & set(unregistered.calls)
