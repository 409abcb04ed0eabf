# SPDX-License-Identifier: Apache-2.0
"""``mooncake.mooncake_store_service`` on kvcove."""

import sys

from kvcove.mooncake import rest

if __name__ == "__main__":
    rest.sync_main()
else:
    # One module with two names: what somebody replaces in it is what it uses.
    sys.modules[__name__] = rest
