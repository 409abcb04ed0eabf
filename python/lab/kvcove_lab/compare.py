# SPDX-License-Identifier: Apache-2.0
"""``python -m kvcove.mooncake compare --rival PYTHON``: the same calls on the original and here.

Random sequences of calls (calls.py), with right and wrong arguments, run in both interpreters, each
with a master of its own. Every answer is compared; a difference is either one that docs/mooncake.md
explains, or it is printed and the command ends with 1. What follows the first difference of a
sequence is not compared: the two stores hold different values then. Every two thousand sequences both get
a master and a store of their own, because the original's memory fills up with what is not given back.

With ``--suite`` the conformance suite of kvcove's source runs on both, too (suite.py). ``--table`` prints
what is known to differ, and why, as the table in docs/mooncake.md.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from kvcove.bench import _free_port, _wait_for

import kvcove
from kvcove import _command
from kvcove_lab import differences as _differences
from kvcove_lab import suite as _suite

__all__ = ["differences", "main"]

_CALLS = Path(__file__).with_name("calls.py")
_OVERLAY = str(Path(kvcove.__file__).parent / "mooncake" / "overlay")


def _misses_here(there: Any, here: Any) -> bool:
    """Whether values that are empty there are the only ones that differ."""
    nothing = (None, "bytes ")
    pairs = (
        zip(there, here, strict=True)
        if isinstance(there, list) and isinstance(here, list)
        else [(there, here)]
    )
    return all(a == b or a in nothing for a, b in pairs)


def _freed(there: Any, here: Any) -> bool:
    """Whether leases are what differs."""
    if isinstance(there, int) and isinstance(here, int):
        return there == -706 or here > there >= 0
    return all(a == b or a == -706 for a, b in zip(there, here, strict=True))


# Calls, whether two answers differ for this reason, and the reason, as docs/mooncake.md has it.
EXPLAINED: list[tuple[tuple[str, ...], Callable[[Any, Any], bool], str]] = [
    (
        ("put_parts", "upsert_parts"),
        lambda there, here: (there, here) == (0, -600),
        "parts of nothing",
    ),
    (
        ("batch_get_into_multi_buffers",),
        lambda there, here: there == [-800] and here[0] > 0,
        "pieces that reach beyond the value",
    ),
    (
        ("get_batch", "get", "get_buffer", "batch_get_buffer", "get_tensor", "batch_get_tensor"),
        _misses_here,
        "values together larger than local_buffer_size",
    ),
    (
        ("remove", "batch_remove", "remove_by_regex"),
        _freed,
        "a read that fails for its buffer holds the value",
    ),
    (
        ("unregister_buffer",),
        lambda there, here: (there, here) == (-12, -600),
        "memory that is not registered",
    ),
    (
        ("put_from and batch_get_into",),
        lambda there, here: (there[0], here[0]) == (-200, 0),
        "no room for a value of tens of MiB",
    ),
    (
        ("batch_replica_clear",),
        lambda there, here: set(there) < set(here),
        "a read that fails for its buffer holds the value",
    ),
]


# A put of so much, after which the original has evicted others; its answers of a value that is gone.
WHALE = "put_from and batch_get_into"
EVICTED = "others after a value of tens of MiB"
_GONE: tuple[Any, ...] = (-704, -600, 0, None, "bytes ", [], {})

_ROUND = 2000


def _gone_there(there: Any, here: Any) -> bool:
    """Whether values that are gone there are the only ones that differ."""
    if isinstance(there, list) and isinstance(here, list) and len(there) == len(here):
        return all(_gone_there(a, b) for a, b in zip(there, here, strict=True))
    return there == here or there in _GONE


def _rows(python: str, master: str, what: list[str], path: list[str]) -> Iterator[Any]:
    environment = dict(os.environ)
    # The original waits for half a minute: a machine that is busy is no difference.
    environment.setdefault("KVCOVE_TIMEOUT_MS", "30000")
    environment["PYTHONPATH"] = os.pathsep.join([*path, environment.get("PYTHONPATH", "")])
    with tempfile.TemporaryFile("w+") as errors:
        child = subprocess.Popen(
            [python, "-P", str(_CALLS), master, *what],
            stdout=subprocess.PIPE,
            stderr=errors,
            env=environment,
            text=True,
        )
        assert child.stdout is not None
        for line in child.stdout:
            yield json.loads(line)
        if child.wait() != 0:
            errors.seek(0)
            raise SystemExit(f"{python} ended with {child.returncode}: {errors.read()[-2000:]}")


def _reason(call: str, there: Any, here: Any) -> str:
    for calls, fits, reason in EXPLAINED:
        if call in calls and fits(there, here):
            return reason
    return ""


def differences(
    there: Iterator[Any], here: Iterator[Any]
) -> tuple[int, collections.Counter[str], list[str]]:
    """Return how many answers were compared, the explained differences, and the others as text."""
    compared = 0
    explained: collections.Counter[str] = collections.Counter()
    unexplained: list[str] = []
    skipped = crowded = None
    for a, b in zip(there, here, strict=True):
        if a == "done" or a[0] == skipped:
            continue
        if a[:3] != b[:3]:
            raise SystemExit(f"the two made other calls: {a[:3]}, {b[:3]}")
        compared += 1
        if a[1] == WHALE:
            crowded = a[0]
        if a[3] == b[3]:
            continue
        skipped = a[0]
        reason = _reason(a[1], a[3], b[3])
        if not reason and crowded == a[0] and _gone_there(a[3], b[3]):
            reason = EVICTED
        if reason:
            explained[reason] += 1
        else:
            unexplained.append(f"sequence {a[0]}: {a[1]}{a[2]}: {a[3]} there, {b[3]} here")
    return compared, explained, unexplained


def _masters(rival: str, directory: str) -> tuple[list[subprocess.Popen[bytes]], list[str]]:
    program = shutil.which("mooncake_master", path=str(Path(rival).parent))
    if program is None:
        raise SystemExit(f"there is no mooncake_master beside {rival}")
    ports = [_free_port(), _free_port()]
    commands = [
        [program, f"-rpc_port={ports[0]}", f"-metrics_port={_free_port()}"],
        [
            *(_command.path(), "master", "--listen", f"127.0.0.1:{ports[1]}"),
            *("--data", directory, "--admin", "off"),
        ],
    ]
    quiet = subprocess.DEVNULL
    masters = [subprocess.Popen(command, stdout=quiet, stderr=quiet) for command in commands]
    for port in ports:
        _wait_for(port)
    return masters, [f"127.0.0.1:{port}" for port in ports]


def _has_torch(python: str) -> bool:
    return subprocess.run([python, "-P", "-c", "import torch"], capture_output=True).returncode == 0


def _round(rival: str, what: list[str]) -> tuple[int, collections.Counter[str], list[str]]:
    with tempfile.TemporaryDirectory() as directory:
        masters, addresses = _masters(rival, directory)
        try:
            return differences(
                _rows(rival, addresses[0], what, []),
                _rows(sys.executable, addresses[1], what, [_OVERLAY]),
            )
        finally:
            for master in masters:
                master.terminate()
                master.wait()


def _random_calls(rival: str, sequences: int, seed: int) -> list[str]:
    """Compare random calls, print what came out, and return what is not explained."""
    tensors = all(_has_torch(python) for python in (rival, sys.executable))
    if not tensors:
        print("torch is not in both interpreters: no calls with tensors")
    compared = 0
    explained: collections.Counter[str] = collections.Counter()
    unexplained: list[str] = []
    for first in range(0, sequences, _ROUND):
        last = min(first + _ROUND, sequences)
        what = [str(seed), str(first), str(last), *(["tensors"] if tensors else [])]
        one = _round(rival, what)
        compared += one[0]
        explained += one[1]
        unexplained += one[2]
    print(f"{compared} answers of {sequences} sequences compared, seed {seed}")
    for reason, count in explained.most_common():
        print(f"  {count} differ: {reason}")
    return unexplained


def _conformance(rival: str, suite: Path) -> list[str]:
    """Run the suite on both, print what came out, and return what is not explained."""
    if not list(suite.glob("test_*.py")):
        raise SystemExit(f"{suite} is no suite: name python/tests/conformance of kvcove's source")
    result = _suite.compare(rival, suite, _OVERLAY)
    print(f"{result.alike} tests pass on both")
    for reason, count in result.explained.items():
        print(f"  {count} differ: {reason}")
    for reason, count in result.one_sided.items():
        print(f"  {count} of one side only: {reason}")
    return result.unexplained


def main(words: list[str]) -> None:
    """Compare, and end with 1 where a difference is not explained."""
    parser = argparse.ArgumentParser(prog="python -m kvcove.mooncake compare", description=__doc__)
    parser.add_argument(
        "--rival", metavar="PYTHON", help="an interpreter with the original's wheel"
    )
    parser.add_argument("--sequences", type=int, default=1000, metavar="N", help="(1000)")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="replays a run (1)")
    parser.add_argument(
        "--suite",
        type=Path,
        metavar="DIRECTORY",
        help="python/tests/conformance of kvcove's source; both interpreters need pytest",
    )
    parser.add_argument(
        "--table", action="store_true", help="print what is known to differ, and end"
    )
    options = parser.parse_args(words)
    if options.table:
        print(_differences.table(), end="")
        return
    if options.rival is None:
        parser.error("--rival PYTHON is missing")
    unexplained = _random_calls(options.rival, options.sequences, options.seed)
    if options.suite is not None:
        unexplained += _conformance(options.rival, options.suite)
    for text in unexplained[:50]:
        print(f"  not explained: {text}")
    print(f"{len(unexplained)} unexplained")
    raise SystemExit(1 if unexplained else 0)
