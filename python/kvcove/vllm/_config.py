# SPDX-License-Identifier: Apache-2.0
"""``kv_connector_extra_config``: every key has a meaning, every other one is refused."""

from __future__ import annotations

import dataclasses
import difflib
import os
from collections.abc import Callable
from typing import Any

import kvcove
from kvcove import _native
from kvcove.engines import ADDRESSES, named_pool, settings_of
from kvcove.mooncake._offload import Offload

__all__ = ["Config", "named_pool"]


def _bool(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in ("1", "true", "yes", "on"):
        return True
    if isinstance(value, str) and value.lower() in ("0", "false", "no", "off"):
        return False
    raise ValueError("give true or false")


_CONVERT: dict[str, Callable[[Any], Any]] = {
    "bool": _bool,
    "int": int,
    "float": float,
    "str": str,
}


def _is_host_and_port(text: str) -> bool:
    host, colon, port = text.rpartition(":")
    bare = host.removeprefix("[").removesuffix("]")
    bracketed = host == f"[{bare}]"
    if not colon or not bare or bare != bare.strip() or (":" in bare) != bracketed:
        return False
    return port.isascii() and port.isdigit() and 1 <= int(port) <= 65535


_LEAST_MEMORY, _MOST_MEMORY = 1 << 20, 16 << 40


@dataclasses.dataclass(frozen=True)
class Config:
    """What a user may set.

    Attributes
    ----------
    pool : str
        Address of the pool: ``auto`` (what $KVCOVE_POOL names, else the master in the file of
        $MOONCAKE_CONFIG_PATH, or of $MOONCAKE_MASTER, else the owner of this host if its socket is there, else
        ``embedded``), ``embedded`` (in the engine's core, shared with its ranks), ``unix:/path``,
        ``kvcove://host:7400``.
    on_unreachable : str
        The pool does not answer when the engine starts: ``crash``: an error; ``fallback``: a
        warning, and an engine without a pool. One that goes away later is a miss in either case.
    memory : str
        Of an embedded pool: 1MiB to 16TiB. An error with a pool that has its own.
    disk : str
        Of an embedded pool: a directory, in which what memory evicts is kept, also when the engine
        ends; or ``DIRECTORY:SIZE`` (else a quarter of what is free). An error with a pool that has
        its own. Empty: none.
    namespace : str
        A prefix that keeps engines apart; engines that may share have the same.
    weight_version_source : str
        ``fingerprint``, ``engine``, ``salt`` or ``none`` (docs/connector.md).
    preferred_segment : str
        Owners (host:port, with commas between them) that saves go to in a cluster, the first one
        first. Empty: $KVCOVE_PREFERRED_SEGMENT, else
        $MOONCAKE_PREFERRED_SEGMENT, else the one on this host.
    store_tp : int
        Objects are cut as if the tensor parallel size were this; engines whose size divides it
        share. 0: as it is.
    load_when : str
        ``faster``: what was found is loaded as far as that is faster than computing it, as measured
        on this engine; ``always``.
    load_async, lookup, save_decoded : bool
        Loads beside the forward pass (always so for a model with windows or states, and where
        several steps are under way at a time); look-ups at all; also what was generated is saved.
    lookup_budget_ms : float
        That look-ups may hold a step of the scheduler, together.
    lookup_timeout_ms, timeout_ms, reset_timeout_ms : float
        Of a request's look-up (then it is a miss), of one batch of a load or save, of a reset.
    save_wait_ms : float
        That a request's look-up waits for blocks which an engine is saving, at most; 0: not at all.
    hold_s : float
        What was found is kept from eviction until it is loaded, for so long.
    threads : int
        Of each rank, that move KV.
    on_reset_failure : str
        ``false``: an unproven reset answers false; ``closed``: it answers true, and nothing is
        found or stored until it is proven. One that the pool refuses is false with both.
    harmless_calls : str
        More methods of ``collective_rpc`` that change no weights, with commas between them.
    weights_check_s : float
        Each rank looks so often whether its weights were written past every call that is observed.
        0: never. Only with ``fingerprint``.
    trust_siblings : bool
        KV that another connector of this engine loaded (a child of MultiConnector) is of this
        engine's weights: requests that begin on it store. Else they store nothing.
    assume_weights : bool
        With ``none``: this engine's weights are those of the namespace although others have reset
        it.
    allow_load_failure_policy_fail : bool
        vLLM's kv_load_failure_policy may stay "fail": a load that fails ends the user's request.
    priority : str
        Of the namespace, against others under pressure: ``low``, ``normal`` or ``high``
        (docs/eviction.md). Empty: what others say, else normal.
    kv_layout : str
        Of the engine's KV memory. ``block``: a block of all layers is one run of bytes; ``engine``:
        what the engine prefers; ``auto``: ``block`` on NVIDIA's GPUs, where no sibling connector
        has a say. vLLM falls back where a backend cannot do it (docs/device.md).
    load_layers : int
        With ``load_async`` false, on a GPU: a load is cut into so many parts by layers, so that the
        first layers are computed while later ones land. 1: it is not cut.
    device_ring, device_staging, device_threshold : str
        Of each rank's GPU: pinned host memory each way, memory on the device for small runs, and
        the bytes from which a run goes by itself (``auto``: measured at the start).
    device_pin : str
        How much of the pool's memory on this host each rank pins for its GPU, so that KV goes
        straight out of it and into it: ``auto`` (all of it), ``off``, or a size.
    tier_log : bool
        A line a load (also $KVCOVE_TIER_LOG, $VLLM_MOONCAKE_STORE_TIER_LOG).
    check_loads : bool
        Each block is filled before its load and looked at afterwards; one that is not written fails
        the load, with an error line. Slow: for those who look for a fault.
    discard_partial_chunks : bool
        A chunk that is not full has no block hash and is not stored: only true.
    """

    pool: str = "auto"
    on_unreachable: str = "crash"
    memory: str = "4GiB"
    disk: str = ""
    namespace: str = ""
    weight_version_source: str = "fingerprint"
    preferred_segment: str = ""
    store_tp: int = 0
    load_when: str = "faster"
    load_async: bool = True
    lookup: bool = True
    save_decoded: bool = False
    lookup_budget_ms: float = 5.0
    lookup_timeout_ms: float = 1000.0
    save_wait_ms: float = 200.0
    timeout_ms: float = 1000.0
    reset_timeout_ms: float = 2500.0
    hold_s: float = 60.0
    threads: int = 2
    on_reset_failure: str = "false"
    harmless_calls: str = ""
    weights_check_s: float = 0.0
    trust_siblings: bool = False
    assume_weights: bool = False
    allow_load_failure_policy_fail: bool = False
    priority: str = ""
    kv_layout: str = "auto"
    load_layers: int = 1
    device_ring: str = "64MiB"
    device_staging: str = "96MiB"
    device_threshold: str = "auto"
    device_pin: str = "auto"
    tier_log: bool = False
    check_loads: bool = False
    discard_partial_chunks: bool = True

    @classmethod
    def of(cls, extra: dict[str, Any]) -> Config:
        """Return the configuration.

        Raises
        ------
        ValueError
            With the key, what was given and what would be right.
        """
        config = settings_of(cls, extra, "kv_connector_extra_config", _CONVERT)
        config._check()
        config._check_pool("memory" in extra)
        config._check_disk()
        return (
            dataclasses.replace(config, pool=named_pool()[0]) if config.pool == "auto" else config
        )

    def _check_pool(self, memory_given: bool) -> None:
        """Refuse what would give scheduler and ranks a pool each, and memory that nobody uses."""

        def refuse(text: str) -> None:
            raise ValueError(f"kv_connector_extra_config: {text}")

        form, _, query = self.pool.partition("?")
        if form in ("auto", "embedded:") and (query or form == "embedded:"):
            # What kvcove.open takes: here every process would open a pool of its own.
            right = [f'"pool": "{form.rstrip(":")}"']
            for pair in filter(None, query.split("&")):
                name, _, value = pair.partition("=")
                if name != "memory":
                    refuse(f"pool: {self.pool!r}: '{name}' can't be set here; only memory can")
                right.append(f'"memory": "{value}"')
            refuse(f"pool: {self.pool!r}: write {', '.join(right)}")
        if self.pool not in ("auto", "embedded") and not self.pool.startswith(ADDRESSES):
            near = difflib.get_close_matches(form, ("auto", "embedded"), 1)
            hint = f"; did you mean '{near[0]}'?" if near else ""
            refuse(
                f"pool: {self.pool!r}: give auto, embedded, unix:/PATH, kvcove://HOST:7400 or "
                f"kvcove://etcd://HOST:2379/PREFIX{hint}"
            )
        try:
            size = _native.parse_size(self.memory)
        except kvcove.Error as error:
            raise ValueError(
                f"kv_connector_extra_config: memory: {self.memory!r}: {error}"
            ) from error
        if not _LEAST_MEMORY <= size <= _MOST_MEMORY:
            refuse(f"memory: {self.memory!r}: give 1MiB to 16TiB")
        if memory_given and self.pool.startswith(ADDRESSES):
            refuse(
                f"memory: {self.memory!r}: the pool at {self.pool} has memory of its own; leave it "
                'out, or give "pool": "embedded"'
            )

    def _check_disk(self) -> None:
        if not self.disk:
            return
        try:
            Offload.parse(self.disk)
        except ValueError as error:
            raise ValueError(f"kv_connector_extra_config: disk: {error}") from error
        if self.pool.startswith(ADDRESSES):
            raise ValueError(
                f"kv_connector_extra_config: disk: {self.disk!r}: the pool at {self.pool} has disks, or "
                'none: start its owners with --disk PATH:SIZE, or give "pool": "embedded"'
            )

    def _check(self) -> None:
        def refuse(key: str, right: str) -> None:
            raise ValueError(f"kv_connector_extra_config: {key}: {getattr(self, key)!r}: {right}")

        sources = ("fingerprint", "engine", "salt", "none")
        if self.weight_version_source not in sources:
            refuse("weight_version_source", f"give one of {', '.join(sources)}")
        if self.on_unreachable not in ("fallback", "crash"):
            refuse("on_unreachable", "give 'fallback' or 'crash'")
        if self.load_when not in ("faster", "always"):
            refuse("load_when", "give 'faster' or 'always'")
        if self.on_reset_failure not in ("false", "closed"):
            refuse("on_reset_failure", "give 'false' or 'closed'")
        if self.priority not in ("", "low", "normal", "high"):
            refuse("priority", "give 'low', 'normal' or 'high'")
        if not self.discard_partial_chunks:
            refuse("discard_partial_chunks", "a partial chunk has no block hash; only true")
        for key in ("lookup_budget_ms", "lookup_timeout_ms", "timeout_ms", "reset_timeout_ms"):
            if not 1 <= getattr(self, key) <= 600_000:
                refuse(key, "give 1 to 600000 milliseconds")
        if not 0 <= self.save_wait_ms <= 600_000:
            refuse("save_wait_ms", "give 0 (no wait) to 600000 milliseconds")
        if self.weights_check_s != 0 and not 1 <= self.weights_check_s <= 86_400:
            refuse("weights_check_s", "give 0 (never) or 1 to 86400 seconds")
        if self.weights_check_s != 0 and self.weight_version_source != "fingerprint":
            refuse("weights_check_s", "only with 'weight_version_source' fingerprint")
        if self.kv_layout not in ("auto", "block", "engine"):
            refuse("kv_layout", "give 'auto', 'block' or 'engine'")
        if not 1 <= self.load_layers <= 64:
            refuse("load_layers", "give 1 to 64 parts")
        if self.load_layers > 1 and self.load_async:
            refuse("load_layers", 'needs "load_async": false; other loads run beside the step')
        for key, words, least, most in (
            ("device_ring", (), 1 << 20, 4 << 30),
            ("device_staging", (), 0, 4 << 30),
            ("device_threshold", ("auto",), 0, 1 << 30),
            ("device_pin", ("auto", "off"), 64 << 20, 16 << 40),
        ):
            try:
                fits = least <= self._size_of(key) <= most
            except kvcove.Error:
                fits = False
            if not fits and getattr(self, key) not in words:
                choice = "".join(f"'{word}' or " for word in words)
                refuse(key, f"give {choice}a size from {least} to {most} bytes")
        if not 0 <= self.hold_s <= 60:
            refuse("hold_s", "give 0 to 60 seconds")
        if not 1 <= self.threads <= 64:
            refuse("threads", "give 1 to 64")
        for segment in filter(None, self.preferred_segment.split(",")):
            if not _is_host_and_port(segment):
                refuse("preferred_segment", f"'{segment}': give an owner's HOST:PORT")
        if self.store_tp < 0:
            refuse("store_tp", "give 0 or a tensor parallel size")

    def _size_of(self, key: str) -> int:
        value = getattr(self, key)
        if key == "device_pin" and value == "off":
            return 0
        return -1 if value == "auto" else int(value) if value == "0" else _native.parse_size(value)

    def loading_beside(self) -> Config:
        """Return the same with loads that run beside the forward pass."""
        return dataclasses.replace(self, load_async=True, load_layers=1)

    @property
    def device(self) -> dict[str, int]:
        """What ``WorkerRole`` takes of the settings for GPUs."""
        return {
            "device_ring": self._size_of("device_ring"),
            "device_staging": self._size_of("device_staging"),
            "device_threshold": self._size_of("device_threshold"),
            "device_pin": self._size_of("device_pin"),
            "layer_parts": self.load_layers,
        }

    @property
    def harmless_names(self) -> list[str]:
        """The names in ``harmless_calls``."""
        return [name.strip() for name in self.harmless_calls.split(",") if name.strip()]

    @property
    def wants_tier_log(self) -> bool:
        """Whether each load gets a line."""
        names = ("KVCOVE_TIER_LOG", "VLLM_MOONCAKE_STORE_TIER_LOG")
        return self.tier_log or any(os.environ.get(name, "0") not in ("", "0") for name in names)
