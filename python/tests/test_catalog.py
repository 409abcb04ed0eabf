# SPDX-License-Identifier: Apache-2.0
"""The catalog of batches: tags, places of fields, pins, what is retired when, lost answers."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("numpy")

from mooncake.dataproto_catalog import (
    DataProtoCatalog,
    DataProtoCatalogTransfer,
)


def handle(name: str, fields: list[str], rows: int = 2, **more: Any) -> dict[str, Any]:
    return {
        "type": "mooncake_dataproto_ref",
        "version": 1,
        "kind": "bundle_stages",
        "batch_size": rows,
        "stage_refs": {"rollout": {"manifest_key": name}},
        "field_index": {
            one: {"stage": "rollout", "member": f"batch.{one}", "section": "batch"}
            for one in fields
        },
        **more,
    }


def names(retired: dict[str, Any]) -> list[str]:
    return [
        next(iter(one["stage_refs"].values()))["manifest_key"] for one in retired["retired_handles"]
    ]


@pytest.fixture
def catalog() -> DataProtoCatalog:
    return DataProtoCatalog()


def test_tags_are_merged_and_fields_found_in_the_order_of_keys(catalog: Any) -> None:
    catalog.update("p", ["a", "b"], tags=[{"t": 1}, {"t": 2}], handle=handle("one", ["x", "y"]))
    told = catalog.update("p", ["b", "a"], tags=[{"u": 3}, {"t": 4}], handle=handle("two", ["z"]))
    assert told["tags"] == [{"t": 2, "u": 3}, {"t": 4}]
    assert told["fields"] == ["x", "y", "z"]
    assert catalog.list() == {"p": {"a": {"t": 4}, "b": {"t": 2, "u": 3}}}
    assert catalog.list("other") == {}
    plan = catalog.resolve("p", ["b", "a"])
    assert plan["field_groups"] == [
        {"fields": ["x", "y"], "locations": [("one", 1), ("one", 0)]},
        {"fields": ["z"], "locations": [("two", 0), ("two", 1)]},
    ]
    assert set(plan["handles"]) == {"one", "two"}
    # What a caller does to an answer is not the catalog's.
    plan["handles"]["one"]["field_index"].clear()
    plan["tags"][0].clear()
    assert catalog.resolve("p", ["b"], ["x"])["tags"] == [{"t": 2, "u": 3}]


def test_what_is_refused_changes_nothing(catalog: Any) -> None:
    catalog.update("p", ["a", "b"], handle=handle("one", ["x"]))
    catalog.update("p", ["c"], tags=[{}])
    for call, text in (
        (lambda: catalog.resolve("p", ["a", "zz"]), "were not found"),
        (lambda: catalog.resolve("p", ["a"], ["y"]), "not ready"),
        (lambda: catalog.resolve("p", ["c"]), "do not contain any fields"),
        (lambda: catalog.resolve("p", "a"), "sequence"),
        (lambda: catalog.resolve("p", ["a", "a"]), "unique"),
        (lambda: catalog.resolve("", ["a"]), "non-empty"),
        (lambda: catalog.update("p", ["n"]), "requires tags or"),
        (lambda: catalog.update("p", ["n"], tags=[]), "same length"),
        (lambda: catalog.update("p", ["n"], handle=handle("n", ["x"])), "for 1 names"),
        (lambda: catalog.update("p", ["n"], handle={}), "not a Mooncake"),
        (lambda: catalog.update("p", ["n", "m"], handle=handle("one", ["q"])), "mismatch"),
        (lambda: catalog.update("p", ["n"], handle=handle("n", ["x"], 1, version=9)), "version"),
    ):
        with pytest.raises(ValueError, match=text):
            call()
    two = handle("n", ["x"])
    two["stage_refs"]["more"] = {"manifest_key": "m"}
    with pytest.raises(ValueError, match="exactly one"):
        catalog.update("p", ["n", "m"], handle=two)
    with pytest.raises(TypeError, match="mappings"):
        catalog.update("p", ["n"], tags=[5])
    assert set(catalog.list()["p"]) == {"a", "b", "c"}


def test_only_published_batches_are_retired_and_only_when_nobody_needs_them(catalog: Any) -> None:
    catalog.update("p", ["a", "b"], handle=handle("told", ["x"]))
    catalog.publish("op", "p", ["a", "b"], handle=handle("mine", ["x"]))
    token = catalog.resolve("p", ["a"], pin=True)["read_token"]
    assert names(catalog.remove("p", ["a"])) == []
    assert names(catalog.remove("p", ["b", "zz"])) == []
    assert names(catalog.release_read(token)) == ["mine"]
    # Told until somebody has removed it.
    assert names(catalog.release_read(token)) == ["mine"]
    retired = catalog.remove("p", ["a"])["retired_handles"]
    wrong = copy.deepcopy(retired)
    wrong[0]["field_index"]["x"]["member"] = "batch.other"
    with pytest.raises(ValueError, match="fragment mismatch"):
        catalog.ack_retired(wrong)
    assert names(catalog.ack_retired(retired)) == []
    assert names(catalog.ack_retired(retired)) == []


def test_an_operation_is_carried_out_once(catalog: Any) -> None:
    first = catalog.publish("op", "p", ["a", "b"], handle=handle("one", ["x"]))
    assert catalog.publish("op", "q", ["z"], tags=[{}]) == first
    assert set(catalog.list()) == {"p"}
    assert catalog.ack_publication("op") is None
    assert catalog.ack_publication("op") is None
    catalog.publish("op", "q", ["z"], tags=[{}])
    assert set(catalog.list()) == {"p", "q"}
    with pytest.raises(ValueError, match="operation_id"):
        catalog.publish("", "p", ["a"], tags=[{}])


def test_fields_are_appended_to_the_batch_that_is_there(catalog: Any) -> None:
    group = {"storage_group_id": "g", "partition": "p"}
    base = handle("base", ["x", "y"], 1, **group)
    catalog.publish("put", "p", ["a"], handle=base)
    catalog.update("p", ["a"], handle=handle("other", ["y"], 1))
    more = copy.deepcopy(base)
    more["stage_refs"]["value"] = {"manifest_key": "value"}
    more["field_index"]["z"] = {"stage": "value", "member": "batch.z", "section": "batch"}

    def append(operation: str, fragment: str, partition: str, old: Any, new: Any) -> Any:
        return catalog.publish_append(
            operation, fragment, partition, ["a"], previous_handle=old, handle=new
        )

    assert "identity" in append("1", "base", "q", base, more)["append_rejected"]
    assert "stale" in append("2", "none", "p", base, more)["append_rejected"]
    regrouped = {**more, "storage_group_id": "h"}
    assert "identity" in append("3", "base", "p", base, regrouped)["append_rejected"]
    done = append("4", "base", "p", base, more)
    assert done["fields"] == ["x", "y", "z"]
    assert append("4", "base", "p", base, more) == done
    assert "stale" in append("5", "base", "p", base, more)["append_rejected"]
    plan = catalog.resolve("p", ["a"])
    assert plan["field_groups"] == [
        {"fields": ["x", "z"], "locations": [("base", 0)]},
        {"fields": ["y"], "locations": [("other", 0)]},
    ]
    assert set(plan["handles"]["base"]["stage_refs"]) == {"rollout", "value"}
    assert names(catalog.remove("p", ["a"])) == ["base"]


def test_a_batch_whose_first_stage_grew_is_removed_once(catalog: Any, transfer: Any) -> None:
    base = handle("base", ["x"], 1, storage_group_id="g", partition="p")
    catalog.publish("put", "p", ["a"], handle=base)
    more = copy.deepcopy(base)
    more["stage_refs"]["rollout"]["manifest_key"] = "grown"
    more["field_index"]["z"] = {"stage": "rollout", "member": "batch.z", "section": "batch"}
    done = catalog.publish_append("append", "base", "p", ["a"], previous_handle=base, handle=more)
    assert done["fields"] == ["x", "z"]
    assert set(catalog.resolve("p", ["a"])["handles"]) == {"base"}
    client = DataProtoCatalogTransfer(transfer, losing(catalog, ""))
    client.remove("p", ["a"])
    client.remove("p", ["a"])
    assert transfer.removed == ["grown"]


def test_a_drained_catalog_takes_no_more(catalog: Any) -> None:
    catalog.publish("op", "p", ["a", "b"], handle=handle("one", ["x"]))
    token = catalog.resolve("p", ["a"], pin=True)["read_token"]
    with pytest.raises(RuntimeError, match="active read"):
        catalog.drain()
    catalog.release_read(token)
    assert names(catalog.drain()) == ["one"]
    assert names(catalog.drain()) == ["one"]
    for call in (
        lambda: catalog.publish("op", "p", ["a"], tags=[{}]),
        lambda: catalog.update("p", ["a"], tags=[{}]),
    ):
        with pytest.raises(RuntimeError, match="drained"):
            call()


# ---- the transfer


class Transfer:
    """Puts without a pool; a batch is its list of rows."""

    def __init__(self) -> None:
        self.puts = 0
        self.removed: list[str] = []
        self.taken_back: list[Any] = []
        self.failing = 0

    def put(self, data: Any, **_: Any) -> Any:
        from mooncake.structured_object_store import import_ref

        self.puts += 1
        return import_ref(handle(f"put-{self.puts}", ["x"], len(data)))

    def append_dataproto_fields(self, ref: Any, data: Any, *, stage: str) -> Any:
        from mooncake.structured_object_store import import_ref

        return import_ref({**ref, "storage_group_id": "g"})

    def cleanup_dataproto(self, ref: Any) -> None:
        if self.failing:
            self.failing -= 1
            raise RuntimeError("not now")
        self.removed += names({"retired_handles": [ref]})

    def cleanup_dataproto_append(self, before: Any, after: Any) -> None:
        self.taken_back.append((before, after))

    def release_result(self, result: Any) -> None:
        if self.failing:
            self.failing -= 1
            raise RuntimeError("not now")


@pytest.fixture
def transfer() -> Transfer:
    return Transfer()


def losing(catalog: Any, method: str, before: int = 0, after: int = 0) -> Callable[..., Any]:
    """A catalog whose calls of a method fail: so many before, so many after they are carried out."""
    left = {"before": before, "after": after}

    def call(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == method and left["before"]:
            left["before"] -= 1
            raise RuntimeError("not reached")
        answer = getattr(catalog, name)(*args, **kwargs)
        if name == method and left["after"]:
            left["after"] -= 1
            raise RuntimeError("answer lost")
        return answer

    return call


def test_a_batch_is_removed_after_its_last_read(catalog: Any, transfer: Any) -> None:
    client = DataProtoCatalogTransfer(transfer, losing(catalog, ""))
    client.put([1], partition="p", keys=["a"], tags=[{"t": 1}])
    reads = [client.resolve("p", ["a"])["read_token"] for _ in range(2)]
    client.remove("p", ["a"])
    client.release_read(reads[0])
    assert transfer.removed == []
    with pytest.raises(RuntimeError, match="active read"):
        client.drain()
    client.release_read(reads[1])
    assert transfer.removed == ["put-1"]
    client.put(None, partition="p", keys=["k"], tags=[{"t": 1}])
    assert client.list() == {"p": {"k": {"t": 1}}}
    for data, keys in ((None, ["k"]), ([1, 2], ["k"])):
        with pytest.raises(ValueError, match=r"requires tags|rows for"):
            client.put(data, partition="p", keys=keys)


def test_a_publication_that_did_not_arrive_is_repeated(catalog: Any, transfer: Any) -> None:
    client = DataProtoCatalogTransfer(transfer, losing(catalog, "publish", before=2))
    with pytest.raises(RuntimeError, match="not reached"):
        client.put([1], partition="p", keys=["a"])
    assert catalog.list() == {}
    client.close()
    assert catalog.resolve("p", ["a"])["fields"] == ["x"]
    client.drain()
    assert transfer.removed == ["put-1"]


def test_a_drain_waits_for_publications(catalog: Any, transfer: Any) -> None:
    client = DataProtoCatalogTransfer(transfer, losing(catalog, "publish", before=3))
    with pytest.raises(RuntimeError, match="not reached"):
        client.put([1], partition="p", keys=["a"])
    with pytest.raises(RuntimeError, match="publish pending"):
        client.drain()
    client.drain()
    assert transfer.removed == ["put-1"]


@pytest.mark.parametrize("method", ["publish", "ack_publication"])
def test_a_lost_answer_brings_nothing_back(catalog: Any, transfer: Any, method: str) -> None:
    first = DataProtoCatalogTransfer(transfer, losing(catalog, method, after=2))
    if method == "publish":
        with pytest.raises(RuntimeError, match="answer lost"):
            first.put([1], partition="p", keys=["a"])
    else:
        first.put([1], partition="p", keys=["a"])
    second = DataProtoCatalogTransfer(transfer, losing(catalog, ""))
    second.put([1], partition="p", keys=["a"])
    assert transfer.removed == ["put-1"]
    first.close()
    assert set(catalog.resolve("p", ["a"])["handles"]) == {"put-2"}
    assert transfer.removed == ["put-1"]


def test_an_append_that_is_refused_is_taken_back(catalog: Any, transfer: Any) -> None:
    client = DataProtoCatalogTransfer(transfer, losing(catalog, ""))
    client.put([1], partition="p", keys=["a"])
    plan = client.resolve("p", ["a"])
    with pytest.raises(RuntimeError, match="identity"):
        client.append(
            "put-1", plan["handles"]["put-1"], [1], partition="p", keys=["a"], stage="two"
        )
    assert len(transfer.taken_back) == 1


def test_what_could_not_be_removed_is_removed_later(catalog: Any, transfer: Any) -> None:
    client = DataProtoCatalogTransfer(transfer, losing(catalog, ""))
    client.put([1], partition="p", keys=["a"])
    transfer.failing = 1
    client.remove("p", ["a"])
    assert transfer.removed == []
    client.remove("p", ["a"])
    assert transfer.removed == ["put-1"]


def test_results_are_released_in_two_attempts(catalog: Any, transfer: Any) -> None:
    client = DataProtoCatalogTransfer(transfer, losing(catalog, ""))

    class Output:
        pass

    for output in (Output(), {}):
        client.attach_results(output, [object()])
        transfer.failing = 1
        client.release_result(output)
        assert transfer.failing == 0
        transfer.failing = 2
        client.release_result(output)  # nothing is attached any more
        assert transfer.failing == 2
    client.discard_results([object()])
    transfer.failing = 2
    with pytest.raises(RuntimeError, match="not now"):
        client.discard_results([object()], strict=True)
