# SPDX-License-Identifier: Apache-2.0
"""Where engines on several hosts would share nothing, although a configuration is right."""

from __future__ import annotations

import ipaddress
import logging
import os
import re
from collections.abc import Mapping

from kvcove.launch._errors import LaunchError
from kvcove.launch.kv_store import KVStoreConfig
from kvcove.launch.probe import master_of
from kvcove.mooncake._config import ETCD, split_address

__all__ = ["tell"]

_log = logging.getLogger("kvcove.launch")

_REMEDY = (
    "start 'kvcove master' once and 'kvcove owner' on each host, and give "
    "extra_config.kv_connector_extra_config.pool=kvcove://HOST:7400"
)


def tell(
    config: KVStoreConfig,
    hosts: int,
    *,
    environ: Mapping[str, str] | None = None,
    source: str = "",
) -> None:
    """Warn where engines of different hosts would find nothing of each other.

    Parameters
    ----------
    config : KVStoreConfig
        One that is not enabled says nothing.
    hosts : int
        On which engines run.
    environ : mapping, optional
        Where MooncakeStoreConnector's variables are; None: this process's.
    source : str
        The file, for the text.
    """
    if not config.enable or hosts < 2:
        return
    try:
        pool = master_of(config, os.environ if environ is None else environ)
    except LaunchError:
        return  # who asks the pool says it
    where = f"{source}: " if source else ""
    if pool.startswith("embedded"):
        _log.warning("%sa pool 'embedded' is one engine's alone: %s", where, _REMEDY)
    elif pool == "auto" or pool.startswith("unix:"):
        _log.warning(
            "%s%d hosts, and the pool '%s' is of one host: engines of different hosts share nothing. To "
            "share: %s",
            where,
            hosts,
            pool,
            _REMEDY,
        )
    elif _is_loopback(pool):
        _log.warning(
            "%s%d hosts, and the pool is at %s, which is another place on each of them: engines reach it "
            "on its own host only. Start the master with the address of its host that others use, and "
            "name that",
            where,
            hosts,
            pool,
        )


def _is_loopback(pool: str) -> bool:
    """Whether all of a pool's masters have addresses that no other host reaches."""
    places = pool.removeprefix("kvcove://").removeprefix(ETCD).partition("?")[0].partition("/")[0]
    try:
        hosts = [split_address(place, 0)[0] for place in re.split("[;,]", places)]
        return all(host == "localhost" or ipaddress.ip_address(host).is_loopback for host in hosts)
    except ValueError:
        return False  # a name, or no address at all
