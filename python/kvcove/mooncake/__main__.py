# SPDX-License-Identifier: Apache-2.0
"""``python -m kvcove.mooncake run COMMAND [ARGUMENT...]``, or ``compare --rival PYTHON``.

``run`` runs a command with kvcove's ``mooncake.store`` and its neighbours before any other, and with
kvcove's ``mooncake_master`` and the like first on the path; for that command and its children only.
``compare``, in a checkout of kvcove's sources, makes the same random calls on the original and here, and
runs the conformance suite on both (``compare --help``).
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path


def main() -> None:
    """Become the command."""
    words = sys.argv[1:]
    if words[:1] == ["compare"]:
        from kvcove import _lab

        _lab.load("compare", "python -m kvcove.mooncake compare").main(words[1:])
        return
    if words in (["--help"], ["-h"], ["run", "--help"], ["run", "-h"]):
        print(__doc__)
        raise SystemExit(0)
    if len(words) < 2 or words[0] != "run":
        print(__doc__, file=sys.stderr)
        raise SystemExit(2)
    overlay = Path(__file__).parent / "overlay"
    environment = dict(os.environ)
    # Commands of this environment go before others of the same name, activated or not.
    path = os.pathsep.join([str(overlay / "bin"), str(Path(sys.executable).parent)])
    for name, first in (("PYTHONPATH", str(overlay)), ("PATH", path)):
        rest = environment.get(name)
        environment[name] = f"{first}{os.pathsep}{rest}" if rest else first
    environment["KVCOVE_PYTHON"] = sys.executable
    command = sys.argv[2:]
    program = shutil.which(command[0], path=environment["PATH"])
    if program is None:
        print(f"kvcove.mooncake: {command[0]}: no such command", file=sys.stderr)
        raise SystemExit(127)
    os.execve(program, command, environment)


if __name__ == "__main__":
    main()
