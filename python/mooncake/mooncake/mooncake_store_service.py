# SPDX-License-Identifier: Apache-2.0
"""``mooncake.mooncake_store_service`` on kvcove."""

from kvcove.mooncake._original import names_of
from kvcove.mooncake.mooncake_config import MooncakeConfig  # noqa: F401
from kvcove.mooncake.rest import main, parse_arguments, sync_main  # noqa: F401
from kvcove.mooncake.store import MooncakeDistributedStore  # noqa: F401

__getattr__ = names_of("mooncake.mooncake_store_service")

if __name__ == "__main__":
    main()
