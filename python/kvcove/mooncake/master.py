# SPDX-License-Identifier: Apache-2.0
"""``mooncake_master``: the master of a cluster, with the flags and the HTTP paths of that program."""

from __future__ import annotations

import atexit
import json
import os
import shutil
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from kvcove import _native
from kvcove.mooncake import _address, _config, _job
from kvcove.mooncake._flags import LOG_FLAGS, Flag, Values, fail, log_arguments, parse
from kvcove.mooncake._http import (
    Answer,
    Handler,
    HttpServers,
    Request,
    check_names,
    json_answer,
    open_url,
    text_answer,
    with_loopback,
)
from kvcove.mooncake._master_metrics import OwnerSums, master_metrics
from kvcove.mooncake._mixed import check_commands
from kvcove.mooncake._process import Child, StopSignals, allow_open, begin, credentials, insecure
from kvcove.mooncake._types import Code
from kvcove.mooncake.metadata import MetadataServer

__all__ = ["AdminHttp", "main"]

_PROGRAM = "mooncake_master"
_NO_OPLOG = (
    "generations are in -data, or with -enable_ha in etcd, before a reset is answered; there is no "
    "log for a standby"
)
_NO_SNAPSHOT = (
    "there are no snapshots: started again with the same -data, the master learns from the owners what "
    "they hold"
)
_IGNORED = """
allocation_strategy batch_oplog_retry_timeout_sec client_active_ttl_sec client_live_ttl_sec
client_suspicion_ttl_sec client_ttl default_kv_soft_pin_ttl
dynamic_replication_admission_qps_threshold dynamic_replication_heat_window_seconds
dynamic_replication_max_memory_replicas eviction_high_watermark_ratio eviction_ratio
global_file_segment_size kv_events_additional_salt kv_events_backend_id kv_events_bind_endpoint
kv_events_block_size kv_events_dp_rank kv_events_lora_name kv_events_model_name
kv_events_queue_capacity kv_events_tenant_id max_kv_soft_pin_ttl max_retry_attempts max_threads
max_total_finished_tasks max_total_pending_tasks max_total_processing_tasks memory_allocator
nof_eviction_high_watermark_ratio nof_eviction_ratio nof_heartbeat_failures_threshold
nof_heartbeat_interval_sec nof_heartbeat_probe_timeout_ms offload_cap_ratio offloading_queue_limit
pending_task_timeout_sec pod_name pod_namespace processing_task_timeout_sec
promotion_admission_threshold promotion_max_per_heartbeat promotion_queue_limit
put_start_discard_timeout_sec put_start_release_timeout_sec
rpc_conn_timeout_seconds rpc_thread_num snapshot_backup_dir
snapshot_child_timeout_seconds snapshot_interval_seconds snapshot_object_store_type
snapshot_payload_backend_type snapshot_payload_store_type snapshot_retention_count
tenant_quota_connector_type tenant_quota_connector_uri mmap_arena_pool_size
cxl_path cxl_size snapshot_catalog_store_type
snapshot_catalog_backend_type snapshot_catalog_store_connstring snapshot_catalog_backend_connstring
oplog_poll_interval_ms oplog_batch_max_entries oplog_store_type oplog_data_dir
redis_master_view_ttl_sec redis_heartbeat_interval_sec standby_snapshot_service_port
ha_leader_lease_ttl_sec handler_worker_thread_num snapshot_chunk_object_count
tenant_eviction_high_watermark_ratio weight_import_idle_timeout_ms
""".split()
_IGNORED_SWITCHES = """
allow_evict_soft_pinned_objects enable_disk_eviction enable_metadata_cleanup_on_timeout enable_metric_reporting
enable_metrics_report_to_backend
kv_events_emit_legacy_compat kv_events_emit_object_key
rpc_enable_tcp_no_delay use_mmap_arena_allocator
""".split()
_FLAGS = {
    "rpc_port": Flag("50051", "where clients reach it"),
    "port": Flag("0", "the older name of -rpc_port"),
    "rpc_address": Flag(
        "",
        "where to listen (empty: all interfaces with KVCOVE_CREDENTIALS or KVCOVE_INSECURE=1, else "
        "loopback); with -enable_ha how clients reach this master, too",
    ),
    "rpc_interface": Flag("", "listen at this network interface's address"),
    "metrics_port": Flag("9003", "the admin endpoint"),
    "metrics_host": Flag("", "where the admin endpoint listens (empty: as -rpc_address)"),
    "enable_http_metadata_server": Flag(False, "serve /metadata, too"),
    "http_metadata_server_host": Flag(
        "", "where that listens (empty: as -rpc_address, but loopback with KVCOVE_CREDENTIALS)"
    ),
    "http_metadata_server_port": Flag("8080", "where that listens"),
    "default_kv_lease_ttl": Flag("5000", "milliseconds for which a read guides eviction"),
    "data": Flag(
        "",
        "where generations are kept (default: a private directory in /tmp); not with -enable_ha, "
        "which keeps them in etcd",
    ),
    "config_path": Flag("", "a file with flags: a JSON object, or a line 'name: value' each"),
    "dynamic_replication_mode": Flag(
        "off", instead="a value has the replicas that its put asks for; none is added by itself"
    ),
    "enable_ha": Flag(
        False,
        "one of several masters, of which one leads: their facts are in etcd, and clients find them by "
        "etcd://HOST:2379;HOST:2379 (docs/ha.md); wants -etcd_endpoints and -rpc_address",
    ),
    "etcd_endpoints": Flag("", "with -enable_ha: the members of etcd, HOST:2379;HOST:2379"),
    "ha_backend_connstring": Flag("", "the same, and goes before -etcd_endpoints"),
    "ha_backend_type": Flag("etcd", "with -enable_ha: nothing but etcd"),
    "cluster_id": Flag(
        _config.CLUSTER_ID,
        "with -enable_ha: which masters of this etcd belong together; clients say it by "
        "MC_STORE_CLUSTER_ID",
    ),
    "enable_oplog": Flag(False, instead=_NO_OPLOG),
    "enable_oplog_snapshot": Flag(False, instead=_NO_OPLOG),
    "enable_offload": Flag(False, "puts wait while disks make room; clients say which disks"),
    "root_fs_dir": Flag(
        "", "clients with memory of their own keep on a disk there what memory evicts"
    ),
    "quota_bytes": Flag(
        "0", "with -root_fs_dir: of each of these disks (0: a quarter of what is free)"
    ),
    "offload_on_evict": Flag(True, "always so: values go to a disk when memory evicts them"),
    "offload_force_evict": Flag(
        False, "what the disk is too slow for is dropped; puts do not wait"
    ),
    "promotion_on_hit": Flag(
        True, "false: is_exist does not bring up what is on a disk; a get always does"
    ),
    "enable_cxl": Flag(False, instead="values lie in the memory of owners; no CXL memory is used"),
    "enable_kv_events": Flag(
        False, instead="the master publishes no events; KvcoveConnector does (docs/connector.md)"
    ),
    "enable_multi_tenants": Flag(
        False,
        instead="each tenant_id has keys of its own in any case; shares of memory are those of the "
        "credentials (docs/security.md), and /api/v1/tenant_quotas answers 409",
    ),
    "enable_snapshot": Flag(False, instead=_NO_SNAPSHOT),
    "enable_snapshot_restore": Flag(False, instead=_NO_SNAPSHOT),
    "weight_management_oplog_capability_confirmed": Flag(
        False, refused="the master manages no weights; an engine puts them like other values"
    ),
    **{name: Flag("", ignored=True) for name in _IGNORED},
    **{name: Flag(False, ignored=True) for name in _IGNORED_SWITCHES},
    **LOG_FLAGS,
}


