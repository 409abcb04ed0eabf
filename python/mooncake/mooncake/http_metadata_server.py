# SPDX-License-Identifier: Apache-2.0
"""``mooncake.http_metadata_server`` on kvcove."""

from kvcove.mooncake.metadata import main

if __name__ == "__main__":
    main()
