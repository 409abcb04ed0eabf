#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks deploy/monitoring: dashboards and alerts use metrics, labels and miss reasons that exist, and runbooks that exist.

  scripts/check_monitoring.py [--root ROOT]

Prometheus' own checks of the same files are in tests/integration/prometheus_test.py.
"""

from __future__ import annotations

import argparse
import itertools
import json
import pathlib
import re
import sys
from collections.abc import Iterator

import check_docs
import check_metrics

SELECTOR = re.compile(r"([a-zA-Z_:][\w:]*)\{([^}]*)\}")
MATCHER = re.compile(r'(\w+)(=~|!~|!=|=)"([^"]*)"')
GROUPING = re.compile(r"\b(?:by|on|without|ignoring)\s*\(([^)]*)\)")
NAME = re.compile(r"(?<![\w:$.])([a-zA-Z_:][\w:]*)(?!\w*\s*\()")
KEYWORDS = {"and", "or", "unless", "by", "on", "bool"}
# What Prometheus adds to the series of a target, and prometheus.yml with it.
TARGET_LABELS = {"job", "instance", "pool"}
# Prometheus' own.
OTHERS = {"up": set(), "ALERTS": {"alertname", "alertstate", "severity"}}


def engine_metrics(root: pathlib.Path) -> set[str]:
    """Return the names of an engine's metrics, of which vllm:kvcove_NAME is made."""
    source = (root / "kvcove/connector/scheduler/counts.cc").read_text()
    reasons = miss_reasons(root)
    names = {f"{name}_total" for name in re.findall(r'\bAdd\(\s*"(\w+)"', source)}
    names |= set(re.findall(r'\bGauge\(\s*"(\w+)"', source))
    for name in re.findall(r'\bHistogram\("(\w+)"', source):
        names |= {f"{name}_{part}" for part in ("bucket", "sum", "count")}
    for where in re.findall(r'\bMisses\("(\w+)"', source):
        names |= {f"{where}_missed_{re.sub('[ -]', '_', reason)}_total" for reason in reasons}
    return names


def miss_reasons(root: pathlib.Path) -> set[str]:
    """Return the reasons of misses, as metrics call them."""
    source = (root / "kvcove/model/ids.cc").read_text()
    body = source[source.index("MissReasonName(") :].split("\n}\n")[0]
    return set(re.findall(r'return "([^"]+)"', body)) - {"hit"}


class Known:
    """The metrics that exist, with their labels."""

    def __init__(self, root: pathlib.Path) -> None:
        page = (root / "docs/metrics.md").read_text()
        self.labels: dict[str, set[str]] = dict(OTHERS)
        for name, labels, kind, _ in check_metrics.LISTED.findall(page):
            own = set(filter(None, labels.split(",")))
            if kind == "histogram":
                self.labels[f"{name}_bucket"] = own | {"le"}
                self.labels[f"{name}_sum"] = self.labels[f"{name}_count"] = own
            else:
                self.labels[name] = own
        self.labels["vllm:kvcove_build_info"] = {"model_name", "engine", "version"}
        for name in engine_metrics(root):
            own = {"model_name", "engine"} | ({"le"} if name.endswith("_bucket") else set())
            self.labels[f"vllm:kvcove_{name}"] = own
        self.reasons = miss_reasons(root)

    def wrong(self, expression: str, shown: str = "") -> Iterator[str]:
        """Return what an expression, and a text with {{labels}} of its series, use that does not exist."""
        names = []
        used = set(re.findall(r"\{\{ *(?:\$labels\.)?(\w+) *\}\}", shown)) - {"value"}
        for name, inside in SELECTOR.findall(expression):
            names.append(name)
            for label, how, value in MATCHER.findall(inside):
                if label not in self.labels.get(name, set()) | TARGET_LABELS:
                    yield f"{name} has no label {label}"
                if label == "reason" and "misses" in name:
                    for reason in value.split("|") if "~" in how else [value]:
                        if reason not in self.reasons:
                            yield f"no miss has the reason '{reason}'"
        for labels in GROUPING.findall(expression):
            used |= {label.strip() for label in labels.split(",")}
        rest = SELECTOR.sub(" ", expression)
        rest = GROUPING.sub(" ", rest)
        rest = re.sub(r'"[^"]*"|\[[^\]]*\]', " ", rest)
        names += [name for name in NAME.findall(rest) if name not in KEYWORDS]
        if not names:
            yield "the expression names no metric"
        for name in names:
            if name not in self.labels:
                yield f"no metric is called {name}"
        for label in used:
            if not any(label in self.labels.get(name, set()) | TARGET_LABELS for name in names):
                yield f"none of {', '.join(sorted(set(names)))} has the label {label}"


