# SPDX-License-Identifier: Apache-2.0
"""LMCache's storage: an L2 adapter of its server, and a remote backend of its in-process engine.

LMCache is imported with the classes, not before. docs/lmcache.md says what to configure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvcove.lmcache._connector import KvcoveConnectorAdapter
    from kvcove.lmcache._l2 import KvcoveL2Adapter

__all__ = ["KvcoveConnectorAdapter", "KvcoveL2Adapter"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    from kvcove.lmcache._versions import check_version

    try:
        check_version()
    except ValueError as error:
        # LMCache reports an ImportError of a plugin as it is.
        raise ImportError(str(error)) from None
    if name == "KvcoveL2Adapter":
        from kvcove.lmcache._l2 import KvcoveL2Adapter

        return KvcoveL2Adapter
    from kvcove.lmcache._connector import KvcoveConnectorAdapter

    return KvcoveConnectorAdapter
