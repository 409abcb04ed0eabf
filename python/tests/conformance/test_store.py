# SPDX-License-Identifier: Apache-2.0
"""What programs that use ``mooncake.store`` rely on: names, arguments, values, codes.

Runs on kvcove's forms of pool; with KVCOVE_TEST_RIVAL=1, in an environment that has the rival's
wheel, on that. ``differs`` marks where the two are not alike: docs/mooncake.md says why.
"""

from __future__ import annotations

import ctypes
import inspect
import threading
import time
from typing import Any

import pytest
from conftest import (
    MIB,
    differs,
    free_port,
    http,
    new_store,
    original,
    own,
    setup,
    since,
    until,
    wait_until,
)

cluster_only = "embedded"


def buffer_of(content: bytes | int) -> tuple[Any, int]:
    buffer = ctypes.create_string_buffer(
        content, content if isinstance(content, int) else len(content)
    )
    return buffer, ctypes.addressof(buffer)


def config(**fields: Any) -> Any:
    from mooncake.store import ReplicateConfig

    made = ReplicateConfig()
    for name, value in fields.items():
        setattr(made, name, value)
    return made


# ---- names

METHODS = """
setup setup_dummy init_all close health_check get_hostname put put_parts put_batch upsert
upsert_parts upsert_batch get get_batch get_buffer batch_get_buffer register_buffer
unregister_buffer put_from put_from_with_metadata batch_put_from batch_put_from_multi_buffers
upsert_from batch_upsert_from get_into batch_get_into batch_get_into_multi_buffers get_into_ranges
alloc_from_mem_pool batch_put_session_start batch_put_from_multi_buffer_ranges
batch_put_session_end batch_put_session_revoke batch_get_session_start
batch_get_into_multi_buffer_ranges batch_get_session_end is_exist batch_is_exist get_size
get_replica_desc batch_get_replica_desc remove batch_remove remove_by_regex remove_all
batch_replica_clear create_copy_task create_move_task query_task mount_segment unmount_segment
allocate_and_mount_segment unmount_and_free_segment unmount_local_disk_segment batch_get_tensor
batch_get_tensor_into batch_get_tensor_into_cuda batch_get_tensor_with_parallelism
batch_get_tensor_with_parallelism_into batch_get_tensor_with_tp batch_get_tensor_with_tp_into
batch_pub_tensor batch_pub_tensor_with_tp batch_put_tensor batch_put_tensor_from
batch_put_tensor_with_parallelism batch_put_tensor_with_parallelism_from batch_put_tensor_with_tp
batch_put_tensor_with_tp_from batch_upsert_pub_tensor batch_upsert_tensor batch_upsert_tensor_from
batch_upsert_tensor_with_parallelism batch_upsert_tensor_with_parallelism_from get_tensor
get_tensor_into get_tensor_into_cuda get_tensor_with_parallelism get_tensor_with_parallelism_into
get_tensor_with_tp get_tensor_with_tp_into load_tensor_from_safetensor pub_tensor
pub_tensor_with_tp put_tensor put_tensor_from put_tensor_with_parallelism
put_tensor_with_parallelism_from put_tensor_with_tp put_tensor_with_tp_from
save_tensor_to_safetensor upsert_pub_tensor upsert_tensor upsert_tensor_from
upsert_tensor_with_parallelism upsert_tensor_with_parallelism_from
""".split()


# The original, from this version on.
SPLIT_BY_TP_ALONE = (original() or (0,)) >= (0, 3, 14)


def test_every_method_is_there() -> None:
    from mooncake.store import MooncakeDistributedStore

    assert len(METHODS) == 96
    assert [
        name
        for name in METHODS
        if not callable(getattr(MooncakeDistributedStore, name, None))
        and ("_parallelism" not in name or not SPLIT_BY_TP_ALONE)
    ] == []


def test_every_class_is_there() -> None:
    import mooncake.store as module

    names = """
BufferHandle BufferLease BufferPool Descriptor DiskDescriptor MemoryDescriptor
MooncakeHostMemAllocator ObjectDataType ParallelAxis QueryTaskResponse ReadTarget
ReplicaDescriptor ReplicaStatus ReplicateConfig SoftPinAction TaskStatus TaskType
TensorParallelism
""".split()
    if SPLIT_BY_TP_ALONE:
        names = [
            name
            for name in names
            if name not in ("ParallelAxis", "ReadTarget", "TensorParallelism")
        ]
    assert [name for name in names if not hasattr(module, name)] == []
    assert int(module.ObjectDataType.GENERAL.value) == 9
    assert int(module.ReplicaStatus.COMPLETE.value) == 3
    assert int(module.SoftPinAction.DISABLE.value) == 2
    assert int(module.TaskStatus.SUCCESS.value) == 3
    assert int(module.TaskType.REPLICA_MOVE.value) == 1


def test_the_configuration_of_a_put() -> None:
    fresh = config()
    seen = {
        name: getattr(fresh, name)
        for name in ("replica_num", "nof_replica_num", "dfs_replica_num", "soft_pin_ttl_ms")
    }
    assert seen == {
        "replica_num": 1,
        "nof_replica_num": 0,
        "dfs_replica_num": 0,
        "soft_pin_ttl_ms": None,
    }
    assert fresh.with_hard_pin is False
    assert fresh.preferred_segment == ""
    assert fresh.preferred_segments == []
    assert fresh.prefer_alloc_in_same_node is False
    assert fresh.group_ids is None
    for bad in (-1, 2**64):
        with pytest.raises(TypeError):
            fresh.soft_pin_ttl_ms = bad


@differs("names of arguments in signatures")
def test_arguments_have_their_names() -> None:
    from mooncake.store import MooncakeDistributedStore as Store

    def names(method: str) -> list[str]:
        return list(inspect.signature(getattr(Store, method)).parameters)[1:]

    assert names("put") == ["key", "value", "config"]
    assert names("batch_put_from") == ["keys", "buffer_ptrs", "sizes", "config"]
    assert names("batch_get_into_multi_buffers") == [
        "keys",
        "all_buffer_ptrs",
        "all_sizes",
        "prefer_alloc_in_same_node",
    ]
    assert names("remove_by_regex") == ["regex_pattern", "force"]
    assert names("get_tensor_with_tp") == ["key", "tp_rank", "tp_size", "split_dim"]
    assert names("setup_dummy") == ["mem_pool_size", "local_buffer_size", "server_address"]


# ---- life cycle


def test_before_setup() -> None:
    store = new_store()
    assert store.get("k") == b""
    assert store.health_check() == 1
    assert store.close() == 0


