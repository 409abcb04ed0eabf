# SPDX-License-Identifier: Apache-2.0
"""The programs of examples/python print what they should, on a pool of each form."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import Program, command_path

EXAMPLES = Path(__file__).resolve().parents[2] / "examples/python"
PRINTED = {
    "prefix.py": """\
first: 0 of 5 chunks loaded, right
the same: 5 of 5 chunks loaded, right
another question: 2 of 5 chunks loaded, right
after the reset: MISS (RESET)
computed again: 0 of 2 chunks loaded
""",
    "asyncio_server.py": """\
first turn: 8 computed (OK)
second turn: 8 loaded
a client that hung up: CancelledError
after a reset: computed (OK)
""",
    "rl_loop.py": """\
step 0, first engine: 0 of 4 loaded
step 0, second engine: 4 of 4 loaded
step 1, first engine: 0 of 4 loaded
step 0, second engine: 4 of 4 loaded
the long answer of step 0: OK, under step 0 alone
pruned: 2 versions
a put of step 0 after that: STALE
step 0 again: denied
step 2, second engine: 4 of 4 loaded
a put from before the reset: STALE
step 2 after the reset, first engine: 0 of 4 loaded
step 2 after the reset, second engine: 4 of 4 loaded
""",
}


@pytest.fixture(params=["embedded", "host", "cluster"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "embedded":
        yield "embedded:?memory=64MiB"
    elif request.param == "host":
        yield "unix:" + request.getfixturevalue("serve")
    else:
        master = request.getfixturevalue("cluster").address
        words = [command_path(), "owner", "--master", master, "--listen", "127.0.0.1:0"]
        words += ["--memory", "64MiB", "--admin", "off", "--socket", str(tmp_path / "s" / "o")]
        owner = Program(words, tmp_path / "owner.log")
        owner.wait_for("knows this owner as number")
        yield f"kvcove://{master}"
        assert owner.stop() == 0


def test_each_example_is_known() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(PRINTED)


def run(name: str, address: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-B", str(EXAMPLES / name), address],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.parametrize("name", PRINTED)
def test_an_example_prints_this(name: str, address: str) -> None:
    done = run(name, address)
    assert (done.returncode, done.stdout) == (0, PRINTED[name]), done.stderr
    if not address.startswith("embedded"):  # once more, on what the first run has left there
        again = run(name, address)
        assert again.returncode == 0, again.stderr
