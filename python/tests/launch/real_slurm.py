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
of_each_form = pytest.mark.parametrize(
    ("kind", "form"), FORMS, ids=["-".join(form) for form in FORMS]
)


def of_each_kind(cluster: Cluster) -> list[Place]:
    """Return places for a whole job of each kind, which run at the same time."""
    return [Place(cluster, kind, "whole") for kind in KINDS]


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    try:
        with real_cluster() as made:
            print(f"slurmd finds processes by proctrack/{made.tracking}")
            yield made
    except (NoSlurm, NoNamespaces) as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def limited(cluster: Cluster) -> list[Place]:
    """Jobs with a time limit, of which a minute is the shortest; other tests run meanwhile."""
    places = of_each_kind(cluster)
    for place in places:
        place.submit("leave", "--time=1")
    return places


@smoke
@of_each_form
def test_a_prefix_of_one_node_is_served_on_the_other(
    cluster: Cluster, kind: str, form: str
) -> None:
    place = Place(cluster, kind, form)
    place.submit("leave")
    place.assert_found()
    assert all(where.startswith("10.78.0.1:") for where in place.found()["where"])
    # As docs/slurm.md has it, beside the command.
    admin = f"127.0.0.1:{20000 + place.number % 1250 * 8 + 1}"
    if kind == "mooncake":
        (log,) = place.out.glob("mooncake/*/node_0/master.log")
        admin = re.findall(r"admin http://(127\.0\.0\.1:\d+)\)", log.read_text())[-1]
    (secrets,) = place.out.glob("kvcove/job_*")
    answer = cluster.ask(
        "srun", "--overlap", "--jobid", str(place.number), "-N1", "-n1", "kvcove", "admin", "--admin",
        admin, "--token", str(secrets / "cluster.toml"), "--json", "segments",
        environment={"PATH": place.path},
    )  # fmt: skip
    assert [segment["state"] for segment in json.loads(answer)["segments"]] == ["live"] * NODES
    place.leave()
    place.assert_completed()


@smoke
def test_sbatch_export_none(cluster: Cluster) -> None:
    places = of_each_kind(cluster)
    for place in places:
        setup = f'export PATH="{place.path}" TMPDIR="{place.temporary}"'
        place.submit("all", "--export=NONE", words=("--setup", setup))
    for place in places:
        place.assert_completed()


@smoke
def test_the_jobs_of_an_array_share_a_directory(cluster: Cluster) -> None:
    places = of_each_kind(cluster)
    for place in places:
        place.submit("all", "--array=0-2")
    for place in places:
        assert wait_until(lambda place=place: len(cluster.array(place.number)) == 3, PATIENCE)
        ends = [place.ended(number) for number in cluster.array(place.number)]
        assert ends == [("COMPLETED", "0:0")] * 3, place.told()
        assert place.left() == []


def test_jobs_on_different_nodes_share_a_directory(cluster: Cluster) -> None:
    """Two of a kind, and one of the other kind."""
    first = Place(cluster, "kvcove", "whole")
    places = [first, *[Place(cluster, kind, "whole", first.out) for kind in ("kvcove", "mooncake")]]
    for place, node in zip(places, [*cluster.nodes, cluster.nodes[0]], strict=True):
        place.submit("all", f"--nodelist={node}", nodes=1)
    ends = [place.ended() for place in places]
    assert ends == [("COMPLETED", "0:0")] * 3, first.told()
    assert [place.left() for place in places] == [[]] * 3


WAYS = ("", "--signal=TERM", "--signal=KILL", "--batch --signal=TERM", "--full --signal=TERM")


@of_each_form
def test_a_job_that_is_cancelled_leaves_nothing(cluster: Cluster, kind: str, form: str) -> None:
    """In five ways, of five jobs at once in one directory."""
    first = Place(cluster, kind, form)
    places = {way: Place(cluster, kind, form, first.out) for way in WAYS}
    for place in places.values():
        place.submit("leave")
    for place in places.values():
        place.assert_found()
    for way, place in places.items():
        cluster.ask("scancel", *way.split(), str(place.number))
    for place in places.values():
        assert place.ended()[0] in ("CANCELLED", "FAILED"), place.told()

    def left() -> dict[str, list[Path]]:
        return {
            way: [*place.temporary.iterdir(), *place.out.glob(f"kvcove/job_{place.number}_*")]
            for way, place in places.items()
        }

    # In these ways SLURM, or srun, kills all processes of a task at once.
    killed = ("--signal=KILL", "--full --signal=TERM")
    assert {way for way, paths in left().items() if paths} <= {*killed}, left()
    remains = left()
    for way in killed:
        if remains[way]:
            places[way].submit("all")
    for way in killed:
        if remains[way]:
            places[way].assert_completed()
    assert not any(path.exists() for paths in remains.values() for path in paths), remains


