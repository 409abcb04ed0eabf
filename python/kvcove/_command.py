# SPDX-License-Identifier: Apache-2.0
"""Where the ``kvcove`` command of this installation is."""

from __future__ import annotations

import os
import shutil
import sysconfig
from pathlib import Path


def path() -> str:
    """Return the command's path.

    ``$KVCOVE_COMMAND`` goes first, then what was installed with this package, then ``$PATH``.

    Raises
    ------
    FileNotFoundError
        It is nowhere.
    """
    named = os.environ.get("KVCOVE_COMMAND")
    if named:
        return named
    schemes = {sysconfig.get_default_scheme(), sysconfig.get_preferred_scheme("user")}
    directories = [Path(__file__).parents[1] / "bin"]  # of `pip install --target`
    directories += [Path(sysconfig.get_path("scripts", scheme)) for scheme in schemes]
    for directory in directories:
        candidate = directory / "kvcove"
        if candidate.is_file():
            return str(candidate)
    found = shutil.which("kvcove")
    if found:
        return found
    raise FileNotFoundError("the kvcove command is not installed beside the kvcove package")
