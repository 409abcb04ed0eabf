# SPDX-License-Identifier: Apache-2.0
"""``mooncake.dataproto_catalog`` on kvcove."""

from kvcove.mooncake._original import names_of
from kvcove.mooncake.dataproto_catalog import *  # noqa: F403
from kvcove.mooncake.dataproto_catalog import __all__  # noqa: F401

__getattr__ = names_of("mooncake.dataproto_catalog")
