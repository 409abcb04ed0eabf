# SPDX-License-Identifier: Apache-2.0
"""``mooncake.dataproto_catalog`` on kvcove."""

from kvcove.mooncake.dataproto_catalog import *  # noqa: F403
from kvcove.mooncake.dataproto_catalog import __all__  # noqa: F401
