# SPDX-License-Identifier: Apache-2.0
"""``mooncake.mooncake_config`` on kvcove."""

from kvcove.mooncake.mooncake_config import *  # noqa: F403
from kvcove.mooncake.mooncake_config import __all__  # noqa: F401
