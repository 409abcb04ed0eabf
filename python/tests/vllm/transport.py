# SPDX-License-Identifier: Apache-2.0
"""A second connector for MultiConnector, with the handshake of a P/D transport (NIXL's) and no more.

Its workers give metadata of a class of their own, and its scheduler side refuses any other, which
ends the engine's start: what NIXL does. It loads and saves nothing. A module of its own: engines'
processes import it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorHandshakeMetadata,
    KVConnectorMetadata,
    KVConnectorRole,
    SupportsHMA,
)


@dataclass
class Handshake(KVConnectorHandshakeMetadata):
    address: str


class Nothing(KVConnectorMetadata):
    pass


class TransportConnector(KVConnectorBase_V1, SupportsHMA):
    shaken = 0  # handshakes that this process's scheduler side has been given

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)

    def get_handshake_metadata(self) -> KVConnectorHandshakeMetadata | None:
        return Handshake("here")

    def set_xfer_handshake_metadata(self, metadata: dict[int, Any]) -> None:
        for each in metadata.values():
            if not isinstance(each, Handshake):
                raise ValueError(f"a handshake of another connector: {type(each).__name__}")
        TransportConnector.shaken += len(metadata)

    def set_xfer_handshake_metadata_pp_aware(self, metadata: dict[Any, Any]) -> None:
        self.set_xfer_handshake_metadata(metadata)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        pass

    def wait_for_layer_load(self, layer_name: str) -> None:
        pass

    def save_kv_layer(
        self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any
    ) -> None:
        pass

    def wait_for_save(self) -> None:
        pass

    def get_num_new_matched_tokens(self, request: Any, computed: int) -> tuple[int, bool]:
        return 0, False

    def update_state_after_alloc(self, request: Any, blocks: Any, tokens: int) -> None:
        pass

    def build_connector_meta(self, output: Any) -> KVConnectorMetadata:
        return Nothing()

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, None]:
        return False, None

    def request_finished_all_groups(
        self, request: Any, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, None]:
        return False, None
