# SPDX-License-Identifier: Apache-2.0
"""The backend under SGLang's own tree, controller and host pools."""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("sglang.srt")

import sglang_copies  # noqa: E402
from kvcove.sglang import _storage, _weights  # noqa: E402
from kvcove.sglang.__main__ import main  # noqa: E402
from sglang.srt.managers.cache_controller import HiCacheController  # noqa: E402
from sglang.srt.managers.scheduler_components.weight_updater import (  # noqa: E402
    SchedulerWeightUpdaterManager,
)
from sglang.srt.mem_cache.utils import get_hash_str  # noqa: E402
from sglang.utils import TypeBasedDispatcher  # noqa: E402
from sglang_engine import PAGE, Engine, Owner, engine  # noqa: E402

PROMPT = list(range(1, 1 + 8 * PAGE))
LAYOUTS = [("layer_first", "direct"), ("page_first_direct", "direct"), ("page_first", "kernel")]
CALLS = ["disk", "distributed", "tensor", "ipc"]


@pytest.fixture
def directory() -> Iterator[Path]:
    """For sockets, whose paths must be short."""
    with tempfile.TemporaryDirectory(prefix="kvs-", dir="/tmp") as made:
        yield Path(made)


@pytest.fixture
def owner(directory: Path) -> Iterator[Owner]:
    made = Owner(directory / "pool.sock")
    yield made
    made.kill()


@pytest.fixture
def pool(owner: Owner) -> str:
    return owner.address


