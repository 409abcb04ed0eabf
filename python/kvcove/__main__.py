# SPDX-License-Identifier: Apache-2.0
"""``python -m kvcove``: the ``kvcove`` command of this installation."""

from __future__ import annotations

import os
import sys

from kvcove._command import path


def main() -> None:
    """Become the command, with this process's arguments."""
    command = path()
    os.execv(command, [command, *sys.argv[1:]])


if __name__ == "__main__":
    main()
