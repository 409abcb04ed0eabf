# SPDX-License-Identifier: Apache-2.0
"""Sockets that killed engines left behind."""

from __future__ import annotations

import os
import socket
import stat
import time
from pathlib import Path

# A server binds first and listens then: a socket in between refuses, too.
_SETTLED_S = 10.0


def remove_dead(directory: Path) -> list[Path]:
    """Remove the sockets of engines in `directory` that nobody listens on any more.

    vLLM kills its EngineCore at the end of a server, so an engine cannot always remove its sockets itself. The next
    engine of this user does. What is not a socket, belongs to another user, was made in the last ten seconds, or has a
    listener stays.

    Returns
    -------
    list of Path
        What was removed.
    """
    removed = []
    for path in [*directory.glob("engine-*.sock"), *directory.glob("pool-*.sock")]:
        try:
            found = path.lstat()
            settled = time.time() - found.st_mtime >= _SETTLED_S
            if not stat.S_ISSOCK(found.st_mode) or found.st_uid != os.getuid() or not settled:
                continue
            with socket.socket(socket.AF_UNIX) as probe:
                probe.setblocking(
                    False
                )  # a listener that is busy does not refuse, and is not waited for
                probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
            removed.append(path)
        except OSError:
            continue
    return removed
