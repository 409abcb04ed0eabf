# SPDX-License-Identifier: Apache-2.0
"""``mooncake.cli``: the command ``mooncake_master``."""

from kvcove.mooncake.master import main

if __name__ == "__main__":
    main()