@differs("most calls before `setup`, after `close`")
def test_every_call_before_setup_and_after_close_answers() -> None:
    buffer, address = buffer_of(64)
    store = new_store()
    for _ in range(2):
        unset = -1010
        assert store.put("k", b"1") == unset
        assert store.put_batch(["a", "b"], [b"1", b"2"]) == unset
        assert store.put_parts("k", b"1", b"2") == unset
        assert store.upsert("k", b"1") == unset
        assert store.get_batch(["a", "b"]) == [b"", b""]
        assert store.get_buffer("k") is None
        assert store.is_exist("k") == unset
        assert store.batch_is_exist(["a", "b"]) == [unset] * 2
        assert store.get_size("k") == unset
        assert store.register_buffer(address, 64) == unset
        assert store.unregister_buffer(address) == unset
        assert store.put_from("k", address, 8) == unset
        assert store.batch_put_from(["a"], [address], [8]) == [unset]
        assert store.batch_get_into(["a"], [address], [8]) == [unset]
        assert store.batch_get_into_multi_buffers(["a"], [[address]], [[8]]) == [unset]
        assert store.remove("k") == unset
        assert store.remove_all() == store.remove_all(True) == unset
        assert store.remove_by_regex("x") == unset
        assert store.get_replica_desc("k") == []
        assert store.batch_get_replica_desc(["k"]) == {}
        assert store.batch_replica_clear(["k"]) == []
        assert store.get_hostname() == ""
        assert store.create_copy_task("k", ["x"])[1] == unset
        assert store.query_task((1, 2)) == (None, -1400)
        assert store.allocate_and_mount_segment(1 << 20)["ret"] == unset
        assert store.batch_put_session_start(["a"], [8]) == [unset]
        assert store.batch_get_session_start(["a"]) == [unset]
        assert store.alloc_from_mem_pool(8) == 0
        assert store.get_tensor("k") is None
        assert store.health_check() == 1
        assert setup(store, "embedded:") == 0
        assert store.close() == 0
    del buffer


def test_setup_takes_positions_names_and_a_dict(cluster: Any) -> None:
    for form in range(3):
        store = new_store()
        if form == 0:
            answer = setup(store, cluster.address)
        elif form == 1:
            answer = store.setup(
                "127.0.0.1",
                "P2PHANDSHAKE",
                16 * MIB,
                MIB,
                "tcp",
                "",
                cluster.address,
                tenant_id="default",
            )
        else:
            answer = store.setup(
                {
                    "local_hostname": "127.0.0.1",
                    "metadata_server": "P2PHANDSHAKE",
                    "global_segment_size": "16 MB",
                    "local_buffer_size": "16MB",
                    "master_server_addr": cluster.address,
                }
            )
        assert answer == 0
        assert store.health_check() == 0
        assert store.put("key", b"value") == 0
        assert store.get("key") == b"value"
        assert store.close() == 0
        assert store.close() == 0
        assert store.get("key") == b""
        assert store.health_check() == 1


def test_setup_refuses(cluster: Any) -> None:
    assert setup(new_store(), "127.0.0.1:1") in (-600, -1)
    with pytest.raises(TypeError):
        new_store().setup("127.0.0.1", "P2PHANDSHAKE")
    missing = {"metadata_server": "P2PHANDSHAKE", "master_server_addr": cluster.address}
    assert new_store().setup(missing) == -600
    half = {"local_hostname": "127.0.0.1", "local_buffer_size": "50%", **missing}
    assert new_store().setup(half) == -600
    protocol = new_store().setup(
        "127.0.0.1", "P2PHANDSHAKE", MIB, MIB, "carrier-pigeon", "", cluster.address
    )
    assert protocol == -1


@differs("`setup` twice")
def test_setup_twice_is_once(store: Any) -> None:
    assert store.put("k", b"1") == 0
    assert setup(store, "127.0.0.1:1") == 0
    assert store.get("k") == b"1"


def test_the_segment_has_a_name(store: Any) -> None:
    host, _, port = store.get_hostname().rpartition(":")
    assert host == "127.0.0.1"
    assert 0 < int(port) < 65536


def test_a_requester_without_a_segment_reads_what_an_owner_has(cluster: Any, run_dir: Any) -> None:
    owner, requester = new_store(), new_store()
    assert setup(owner, cluster.address) == 0
    assert setup(requester, cluster.address, segment=0) == 0
    assert requester.put("k", b"from the requester") == 0
    assert owner.get("k") == b"from the requester"
    assert owner.put("q", b"from the owner") == 0
    assert requester.get("q") == b"from the owner"
    assert requester.is_exist("q") == 1
    requester.close()
    assert owner.get("k") == b"from the requester"
    owner.close()


def test_local_buffer_of_nothing_takes_no_bytes(cluster: Any) -> None:
    store = new_store()
    assert setup(store, cluster.address, local=0) == 0
    assert store.put("k", b"1") == -600
    buffer, address = buffer_of(b"12345678")
    store.register_buffer(address, 8)
    assert store.put_from("k", address, 8) == 0
    assert store.get_into("k", address, 8) == 8
    store.close()
    del buffer


# ---- bytes


def test_put_and_get(store: Any) -> None:
    assert store.put("k", b"hello") == 0
    assert store.get("k") == b"hello"
    assert store.get_size("k") == 5
    assert store.is_exist("k") == 1
    assert store.get("nothing") == b""
    assert store.is_exist("nothing") == 0
    assert store.get_size("nothing") == -704


def test_what_is_there_stays(store: Any) -> None:
    assert store.put("k", b"old") == 0
    assert store.put("k", b"new") == 0
    assert store.get("k") == b"old"


def test_any_buffer_is_a_value(store: Any) -> None:
    numpy = pytest.importorskip("numpy")
    assert store.put("array", bytearray(b"12")) == 0
    assert store.put("view", memoryview(b"123")) == 0
    assert store.put("numpy", numpy.arange(4, dtype=numpy.uint8)) == 0
    assert store.get_batch(["array", "view", "numpy"]) == [b"12", b"123", b"\0\1\2\3"]
    for wrong in ("text", 3, None, [1, 2]):
        with pytest.raises(TypeError):
            store.put("wrong", wrong)
    with pytest.raises(TypeError):
        store.is_exist(3)


@differs("a strided memoryview")
def test_a_strided_value_is_what_it_says(store: Any) -> None:
    assert store.put("strided", memoryview(b"123456")[::2]) == 0
    assert store.get("strided") == b"135"
    assert store.get_batch([]) == []


def test_values_that_are_refused(store: Any) -> None:
    assert store.put("", b"1") == -600
    assert store.put("k", b"") == -600
    assert store.put("k", bytes(17 * MIB)) == -600
    assert store.is_exist("k") == 0
    assert store.is_exist("") == 0
    assert store.get("") == b""
    assert store.get_size("") == -704
    assert store.put("k", b"1", config(replica_num=0)) == -600
    assert store.put("k", b"1", config(prefer_alloc_in_same_node=True)) == -600
    assert store.put("k", b"1", config(group_ids=["a", "b"])) == -600
    assert store.put("k", b"1", config(soft_pin_ttl_ms=1000)) == -600


def test_bytes_are_keys(store: Any) -> None:
    long = b"long" * 250
    for key in (b"k", "schl\u00fcssel".encode(), b"not\xffUTF-8", long):
        assert store.put(key, b"1") == 0
        assert store.is_exist(key) == 1
        assert store.upsert(key, b"22") == 0
        assert store.get(key) == b"22"
        assert store.get_batch([key]) == [b"22"]
    assert store.get("k") == store.get("schl\u00fcssel") == store.get(long.decode()) == b"22"
    assert store.put_batch([b"a", "b"], [b"1", b"2"]) == 0
    assert store.batch_is_exist(["a", b"b"]) == [1, 1]
    buffer, address = buffer_of(b"0123456789")
    assert store.batch_put_from([b"from"], [address], [10]) == [0]
    assert store.get("from") == b"0123456789"
    assert store.put("pinned", b"1", config(with_hard_pin=True)) == 0
    assert store.put(b"pinned too", b"1", config(with_hard_pin=True)) == 0
    assert list(store.batch_get_replica_desc([b"a"])) == ["a"]
    assert store.batch_replica_clear([b"pinned too"]) == ["pinned too"]
    assert store.remove_by_regex(b"^from$", True) == 1
    assert store.batch_remove([b"k", b"b"], True) == [0, 0]
    del buffer


