# SPDX-License-Identifier: Apache-2.0
"""``python -m kvcove.launch COMMAND``."""

from __future__ import annotations

import sys

from kvcove.launch._cli import main

if __name__ == "__main__":
    sys.exit(main())