@pytest.fixture(scope="session", autouse=True)
def sglang_on_a_cpu(tmp_path_factory: Any) -> Iterator[None]:
    sglang_copies.install()
    get_hash_str([1, 2, 3, 4], page_size=4)  # compiles what it needs, before a test waits for it
    store = tmp_path_factory.mktemp("group") / "store"
    torch.distributed.init_process_group("gloo", f"file://{store}", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize("kind", ["mha", "mla", "swa"])
@pytest.mark.parametrize(("layout", "io"), LAYOUTS)
def test_another_engine_finds_what_one_stored(pool: str, kind: str, layout: str, io: str) -> None:
    with engine(pool, kind=kind, layout=layout, io=io) as first:
        assert first.fetch(PROMPT) == 0
        first.store(PROMPT)
    with engine(pool, kind=kind, layout=layout, io=io) as second:
        assert second.fetch(PROMPT) == len(PROMPT)


@pytest.mark.parametrize("kind", ["mha", "mla"])
def test_layouts_with_the_same_order_of_bytes_share(pool: str, kind: str) -> None:
    with engine(pool, kind=kind, layout="layer_first") as first:
        first.store(PROMPT)
    with engine(pool, kind=kind, layout="page_first_direct") as second:
        assert second.fetch(PROMPT) == len(PROMPT)
    with engine(pool, kind=kind, layout="page_first", io="kernel") as third:
        assert third.fetch(PROMPT) == 0


def test_ranks_and_stages_have_keys_of_their_own(pool: str) -> None:
    with engine(pool, tp=(0, 2)) as first:
        first.store(PROMPT)
    with engine(pool, tp=(1, 2)) as other_rank:
        assert other_rank.fetch(PROMPT) == 0
    with engine(pool, tp=(0, 2), pp=(1, 2)) as other_stage:
        assert other_stage.fetch(PROMPT) == 0


def test_ranks_of_mla_share_what_one_of_them_writes(pool: str) -> None:
    with (
        engine(pool, kind="mla", tp=(1, 2)) as reader,
        engine(pool, kind="mla", tp=(0, 2)) as writer,
    ):
        reader.store(PROMPT)
        assert reader.storage.counts().get("backup_pages", 0) == 0
        writer.store(PROMPT)
        assert writer.storage.counts()["backup_pages"] == len(PROMPT) // PAGE
        reader.flush()
        assert reader.fetch(PROMPT) == len(PROMPT)


@pytest.mark.parametrize("how", CALLS)
def test_nothing_older_is_served_after_an_update(pool: str, how: str) -> None:
    with engine(pool) as updated, engine(pool) as other:
        updated.store(PROMPT)
        assert updated.update(how, 2).success
        assert updated.fetch(PROMPT) == 0
        updated.store(PROMPT)
        # The engine with the weights of before has its own KV, and each byte is of its weights.
        assert other.fetch(PROMPT) == len(PROMPT)
        assert other.update(how, 2).success
        assert other.fetch(PROMPT) == len(PROMPT)
        # Equal weights find their KV again.
        assert updated.update(how, 1).success
        assert updated.fetch(PROMPT) == len(PROMPT)


@pytest.mark.parametrize("how", CALLS)
def test_kv_that_outlives_an_update_in_the_tree_is_not_stored(pool: str, how: str) -> None:
    """flush_cache=False: SGLang keeps KV of the weights before, and writes what it makes of it through."""
    with engine(pool) as updated, engine(pool, seed=2) as other:
        updated.compute(PROMPT[: 4 * PAGE])
        updated.update(how, 2, flush=False)
        updated.drain()
        assert other.fetch(PROMPT[: 4 * PAGE]) == 0
        updated.store(list(range(500, 516)))
        assert other.fetch(list(range(500, 516))) == 0
        updated.flush()
        updated.store(list(range(500, 516)))
        other.flush()
        assert other.fetch(list(range(500, 516))) == 16


def test_weights_written_past_all_calls_are_seen_when_the_cache_is_flushed(pool: str) -> None:
    with engine(pool) as first, engine(pool) as other:
        first.store(PROMPT)
        first.model.weight.data.fill_(2.0)
        first.flush()
        assert first.fetch(PROMPT) == 0
        assert other.fetch(PROMPT) == len(PROMPT)


def test_weights_that_are_half_changed_find_and_store_nothing(pool: str) -> None:
    with engine(pool) as first:
        first.store(PROMPT)
        first.flush()
        session = SimpleNamespace(selector="all")
        assert first.manager.begin_weight_update(session).success
        assert first.storage.weights.now() is None
        assert first.fetch(PROMPT) == 0
        first.flush()
        assert first.storage.weights.now() is None
        assert first.manager.end_weight_update(session).success
        assert first.fetch(PROMPT) == len(PROMPT)


def test_weights_whose_memory_is_given_back_are_not_looked_at(pool: str) -> None:
    with engine(pool) as first:
        first.store(PROMPT)
        first.manager.release_memory_occupation(SimpleNamespace(tags=["weights"]))
        first.flush()
        assert first.storage.weights.now() is None
        first.manager.resume_memory_occupation(SimpleNamespace(tags=["weights"]))
        first.flush()
        assert first.fetch(PROMPT) == len(PROMPT)


def test_a_killed_owner_in_the_middle_of_a_prefetch_is_a_miss(owner: Owner) -> None:
    with engine(owner.address) as first:
        first.store(PROMPT)
        first.flush()
        free = first.host_free()
        read, ask = first.storage.batch_get_v1, threading.Event()

        def killed(*args: object) -> list[bool]:
            owner.kill()
            ask.set()
            return read(*args)

        first.storage.batch_get_v1 = killed
        assert first.end_prefetch(first.begin_prefetch(PROMPT)) == 0
        assert ask.is_set()
        settle(first, free)
        first.store(PROMPT)  # nobody stores it, and the engine goes on
        assert first.fetch(PROMPT) >= 0


def test_a_late_put_after_a_flush_is_of_no_other_weights(pool: str) -> None:
    """A put that is begun before an update, and ends after it, is found under the weights of before alone."""
    with engine(pool) as first, engine(pool, seed=2) as other, engine(pool) as same:
        put, begun, go = first.storage._token_now, threading.Event(), threading.Event()

        def held() -> object:
            token = put()
            begun.set()
            assert go.wait(20)
            return token

        first.storage._token_now = held
        first.compute(PROMPT)
        first.tree.flush_pending_backups()
        while not begun.wait(0.005):
            first.tree.check_hicache_events()
        update = threading.Thread(target=first.update, args=("disk", 2))
        update.start()
        while first.storage.weights.now() is not None:
            time.sleep(0.001)
        go.set()
        update.join(20)
        assert not update.is_alive()
        first.storage._token_now = put
        assert first.fetch(PROMPT) == 0
        assert other.fetch(PROMPT) == 0
        assert same.fetch(PROMPT) == len(PROMPT)


def test_a_host_pool_without_room_takes_nothing_and_loses_nothing(pool: str) -> None:
    with engine(pool) as first:
        first.store(PROMPT)
    with engine(pool) as second:
        group = second.controller.mem_pool_host
        taken = group.alloc(group.available_size() // PAGE * PAGE)
        assert second.end_prefetch(second.begin_prefetch(PROMPT)) == 0
        group.free(taken)
        assert second.fetch(PROMPT) == len(PROMPT)


def test_a_controller_that_stops_while_loads_are_under_way_leaks_no_page(pool: str) -> None:
    with engine(pool) as first:
        first.store(PROMPT)
        first.flush()
        free = first.host_free()
        read, begun, go = first.storage.batch_get_v1, threading.Event(), threading.Event()

        def held(*args: object) -> list[bool]:
            begun.set()
            assert go.wait(20)
            return read(*args)

        first.storage.batch_get_v1 = held
        first.begin_prefetch(PROMPT)
        while not begun.wait(0.005):
            first.tree.check_hicache_events()
        flush = threading.Thread(target=first.flush)
        flush.start()
        while first.storage.weights.now() is not None:
            time.sleep(0.001)
        go.set()
        flush.join(20)
        assert not flush.is_alive()
        first.storage.batch_get_v1 = read
        assert first.host_free() == free
        assert first.fetch(PROMPT) == len(PROMPT)


def test_clear_is_a_fence_for_all_weights_and_engines(pool: str) -> None:
    with engine(pool) as first, engine(pool, seed=2) as other:
        first.store(PROMPT)
        other.store(PROMPT)
        first.flush()
        other.flush()
        assert first.controller.clear_storage_backend()
        assert first.fetch(PROMPT) == 0
        assert other.fetch(PROMPT) == 0
        # Both go on: a put of before the fence fails, and the next one is begun anew.
        first.store(PROMPT)
        first.flush()
        assert first.fetch(PROMPT) == len(PROMPT)
        other.store(PROMPT)
        other.flush()
        other.store(PROMPT)
        other.flush()
        assert other.fetch(PROMPT) == len(PROMPT)


def test_without_names_an_update_voids_and_closes_the_others(pool: str) -> None:
    with engine(pool, weight_version_source="none") as first:
        first.store(PROMPT)
        with engine(pool, weight_version_source="none") as other:
            assert other.fetch(PROMPT) == len(PROMPT)
            first.update("disk", 2)
            assert first.fetch(PROMPT) == 0
            other.flush()
            first.store(PROMPT)
            other.update("disk", 2)
            assert (
                other.fetch(PROMPT) == 0
            )  # its reset voids, too: updates end before engines go on
            other.store(PROMPT)
            first.flush()
            other.flush()


def test_statistics_say_what_was_moved(pool: str) -> None:
    with engine(pool) as first:
        first.storage._writes_metrics = True
        first.store(PROMPT)
        first.flush()
        first.fetch(PROMPT)
        stats = first.storage.get_stats()
        assert sum(stats.backup_pgs) == sum(stats.prefetch_pgs) == len(PROMPT) // PAGE
        assert first.storage.get_stats().prefetch_pgs == []
        counts = first.storage.counts()
        assert counts["backup_bytes"] == counts["prefetch_bytes"] > 0


def test_what_was_found_is_held_until_it_is_loaded(directory: Path) -> None:
    owner = Owner(directory / "small.sock", 1 << 20)
    with engine(owner.address) as first:
        first.store(PROMPT)
        keys = first.storage._pages["kv"].keys(["0" * 64])
        assert len(keys) == 1
        first.flush()
        request = first.begin_prefetch(PROMPT)
        assert first.end_prefetch(request) == len(PROMPT)
    owner.kill()


def test_a_pool_that_is_not_there_is_an_error_or_a_warning(directory: Path) -> None:
    address = f"unix:{directory}/nobody.sock"
    with pytest.raises(Exception, match="nobody"):
        engine(address).__enter__()
    with engine(address, on_unreachable="fallback") as alone:
        alone.store(PROMPT)
        alone.flush()
        assert alone.fetch(PROMPT) == 0


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ({"weight_version_sourc": "none"}, "did you mean 'weight_version_source'"),
        ({"hold_s": "long"}, "hold_s"),
        ({"timeout_ms": 0}, "timeout_ms"),
        ({"interface_v1": 0}, "interface_v1"),
    ],
)
def test_a_wrong_setting_is_one_line(pool: str, extra: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        engine(pool, **extra).__enter__()


def test_engines_that_do_not_share_are_told_why(
    pool: str, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    with engine(pool) as first, engine(pool, namespace="others", layout="page_first", io="kernel"):
        model = Path(first.controller.storage_config.model_name or "model").name
        assert "another namespace setting share nothing with this one" in caplog.text
        assert (
            "another page order share nothing with this one: layers there, tokens here"
            in caplog.text
        )
    assert main(["explain", model, pool]) == 0
    text = capsys.readouterr().out
    assert "engines of kinds 1 and 2 do not share:" in text
    assert "  page order: layers and tokens; give them host layouts" in text
    assert main(["explain", "nobody", pool]) == 1


def settle(first: Engine, free: int) -> None:
    """Wait until all pages of the host pool are back."""
    deadline = time.monotonic() + 20
    while first.host_free() != free:
        assert time.monotonic() < deadline, "host pages are lost"
        first.tree.check_hicache_events()
        time.sleep(0.005)


def test_engines_of_other_tp_sizes_share_pages_that_are_cut_by_heads(pool: str) -> None:
    common = {
        "layout": "page_head",
        "io": "kernel",
        "tp_lcm_size": 2,
        "weight_version_source": "none",
    }
    hashes = [f"{page:064x}" for page in range(3)]
    indices = torch.arange(PAGE, 4 * PAGE)
    with engine(pool, **common) as whole, ExitStack() as halves:
        kv = whole.controller.storage_host_pool.kv_buffer
        kv.copy_(torch.randn(kv.shape))
        assert whole.storage.batch_set_v1(hashes, indices) == [True] * 3
        for rank in range(2):
            half = halves.enter_context(engine(pool, heads=1, tp=(rank, 2), **common))
            assert half.storage.batch_exists(hashes) == 3
            assert half.storage.batch_get_v1(hashes, indices) == [True] * 3
            got = half.controller.storage_host_pool.kv_buffer
            # (K and V, page, head, token, layer, dimension)
            assert torch.equal(got[:, 1:4], kv[:, 1:4, rank : rank + 1])


def test_a_backend_that_is_detached_and_attached_again_finds_and_is_told_of_updates(
    pool: str,
) -> None:
    with engine(pool) as first:
        first.store(PROMPT)
        first.detach()
        first.flush()
        first.attach()
        assert first.fetch(PROMPT) == len(PROMPT)
        first.update("disk", 2)
        assert first.fetch(PROMPT) == 0


@pytest.fixture
def unobserved(monkeypatch: pytest.MonkeyPatch) -> None:
    """Be in a process in which no backend has been attached before."""
    calls = [(HiCacheController, "reset")]
    calls += [
        (SchedulerWeightUpdaterManager, name)
        for name in (
            *_weights._CHANGES,
            *("check_weights", "release_memory_occupation", "resume_memory_occupation"),
        )
    ]
    for owner_class, name in calls:
        call = getattr(owner_class, name)
        monkeypatch.setattr(owner_class, name, getattr(call, "__wrapped__", call))
    monkeypatch.setattr(_weights, "_wrapped", False)


def test_a_backend_that_is_attached_to_a_running_engine_is_told_of_updates(
    pool: str, unobserved: None
) -> None:
    with engine(pool, attached=False) as first:
        # A scheduler makes its dispatcher at its start, and calls the engine through nothing else.
        dispatcher = TypeBasedDispatcher([(int, first.manager.begin_weight_update)])
        first.attach()
        first.store(PROMPT)
        assert first.storage.weights.now() is not None
        assert dispatcher._mapping[int](SimpleNamespace(selector="all")).success
        assert first.storage.weights.now() is None


def test_kv_of_before_a_backend_was_attached_is_not_stored(pool: str, unobserved: None) -> None:
    with engine(pool, attached=False) as first, engine(pool, seed=2) as other:
        first.compute(PROMPT)
        first.update("disk", 2, flush=False)
        first.attach()
        first.store(list(range(500, 516)))
        assert other.fetch(list(range(500, 516))) == 0
        first.flush()
        first.store(list(range(500, 516)))
        other.flush()
        assert other.fetch(list(range(500, 516))) == 16


def test_a_backend_that_is_attached_within_an_update_waits_for_its_end(pool: str) -> None:
    with engine(pool, attached=False) as first:
        session = SimpleNamespace(selector="all")
        assert first.manager.begin_weight_update(session).success
        first.attach()
        assert first.storage.weights.now() is None
        assert first.manager.end_weight_update(session).success
        assert first.storage.weights.now() is not None


def test_a_backend_that_is_attached_while_weights_are_away_does_not_look_at_them(
    pool: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with engine(pool, attached=False) as first:
        first.manager.release_memory_occupation(SimpleNamespace(tags=["weights"]))
        looked_at = []
        monkeypatch.setattr(_weights, "_fingerprint_of", looked_at.append)
        first.attach()
        assert looked_at == []
        monkeypatch.undo()
        first.manager.resume_memory_occupation(SimpleNamespace(tags=["weights"]))
        assert first.storage.weights.now() is not None


def test_types_of_kv_that_host_pools_keep_as_bytes_share_nothing(pool: str) -> None:
    hashes, indices = ["0" * 64], torch.arange(PAGE)
    with (
        engine(pool, dtype=torch.float8_e4m3fn) as first,
        engine(pool, dtype=torch.float8_e5m2) as other,
        engine(pool, dtype=torch.float8_e4m3fn) as same,
    ):
        assert first.controller.storage_host_pool.dtype == torch.uint8
        assert first.storage.batch_set_v1(hashes, indices) == [True]
        assert other.storage.batch_exists(hashes) == 0
        assert same.storage.batch_exists(hashes) == 1


def test_a_fault_in_the_backend_is_a_miss(pool: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fault(*_: object) -> None:
        raise RuntimeError("fault")

    with engine(pool) as first:
        first.store(PROMPT)
        first.flush()
        monkeypatch.setattr(first.storage, "_present", fault)
        assert first.fetch(PROMPT) == 0
        transfer = SimpleNamespace(name="kv", keys=None, hit_policy="all_pages")
        assert first.storage.batch_exists_v2(["0" * 64], [transfer]).kv_hit_pages == 0
        monkeypatch.undo()
        monkeypatch.setattr(_storage, "_fits", fault)
        assert first.fetch(PROMPT) == 0
        first.store(PROMPT)  # nobody stores it, and the engine goes on
        monkeypatch.undo()
        first.flush()
        assert first.fetch(PROMPT) == len(PROMPT)


def test_a_prompt_of_more_pages_than_a_call_takes_is_found_in_part(
    pool: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with engine(pool) as first:
        first.store(PROMPT)
        first.flush()
        monkeypatch.setattr(_storage, "_MOST_KEYS", 4)
        assert first.fetch(PROMPT) == 4 * PAGE


def test_weights_that_cannot_be_looked_at_end_no_update(
    pool: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fault(*_: object) -> None:
        raise RuntimeError("out of memory")

    with engine(pool) as first:
        first.store(PROMPT)
        monkeypatch.setattr(_weights, "_fingerprint_of", fault)
        assert first.update("disk", 2).success
        assert first.fetch(PROMPT) == 0
        monkeypatch.undo()
        first.update("disk", 1)
        assert first.fetch(PROMPT) == len(PROMPT)


def test_without_names_kv_of_before_an_operators_reset_is_not_stored_after_it(pool: str) -> None:
    with (
        engine(pool, weight_version_source="none") as first,
        engine(pool, weight_version_source="none") as other,
    ):
        first.compute(PROMPT)
        assert other.storage.clear()
        first.drain()
        assert other.fetch(PROMPT) == 0


def test_tensors_that_are_reset_for_a_check_are_other_weights(pool: str) -> None:
    with engine(pool) as first:
        before = first.storage.weights.now()

        def reset(**_: object) -> None:
            first.model.weight.data.fill_(7.0)

        first.runner.check_weights = reset
        first.manager.check_weights(
            SimpleNamespace(
                action="reset_tensors",
                selector="all",
                allow_quant_error=False,
                skip_tensor_list=None,
            )
        )
        now = first.storage.weights.now()
        assert None not in (before, now) and now.version != before.version


def test_without_names_models_of_the_same_configuration_are_told_apart_by_their_path() -> None:
    storage = SimpleNamespace(
        model_name="policy", tp_lcm_size=None, tp_size=1, pp_size=1, attn_cp_size=1
    )

    def namespace(source: str, path: str) -> str:
        config = _storage.Config(weight_version_source=source)
        runner = SimpleNamespace(model_config=SimpleNamespace(model_path=path, revision=None))
        return _storage._namespace_of(_storage._facts_of(storage, [runner], config), config)

    assert namespace("none", "/models/a") != namespace("none", "/models/b")
    assert namespace("fingerprint", "/models/a") == namespace("fingerprint", "/models/b")
