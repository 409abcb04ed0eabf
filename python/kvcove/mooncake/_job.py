# SPDX-License-Identifier: Apache-2.0
"""Credentials for a job of SLURM whose launch names none.

prime-rl's template calls ``mooncake_master``, ``mooncake_client`` and engines by the names of their
nodes, and says nothing of who may reach the master. Each of them has
``MOONCAKE_CONFIG_PATH=OUTPUT/mooncake/node_N/config.json``, in a directory that all nodes see. So the master
makes credentials of the job beside those directories, and the others find them there: only the
job's user can read them.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
from pathlib import Path

from kvcove import _command

__all__ = ["TENANT", "make", "servers_file", "token_file"]

TENANT = "job"
_SERVERS = "servers.toml"


def _directory() -> Path | None:
    """Return where the credentials of this job are, or would be; None: this is no such job."""
    job = os.environ.get("SLURM_JOB_ID", "")
    node = Path(os.environ.get("MOONCAKE_CONFIG_PATH", "")).parent
    if not job or not re.fullmatch(r"node_\d+", node.name):
        return None
    again = os.environ.get("SLURM_RESTART_COUNT") or "0"
    return node.parent.absolute() / f"kvcove-{job}-{again}"


def _file(name: str) -> str:
    directory = _directory()
    if directory is None:
        return ""
    try:
        os.listdir(directory)  # opening a directory of NFS shows what another node has made in it
        found = directory.lstat()
    except OSError:
        return ""
    # Credentials that another user has made, or can read, would let that user in.
    private = stat.S_ISDIR(found.st_mode) and not stat.S_IMODE(found.st_mode) & 0o077
    file = directory / name
    return str(file) if private and found.st_uid == os.getuid() and file.is_file() else ""


def servers_file() -> str:
    """Return the credentials of this job's servers; empty: its master has made none."""
    return _file(_SERVERS)


def token_file() -> str:
    """Return the token of this job's engines; empty: its master has made none."""
    return _file(f"{TENANT}.toml")


def make() -> Path | None:
    """Make the credentials of this job, for its master; those that are there stay.

    Returns
    -------
    Path or None
        Their directory, which the master removes at its end. None: this is no such job, or another master
        of it, which may have been killed, has made them: engines hold its token.

    Raises
    ------
    OSError, ValueError
        They cannot be made, or others could read them.
    """
    directory = _directory()
    if directory is None:
        return None
    if "&" in str(directory):
        raise ValueError(f"{directory}: a pool's address cannot name a file with & in its path")
    if servers_file() and token_file():
        return None
    directory.mkdir(mode=0o700)
    if stat.S_IMODE(directory.stat().st_mode) & 0o077:
        directory.rmdir()
        raise ValueError(
            f"{directory.parent} keeps no modes of files: others could read a token there"
        )
    for name, scopes in (("cluster", "owner,admin"), (TENANT, "read,write,reset")):
        made = [_command.path(), "token", name, "--scopes", scopes]
        made += ["--credentials", str(directory / _SERVERS)]
        made += ["--output", str(directory / f"{name}.toml")]
        ran = subprocess.run(made, capture_output=True, text=True, timeout=60, check=False)
        if ran.returncode != 0:
            shutil.rmtree(directory, ignore_errors=True)
            raise ValueError(f"no credentials in {directory}: {ran.stderr.strip()}")
    return directory
