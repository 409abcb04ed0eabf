#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares the metrics that the sources declare with docs/metrics.md: names, types and helps are the same.

With files, such as the answer of /metrics, it compares what they contain instead, and the labels, too.

  scripts/check_metrics.py [--root ROOT] [FILE...]
"""

from __future__ import annotations

import argparse
import pathlib
import re
import sys

# "one literal" "and the next".
TEXT = r'((?:"(?:[^"\\]|\\.)*"\s*)+)'
CALL = re.compile(rf'\b(Gauge|Counter|Histogram)s?\(\s*(prefix \+ )?"(\w+)",\s*{TEXT}')
ROW = re.compile(rf'\{{(?:&\w+::\w+,\s*)?"(kvcove_\w+)",\s*{TEXT}')
KEY = re.compile(r'\{&Disk\w+::\w+,\s*"([a-z_]+)"')
LISTED = re.compile(
    r"^\| `(\w+)(?:\{([a-z,]+)\})?` \| (gauge|counter|histogram) \| ([^|]*) \|", re.M
)
SAMPLE = re.compile(r"^(\w+)(?:\{(.*)\})? \S+$", re.M)
LABEL = re.compile(r'(\w+)="(?:[^"\\]|\\.)*"')

# Name -> type and help.
Metrics = dict[str, tuple[str, str]]


def declared(root: pathlib.Path) -> tuple[Metrics, list[str]]:
    """Return the metrics of the sources, and the names with two helps or types."""
    found: Metrics = {}
    wrong: list[str] = []
    for path in sorted((root / "kvcove").rglob("*")):
        # An engine's own metrics are made of connector/scheduler/counts.cc.
        if (
            path.suffix not in {".h", ".cc"}
            or path.stem.endswith("_test")
            or "connector" in path.relative_to(root).parts
        ):
            continue
        text = path.read_text()
        calls = [
            (module + name if prefix else name, kind.lower(), literals)
            for kind, prefix, name, literals in CALL.findall(text)
            for module in (("kvcove_master", "kvcove_owner") if prefix else ("",))
        ]
        rows = [
            (name, "counter" if name.endswith("_total") else "gauge", literals)
            for name, literals in ROW.findall(text)
        ]
        for name, kind, literals in calls + rows:
            text_of = "".join(re.findall(r'"((?:[^"\\]|\\.)*)"', literals)).replace('\\"', '"')
            if found.setdefault(name, (kind, text_of)) != (kind, text_of):
                wrong.append(f"{path.relative_to(root)}: {name} has another type or help elsewhere")
    return found, wrong


def scraped(text: str) -> tuple[Metrics, dict[str, set[str]]]:
    """Return the metrics of an answer of /metrics, and the labels of each."""
    helps = dict(re.findall(r"^# HELP (\w+) (.*)$", text, re.M))
    kinds = dict(re.findall(r"^# TYPE (\w+) (.*)$", text, re.M))
    labels: dict[str, set[str]] = {}
    for sample, inside in SAMPLE.findall(text):
        family = re.sub(r"_(bucket|sum|count)$", "", sample)
        name = family if kinds.get(family) == "histogram" else sample
        labels.setdefault(name, set()).update(set(LABEL.findall(inside)) - {"le"})
    return {name: (kinds[name], helps[name]) for name in kinds}, labels


def check_keys(root: pathlib.Path, disks: str) -> list[str]:
    """Return the keys of a disk in `kvcove status --json` that the page's section lacks or makes up."""
    keys = set(KEY.findall((root / "kvcove/model/disk_stat.h").read_text()))
    column = set(re.findall(r"\w+", " ".join(re.findall(r"\| ([a-z_, ]*)\|$", disks, re.M))))
    others = set(re.findall(r"\w+", disks.split("too:")[1].split("\n- ")[0]))
    return [
        *(f"docs/metrics.md: a disk has {key}, too" for key in sorted(keys - column - others)),
        *(f"docs/metrics.md: no disk has {key}" for key in sorted(column - keys)),
    ]


def main() -> int:
    """Print what is wrong; 1 if anything is."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=pathlib.Path, default=pathlib.Path(__file__).parent.parent)
    parser.add_argument("files", nargs="*", type=pathlib.Path)
    options = parser.parse_args()
    text = (options.root / "docs/metrics.md").read_text()
    page = {
        name: (kind, meaning, set(filter(None, labels.split(","))))
        for name, labels, kind, meaning in LISTED.findall(text)
    }
    wrong: list[str] = []
    labels: dict[str, set[str]] = {}
    if options.files:
        metrics, labels = scraped("\n".join(path.read_text() for path in options.files))
        if not metrics:
            wrong.append("there are no metrics in the files")
    else:
        metrics, wrong = declared(options.root)
        wrong += check_keys(options.root, text[text.index("## Disks") :].split("\n## ")[0])
        wrong += [
            f"docs/metrics.md: no source declares {name}" for name in sorted(page.keys() - metrics)
        ]
    for name, (kind, meaning) in sorted(metrics.items()):
        of_page = page.get(name, ("", "", set()))
        if of_page[:2] != (kind, meaning):
            wrong.append(f"docs/metrics.md lacks this row: | `{name}` | {kind} | {meaning} |")
        elif not labels.get(name, set()) <= of_page[2]:
            wrong.append(f"docs/metrics.md: {name} has the labels {','.join(sorted(labels[name]))}")
    print("\n".join(wrong) if wrong else f"metrics: docs/metrics.md has all {len(metrics)}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
