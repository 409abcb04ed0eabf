# SPDX-License-Identifier: Apache-2.0
"""``mooncake._fast_copy`` on kvcove."""

from kvcove.mooncake._original import names_of
from kvcove.mooncake.fast_copy import *  # noqa: F403
from kvcove.mooncake.fast_copy import __all__  # noqa: F401

__getattr__ = names_of("mooncake._fast_copy")
