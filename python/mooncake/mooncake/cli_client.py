# SPDX-License-Identifier: Apache-2.0
"""``mooncake.cli_client``: the command ``mooncake_client``."""

from kvcove.mooncake.client import main

if __name__ == "__main__":
    main()
