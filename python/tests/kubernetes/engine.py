# SPDX-License-Identifier: Apache-2.0
"""The engine of examples/engine in a pod: a line of JSON {"name": ..., "seed": ...} on stdin is a prompt, and one on stdout its answer."""

from __future__ import annotations

import json
import sys

sys.path.insert(0, "/opt/engine/engine")

import toy

WEIGHTS = 3
engine = toy.Engine(sys.argv[1], "auto", WEIGHTS)
for line in sys.stdin:
    question = json.loads(line)
    tokens = [(number * question["seed"]) % 97 for number in range(100)]
    byte = 0
    for token in tokens:
        byte = (byte * 31 + token + WEIGHTS) % 251
    answer, loaded = engine.run(question["name"], tokens)
    print(json.dumps({"right": answer == byte, "loaded": loaded}), flush=True)
engine.close()
