# SPDX-License-Identifier: Apache-2.0
"""Several masters through the drop-in's commands, on an etcd of the test's own."""

from __future__ import annotations

import base64
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import (
    Program,
    command_path,
    ends_with_its_test,
    free_port,
    http,
    new_store,
    setup,
    wait_until,
)

import kvcove

MASTER = [sys.executable, "-m", "kvcove.mooncake.master"]
_FETCHED = Path(__file__).resolve().parents[2] / "build" / "etcd" / "etcd"
ETCD = str(_FETCHED) if _FETCHED.exists() else shutil.which("etcd")

pytestmark = pytest.mark.skipif(ETCD is None, reason="no etcd; scripts/etcd.sh fetches it")


class Etcd:
    def __init__(self, log: Path) -> None:
        self.address = f"127.0.0.1:{free_port()}"
        self._peer = f"http://127.0.0.1:{free_port()}"
        self._log = log
        self._data = tempfile.mkdtemp(prefix="kvcove-etcd-", dir="/dev/shm")

    def start(self) -> None:
        client = f"http://{self.address}"
        self.program = Program(
            [
                *(str(ETCD), "--data-dir", f"{self._data}/data", "--log-level", "error"),
                *("--listen-client-urls", client, "--advertise-client-urls", client),
                *("--listen-peer-urls", self._peer, "--initial-advertise-peer-urls", self._peer),
                *("--initial-cluster", f"default={self._peer}"),
            ],
            self._log,
        )

        def answers() -> bool:
            with contextlib.suppress(OSError):
                return http(f"{client}/v3/kv/range", {"key": "YQ=="})[0] == 200
            return False

        assert wait_until(answers), self._log.read_text()

    def close(self) -> None:
        self.program.kill()
        shutil.rmtree(self._data)


class Master:
    """`mooncake_master -enable_ha=true`: the program, and the master that it runs."""

    def __init__(self, etcd: Etcd, directory: Path, *flags: str) -> None:
        self.port, self.admin = free_port(), free_port()
        self.address = f"127.0.0.1:{self.port}"
        self.program = Program(
            [
                *(*MASTER, "-enable_ha=true", f"-etcd_endpoints={etcd.address};{etcd.address}"),
                *("-rpc_address=127.0.0.1", f"-rpc_port={self.port}"),
                *(f"-metrics_port={self.admin}", *flags),
            ],
            directory / f"master-{self.port}.log",
        )

    def ask(self, path: str) -> Any:
        status, answer = http(f"http://127.0.0.1:{self.admin}/{path}")
        assert status == 200, answer
        return answer

    def says(self, path: str, expected: Any) -> bool:
        """Whether it answers so now.

        A master whose role changes opens its admin endpoint anew, and answers nothing in between.
        """
        with contextlib.suppress(OSError, AssertionError):
            return bool(self.ask(path) == expected)
        return False

    def follows(self, leader: Master) -> bool:
        with contextlib.suppress(OSError, AssertionError):
            return bool(self.ask("leader")["leader_address"] == leader.address)
        return False

    def leads(self) -> bool:
        return self.says("role", b"leader")

    def stands_by(self) -> bool:
        return self.says("role", b"standby")

    def signal(self, number: int) -> None:
        """Send it to the master itself first: it does not see the end of the program around it."""
        parent = self.program.process.pid
        children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
        for pid in [*map(int, children), parent]:
            os.kill(pid, number)

    def kill(self) -> None:
        """With SIGKILL: the leadership is not given back."""
        self.signal(signal.SIGKILL)
        self.program.process.wait()


@pytest.fixture
def etcd(tmp_path: Path, run_dir: Path) -> Iterator[Etcd]:
    made = Etcd(tmp_path / "etcd.log")
    try:
        made.start()
        yield made
    finally:
        made.close()


@pytest.fixture
def masters(etcd: Etcd, tmp_path: Path) -> Iterator[list[Master]]:
    """Two of them; the first leads."""
    made = [Master(etcd, tmp_path)]
    assert wait_until(made[0].leads)
    made.append(Master(etcd, tmp_path))
    made[1].program.wait_for("serving at")
    yield made
    for master in made:
        if master.program.process.poll() is None:
            assert master.program.stop() == 0


