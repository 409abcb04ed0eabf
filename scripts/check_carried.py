#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that the state which a process hands to its successor has not changed under the same version.

Two builds with equal versions read each other's state (docs/upgrade.md). A reader finds a structure of another size out, but not two fields
of one size that have changed places. kvcove/server/carried.txt lists what the sources carry, in order, below the version that it has.

  scripts/check_carried.py             differs: raise the version that the message names, and write the list anew
  scripts/check_carried.py --write     writes the list; refuses if a part differs and its version does not
  scripts/check_carried.py --renamed   writes it under the same versions: names have changed, bytes have not
"""

from __future__ import annotations

import difflib
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
LISTED = ROOT / "kvcove/server/carried.txt"
CARRIES = re.compile(r"\bCarry(?:All|One|Plain|Atomic)\((?:ar|writer|reader|policies)\b[^;]*\);")
# The version of what is carried, the file that has it, and the folder whose sources it is for: the last one has all others.
PARTS = (
    ("kCarriedVersion", "kvcove/policy/policy.h", "kvcove/policy"),
    ("kStateVersion", "kvcove/owner/core/core_carry.cc", "kvcove/owner/core"),
    ("kUpgradeVersion", "kvcove/server/upgrade.h", "kvcove"),
)


def carried() -> dict[str, list[str]]:
    """Return, for each version, the line that has it and the calls that carry state."""
    parts = {}
    for name, place, _ in PARTS:
        found = re.search(rf"{name} = (\d+);", (ROOT / place).read_text())
        if found is None:
            raise SystemExit(f"{place} has no {name}")
        parts[name] = [f"{name} {found[1]}"]
    for path in sorted([*ROOT.glob("kvcove/**/*.h"), *ROOT.glob("kvcove/**/*.cc")]):
        relative = str(path.relative_to(ROOT))
        calls = CARRIES.findall(path.read_text())
        if not calls or relative.startswith("kvcove/base/") or path.stem.endswith("_test"):
            continue
        part = next(name for name, _, folder in PARTS if relative.startswith(folder + "/"))
        parts[part] += [f"  {relative}", *(f"    {' '.join(call.split())}" for call in calls)]
    return parts


def listed() -> dict[str, list[str]]:
    """Return the same of the list."""
    parts: dict[str, list[str]] = {}
    lines = LISTED.read_text().splitlines() if LISTED.exists() else []
    for line in lines:
        if not line.startswith(" "):
            part = parts.setdefault(line.split()[0], [])
        part.append(line)
    return parts


def main() -> int:
    """Return 1 if the list differs, and 2 if it may not be written."""
    now, before = carried(), listed()
    places = {name: place for name, place, _ in PARTS}
    same = [name for name in now if name in before and now[name] != before[name] and now[name][0] == before[name][0]]
    if "--renamed" in sys.argv[1:] or ("--write" in sys.argv[1:] and not same):
        LISTED.write_text("\n".join(line for part in now.values() for line in part) + "\n")
        return 0
    if now == before:
        return 0
    for name in now:
        print("\n".join(difflib.unified_diff(before.get(name, []), now[name], str(LISTED), "the sources", lineterm="", n=1)))
    for name in same:
        print(f"Another build would misread this state: raise {name} in {places[name]}.")
    print("Then call scripts/check_carried.py --write; if names have changed and bytes have not, --renamed.")
    return 2 if "--write" in sys.argv[1:] else 1


if __name__ == "__main__":
    sys.exit(main())
