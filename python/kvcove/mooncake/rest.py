# SPDX-License-Identifier: Apache-2.0
"""``mc_store_rest_server``: a store over HTTP (put, get, exist, remove, segments)."""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import time
from collections.abc import Callable
from typing import Any

from kvcove.mooncake._http import Answer, HttpServer, Request, json_answer, last_segment
from kvcove.mooncake._process import wait_for_stop
from kvcove.mooncake.mooncake_config import MooncakeConfig
from kvcove.mooncake.store import MooncakeDistributedStore

__all__ = ["RestServer", "main", "sync_main"]

_log = logging.getLogger("kvcove.mooncake")
_SHM = "/dev/shm"


def _error(text: str, status: int) -> Answer:
    return json_answer({"error": text}, status)


class RestServer:
    """The paths of that service, over one store."""

    def __init__(self, store: MooncakeDistributedStore, host: str, port: int) -> None:
        self._store = store
        self._decode: list[str] = []
        post: dict[str, Callable[[Request], Answer]] = {
            "/api/mount": self._mount,
            "/api/unmount": self._unmount,
            "/api/mount_shm": self._mount_shm,
            "/api/unmount_shm": self._unmount,
            "/api/unmount_local_disk": self._unmount_local_disk,
            "/api/reconfigure": self._reconfigure,
        }
        routes = {("POST", path): handler for path, handler in post.items()}
        routes["PUT", "/api/put"] = self._put
        routes["GET", "/api/get/*"] = self._get
        routes["GET", "/api/exist/*"] = self._exist
        routes["DELETE", "/api/remove/*"] = self._remove
        routes["DELETE", "/api/remove_all"] = self._remove_all
        routes["GET", "/health"] = self._health
        self._server = HttpServer(host, port, routes)
        self.port = self._server.port

    def close(self) -> None:
        """Stop."""
        self._server.close()

    def _health(self, _request: Request) -> Answer:
        code = self._store.health_check()
        return json_answer({"status": code}, 200 if code == 0 else 503)

    def _put(self, request: Request) -> Answer:
        body = request.json()
        key, value = body.get("key"), body.get("value")
        if not key or value is None:
            return _error("Missing key or value", 400)
        if not isinstance(key, str) or not isinstance(value, str):
            return _error("key and value are text", 400)
        code = self._store.put(key, value.encode())
        return (
            json_answer({"status": "success"}) if code == 0 else _error(f"PUT failed: {code}", 500)
        )

    def _get(self, request: Request) -> Answer:
        key = last_segment(request)
        value = self._store.get(key)
        if value:
            return Answer(200, value, "application/octet-stream")
        found = self._store.is_exist(key)
        return _error("Key not found", 404) if found == 0 else _error(f"GET failed: {found}", 500)

    def _exist(self, request: Request) -> Answer:
        found = self._store.is_exist(last_segment(request))
        return (
            json_answer({"exists": found == 1}) if found >= 0 else _error(f"failed: {found}", 500)
        )

    def _remove(self, request: Request) -> Answer:
        code = self._store.remove(last_segment(request))
        return json_answer({"status": "success"}) if code == 0 else _error(f"failed: {code}", 500)

    def _remove_all(self, _request: Request) -> Answer:
        count = self._store.remove_all()
        if count < 0:
            return _error(f"failed: {count}", 500)
        return json_answer({"status": f"success removed {count} keys"})

    @staticmethod
    def _size(body: dict[str, Any]) -> int:
        size = body.get("size")
        if not isinstance(size, int) or isinstance(size, bool) or size <= 0:
            raise ValueError(f"size: {size!r} is no positive number of bytes")
        return size

    def _mount(self, request: Request) -> Answer:
        body = request.json()
        answer = self._store.allocate_and_mount_segment(self._size(body))
        return self._mounted(answer, with_size=True)

    @staticmethod
    def _mounted(answer: dict[str, Any], *, with_size: bool) -> Answer:
        if answer["ret"] != 0:
            return _error(f"mount failed: {answer['ret']}", 500)
        result = {"status": "success", "segment_ids": answer["segment_ids"]}
        if with_size:
            result["allocated_size"] = answer["allocated_size"]
        return json_answer(result)

    @staticmethod
    def _path_of(name: Any) -> str:
        if not isinstance(name, str) or not name or "/" in name or name in (".", ".."):
            raise ValueError(f"name: {name!r} names nothing in {_SHM}")
        return f"{_SHM}/{name}"

    def _mount_shm(self, request: Request) -> Answer:
        body = request.json()
        offset = body.get("offset", 0)
        answer = self._store.mount_segment(
            self._path_of(body.get("name")), self._size(body), offset
        )
        return self._mounted(answer, with_size=False)

    def _unmount(self, request: Request) -> Answer:
        body = request.json()
        names = body.get("segment_ids")
        names = [names] if isinstance(names, str) else names
        if not isinstance(names, list) or not names:
            return _error("segment_ids: a name or a list of names is wanted", 400)
        grace = body.get("grace_period_seconds", 0)
        if not isinstance(grace, int) or not 0 <= grace <= 3600:
            return _error("grace_period_seconds: from 0 to 3600", 400)
        failed = [name for name in names if self._store.unmount_segment([name], grace) != 0]
        if failed:
            text = {"error": "unmount failed", "failed_segment_ids": failed}
            return json_answer(text, 500)
        return json_answer({"status": "success"})

    def _unmount_local_disk(self, request: Request) -> Answer:
        grace = request.json().get("grace_period_seconds", 0)
        if not isinstance(grace, int) or not 0 <= grace <= 3600:
            return _error("grace_period_seconds: from 0 to 3600", 400)
        code = self._store.unmount_local_disk_segment(grace)
        if code != 0:
            return _error(f"unmount_local_disk_segment answers {code}", 500)
        return json_answer({"status": "success"})

    def _reconfigure(self, request: Request) -> Answer:
        body = request.json()
        mode = body.get("mode")
        if mode == "prefill":
            if self._decode and self._store.unmount_segment(self._decode) != 0:
                return _error("unmount failed", 500)
            self._decode = []
            return json_answer({"status": "success", "mode": mode})
        if mode == "decode":
            path = body.get("path")
            if not isinstance(path, str) or not path:
                return _error("path is missing", 400)
            answer = self._store.mount_segment(path, self._size(body), body.get("offset", 0))
            if answer["ret"] != 0:
                return _error(f"mount failed: {answer['ret']}", 500)
            self._decode += answer["segment_ids"]
            return json_answer(
                {"status": "success", "mode": mode, "segment_ids": answer["segment_ids"]}
            )
        return _error(f"mode: {mode!r} is neither 'decode' nor 'prefill'", 400)


