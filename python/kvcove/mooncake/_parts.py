# SPDX-License-Identifier: Apache-2.0
"""What the store's parts (ranges, tensors) call of the store itself; nothing at run time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import kvcove
    from kvcove.mooncake._open import Open
    from kvcove.mooncake._types import ReplicateConfig

__all__ = ["StorePart"]


class StorePart:
    """A part of the store, which has these."""

    if TYPE_CHECKING:
        _now: Open | None

        def _values(self, keys: Sequence[str], *, writable: bool = False) -> list[Any]: ...

        def _captured(self) -> kvcove.Token | int: ...

        def _put_buffers(
            self,
            now: Open,
            keys: Sequence[str],
            values: Sequence[Any],
            config: ReplicateConfig,
            token: kvcove.Token,
            *,
            replace: bool = False,
        ) -> list[int]: ...
