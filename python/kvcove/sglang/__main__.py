# SPDX-License-Identifier: Apache-2.0
"""``python -m kvcove.sglang explain MODEL [POOL]``: why engines of a model share, or do not.

Each engine leaves in the pool what must be equal. SGLang need not be there.
"""

from __future__ import annotations

import sys

from kvcove.engines import explain

_USAGE = """\
python -m kvcove.sglang explain MODEL [POOL]

  MODEL  last part of --model-path or of the model's name
  POOL   address of the pool; by default what $KVCOVE_POOL names, else this host's owner"""


def main(words: list[str]) -> int:
    """Run the command."""
    return explain(words, _USAGE)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
