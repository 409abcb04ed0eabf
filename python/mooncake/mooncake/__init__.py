# SPDX-License-Identifier: Apache-2.0
"""The package ``mooncake`` on kvcove. What is not here may come from another installation."""

from pkgutil import extend_path

from mooncake.buffer_pool import BufferPool, RegisteredBufferPool

__path__ = extend_path(__path__, __name__)

__all__ = ["BufferPool", "RegisteredBufferPool"]
