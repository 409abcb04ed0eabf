# SPDX-License-Identifier: Apache-2.0
"""The connector's roles under several Python threads: no call may keep the GIL while it waits for another thread.

A deadlock over the GIL stops every Python thread, a watchdog in Python too, so each test runs in a process of its own that
``faulthandler`` ends from a thread without Python.
"""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from conftest import python

COMMON = """
import ctypes
import faulthandler
import sys
import threading
import time

import kvcove
from kvcove import _native

faulthandler.dump_traceback_later(200, exit=True)
_native.set_log_level("off")
shape = _native.EngineShape(
    space="", model_name="m", model="f", kv_dtype="bf16", hashing="sha256", hash_tokens=4, tp=1, pp=1, pcp=1, dcp=1,
    interleave=1, layers="kv", store_tp=0, groups=[("full", 4, 0, 1, "HNC")])
pool = kvcove.open("embedded:?memory=16MiB")
scheduler = _native.SchedulerRole(
    shape, pool, engine="e", pool_address="", versions="none", lookup_budget=0.005, lookup_timeout=1.0, hold=0.0,
    reset_timeout=2.5, load_async=True, lookup=True, save=True, save_decoded=False, events=False,
    closed_on_reset_failure=False, assume_weights=False, blocks=16)
hashes = [bytes([i]) * 32 for i in range(3)]
# A request stores nothing before a thread of the role has bound its version.
while scheduler.matched("r", 13, 13, "", hashes, 0)[0] is None:
    time.sleep(0.001)


def worker_role():
    worker = _native.WorkerRole(
        shape, tp=0, pp=0, pcp=0, engine="e", threads=1, timeout=1.0, fingerprints=False, tier_log=False,
        preferred_segment="")
    memory = ctypes.create_string_buffer(16 * 64)
    worker.register([("kv", 0, ctypes.addressof(memory), 64, [("block", 16, 64)])])
    return worker, memory


class Answered:
    '''A call that another thread makes as soon as it is asked to; `wait` lets it have the GIL.'''

    def __init__(self, call):
        self._go, self._done, self._call = threading.Event(), threading.Event(), call
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self):
        self._go.wait()
        self._call()
        self._done.set()

    def wait(self):
        self._go.set()
        assert self._done.wait(100), "the other thread's call did not end"
"""


