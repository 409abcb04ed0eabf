# SPDX-License-Identifier: Apache-2.0
"""``mooncake.async_store`` on kvcove."""

from kvcove.mooncake.async_store import *  # noqa: F403
from kvcove.mooncake.async_store import __all__  # noqa: F401
