# SPDX-License-Identifier: Apache-2.0
"""``mooncake.mooncake_config``: the configuration file and the environment variables."""

from __future__ import annotations

import json
import logging
import os
from dataclasses import dataclass
from typing import Any

from kvcove.mooncake._config import _PROTOCOLS

__all__ = ["DEFAULT_GLOBAL_SEGMENT_SIZE", "DEFAULT_LOCAL_BUFFER_SIZE", "MooncakeConfig"]

logger = logging.getLogger(__name__)

DEFAULT_GLOBAL_SEGMENT_SIZE = 3355443200
DEFAULT_LOCAL_BUFFER_SIZE = 1073741824

_REQUIRED = ("local_hostname", "metadata_server", "master_server_address")
_TRUE = {"true", "1", "yes", "on", "enable"}
_FALSE = {"", "false", "0", "no", "off", "disable", "none"}


_SIZE_SUFFIXES = [
    *((f"{unit}b", 1024**power) for power, unit in enumerate("kmgt", start=1)),
    *((unit, 1024**power) for power, unit in enumerate("kmgt", start=1)),
    ("b", 1),
]
_KNOWN_PROTOCOLS = frozenset(_PROTOCOLS - {"shm"})
_REQUIRED_NON_EMPTY_FIELDS = _REQUIRED


def _parse_segment_size(value: Any) -> int:
    """Return the bytes that a field says: a number, or text with or without a unit.

    Raises
    ------
    ValueError
        It is no number. A negative one is refused later, with the name of its field.
    """
    if not isinstance(value, str):
        return int(value)
    text = value.strip().lower()
    if not text:
        raise ValueError("Invalid segment size: empty string")
    for suffix, factor in _SIZE_SUFFIXES:
        if text.endswith(suffix):
            return int(float(text.removesuffix(suffix).strip()) * factor)
    return int(text) if text.lstrip("+-").isdigit() else int(float(text))


def _parse_bool(value: Any) -> bool:
    text = str(value).strip().lower()
    if text in _TRUE:
        return True
    if text in _FALSE:
        return False
    raise ValueError(f"Invalid boolean value: {value!r}")


@dataclass
class MooncakeConfig:
    """What a store is set up with.

    Raises
    ------
    ValueError
        A size is negative, or a field that must have a value has none.
    """

    local_hostname: str
    metadata_server: str
    global_segment_size: int
    local_buffer_size: int
    protocol: str
    device_name: str | None
    master_server_address: str
    enable_ssd_offload: bool = False
    ssd_offload_path: str = ""
    tenant_id: str = "default"
    enable_client_http_server: bool = False
    client_http_port: int = 9300

    def __post_init__(self) -> None:
        if not isinstance(self.protocol, str) or not self.protocol.strip():
            raise ValueError(
                f"Invalid protocol: {self.protocol!r}. Protocol must be a non-empty string, e.g. 'tcp' "
                "or 'rdma'."
            )
        self.protocol = self.protocol.strip().lower()
        if self.protocol not in _PROTOCOLS:
            logger.warning("Unrecognised protocol %r", self.protocol)
        for name in ("global_segment_size", "local_buffer_size"):
            if getattr(self, name) < 0:
                raise ValueError(
                    f"Invalid {name}: {getattr(self, name)}. Size must be non-negative."
                )
        for name in _REQUIRED:
            value = getattr(self, name)
            if not isinstance(value, str) or not value.strip():
                raise ValueError(
                    f"Config field {name!r} must be a non-empty string, got {value!r}."
                )

    @staticmethod
    def fields_of(file_path: str) -> dict[str, Any]:
        """Return what a JSON file has, as it is.

        Raises
        ------
        ValueError
            It is no JSON object.
        """
        with open(file_path, encoding="utf-8") as file:
            try:
                config = json.load(file)
            except ValueError as error:
                raise ValueError(f"{file_path} is no JSON: {error}") from error
        if not isinstance(config, dict):
            raise ValueError(f'{file_path} has no JSON object, such as {{"local_hostname": ...}}')
        return config

    @staticmethod
    def from_file(file_path: str) -> MooncakeConfig:
        """Read a JSON file.

        Raises
        ------
        ValueError
            A field is missing or not usable.
        """
        return MooncakeConfig.from_fields(MooncakeConfig.fields_of(file_path))

    @staticmethod
    def from_fields(config: dict[str, Any]) -> MooncakeConfig:
        """Return the configuration that fields say, as text or as their types.

        Raises
        ------
        ValueError
            A field is missing or not usable.
        """
        for name in _REQUIRED:
            if name not in config:
                raise ValueError(f"Missing required config field: {name}")
        tenant = config.get("tenant_id")
        path = config.get("ssd_offload_path")
        return MooncakeConfig(
            local_hostname=config["local_hostname"],
            metadata_server=config["metadata_server"],
            global_segment_size=_parse_segment_size(
                config.get("global_segment_size", DEFAULT_GLOBAL_SEGMENT_SIZE)
            ),
            local_buffer_size=_parse_segment_size(
                config.get("local_buffer_size", DEFAULT_LOCAL_BUFFER_SIZE)
            ),
            protocol=config.get("protocol", "tcp"),
            device_name=config.get("device_name", ""),
            master_server_address=config["master_server_address"],
            enable_ssd_offload=_parse_bool(config.get("enable_ssd_offload", False)),
            ssd_offload_path="" if path is None else str(path),
            tenant_id="default" if tenant is None else str(tenant),
            enable_client_http_server=_parse_bool(config.get("enable_client_http_server", False)),
            client_http_port=int(config.get("client_http_port", 9300)),
        )

    @staticmethod
    def load_from_env() -> MooncakeConfig:
        """Read ``MOONCAKE_CONFIG_PATH``, or else the single variables.

        Raises
        ------
        ValueError
            Neither it nor ``MOONCAKE_MASTER`` is set, or a value is not usable.
        """
        path = os.environ.get("MOONCAKE_CONFIG_PATH")
        if path is not None:
            return MooncakeConfig.from_file(path)
        master = os.environ.get("MOONCAKE_MASTER")
        if not master:
            raise ValueError(
                "Neither the environment variable 'MOONCAKE_CONFIG_PATH' nor 'MOONCAKE_MASTER' is set."
            )
        get = os.environ.get
        return MooncakeConfig(
            local_hostname=get("MOONCAKE_LOCAL_HOSTNAME", "localhost"),
            metadata_server=get("MOONCAKE_TE_META_DATA_SERVER", "P2PHANDSHAKE"),
            global_segment_size=_parse_segment_size(
                get("MOONCAKE_GLOBAL_SEGMENT_SIZE", DEFAULT_GLOBAL_SEGMENT_SIZE)
            ),
            local_buffer_size=_parse_segment_size(
                get("MOONCAKE_LOCAL_BUFFER_SIZE", DEFAULT_LOCAL_BUFFER_SIZE)
            ),
            protocol=get("MOONCAKE_PROTOCOL", "tcp"),
            device_name=get("MOONCAKE_DEVICE", ""),
            master_server_address=master,
            enable_ssd_offload=_parse_bool(get("MOONCAKE_OFFLOAD_ENABLED", "false")),
            ssd_offload_path=get("MOONCAKE_OFFLOAD_FILE_STORAGE_PATH", ""),
            tenant_id=get("MOONCAKE_TENANT_ID", "default"),
            enable_client_http_server=_parse_bool(
                get("MOONCAKE_ENABLE_CLIENT_HTTP_SERVER", "false")
            ),
            client_http_port=int(get("MOONCAKE_CLIENT_HTTP_PORT", "9300")),
        )