def _configuration(options: argparse.Namespace) -> MooncakeConfig:
    config: dict[str, Any] = {}
    if options.config:
        with open(options.config, encoding="utf-8") as file:
            config = json.load(file)
    elif os.environ.get("MOONCAKE_CONFIG_PATH") or os.environ.get("MOONCAKE_MASTER"):
        if not options.define:
            return MooncakeConfig.load_from_env()
        config = vars(MooncakeConfig.load_from_env())
    for pair in options.define:
        name, equals, value = pair.partition("=")
        if not equals or name not in MooncakeConfig.__dataclass_fields__:
            known = ", ".join(MooncakeConfig.__dataclass_fields__)
            raise ValueError(f"-D {pair}: NAME=VALUE is wanted, NAME one of {known}")
        config[name] = value
    import tempfile

    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(config, file)
        file.flush()
        return MooncakeConfig.from_file(file.name)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="mc_store_rest_server", description="A store over HTTP, on loopback."
    )
    parser.add_argument("--config", help="a JSON configuration file")
    parser.add_argument("-D", "--define", action="append", default=[], help="NAME=VALUE over it")
    parser.add_argument("--port", type=int, default=8080)
    parser.add_argument("--host", default="127.0.0.1", help="where to listen (default: loopback)")
    parser.add_argument("--max-wait-time", type=float, default=60, help="for the master, seconds")
    return parser


def parse_arguments() -> argparse.Namespace:
    """Return the options of the command line."""
    return _parser().parse_args()


def main() -> None:
    """Serve until SIGTERM."""
    parser = _parser()
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO)
    try:
        config = _configuration(options)
    except (OSError, ValueError) as error:
        parser.exit(2, f"{parser.prog}: {error}\n")
    store = MooncakeDistributedStore()
    until = time.monotonic() + options.max_wait_time
    while True:
        code = store.setup(
            config.local_hostname,
            config.metadata_server,
            config.global_segment_size,
            config.local_buffer_size,
            config.protocol,
            config.device_name or "",
            config.master_server_address,
            tenant_id=config.tenant_id,
            enable_client_http_server=config.enable_client_http_server,
            client_http_port=config.client_http_port,
        )
        if code == 0:
            break
        if time.monotonic() > until:
            parser.exit(1, f"{parser.prog}: setup failed: {code}\n")
        time.sleep(1)
    try:
        server = RestServer(store, options.host, options.port)
    except OSError as error:
        store.close()
        parser.exit(2, f"{parser.prog}: {options.host}:{options.port}: {error}\n")
    print(f"{parser.prog}: serving at http://{options.host}:{server.port}", flush=True)
    status = wait_for_stop()
    server.close()
    store.close()
    sys.exit(status)


def sync_main() -> None:
    """As :func:`main`."""
    main()


if __name__ == "__main__":
    main()
