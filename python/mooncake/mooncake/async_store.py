# SPDX-License-Identifier: Apache-2.0
"""``mooncake.async_store`` on kvcove."""

from kvcove.mooncake._original import names_of
from kvcove.mooncake.async_store import *  # noqa: F403
from kvcove.mooncake.async_store import __all__  # noqa: F401

__getattr__ = names_of("mooncake.async_store")