def test_bytearrays_are_keys(store: Any) -> None:
    key = bytearray(b"array")
    assert store.put(key, b"1") == 0
    assert store.is_exist(key) == store.is_exist("array") == 1
    assert store.get(key) == store.get_batch([key])[0] == b"1"
    assert store.get_size(key) == 1
    assert store.put_batch([bytearray(b"a"), b"b"], [b"1", b"2"]) == 0
    assert store.batch_is_exist(["a", bytearray(b"b")]) == [1, 1]
    assert list(store.batch_get_replica_desc([key])) == ["array"]
    assert store.upsert(key, b"22") == 0
    assert store.get("array") == b"22"
    assert len(store.get_replica_desc(key)) == len(store.get_replica_desc(b"array")) == 1
    assert store.batch_remove([key, bytearray(b"a")], True) == [0, 0]
    for wrong in (memoryview(b"array"), 1, None):
        with pytest.raises(TypeError):
            store.is_exist(wrong)


def test_any_text_is_a_key(store: Any) -> None:
    keys = ["nul\0nul", "line\nline", "schlüssel/ключ", "a" * 700, " ", "*?[x]"]
    for i, key in enumerate(keys):
        assert store.put(key, str(i).encode()) == 0
    assert [store.get(key) for key in keys] == [str(i).encode() for i in range(len(keys))]
    assert store.batch_is_exist(keys) == [1] * len(keys)


def test_a_lone_surrogate_is_in_no_key(store: Any) -> None:
    with pytest.raises(TypeError):
        store.put("a\ud800", b"value")
    with pytest.raises(TypeError):
        store.get("a\ud800")
    with pytest.raises(TypeError):
        store.batch_is_exist(["a", "\udcff"])
    with pytest.raises(TypeError):
        store.remove_by_regex("\udcff")


def test_long_keys(store: Any) -> None:
    keys = ["x" * 5000, "x" * 4999 + "y", "kvcove-long-key-sha256:" + "0" * 64]
    for i, key in enumerate(keys):
        assert store.put(key, str(i).encode()) == 0
    assert [store.get(key) for key in keys] == [b"0", b"1", b"2"]
    assert store.batch_is_exist(keys) == [1, 1, 1]
    assert store.batch_remove(keys, force=True) == [0, 0, 0]
    assert store.batch_is_exist(keys) == [0, 0, 0]


def test_parts(store: Any) -> None:
    assert store.put_parts("k", b"12", bytearray(b"34"), memoryview(b"5")) == 0
    assert store.get("k") == b"12345"
    assert store.upsert_parts("k", b"6", b"7") == 0
    assert store.get("k") == b"67"


def test_batches(store: Any) -> None:
    assert store.put_batch(["a", "b"], [b"1", b"22"]) == 0
    assert store.get_batch(["a", "nothing", "b"]) == [b"1", b"", b"22"]
    assert store.put_batch(["c"], [b"1", b"2"]) == -600
    assert store.put_batch(["d", "e"], [b"1", b""]) == -600
    assert store.put_batch(["f", "f"], [b"1", b"1"]) == 0
    assert store.batch_is_exist(["a", "nothing", "b"]) == [1, 0, 1]
    assert store.batch_is_exist([]) == []
    assert store.put_batch([], []) == 0


def test_buffers(store: Any) -> None:
    store.put("k", b"hello")
    handle = store.get_buffer("k")
    assert (len(handle), handle.size(), bytes(memoryview(handle))) == (5, 5, b"hello")
    assert ctypes.string_at(handle.ptr(), 5) == b"hello"
    assert store.get_buffer("nothing") is None
    first, second = store.batch_get_buffer(["k", "nothing"])
    assert first.size() == 5
    assert second is None


def test_upsert_replaces(store: Any) -> None:
    assert store.upsert("k", b"111") == 0
    assert store.get("k") == b"111"
    assert store.upsert("k", b"222") == 0
    assert store.get("k") == b"222"
    assert store.upsert("k", b"a longer one") == 0
    assert store.get("k") == b"a longer one"
    assert store.upsert_batch(["k", "new"], [b"x", b"y"]) == 0
    assert store.get_batch(["k", "new"]) == [b"x", b"y"]


def test_an_upsert_replaces_what_others_have_put(cluster: Any, run_dir: Any) -> None:
    one, two = new_store(), new_store()
    assert setup(one, cluster.address) == setup(two, cluster.address) == 0
    assert one.put("k", b"of one") == 0
    assert two.upsert("k", b"of two") == 0
    assert one.get("k") == two.get("k") == b"of two"
    assert one.upsert_batch(["k", "new"], [b"again", b"first"]) == 0
    assert two.get_batch(["k", "new"]) == [b"again", b"first"]
    one.close()
    two.close()


@own("the metric is kvcove's")
def test_an_upsert_asks_for_a_removal_only_where_there_is_something(
    cluster: Any, run_dir: Any
) -> None:
    def removals() -> float:
        text = http(f"http://127.0.0.1:{cluster.admin_port}/metrics")[1].decode()
        (line,) = [line for line in text.splitlines() if "_count{" in line and '"remove"' in line]
        return float(line.rpartition(" ")[2])

    store = new_store()
    assert setup(store, cluster.address) == 0
    keys = [f"k{i}" for i in range(8)]
    assert store.upsert_batch(keys, [b"1"] * 8) == 0
    assert removals() == 0
    assert store.upsert_batch(keys, [b"2"] * 8) == 0
    assert removals() == 1
    assert store.get_batch(keys) == [b"2"] * 8
    store.close()


def test_a_read_never_mixes_two_upserts(store: Any) -> None:
    size = 256 << 10
    store.upsert("k", bytes([0]) * size)
    stop = threading.Event()
    mixed: list[Any] = []

    def read() -> None:
        while not stop.is_set():
            value = store.get("k")
            if value and (len(value) != size or value.count(value[0]) != size):
                mixed.append(value[:10])

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    for i in range(60):
        assert store.upsert("k", bytes([i]) * size) == 0
    stop.set()
    for reader in readers:
        reader.join()
    assert mixed == []
    assert store.get("k") == bytes([59]) * size


