# SPDX-License-Identifier: Apache-2.0
"""``mooncake.mooncake_config`` on kvcove."""

from kvcove.mooncake._original import names_of
from kvcove.mooncake.mooncake_config import *  # noqa: F403
from kvcove.mooncake.mooncake_config import (  # noqa: F401
    _KNOWN_PROTOCOLS,
    _REQUIRED_NON_EMPTY_FIELDS,
    _SIZE_SUFFIXES,
    __all__,
    _parse_bool,
    _parse_segment_size,
    logger,
)

__getattr__ = names_of("mooncake.mooncake_config")
