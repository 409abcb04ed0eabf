# SPDX-License-Identifier: Apache-2.0
"""Resets of the drop-in whose callers queue puts, or do not look at the answer."""

from __future__ import annotations

import re
import sys
import threading
import time
import types
from pathlib import Path

import pytest
from conftest import (
    Cluster,
    Program,
    command_path,
    guarded_cluster,
    http,
    new_store,
    setup,
    wait_until,
)

STALE = -300
WORKER = "vllm.distributed.kv_transfer.kv_connector.v1.mooncake.store.worker"


@pytest.fixture
def queues(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have vLLM's sender loaded, as in a worker of MooncakeStoreConnector."""
    monkeypatch.setitem(sys.modules, WORKER, types.ModuleType(WORKER))


class Rank:
    """A rank whose thread works a queue of puts off, as that connector's does; the queue never ends."""

    def __init__(self, address: str) -> None:
        self.store = new_store()
        assert setup(self.store, address) == 0
        self.calls: list[tuple[float, float, int]] = []  # began, ended, answer
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._send, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._ends.set()
        self._thread.join()

    def _send(self) -> None:
        while not self._ends.is_set():
            began = time.monotonic()
            answer = self.store.put(f"layer-{len(self.calls)}", b"old weights")
            self.calls.append((began, time.monotonic(), answer))
            time.sleep(0.002)  # as the copy of the next one out of a GPU takes


def late_answers(cluster: Cluster) -> list[int]:
    """Reset from one rank beside another's queue.

    Returns what the puts answered that the queue's rank called after the reset, up to a stall of the
    machine, and has seen to it that puts after a pause are stored and found.
    """
    first = new_store()
    assert setup(first, cluster.address) == 0
    second = Rank(cluster.address)
    try:
        assert wait_until(lambda: len(second.calls) > 20)
        assert first.remove_all(force=True) >= 0
        proven = time.monotonic()
        assert wait_until(lambda: len(second.calls) > 30 and second.calls[-30][0] > proven)
        second.close()
        calls = [call for call in second.calls if call[0] > proven]
        # What the library sees of two calls lies between the beginning of one and the end of the next.
        queued = calls[:1]
        for call in calls[1:]:
            if call[1] - queued[-1][0] >= 0.1 or call[1] - calls[0][0] > 4.0:
                break
            queued.append(call)
        keys = [f"layer-{second.calls.index(call)}" for call in queued]
        answers = [call[2] for call in queued]
        assert first.batch_is_exist(keys) == [int(answer == 0) for answer in answers]
        time.sleep(0.3)
        assert second.store.put("new", b"new weights") == 0
        # The one that resets has emptied its queue by itself.
        assert first.put("own", b"new weights") == 0
        assert first.batch_is_exist(["new", "own"]) == [1, 1]
        return answers
    finally:
        second.close()
        second.store.close()
        first.close()


@pytest.mark.usefixtures("queues")
def test_what_another_rank_has_queued_before_a_reset_is_refused(cluster: Cluster) -> None:
    assert set(late_answers(cluster)) == {STALE}


def test_callers_that_do_not_queue_are_believed_at_once(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert set(late_answers(cluster)) == {0}
    monkeypatch.setenv("KVCOVE_MOONCAKE_QUEUE_FENCE", "1")
    assert set(late_answers(cluster)) == {STALE}


@pytest.mark.parametrize("fence", ["0", "1"])
def test_a_reset_asks_for_the_new_generation_only_for_the_fence(
    fence: str, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def registrations() -> int:
        _, text = http(f"http://127.0.0.1:{cluster.admin_port}/metrics")
        [line] = re.findall(r'call_seconds_count{call="register"} (\d+)', text.decode())
        return int(line)

    monkeypatch.setenv("KVCOVE_MOONCAKE_QUEUE_FENCE", fence)
    store = new_store()
    assert setup(store, cluster.address) == 0
    assert store.put("k", b"v") == 0
    assert store.remove_all(force=True) >= 0
    assert store.put("k", b"v") == 0
    before = registrations()
    assert store.remove_all(force=True) >= 0
    # The count of voided values, after the reset, asks once more.
    assert registrations() - before == 1 + int(fence)
    store.close()


@pytest.mark.usefixtures("queues")
def test_the_fence_can_be_turned_off(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVCOVE_MOONCAKE_QUEUE_FENCE", "0")
    assert set(late_answers(cluster)) == {0}


@pytest.mark.parametrize(
    ("name", "right"),
    [("KVCOVE_MOONCAKE_QUEUE_FENCE", "1, 0 or auto"), ("KVCOVE_RESET_UNPROVEN", "'raise'")],
)
def test_a_wrong_setting_is_refused_with_what_is_right(
    name: str,
    right: str,
    cluster: Cluster,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv(name, "sometimes")
    assert setup(new_store(), cluster.address) == -600
    assert name in caplog.text
    assert right in caplog.text


@pytest.mark.parametrize("told", ["answer", "raise"])
def test_a_reset_that_is_not_proven_is_told(
    told: str,
    cluster: Cluster,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("KVCOVE_RESET_UNPROVEN", told)
    store = new_store()
    assert setup(store, cluster.address) == 0
    try:
        assert store.put("key", b"value") == 0
        assert store.remove_all(force=True) == 1, "one that is proven answers as ever"
        cluster.kill()
        if told == "answer":
            assert store.remove_all(force=True) < 0
            assert "not proven" in caplog.text
            assert "repeated until it is" in caplog.text
        else:
            with pytest.raises(RuntimeError, match="not proven"):
                store.remove_all(force=True)
    finally:
        store.close()


@pytest.mark.parametrize("told", ["answer", "raise"])
def test_a_reset_that_is_refused_is_told_and_logged(
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("KVCOVE_RESET_UNPROVEN", told)
    monkeypatch.setenv("KVCOVE_TOKEN", str(tmp_path / "acme.toml"))
    cluster = guarded_cluster(tmp_path, acme="read,write", cluster="owner,admin")
    words = [command_path(), "owner", "--master", cluster.address, "--listen", "127.0.0.1:0"]
    words += ["--memory", "64MiB", "--admin", "off", "--socket", str(tmp_path / "s" / "o")]
    words += ["--credentials", str(tmp_path / "servers.toml")]
    owner = Program(words, tmp_path / "owner.log")
    store = new_store()
    try:
        owner.wait_for("knows this owner as number")
        assert setup(store, cluster.address, segment=0) == 0
        assert store.put("key", b"value") == 0
        if told == "answer":
            assert store.remove_all(force=True) == -601
            text = caplog.text
        else:
            with pytest.raises(RuntimeError) as raised:
                store.remove_all(force=True)
            text = str(raised.value)
        assert "code -601" in text
        assert 'the scope "reset"' in text
        assert "refused, and not repeated" in text
        assert store.get("key") == b"", "nothing was voided, so nothing is read"
        assert store.put("other", b"value") < 0
    finally:
        store.close()
        owner.stop()
        cluster.stop()
