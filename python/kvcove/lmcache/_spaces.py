# SPDX-License-Identifier: Apache-2.0
"""Which namespaces the KV of a model and a salt is in, and how all of them are voided at once."""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from typing import NamedTuple

import kvcove
from kvcove import _native, engines
from kvcove.lmcache._config import Config

__all__ = ["Begun", "Space", "Spaces", "leave_facts"]

_log = logging.getLogger("lmcache.kvcove")
_MOST = 512  # sessions of a tenant that are open at the same time
_SHORTEST_S = 0.05  # a reset with less time is not begun: one that is not proven closes its session
_LONGEST = 400  # bytes of a namespace's name without the prefix that a user gives


class Space:
    """One namespace: the KV of one model under one salt.

    Attributes
    ----------
    name : str
        Of the namespace.
    session : Session
        On it.
    """

    __slots__ = ("name", "session")

    def __init__(self, name: str, session: _native.Session) -> None:
        self.name = name
        self.session = session


class Begun(NamedTuple):
    """When KV was begun to be written or put: nothing that a clear or a reset has overtaken since is stored.

    Attributes
    ----------
    epoch : bytes
        Prefix of the keys at that time.
    token : Token
        Of the namespace of its model and salt.
    """

    epoch: bytes
    token: _native.Token


class _Tenant:
    """The namespaces of one credential.

    The generation of one namespace, the root, is in all keys of the others. So one reset of the root voids the KV of
    every model and salt, also of salts that this process has never seen, and a reset is O(1) however many there are.
    """

    def __init__(self, address: str, config: Config) -> None:
        self._config = config
        self.pool = kvcove.open(address)
        self._prefix = f"{config.namespace}/lmcache".lstrip("/")
        self._root = self._open(self._prefix)
        self._lock = threading.Lock()
        self._spaces: OrderedDict[tuple[str, str], Space] = OrderedDict()
        self._now: tuple[_native.Token, bytes] | None = None  # one field: threads read both at once

    def _open(self, name: str) -> _native.Session:
        # LMCache cannot say which weights an engine has, so nobody's reset closes this session.
        return self.pool.session(
            name, follow_always=True, preferred_segment=self._config.preferred_segment
        )

    def epoch(self, *, proven: bool = True) -> bytes:
        """Return the name of the time since the last clear. Raises kvcove.Error where nobody knows.

        Keys begin with it, and the namespaces that they are in may not have been reset: a look-up under an older epoch
        would find what the clear has voided, so it needs one that is ``proven``. What is stored under an older one is
        found by nobody, so stores need no proof, and go on while the master is away.
        """
        token = self._root.capture(timeout=self._config.lookup_timeout_ms / 1e3, leased=proven)
        now = self._now
        if now is None or now[0] != token:
            now = token, hashlib.blake2b(str(token).encode(), digest_size=8).digest()
            self._now = now
        return now[1]

    def space(self, model: str, salt: str) -> Space:
        """Return the namespace of a model and a salt."""
        with self._lock:
            space = self._spaces.get((model, salt))
            if space is not None:
                self._spaces.move_to_end((model, salt))
                return space
        name = f"{self._prefix}/{_name_of(model, salt)}"
        made = Space(name, self._open(name))
        with self._lock:
            space = self._spaces.setdefault((model, salt), made)
            old = self._spaces.popitem(last=False)[1] if len(self._spaces) > _MOST else None
        if space is not made:
            made.session.close()
        if old is not None:
            old.session.close()
        return space

    def spaces(self) -> list[tuple[str, str, Space]]:
        """Return model, salt and namespace of all open sessions."""
        with self._lock:
            return [(model, salt, space) for (model, salt), space in self._spaces.items()]

    def reset(self) -> None:
        """Void everything. Raises kvcove.Error where that is not proven; till it is, nothing is found or stored."""
        timeout = self._config.reset_timeout_ms / 1e3
        self._root.reset(all_void=True, timeout=timeout)
        # The keys of all namespaces are others now. Their own resets only give the memory back at once, so a pool that
        # has become slow is not asked for the other ones.
        until = time.monotonic() + timeout
        for _model, _salt, space in self.spaces():
            left = until - time.monotonic()
            try:
                if left < _SHORTEST_S:
                    raise kvcove.TimedOutError("no time is left")
                space.session.reset(all_void=True, timeout=left)
            except kvcove.Error as error:
                _log.debug("kvcove: the memory of %s is left to eviction: %s", space.name, error)
                return

    def close(self) -> None:
        for _model, _salt, space in self.spaces():
            space.session.close()
        self._root.close()
        self.pool.close()