def test_a_store_goes_on_when_its_leader_is_killed(
    etcd: Etcd, masters: list[Master], tmp_path: Path
) -> None:
    first, second = new_store(), new_store()
    assert setup(first, f"etcd://{etcd.address};{etcd.address}") == 0
    config = {"local_hostname": "127.0.0.1", "metadata_server": "P2PHANDSHAKE"}
    config |= {"protocol": "tcp", "master_server_addr": f"etcd://{etcd.address},{etcd.address}"}
    assert second.setup({**config, "global_segment_size": 0}) == 0
    assert first.put("kept", b"value") == 0
    assert second.get("kept") == b"value"

    masters[0].kill()
    assert wait_until(masters[1].leads)
    assert wait_until(lambda: first.put("next", b"1") == 0)
    # An owner tells a new leader what it holds; until then the key is a miss.
    assert wait_until(lambda: second.get("kept") == b"value")

    # Neither store knew of this one when it began.
    masters.append(Master(etcd, tmp_path))
    masters[2].program.wait_for("serving at")
    masters[1].kill()
    assert wait_until(masters[2].leads)
    assert wait_until(lambda: second.put("last", b"2") == 0)
    for store, key, value in ((second, "kept", b"value"), (first, "next", b"1")):
        assert wait_until(lambda store=store, key=key, value=value: store.get(key) == value), key
    assert wait_until(lambda: first.get("last") == b"2")

    # Until this store has asked the new leader a reset is not proven.
    assert wait_until(lambda: first.remove_all(force=True) >= 0)
    assert [second.get(key) for key in ("kept", "next", "last")] == [b"", b"", b""]
    assert second.put("after", b"3") == 0
    assert first.get("after") == b"3"
    second.close()
    first.close()


def test_a_store_goes_on_when_its_leader_is_frozen(etcd: Etcd, masters: list[Master]) -> None:
    first, second = new_store(), new_store()
    assert setup(first, f"etcd://{etcd.address}") == 0
    assert setup(second, f"etcd://{etcd.address}", segment=0) == 0
    assert first.put("kept", b"value") == 0
    masters[0].signal(signal.SIGSTOP)
    try:
        assert wait_until(masters[1].leads)
        assert wait_until(lambda: second.put("next", b"1") == 0)
        assert wait_until(lambda: second.get("kept") == b"value")
        assert wait_until(lambda: second.remove_all(force=True) >= 0)
        assert first.get("kept") == second.get("next") == b""
    finally:
        masters[0].signal(signal.SIGCONT)
    assert wait_until(masters[0].stands_by)
    assert wait_until(lambda: masters[0].follows(masters[1]))
    assert first.put("after", b"2") == 0
    assert second.get("after") == b"2"
    first.close()
    second.close()


