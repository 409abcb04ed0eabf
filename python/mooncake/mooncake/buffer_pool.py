# SPDX-License-Identifier: Apache-2.0
"""``mooncake.buffer_pool`` on kvcove."""

from kvcove.mooncake._original import names_of
from kvcove.mooncake.buffer_pool import *  # noqa: F403
from kvcove.mooncake.buffer_pool import __all__  # noqa: F401

__getattr__ = names_of("mooncake.buffer_pool")
