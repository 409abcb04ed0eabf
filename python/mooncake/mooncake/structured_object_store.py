# SPDX-License-Identifier: Apache-2.0
"""``mooncake.structured_object_store`` on kvcove."""

from kvcove.mooncake._original import names_of
from kvcove.mooncake.structured_object_store import *  # noqa: F403
from kvcove.mooncake.structured_object_store import (  # noqa: F401
    __all__,
    _choose_leaf_codec,
    _escape_key,
)

__getattr__ = names_of("mooncake.structured_object_store")
