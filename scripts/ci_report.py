#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a run of the tests, or of .ci/run, took and left out.

  ci_report.py tests JUNIT.xml [--skips FILE]   the ten slowest tests; skips, which are errors in CI ($CI is set) unless listed
  ci_report.py steps FILE                       the table of steps (scripts/step.sh), each beside its budget
"""

import argparse
import fnmatch
import os
import pathlib
import sys
import time
import xml.etree.ElementTree as ElementTree

ALLOWED = pathlib.Path(__file__).resolve().parent.parent / "tests" / "allowed_skips.txt"
SLOWEST = 10


def allowed_skips():
    """Pairs of a pattern, for `NAME: WHY`, and the reason why such tests may be skipped in CI."""
    pairs = []
    for number, line in enumerate(ALLOWED.read_text().splitlines(), 1):
        if not line or line.startswith("#"):
            continue
        pattern, _, reason = line.partition("  ")
        if not reason.strip():
            sys.exit(f"{ALLOWED.name}:{number}: '{pattern}' has no reason behind two spaces")
        pairs.append((pattern, reason.strip()))
    return pairs


def read_junit(path):
    """The cases of ctest's or pytest's report: (name, seconds, why it was skipped or None)."""
    for case in ElementTree.parse(path).iter("testcase"):
        name = case.get("name")
        if case.get("classname") and case.get("classname") != name:
            name = f"{case.get('classname')}::{name}"
        skipped = case.find("skipped")
        reason = None
        if skipped is not None:
            # Of a whole module pytest gives the reason as text.
            reason = f"{skipped.get('message') or ''} {' '.join((skipped.text or '').split())}".strip()
        yield name, float(case.get("time") or 0), reason


def report_tests(arguments):
    cases = list(read_junit(arguments.junit))
    print(f"== The slowest of {len(cases)} tests")
    for name, seconds, _ in sorted(cases, key=lambda case: -case[1])[:SLOWEST]:
        print(f"  {seconds:7.1f} s  {name}")
    if arguments.skips:
        lines = pathlib.Path(arguments.skips).read_text().splitlines()
        skips = [("/".join(line.split("\t")[:2]), line.split("\t")[2]) for line in lines]
    else:
        skips = [(name, reason) for name, _, reason in cases if reason is not None]
    if not skips:
        return 0
    listed = {}
    unlisted = []
    allowed = allowed_skips()
    for name, reason in sorted(set(skips)):
        why = next((why for pattern, why in allowed if fnmatch.fnmatchcase(f"{name}: {reason}", pattern)), None)
        if why is None:
            unlisted.append(f"{name}: {reason}")
        else:
            listed.setdefault(why, []).append(name)
    print(f"== {len(set(skips))} skipped")
    for why, names in listed.items():
        print(f"  {why}: {len(names)}, such as {names[0]}")
    # Last: the reader of a log that was cut sees its end.
    for skip in unlisted:
        print(f"  [not in tests/allowed_skips.txt] {skip}")
    if unlisted and os.environ.get("CI"):
        print(f"{len(unlisted)} skips that tests/allowed_skips.txt does not list: in CI that is an error")
        return 1
    return 0


def report_steps(arguments):
    rows = []
    for line in pathlib.Path(arguments.steps).read_text().splitlines():
        began, budget, name = line.split("\t", 2)
        rows.append((int(began), int(budget), name))
    ends = [row[0] for row in rows[1:]] + [int(time.time())]
    print("\n== Steps")
    print(f"  {'seconds':>7}  {'budget':>6}  step")
    for (began, budget, name), end in zip(rows, ends, strict=True):
        took = end - began
        print(f"  {took:7d}  {budget:6d}  {name}{'   OVER ITS BUDGET' if took > budget else ''}")
    if rows:
        print(f"  {ends[-1] - rows[0][0]:7d}  {sum(row[1] for row in rows):6d}  all")
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    actions = parser.add_subparsers(required=True)
    tests = actions.add_parser("tests")
    tests.add_argument("junit")
    tests.add_argument("--skips")
    tests.set_defaults(report=report_tests)
    steps = actions.add_parser("steps")
    steps.add_argument("steps")
    steps.set_defaults(report=report_steps)
    arguments = parser.parse_args()
    return arguments.report(arguments)


if __name__ == "__main__":
    sys.exit(main())
