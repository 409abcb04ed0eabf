# SPDX-License-Identifier: Apache-2.0
"""``mooncake._fast_copy`` on kvcove."""

from kvcove.mooncake.fast_copy import *  # noqa: F403
from kvcove.mooncake.fast_copy import __all__  # noqa: F401