def test_the_commands_find_their_masters(
    etcd: Etcd, masters: list[Master], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mooncake.mooncake_config import MooncakeConfig

    named = f"etcd://{etcd.address};{etcd.address}"
    port, api = free_port(), free_port()
    client = Program(
        [
            *(sys.executable, "-m", "kvcove.mooncake.client", f"-master_server_address={named}"),
            *(f"-port={port}", "-global_segment_size=64MB"),
        ],
        tmp_path / "client.log",
    )
    client.wait_for(f"of kvcove://etcd://{etcd.address}/kvcove-mooncake/mooncake_cluster")
    monkeypatch.delenv("MOONCAKE_CONFIG_PATH", raising=False)
    monkeypatch.setenv("MOONCAKE_MASTER", named)
    monkeypatch.setenv("MOONCAKE_GLOBAL_SEGMENT_SIZE", "0")
    monkeypatch.setenv("MOONCAKE_LOCAL_HOSTNAME", "127.0.0.1")
    service = Program(
        [sys.executable, "-m", "kvcove.mooncake.rest", f"--port={api}"], tmp_path / "rest.log"
    )
    service.wait_for("serving at")
    config = MooncakeConfig.load_from_env()
    store, thin = new_store(), new_store()
    assert setup(store, config.master_server_address, segment=config.global_segment_size) == 0
    assert thin.setup_dummy(0, 0, f"127.0.0.1:{port}") == 0
    assert store.put("key", b"value") == 0

    masters[0].kill()
    url = f"http://127.0.0.1:{api}/api"
    assert wait_until(lambda: http(f"{url}/get/key") == (200, b"value"))
    assert wait_until(lambda: http(f"http://127.0.0.1:{port}/health")[0] == 200)
    assert wait_until(lambda: store.get("key") == thin.get("key") == b"value")
    assert http(f"{url}/put", {"key": "other", "value": "1"}, "PUT")[0] == 200
    assert wait_until(lambda: store.get("other") == b"1")
    store.close()
    thin.close()
    assert service.stop() == 0
    assert client.stop() == 0


def test_masters_say_which_one_leads(masters: list[Master]) -> None:
    leader, standby = masters
    assert leader.leads()
    assert standby.stands_by()
    assert leader.ask("ha_status") == b"serving"
    assert standby.ask("ha_status") == b"standby"
    view = {"leader_address": leader.address, "view_version": 1}
    # Whether anybody leads, and in which term, are two answers of etcd.
    assert wait_until(lambda: standby.says("leader", {"present": True, **view}))
    for master, role, state in ((leader, "leader", "serving"), (standby, "standby", "standby")):
        assert master.ask("leader") == {"present": True, **view}
        assert master.ask("health") == {
            **{"status": "ok", "role": role, "ha_state": state},
            **{"service_ready": master is leader, **view},
        }
        ready = str(master is leader).lower()
        said = f"role={role}, state={state}, service_ready={ready}"
        assert master.ask("metrics/summary").decode().startswith(said)
    assert b"master_key_count" in leader.ask("metrics")
    assert b"kvcove_master_leads 0" in standby.ask("metrics")
    status, said = http(f"http://127.0.0.1:{standby.admin}/get_all_keys")
    assert status == 503
    assert f"the leader is {leader.address}" in said["error"]
    leader.kill()
    assert wait_until(standby.leads)
    assert standby.ask("leader") == {
        "present": True,
        "leader_address": standby.address,
        "view_version": 2,
    }


def test_without_etcd_nobody_leads(masters: list[Master], etcd: Etcd) -> None:
    store = new_store()
    assert setup(store, f"etcd://{etcd.address}") == 0
    assert store.put("key", b"value") == 0
    etcd.program.kill()
    # Until it gives its state up, seven seconds after the last answer of etcd.
    assert wait_until(lambda: masters[0].says("ha_status", b"recovering"))
    nobody = {"present": False, "leader_address": None, "view_version": None}
    assert wait_until(lambda: masters[0].says("leader", nobody))
    etcd.start()
    assert wait_until(lambda: any(master.leads() for master in masters))
    assert wait_until(lambda: store.put("after", b"1") == 0 and store.get("key") == b"value")
    store.close()


def test_setup_waits_for_a_leader_and_says_why_there_is_none(
    etcd: Etcd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refused(named: str, *says: str) -> None:
        caplog.clear()
        store = new_store()
        began = time.monotonic()
        assert setup(store, named) == -600
        assert time.monotonic() - began < 30
        assert all(text in caplog.text for text in says), caplog.text

    named = f"etcd://{etcd.address}"
    monkeypatch.setenv("KVCOVE_SETUP_TIMEOUT_MS", "1000")
    refused(named, "/kvcove-mooncake/mooncake_cluster names no leader: no pool is there")
    refused(f"etcd://127.0.0.1:{free_port()}", "names no leader", "Connection refused")
    monkeypatch.setenv("KVCOVE_SETUP_TIMEOUT_MS", "60000")
    started: list[Master] = []
    threads = [threading.Timer(1.0, lambda: started.append(Master(etcd, tmp_path)))]
    threads[0].start()
    store = new_store()
    assert setup(store, named) == 0
    threads[0].join()
    # Where another cluster's masters are.
    monkeypatch.setenv("KVCOVE_SETUP_TIMEOUT_MS", "1000")
    monkeypatch.setenv("MC_STORE_CLUSTER_ID", "another")
    refused(named, "/kvcove-mooncake/another names no leader: no pool is there")
    monkeypatch.delenv("MC_STORE_CLUSTER_ID")
    started[0].kill()
    assert wait_until(lambda: not _named_leader(etcd))
    refused(named, "a pool is there, and none of its masters leads")
    store.close()


def _named_leader(etcd: Etcd) -> bool:
    key = base64.b64encode(b"/kvcove-mooncake/mooncake_cluster/leader").decode()
    return "kvs" in http(f"http://{etcd.address}/v3/kv/range", {"key": key})[1]


def test_ctrl_c_ends_the_wait_for_an_etcd_that_is_frozen(etcd: Etcd) -> None:
    code = """
import signal, sys, kvcove
signal.signal(signal.SIGINT, signal.default_int_handler)
try:
    print("begun", flush=True)
    kvcove.open(sys.argv[1], timeout=60)
except KeyboardInterrupt:
    print("heard", flush=True)
"""
    etcd.program.process.send_signal(signal.SIGSTOP)
    client = subprocess.Popen(
        [sys.executable, "-c", code, f"kvcove://etcd://{etcd.address}/p"],
        stdout=subprocess.PIPE,
        text=True,
    )
    ends_with_its_test(client)
    assert client.stdout is not None
    assert client.stdout.readline() == "begun\n"
    time.sleep(0.5)
    began = time.monotonic()
    client.send_signal(signal.SIGINT)
    assert client.stdout.readline() == "heard\n"
    print(f"{time.monotonic() - began:.3f} s")
    assert time.monotonic() - began < 15
    assert client.wait(60) == 0


def test_kvcoves_own_commands_and_pools_find_them_too(etcd: Etcd, tmp_path: Path) -> None:
    store = f"etcd://{etcd.address}/kvcove/test"
    master = Program(
        [
            *(command_path(), "master", "--listen", f"127.0.0.1:{free_port()}"),
            *("--store", store, "--admin", "off"),
        ],
        tmp_path / "master.log",
    )
    master.wait_for("this master leads")
    owner = Program(
        [
            *(command_path(), "owner", "--master", store, "--listen", "127.0.0.1:0"),
            *("--memory", "64MiB", "--admin", "off", "--socket", str(tmp_path / "run" / "o.sock")),
        ],
        tmp_path / "owner.log",
    )
    owner.wait_for(f"master {store}")
    with kvcove.open(f"kvcove://{store}?local=0", timeout=30) as pool:
        assert wait_until(lambda: pool.stat().payload_bytes > 0)
    said = subprocess.run(
        [command_path(), "doctor", "--master", store],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert "answers in" in said.stdout
    # A store of the drop-in takes that prefix, too.
    made = new_store()
    assert setup(made, store) == 0
    assert made.put("key", b"value") == 0
    made.close()
    assert owner.stop() == 0
    assert master.stop() == 0
