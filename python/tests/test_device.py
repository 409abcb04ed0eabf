# SPDX-License-Identifier: Apache-2.0
"""Memory of a GPU, through a driver that the tests bring along."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from conftest import python

CODE = """
import ctypes, logging, os, sys
logging.basicConfig(stream=sys.stdout, format="%(message)s")
driver = ctypes.CDLL(os.environ["KVCOVE_CUDA_DRIVER"])
driver.fake_base.restype = ctypes.c_uint64
driver.cuInit(0)
base = driver.fake_base()
driver.cuMemcpyHtoD_v2.argtypes = [ctypes.c_uint64, ctypes.c_char_p, ctypes.c_size_t]
driver.cuMemcpyDtoH_v2.argtypes = [ctypes.c_char_p, ctypes.c_uint64, ctypes.c_size_t]
driver.cuCtxPushCurrent_v2.argtypes = [ctypes.c_void_p]
driver.cuCtxPushCurrent_v2(0x1234)
from kvcove.mooncake.store import MooncakeDistributedStore
store = MooncakeDistributedStore()
assert store.setup("127.0.0.1", "P2PHANDSHAKE", 64 << 20, 16 << 20, "tcp", "", "embedded:") == 0
def device(offset, size):
    host = ctypes.create_string_buffer(size)
    assert driver.cuMemcpyDtoH_v2(host, base + offset, size) == 0
    return host.raw
"""


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> str:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    made = tmp_path_factory.mktemp("driver") / "libfakecuda.so"
    source = Path(__file__).with_name("fake_driver.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(made), str(source)], check=True)
    return str(made)


def run(code: str, driver: str) -> str:
    ended = python(CODE + code, KVCOVE_CUDA_DRIVER=driver)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


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
