# SPDX-License-Identifier: Apache-2.0
"""Parts of run.py that fit into some minutes: within.py DIRECTORY SECONDS [PART...].

Parts without a result in DIRECTORY run first, then those whose result is the oldest; each layout of `shapes` is a part of its own
here, "shapes: TP 4" for instance. No part begins that would not end in time, by what it took last. One that does not end in time is
ended with all its processes, and its former result stays. Without PARTs: those that this version has a cell for in
docs/connector.md. Ends with 1 if a check failed, and says what is left. `within.json` in DIRECTORY has the times.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

HERE = Path(__file__).parent
NEWEST = (0, 32)
SHAPES = "shapes: "
# Of versions other than the newest, what trainers that pin them need: ranks, MLA, windows and states, and the drop-in.
OTHERS = (
    *("own", "overhead", "ranks", "hybrid"),
    *(f"{SHAPES}MLA, TP {ranks}" for ranks in (1, 2)),
    *("mooncake", "queued", "cascade", "trainers", "explain"),
)
SINCE_0_30 = (f"{SHAPES}windows, TP 2", f"{SHAPES}states, TP 2")
UNKNOWN_S = 240.0  # of a part that never ran
SLACK = 1.15


@dataclass
class Times:
    """When a part last had a result (0: never), and how long it took, or was let run."""

    ended: float = 0.0
    seconds: float = 0.0


def wanted(release: tuple[int, int], parts: Sequence[str], shapes: Sequence[str]) -> list[str]:
    """Return the parts of a version, those of ``parts`` and ``shapes`` that it is to run."""
    if release >= NEWEST:
        own = [f"{SHAPES}{shape}" for shape in shapes]
        return [each for part in parts for each in (own if part == "shapes" else [part])]
    return [*OTHERS, *(SINCE_0_30 if release >= (0, 30) else ())]


def next_of(left: Sequence[str], times: dict[str, Times], seconds: float) -> str | None:
    """Return the part that is to run in the seconds that are left, or None where none fits."""
    never = Times()
    fits = [
        part
        for part in left
        if SLACK * (times.get(part, never).seconds or UNKNOWN_S) <= max(0.0, seconds)
    ]
    return min(fits, key=lambda part: times.get(part, never).ended, default=None)


def run_part(directory: Path, part: str, seconds: float) -> int | None:
    """Run a part in a process of its own; return its status, or None where it did not end in time."""
    name, _, shape = part.partition(": ")
    environment = {**os.environ, "KVCOVE_REFERENCE": "made"}
    if shape:
        environment["KVCOVE_SHAPES"] = shape
    process = subprocess.Popen(
        [sys.executable, str(HERE / "run.py"), str(directory), name],
        env=environment,
        start_new_session=True,  # its engines and owners are ended with it
    )
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        return None
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def run_within(
    directory: Path,
    parts: Sequence[str],
    until: float,
    run: Callable[[Path, str, float], int | None] = run_part,
    clock: Callable[[], float] = time.time,
) -> tuple[list[str], list[str]]:
    """Run parts until a time; return those that failed, and those that have no result of this run."""
    path = directory / "within.json"
    told = json.loads(path.read_text()) if path.exists() else {}
    times = {part: Times(**each) for part, each in told.items()}
    left, failed = list(parts), []
    while (part := next_of(left, times, until - clock())) is not None:
        began = clock()
        print(f"== {part}: {until - began:.0f} s are left", flush=True)
        status = run(directory, part, until - began)
        took = clock() - began
        if status is None:  # the next run lets it begin where more time is left than it had
            print(f"  {part} was ended after {took:.0f} s", flush=True)
            times[part] = Times(times.get(part, Times()).ended, took)
            path.write_text(json.dumps({name: asdict(each) for name, each in times.items()}))
            break
        if status != 0:
            failed.append(part)
        times[part] = Times(clock(), took)
        left.remove(part)
        path.write_text(json.dumps({name: asdict(each) for name, each in times.items()}))
    return failed, left


def main(words: list[str]) -> int:
    if len(words) < 2:
        raise SystemExit(__doc__)
    from release import vllm_release
    from run import FAILED, PARTS, reference_of
    from shapes import SHAPES as LAYOUTS

    until = time.time() + float(words[1])
    directory = Path(words[0]).resolve()
    every = wanted(vllm_release(), list(PARTS), [each.name for each in LAYOUTS])
    known = {*PARTS, *every}
    if unknown := [part for part in words[2:] if part not in known]:
        raise SystemExit(f"no part is called {', '.join(unknown)}: {', '.join(sorted(known))}")
    reference_of(directory)
    if FAILED:  # no part looks at the reference again
        raise SystemExit(f"no part can be judged, as this does not hold: {FAILED[0]}")
    failed, left = run_within(directory, words[2:] or every, until)
    print(f"\n{len(failed)} parts failed{': ' if failed else ''}{', '.join(failed)}")
    print(f"{len(left)} parts are left{': ' if left else ''}{', '.join(left)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
