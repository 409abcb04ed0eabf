# SPDX-License-Identifier: Apache-2.0
"""The metrics by which Mooncake's dashboards see a master of kvcove."""

from __future__ import annotations

import re

from kvcove.mooncake._master_metrics import Own, OwnerSums, master_metrics

_OWN = """\
# HELP kvcove_master_owner_puts_total values stored at an owner
# TYPE kvcove_master_owner_puts_total counter
kvcove_master_owner_puts_total{owner="h1:1"} 10
kvcove_master_owner_puts_total{owner="h2:1"} 20
kvcove_master_owner_stale_puts_total{owner="h1:1"} 3
kvcove_master_owner_hits_total{owner="h1:1",tier="memory"} 50
kvcove_master_lookups_total 400
kvcove_master_call_seconds_bucket{call="lookup",le="+Inf"} 40
kvcove_master_call_seconds_count{call="lookup"} 40
kvcove_master_call_seconds_count{call="remove"} 5
kvcove_master_call_seconds_count{call="renew"} 6
kvcove_master_resets_total 7
kvcove_master_resets_not_proven_total 2
kvcove_requester_misses_total{reason="never put"} 100
kvcove_requester_misses_total{reason="lease"} 8
kvcove_master_namespace_entries{namespace="mooncake",version="a"} 9
kvcove_master_namespace_entries{namespace="mooncake",version="b"} 1e+06
kvcove_master_namespace_entries{namespace="moon\\"cake\\"",version=""} 4
"""
_SEGMENTS = [
    {"address": "h1:1", "capacity_bytes": 1 << 40, "free_bytes": 1, "evictions": 2, "hits": 50},
    {"address": "h2:1", "capacity_bytes": 1000, "free_bytes": 400, "evictions": 3, "hits": 1},
]


def _values() -> dict[str, float]:
    text = master_metrics(_OWN, _SEGMENTS, {"objects": 77}, OwnerSums())
    return {name: float(value) for name, value in re.findall(r"^([^# ]\S*) (\S+)$", text, re.M)}


def test_requests_items_and_failures_have_that_programs_names() -> None:
    values = _values()
    assert values["mem_cache_hit_nums_"] == 50
    assert values["master_put_start_requests_total"] == 33
    assert values["master_put_end_requests_total"] == 33
    assert values["master_put_end_failures_total"] == 3
    assert values["master_exist_key_requests_total"] == 400
    assert values["master_exist_key_failures_total"] == 8
    assert values["master_batch_exist_key_requests_total"] == 40
    assert values["master_batch_exist_key_items_total"] == 400
    assert values["master_get_replica_list_requests_total"] == 158
    assert values["master_get_replica_list_failures_total"] == 108
    assert values["master_remove_requests_total"] == 5
    assert values["master_remove_all_requests_total"] == 7
    assert values["master_remove_all_failures_total"] == 2
    assert values["master_ping_requests_total"] == 6


def test_counters_do_not_fall_when_an_owner_ends_or_starts_again() -> None:
    sums = OwnerSums()

    def stored(**puts: int) -> float:
        own = Own("".join(f'p_total{{owner="{owner}"}} {n}\n' for owner, n in puts.items()))
        return sums.add(own, "p_total")

    assert stored(a=10, b=20) == 30
    assert stored(a=11) == 31, "b has ended"
    assert stored(a=0, b=25) == 36, "b is back, and a new leader has not heard from a"
    assert stored(a=12, b=1) == 38, "b has started again"
    assert sums.add(Own(""), "other_total") == 0


def test_owners_with_ever_new_addresses_take_no_room_without_bound() -> None:
    sums = OwnerSums()
    for i in range(3000):
        assert sums.add(Own(f'p_total{{owner="{i}"}} 1\n'), "p_total") == i + 1
    assert len(sums._last["p_total"]) == 1024


def test_more_owners_than_are_remembered_are_counted_once_as_long_as_they_are_there() -> None:
    sums = OwnerSums()
    own = Own("".join(f'p_total{{owner="{i}"}} 1\n' for i in range(2000)))
    for _ in range(3):
        assert sums.add(own, "p_total") == 2000
    assert sums.add(Own('p_total{owner="1999"} 2\n'), "p_total") == 2001
    assert len(sums._last["p_total"]) == 1024


def test_sizes_are_whole_numbers() -> None:
    text = master_metrics(_OWN, _SEGMENTS, {"objects": 77}, OwnerSums())
    assert f'segment_total_capacity_bytes{{segment="h1:1"}} {1 << 40}\n' in text
    assert f"master_allocated_bytes {(1 << 40) - 1 + 600}\n" in text
    assert "master_key_count 77\n" in text


def test_an_owners_name_is_escaped() -> None:
    segments = [{**_SEGMENTS[0], "address": 'h"1\\:1\n'}]
    text = master_metrics(_OWN, segments, {"objects": 77}, OwnerSums())
    assert f'segment_total_capacity_bytes{{segment="h\\"1\\\\:1\\n"}} {1 << 40}\n' in text


def test_each_metric_says_what_it_is() -> None:
    text = master_metrics(_OWN, _SEGMENTS, {"objects": 77}, OwnerSums())
    names = re.findall(r"^# TYPE (\w+) ", text, re.M)
    assert len(names) == len(set(names)) > 20
    assert names == re.findall(r"^# HELP (\w+) \w.*$", text, re.M)


def test_samples_are_summed_by_their_labels() -> None:
    own = Own(_OWN)
    assert own.sum("kvcove_master_namespace_entries", namespace="mooncake") == 1_000_009
    assert own.sum("kvcove_master_namespace_entries", namespace='moon"cake"') == 4
    assert own.sum("kvcove_master_namespace_entries", namespace="none") == 0
    assert own.sum("no_such_metric") == 0
