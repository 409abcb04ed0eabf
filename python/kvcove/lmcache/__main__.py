# SPDX-License-Identifier: Apache-2.0
"""``python -m kvcove.lmcache explain MODEL [POOL]``: why servers and engines of a model share, or do not.

Each of them leaves in the pool what must be equal. LMCache need not be there.
"""

from __future__ import annotations

import sys

from kvcove.engines import explain

_USAGE = """\
python -m kvcove.lmcache explain MODEL [POOL]

  MODEL  the model's name, as the engine gives it to LMCache
  POOL   address of the pool; by default what $KVCOVE_POOL names, else this host's owner"""


def main(words: list[str]) -> int:
    """Run the command."""
    return explain(words, _USAGE)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
