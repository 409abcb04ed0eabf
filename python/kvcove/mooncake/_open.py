# SPDX-License-Identifier: Apache-2.0
"""What a store has once it is set up: its pool, its sessions, its own memory."""

from __future__ import annotations

import contextlib
import logging
import os
import random
import sys
import threading
import time
import uuid
from collections import OrderedDict
from collections.abc import Mapping

import kvcove
from kvcove import _native
from kvcove._environment import is_true
from kvcove._native import Owner, Pool, Session
from kvcove.mooncake import _address, _config, _offload
from kvcove.mooncake._http import with_loopback
from kvcove.mooncake._process import credentials

__all__ = ["Open"]

_log = logging.getLogger("kvcove.mooncake")

DEFAULT_LEASE_SECONDS = 5.0
_MAX_SESSIONS = 64
_ROOM_SECONDS = 1.0  # for which a put waits until a disk has made room in memory
# For the first lease of an owner; a disk is read before it.
_LEASE_WAIT, _LEASE_WAIT_WITH_DISK = 5, 60


_FENCE = "KVCOVE_MOONCAKE_QUEUE_FENCE"
_UNPROVEN = "KVCOVE_RESET_UNPROVEN"
# It queues puts in a thread of each rank, and its reset empties the queue of one.
_QUEUEING = "vllm.distributed.kv_transfer.kv_connector.v1.mooncake"


def _fences_queues() -> bool:
    """Whether puts may have been queued before another's reset: vLLM's connector does that."""
    text = os.environ.get(_FENCE, "").strip().lower()
    if text in ("", "auto"):
        return any(name.startswith(_QUEUEING) for name in sys.modules)
    if not is_true(text) and text not in ("0", "false", "no", "off"):
        raise ValueError(f"{_FENCE}={text!r}: it takes 1, 0 or auto")
    return is_true(text)


def _raises_unproven() -> bool:
    text = os.environ.get(_UNPROVEN, "").strip().lower()
    if text not in ("", "answer", "raise"):
        raise ValueError(f"{_UNPROVEN}={text!r}: it takes 'answer' or 'raise'")
    return text == "raise"


def _seconds(name: str, default: float) -> float:
    text = os.environ.get(name, "")
    try:
        return float(text) / 1000 if text else default
    except ValueError:
        _log.warning("%s=%r is no number of milliseconds; %g s is used", name, text, default)
        return default


def _lease_seconds(pool: Pool) -> float:
    """Return for how long a read guides eviction: as the environment or the master says."""
    told, _ = pool.settings()
    return _seconds("KVCOVE_MOONCAKE_LEASE_MS", told or DEFAULT_LEASE_SECONDS)


def _reach(address: str, until: float) -> Pool:
    """Open the pool of a master that may not be there yet, or of several of which none leads now."""
    while True:
        try:
            return kvcove.open(address)
        except (kvcove.UnavailableError, kvcove.TimedOutError):
            if time.monotonic() > until:
                raise
            time.sleep(0.2)


