# SPDX-License-Identifier: Apache-2.0
"""Memory of a GPU, through a driver that the tests bring along."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from conftest import python

CODE = """
import ctypes, logging, os, sys, time
logging.basicConfig(stream=sys.stdout, format="%(message)s")
driver = ctypes.CDLL(os.environ["KVCOVE_CUDA_DRIVER"])
driver.fake_reset.argtypes = [ctypes.c_uint64]
seed = int(os.environ.get("KVCOVE_SEED", str(time.time_ns() % 1000000)))
print("seed", seed, file=sys.stderr)
driver.fake_reset(seed)
driver.fake_base.restype = ctypes.c_uint64
base = driver.fake_base()
driver.cuMemcpyHtoD_v2.argtypes = [ctypes.c_uint64, ctypes.c_char_p, ctypes.c_size_t]
driver.cuMemcpyDtoH_v2.argtypes = [ctypes.c_char_p, ctypes.c_uint64, ctypes.c_size_t]
driver.fake_stream.restype = ctypes.c_void_p
driver.fake_gate.argtypes = driver.fake_open.argtypes = [ctypes.c_void_p]
driver.fake_fill.argtypes = [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_int, ctypes.c_uint64]
driver.fake_fail_after.argtypes = [ctypes.c_long]
driver.fake_violation.restype = ctypes.c_char_p
class Counts(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in (
        "violations", "pageable", "copies", "batches", "launches", "most_grid",
        "most_launch_bytes", "retained", "events", "pinned_bytes", "device_bytes")]
driver.fake_counts.restype = Counts
def sound():
    counts = driver.fake_counts()
    assert (counts.violations, counts.pageable) == (0, 0), driver.fake_violation()
    return counts
def device(offset, size):
    host = ctypes.create_string_buffer(size)
    assert driver.cuMemcpyDtoH_v2(host, base + offset, size) == 0
    return host.raw
from kvcove.mooncake.store import MooncakeDistributedStore
store = MooncakeDistributedStore()
assert store.setup("127.0.0.1", "P2PHANDSHAKE", 64 << 20, 16 << 20, "tcp", "", "embedded:") == 0
"""
ENGINE = "assert driver.cuInit(0) == 0  # as what has memory of a GPU has done\n"


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> str:
    compiler = shutil.which("c++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    made = tmp_path_factory.mktemp("driver") / "libfakecuda.so"
    root = Path(__file__).parents[2]
    source = root / "kvcove/transport/cuda/fake/fake_driver.cc"
    subprocess.run(
        [compiler, "-std=c++23", "-O1", "-shared", "-fPIC", f"-I{root}", "-o", made, source],
        check=True,
    )
    return str(made)


def run(code: str, driver: str) -> str:
    ended = python(CODE + ENGINE + code, KVCOVE_CUDA_DRIVER=driver)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_a_process_without_memory_of_a_gpu_may_still_choose_and_fork(driver: str) -> None:
    code = """
host = ctypes.create_string_buffer(b"host", 4)
assert store.register_buffer(ctypes.addressof(host), 4) == 0
assert store.put_from("k", ctypes.addressof(host), 4) == 0
assert store.register_buffer(base, 64) != 0  # it is nobody's before cuInit
print(driver.fake_begun())
"""
    ended = python(CODE + code, KVCOVE_CUDA_DRIVER=driver)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines()[-1] == "0"


def test_values_come_from_a_gpu_and_go_to_it(driver: str) -> None:
    run(
        """
