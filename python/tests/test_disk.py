# SPDX-License-Identifier: Apache-2.0
"""The disk tier through the Python package: its options, counters and reasons."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import wait_until

import kvcove

VALUE = b"v" * 100_000


@pytest.fixture
def address(tmp_path: Path) -> str:
    return f"embedded:?memory=4MiB&populate=0&disk={tmp_path}/disk:64MiB&data={tmp_path}/data"


@contextlib.contextmanager
def opened(address: str) -> Iterator[kvcove.Pool]:
    try:
        pool = kvcove.open(address)
    except kvcove.Error as error:
        if "O_DIRECT" in str(error) or "tmpfs" in str(error):
            pytest.skip(str(error))
        raise
    try:
        yield pool
    finally:
        pool.close()


def store(pool: kvcove.Pool, count: int) -> kvcove.Session:
    """Put values, no faster than the disk's queue takes them."""
    session = pool.session("test/model@1")
    for i in range(count):
        assert session.put([f"key-{i}"], [VALUE]).all_ok
        assert wait_until(lambda: pool.stat().evictions == handled(pool.stat()))
    return session


def handled(stat: kvcove.PoolStat) -> int:
    return stat.disk_puts + stat.disk_not_worth + stat.disk_dropped_full


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("&disk_admit=some", "policy, all, keep and never"),
        ("&disk_write_rate=fast", "200MiB/s"),
        ("&disk_admitt=all", "disk_admit"),
    ],
)
def test_wrong_options_say_what_is_right(address: str, options: str, message: str) -> None:
    with pytest.raises(kvcove.Error, match=message):
        kvcove.open(address + options)


def test_what_memory_evicts_comes_back(address: str) -> None:
    with opened(address + "&disk_admit=all") as pool:
        session = store(pool, 100)
        stat = pool.stat()
        assert stat.disk_puts > 50
        assert stat.disk_not_worth == stat.disk_over_rate == stat.disk_asides == 0
        assert stat.disk_put_bytes == stat.disk_puts * len(VALUE)
        into = bytearray(len(VALUE))
        for i in range(100):
            assert session.get_into([f"key-{i}"], [into], timeout=20).all_ok
            assert bytes(into) == VALUE
            into[:] = bytes(len(VALUE))
        assert pool.stat().disk_hits > 0


def test_nothing_goes_down_that_may_not(address: str) -> None:
    with opened(address + "&disk_admit=never") as pool:
        store(pool, 100)
        stat = pool.stat()
        assert stat.disk_puts == 0
        assert stat.disk_not_worth == stat.evictions > 50


def test_the_disks_reasons_have_names() -> None:
    names = [reason.name for reason in kvcove.MissReason]
    assert names[-5:-1] == ["DISK_DAMAGED", "DISK_FAILED", "DISK_TIMEOUT", "NO_ROOM"]
