# SPDX-License-Identifier: Apache-2.0
"""Jobs as `python -m kvcove.launch slurm` renders them, run by SLURM itself: `make test-slurm`.

Everything is real but the engine, for which `slurm_client.py` stands.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import wait_until
from slurm_cluster import PATIENCE, Cluster, NoSlurm, Place, real_cluster
from slurm_hosts import NODES, NoNamespaces

KINDS = ("kvcove", "mooncake")
FORMS = [(kind, form) for kind in KINDS for form in ("whole", "part")]
smoke = pytest.mark.smoke
of_each_kind = pytest.mark.parametrize("kind", KINDS)
of_each_form = pytest.mark.parametrize(
    ("kind", "form"), FORMS, ids=["-".join(form) for form in FORMS]
)


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    try:
        with real_cluster() as made:
            print(f"slurmd finds processes by proctrack/{made.tracking}")
            yield made
    except (NoSlurm, NoNamespaces) as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def limited(cluster: Cluster, request: pytest.FixtureRequest) -> list[tuple[Place, int]]:
    """Jobs with a time limit, of which a minute is the shortest; other tests run meanwhile."""
    places = [Place(cluster, kind, "whole") for kind in KINDS]
    return [(place, place.submit("leave", "--time=1")) for place in places]


def completed(place: Place, number: int) -> None:
    assert place.ended(number) == ("COMPLETED", "0:0"), place.told()
    assert place.left() == []


@smoke
@of_each_form
def test_a_prefix_of_one_node_is_served_on_the_other(
    cluster: Cluster, kind: str, form: str
) -> None:
    place = Place(cluster, kind, form)
    number = place.submit("leave")
    place.assert_found(number)
    assert all(where.startswith("10.78.0.1:") for where in place.found(number)["where"])
    # As docs/slurm.md has it, beside the command.
    admin = f"127.0.0.1:{20000 + number % 1250 * 8 + 1}"
    if kind == "mooncake":
        (log,) = place.out.glob("mooncake/*/node_0/master.log")
        admin = re.findall(r"admin http://(127\.0\.0\.1:\d+)\)", log.read_text())[-1]
    (secrets,) = place.out.glob("kvcove/job_*")
    answer = cluster.ask(
        "srun", "--overlap", "--jobid", str(number), "-N1", "-n1", "kvcove", "admin", "--admin",
        admin, "--token", str(secrets / "cluster.toml"), "--json", "segments",
        environment={"PATH": place.path},
    )  # fmt: skip
    assert [segment["state"] for segment in json.loads(answer)["segments"]] == ["live"] * NODES
    place.leave(number)
    completed(place, number)


@smoke
@of_each_kind
def test_sbatch_export_none(cluster: Cluster, kind: str) -> None:
    place = Place(cluster, kind, "whole")
    setup = f'export PATH="{place.path}" TMPDIR="{place.temporary}"'
    number = place.submit("all", "--export=NONE", words=("--setup", setup))
    completed(place, number)


@smoke
@of_each_kind
def test_the_jobs_of_an_array_share_a_directory(cluster: Cluster, kind: str) -> None:
    place = Place(cluster, kind, "whole")
    number = place.submit("all", "--array=0-2")
    assert wait_until(lambda: len(cluster.array(number)) == 3, PATIENCE)
    ends = [place.ended(each) for each in cluster.array(number)]
    assert ends == [("COMPLETED", "0:0")] * 3, place.told()
    assert place.left() == []


def test_jobs_on_different_nodes_share_a_directory(cluster: Cluster) -> None:
    places = [Place(cluster, "kvcove", "whole")]
    places += [Place(cluster, kind, "whole", places[0].out) for kind in ("kvcove", *KINDS)]
    on = [cluster.nodes[i % 2] for i in range(len(places))]
    # Kinds are mixed on each node: kvcove, kvcove, kvcove, mooncake.
    numbers = [
        place.submit("all", f"--nodelist={node}", nodes=1)
        for place, node in zip(places, on, strict=True)
    ]
    ends = [place.ended(number) for place, number in zip(places, numbers, strict=True)]
    assert ends == [("COMPLETED", "0:0")] * len(places), places[0].told()
    assert [place.left() for place in places] == [[]] * len(places)


WAYS = ("", "--signal=TERM", "--signal=KILL", "--batch --signal=TERM", "--full --signal=TERM")


@of_each_form
def test_a_job_that_is_cancelled_leaves_nothing(cluster: Cluster, kind: str, form: str) -> None:
    """In five ways, of five jobs at once in one directory."""
    first = Place(cluster, kind, form)
    places = [first, *[Place(cluster, kind, form, first.out) for _ in WAYS[1:]]]
    numbers = [place.submit("leave") for place in places]
    for number in numbers:
        first.assert_found(number)
    for number, way in zip(numbers, WAYS, strict=True):
        cluster.ask("scancel", *way.split(), str(number))
    ends = [first.ended(number) for number in numbers]
    assert {state for state, _ in ends} <= {"CANCELLED", "FAILED"}, f"{ends}\n{first.told()}"

    def left() -> dict[str, list[Path]]:
        return {
            way: [*place.temporary.iterdir(), *place.out.glob(f"kvcove/job_{number}_*")]
            for place, number, way in zip(places, numbers, WAYS, strict=True)
        }

    # In these ways SLURM kills all processes of a task at once.
    assert {way for way, paths in left().items() if paths} <= {WAYS[2], WAYS[4]}, left()
    for place, way in zip(places, WAYS, strict=True):
        if left()[way]:
            completed(place, place.submit("all"))
    assert not any(left().values()), left()


@smoke
@of_each_kind
def test_scancel_leaves_nothing(cluster: Cluster, kind: str) -> None:
    """And gives the command the time that it needs."""
    place = Place(cluster, kind, "whole")
    number = place.submit("slow")
    place.assert_found(number)
    cluster.ask("scancel", str(number))
    assert place.ended(number)[0] == "CANCELLED"
    assert all((place.client(number) / f"ended-{rank}").exists() for rank in range(NODES))
    assert place.left() == []


@of_each_kind
def test_a_job_that_is_suspended_goes_on(
    cluster: Cluster, kind: str, limited: list[tuple[Place, int]]
) -> None:
    place = Place(cluster, kind, "whole")
    number = place.submit("again")
    place.assert_found(number)
    cluster.ask("scontrol", "suspend", str(number))
    assert cluster.job(number)["JobState"] == "SUSPENDED"
    time.sleep(10)
    cluster.ask("scontrol", "resume", str(number))
    place.leave(number, 3)
    assert [place.read(f"again-{rank}", number) for rank in range(NODES)] == ["16"] * NODES
    assert place.ended(number) == ("FAILED", "3:0"), place.told()
    assert place.left() == []


@of_each_kind
def test_a_job_that_is_requeued_begins_anew(cluster: Cluster, kind: str) -> None:
    place = Place(cluster, kind, "whole")
    number = place.submit("leave", "--requeue")
    place.assert_found(number)
    cluster.ask("scontrol", "requeue", str(number))
    place.assert_found(number, restart=1)
    place.leave(number, restart=1)
    completed(place, number)


def test_a_node_that_dies_leaves_the_other_working(cluster: Cluster) -> None:
    place = Place(cluster, "kvcove", "whole")
    number = place.submit("again")
    place.assert_found(number)
    cluster.kill_node(1)
    assert wait_until(lambda: cluster.node_state(1).startswith("DOWN"), PATIENCE)
    place.leave(number)
    assert place.read("again-0", number) == "16"
    place.ended(number)
    left = place.left()
    assert left and all(name.startswith(str(place.temporary)) for name in left)
    cluster.start_node(1)
    # The next job removes what the dead one has left on the node, and nothing of one that runs.
    alive = place.submit("again")
    place.assert_found(alive)
    assert not any(Path(name).exists() for name in left)
    completed_beside = place.submit("all")
    assert place.ended(completed_beside) == ("COMPLETED", "0:0"), place.told()
    place.leave(alive)
    assert place.read("again-1", alive) == "16"
    completed(place, alive)


@of_each_kind
def test_where_the_first_node_dies_the_job_begins_anew(cluster: Cluster, kind: str) -> None:
    place = Place(cluster, kind, "whole")
    number = place.submit("leave", "--requeue")
    place.assert_found(number)
    cluster.kill_node(0)
    assert wait_until(lambda: cluster.node_state(0).startswith("DOWN"), PATIENCE)
    assert [*place.out.glob(f"kvcove/job_{number}_0_*")]
    cluster.start_node(0)
    place.assert_found(number, restart=1)
    assert not [*place.out.glob(f"kvcove/job_{number}_0_*")]
    place.leave(number, restart=1)
    completed(place, number)


def test_a_job_ends_at_its_time_limit(limited: list[tuple[Place, int]]) -> None:
    for place, number in limited:
        assert place.ended(number)[0] == "TIMEOUT", place.told()
        assert place.left() == []


@smoke
def test_nothing_is_left_on_the_nodes(cluster: Cluster) -> None:
    """The last test: none of the jobs above has left a process."""
    assert wait_until(lambda: not cluster.strangers()), cluster.strangers()