assert store.register_buffer(base, 1 << 20) == 0
assert driver.cuMemcpyHtoD_v2(base, b"0123456789abcdef", 16) == 0
assert store.put_from("k", base, 16) == 0
assert store.get("k") == b"0123456789abcdef"
assert store.get_into("k", base + 4096, 64) == 16
assert device(4096, 17) == b"0123456789abcdef\\0"
assert store.batch_put_from_multi_buffers(["p"], [[base + 8, base]], [[4, 4]]) == [0]
assert store.get("p") == b"89ab0123"
assert store.batch_get_into_multi_buffers(["p"], [[base + 100, base + 200]], [[3, 50]]) == [8]
assert (device(100, 3), device(200, 5)) == (b"89a", b"b0123")
host = ctypes.create_string_buffer(b"host", 4)
at = ctypes.addressof(host)
assert store.batch_put_from(["h", "d"], [at, base], [4, 4]) == [0, 0]
assert store.get_batch(["h", "d"]) == [b"host", b"0123"]
assert store.batch_put_from_multi_buffers(["mixed"], [[at, base]], [[4, 4]]) == [-600]
assert store.get_into("nothing", base, 16) == -704
assert store.unregister_buffer(base) == 0
assert store.put_from("unregistered", base, 4) == 0
assert sound().retained == 1
""",
        driver,
    )


def test_a_gpu_that_cannot_be_copied_is_refused_once(driver: str) -> None:
    said = run(
        """
driver.fake_fail(1)
assert store.register_buffer(base, 1 << 20) == -1
assert store.put_from("k", base, 16) == -800
driver.fake_fail(0)
assert store.is_exist("k") == 0
sound()
""",
        driver,
    )
    assert said.count("cannot be copied") == 1


def test_without_a_driver_such_addresses_are_no_memory() -> None:
    code = (
        CODE.split("driver = ")[0]
        + "base = 0x7000000000000000\n"
        + (
            "from kvcove.mooncake.store import MooncakeDistributedStore\n"
            "store = MooncakeDistributedStore()\n"
            "assert store.setup('127.0.0.1', 'P2PHANDSHAKE', 64 << 20, 1 << 20, 'tcp', '',"
            " 'embedded:') == 0\n"
            "assert store.put_from('k', base, 16) == -600\n"
        )
    )
    ended = python(code, KVCOVE_CUDA_DRIVER="/nothing/there.so")
    assert ended.returncode == 0, ended.stderr


ROLES = (
    CODE.split("from kvcove.mooncake")[0]
    + ENGINE
    + """
