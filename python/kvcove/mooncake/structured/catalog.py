# SPDX-License-Identifier: Apache-2.0
"""Which batches hold which fields of which logical keys: a table in one process, which moves no data.

Partition, key, field -> a row of a *fragment*, which is a batch in the pool under the first manifest key
that it had. A fragment that was *published* is retired when no key has a field in it and no read has
pinned it; it is told to every caller until one acknowledges that it has removed it. A publication
carries an operation id: repeated, because an answer was lost, it changes nothing, until it is
acknowledged.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = ["DataProtoCatalog", "Handle", "checked_names", "checked_tags", "checked_text"]

Handle = dict[str, Any]


def checked_text(value: Any, what: str) -> str:
    """Return a string; raises ValueError for what is none, or empty."""
    if not isinstance(value, str) or not value:
        raise ValueError(f"{what} must be a non-empty string")
    return value


def checked_names(values: Any, what: str) -> list[str]:
    """Return names; raises ValueError for none, for what is none, and for one that comes twice."""
    if isinstance(values, str | bytes) or not isinstance(values, Sequence):
        raise ValueError(f"{what} must be a sequence of non-empty strings")
    names = list(values)
    if not names or not all(isinstance(name, str) and name for name in names):
        raise ValueError(f"{what} must be non-empty strings")
    if len(set(names)) != len(names):
        raise ValueError(f"{what} must be unique")
    return names


def checked_tags(tags: Any, count: int) -> list[dict[str, Any]] | None:
    """Return a copy of a dict for each key; raises ValueError and TypeError."""
    if tags is None:
        return None
    if len(tags) != count:
        raise ValueError("tags must have the same length as keys")
    if not all(isinstance(tag, Mapping) for tag in tags):
        raise TypeError("tags must be mappings")
    return [copy.deepcopy(dict(tag)) for tag in tags]


def _normal(handle: Mapping[str, Any]) -> Handle:
    """Return a handle with all of its parts, so that two of one batch are equal."""
    from kvcove.mooncake.structured.handles import export_dataproto_ref, import_dataproto_ref

    return export_dataproto_ref(import_dataproto_ref(handle))


def _first_stage(handle: Handle) -> str:
    return str(next(iter(handle["stage_refs"].values()))["manifest_key"])


@dataclass
class _Fragment:
    handle: Handle
    managed: bool
    used: int = 0  # fields of keys that lie in it
    pins: int = 0  # reads under way
    retired: bool = False


@dataclass
class _Key:
    tags: dict[str, Any] = field(default_factory=dict)
    fields: dict[str, tuple[str, int]] = field(default_factory=dict)  # name -> fragment, row


Handles = list[Handle]
Listed = dict[str, dict[str, Any]]
Names = list[str]
Place = tuple[str, int]  # fragment, row


class DataProtoCatalog:
    """The table. Thread-safe; every answer is the caller's own."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._partitions: dict[str, dict[str, _Key]] = {}
        self._fragments: dict[str, _Fragment] = {}
        self._published: dict[str, dict[str, Any]] = {}
        self._reads: dict[int, list[str]] = {}
        self._last_read = 0
        self._drained = False

    # ---- changes

    def update(
        self,
        partition: str,
        keys: Sequence[str],
        *,
        tags: Sequence[Mapping[str, Any]] | None = None,
        handle: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Merge tags, and let keys have the fields of a batch, row by row; it is never retired.

        Returns
        -------
        dict
            ``keys``, ``tags``, ``fields`` (what the keys have now) and ``retired_handles``.

        Raises
        ------
        ValueError, TypeError
            Neither is there, numbers of rows differ, or a handle is none; nothing is changed.
        RuntimeError
            The catalog is drained.
        """
        with self._lock:
            return self._update(partition, keys, tags, handle, managed=False)

    def publish(
        self,
        operation_id: str,
        partition: str,
        keys: Sequence[str],
        *,
        tags: Sequence[Mapping[str, Any]] | None = None,
        handle: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Like :meth:`update`, once for an operation; the batch is retired when nobody needs it."""
        checked_text(operation_id, "operation_id")
        with self._lock:
            self._open()
            if operation_id not in self._published:
                done = self._update(partition, keys, tags, handle, managed=True)
                self._published[operation_id] = done
            return self._again(operation_id)

    def publish_append(
        self,
        operation_id: str,
        fragment_id: str,
        partition: str,
        keys: Sequence[str],
        *,
        previous_handle: Mapping[str, Any],
        handle: Mapping[str, Any],
    ) -> dict[str, Any]:
        """Let a published batch have more fields, once for an operation.

        Returns
        -------
        dict
            As :meth:`update`; ``append_rejected`` with the reason if the batch is another one by now.
        """
        checked_text(operation_id, "operation_id")
        with self._lock:
            self._open()
            if operation_id not in self._published:
                names = checked_names(keys, "keys")
                old, new = _normal(previous_handle), _normal(handle)
                reason = self._rejected(fragment_id, partition, names, old, new)
                if reason:
                    return {"append_rejected": reason}
                self._append(fragment_id, partition, names, old, new)
                self._published[operation_id] = self._told(partition, names)
            return self._again(operation_id)

    def ack_publication(self, operation_id: str) -> None:
        """Forget an operation: its publisher knows that it is done."""
        with self._lock:
            self._published.pop(operation_id, None)

    def remove(self, partition: str, keys: Sequence[str]) -> dict[str, Any]:
        """Forget keys; those that are not there are forgotten already."""
        checked_text(partition, "partition")
        names = checked_names(keys, "keys")
        with self._lock:
            rows = self._partitions.get(partition, {})
            for name in names:
                row = rows.pop(name, None)
                for fragment, _ in row.fields.values() if row is not None else ():
                    self._leave(fragment)
            if not rows:
                self._partitions.pop(partition, None)
            return {"retired_handles": self._retired()}

    def ack_retired(self, handles: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Forget retired batches that have been removed from the pool.

        Raises
        ------
        ValueError
            One is no handle, or not the one that was retired.
        """
        with self._lock:
            # An append may have given the first stage another manifest than the fragment's id.
            retired = {
                _first_stage(one.handle): name
                for name, one in self._fragments.items()
                if one.retired
            }
            gone: set[str] = set()
            for handle in map(_normal, handles):
                name = retired.get(_first_stage(handle))
                if name is None:
                    continue
                if self._fragments[name].handle != handle:
                    raise ValueError(f"retired fragment mismatch: {name!r}")
                gone.add(name)
            for name in gone:
                del self._fragments[name]
            return {"retired_handles": self._retired()}

    def drain(self) -> dict[str, Any]:
        """Forget all keys and take no more. Raises RuntimeError while a read is under way."""
        with self._lock:
            if self._reads:
                raise RuntimeError(f"DataProto catalog has {len(self._reads)} active reads")
            for partition in list(self._partitions):
                self.remove(partition, list(self._partitions[partition]))
            self._drained = True
            return {"retired_handles": self._retired()}

    # ---- reads

    def list(self, partition: str | None = None) -> dict[str, dict[str, Any]]:
        """Return the tags of all keys, by partition."""
        with self._lock:
            chosen = self._partitions if partition is None else [partition]
            return {
                name: {k: copy.deepcopy(row.tags) for k, row in self._partitions[name].items()}
                for name in chosen
                if name in self._partitions
            }

    def resolve(
        self,
        partition: str,
        keys: Sequence[str],
        fields: Sequence[str] | None = None,
        *,
        pin: bool = False,
    ) -> dict[str, Any]:
        """Return where fields of keys lie.

        Parameters
        ----------
        fields : sequence of str, optional
            All that any of the keys has otherwise.
        pin : bool
            Nothing that is named is retired before :meth:`release_read` of ``read_token``.

        Returns
        -------
        dict
            ``field_groups``: fields with the same ``locations``, a (fragment, row) for each key;
            ``handles`` of the fragments; ``meta_info`` of all of them; ``keys``, ``tags``, ``fields``.

        Raises
        ------
        ValueError
            A key is not there, or does not have a field (yet).
        """
        checked_text(partition, "partition")
        names = checked_names(keys, "keys")
        wanted = None if fields is None else checked_names(fields, "field names")
        with self._lock:
            there = self._partitions.get(partition, {})
            missing = [name for name in names if name not in there]
            if missing:
                raise ValueError(f"keys were not found in partition {partition!r}: {missing}")
            rows = [there[name] for name in names]
            if wanted is None:
                wanted = self._union(rows)
            if not wanted:
                raise ValueError(f"keys do not contain any fields: {names}")
            for name, row in zip(names, rows, strict=True):
                late = [one for one in wanted if one not in row.fields]
                if late:
                    raise ValueError(f"fields are not ready for key {name!r}: {late}")
            return self._plan(names, rows, wanted, pin)

    def release_read(self, token: int) -> dict[str, Any]:
        """End a read that was pinned; one that has ended stays so."""
        with self._lock:
            for name in self._reads.pop(token, ()):
                self._fragments[name].pins -= 1
                self._retire(name)
            return {"retired_handles": self._retired()}

    # ---- inside, under the lock

    def _open(self) -> None:
        if self._drained:
            raise RuntimeError("DataProto catalog is drained")

    @staticmethod
    def _union(rows: Sequence[_Key]) -> Names:
        return list(dict.fromkeys(name for row in rows for name in row.fields))

    def _told(self, partition: str, names: Sequence[str]) -> dict[str, Any]:
        rows = [self._partitions[partition][name] for name in names]
        tags = [copy.deepcopy(row.tags) for row in rows]
        return {"keys": [*names], "tags": tags, "fields": self._union(rows)}

    def _again(self, operation_id: str) -> dict[str, Any]:
        done = copy.deepcopy(self._published[operation_id])
        return {**done, "retired_handles": self._retired()}

    def _update(
        self, partition: str, keys: Any, tags: Any, handle: Any, *, managed: bool
    ) -> dict[str, Any]:
        self._open()
        checked_text(partition, "partition")
        names = checked_names(keys, "keys")
        merged = checked_tags(tags, len(names))
        if merged is None and handle is None:
            raise ValueError("catalog update requires tags or a DataProto handle")
        normal = None if handle is None else self._accepted(handle, len(names))
        rows = self._partitions.setdefault(partition, {})
        for i, name in enumerate(names):
            rows.setdefault(name, _Key()).tags.update(merged[i] if merged is not None else {})
        if normal is not None:
            fragment = _first_stage(normal)
            known = self._fragments.setdefault(fragment, _Fragment(normal, managed))
            known.managed |= managed
            known.retired = False
            self._place(rows, names, list(normal["field_index"]), fragment)
        return {**self._told(partition, names), "retired_handles": self._retired()}

    def _accepted(self, handle: Mapping[str, Any], count: int) -> Handle:
        normal = _normal(handle)
        if len(normal["stage_refs"]) != 1:
            raise ValueError("a catalog fragment has exactly one DataProto stage")
        if normal["batch_size"] != count:
            raise ValueError(
                f"{normal['batch_size']} rows for {count} names: their number must be equal"
            )
        known = self._fragments.get(_first_stage(normal))
        if known is not None and known.handle != normal:
            raise ValueError(f"DataProto fragment mismatch: {_first_stage(normal)!r}")
        return normal

    def _place(
        self, rows: dict[str, _Key], names: Sequence[str], fields: Sequence[str], fragment: str
    ) -> None:
        for i, name in enumerate(names):
            for one in fields:
                before = rows[name].fields.get(one)
                rows[name].fields[one] = (fragment, i)
                self._fragments[fragment].used += 1
                if before is not None:
                    self._leave(before[0])

    def _leave(self, fragment: str) -> None:
        self._fragments[fragment].used -= 1
        self._retire(fragment)

    def _retire(self, name: str) -> None:
        fragment = self._fragments[name]
        if fragment.used or fragment.pins:
            return
        if fragment.managed:
            fragment.retired = True
        else:
            del self._fragments[name]

    def _retired(self) -> Handles:
        return [copy.deepcopy(one.handle) for one in self._fragments.values() if one.retired]

    def _rejected(
        self, fragment: str, partition: str, names: Sequence[str], old: Handle, new: Handle
    ) -> str:
        known = self._fragments.get(fragment)
        if known is None or not known.managed or known.retired or known.handle != old:
            return f"stale DataProto append handle: {fragment!r}"
        same = all(old.get(one) == new.get(one) for one in ("batch_size", "storage_group_id"))
        if (
            not same
            or not new.get("storage_group_id")
            or new["partition"] != partition
            or new["batch_size"] != len(names)
            or not set(old["field_index"]) <= set(new["field_index"])
            or not set(old["stage_refs"]) <= set(new["stage_refs"])
        ):
            return "appended DataProto handle changed fragment identity"
        rows = self._partitions.get(partition, {})
        for i, name in enumerate(names):
            places = rows[name].fields.values() if name in rows else ()
            if name not in rows or any(at[0] == fragment and at[1] != i for at in places):
                return f"key {name!r} is not row {i} of the DataProto fragment {fragment!r}"
        return ""

    def _append(
        self, fragment: str, partition: str, names: Sequence[str], old: Handle, new: Handle
    ) -> None:
        changed = [
            name for name, at in new["field_index"].items() if old["field_index"].get(name) != at
        ]
        # The fragment keeps the id under which keys know it.
        self._fragments[fragment].handle = new
        self._place(self._partitions[partition], names, changed, fragment)

    def _plan(
        self, names: Names, rows: Sequence[_Key], wanted: Sequence[str], pin: bool
    ) -> dict[str, Any]:
        groups: dict[tuple[tuple[str, int], ...], list[str]] = {}
        for one in wanted:
            groups.setdefault(tuple(row.fields[one] for row in rows), []).append(one)
        used = list(dict.fromkeys(at[0] for places in groups for at in places))
        handles = {name: copy.deepcopy(self._fragments[name].handle) for name in used}
        meta: dict[str, Any] = {}
        for handle in handles.values():
            meta.update(copy.deepcopy(handle["meta_info"]))
        plan = {
            "keys": names,
            "tags": [copy.deepcopy(row.tags) for row in rows],
            "fields": list(wanted),
            "field_groups": [
                {"fields": fields, "locations": list(places)} for places, fields in groups.items()
            ],
            "handles": handles,
            "meta_info": meta,
        }
        if pin:
            self._last_read += 1
            self._reads[self._last_read] = used
            for name in used:
                self._fragments[name].pins += 1
            plan["read_token"] = self._last_read
        return plan
