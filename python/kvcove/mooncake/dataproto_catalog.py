# SPDX-License-Identifier: Apache-2.0
"""``mooncake.dataproto_catalog``: which batches hold which fields of which logical keys.

:class:`DataProtoCatalog` is the table, in one process (an actor, usually);
:class:`DataProtoCatalogTransfer` is what other processes put and resolve with.
"""

from kvcove.mooncake.structured.catalog import DataProtoCatalog
from kvcove.mooncake.structured.catalog_transfer import DataProtoCatalogTransfer

__all__ = ["DataProtoCatalog", "DataProtoCatalogTransfer"]
