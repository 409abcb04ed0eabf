# SPDX-License-Identifier: Apache-2.0
"""``mooncake.cli_client``: the command ``mooncake_client``."""

from kvcove.mooncake._original import names_of
from kvcove.mooncake.client import main

__getattr__ = names_of("mooncake.cli_client")

if __name__ == "__main__":
    main()
