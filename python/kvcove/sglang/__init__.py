# SPDX-License-Identifier: Apache-2.0
"""SGLang's HiCache storage: ``--hicache-storage-backend dynamic`` with ``"module_path": "kvcove.sglang"``.

SGLang is imported with ``KvcoveStorage``, not before. docs/sglang.md says what to configure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvcove.sglang._storage import KvcoveStorage

__all__ = ["KvcoveStorage"]


def __getattr__(name: str) -> Any:
    if name != "KvcoveStorage":
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    from kvcove.sglang._versions import check_version

    try:
        check_version()
    except ValueError as error:
        # SGLang reports an ImportError of a backend as it is.
        raise ImportError(str(error)) from None
    from kvcove.sglang._storage import KvcoveStorage

    return KvcoveStorage
