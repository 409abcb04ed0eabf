# SPDX-License-Identifier: Apache-2.0
"""The conformance suite on the original and here, for ``compare --suite``.

The suite runs in both interpreters. Here every test passes. There a test passes, or it is marked
``differs`` with the row of the table that says why; each of these is tried there in a process of its own,
as some end the interpreter, and has to fail: a mark on what is alike hides a difference to come.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as xml
from collections.abc import Iterator
from pathlib import Path

from kvcove_lab.differences import explains

__all__ = ["Compared", "compare"]

_MARK = "differs: "
_OWN = "kvcove's own: "
_ALONE_S = 120  # for one test by itself; the original hangs in some
_NOT_BEGUN = (2, 3, 4, 5)  # pytest: interrupted, its own error, wrong arguments, no such test


@dataclasses.dataclass
class Compared:
    """What came out: tests alike, those that differ for a reason, those of one side only, and the rest as text."""

    alike: int = 0
    explained: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    one_sided: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    unexplained: list[str] = dataclasses.field(default_factory=list)


def _environment(python: str, overlay: str, rival: str) -> dict[str, str]:
    bins = [str(Path(python).parent), os.environ.get("PATH", "")]
    paths = [overlay, os.environ.get("PYTHONPATH", "")]
    return {
        **os.environ,
        "PATH": os.pathsep.join(bins),
        "PYTHONPATH": os.pathsep.join(path for path in paths if path),
        "KVCOVE_TEST_RIVAL": rival,
    }


def _pytest(python: str) -> list[str]:
    return [python, "-m", "pytest", "-q", "-p", "no:cacheprovider"]


def _outcomes(document: Path) -> Iterator[tuple[str, str, str]]:
    """Yield each test, its outcome (passed, skipped, failed), and what pytest says of it."""
    for case in xml.parse(document).iter("testcase"):
        name = f"{case.get('classname', '')}::{case.get('name', '')}"
        bad = next((one for one in case if one.tag in ("failure", "error")), None)
        skipped = case.find("skipped")
        if bad is not None:
            yield name, "failed", bad.get("message", "").partition("\n")[0]
        elif skipped is not None:
            yield name, "skipped", skipped.get("message", "")
        else:
            yield name, "passed", ""


def _run(python: str, suite: Path, overlay: str, rival: str) -> dict[str, tuple[str, str]]:
    with tempfile.TemporaryDirectory() as directory:
        document = Path(directory) / "outcomes.xml"
        try:
            ended = subprocess.run(
                [*_pytest(python), f"--junitxml={document}", suite],
                env=_environment(python, overlay, rival),
                capture_output=True,
                text=True,
                check=False,
            )
        except OSError as error:
            raise SystemExit(f"{python} does not start: {error}") from error
        if not document.exists():
            said = (ended.stdout + ended.stderr)[-2000:]
            raise SystemExit(f"{python} -m pytest {suite} ended with {ended.returncode}: {said}")
        return {name: (outcome, said) for name, outcome, said in _outcomes(document)}


def _alone(python: str, suite: Path, name: str) -> tuple[str, str]:
    """Run one test there; return its outcome.

    It has failed, too, where it ends the interpreter or hangs; ``untried`` says that it did not begin.
    """
    module, _, test = name.partition("::")
    file = suite / (module.rpartition(".")[2] + ".py")
    with tempfile.TemporaryDirectory() as directory:
        document = Path(directory) / "outcome.xml"
        child = subprocess.Popen(
            [*_pytest(python), f"--junitxml={document}", f"{file}::{test}"],
            env=_environment(python, "", "all"),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # what a test leaves behind ends with it
        )
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(_ALONE_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        if document.exists():
            for _, outcome, said in _outcomes(document):
                return ("untried" if said.startswith("failed on setup") else outcome), said
        said = f"ended with {child.returncode}"
        return ("untried" if child.returncode in _NOT_BEGUN else "failed"), said


def _compare_skipped(rival: str, suite: Path, name: str, said: str, result: Compared) -> None:
    """Judge a test that did not run there."""
    row = said.partition(_MARK)[2]
    if not row:
        result.one_sided[said.partition(_OWN)[2] or said] += 1
        return
    if not explains(row):
        result.unexplained.append(f"{name}: no row is about {row!r}")
        return
    outcome, said = _alone(rival, suite, name)
    if outcome == "passed":
        result.unexplained.append(f"{name}: passes there, too: take its mark away")
    elif outcome == "untried":
        result.unexplained.append(f"{name}: cannot be tried there: {said}")
    elif outcome == "skipped":
        result.one_sided[said] += 1
    else:
        result.explained[row] += 1


def compare(rival: str, suite: Path, overlay: str) -> Compared:
    """Run the suite on both. Takes some ten minutes: the original waits much.

    Parameters
    ----------
    rival
        An interpreter with the original's wheel and pytest.
    suite
        The directory ``python/tests/conformance`` of kvcove's source.
    overlay
        What makes ``mooncake`` kvcove's, for PYTHONPATH.

    Raises
    ------
    SystemExit
        The suite does not run in one of the interpreters; says why.
    """
    print("the suite here ...", flush=True)
    here = _run(sys.executable, suite, overlay, "")
    print("the suite there ...", flush=True)
    there = _run(rival, suite, "", "1")
    result = Compared()
    for name, (outcome, said) in here.items():
        if outcome == "failed":
            result.unexplained.append(f"{name}: fails here: {said}")
    for name, (outcome, said) in there.items():
        ours = here.get(name, ("missing", ""))[0]
        if outcome == "skipped":
            _compare_skipped(rival, suite, name, said, result)
        elif ours == "passed" and outcome == "failed":
            result.unexplained.append(f"{name}: fails there: {said}")
        elif ours == outcome == "passed":
            result.alike += 1
        else:
            result.one_sided[f"{ours} here, {outcome} there"] += 1
    return result
