# SPDX-License-Identifier: Apache-2.0
"""``mooncake.http_metadata_server`` on kvcove."""

from kvcove.mooncake.metadata import KVBootstrapServer, KVPoll, main, parse_args  # noqa: F401

if __name__ == "__main__":
    main()