def _milliseconds(text: str) -> int:
    units = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000}
    digits = text.rstrip("msh")
    unit = text[len(digits) :] or "ms"
    if not digits.isdigit() or unit not in units:
        raise ValueError(f"{text!r} is no time; 5000, 5000ms and 5s are")
    return int(digits) * units[unit]


def _failed(code: Code, status: int) -> Answer:
    return json_answer(
        {"success": False, "error_code": int(code), "error_message": code.name}, status
    )


class _Unauthorized(Exception):
    """The caller shows no bearer that the master takes."""


_LONGEST_KEY = 1024  # in bytes; stores give longer ones another name

# The parameters of paths that take some. One that is misspelt would widen the call: without
# `tenant_id`, remove_all is for all tenants.
_PARAMETERS = {
    ("GET", "/query_key"): {"key"},
    ("GET", "/batch_query_keys"): {"keys"},
    ("GET", "/query_segment"): {"segment"},
    ("GET", "/api/v1/segments/status"): {"segment"},
    ("GET", "/api/v1/drain_jobs/query"): {"job_id"},
    ("POST", "/api/v1/drain_jobs"): set[str](),
    ("POST", "/api/v1/drain_jobs/cancel"): {"job_id"},
    ("POST", "/api/v1/remove_all"): {"force", "tenant_id"},
}

