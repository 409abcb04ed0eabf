# SPDX-License-Identifier: Apache-2.0
"""Batches in the pool under logical keys: puts them, tells the catalog, removes what it has retired."""

from __future__ import annotations

import functools
import logging
import threading
import uuid
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kvcove.mooncake.structured.catalog import (
    Handle,
    checked_names,
    checked_tags,
    checked_text,
)

__all__ = ["DataProtoCatalogTransfer"]

logger = logging.getLogger(__name__)


@dataclass
class _Publication:
    method: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    operation: str = field(default_factory=lambda: uuid.uuid4().hex)


class DataProtoCatalogTransfer:
    """Batches in the pool under logical keys.

    Parameters
    ----------
    transfer : MooncakeBundleTransfer
    catalog_call : callable
        ``catalog_call(method, *args, **kwargs)`` calls the catalog, wherever it is. A call that raises
        may have been carried out; what matters is called again under the same operation id.
    """

    def __init__(self, transfer: Any, catalog_call: Callable[..., Any]) -> None:
        self.transfer = transfer
        self._catalog_call = catalog_call
        self._lock = threading.Lock()
        self._pending: list[_Publication] = []
        self._unacknowledged: list[str] = []
        self._results: dict[int, Sequence[Any]] = {}
        self._outputs: dict[int, Any] = {}

    # ---- writes

    def put(
        self,
        data: Any,
        *,
        partition: str,
        keys: Sequence[str],
        tags: Sequence[Mapping[str, Any]] | None = None,
        **put_kwargs: Any,
    ) -> dict[str, Any]:
        """Store a batch, a row for each key, and publish it; without data, publish tags.

        Raises
        ------
        ValueError
            Neither is there, or numbers of rows differ; nothing is stored.
        Exception
            Whatever the catalog's call raised, twice; the publication is repeated by the next call.
        """
        self._settle()
        checked_text(partition, "partition")
        names = checked_names(keys, "keys")
        merged = checked_tags(tags, len(names))
        if data is None and merged is None:
            raise ValueError("catalog update requires tags or DataProto data")
        handle = None
        if data is not None:
            if len(data) != len(names):
                raise ValueError(
                    f"{len(data)} rows for {len(names)} names: their number must be equal"
                )
            ref = self.transfer.put(data, type="dataproto", partition=partition, **put_kwargs)
            handle = self._exported(ref)
        how = {"tags": merged, "handle": handle}
        return self._publish(_Publication("publish", (partition, names), how))

    def append(
        self,
        fragment_id: str,
        handle: Mapping[str, Any],
        data: Any,
        *,
        partition: str,
        keys: Sequence[str],
        stage: str,
        **append_kwargs: Any,
    ) -> dict[str, Any]:
        """Store more fields of a published batch, and publish them.

        Raises
        ------
        RuntimeError
            The batch is another one by now; what was stored is removed.
        """
        self._settle()
        ref = self.transfer.append_dataproto_fields(handle, data, stage=stage, **append_kwargs)
        appended = self._exported(ref)
        how = {"previous_handle": dict(handle), "handle": appended}
        args = (fragment_id, partition, checked_names(keys, "keys"))
        done = self._publish(_Publication("publish_append", args, how))
        if "append_rejected" in done:
            raise RuntimeError(done["append_rejected"])
        return done

    @staticmethod
    def _exported(ref: Any) -> Handle:
        from kvcove.mooncake.structured.handles import export_dataproto_ref

        return export_dataproto_ref(ref)

    def remove(self, partition: str, keys: Sequence[str]) -> None:
        """Forget keys, and remove the batches that nobody needs any more."""
        self._collect(self._catalog_call("remove", partition, list(keys)))

    # ---- reads

    def list(self, partition: str | None = None) -> dict[str, dict[str, Any]]:
        """Return the tags of all keys, by partition."""
        return dict(self._catalog_call("list", partition))

    def resolve(
        self, partition: str, keys: Sequence[str], fields: Sequence[str] | None = None
    ) -> dict[str, Any]:
        """Return where fields of keys lie, pinned until :meth:`release_read` of ``read_token``."""
        return dict(self._catalog_call("resolve", partition, list(keys), fields, pin=True))

    def release_read(self, token: int) -> None:
        """End a read, and remove the batches that were kept for it."""
        self._collect(self._catalog_call("release_read", token))

    def attach_results(self, output: Any, results: Sequence[Any]) -> None:
        """Let :meth:`release_result` of an output release what it was made from."""
        with self._lock:
            self._results[id(output)] = list(results)
            try:
                weakref.finalize(output, self._results.pop, id(output), None)
            except TypeError:
                # It cannot be watched: it stays until it is released, so that its id stays its own.
                self._outputs[id(output)] = output

    def release_result(self, output: Any) -> None:
        """Release what an output was made from. Raises what a release raised twice."""
        with self._lock:
            results = self._results.pop(id(output), ())
            self._outputs.pop(id(output), None)
        self.discard_results(results, strict=True)

    def discard_results(self, results: Sequence[Any], *, strict: bool = False) -> None:
        """Release results, each in two attempts; ``strict`` raises the first error."""
        failed: BaseException | None = None
        for result in results:
            try:
                _twice("release a result", functools.partial(self.transfer.release_result, result))
            except Exception as error:
                failed = failed or error
        if strict and failed is not None:
            raise failed

    # ---- end

    def close(self) -> None:
        """Repeat what the catalog may not know. Raises what the catalog's call raises."""
        self._settle()

    def drain(self) -> None:
        """Empty the catalog, and remove all published batches.

        Raises
        ------
        RuntimeError
            A read is under way, or a publication does not reach the catalog.
        """
        try:
            self._settle()
        except Exception as error:
            raise RuntimeError(f"DataProto catalog publish pending: {error}") from error
        self._collect(self._catalog_call("drain"))

    # ---- inside

    def _publish(self, publication: _Publication) -> dict[str, Any]:
        try:
            done: dict[str, Any] = _twice("publish", lambda: self._told(publication))
        except Exception:
            with self._lock:
                self._pending.append(publication)
            raise
        self._finish(publication, done)
        return done

    def _told(self, one: _Publication) -> dict[str, Any]:
        return dict(self._catalog_call(one.method, one.operation, *one.args, **one.kwargs))

    def _finish(self, one: _Publication, done: dict[str, Any]) -> None:
        if "append_rejected" in done:
            before, after = one.kwargs["previous_handle"], one.kwargs["handle"]
            self.transfer.cleanup_dataproto_append(before, after)
            return
        with self._lock:
            self._unacknowledged.append(one.operation)
        self._acknowledge()
        self._collect(done)

    def _acknowledge(self) -> None:
        with self._lock:
            operations, self._unacknowledged = self._unacknowledged, []
        while operations:
            try:
                self._catalog_call("ack_publication", operations[0])
            except Exception:
                # The catalog keeps the operation; the next call acknowledges it.
                logger.warning("a publication is not acknowledged yet", exc_info=True)
                with self._lock:
                    self._unacknowledged += operations
                return
            del operations[0]

    def _settle(self) -> None:
        """Acknowledge and publish what is pending, in order; raises if that fails."""
        self._acknowledge()
        with self._lock:
            pending, self._pending = self._pending, []
        while pending:
            try:
                done = self._told(pending[0])
            except Exception:
                with self._lock:
                    self._pending = pending + self._pending
                raise
            self._finish(pending.pop(0), done)

    def _collect(self, answer: Mapping[str, Any]) -> None:
        """Remove retired batches; the catalog tells of those again that could not be removed."""
        gone = []
        for handle in answer.get("retired_handles", ()):
            try:
                self.transfer.cleanup_dataproto(handle)
            except Exception:
                logger.warning("a retired batch is not removed yet", exc_info=True)
            else:
                gone.append(handle)
        if gone:
            try:
                self._catalog_call("ack_retired", gone)
            except Exception:
                logger.warning("removed batches are not acknowledged yet", exc_info=True)


def _twice(what: str, call: Callable[[], Any]) -> Any:
    try:
        return call()
    except Exception:
        logger.warning("once more: %s", what, exc_info=True)
    return call()
