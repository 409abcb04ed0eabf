# SPDX-License-Identifier: Apache-2.0
"""``mc_store_rest_server``: a store over HTTP (put, get, exist, remove, segments)."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import logging
import os
import re
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, NoReturn, Protocol

from kvcove.mooncake._http import (
    Answer,
    AsyncHandler,
    HttpServer,
    Request,
    check_names,
    in_thread,
    json_answer,
    last_segment,
)
from kvcove.mooncake._process import begin
from kvcove.mooncake._types import Code
from kvcove.mooncake.mooncake_config import MooncakeConfig
from kvcove.mooncake.store import MooncakeDistributedStore

__all__ = ["MooncakeStoreService", "main", "parse_arguments", "sync_main"]

_log = logging.getLogger("kvcove.mooncake")
_PROGRAM = "mc_store_rest_server"
_SHM = "/dev/shm"
_RETRY_SECONDS = 1.0  # between two attempts to set the store up
_MAX_GRACE_SECONDS = 3600
# The store keeps no empty values. An empty answer beside "it is there" means that the key was put in between.
_READS = 3
_PART = ("size", "offset", "protocol", "location")  # of a file that is mounted
_MOST_BYTES = 2**63 - 1  # of an object, a file or a segment
_SURROGATE = re.compile("[\ud800-\udfff]")


class _Asked(Protocol):
    """A request as the handlers take it: this server's, or one of aiohttp."""

    match_info: Any

    async def json(self) -> Any: ...


class _HttpRequest:
    def __init__(self, request: Request) -> None:
        self._request = request
        self.match_info = {"key": last_segment(request)}

    async def json(self) -> Any:
        return self._request.json()


def _error(text: str, status: int, **more: Any) -> Answer:
    return json_answer({"error": text, **more}, status)


def _success(**more: Any) -> Answer:
    return json_answer({"status": "success", **more})


_Method = Callable[["MooncakeStoreService", _Asked], Coroutine[Any, Any, Answer]]


def _handler(method: _Method) -> _Method:
    """Answer 400 for a ValueError, 500 for any other exception."""

    @functools.wraps(method)
    async def answer(self: MooncakeStoreService, request: _Asked) -> Answer:
        try:
            return await method(self, request)
        except ValueError as error:
            return _error(str(error), 400)
        except Exception as error:
            _log.exception("%s", method.__name__)
            return _error(str(error), 500)

    return answer


async def _body(request: _Asked, *known: str) -> dict[str, Any]:
    """Return the body, an object with some of these fields."""
    body = await request.json()
    if not isinstance(body, dict):
        raise ValueError("the body is no JSON object")
    check_names(body, known, "field")
    for name, value in body.items():
        for text in value if isinstance(value, list) else [value]:
            if isinstance(text, str) and not text.isascii() and _SURROGATE.search(text):
                raise ValueError(f"{name} has half a surrogate pair, which is no character")
    return body


def _failed(code: int, text: str) -> Answer:
    """Answer a code of the store: 400 where the caller's words are wrong."""
    return _error(f"{text}: {code}", 400 if code == Code.INVALID_PARAMS else 500)


def _whole(body: dict[str, Any], name: str, least: int, most: int = _MOST_BYTES) -> int:
    """Return a field that is a whole number, 0 if it is not there."""
    value = body.get(name, 0)
    if type(value) is not int or not least <= value <= most:
        wanted = f"of {least} or more" if most == _MOST_BYTES else f"from {least} to {most}"
        raise ValueError(f"Invalid {name}, a whole number {wanted} is wanted: {str(value)[:64]}")
    return value


def _key(request: _Asked) -> str:
    key = request.match_info["key"]
    if not key:
        raise ValueError("Missing key: it is the end of the path")
    return str(key)


def _grace(body: dict[str, Any]) -> int:
    return _whole(body, "grace_period_seconds", 0, _MAX_GRACE_SECONDS)


def _segments(body: dict[str, Any]) -> list[str]:
    names = body.get("segment_ids")
    names = [names] if isinstance(names, str) else names
    if not isinstance(names, list) or not names or not all(isinstance(one, str) for one in names):
        raise ValueError("Missing segment_ids: a name or a list of names is wanted")
    return names


