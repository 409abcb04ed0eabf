# SPDX-License-Identifier: Apache-2.0
"""``mooncake.mooncake_store_service`` on kvcove."""

from kvcove.mooncake.rest import main, sync_main  # noqa: F401

if __name__ == "__main__":
    main()