def check_dashboard(path: pathlib.Path, known: Known) -> Iterator[str]:
    """Return what is wrong with a dashboard."""
    board = json.loads(path.read_text())
    panels = board["panels"]
    variables = {variable["name"] for variable in board["templating"]["list"]}
    for variable in board["templating"]["list"]:
        query = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["query"])
        if query:
            yield from known.wrong(query[1], f"{{{{{query[2]}}}}}")
    if len({panel["id"] for panel in panels}) != len(panels):
        yield "two panels have one id"
    for one, other in itertools.combinations(panels, 2):
        a, b = one["gridPos"], other["gridPos"]
        apart = a["x"] + a["w"] <= b["x"] or b["x"] + b["w"] <= a["x"]
        if not apart and not (a["y"] + a["h"] <= b["y"] or b["y"] + b["h"] <= a["y"]):
            yield f"'{one['title']}' and '{other['title']}' overlap"
    for panel in panels:
        for target in panel.get("targets", []):
            for name in re.findall(r"\$(\w+)", target["expr"]):
                if name not in variables | {"__rate_interval"}:
                    yield f"'{panel['title']}': there is no variable ${name}"
            for fault in known.wrong(target["expr"], target["legendFormat"]):
                yield f"'{panel['title']}': {fault}"


def check_alerts(root: pathlib.Path, known: Known) -> Iterator[str]:
    """Return what is wrong with the alerts: their lines are read, as Python has no YAML of its own."""
    folder = root / "deploy/monitoring"
    tests = (folder / "alerts_test.yml").read_text()
    blocks = (folder / "alerts.yml").read_text().split("- alert: ")[1:]
    if not blocks:
        yield "there are no alerts"
    for block in blocks:
        name = block.splitlines()[0].strip()
        fields = {
            key: value.strip().strip('"')
            for key, value in re.findall(r"^ +(expr|severity|summary|description|runbook|labels): (.*)$", block, re.M)
        }
        shown = fields.get("summary", "") + fields.get("description", "")
        for fault in known.wrong(fields["expr"], shown):
            yield f"{name}: {fault}"
        if not {"summary", "description", "runbook"} <= fields.keys():
            yield f"{name}: summary, description or runbook is missing"
        if fields.get("labels") not in {"{severity: page}", "{severity: ticket}"}:
            yield f"{name}: the severity is neither page nor ticket"
        page, _, anchor = fields.get("runbook", "").partition("#")
        if not (root / page).is_file() or (anchor and anchor not in check_docs.anchors(root / page)):
            yield f"{name}: there is no {fields.get('runbook')}"
        if not re.search(rf"\b{name}\b", tests):
            yield f"{name}: alerts_test.yml does not test it"


def main() -> int:
    """Print what is wrong; 1 if anything is."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=pathlib.Path, default=pathlib.Path(__file__).parent.parent)
    root = parser.parse_args().root
    known = Known(root)
    wrong = [f"alerts.yml: {fault}" for fault in check_alerts(root, known)]
    boards = sorted((root / "deploy/monitoring/dashboards").glob("*.json"))
    for path in boards:
        wrong += [f"{path.name}: {fault}" for fault in check_dashboard(path, known)]
    print("\n".join(wrong) if wrong else f"monitoring: {len(boards)} dashboards and the alerts use what exists")
    return 1 if wrong or not boards else 0


if __name__ == "__main__":
    sys.exit(main())
