# SPDX-License-Identifier: Apache-2.0
"""The package ``mooncake`` on kvcove. What is not here may come from another installation."""

from pathlib import Path
from pkgutil import extend_path

from kvcove.mooncake._mixed import check_package

check_package(Path(__file__).parent)

from mooncake.buffer_pool import BufferPool, RegisteredBufferPool  # noqa: E402

__path__ = extend_path(__path__, __name__)

__all__ = ["BufferPool", "RegisteredBufferPool"]
