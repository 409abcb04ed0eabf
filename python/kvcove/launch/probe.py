# SPDX-License-Identifier: Apache-2.0
"""Whether the pool of a ``kv_store`` answers: asked once, before engines are started, from this host.

Each engine asks again where it runs (``on_unreachable``). What fails later is a miss (docs/operating.md).
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Mapping

import kvcove
from kvcove.launch._errors import LaunchError
from kvcove.launch.kv_store import KVStoreConfig
from kvcove.mooncake._config import (
    ETCD,
    POOL_SCHEMES,
    etcd_endpoints,
    join_address,
    master_in,
    split_address,
)
from kvcove.vllm._config import Config

__all__ = ["master_of", "probe"]


def probe(
    config: KVStoreConfig, *, timeout: float = 2.0, environ: Mapping[str, str] | None = None
) -> str | None:
    """Ask the pool whether it is there.

    Parameters
    ----------
    config : KVStoreConfig
        An enabled one.
    timeout : float
        Seconds, for all of it.
    environ : mapping, optional
        Where MooncakeStoreConnector's variables are; None: this process's.

    Returns
    -------
    str or None
        Why it cannot be reached, for a person; None: it answers, or it is a pool that engines open
        in their own memory.

    Raises
    ------
    LaunchError
        Nothing says where it is. That is a mistake, and not a pool that is away.
    """
    address = master_of(config, os.environ if environ is None else environ)
    if address in ("auto", "embedded") or address.startswith("embedded:"):
        return None
    each = 0.9 * timeout  # ends first, and says more
    if address.startswith(POOL_SCHEMES):
        return _within(timeout, address, lambda: _ask_kvcove(address, each))
    try:
        # Etcd says which of several masters leads. One of its members is enough.
        named = etcd_endpoints(address)[0] if address.startswith(ETCD) else [address]
        places = [split_address(one, 50051) for one in named]
    except ValueError as error:
        raise LaunchError(f"master_server_address: {error}") from error
    whose = "etcd" if address.startswith(ETCD) else "the master"
    return _within(timeout, address, lambda: _ask_one_of(places, whose, each / len(places)))


def _ask_kvcove(address: str, timeout: float) -> str | None:
    try:
        kvcove.open(address, timeout=timeout).close()
    except kvcove.Error as error:
        return f"{address}: {error}"
    return None


def _ask_one_of(places: list[tuple[str, int]], whose: str, timeout: float) -> str | None:
    said = ""
    for host, port in places:
        try:
            socket.create_connection((host, port), timeout).close()
        except OSError as error:
            address = join_address(host, port)
            said = f"{whose} at {address} does not answer: {error.strerror or error}"
        else:
            return None
    return said


def _within(timeout: float, address: str, ask: Callable[[], str | None]) -> str | None:
    """Ask in a thread: names are looked up without a deadline, and a host may have many addresses."""
    answers: list[str | None] = []
    asking = threading.Thread(
        target=lambda: answers.append(ask()), name="kvcove-probe", daemon=True
    )
    asking.start()
    asking.join(timeout)
    return answers[0] if answers else f"{address} does not answer within {timeout:g} s"


def master_of(config: KVStoreConfig, environ: Mapping[str, str]) -> str:
    """Return the address of the pool, as the connector will find it.

    Returns
    -------
    str
        What :func:`kvcove.open` takes, or ``host:port`` of Mooncake's master.

    Raises
    ------
    LaunchError
        MooncakeStoreConnector's JSON file cannot be read, or nothing names a master.
    """
    options = config.connector_options()
    if config.connector() == "KvcoveConnector":
        return Config.of(options).pool
    path = options.get("mooncake_config_path") or environ.get("MOONCAKE_CONFIG_PATH")
    if not path:
        master = environ.get("MOONCAKE_MASTER")
        if master:
            return master
        raise LaunchError(
            "MooncakeStoreConnector has no configuration: give kv_store.config_path, or set "
            "MOONCAKE_CONFIG_PATH to its JSON file"
        )
    try:
        return master_in(path)
    except ValueError as error:
        raise LaunchError(str(error)) from error
