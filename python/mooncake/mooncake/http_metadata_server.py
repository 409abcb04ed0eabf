# SPDX-License-Identifier: Apache-2.0
"""``mooncake.http_metadata_server`` on kvcove."""

from kvcove.mooncake._original import names_of
from kvcove.mooncake.metadata import KVBootstrapServer, KVPoll, main, parse_args  # noqa: F401

__getattr__ = names_of("mooncake.http_metadata_server")

if __name__ == "__main__":
    main()