def test_upserts_at_once_all_take_place(store: Any) -> None:
    codes: list[int] = []

    def write(n: int) -> None:
        codes.extend(store.upsert("k", bytes([n]) * 1000) for _ in range(20))

    writers = [threading.Thread(target=write, args=(n,)) for n in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    # What answers 0 was the value at that moment; what was not says so.
    assert set(codes) <= {0, -703}
    assert codes.count(0) >= 40
    value = store.get("k")
    assert len(value) == 1000
    assert value.count(value[0]) == 1000


# ---- addresses


def test_registering(store: Any) -> None:
    buffer, address = buffer_of(4096)
    assert store.register_buffer(address, 4096) == 0
    assert store.register_buffer(address, 4096) == -600
    assert store.register_buffer(0, 4096) == -600
    assert store.register_buffer(address + 8, 0) == -600
    assert store.unregister_buffer(address) == 0
    assert store.unregister_buffer(address) in (-600, -12), "0.3.14 has another code"
    del buffer


@differs("addresses that are no memory")
def test_memory_that_is_not_there_is_not_registered(store: Any) -> None:
    import mmap

    memory = mmap.mmap(-1, 4 * mmap.PAGESIZE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    assert store.register_buffer(address, 1 << 46) == -600
    assert store.register_buffer(8, 64) == -600
    # The first byte of a page is mapped with all of it.
    assert store.register_buffer(address + 1, 4 * mmap.PAGESIZE - 1) == 0
    assert store.unregister_buffer(address + 1) == 0


@differs("memory without rights")
def test_memory_is_registered_with_the_rights_that_it_has(store: Any) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    none, readable, private = 0, 1, 0x22
    page = 4096
    closed = libc.mmap(None, page, none, private, -1, 0)
    assert store.register_buffer(closed, page) == -600
    at = libc.mmap(None, page, readable, private, -1, 0)
    assert store.register_buffer(at, page) == 0
    assert store.put_from("k", at, 8) == 0
    assert store.get_into("k", at, 8) == -600
    assert store.batch_get_into_multi_buffers(["k"], [[at, at + 8]], [[4, 4]]) == [-600]
    assert store.get_into_ranges([at], [["k"]], [[[0]]], [[[0]]], [[[8]]]) == [[[-600]]]
    assert store.batch_get_session_start(["k"]) == [0]
    assert store.batch_get_into_multi_buffer_ranges(["k"], [[at]], [[8]], [[0]]) == [-600]
    assert store.unregister_buffer(at) == 0


@differs("arrays of Python objects")
def test_arrays_of_python_objects_are_refused(store: Any) -> None:
    numpy = pytest.importorskip("numpy")
    objects = numpy.array([1, "a", None, "b"], object)
    for value in (objects, objects[::2]):
        for call in (
            lambda value=value: store.put("k", value),
            lambda value=value: store.put_parts("k", b"x", value),
            lambda value=value: store.upsert_batch(["k"], [value]),
        ):
            with pytest.raises(TypeError, match="holds Python objects"):
                call()
    assert store.is_exist("k") == 0


@since("0.3.14")
def test_a_probe_says_what_is_there_and_leases_nothing(store: Any) -> None:
    keys = ["a", "b", "c", "d"]
    assert store.put_batch(keys, [b"1"] * 4) == 0
    assert (store.probe_key("a"), store.probe_key("missing")) == (1, 0)
    assert store.batch_probe_key([*keys, "missing"]) == [1, 1, 1, 1, 0]
    assert store.batch_remove(keys) == [0] * 4, "nothing is leased"
    assert store.put_batch(keys, [b"1"] * 4) == 0
    asked = [*keys, "e", "f"]
    assert store.batch_probe_key(asked, "LastHitOnly", 2) == [1, 1, 1, 1, 0, 0]
    assert store.batch_remove(keys) == [0, 0, -706, -706], "the last group that is there has leases"
    assert store.batch_probe_key(["c", "d", "e"], "LastHitOnly", 2) == [-600] * 3
    assert store.batch_probe_key(["c"], policy="LastHitOnly", candidate_size=0) == [-600]
    with pytest.raises(ValueError, match="FirstHitOnly"):
        store.batch_probe_key(["c"], "FirstHitOnly")
    assert new_store().batch_probe_key(["c"]) in ([-1010], [-600])


@since("0.3.14")
def test_ranges_are_read_from_a_snapshot(store: Any) -> None:
    from mooncake.store import RangedReadSnapshot

    buffer, at = buffer_of(16)
    assert store.register_buffer(at, 16) == 0
    assert store.put_batch(["a", "b"], [b"0123456789", b"abcdef"]) == 0
    snapshot = store.prepare_get_into_ranges_snapshot(["a", "late"])
    assert isinstance(snapshot, RangedReadSnapshot)
    assert store.put("late", b"was not there") == 0
    assert store.get_into_ranges_from_snapshot(
        snapshot,
        [at],
        [["a", "late", "b"]],
        [[[0, 4], [8], [12]]],
        [[[2, 8], [0], [0]]],
        [[[3, 2], [4], [2]]],
    ) == [[[3, 2], [4], [-600]]]
    assert buffer.raw == b"234\0" + b"89\0\0" + b"was " + bytes(4)
    assert store.get_into_ranges_from_snapshot(snapshot, [at], [["a"]], [[[0]]], [], []) == [
        [[-600]]
    ]
    with pytest.raises((ValueError, RuntimeError)):  # another store's, or of one that is not set up
        new_store().get_into_ranges_from_snapshot(
            snapshot, [at], [["a"]], [[[0]]], [[[0]]], [[[1]]]
        )
    with pytest.raises((TypeError, ValueError)):
        store.get_into_ranges_from_snapshot(None, [at], [["a"]], [[[0]]], [[[0]]], [[[1]]])


@since("0.3.14")
def test_fields_of_a_configuration_that_mean_nothing_here_are_checked(store: Any) -> None:
    made = config(session_ids=["s"], residency_affinity_ids=["r"], preferred_hca_names=["mlx5_0"])
    made.per_key_preferred_hca_names = [["mlx5_0"]]
    assert store.put("k", b"v", made) == 0
    made.session_ids = ["s", "t"]
    assert store.put("l", b"v", made) == -600
    for name, wrong in (("session_ids", "s"), ("preferred_hca_names", [1])):
        with pytest.raises(TypeError):
            setattr(made, name, wrong)


@pytest.mark.parametrize("way", ["positional", "by name", "dict", "environment"])
@since("0.3.14")
def test_a_master_inside_the_process(
    way: str, run_dir: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = new_store()
    nobody = ("localhost", "P2PHANDSHAKE", 16 * MIB, MIB, "tcp", "", "127.0.0.1:1")
    names = ("local_hostname", "metadata_server", "global_segment_size", "local_buffer_size")
    if way == "positional":
        more = (None, False, "", "default", False, 9300, True)
        assert store.setup(*nobody, *more) == 0
    elif way == "by name":
        assert store.setup(*nobody, enable_embedded_master=True) == 0
    elif way == "dict":
        known = {
            **dict(zip(names, nobody, strict=False)),
            "ssd_prefetch_cooldown_sec": 1,
            "ssd_prefetch_dedup_ttl_sec": 1,
            "egm_numa_nodes": "",
            "enable_embedded_master": "true",
        }
        assert store.setup(known) == 0
    else:
        monkeypatch.setenv("MOONCAKE_ENABLE_EMBEDDED_MASTER", "1")
        assert store.setup(*nobody) == 0
    assert store.put("k", b"v") == 0
    assert store.get("k") == b"v"
    store.close()
    with_egm = {**dict(zip(names, nobody, strict=False)), "enable_egm_store_pool": True}
    assert new_store().setup(with_egm) == -600


def test_no_array_is_copied_where_none_is_counted() -> None:
    numpy = pytest.importorskip("numpy")
    from mooncake._fast_copy import concat_arrays_into

    target, at = buffer_of(4)
    arrays = [numpy.arange(1, 3, dtype="u1"), numpy.arange(3, 5, dtype="u1")]
    assert concat_arrays_into(arrays, at, 4, 0, 0) == 0
    assert target.raw == bytes(4)
    assert concat_arrays_into(arrays, at, 4, 1, 1) == 2
    assert target.raw == b"\3\4\0\0"
    assert concat_arrays_into(arrays, at, 4, 0, -1) == 4
    assert target.raw == b"\1\2\3\4"


@own("its log")
def test_a_store_at_a_port_that_is_taken_says_what_to_do(
    cluster: Any, run_dir: Any, caplog: pytest.LogCaptureFixture
) -> None:
    host = f"localhost:{free_port()}"
    first, second = new_store(), new_store()
    named = (host, "P2PHANDSHAKE", 16 * MIB, MIB, "tcp", "", cluster.address)
    assert first.setup(*named) == 0
    assert second.setup(*named) == -600
    assert "already in use" in caplog.text
    assert f"local_hostname {host!r} names this port: each store of a host needs one" in caplog.text
    first.close()


@own("its log")
def test_a_store_says_where_its_memory_is_served(
    cluster: Any, run_dir: Any, caplog: pytest.LogCaptureFixture
) -> None:
    store = new_store()
    assert store.setup("0.0.0.0", "P2PHANDSHAKE", 16 * MIB, MIB, "tcp", "", cluster.address) == 0
    port = store.get_hostname().rpartition(":")[2]
    assert f"memory is served at 0.0.0.0:{port} without credentials" in caplog.text
    store.close()


@pytest.mark.parametrize("port", [-1, 65536, "http", 1.5, True])
@own("it takes any number")
def test_a_port_that_is_none_refuses_setup(port: Any, run_dir: Any) -> None:
    store = new_store()
    more = {"enable_client_http_server": True, "client_http_port": port}
    assert setup(store, "embedded:", **more) == -600
    assert store.get_hostname() == ""
    assert store.put("k", b"v") == -1010


@pytest.mark.parametrize("wrong", ["config", 1, ["k"], {"replica_num": 1}])
def test_a_configuration_of_another_type_is_refused(store: Any, wrong: Any) -> None:
    buffer, address = buffer_of(b"0123456789")
    for call in (
        lambda: store.put("k", b"v", wrong),
        lambda: store.put_batch(["k"], [b"v"], wrong),
        lambda: store.put_from("k", address, 10, wrong),
        lambda: store.batch_put_from(["k"], [address], [10], wrong),
        lambda: store.is_exist("k", wrong),
        lambda: store.remove_by_regex(wrong if wrong != "config" else 2, True),
    ):
        with pytest.raises(TypeError):
            call()
    assert store.is_exist("k") == 0
    del buffer


@pytest.mark.parametrize("registered", [True, False])
def test_values_from_and_to_addresses(store: Any, registered: bool) -> None:
    source, source_at = buffer_of(b"0123456789")
    target, target_at = buffer_of(64)
    if registered:
        assert store.register_buffer(source_at, 10) == 0
        assert store.register_buffer(target_at, 64) == 0
    assert store.put_from("k", source_at, 10) == 0
    assert store.get("k") == b"0123456789"
    assert store.get_into("k", target_at, 64) == 10
    assert target.raw[:11] == b"0123456789\0"
    assert store.get_into("k", target_at, 9) == -600
    assert store.get_into("nothing", target_at, 64) == -704
    keys = ["a", "b"]
    assert store.batch_put_from(keys, [source_at, source_at + 5], [5, 5]) == [0, 0]
    assert store.batch_get_into(
        ["a", "nothing", "b"], [target_at, target_at + 16, target_at + 32], [16, 16, 16]
    ) == [5, -704, 5]
    assert (target.raw[:5], target.raw[32:37]) == (b"01234", b"56789")
    del source


def test_pieces(store: Any) -> None:
    source, source_at = buffer_of(b"0123456789abcdef")
    target, target_at = buffer_of(64)
    store.register_buffer(source_at, 16)
    store.register_buffer(target_at, 64)
    assert store.batch_put_from_multi_buffers(
        ["k", "q"], [[source_at, source_at + 8], [source_at + 4]], [[4, 4], [2]]
    ) == [0, 0]
    assert store.get_batch(["k", "q"]) == [b"012389ab", b"45"]
    assert store.batch_get_into_multi_buffers(
        ["k", "nothing", "q"],
        [[target_at, target_at + 32], [target_at + 60], [target_at + 48]],
        [[3, 5], [1], [2]],
    ) == [8, -704, 2]
    assert (target.raw[:3], target.raw[32:37], target.raw[48:50]) == (b"012", b"389ab", b"45")
    assert store.put_from_with_metadata("m", source_at, source_at + 10, 4, 6) == 0
    assert store.get("m") == b"abcdef0123"
    del source


def test_lists_that_do_not_fit(store: Any) -> None:
    buffer, address = buffer_of(64)
    store.register_buffer(address, 64)
    assert store.batch_put_from(["a", "b"], [address], [8]) == [-600, -600]
    assert store.batch_get_into(["a"], [address], [8, 8]) == [-600]
    assert store.batch_put_from([], [], []) == []
    assert store.batch_get_into([], [], []) == []
    del buffer


@differs("addresses that are no memory")
def test_no_memory_is_no_success_and_no_crash(store: Any) -> None:
    _buffer, address = buffer_of(64)
    for pointer, size in ((0, 8), (1, 8), (2**63, 8), (address, 0), (2**64 - 4, 8), (-5, 8)):
        assert store.put_from("k", pointer, size) == -600
        assert store.get_into("k", pointer, size) == -600
    store.put("k", b"12345678")
    assert store.get_into("k", 1, 8) == -600
    assert store.batch_put_from_multi_buffers(["a", "b"], [[address, 0], []], [[4, 4], []]) == [
        -600,
        -600,
    ]
    assert store.batch_put_from_multi_buffers(["a"], [[address]], [[4, 4]]) == [-600]
    assert store.put_parts("none") == -600
    assert store.batch_is_exist(["a", "b"]) == [0, 0]
    code, code_at = buffer_of(b"x")
    # Memory that may be read only is no place for a value.
    text = ctypes.cast(ctypes.c_char_p(b"x"), ctypes.c_void_p).value
    assert store.put_from("ro", text, 1) == 0
    assert (
        store.get_into("ro", ctypes.cast(ctypes.pythonapi.Py_IncRef, ctypes.c_void_p).value, 1)
        == -600
    )
    del code, code_at


def test_upsert_from(store: Any) -> None:
    buffer, address = buffer_of(b"aaaabbbb")
    store.register_buffer(address, 8)
    assert store.upsert_from("k", address, 4) == 0
    assert store.upsert_from("k", address + 4, 4) == 0
    assert store.get("k") == b"bbbb"
    assert store.batch_upsert_from(["k", "n"], [address, address], [2, 3]) == [0, 0]
    assert store.get_batch(["k", "n"]) == [b"aa", b"aaa"]
    del buffer


def test_ranges(store: Any) -> None:
    target, address = buffer_of(64)
    store.register_buffer(address, 64)
    store.put("a", b"0123456789")
    store.put("b", b"abcdefghij")
    results = store.get_into_ranges(
        [address],
        [["a", "b", "nothing"]],
        [[[0, 10], [20], [30]]],
        [[[2, 8], [5], [0]]],
        [[[3, 2], [5], [1]]],
    )
    assert results[0][0] == [3, 2]
    assert results[0][1] == [5]
    assert results[0][2][0] < 0
    assert (target.raw[:3], target.raw[10:12], target.raw[20:25]) == (b"234", b"89", b"fghij")
    assert store.get_into_ranges([], [], [], [], []) == []


# ---- sessions


def test_a_put_session(store: Any) -> None:
    buffer, address = buffer_of(b"0123456789")
    store.register_buffer(address, 10)
    assert store.batch_put_session_start(["k"], [10]) == [0]
    assert store.batch_put_session_start(["k"], [10]) == [-600]
    assert store.is_exist("k") == 0
    assert store.get_size("k") == -703
    assert store.get("k") == b""
    assert store.remove("k") == -703
    written = store.batch_put_from_multi_buffer_ranges(
        ["k"], [[address, address + 5]], [[5, 5]], [[5, 0]]
    )
    assert written[0] >= 0
    assert store.batch_put_session_end(["k"]) == [0]
    assert store.get("k") == b"5678901234"
    assert store.batch_put_session_start(["q"], [4]) == [0]
    assert store.batch_put_session_revoke(["q"]) == [0]
    assert store.batch_put_session_end(["q"])[0] < 0
    assert store.is_exist("q") == 0
    del buffer


@pytest.mark.parametrize("kind", [bytes, bytearray])
def test_a_session_knows_its_keys_in_any_form(store: Any, kind: Any) -> None:
    buffer, address = buffer_of(b"0123456789")
    store.register_buffer(address, 10)
    key = kind(b"k")
    assert store.batch_put_session_start([key], [10]) == [0]
    assert store.batch_put_session_start(["k"], [10]) == [-600]
    assert store.remove(key) == -703
    written = store.batch_put_from_multi_buffer_ranges(["k"], [[address]], [[10]], [[0]])
    assert written == [10]
    assert store.batch_put_session_end([key]) == [0]
    assert store.batch_get_session_start(["k"]) == [0]
    read = store.batch_get_into_multi_buffer_ranges([key], [[address]], [[4]], [[6]])
    assert read == [4]
    assert buffer.raw[:4] == b"6789"
    assert store.batch_get_session_end([key]) == 0
    del buffer


def test_a_get_session(store: Any) -> None:
    target, address = buffer_of(32)
    store.register_buffer(address, 32)
    store.put("k", b"0123456789")
    assert store.batch_get_session_start(["k", "nothing"]) == [0, -704]
    read = store.batch_get_into_multi_buffer_ranges(
        ["k"], [[address, address + 8]], [[2, 3]], [[8, 0]]
    )
    assert read[0] >= 0
    assert (target.raw[:2], target.raw[8:11]) == (b"89", b"012")
    assert store.batch_get_session_end(["k", "nothing"]) == 0


# ---- query and remove


def test_removing(store: Any) -> None:
    assert store.remove("nothing") == -704
    store.put_batch(["a", "b", "c"], [b"1", b"2", b"3"])
    assert store.remove("a") == 0
    assert store.remove("a") == -704
    assert store.get("a") == b""
    assert store.get("b") == b"2"
    assert store.remove("b") == -706
    assert store.remove("b", force=True) == 0
    assert store.batch_remove(["c", "nothing"]) == [0, -704]


def test_what_was_read_is_leased(store: Any) -> None:
    reads = {
        "get": lambda: store.get("get"),
        "exist": lambda: store.is_exist("exist"),
        "size": lambda: store.get_size("size"),
        "buffer": lambda: store.get_buffer("buffer"),
        "batch": lambda: store.batch_is_exist(["batch"]),
    }
    for key, read in reads.items():
        store.put(key, b"1")
        read()
        assert store.remove(key) == -706, key
    store.put("never read", b"1")
    assert store.remove_all() == 1
    assert store.is_exist("get") == 1
    assert store.remove_by_regex("get|exist") == 0
    assert store.remove_by_regex("get|exist", force=True) == 2
    assert store.remove_all(force=True) == 3
    assert store.is_exist("size") == 0


def test_patterns_are_searched_for(store: Any) -> None:
    store.put_batch(["model/a/1", "model/a/2", "model/b/1"], [b"1"] * 3)
    assert store.remove_by_regex("[") == -600
    assert store.remove_by_regex("^a") == 0
    assert store.remove_by_regex("a/[0-9]$") == 2
    assert store.batch_is_exist(["model/a/1", "model/b/1"]) == [0, 1]


def test_a_forced_remove_all_is_for_everybody(cluster: Any, run_dir: Any) -> None:
    one, two = new_store(), new_store()
    assert setup(one, cluster.address) == setup(two, cluster.address) == 0
    keys = [f"k{i}" for i in range(50)]
    for i, key in enumerate(keys):
        (one, two)[i % 2].put(key, b"1")
    assert one.remove_all(force=True) == 50
    assert one.batch_is_exist(keys) == two.batch_is_exist(keys) == [0] * 50
    assert two.put("k0", b"2") == 0
    assert one.get("k0") == b"2"
    one.close()
    two.close()


@differs("`remove_all(force=True)` while puts are under way")
def test_a_put_that_began_before_a_forced_remove_all_never_lands(store: Any) -> None:
    buffer, address = buffer_of(b"old!")
    assert store.batch_put_session_start(["k"], [4]) == [0]
    store.batch_put_from_multi_buffer_ranges(["k"], [[address]], [[4]], [[0]])
    assert store.remove_all(force=True) == 0
    assert store.batch_put_session_end(["k"]) == [-300]
    assert store.is_exist("k") == 0
    del buffer


def test_replicas_are_described(store: Any) -> None:
    store.put("k", b"12345")
    (replica,) = store.get_replica_desc("k")
    assert replica.is_memory_replica()
    assert not replica.is_disk_replica()
    assert not replica.is_local_disk_replica()
    assert int(getattr(replica.status, "value", replica.status)) == 3
    descriptor = replica.get_memory_descriptor().buffer_descriptor
    assert descriptor.size == 5
    assert ":" in descriptor.transport_endpoint
    with pytest.raises(RuntimeError):
        replica.get_disk_descriptor()
    assert store.get_replica_desc("nothing") == []
    assert list(store.batch_get_replica_desc(["k", "nothing"])) == ["k"]


def test_only_what_this_store_put_is_cleared(cluster: Any, run_dir: Any) -> None:
    one, two = new_store(), new_store()
    assert setup(one, cluster.address) == setup(two, cluster.address) == 0
    one.put("mine", b"1")
    assert two.batch_replica_clear(["mine"]) == []
    assert one.batch_replica_clear(["mine", "nothing"]) == ["mine"]
    assert one.is_exist("mine") == 0
    one.close()
    two.close()


@differs("another one removed and put anew")
def test_a_key_of_this_store_is_cleared_whoever_put_its_value(cluster: Any, run_dir: Any) -> None:
    one, two = new_store(), new_store()
    assert setup(one, cluster.address) == setup(two, cluster.address) == 0
    assert one.put("mine", b"1") == 0
    assert two.remove("mine", True) == 0
    assert two.put("mine", b"2") == 0
    assert one.batch_replica_clear(["mine"]) == ["mine"]
    one.close()
    two.close()


def test_each_of_many_values_of_a_store_is_cleared(store: Any) -> None:
    keys = [f"of-many-{i}" for i in range(3000)]
    buffer = ctypes.create_string_buffer(b"v", 1)
    at = ctypes.addressof(buffer)
    assert store.register_buffer(at, 1) == 0
    assert set(store.batch_put_from(keys, [at] * len(keys), [1] * len(keys))) == {0}
    assert sorted(store.batch_replica_clear(keys)) == sorted(keys)
    store.unregister_buffer(at)


def test_more_than_fits(store: Any, form: str) -> None:
    if form != "cluster":
        pytest.skip("the others' pools have other sizes")
    codes = [store.put(f"fill{i}", bytes(12 * MIB), config(with_hard_pin=True)) for i in range(8)]
    assert codes[:2] == [0, 0]
    assert -200 in codes
    assert store.get("fill0") == bytes(12 * MIB)
    # What was there stays when its pin finds no room.
    assert store.put("small", b"1") == 0
    assert store.put("small", bytes(1), config(with_hard_pin=True)) in (0, -200)
    assert store.get("small") == b"1"


@own("it patches kvcove's module")
def test_a_value_that_was_read_before_a_reset_is_not_stored(
    store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from kvcove.mooncake import store as module

    read = module._views

    def read_and_reset(value: Any, of: str) -> Any:
        views = read(value, of)
        assert store.remove_all(force=True) >= 0
        return views

    monkeypatch.setattr(module, "_views", read_and_reset)
    assert store.put("late", memoryview(bytes(64))[::2]) < 0
    assert store.is_exist("late") == 0


def test_pinned_values(store: Any) -> None:
    from mooncake.store import SoftPinAction

    assert store.put("hard", b"1", config(with_hard_pin=True)) == 0
    soft = config(soft_pin_action=SoftPinAction.ENABLE, soft_pin_ttl_ms=60_000)
    assert store.put("soft", b"1", soft) == 0
    too_long = config(soft_pin_action=SoftPinAction.ENABLE, soft_pin_ttl_ms=10**12)
    assert store.put("long", b"1", too_long) == -600
    assert store.put("plain", b"1") == 0
    assert store.remove("hard") == 0
    assert store.get("soft") == b"1"


@differs("NVMe-oF and DFS replicas")
def test_what_is_not_there_says_so(store: Any) -> None:
    assert store.put("k", b"1", config(nof_replica_num=1)) == -1012
    assert store.put("k", b"1", config(dfs_replica_num=1)) == -1012
    assert store.unmount_local_disk_segment() == 0


# ---- replicas, segments, tasks


def test_replicas_and_preferred_segments(cluster: Any, run_dir: Any) -> None:
    one, two = new_store(), new_store()
    assert setup(one, cluster.address) == setup(two, cluster.address) == 0
    assert one.put("twice", b"1", config(replica_num=2)) == 0
    assert len(one.get_replica_desc("twice")) in (1, 2)
    assert one.put("there", b"1", config(preferred_segment=two.get_hostname())) == 0
    assert one.put("nowhere", b"1", config(preferred_segment="10.255.255.1:1")) == 0
    assert one.put("many", b"1", config(replica_num=5)) == 0
    assert two.get_batch(["twice", "there", "nowhere", "many"]) == [b"1"] * 4
    one.close()
    two.close()


def test_segments_come_and_go(cluster: Any, run_dir: Any) -> None:
    store = new_store()
    assert setup(store, cluster.address) == 0
    answer = store.allocate_and_mount_segment(16 * MIB)
    assert (answer["ret"], len(answer["segment_ids"])) == (0, 1)
    assert answer["allocated_size"] >= 16 * MIB
    assert store.unmount_and_free_segment(answer["segment_ids"]) == 0
    assert store.unmount_segment(["nothing"]) < 0
    assert store.unmount_segment([]) == 0
    assert store.mount_segment("/nothing/at/all", MIB)["ret"] < 0
    assert store.put("k", b"1") == 0
    store.close()


def test_tasks_that_cannot_begin(store: Any) -> None:
    store.put("k", b"1")
    assert store.create_copy_task("nothing", ["x"]) == ((0, 0), -704)
    assert store.create_copy_task("k", []) == ((0, 0), -600)
    assert store.create_move_task("k", "", "x") == ((0, 0), -600)
    assert store.query_task((1, 2)) == (None, -1400)


@differs("segments in descriptors and tasks")
def test_copies_and_moves(cluster: Any, run_dir: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = new_store(), new_store()
    monkeypatch.setenv("KVCOVE_HOST_ID", "one")
    assert setup(one, cluster.address) == 0
    monkeypatch.setenv("KVCOVE_HOST_ID", "two")
    assert setup(two, cluster.address) == 0
    here, there = one.get_hostname(), two.get_hostname()
    value = config(preferred_segment=here)
    assert one.put("k", b"value", value) == one.put("k2", b"other", value) == 0

    def places(key: str) -> set[str]:
        return {
            r.get_memory_descriptor().buffer_descriptor.transport_endpoint
            for r in two.get_replica_desc(key)
        }

    def finish(task: tuple[int, int]) -> Any:
        states: list[Any] = []

        def ends() -> bool:
            state, code = one.query_task(task)
            assert code == 0
            states.append(state)
            return int(state.status) in (2, 3)

        assert wait_until(ends), "the task does not end"
        return states[-1]

    assert one.create_copy_task("k", ["10.0.0.1:1"]) == ((0, 0), -600)
    task, code = one.create_copy_task("k", [here])  # it is there
    assert code == 0
    assert int(finish(task).status) == 3
    assert one.create_move_task("k", there, here)[1] == -600
    task, code = one.create_move_task("k", here, there)
    assert code == 0
    assert int(finish(task).status) == 3
    # What the first one has dropped, the master hears a moment later.
    assert wait_until(lambda: places("k") == {there})
    assert places("k2") == {here}
    assert two.get("k") == b"value"
    one.close()
    two.close()


# ---- tensors


def test_tensors(store: Any) -> None:
    torch = pytest.importorskip("torch")
    value = torch.arange(12, dtype=torch.float32).reshape(3, 4)
    assert store.put_tensor("t", value) == 0
    assert store.get_size("t") == 304 + 48
    assert torch.equal(store.get_tensor("t"), value)
    assert store.get_tensor("nothing") is None
    assert store.put_tensor("n", 3) == -600
    assert store.put_tensor("c", torch.zeros(2, dtype=torch.complex64)) == -600
    store.put("bytes", b"123")
    assert store.get_tensor("bytes") is None
    for dtype in (
        torch.bfloat16,
        torch.float16,
        torch.int8,
        torch.int64,
        torch.bool,
        torch.float64,
    ):
        tensor = torch.ones(2, 3, 5, dtype=dtype)
        key = str(dtype)
        assert store.put_tensor(key, tensor) == 0
        got = store.get_tensor(key)
        assert got.dtype == dtype
        assert torch.equal(got, tensor)
    assert store.put_tensor("transposed", value.t()) == 0
    assert torch.equal(store.get_tensor("transposed"), value.t())
    assert store.upsert_tensor("t", value + 1) == 0
    assert torch.equal(store.get_tensor("t"), value + 1)
    assert store.batch_put_tensor(["b1", "b2"], [value, value * 2]) == [0, 0]
    assert store.batch_put_tensor(["b1", "b2"], [value]) == [-600, -600]
    first, none = store.batch_get_tensor(["b2", "nothing"])
    assert torch.equal(first, value * 2)
    assert none is None
    assert store.pub_tensor("pub", value, config(with_hard_pin=True)) == 0
    assert store.batch_pub_tensor(["p1"], [value], config()) == [0]
    assert store.batch_upsert_tensor(["b1"], [value]) == [0]
    assert store.upsert_pub_tensor("pub", value, config()) == 0
    assert store.get_tensor_into_cuda("t", torch.zeros(3, 4)) == -600


def test_tensors_at_addresses(store: Any) -> None:
    torch = pytest.importorskip("torch")
    value = torch.arange(6, dtype=torch.int32).reshape(2, 3)
    store.put_tensor("t", value)
    buffer = torch.zeros(4096, dtype=torch.uint8)
    address = buffer.data_ptr()
    store.register_buffer(address, 4096)
    assert torch.equal(store.get_tensor_into("t", address, 4096), value)
    assert store.get_tensor_into("t", address, 20) is None
    assert store.get_tensor_into("nothing", address, 4096) is None
    assert torch.equal(store.get_tensor_into("t", address, 4096), value)
    assert store.put_tensor_from("copy", address, 304 + 24) == 0
    assert torch.equal(store.get_tensor("copy"), value)
    assert store.put_tensor_from("bad", address + 1000, 400) == -600
    one, two = store.batch_get_tensor_into(
        ["t", "nothing"], [address, address + 2048], [2048, 2048]
    )
    assert torch.equal(one, value)
    assert two is None


def test_split_tensors(store: Any) -> None:
    torch = pytest.importorskip("torch")
    value = torch.arange(12, dtype=torch.float32).reshape(3, 4)
    assert store.put_tensor_with_tp("t", value, 0, 2, 1) == 0
    assert store.batch_is_exist(["t", "t_tp_0", "t_tp_1"]) == [0, 1, 1]
    assert torch.equal(store.get_tensor_with_tp("t", 1, 2, 1), value[:, 2:])
    assert store.put_tensor_with_tp("whole", value, 0, 1, 0) == 0
    assert store.is_exist("whole") == 1
    assert store.batch_put_tensor_with_tp(["a", "b"], [value, value], 0, 2, 1) == [0, 0]
    parts = store.batch_get_tensor_with_tp(["a", "b"], 0, 2)
    assert all(torch.equal(part, value[:, :2]) for part in parts)
    buffer = torch.zeros(4096, dtype=torch.uint8)
    store.register_buffer(buffer.data_ptr(), 4096)
    got = store.get_tensor_with_tp_into("t", buffer.data_ptr(), 4096, 0, 2, 1)
    assert torch.equal(got, value[:, :2])


@until("0.3.14")
def test_parallel_tensors(store: Any) -> None:
    torch = pytest.importorskip("torch")
    from mooncake.store import ParallelAxis, ReadTarget, TensorParallelism

    value = torch.arange(12, dtype=torch.float32).reshape(3, 4)
    assert store.put_tensor_with_parallelism("plain", value) == 0
    assert torch.equal(store.get_tensor_with_parallelism("plain"), value)
    for rank in range(2):
        axis, split = ParallelAxis(), TensorParallelism()
        axis.kind, axis.rank, axis.size, axis.split_dim = "tp", rank, 2, 1
        split.axes = [axis]
        part = value[:, 2 * rank : 2 * rank + 2].contiguous()
        assert store.put_tensor_with_parallelism("t", part, split) == 0
    target = ReadTarget()
    target.mode, target.parallelism = "shard", split
    assert torch.equal(store.get_tensor_with_parallelism("t", target), value[:, 2:])
    with pytest.raises(RuntimeError, match="Unsupported ReadTarget mode"):
        target.mode = "bogus"


# ---- other classes


def test_a_pool_of_buffers(store: Any) -> None:
    from mooncake.store import BufferPool

    pool = BufferPool(store, alignment=4096)
    with pool.acquire(1000) as lease:
        lease.buffer[:5] = b"12345"
        assert (lease.size, len(lease.buffer)) == (1000, 1000)
        assert store.put_from("k", lease.ptr, 5) == 0
    lease.release()
    with pytest.raises(RuntimeError):
        _ = lease.ptr
    assert store.get("k") == b"12345"
    other = pool.buffer(10)
    with pytest.raises(RuntimeError):
        pool.close()
    other.release()
    pool.prewarm(65536, 2)
    with pytest.raises(TypeError):
        pool.acquire(-1)
    pool.close()


@differs("`BufferPool(max_bytes=...)`")
def test_a_pool_of_buffers_has_bounds(store: Any) -> None:
    from mooncake.store import BufferPool

    pool = BufferPool(store, max_bytes=128 << 10, alignment=4096)
    first, second = pool.acquire(60_000), pool.acquire(60_000)
    with pytest.raises(RuntimeError):
        pool.acquire(10, block=False)
    with pytest.raises(RuntimeError):
        pool.acquire(10, timeout=0.05)
    timer = threading.Timer(0.05, first.release)
    timer.start()
    third = pool.acquire(10, timeout=5)
    second.release()
    third.release()
    pool.close()


def test_memory_of_the_host() -> None:
    from mooncake.store import MooncakeHostMemAllocator

    memory = MooncakeHostMemAllocator()
    address = memory.alloc(1 << 16)
    ctypes.memset(address, 7, 1 << 16)
    assert memory.free(address) == 0
    assert memory.free(address) < 0


# ---- all at once


@differs("reads during upserts and removals")
def test_eight_threads_do_everything(store: Any) -> None:
    """Every byte that is read is checked; nothing crashes, nothing hangs."""
    size = 8192
    wrong: list[str] = []
    stop = time.monotonic() + 3

    def value(key: str) -> bytes:
        return (key.encode() + b".") * (size // (len(key) + 1)) + b"!" * (size % (len(key) + 1))

    def work(n: int) -> None:
        target, address = buffer_of(4 * size)
        store.register_buffer(address, 4 * size)
        i = 0
        while time.monotonic() < stop:
            i += 1
            keys = [f"k{(n * 7 + i * 3 + j) % 64:02d}" for j in range(4)]
            choice = (n + i) % 6
            if choice == 0:
                store.put_batch(keys, [value(key) for key in keys])
            elif choice == 1:
                for key, got in zip(keys, store.get_batch(keys), strict=True):
                    if got and got != value(key):
                        wrong.append(f"get {key}: {got[:20]!r}")
            elif choice == 2:
                places = [address + j * size for j in range(4)]
                counts = store.batch_get_into(keys, places, [size] * 4)
                for j, (key, count) in enumerate(zip(keys, counts, strict=True)):
                    if count > 0 and target.raw[j * size : (j + 1) * size] != value(key):
                        wrong.append(f"get_into {key}")
            elif choice == 3:
                store.batch_is_exist(keys)
                store.upsert(keys[0], value(keys[0]))
            elif choice == 4:
                store.remove(keys[0], force=True)
            elif i % 40 == 0 and store.remove_all(force=True) < 0:
                wrong.append("reset")
        store.unregister_buffer(address)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert wrong == []
    assert store.health_check() == 0
