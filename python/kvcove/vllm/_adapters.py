# SPDX-License-Identifier: Apache-2.0
"""LoRA adapters: digests of their contents, from the ranks to the scheduler's role.

vLLM hashes an adapter's name and path into its block hashes. Both stay when somebody loads other
tensors under them, so each rank digests the tensors that its LoRA manager holds, whichever way they
came there (files, a trainer's tensors, ``load_inplace``, loaded again after an eviction), and
reports them with its steps. The scheduler's role asks for the reports at once when it sees a call
that changes adapters, and when a request comes whose adapter the ranks have not.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator
from typing import Any

from kvcove.engines import _digest

__all__ = ["Adapters", "forget_rank", "observe", "offer_reports", "refresh"]

_log = logging.getLogger("vllm.kvcove")


class Adapters:
    """The digests of the adapters of one rank; each adapter's tensors are read once."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Any, str]] = {}

    def digests(self, model: Any) -> dict[int, str]:
        """Return a digest by adapter id.

        Parameters
        ----------
        model : torch.nn.Module
            The worker's model. vLLM's LoRA manager is its ``lora_manager``.
        """
        manager = getattr(model, "lora_manager", None)
        held: dict[int, Any] = manager.list_adapters() if manager is not None else {}
        known = self._known
        # An adapter that is loaded again is another object.
        self._known = {
            number: known[number]
            if number in known and known[number][0] is adapter
            else (adapter, digest_of(adapter))
            for number, adapter in held.items()
        }
        return {number: digest for number, (_, digest) in self._known.items()}


def digest_of(adapter: Any) -> str:
    """Return 32 hex digits of a loaded adapter: its tensors, their modules, ranks and scalings."""
    digest = _digest.Digest()
    for name, value in _walk("", {**vars(adapter), "id": None}):
        digest.add(name, value)
    return digest.value()


def _walk(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if hasattr(value, "data_ptr") or value is None or isinstance(value, bool | int | float | str):
        yield name, value
    elif isinstance(value, dict):
        for key in sorted(value, key=str):
            yield from _walk(f"{name}.{key}", value[key])
    elif isinstance(value, list | tuple):
        for at, item in enumerate(value):
            yield from _walk(f"{name}[{at}]", item)
    elif hasattr(value, "__dict__"):
        yield from _walk(name, vars(value))
    else:
        yield name, str(value)


# Of this process: what asks a rank of an engine for its report, in the order of the connectors.
_reports: dict[str, dict[int, Callable[[], bytes | None]]] = {}


def offer_reports(engine: str, connector: Any, report: Callable[[], bytes | None]) -> None:
    """Let :func:`refresh` ask this rank for its report."""
    _reports.setdefault(engine, {})[id(connector)] = report


def forget_rank(engine: str, connector: Any) -> None:
    """Ask a rank that ends for nothing more."""
    _reports.get(engine, {}).pop(id(connector), None)


def _reports_of(worker: Any, engine: str) -> list[bytes | None]:
    """In a worker's process: return the reports of its connectors."""
    return [report() for report in _reports.get(engine, {}).values()]


def refresh(core: Any, roles: list[Any]) -> None:
    """Take the ranks' reports now: they say which adapters they have.

    Where that fails they come with the next step, and until then the ranks refuse what depends on
    an adapter that has changed.
    """
    config = core.vllm_config
    if config.lora_config is None or not roles:
        return
    try:
        answers = core.model_executor.collective_rpc(
            _reports_of, args=(str(config.kv_transfer_config.engine_id),)
        )
    except Exception as error:
        _log.warning("kvcove: the ranks do not say which LoRA adapters they have: %s", error)
        return
    for answer in answers:
        for role, report in zip(roles, answer, strict=False):
            if report is not None:
                role.on_report(report)


def observe(engine_core: Any, roles_of: Callable[[Any], list[Any]]) -> None:
    """Watch the calls of an ``EngineCore`` class after which ranks have other adapters, once."""

    def refreshing(call: Any) -> Any:
        @functools.wraps(call)
        def observed(self: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                return call(self, *args, **kwargs)
            finally:
                refresh(self, roles_of(self))

        return observed

    engine_core.add_lora = refreshing(engine_core.add_lora)
    engine_core.remove_lora = refreshing(engine_core.remove_lora)
    add_request = engine_core.add_request

    @functools.wraps(add_request)
    def observed_add_request(self: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        lora: Any = getattr(request, "lora_request", None)
        roles = roles_of(self) if lora else []
        if any(not role.has_adapter(lora.lora_int_id) for role in roles):
            # The request's first step would load it, which is too late for its look-up.
            try:
                self.add_lora(lora)
            except Exception as error:
                _log.debug("kvcove: LoRA adapter %s: %s", lora.lora_name, error)
        return add_request(self, request, *args, **kwargs)

    engine_core.add_request = observed_add_request