@smoke
def test_scancel_gives_commands_the_time_that_they_need(cluster: Cluster) -> None:
    """Also where the batch shell alone gets SIGTERM, as with `sbatch --signal=B:TERM@60`."""
    places = {
        (kind, way): Place(cluster, kind, "whole")
        for kind in KINDS
        for way in ("", "--batch --signal=TERM")
    }
    for place in places.values():
        place.submit("slow")
    for place in places.values():
        place.assert_found()
    for (_, way), place in places.items():
        cluster.ask("scancel", *way.split(), str(place.number))
    for place in places.values():
        assert place.ended()[0] in ("CANCELLED", "COMPLETED")
        assert all((place.client() / f"ended-{rank}").exists() for rank in range(NODES)), (
            place.told()
        )
        assert place.left() == []


def test_a_job_that_is_suspended_goes_on(cluster: Cluster, limited: list[Place]) -> None:
    places = of_each_kind(cluster)
    for place in places:
        place.submit("again")
    for place in places:
        place.assert_found()
        cluster.ask("scontrol", "suspend", str(place.number))
        assert place.job()["JobState"] == "SUSPENDED"
    time.sleep(10)  # longer than a lease
    for place in places:
        cluster.ask("scontrol", "resume", str(place.number))
        place.leave(3)
    for place in places:
        assert [place.read(f"again-{rank}") for rank in range(NODES)] == ["16"] * NODES
        assert place.ended() == ("FAILED", "3:0"), place.told()
        assert place.left() == []


def test_a_job_that_is_requeued_begins_anew(cluster: Cluster) -> None:
    places = of_each_kind(cluster)
    for place in places:
        place.submit("leave", "--requeue")
    for place in places:
        place.assert_found()
        cluster.ask("scontrol", "requeue", str(place.number))
    for place in places:
        place.restart = 1
        place.assert_found()
        place.leave()
    for place in places:
        place.assert_completed()


def test_a_node_that_dies_leaves_the_other_working(cluster: Cluster) -> None:
    places = of_each_kind(cluster)
    for place in places:
        place.submit("again")
    for place in places:
        place.assert_found()
    cluster.kill_node(1)
    assert wait_until(lambda: cluster.node_state(1).startswith("DOWN"), PATIENCE)
    for place in places:
        place.leave()
        assert place.read("again-0") == "16"
        place.ended()
    left = {place.kind: place.left() for place in places}
    assert all(left.values()), left
    cluster.start_node(1)
    # The next job removes what the dead one has left on the node. Another one then leaves alone what is this one's.
    for place in places:
        assert all(name.startswith(str(place.temporary)) for name in left[place.kind])
        place.submit("again")
    for place in places:
        place.assert_found()
        assert not any(Path(name).exists() for name in left[place.kind])
    others = [Place(cluster, p.kind, "whole", p.out, p.temporary) for p in places]
    for other in others:
        other.submit("all")
    for other in others:
        assert other.ended() == ("COMPLETED", "0:0"), other.told()
    for place in places:
        place.leave()
        assert place.read("again-1") == "16"
        place.assert_completed()


def test_where_the_first_node_dies_the_job_begins_anew(cluster: Cluster) -> None:
    places = of_each_kind(cluster)
    for place in places:
        place.submit("leave", "--requeue")
    for place in places:
        place.assert_found()
    cluster.kill_node(0)
    assert wait_until(lambda: cluster.node_state(0).startswith("DOWN"), PATIENCE)
    cluster.start_node(0)
    for place in places:
        # SLURM finds out that the batch shell is missing, but takes its time.
        assert place.job()["JobState"] == "RUNNING"
        assert [*place.out.glob("kvcove/job_*_0_batch")]
        cluster.ask("scontrol", "requeue", str(place.number))
    for place in places:
        place.restart = 1
        place.assert_found()
        assert not [*place.out.glob("kvcove/job_*_0_batch")]
        place.leave()
    for place in places:
        place.assert_completed()


def test_a_job_ends_at_its_time_limit(limited: list[Place]) -> None:
    for place in limited:
        assert place.ended()[0] == "TIMEOUT", place.told()
        assert place.left() == []


@smoke
def test_nothing_is_left_on_the_nodes(cluster: Cluster) -> None:
    """The last test: none of the jobs above has left a process."""
    assert wait_until(lambda: not cluster.strangers()), cluster.strangers()