def run(script: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", COMMON + textwrap.dedent(script)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("done\n"), done.stdout


@pytest.mark.parametrize("call", ["stats", "take_stats", "pending", "weights_changing", "reset"])
def test_other_threads_are_answered_while_the_engine_gives_block_tables(call: str) -> None:
    run(f"""
        given = []

        def tables():
            other = Answered(scheduler.{call})
            other.wait()
            given.append([[1, 2, 3, 4]])
            return given[-1]

        scheduler.schedule("r", 13, 13, "", hashes, 0, 13, True, tables)
        assert len(given) == 1
        print("done")
    """)


def test_a_queued_saves_ready_ends_without_the_workers_lock() -> None:
    run("""
        worker, memory = worker_role()
        scheduler.schedule("r", 13, 13, "", hashes, 0, 13, True, lambda: [[1, 2, 3, 4]])
        plan, _ = scheduler.build_plan()
        worker.begin(plan)
        ended = []

        class Ready:
            def __call__(self):
                raise AssertionError("nothing is connected: no save runs")

            def __del__(self):
                other = Answered(worker.take_ended)
                other.wait()
                ended.append(1)

        worker.finish_step(Ready())
        assert not ended
        worker.unregister()
        assert ended
        print("done")
    """)


# With a switch interval of 1000 s a thread has the GIL until it releases it.
@pytest.mark.parametrize(
    "call",
    [
        "scheduler.matched('r', 13, 13, '', hashes, 0)",
        "scheduler.schedule('r', 13, 13, '', hashes, 0, 13, True, lambda: [[1, 2, 3, 4]])",
        "scheduler.build_plan()",
        "scheduler.reset()",
        "scheduler.stats()",
        "worker.begin(plan)",
        "worker.unregister()",
        "worker.wait_for_sync_loads()",
    ],
)
def test_a_call_of_the_pool_releases_the_gil(call: str) -> None:
    run(f"""
        worker, memory = worker_role()
        plan, _ = scheduler.build_plan()
        sys.setswitchinterval(1000)
        turn = threading.Lock()
        turn.acquire()
        ran = []

        def other():
            with turn:
                ran.append(1)

        thread = threading.Thread(target=other)
        thread.start()
        turn.release()
        while not ran:  # the watchdog ends it
            {call}
        thread.join()
        print("done")
    """)


def test_hooks_resets_counters_and_lookups_of_many_threads() -> None:
    run("""
        sys.setswitchinterval(1e-5)
        worker, memory = worker_role()
        failures = []

        def thread_of(work, times):
            def body():
                try:
                    for i in range(times):
                        work(i)
                except Exception as error:
                    failures.append(error)

            return threading.Thread(target=body)

        def hooks(i):
            name = f"r{i}"
            tokens, _ = scheduler.matched(name, 13, 13, "", hashes, 0)
            if tokens:
                scheduler.allocated(name, tokens, lambda: [[5, 6, 7, 8]])
            scheduler.schedule(name, 13, 13, "", hashes, tokens or 0, 13 - (tokens or 0), True, lambda: [[1, 2, 3, 4]])
            plan, _ = scheduler.build_plan()
            worker.begin(plan)
            worker.finish_step(lambda: None)
            worker.take_ended()
            report = worker.take_report()
            if report is not None:
                scheduler.on_report(report)
            scheduler.take_unpins()
            scheduler.finished(name)

        def counters(i):
            scheduler.stats()
            scheduler.take_stats()
            scheduler.pending()
            scheduler.version

        def lookups(i):
            name = f"other{i}"
            scheduler.matched(name, 13, 13, "", hashes, 0)
            scheduler.finished(name)

        threads = [thread_of(hooks, 1500), thread_of(counters, 1500), thread_of(lookups, 1500),
                   thread_of(lambda i: scheduler.reset(), 100)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failures, failures
        print("done")
    """)


def test_a_role_that_is_closed_meanwhile_refuses() -> None:
    run("""
        worker, memory = worker_role()
        begun = threading.Barrier(4)
        failures = []

        def body(call):
            begun.wait()
            try:
                while True:
                    call()
            except kvcove.Error as error:
                if "closed" not in str(error):
                    failures.append(error)

        calls = [scheduler.build_plan, lambda: scheduler.matched("r", 13, 13, "", hashes, 0), worker.take_report]
        threads = [threading.Thread(target=body, args=(call,)) for call in calls]
        for thread in threads:
            thread.start()
        begun.wait()
        scheduler.close()
        worker.close()
        scheduler.close()
        worker.close()
        for thread in threads:
            thread.join()
        assert not failures, failures
        print("done")
    """)


def test_a_rank_is_connected_beside_the_models_thread() -> None:
    run("""
        import pathlib
        import socket
        import tempfile

        from kvcove import engines

        path = pathlib.Path(tempfile.mkdtemp()) / "pool.sock"
        silent = socket.socket(socket.AF_UNIX)
        silent.bind(str(path))
        silent.listen(8)
        scheduler = _native.SchedulerRole(
            shape, pool, engine="e", pool_address=f"unix:{path}", versions="none", lookup_budget=0.005,
            lookup_timeout=1.0, hold=0.0, reset_timeout=2.5, load_async=True, lookup=True, save=True,
            save_decoded=False, events=False, closed_on_reset_failure=False, assume_weights=False, blocks=16)
        while scheduler.matched("r", 13, 13, "", hashes, 0)[0] is None:
            time.sleep(0.001)
        worker, memory = worker_role()
        scheduler.schedule("r", 13, 13, "", hashes, 0, 13, True, lambda: [[1, 2, 3, 4]])
        plan, _ = scheduler.build_plan()
        began = time.monotonic()
        worker.begin(plan)
        worker.finish_step(None)
        assert time.monotonic() - began < 0.9, "it has waited for the pool, a second"
        assert scheduler.stats()["pinned_blocks"] == 3
        silent.close()
        path.unlink()
        owner = engines.Embedded(path, 16 << 20, "")
        # No further plan is needed. (The save is of another pool's generation: it ends, that is all.)
        while scheduler.stats()["pinned_blocks"] > 0:
            report = worker.take_report()
            if report is not None:
                scheduler.on_report(report)
            time.sleep(0.01)
        worker.close()
        print("done")
    """)


ENDS_MEANWHILE = """
import threading

import kvcove

pool = kvcove.open({address!r})
session = pool.session("ends-meanwhile")
value = bytes(1 << 20)
began = threading.Barrier(5)


def calls(key):
    began.wait()
    while True:
        session.put([key], [value])
        session.get([key, "missing"])
        session.remove([key])
        try:
            session.put([key], [])
        except kvcove.InvalidError:
            pass


for i in range(4):
    threading.Thread(target=calls, args=(f"k{{i}}",), daemon=True).start()
began.wait()
session.exists(["k0"] * 1000)
print("done")
"""


@pytest.mark.parametrize("form", ["embedded", "host"])
def test_a_process_ends_well_while_daemon_threads_call(
    form: str, request: pytest.FixtureRequest
) -> None:
    address = "embedded:?memory=64MiB"
    if form == "host":
        address = "unix:" + request.getfixturevalue("serve")
    for _ in range(5):
        done = python(ENDS_MEANWHILE.format(address=address))
        assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


def test_the_extension_takes_the_gil_back_by_its_own_guard_only() -> None:
    native = Path(__file__).parents[1] / "kvcove" / "native"
    bare = [path.name for path in native.iterdir() if "nb::gil_scoped" in path.read_text()]
    assert bare == [], "gil.h has the guards that outlive the interpreter"