def _shm_name_to_path(name: Any) -> str | None:
    """Return where the shared memory of this name lies; None: that is no name of any."""
    plain = name.removeprefix("/") if isinstance(name, str) else ""
    return None if plain in ("", ".", "..") or "/" in plain else f"{_SHM}/{plain}"


class MooncakeStoreService:
    """A store, and the paths of ``/api`` over it.

    The handlers may be called in a running event loop; calls of the store run in threads of their own.

    Parameters
    ----------
    config_path : str, optional
        A JSON file. Without one, the environment (:meth:`MooncakeConfig.load_from_env`).
    cli_config : dict, optional
        Fields over it, as text or as their types.

    Attributes
    ----------
    store : MooncakeDistributedStore or None
    config : MooncakeConfig
    current_mode : str
        ``prefill``, or ``decode`` while segments of ``/api/reconfigure`` are mounted.
    mounted_segment_ids : list of str
        These segments.
    last_mount_info : dict
        How the last of them was mounted.
    port : int
        Where it serves.

    Raises
    ------
    OSError
        The file cannot be read.
    ValueError
        A field is unknown, missing or not usable.
    """

    def __init__(
        self, config_path: str | None = None, cli_config: dict[str, Any] | None = None
    ) -> None:
        self.store: Any = None
        self.config = _configuration(config_path, cli_config or {})
        self.current_mode = "prefill"
        self.mounted_segment_ids: list[str] = []
        self.last_mount_info: dict[str, Any] = {}
        self.port = 0
        self._server: HttpServer | None = None
        self._state_lock = asyncio.Lock()  # of the segments; one change at a time

    async def start_store_service(
        self, max_wait_time: float = 60, shutdown_event: asyncio.Event | None = None
    ) -> bool:
        """Set the store up, again and again while no master answers; whether it is.

        Parameters
        ----------
        max_wait_time : float
            Seconds.
        shutdown_event : asyncio.Event, optional
            Ends it when it is set.
        """
        stopped = shutdown_event or asyncio.Event()
        until = time.monotonic() + max_wait_time
        while not stopped.is_set():
            failed = self._set_up()
            await asyncio.sleep(0)  # a signal that came during setup() is heard here
            if stopped.is_set():
                break
            if failed is None:
                return True
            left = until - time.monotonic()
            if left <= 0:
                _log.error("the store is not set up after %s s: %s", max_wait_time, failed)
                return False
            _log.warning("the store is not set up: %s; trying again", failed)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stopped.wait(), min(_RETRY_SECONDS, left))
        await self.stop()
        return False

    def _set_up(self) -> str | None:
        """Try once; return why it failed."""
        config = self.config
        self.store = None
        try:
            store = MooncakeDistributedStore()
            code = store.setup(
                {
                    "local_hostname": config.local_hostname,
                    "metadata_server": config.metadata_server,
                    "global_segment_size": config.global_segment_size,
                    "local_buffer_size": config.local_buffer_size,
                    "protocol": config.protocol,
                    "rdma_devices": config.device_name or "",
                    "master_server_addr": config.master_server_address,
                    "enable_ssd_offload": config.enable_ssd_offload,
                    "ssd_offload_path": config.ssd_offload_path,
                    "tenant_id": config.tenant_id,
                    "enable_client_http_server": config.enable_client_http_server,
                    "client_http_port": config.client_http_port,
                }
            )
        except Exception as error:  # of a store of another make, too
            return str(error)
        if code != 0:
            return f"setup answers {code}"
        self.store = store
        return None

    async def start_http_service(self, port: int = 8080, host: str = "127.0.0.1") -> bool:
        """Serve at a port, 0 for any; whether it does.

        Raises
        ------
        OSError
            It cannot listen there.
        """
        handlers: dict[tuple[str, str], Callable[[_Asked], Awaitable[Answer]]] = {
            ("POST", "/api/reconfigure"): self.handle_reconfigure,
            ("POST", "/api/mount_shm"): self.handle_mount_shm,
            ("POST", "/api/unmount_shm"): self.handle_unmount_shm,
            ("POST", "/api/mount"): self.handle_mount,
            ("POST", "/api/unmount"): self.handle_unmount,
            ("POST", "/api/unmount_local_disk"): self.handle_unmount_local_disk,
            ("PUT", "/api/put"): self.handle_put,
            ("GET", "/api/get/*"): self.handle_get,
            ("GET", "/api/exist/*"): self.handle_exist,
            ("DELETE", "/api/remove/*"): self.handle_remove,
            ("DELETE", "/api/remove_all"): self.handle_remove_all,
            ("GET", "/health"): self._health,
        }

        def route(handler: Callable[[_Asked], Awaitable[Answer]]) -> AsyncHandler:
            async def serve(request: Request) -> Answer:
                if request.path != "/health":  # which probes ask in their own ways
                    check_names(request.query, (), "parameter")
                return await handler(_HttpRequest(request))

            return serve

        routes = {where: route(handler) for where, handler in handlers.items()}
        self._server = HttpServer(host, port, routes)
        self.port = self._server.port
        return True

    async def stop(self) -> None:
        """Serve no longer, and close the store."""
        server, self._server = getattr(self, "_server", None), None
        if server is not None:
            await in_thread(server.close)
        store, self.store = self.store, None
        if store is not None and (code := store.close()) != 0:
            _log.warning("the store's close returned %s", code)

    async def _call(self, name: str, *arguments: Any) -> Any:
        """Call the store, which may take its time."""
        method = getattr(self.store, name)
        return await in_thread(lambda: method(*arguments))

    @_handler
    async def _health(self, _request: _Asked) -> Answer:
        code = await self._call("health_check")
        return json_answer({"status": code}, 200 if code == 0 else 503)

    @_handler
    async def handle_put(self, request: _Asked) -> Answer:
        """Store ``value`` under ``key``, both text."""
        body = await _body(request, "key", "value")
        key, value = body.get("key"), body.get("value")
        if not key or value is None:
            raise ValueError("Missing key or value")
        if not isinstance(key, str) or not isinstance(value, str):
            raise ValueError("key and value are text")
        code = await self._call("put", key, value.encode())
        return _success() if code == 0 else _failed(code, "PUT operation failed")

    @_handler
    async def handle_get(self, request: _Asked) -> Answer:
        """Answer with the value."""
        key = _key(request)
        for _ in range(_READS):
            value = await self._call("get", key)
            if value is None:
                break
            if value:
                return Answer(200, value, "application/octet-stream")
            found = await self._call("is_exist", key)
            if found == 0:
                return _error("Key not found", 404)
            if found < 0:
                return _failed(found, "Exist check failed")
        return _error("GET operation failed", 500)

    @_handler
    async def handle_exist(self, request: _Asked) -> Answer:
        """Answer whether a key is there."""
        found = await self._call("is_exist", _key(request))
        if found < 0:
            return _failed(found, "Exist check failed")
        return json_answer({"exists": found > 0})

    @_handler
    async def handle_remove(self, request: _Asked) -> Answer:
        """Remove a key."""
        code = await self._call("remove", _key(request))
        return _success() if code == 0 else _failed(code, "Remove operation failed")

    @_handler
    async def handle_remove_all(self, _request: _Asked) -> Answer:
        """Remove all keys."""
        count = await self._call("remove_all")
        if count < 0:
            return _error(f"RemoveAll operation failed: {count}", 500)
        return json_answer({"status": f"success removed {count} keys"})

    @_handler
    async def handle_mount(self, request: _Asked) -> Answer:
        """Give ``size`` bytes more to the cluster."""
        body = await _body(request, "size", "protocol", "location")
        size = _whole(body, "size", 1)
        answer = await self._call("allocate_and_mount_segment", size, *self._where(body))
        if answer["ret"] != 0:
            return _error(f"Allocate and mount failed, ret={answer['ret']}", 500)
        return _success(
            segment_ids=list(answer["segment_ids"]), allocated_size=answer["allocated_size"]
        )

    @_handler
    async def handle_unmount(self, request: _Asked) -> Answer:
        """Take back what ``/api/mount`` gave."""
        body = await _body(request, "segment_ids", "grace_period_seconds")
        code = await self._call("unmount_and_free_segment", _segments(body), _grace(body))
        return _success() if code == 0 else _error(f"Unmount and free failed, ret={code}", 500)

    @_handler
    async def handle_mount_shm(self, request: _Asked) -> Answer:
        """Give as much as a part of a file in shared memory has."""
        body = await _body(request, "name", *_PART)
        path = _shm_name_to_path(body.get("name"))
        if path is None or body.get("size") is None:
            raise ValueError(f"Missing or invalid name or size: name names a file in {_SHM}")
        mounted, code = await self._mount(path, body)
        if mounted is None:
            return _error(f"Mount failed, ret={code}", 500)
        return _success(segment_ids=mounted)

    @_handler
    async def handle_unmount_shm(self, request: _Asked) -> Answer:
        """Take segments back."""
        body = await _body(request, "segment_ids", "grace_period_seconds")
        names, grace = _segments(body), _grace(body)
        async with self._state_lock:
            failed = await self._unmount(names, grace)
            if not self.mounted_segment_ids:
                self.current_mode = "prefill"
        if failed:
            return _error("Unmount failed for one or more segments", 500, failed_segment_ids=failed)
        return _success()

    @_handler
    async def handle_unmount_local_disk(self, request: _Asked) -> Answer:
        """Let go of the store's disk; readers have ``grace_period_seconds`` to end."""
        body = await _body(request, "grace_period_seconds")
        code = await self._call("unmount_local_disk_segment", _grace(body))
        return _success() if code == 0 else _error(f"Unmount local disk failed, ret={code}", 500)

    @_handler
    async def handle_reconfigure(self, request: _Asked) -> Answer:
        """Mount a segment for decoding in place of the last one, or none for prefill."""
        body = await _body(request, "mode", "path", *_PART)
        mode = body.get("mode")
        mode = mode.lower() if isinstance(mode, str) else mode
        if mode not in ("decode", "prefill"):
            raise ValueError(f"Invalid mode {mode!r}. Use 'decode' or 'prefill'")
        async with self._state_lock:
            return await (self._to_decode(body) if mode == "decode" else self._to_prefill())

    async def _to_prefill(self) -> Answer:
        if failed := await self._unmount(list(self.mounted_segment_ids), 0):
            return _error("Unmount failed", 500, failed_segment_ids=failed)
        self.current_mode = "prefill"
        self.last_mount_info.clear()
        return _success(mode=self.current_mode)

    async def _to_decode(self, body: dict[str, Any]) -> Answer:
        """Mount the new segment before the old ones are let go: the capacity never falls to nothing."""
        path = body.get("path")
        if not isinstance(path, str) or not path or body.get("size") is None:
            raise ValueError("Missing path or size for decode mode")
        old = list(self.mounted_segment_ids)
        mounted, code = await self._mount(path, body)
        if mounted is None:
            if not old:
                self.current_mode = "prefill"
                self.last_mount_info.clear()
            kept = "keeping previous decode segments" if old else "rolled back to prefill"
            return _error(f"Mount failed, ret={code}; {kept}", 500, mode=self.current_mode)
        failed = await self._unmount(old, 0)
        if failed:
            _log.warning("segments %s are not unmounted; the next change tries again", failed)
        self.mounted_segment_ids = mounted + failed
        self.current_mode = "decode"
        protocol, location = self._where(body)
        self.last_mount_info = {
            "path": path,
            "offset": body.get("offset", 0),
            "size": body["size"],
            "protocol": protocol,
            "location": location,
        }
        return _success(mode=self.current_mode, segment_ids=self.mounted_segment_ids)

    def _where(self, body: dict[str, Any]) -> tuple[str, str]:
        protocol = body.get("protocol", self.config.protocol)
        location = body.get("location", "")
        if not isinstance(protocol, str) or not isinstance(location, str):
            raise ValueError("protocol and location are text")
        return protocol, location

    async def _mount(self, path: str, body: dict[str, Any]) -> tuple[list[str] | None, int]:
        """Mount a part of a file; return its segments, or None and the store's answer."""
        size, offset = _whole(body, "size", 1), _whole(body, "offset", 0)
        answer = await self._call("mount_segment", path, size, offset, *self._where(body))
        return (None if answer["ret"] != 0 else list(answer["segment_ids"])), answer["ret"]

    async def _unmount(self, names: list[str], grace: int) -> list[str]:
        """Unmount each by itself and forget it; return those that failed."""
        failed = []
        for name in names:
            # The store's answer for several does not say which of them are gone.
            if await self._call("unmount_segment", [name], grace) != 0:
                failed.append(name)
            elif name in self.mounted_segment_ids:
                self.mounted_segment_ids.remove(name)
        return failed


