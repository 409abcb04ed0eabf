# SPDX-License-Identifier: Apache-2.0
"""``mooncake.cli``: the command ``mooncake_master``."""

from kvcove.mooncake._original import names_of
from kvcove.mooncake.master import main

__getattr__ = names_of("mooncake.cli")

if __name__ == "__main__":
    main()
