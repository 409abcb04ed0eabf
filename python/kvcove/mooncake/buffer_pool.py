# SPDX-License-Identifier: Apache-2.0
"""``mooncake.buffer_pool``."""

from kvcove.mooncake._pool import BufferPool, RegisteredBufferPool

__all__ = ["BufferPool", "RegisteredBufferPool"]
