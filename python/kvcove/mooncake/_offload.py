# SPDX-License-Identifier: Apache-2.0
"""SSD offload: whether it is on, where it lies, and how large it is.

A directory serves several owners of a host, one after the other or side by side: each takes the
first place in it that no other uses, ``DIRECTORY/kvcove-N`` with the disk's file and the owner's
identity. So an owner that is started again finds its disk, without a name of its own.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import shutil
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import kvcove
from kvcove._environment import asked_for_disk
from kvcove.mooncake._config import parse_size
from kvcove.mooncake._http import open_url

__all__ = [
    "DiskPlace",
    "Offload",
    "from_master",
    "incarnation_of",
    "puts_wait",
    "wanted",
]

_log = logging.getLogger("kvcove.mooncake")

_MIB = 1 << 20
LEAST_BYTES = 64 * _MIB
_MOST_PLACES = 256
# Bounds of a disk's size, of which the smallest counts; 0 is none.
_LIMITS = (
    "MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES",
    "MOONCAKE_OFFLOAD_BUCKET_MAX_TOTAL_SIZE",
    "MOONCAKE_BUCKET_MAX_TOTAL_SIZE",
    "MOONCAKE_OFFLOAD_BUCKET_MAX_PHYSICAL_BYTES",
)
_PATH = "MOONCAKE_OFFLOAD_FILE_STORAGE_PATH"
_USUAL_PATH = "/data/file_storage"
# What asks for a behaviour that is not there; the value that does not, and what is there instead.
_UNLIKE = {
    "MOONCAKE_OFFLOAD_DISABLE_SSD_EVICTION": (
        ("", "0", "false", "no", "off"),
        "a disk that is full frees its emptiest zone; make it larger to lose nothing",
    ),
    "MOONCAKE_OFFLOAD_STORAGE_BACKEND_DESCRIPTOR": (
        (
            "",
            "bucket_storage_backend",
            "file_per_key_storage_backend",
            "offset_allocator_storage_backend",
        ),
        "each owner has a log on a disk of its own; no directory is shared by hosts",
    ),
}


def _limit() -> int | None:
    found = []
    for name in _LIMITS:
        text = os.environ.get(name, "").strip()
        if not text:
            continue
        if not text.isascii() or not text.isdigit():
            raise ValueError(f"{name}={text} is no number of bytes, such as 107374182400")
        if int(text) > 0:
            found.append((int(text), name))
    if not found:
        return None
    limit, name = min(found)
    if limit < LEAST_BYTES:
        raise ValueError(f"{name}={limit}: a disk has {LEAST_BYTES} bytes (64 MiB) or more")
    return limit


def _warn_of_unlike() -> None:
    for name, (like, instead) in _UNLIKE.items():
        value = os.environ.get(name, "").strip()
        if value.lower() not in like:
            _log.warning("%s=%s: %s", name, value, instead)


@dataclass(frozen=True)
class Offload:
    """SSD offload that is asked for.

    Attributes
    ----------
    directory : Path
        Where disks are made.
    limit : int or None
        Bytes that one may have; None: nothing says it.
    drops : bool
        What the disk is too slow for is dropped (``-offload_force_evict``); else puts wait.
    """

    directory: Path
    limit: int | None
    drops: bool = False

    @staticmethod
    def of(path: str, drops: bool = False) -> Offload:
        """Return what is asked for, with the directory from ``path``, else from the environment.

        Raises
        ------
        ValueError
            No directory is named, it is no absolute path, or a limit is no number.
        """
        where = path.strip() or os.environ.get(_PATH, "").strip()
        if not where and Path(_USUAL_PATH).is_dir():
            where = _USUAL_PATH
        if not where:
            raise ValueError(f"SSD offload has no directory: give ssd_offload_path, or set {_PATH}")
        directory = Path(where)
        if not directory.is_absolute() or ".." in directory.parts or ":" in where:
            raise ValueError(
                f"SSD offload in {where!r}: an absolute path is wanted, without '..' and ':'"
            )
        _warn_of_unlike()
        return Offload(directory, _limit(), drops)

    @staticmethod
    def parse(text: str) -> Offload:
        """Return what ``DIRECTORY`` or ``DIRECTORY:SIZE`` asks for.

        Raises
        ------
        ValueError
            It is neither.
        """
        where, colon, size = text.partition(":")
        directory = Path(where)
        if not directory.is_absolute() or ".." in directory.parts:
            raise ValueError(f"{text!r}: an absolute directory is wanted, or DIRECTORY:SIZE")
        limit = parse_size(size) if colon else None
        if limit is not None and limit < LEAST_BYTES:
            raise ValueError(f"{text!r}: a disk has 64MiB or more")
        return Offload(directory, limit)

    @property
    def admit(self) -> str:
        """How the owner's ``--disk-admit`` says it."""
        return "all" if self.drops else "keep"

    def take(self, incarnation: str) -> DiskPlace:
        """Take a place that no other owner uses.

        Parameters
        ----------
        incarnation : str
            Of the pool that it is for: a disk of another one is of no use, and is made anew.
            Empty: what is there is taken as it is.

        Raises
        ------
        OSError
            Nothing can be made there.
        ValueError
            There is no room, or there are too many owners.
        """
        self.directory.mkdir(parents=True, exist_ok=True)
        for number in range(_MOST_PLACES):
            home = self.directory / f"kvcove-{number}"
            home.mkdir(mode=0o700, exist_ok=True)
            lock = os.open(home / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(lock)
                continue
            try:
                return self._made(home, lock, incarnation)
            except BaseException:
                os.close(lock)
                raise
        raise ValueError(f"{_MOST_PLACES} owners use {self.directory} already")

    def _made(self, home: Path, lock: int, incarnation: str) -> DiskPlace:
        disk, pool = home / "kvcove.disk", home / "pool"
        there = disk.stat().st_size if disk.exists() else 0
        of = pool.read_text() if pool.exists() else ""
        why = ""
        if there and incarnation and of != incarnation:
            why = "it is of another pool, or of this pool's past"
        elif there and self.limit is not None and there > self.limit:
            why = f"it has {there} bytes, and {self.limit} are allowed now"
        if why:
            _log.warning("SSD offload: %s starts empty: %s", home, why)
        if why or not there:
            disk.unlink(missing_ok=True)
            shutil.rmtree(home / "data", ignore_errors=True)
            there = 0
        size = there or self._size()
        pool.write_text(incarnation or of)
        _log.info("SSD offload: %d bytes in %s", size, home)
        return DiskPlace(home, size, lock)

    def _size(self) -> int:
        """Return the size of a new disk: a quarter of what is free, or as much as is allowed."""
        found = os.statvfs(self.directory)
        free = found.f_bavail * found.f_frsize
        size = free // 4 if self.limit is None else min(self.limit, free // 10 * 9)
        size = size // _MIB * _MIB
        if size < LEAST_BYTES:
            raise ValueError(
                f"SSD offload: {self.directory} has {free} bytes free, of which a disk would get "
                f"{size}; it needs {LEAST_BYTES} (64 MiB)"
            )
        return size


@dataclass
class DiskPlace:
    """A disk that this process has, until it is closed.

    Attributes
    ----------
    home : Path
        The directory with the disk's file and, in ``data``, the owner's identity.
    size : int
        Bytes of the file.
    """

    home: Path
    size: int
    _lock: int

    @property
    def spec(self) -> str:
        """``PATH:SIZE`` as ``--disk`` takes it."""
        return f"{self.home}:{self.size}"

    @property
    def data(self) -> str:
        """Where the owner's identity lies."""
        return str(self.home / "data")

    def close(self) -> None:
        """Let another owner have it. May be called again."""
        lock, self._lock = self._lock, -1
        if lock >= 0:
            os.close(lock)


def wanted(asked: bool, path: str, told: Mapping[str, object], memory: int) -> Offload | None:
    """Return the offload that a process with ``memory`` bytes for others is to have, if any.

    Parameters
    ----------
    asked : bool
        It was asked for by name: then a directory must be known.
    path : str
        The directory that was named with it.
    told : mapping
        What the master says, see :func:`from_master`.

    Raises
    ------
    ValueError
        What is asked for cannot be.
    """
    by_environment = asked_for_disk()
    root = str(told.get("root_fs_dir") or "")
    if memory <= 0 or not (asked or by_environment or root):
        return None
    try:
        drops = bool(told.get("offload_force_evict"))
        found = Offload.of(path or os.environ.get(_PATH, "") or root, drops)
    except ValueError as error:
        if asked:
            raise
        _log.warning("%s: %s; values lie in memory alone", by_environment or "-root_fs_dir", error)
        return None
    quota = told.get("quota_bytes")
    if found.limit is None and isinstance(quota, int) and quota > 0:
        return Offload(found.directory, max(quota, LEAST_BYTES), found.drops)
    return found


def puts_wait(told: Mapping[str, object], own: Offload | None) -> bool:
    """Whether a put without room is to wait for a disk that is making some."""
    there = own is not None or told.get("enable_offload") or told.get("root_fs_dir")
    return bool(there) and not told.get("offload_force_evict")


def incarnation_of(pool: kvcove.Pool) -> str:
    """Return the name of a pool's history; empty if the pool does not say it now."""
    try:
        with pool.session("mooncake", follow_always=True, assume_weights=True) as session:
            return str(session.capture(timeout=2.0))[:32]
    except kvcove.Error as error:
        _log.debug("the pool's incarnation is unknown: %s", error)
        return ""


def from_master(admin: str) -> Mapping[str, object]:
    """Return what a ``mooncake_master`` says of offloading; empty for any other master."""
    if not admin:
        return {}
    request = urllib.request.Request(f"{admin}/kvcove/offload")
    try:
        with open_url(request, timeout=1) as answer:
            told = json.loads(answer.read(65536))
    except (OSError, ValueError, urllib.error.HTTPError):
        return {}
    return told if isinstance(told, dict) else {}