class Spaces:
    """The namespaces of all models and salts, and the pools that they are in. Thread-safe.

    Without a pool (``on_unreachable: fallback``) there are none.
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        self._tenants: dict[str, _Tenant] = {}
        self._others: _Tenant | None = None
        address = config.pool
        if address == "auto":
            # A pool of this process alone would be of no use to anybody else.
            address = f"unix:{_native.default_socket_path()}"
        try:
            self._others = _Tenant(address, config)
            for salt, token in config.tenants.items():
                self._tenants[salt] = _Tenant(_with_token(address, token), config)
        except kvcove.Error as error:
            self.close()
            if config.on_unreachable == "crash" or not engines.no_pool(error):
                raise
            self._others = None
            self._tenants = {}
            _log.warning("kvcove: LMCache runs without a pool: %s", error)
            return
        for tenant in self._all():
            for line in engines.refusals(tenant.pool, finds=True, stores=True):
                _log.warning("kvcove: %s", line.replace("this engine", "LMCache"))

    def _all(self) -> list[_Tenant]:
        return ([] if self._others is None else [self._others]) + list(self._tenants.values())

    @property
    def pool(self) -> _native.Pool | None:
        """The pool of salts that are no tenant of their own; None: there is none."""
        return None if self._others is None else self._others.pool

    @property
    def on_this_host(self) -> bool:
        """Whether every pool is one of this host alone, whose look-ups ask nobody."""
        return all(tenant.pool.form == "host" for tenant in self._all())

    def at(self, model: str, salt: str, *, proven: bool = True) -> tuple[Space, bytes] | None:
        """Return the namespace of a model and a salt, and the present prefix of its keys.

        For a store it need not be ``proven`` that the prefix is the present one. None where nothing can be found or
        stored: without a pool, or as long as a clear is not proven.
        """
        tenant = self._tenants.get(salt, self._others)
        if tenant is None:
            return None
        try:
            epoch = tenant.epoch(proven=proven)
            return tenant.space(model, salt), epoch
        except kvcove.Error as error:
            _log.debug("kvcove: nothing is found or stored: %s", error)
            return None

    def begin(self, model: str, salt: str) -> Begun | None:
        """Return what a store must carry of KV that is written from now on; None: it cannot be stored."""
        found = self.at(model, salt, proven=False)
        if found is None:
            return None
        space, epoch = found
        try:
            return Begun(epoch, space.session.capture(timeout=self.config.lookup_timeout_ms / 1e3))
        except kvcove.Error as error:
            _log.debug("kvcove: nothing is stored: %s", error)
            return None

    def open(self) -> list[tuple[str, str, Space]]:
        """Return model, salt and namespace of all that this process has used."""
        return [each for tenant in self._all() for each in tenant.spaces()]

    def known(self) -> Iterator[tuple[str, str, Space, bytes]]:
        """Yield the same, and the present prefix of the keys."""
        for tenant in self._all():
            epoch = tenant.epoch()
            for model, salt, space in tenant.spaces():
                yield model, salt, space, epoch

    def reset(self) -> None:
        """Void everything.

        Raises
        ------
        kvcove.Error
            A reset is not proven. Nothing is found or stored until it is.
        """
        failed: kvcove.Error | None = None
        for tenant in self._all():
            try:
                tenant.reset()
            except kvcove.Error as error:
                failed = error
        if failed is not None:
            _log.error(
                "kvcove: a clear is not proven, nothing is found or stored until it is: %s", failed
            )
            raise failed

    def close(self) -> None:
        """End all sessions."""
        for tenant in self._all():
            tenant.close()


def _name_of(model: str, salt: str) -> str:
    """Return the last part of a namespace's name. Only LMCache's server allows '@' in neither."""
    name = f"{model}@{salt}" if salt else model
    unclear = "@" in model or "@" in salt
    if len(name.encode()) <= _LONGEST and name.isprintable() and not unclear:
        return name
    name = f"{len(model)} {name}"
    return hashlib.sha256(name.encode()).hexdigest()


def _with_token(address: str, token: str) -> str:
    return f"{address}{'&' if '?' in address else '?'}token={token}"


def leave_facts(spaces: Spaces, facts: dict[str, str]) -> None:
    """Leave the facts that must be equal to share in the pool, and log each difference to others' in one line."""
    pool = spaces.pool
    if pool is None:
        return
    engines.warn_of_differences(
        _log,
        lambda: pool.session(engines.FACTS, follow_always=True),
        facts["model name"],
        facts,
        others="others",
    )