from kvcove import _native
import kvcove
def layers(bytes):
    return [("kv", 0, base, 64, [("block", bytes // 64, 64)])]
shape = _native.EngineShape(
    space="", model_name="m", model="f", kv_dtype="bf16", hashing="sha256", hash_tokens=4,
    tp=1, pp=1, pcp=1, dcp=1, interleave=1, layers="kv", store_tp=0,
    groups=[("full", 4, 0, 1, "HNC")])
worker = _native.WorkerRole(
    shape, tp=0, pp=0, pcp=0, engine="e", threads=1, timeout=30.0, fingerprints=False,
    tier_log=False, preferred_segment="")
"""
)


def test_the_connector_moves_a_gpus_kv_and_tells_what_it_could_not_copy(
    driver: str, tmp_path: Path
) -> None:
    tmp_path.chmod(0o700)
    ended = python(
        ROLES
        + f"""
socket = {str(tmp_path / "pool.sock")!r}
owner = _native.open_owner(master="", memory=64 << 20, listen="", socket_path=socket)
pool = kvcove.open(f"unix:{{socket}}")
"""
        + """
scheduler = _native.SchedulerRole(
    shape, pool, engine="e", pool_address=f"unix:{socket}", versions="none", lookup_budget=0.005,
    lookup_timeout=30.0, hold=60.0, reset_timeout=2.5, load_async=True, lookup=True, save=True,
    save_decoded=False, events=False, closed_on_reset_failure=False, assume_weights=False,
    blocks=16)
worker.register(layers(1024))
hashes = [bytes([i]) * 32 for i in range(3)]
stream = driver.fake_stream(0)
def step():
    plan, _ = scheduler.build_plan()
    worker.begin(plan, stream)
    worker.finish_step(None, stream)
    ended = worker.take_ended()
    report = worker.take_report()
    if report is not None:
        scheduler.on_report(report)
    return ended or ([], [], [])
def matched(request):
    while (found := scheduler.matched(request, 13, 13, "", hashes, 0))[0] is None:
        time.sleep(0.001)
    return found
def load(request, first):
    assert matched(request) == (12, True)
    scheduler.allocated(request, 12, lambda: [[first, first + 1, first + 2, first + 3]])
    while True:
        loaded, failed, _ = step()
        if loaded:
            assert scheduler.load_ended(request)
            scheduler.finished(request)
            return sorted(failed)
kv = b"a" * 64 + b"b" * 64 + b"c" * 64
assert driver.cuMemcpyHtoD_v2(base + 64, kv, 192) == 0
# A busy host may not answer in time what a request that starts asks: then it stores nothing.
while scheduler.stats()["saved_keys"] == 0:
    scheduler.matched("r", 13, 13, "", hashes, 0)
    scheduler.schedule("r", 13, 13, "", hashes, 0, 13, True, lambda: [[1, 2, 3, 4]])
    while scheduler.pending():
        step()
        scheduler.take_unpins()
    scheduler.finished("r")
assert scheduler.stats()["saved_keys"] == 3
assert load("whole", 5) == []
assert device(320, 192) == kv
assert sound().retained == 1
# A step that lasts: what it reads, in the blocks that it gives up, must not be overwritten before.
assert driver.cuMemcpyHtoD_v2(base + 9 * 64, b"o" * 192, 192) == 0
driver.fake_gate(stream)
driver.fake_fill(stream, base + 9 * 64, 0, 192)
began = time.monotonic()
assert matched("behind") == (12, True)
scheduler.allocated("behind", 12, lambda: [[9, 10, 11, 12]])
while time.monotonic() < began + 0.2:
    assert step()[0] == [], "the load is behind the step"
assert device(9 * 64, 192) == b"o" * 192
driver.fake_open(stream)
while step()[0] != ["behind"]:
    pass
assert scheduler.load_ended("behind")
scheduler.finished("behind")
assert device(9 * 64, 192) == kv
# An error of the device, told late: the blocks of that ticket hold nothing.
driver.fake_fail_after(1)
assert load("cut", 9) == [9, 10, 11]
driver.fake_fail_after(-1)
stats = scheduler.stats()
assert (stats["copy_errors"], stats["failed_keys"]) == (3, 3), stats
assert stats["loaded_keys"] == 6, stats
moved = sum(stats[f"device_load_{path}_bytes"] for path in ("batched", "staged", "mapped"))
assert (moved, stats["device_pinned_bytes"]) == (6 * 64, 128 << 20), stats
assert sum(stats[name] for name in stats if name.startswith("device_load_seconds_le_")) == 2
assert load("again", 9) == []
# The pool's memory is pinned as it is populated; from then on the device copies straight out of it.
until = time.monotonic() + 120
while scheduler.stats()["device_segment_pinned_bytes"] == 0:
    assert time.monotonic() < until
    assert load("again", 9) == []  # a rank reports when it has done something
assert driver.cuMemcpyHtoD_v2(base + 5 * 64, b"o" * 192, 192) == 0
before = scheduler.stats()["device_load_in_place_bytes"]
assert load("in place", 5) == []
assert device(5 * 64, 192) == kv
assert scheduler.stats()["device_load_in_place_bytes"] == before + 192
assert worker.unregister()
sound()
pinned = sound().pinned_bytes
worker.close()
assert sound().pinned_bytes < pinned, "the pool's memory is unpinned"
scheduler.close()
pool.close()
owner.close()
""",
        KVCOVE_CUDA_DRIVER=driver,
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr.count("the GPU's driver answers 700 to copies that were under way") == 1


def test_kv_on_a_gpu_that_cannot_be_copied_stops_the_connectors_start(driver: str) -> None:
    run_roles = """
worker.register(layers(64 << 20))
def refused(size, why):
    try:
        worker.register(layers(size))
    except kvcove.Error as error:
        return "KV layer 'kv'" in str(error) and why in str(error)
    return False
assert refused(65 << 20, "answers 1 for address 0x70000000040fffff")  # its end is not there
driver.fake_fail(1)
assert refused(1024, "answers 700")
"""
    ended = python(ROLES + run_roles, KVCOVE_CUDA_DRIVER=driver)
    assert ended.returncode == 0, ended.stderr