def _configuration(path: str | None, over: dict[str, Any]) -> MooncakeConfig:
    known = list(MooncakeConfig.__dataclass_fields__)
    if unknown := [name for name in over if name not in known]:
        raise ValueError(
            f"{unknown[0]} is no field of the configuration; there are {', '.join(known)}"
        )
    environment = os.environ.get("MOONCAKE_CONFIG_PATH") or os.environ.get("MOONCAKE_MASTER")
    if path is not None:
        fields = MooncakeConfig.fields_of(path)
    elif environment or not over:
        fields = vars(MooncakeConfig.load_from_env())
    else:
        fields = {}
    return MooncakeConfig.from_fields({**fields, **over})


def _definitions(pairs: list[str]) -> dict[str, str]:
    """Return NAME to VALUE of ``-D NAME=VALUE``."""
    for pair in pairs:
        if "=" not in pair:
            raise ValueError(f"-D {pair}: NAME=VALUE is wanted")
    return dict(pair.split("=", 1) for pair in pairs)


def parse_arguments() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(prog=_PROGRAM, description="A store over HTTP, on loopback.")
    parser.add_argument("--config", help="a JSON configuration file")
    parser.add_argument("-D", "--define", action="append", default=[], help="NAME=VALUE over it")
    parser.add_argument("--port", type=int, default=8080)
    parser.add_argument("--host", default="127.0.0.1", help="where to listen (default: loopback)")
    parser.add_argument("--max-wait-time", type=float, default=60, help="for the master, seconds")
    return parser.parse_args()


