# SPDX-License-Identifier: Apache-2.0
"""``mooncake.store`` on kvcove."""

from kvcove.mooncake.store import *  # noqa: F403
from kvcove.mooncake.store import __all__  # noqa: F401
