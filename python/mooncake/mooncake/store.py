# SPDX-License-Identifier: Apache-2.0
"""``mooncake.store`` on kvcove."""

from kvcove.mooncake._original import names_of
from kvcove.mooncake.store import *  # noqa: F403
from kvcove.mooncake.store import __all__  # noqa: F401

__getattr__ = names_of("mooncake.store")