def _install_shutdown_signal_handlers(
    loop: asyncio.AbstractEventLoop, shutdown_event: asyncio.Event
) -> None:
    def stop(number: int) -> None:
        _log.info("signal %s: ending", number)
        shutdown_event.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop, number)


def _unblock_shutdown_signals() -> None:
    # A launcher that blocks them leaves that to its children.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM})


def _end(status: int, why: str) -> NoReturn:
    print(f"{_PROGRAM}: {why}", file=sys.stderr)
    raise SystemExit(status)


async def main() -> None:
    """Serve until SIGTERM.

    Raises
    ------
    SystemExit
        2: the configuration is wrong, or the port is taken. 1: no master answers.
    """
    options = parse_arguments()
    try:
        service = MooncakeStoreService(options.config, _definitions(options.define))
    except (OSError, ValueError) as error:
        _end(2, str(error))
    stopped = asyncio.Event()
    _install_shutdown_signal_handlers(asyncio.get_running_loop(), stopped)
    _unblock_shutdown_signals()
    try:
        if not await service.start_store_service(options.max_wait_time, stopped):
            if stopped.is_set():
                return
            _end(1, f"no store at {service.config.master_server_address} (see above)")
        try:
            await service.start_http_service(options.port, options.host)
        except OSError as error:
            _end(2, f"{options.host}:{options.port}: {error}")
        print(f"{_PROGRAM}: serving at http://{options.host}:{service.port}", flush=True)
        await stopped.wait()
    finally:
        await service.stop()


def sync_main() -> None:
    """Run :func:`main`: the command."""
    begin()
    logging.basicConfig(level=logging.INFO)
    asyncio.run(main())


if __name__ == "__main__":
    sync_main()