class Open:
    """A store that is set up: the pool and its sessions, one for each way to place a put."""

    def __init__(self, setup: _config.Setup) -> None:
        self.setup = setup
        self.owner: Owner | None = None
        self.mounted: dict[str, Owner] = {}
        self.disk: _offload.DiskPlace | None = None
        self._told: Mapping[str, object] = {}  # by the master, of offloading
        self._offload: _offload.Offload | None = None
        self._lock = threading.Lock()
        self._sessions: OrderedDict[tuple[int, str], Session] = OrderedDict()
        self.engine = f"mooncake-{uuid.uuid4().hex}"
        self._listen = ""  # of the owner that setup() made
        self.raises_unproven = _raises_unproven()
        fences = _fences_queues()
        try:
            self.pool = self._connect()
            self.timeout = _seconds("KVCOVE_TIMEOUT_MS", 1.0)
            self.native = _native.Store(
                timeout=self.timeout,
                lease=_lease_seconds(self.pool),
                prefetches=self._prefetches(),
                wait_for_room=(
                    _ROOM_SECONDS if _offload.puts_wait(self._told, self._offload) else 0.0
                ),
            )
            self.hostname = self.owner.address if self.owner else self._requester_name()
            self.session = self.session_for(1, "")
            if fences:
                self.native.fence_queues(self.session)
        except BaseException:
            self.close()
            raise

    def _connect(self) -> Pool:
        setup = self.setup
        if not setup.master:
            return kvcove.open(setup.pool + self._own_disk())
        if setup.global_segment_size != 0 and "owner=" in setup.pool:
            raise ValueError(
                f"master_server_addr {setup.pool!r} names an owner, and global_segment_size makes this "
                "store one: global_segment_size=0, or an address without owner="
            )
        # Launchers start masters and engines side by side: who is first waits a little.
        until = time.monotonic() + _seconds("KVCOVE_SETUP_TIMEOUT_MS", 5.0)
        probe = _reach(setup.pool, until)
        self._told = _offload.from_master(self._admin_of(probe))
        if setup.global_segment_size == 0:
            return probe
        with probe:
            self._offload = self._wanted(setup.global_segment_size)
            if self._offload is not None:
                self.disk = self._offload.take(_offload.incarnation_of(probe))
        self.owner = self.open_owner(setup.global_segment_size, self.disk)
        joint = "&" if "?" in setup.pool else "?"
        address = f"{setup.pool}{joint}owner={self.owner.address}"
        lease_wait = _LEASE_WAIT_WITH_DISK if self.disk else _LEASE_WAIT
        deadline = max(until, time.monotonic() + lease_wait)
        while True:
            pool = _reach(address, deadline)
            there = False
            # This asks the master, which may have gone since.
            with contextlib.suppress(kvcove.UnavailableError, kvcove.TimedOutError):
                # Its own memory counts once the master has given the owner a lease.
                there = pool.stat().payload_bytes > 0
            if there or time.monotonic() > deadline:
                return pool
            pool.close()
            time.sleep(0.02)

    def _wanted(self, memory: int) -> _offload.Offload | None:
        setup = self.setup
        asked, path = setup.enable_ssd_offload, setup.ssd_offload_path
        return _offload.wanted(asked, path, self._told, memory)

    def _own_disk(self) -> str:
        """Return what an embedded pool's address says of its disk."""
        embedded = self.setup.pool.startswith("embedded")
        memory = self.setup.global_segment_size if embedded else 0
        if not embedded and self.setup.enable_ssd_offload:
            _log.warning(
                "setup(): enable_ssd_offload: the process that serves %s has a disk, or none: "
                "'kvcove serve --disk PATH:SIZE'",
                self.setup.pool,
            )
        self._offload = self._wanted(memory)
        if self._offload is None or "disk=" in self.setup.pool:
            return ""
        self.disk = self._offload.take("")  # its generations lie beside it
        keys = {"disk": self.disk.spec, "disk_admit": self._offload.admit, "data": self.disk.data}
        # What the caller's address says stays, and may stand in it once.
        return "".join(f"&{k}={v}" for k, v in keys.items() if f"{k}=" not in self.setup.pool)

    def _prefetches(self) -> bool:
        """Whether look-ups start to read what is on a disk: they do, unless somebody says no."""
        if self.setup.prefetches is not None:
            return self.setup.prefetches
        return self._told.get("promotion_on_hit") is not False

    def open_owner(self, size: int, disk: _offload.DiskPlace | None = None) -> Owner:
        """Give ``size`` bytes of this process to the cluster, and a disk below them."""
        host, port = _config.split_address(self.setup.local_hostname, 0)
        place = _address.place(host, self.setup.master)
        self._listen = self._listen or place.listen
        if port != 0 and self.owner is None:
            try:
                owner = self._owner_at(place, port, size, disk)
            except kvcove.UnavailableError as error:
                if "already in use" not in str(error):
                    raise
                raise kvcove.UnavailableError(
                    f"{error}; local_hostname {self.setup.local_hostname!r} names this port: each store "
                    f"of a host needs one of its own, or none ({host!r} takes a free one)",
                ) from None
        else:
            owner = self._owner_at_any_port(place, size, disk)
        if _address.is_loopback(host) and not _address.is_loopback(place.advertise):
            _log.info(
                "local_hostname %r means nothing on other hosts: this one is %s, the address of the "
                "route to the master",
                host,
                place.advertise,
            )
        if not _address.is_loopback(place.listen) and not credentials():
            _log.warning(
                "memory is served at %s without credentials: any client may read and write "
                "it; docs/security.md",
                _config.join_address(place.listen, _config.split_address(owner.address, 0)[1]),
            )
        return owner

    def _owner_at_any_port(
        self, place: _address.Place, size: int, disk: _offload.DiskPlace | None
    ) -> Owner:
        low, _ = _address.ports()
        port = _address.data_port(place.listen, random.randrange(1 << 16))
        while True:
            try:
                return self._owner_at(place, port, size, disk)
            except kvcove.UnavailableError:
                # The engines of a host start together: another may have taken the port since.
                free = _address.data_port(place.listen, port - low)
                if free == port:
                    raise
                port = free

    def _owner_at(
        self, place: _address.Place, port: int, size: int, disk: _offload.DiskPlace | None
    ) -> Owner:
        socket = _config.private_directory() / f"owner-{os.getpid()}-{uuid.uuid4().hex[:8]}.sock"
        return _native.open_owner(
            master=self.setup.master,
            memory=max(size, 1 << 20),
            listen=_config.join_address(place.listen, port),
            advertise=_config.join_address(place.advertise, port),
            socket_path=str(socket),
            credentials=credentials(),
            tls_authority=os.environ.get("KVCOVE_TLS_AUTHORITY", ""),
            tls_certificate=os.environ.get("KVCOVE_TLS_CERTIFICATE", ""),
            tls_key=os.environ.get("KVCOVE_TLS_KEY", ""),
            disk=disk.spec if disk else "",
            disk_admit=self._offload.admit if self._offload else "policy",
            data=disk.data if disk else "",
            transport=self.setup.transport,
            devices=self.setup.devices,
        )

    def http_hosts(self) -> list[str]:
        """Return where this store's own HTTP paths are served: where its memory is, and on loopback."""
        host, _ = _config.split_address(self.setup.local_hostname, 0)
        if not self.setup.master:
            return ["127.0.0.1"]
        try:
            return with_loopback(self._listen or _address.place(host, self.setup.master).listen)
        except (OSError, ValueError) as error:  # a requester may be called what it likes
            _log.warning("/health and /metrics are served on loopback only: %s", error)
            return ["127.0.0.1"]

    def admin_url(self) -> str:
        """Return the admin endpoint of the master that this store is connected to; empty without one."""
        return self._admin_of(self.pool)

    @staticmethod
    def _admin_of(pool: Pool) -> str:
        named = os.environ.get("KVCOVE_MASTER_ADMIN")
        if named:
            return named.rstrip("/")
        _, address = pool.settings()
        return f"http://{address}" if address else ""

    def _requester_name(self) -> str:
        host, port = _config.split_address(self.setup.local_hostname, 0)
        low, high = _address.ports()
        return _config.join_address(host, port or low + os.getpid() % (high - low + 1))

    def session_for(self, replicas: int, segment: str) -> Session:
        """Return the session that places puts like this."""
        key = (replicas, segment)
        with self._lock:
            session = self._sessions.get(key)
            if session is None:
                tenant = self.setup.tenant_id
                session = self.pool.session(
                    "mooncake" if tenant == "default" else f"mooncake/{tenant}",
                    engine=self.engine,
                    follow_always=True,
                    assume_weights=True,
                    preferred_segment=segment,
                    replicas=replicas,
                )
                self._sessions[key] = session
                while len(self._sessions) > _MAX_SESSIONS:
                    # Never the first: it is the one for everything else.
                    old = next(k for k in self._sessions if k != (1, ""))
                    self._sessions.pop(old)
            else:
                self._sessions.move_to_end(key)
            return session

    def close(self) -> None:
        """End everything that this store has opened."""
        with self._lock:
            sessions, self._sessions = list(self._sessions.values()), OrderedDict()
        for session in sessions:
            session.close()
        if hasattr(self, "pool"):
            self.pool.close()
        for owner in [*self.mounted.values(), self.owner]:
            if owner is not None:
                owner.close()
        if self.disk is not None:
            self.disk.close()
