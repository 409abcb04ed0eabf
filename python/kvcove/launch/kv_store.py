# SPDX-License-Identifier: Apache-2.0
"""``actor_rollout_ref.rollout.kv_store`` of verl.

It is a dataclass, so that a trainer may have it as a field of its own configuration
(``OmegaConf.structured`` takes it), and pydantic checks it wherever it is made.

>>> from kvcove.launch.kv_store import KVStoreConfig
>>> KVStoreConfig().get("enable", False)
False
>>> KVStoreConfig(enable=True).connector("0.24.0"), KVStoreConfig(enable=True).connector("0.23.0")
('KvcoveConnector', 'MooncakeStoreConnector')
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from pydantic import ConfigDict, field_validator, model_validator
from pydantic.dataclasses import dataclass

from kvcove.launch import _vllm
from kvcove.launch._errors import nearest
from kvcove.launch._strict import wrong_at
from kvcove.vllm._config import Config

__all__ = ["CONNECTORS", "KVStoreConfig"]

_AUTO = "auto"
CONNECTORS = (_AUTO, "KvcoveConnector", "MooncakeStoreConnector")
_ROLES = ("kv_both", "kv_producer", "kv_consumer")
_ON_FAILURE = ("fallback", "crash")
# Fields of vLLM's KVTransferConfig that do not begin with kv_.
_OTHER_FIELDS = ("engine_id", "enable_permute_local_kv")


def _one_of(value: str, known: tuple[str, ...]) -> str:
    if value not in known:
        raise ValueError(f"{value!r} is not known; {nearest(value, known)}")
    return value


@dataclass(config=ConfigDict(extra="forbid"))
class KVStoreConfig:
    """Whether rollout engines share their KV, through which connector.

    Also a mapping to read from: ``config.kv_store.get("enable", False)``.

    Attributes
    ----------
    enable : bool
        Nothing else counts while this is false.
    kv_connector : str
        ``KvcoveConnector``, ``MooncakeStoreConnector``, or ``auto``: see :meth:`connector`.
    kv_role : str
        ``kv_both``, ``kv_producer`` (saves only) or ``kv_consumer`` (loads only).
    config_path : str, optional
        Of MooncakeStoreConnector: its JSON file, ``${oc.env:MOONCAKE_CONFIG_PATH}`` for example.
    extra_config : dict
        Goes over the connector's JSON, key by key at the top:
        ``{kv_connector_extra_config: {pool: "kvcove://host:7400"}}``.
    on_failure : str
        The pool does not answer where an engine starts: ``fallback``: a warning, and an engine without
        a pool; ``crash``: an error.

    Raises
    ------
    pydantic.ValidationError
        A ``ValueError``: an unknown key, or a value that is not one of these.
    """

    enable: bool = False
    kv_connector: str = _AUTO
    kv_role: str = "kv_both"
    config_path: str | None = None
    extra_config: dict[str, Any] = dataclasses.field(default_factory=dict)
    on_failure: str = "fallback"

    @field_validator("kv_connector")
    @classmethod
    def _known_connector(cls, value: str) -> str:
        return _one_of(value, CONNECTORS)

    @field_validator("kv_role")
    @classmethod
    def _known_role(cls, value: str) -> str:
        return _one_of(value, _ROLES)

    @field_validator("on_failure")
    @classmethod
    def _known_policy(cls, value: str) -> str:
        return _one_of(value, _ON_FAILURE)

    @field_validator("extra_config")
    @classmethod
    def _goes_over_the_json(cls, value: dict[str, Any]) -> dict[str, Any]:
        for key in value:
            if not key.startswith("kv_") and key not in _OTHER_FIELDS:
                raise ValueError(
                    f"{key!r} is no field of --kv-transfer-config; a key of the connector's own "
                    f"goes into extra_config.kv_connector_extra_config.{key}"
                )
        options = value.get("kv_connector_extra_config", {})
        if not isinstance(options, dict):
            raise ValueError(f"kv_connector_extra_config: {options!r} is no mapping")
        return value

    @model_validator(mode="after")
    def _the_connector_takes_it(self) -> KVStoreConfig:
        if self.connector() != "KvcoveConnector":
            return self
        if self.config_path is not None:
            raise wrong_at(
                "config_path",
                "MooncakeStoreConnector takes it; for KvcoveConnector name the pool in "
                "extra_config.kv_connector_extra_config.pool, or set MOONCAKE_CONFIG_PATH where the "
                "engines run",
            )
        try:
            config = Config.of(self.connector_options())
        except ValueError as error:
            text = str(error).removeprefix("kv_connector_extra_config: ")
            raise wrong_at("extra_config.kv_connector_extra_config", text) from error
        policy = self.extra_config.get("kv_load_failure_policy", "recompute")
        if policy != "recompute" and not config.allow_load_failure_policy_fail:
            raise wrong_at(
                "extra_config.kv_load_failure_policy",
                f"{policy!r}: a block that is evicted between its look-up and its load would end a "
                "user's request; give 'recompute'",
            )
        return self

    def connector(self, vllm_version: str | None = None) -> str:
        """Return the connector's name.

        ``auto`` is MooncakeStoreConnector where the block names its file, and where the engines' vLLM is
        older than those that KvcoveConnector knows; else KvcoveConnector.

        Parameters
        ----------
        vllm_version : str, optional
            Of the engines. None: that of this environment; a newer one where there is none.
        """
        if self.kv_connector != _AUTO:
            return self.kv_connector
        named = self.config_path is not None or "mooncake_config_path" in self.connector_options()
        if named or not _vllm.has_own_connector(vllm_version):
            return "MooncakeStoreConnector"
        return "KvcoveConnector"

    def connector_options(self) -> dict[str, Any]:
        """Return the connector's ``kv_connector_extra_config``."""
        given = self.extra_config.get("kv_connector_extra_config")
        if given is not None:
            return dict(given)
        return {} if self.config_path is None else {"mooncake_config_path": self.config_path}

    def get(self, key: str, default: Any = None) -> Any:
        """Return a field by its name, else the default."""
        return getattr(self, key) if key in self.keys() else default

    def keys(self) -> tuple[str, ...]:
        """Return the names of the fields."""
        return tuple(field.name for field in dataclasses.fields(self))

    def items(self) -> Iterator[tuple[str, Any]]:
        """Yield names and values."""
        return ((key, getattr(self, key)) for key in self.keys())

    def __getitem__(self, key: str) -> Any:
        if key not in self.keys():
            raise KeyError(key)
        return getattr(self, key)

    def __contains__(self, key: object) -> bool:
        return key in self.keys()

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())

    def __len__(self) -> int:
        return len(self.keys())