# What kvcove's /readyz says of one of several masters: that program's role and state. Cut off from
# etcd a leader has stepped down, and goes on if nobody else has led.
_ROLES = {
    "leader": ("leader", "serving"),
    "leader, cut off from etcd": ("standby", "recovering"),
    "standby": ("standby", "standby"),
    "standby, without etcd": ("standby", "standby"),
}


class AdminHttp:
    """That program's admin paths, answered from kvcove's own admin endpoint.

    Where the master has credentials, whatever shows or changes the cluster is asked with the caller's
    own ``Authorization``, so that the master decides.

    Parameters
    ----------
    host, port : str, int
        Where to serve them.
    admin : str
        The URL of kvcove's.
    offload : mapping, optional
        What clients are told of offloading.
    one_of_several : str
        How clients reach this master, where others may lead; empty: it is alone, and leads.
    """

    def __init__(
        self,
        host: str,
        port: int,
        admin: str,
        offload: Mapping[str, object] | None = None,
        one_of_several: str = "",
    ) -> None:
        self._admin = admin
        self._address = one_of_several
        self._offload = dict(offload or {})
        self._caller = threading.local()  # each request has a thread of its own
        self._jobs: dict[str, int] = {}
        self._lock = threading.Lock()
        self._scrape_lock = threading.Lock()
        self._sums = OwnerSums()
        get = {
            "/metrics": self._metrics,
            "/metrics/summary": self._summary,
            "/health": self._health,
            "/role": lambda _: text_answer(self._role()[0]),
            "/ha_status": lambda _: text_answer(self._role()[1]),
            "/leader": self._leader,
            "/kv_events/status": lambda _: json_answer(
                {
                    "enabled": False,
                    "published_batches": 0,
                    "published_events": 0,
                    "dropped_events": 0,
                    "skipped_unparsed_keys": 0,
                }
            ),
            "/query_key": self._query_key,
            "/batch_query_keys": self._batch_query_keys,
            "/get_all_keys": self._all_keys,
            "/get_all_segments": self._all_segments,
            "/query_segment": self._query_segment,
            "/get_segments_detail": self._segments_detail,
            "/api/v1/segments/status": self._segment_status,
            "/api/v1/drain_jobs/query": self._drain_query,
            "/api/v1/tenant_quotas": self._no_quotas,
            "/kvcove/offload": self._offload_told,
        }
        routes = {("GET", path): handler for path, handler in get.items()}
        routes["PUT", "/api/v1/tenant_quotas"] = self._no_quotas
        routes["DELETE", "/api/v1/tenant_quotas"] = self._no_quotas
        routes["POST", "/api/v1/drain_jobs"] = self._drain
        routes["POST", "/api/v1/drain_jobs/cancel"] = self._drain_cancel
        routes["POST", "/api/v1/remove_all"] = self._remove_all
        # kvcove's own, for those who know it.
        for path in ("status", "segments", "namespaces", "keys", "key", "tasks"):
            routes["GET", f"/v1/{path}"] = self._pass_on
        for path in ("copy", "move", "reset", "remove", "drain", "repair", "cancel"):
            routes["POST", f"/v1/{path}"] = self._pass_on
        self._server = HttpServers(
            with_loopback(host),
            port,
            {route: self._as_its_caller(handler, *route) for route, handler in routes.items()},
        )
        self.port = self._server.port

    def close(self) -> None:
        """Stop."""
        self._server.close()

    # ---- asking kvcove

    def _as_its_caller(self, handler: Handler, method: str, path: str) -> Handler:
        known = _PARAMETERS.get((method, path))

        def answer(request: Request) -> Answer:
            if known is not None:
                check_names(request.query, known, "parameter")
            self._caller.authorization = request.authorization
            try:
                return handler(request)
            except _Unauthorized:
                return json_answer(
                    {
                        "error": "this master has credentials: send 'Authorization: Bearer X', X from "
                        "'kvcove token --bearer FILE', of a tenant with the scope admin"
                    },
                    401,
                )

        return answer

    def _fetch(self, path: str, body: bytes | bytearray | None = None) -> tuple[int, bytes, str]:
        request = urllib.request.Request(
            self._admin + path,
            data=body,
            headers={"Content-Type": "application/json"},  # the master asks for it
            method="GET" if body is None else "POST",
        )
        if self._caller.authorization:
            request.add_header("Authorization", self._caller.authorization)
        try:
            with open_url(request, timeout=5) as answer:
                kind = answer.headers.get("Content-Type", "text/plain")
                return answer.status, answer.read(), kind
        except urllib.error.HTTPError as error:
            if error.code == 401:
                raise _Unauthorized from None
            return error.code, error.read(), error.headers.get("Content-Type", "text/plain")

    def _ask(self, path: str, body: dict[str, Any] | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        status, answer, _ = self._fetch(path, data)
        if status == 400:  # for what the caller has named
            raise ValueError(json.loads(answer)["detail"])
        if status != 200:
            raise RuntimeError(f"the master answers {status} to {path}: {answer.decode()[:200]}")
        return json.loads(answer)

    def _pass_on(self, request: Request) -> Answer:
        query = f"?{request.raw_query}" if request.raw_query else ""
        body = request.body if request.method == "POST" else None
        return Answer(*self._fetch(request.path + query, body))

    def _role(self) -> tuple[str, str]:
        if not self._address:
            return _ROLES["leader"]
        said = self._fetch("/readyz")[1].decode().strip()
        if said not in _ROLES:
            raise RuntimeError(f"the master answers {said[:200]!r} to /readyz")
        return _ROLES[said]

    def _view(self) -> dict[str, Any]:
        """Return who leads and in which term; nobody where one master is alone, as that program says."""
        nobody = {"leader_address": None, "view_version": None}
        if not self._address:
            return nobody
        status = self._ask("/v1/status")
        leads = status["role"] == "leader"
        leader = self._address if leads else status.get("leader")
        if not leader:
            return nobody
        return {"leader_address": leader, "view_version": status.get("term")}

    def _segments(self) -> list[dict[str, Any]]:
        segments: list[dict[str, Any]] = self._ask("/v1/segments")["segments"]
        return [segment for segment in segments if segment["state"] != "gone"]

    def _drained(self) -> dict[str, bool]:
        """Return the segments that drains were asked for, and whether the last one is done.

        A segment's own count of objects is as old as its owner's last renewal, so it says nothing
        about what a drain has still to move; after the drain it says whether anything came late.
        """
        done: dict[str, bool] = {}
        for task in self._ask("/v1/tasks")["tasks"]:  # the newest comes first
            if task["kind"] == "drain":
                done.setdefault(task["from"], task["state"] == "done" and task["left"] == 0)
        return done

    @staticmethod
    def _status_of(segment: dict[str, Any], drained: dict[str, bool]) -> str:
        if segment["state"] != "draining":
            return "OK"
        if drained.get(segment["address"], False) and segment["objects"] == 0:
            return "DRAINED"
        return "DRAINING"

    def _namespaces(self) -> dict[str, int]:
        """Return that program's namespaces, in order, with their numbers of objects and replicas."""
        found: dict[str, int] = {}
        for entry in self._ask("/v1/namespaces")["namespaces"]:  # one for each weight version
            name = entry["namespace"]
            if name.split(":")[-1].split("/")[0] == "mooncake":
                found[name] = found.get(name, 0) + entry["entries"]
        return dict(sorted(found.items()))

    # ---- answers

    def _metrics(self, _request: Request) -> Answer:
        with self._scrape_lock:  # a text that is overtaken by a newer one would count as restarts
            own = self._fetch("/metrics")[1].decode()
            if self._role()[0] != "leader":
                return text_answer(own)  # a standby knows nothing of the rest
            status = self._ask("/v1/status")
            return text_answer(master_metrics(own, self._segments(), status, self._sums) + own)

    def _summary(self, _request: Request) -> Answer:
        role, state = self._role()
        view = self._view()
        leader = (
            f", leader={view['leader_address']}, view_version={view['view_version']}"
            if view["leader_address"]
            else ""
        )
        if role != "leader":
            return text_answer(f"role={role}, state={state}, service_ready=false{leader}")
        segments = self._segments()
        capacity = sum(s["capacity_bytes"] for s in segments)
        used = sum(s["capacity_bytes"] - s["free_bytes"] for s in segments)
        status = self._ask("/v1/status")
        share = 100 * used / capacity if capacity else 0.0
        return text_answer(
            f"role=leader, state=serving, service_ready=true, master={{Mem Storage: {used} B / "
            f"{capacity} B ({share:.1f}%) | Keys: {status['objects']} | Clients: {len(segments)}}}"
            f"{leader}"
        )

    def _health(self, _request: Request) -> Answer:
        role, state = self._role()
        try:
            view = self._view()
        except _Unauthorized:  # only a caller with a bearer learns the leader
            view = {"leader_address": None, "view_version": None}
        return json_answer(
            {
                "status": "ok",
                "role": role,
                "ha_state": state,
                "service_ready": role == "leader",
                **view,
            }
        )

    def _leader(self, _request: Request) -> Answer:
        view = self._view()
        return json_answer({"present": view["leader_address"] is not None, **view})

    def _offload_told(self, _request: Request) -> Answer:
        """Answer a client's setup(): this program's flags of offloading."""
        self._ask("/v1/status")  # so that the master decides who may ask
        return json_answer(self._offload)

    def _places_of(self, key: str) -> tuple[int, list[dict[str, Any]]]:
        """Return a key's bytes and where it is; nowhere for a miss."""
        if len(name := key.encode()) > _LONGEST_KEY:
            key = _native.stored_name(name).decode()
        for namespace in self._namespaces():
            query = urlencode({"key": key, "namespace": namespace})
            for entry in self._ask(f"/v1/key?{query}")["in"]:
                if entry["found"]:
                    return int(entry["bytes"]), list(entry.get("locations", []))
        return 0, []

    @staticmethod
    def _in_memory(size: int, places: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [
            {
                "size_": size,
                "buffer_address_": 0,
                "protocol_": "tcp",
                "transport_endpoint_": place["owner"],
            }
            for place in places
            if place["tier"] == "memory"
        ]

    @staticmethod
    def _on_disk(size: int, places: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [
            {
                "client_id": place["owner"],
                "object_size": size,
                "transport_endpoint": place["owner"],
            }
            for place in places
            if place["tier"] == "disk"
        ]

    def _query_key(self, request: Request) -> Answer:
        size, places = self._places_of(request.query.get("key", ""))
        if not places:
            return _failed(Code.OBJECT_NOT_FOUND, 404)
        return json_answer({"success": True, "data": self._in_memory(size, places)})

    def _batch_query_keys(self, request: Request) -> Answer:
        keys = [key for key in request.query.get("keys", "").split(",") if key]
        if not keys:
            text = "No keys provided. Use ?keys=key1,key2,..."
            return json_answer({"success": False, "error": text}, 400)
        data = {}
        for key in keys:
            size, places = self._places_of(key)
            data[key] = {
                "ok": bool(places),
                "error": None if places else "OBJECT_NOT_FOUND",
                "values": self._in_memory(size, places) if places else None,
                "disk_values": None,
                "local_disk_values": self._on_disk(size, places) or None,
                "nof_values": None,
            }
        return json_answer({"success": True, "data": data})

    def _all_keys(self, _request: Request) -> Answer:
        seen: dict[str, None] = {}
        for namespace in self._namespaces():
            after = ""
            while True:
                query = {"namespace": namespace, "limit": 1000}
                if after:
                    query["after"] = after
                page = self._ask(f"/v1/keys?{urlencode(query)}")
                seen.update((entry["key"], None) for entry in page["keys"])
                after = page.get("next", "")
                if not after:
                    break
        return text_answer("".join(f"{key}\n" for key in seen))

    def _all_segments(self, _request: Request) -> Answer:
        return text_answer("".join(f"{s['address']}\n" for s in self._segments()))

    def _segment(self, request: Request) -> dict[str, Any] | None:
        name = request.query.get("segment", "")
        return next((s for s in self._segments() if s["address"] == name), None)

    def _query_segment(self, request: Request) -> Answer:
        segment = self._segment(request)
        if segment is None:
            return text_answer("Failed to query segment", 500)
        used = segment["capacity_bytes"] - segment["free_bytes"]
        return text_answer(
            f"{segment['address']}\nUsed(bytes): {used}\n"
            f"Capacity(bytes) : {segment['capacity_bytes']}\n"
        )

    def _segments_detail(self, _request: Request) -> Answer:
        segments = []
        drained = self._drained()
        for s in self._segments():
            used = s["capacity_bytes"] - s["free_bytes"]
            segments.append(
                {
                    "segment_name": s["address"],
                    "segment_id": s["address"],
                    "client_id": s["address"],
                    "base_address": "0x0",
                    "size_bytes": s["capacity_bytes"],
                    "size_human": f"{s['capacity_bytes'] / 2**30:.4g} GiB",
                    "te_endpoint": s["address"],
                    "protocol": "tcp",
                    "status": self._status_of(s, drained),
                    "allocator_used_bytes": used,
                    "allocator_capacity_bytes": s["capacity_bytes"],
                    "allocator_usage_percent": 100 * used / max(s["capacity_bytes"], 1),
                }
            )
        return json_answer({"total_segments": len(segments), "segments": segments})

    def _segment_status(self, request: Request) -> Answer:
        if not request.query.get("segment"):
            return json_answer(
                {
                    "success": False,
                    "error_code": int(Code.INVALID_PARAMS),
                    "error_message": "Missing segment query parameter",
                },
                400,
            )
        # The task first: what it has moved, the count that is asked for after it may know.
        drained = self._drained()
        segment = self._segment(request)
        if segment is None:
            return _failed(Code.SEGMENT_NOT_FOUND, 404)
        name = self._status_of(segment, drained)
        return json_answer(
            {
                "success": True,
                "segment": segment["address"],
                "status": {"OK": 1, "DRAINING": 2, "DRAINED": 3}[name],
                "status_name": name,
                "error_code": 0,
                "error_message": "",
            }
        )

    def _no_quotas(self, _request: Request) -> Answer:
        return _failed(Code.UNAVAILABLE_IN_CURRENT_MODE, 409)

    def _drain(self, request: Request) -> Answer:
        segments = request.json().get("segments")
        if not isinstance(segments, list) or len(segments) != 1:
            raise ValueError("segments: a list of one segment is wanted; drain them one by one")
        if not any(s["address"] == segments[0] for s in self._segments()):
            return _failed(Code.SEGMENT_NOT_FOUND, 404)
        task = int(self._ask("/v1/drain", {"owner": segments[0]})["task"])
        job = f"drain-{task}"
        with self._lock:
            self._jobs[job] = task
        return json_answer({"success": True, "job_id": job, "status": "CREATED"})

    def _job(self, request: Request) -> tuple[str, dict[str, Any] | None]:
        job = request.query.get("job_id", "")
        with self._lock:
            number = self._jobs.get(job)
        tasks = self._ask("/v1/tasks")["tasks"]  # a standby says which master leads
        return job, next((t for t in tasks if t["id"] == number), None)

    def _drain_query(self, request: Request) -> Answer:
        job, task = self._job(request)
        if not job:
            return json_answer(
                {
                    "success": False,
                    "error_code": int(Code.INVALID_PARAMS),
                    "error_message": "Missing or invalid job_id",
                },
                400,
            )
        if task is None:
            return json_answer(
                {"success": False, "error_code": -1402, "error_message": "JOB_NOT_FOUND"}, 404
            )
        status = {"done": "SUCCEEDED", "failed": "FAILED", "cancelled": "CANCELED"}
        return json_answer(
            {
                "success": True,
                "job_id": job,
                "type_name": "DRAIN",
                "status_name": status.get(task["state"], "RUNNING"),
                "succeeded_units": task["copied"],
                "failed_units": task["left"] if task["state"] == "failed" else 0,
                "blocked_units": 0,
                "active_units": task["left"] if task["state"] == "running" else 0,
                "migrated_bytes": task["copied_bytes"],
                "message": task["message"],
            }
        )

    def _drain_cancel(self, request: Request) -> Answer:
        job, task = self._job(request)
        if task is None:
            return json_answer(
                {"success": False, "error_code": -1402, "error_message": "JOB_NOT_FOUND"}, 404
            )
        self._ask("/v1/cancel", {"id": task["id"]})
        return json_answer({"success": True, "job_id": job, "status": "CANCELED"})

    def _remove_all(self, request: Request) -> Answer:
        tenant = request.query.get("tenant_id")
        force = request.query.get("force", "false").lower()
        if force not in ("true", "1", "false", "0"):
            raise ValueError(f"force={force[:16]!r} is neither true nor false")
        wanted = self._namespaces()
        if tenant is not None:
            name = "mooncake" if tenant == "default" else f"mooncake/{tenant}"
            wanted = {n: entries for n, entries in wanted.items() if n.split(":")[-1] == name}
        removed = 0
        for namespace, entries in wanted.items():
            if force in ("true", "1"):
                # Counted before: a reset costs the same whatever it removes, and so counts nothing.
                self._ask("/v1/reset", {"namespace": namespace})
                removed += entries
            else:
                body = {"namespace": namespace, "pattern": "*"}
                removed += int(self._ask("/v1/remove", body).get("removed", 0))
        return json_answer({"success": True, "removed_count": removed})


def _offload_of(values: Values) -> dict[str, object]:
    """Return the flags of offloading for clients: of the switches only those that were given."""
    root = str(values["root_fs_dir"])
    if root and not Path(root).is_absolute():
        raise ValueError(f"-root_fs_dir={root}: an absolute path is wanted")
    quota = _config.parse_size(values["quota_bytes"])
    told: dict[str, object] = {"root_fs_dir": root, "quota_bytes": quota}
    for name in ("enable_offload", "offload_force_evict", "promotion_on_hit"):
        if name in values.given:
            told[name] = values[name]
    if "offload_on_evict" in values.given and not values["offload_on_evict"]:
        print(
            f"{_PROGRAM}: -offload_on_evict=false: values go to a disk when memory evicts them, not "
            "when they are put",
            file=sys.stderr,
        )
    return told


def _store_of(values: Values) -> str:
    """Return where several masters keep their facts; empty: this one is alone."""
    endpoints = str(values["ha_backend_connstring"] or values["etcd_endpoints"])
    if not values["enable_ha"]:
        names = ("etcd_endpoints", "ha_backend_connstring", "ha_backend_type", "cluster_id")
        if given := ", ".join(f"-{name}" for name in names if name in values.given):
            print(f"{_PROGRAM}: warning: {given}: not used without -enable_ha", file=sys.stderr)
        return ""
    if (backend := str(values["ha_backend_type"])) != "etcd":
        raise ValueError(
            f"-ha_backend_type={backend}: several masters find each other through etcd alone: "
            "-ha_backend_type=etcd -etcd_endpoints=HOST:2379;HOST:2379"
        )
    if not endpoints:
        raise ValueError(
            "-enable_ha: -etcd_endpoints is missing: the members of etcd, such as "
            "10.0.0.1:2379;10.0.0.2:2379"
        )
    if values["data"]:
        raise ValueError(f"-data={values['data']}: with -enable_ha facts are in etcd: leave it out")
    named = str(values["cluster_id"]) if "cluster_id" in values.given else ""
    return _config.etcd_place(endpoints, named)


_LONGEST_LEASE_MS = 24 * 3_600_000  # of the pool's holds


def _listen_at(values: Values) -> str:
    """Return the address to listen at: other hosts get in if the launch says so."""
    if interface := str(values["rpc_interface"]):
        return _address.interface_address(interface)
    named = str(values["rpc_address"]).strip("[]")
    if values["enable_ha"] and (not named or _address.is_wildcard(named)):
        raise ValueError(
            f"-enable_ha: -rpc_address={named}: clients and the other masters reach this one there, so "
            "an address of this host is wanted (or -rpc_interface=NAME)"
        )
    if named:
        return named
    if credentials() or insecure():
        return "0.0.0.0"
    return "127.0.0.1"


def _make_job_credentials(values: Values) -> None:
    """Make credentials of this job of SLURM where the launch does not say who gets in."""
    named = values["rpc_address"] or values["rpc_interface"] or values["enable_ha"]
    if named or insecure() or os.environ.get("KVCOVE_CREDENTIALS"):
        return
    try:
        made = _job.make()
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        print(f"{_PROGRAM}: warning: no credentials for this job: {error}", file=sys.stderr)
        return
    if made is not None:
        atexit.register(shutil.rmtree, made, ignore_errors=True)
        print(
            f"{_PROGRAM}: who gets in: this job of SLURM, by the credentials in {made}; KVCOVE_CREDENTIALS=FILE "
            "and KVCOVE_INSECURE=1 say otherwise",
            file=sys.stderr,
        )


def main() -> None:
    """Serve until SIGTERM."""
    begin()
    values = parse(_PROGRAM, sys.argv[1:], _FLAGS, "the master of a cluster, on kvcove")
    if mixed := check_commands():
        fail(_PROGRAM, mixed)
    try:
        older = "rpc_port" not in values.given and values["port"] != "0"
        port = values.port("port" if older else "rpc_port")
        metrics_port = values.port("metrics_port")
        metadata_port = values.port("http_metadata_server_port")
        lease_ms = _milliseconds(str(values["default_kv_lease_ttl"]))
        if lease_ms > _LONGEST_LEASE_MS:
            raise ValueError(
                f"-default_kv_lease_ttl={values['default_kv_lease_ttl']}: a read holds a value for 24 h "
                "(86400000) at most; what must stay longer is pinned (with_hard_pin, soft_pin_ttl_ms)"
            )
        store = _store_of(values)
        data = str(values["data"])
        if not store and not data:
            data = str(_config.private_directory() / f"mooncake_master-{port}")
        offload = _offload_of(values)
        _make_job_credentials(values)
        host = _listen_at(values)
        arguments = log_arguments(values)
    except (OSError, ValueError) as error:
        fail(_PROGRAM, str(error))
    listen = _config.join_address(host, port)
    arguments += ["master", "--listen", listen, "--admin", "127.0.0.1:0"]
    # `kvcove master` takes etcd's user and TLS files from its own environment.
    arguments += ["--store", store] if store else ["--data", data]
    if store and port != 0:
        arguments += ["--advertise", listen]  # as the launch writes it: a name stays one
    arguments += allow_open(_PROGRAM, host)
    metrics_host = str(values["metrics_host"]).strip("[]") or host
    arguments += ["--read-hold", str(max(lease_ms, 1) / 1000)]
    if metrics_port != 0:
        arguments += ["--announce-admin", _config.join_address(metrics_host, metrics_port)]
    child = None
    servers: list[Any] = []
    try:
        # "master at H:P (data in '...', ...", or "one of several masters at H:P (store ..., ...".
        child = Child(arguments, r"masters? at (\S+) \((?:data in|store) .*, admin (http://\S+)\)")
        assert child.match is not None
        reached, admin = listen if port else child.match[1], child.match[2]
        stop = StopSignals()
        servers.append(
            AdminHttp(metrics_host, metrics_port, admin, offload, reached if store else "")
        )
        if values["enable_http_metadata_server"]:
            # It knows no credentials, so where there are some it is opened by name only.
            usual = "127.0.0.1" if credentials() else host
            metadata_host = str(values["http_metadata_server_host"]).strip("[]") or usual
            servers.append(MetadataServer(metadata_host, metadata_port))
    except (OSError, RuntimeError, ValueError) as error:
        if child is not None:
            child.stop()
        fail(_PROGRAM, str(error))
    if _address.is_loopback(host):
        print(
            f"{_PROGRAM}: only this host gets in at {listen}; for others set "
            "KVCOVE_CREDENTIALS=FILE (kvcove token), or -rpc_address=ADDRESS or KVCOVE_INSECURE=1 "
            "where the network keeps strangers out; docs/mooncake.md",
            file=sys.stderr,
        )
    print(
        f"{_PROGRAM}: serving at {listen}, admin "
        f"http://{_config.join_address(metrics_host, servers[0].port)}, "
        + (f"one of several on {store}" if store else f"generations kept in {data}"),
        flush=True,
    )
    status = stop.wait(child)
    for server in servers:
        server.close()
    child.stop()
    sys.exit(status)


if __name__ == "__main__":
    main()
