# SPDX-License-Identifier: Apache-2.0
"""Regular expressions over many keys, for a bounded time.

Some expressions take years for a key of a few letters, and :mod:`re` holds the interpreter meanwhile. So
they are matched in a process of their own, which is killed when its time is over.
"""

from __future__ import annotations

import marshal
import subprocess
import sys
from collections.abc import Sequence

__all__ = ["MATCH_SECONDS", "found_in"]

MATCH_SECONDS = 10.0  # for all keys of a call

_PROGRAM = """
import marshal, re, sys
expression, keys = marshal.load(sys.stdin.buffer)
search = re.compile(expression, re.DOTALL).search
sys.stdout.buffer.write(bytes(search(key) is not None for key in keys))
"""


def found_in(
    expression: bytes, keys: Sequence[bytes], seconds: float = MATCH_SECONDS
) -> list[bool]:
    """Return for each key whether an expression is found in it; ``.`` is any byte.

    Parameters
    ----------
    expression : bytes
        One that :func:`re.compile` takes.
    keys : sequence of bytes
    seconds : float
        How long all of it may take.

    Raises
    ------
    TimeoutError
        It takes longer.
    OSError
        The process cannot be started, or ends early.
    """
    if not keys:
        return []
    # It imports nothing of this process: neither its site-packages nor what its environment names.
    command = [sys.executable, "-I", "-S", "-c", _PROGRAM]
    try:
        said = subprocess.run(
            command,
            input=marshal.dumps((expression, list(keys))),
            capture_output=True,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise TimeoutError(
            f"{len(keys)} keys take longer than {seconds:g} s: write the expression without a repetition "
            "inside a repetition, such as (a+)+, or with fewer of them"
        ) from None
    if len(said.stdout) != len(keys):
        end = said.stderr.decode(errors="replace")[-500:]
        raise OSError(f"the process that matches ended with {said.returncode}: {end}")
    return [answer == 1 for answer in said.stdout]
