"""What one collective of UCC takes, beside values computed by hand."""

from __future__ import annotations

import pytest
from torch_ucc.topology import traffic
from torch_ucc.topology.traffic import Team, algorithm, left_over

MB = 1 << 20


@pytest.mark.parametrize(
    ("team", "radix"),
    [
        (Team(2, 1), 2),
        (Team(4, 1), 4),  # with 3, one rank is left over
        (Team(1000, 1), 10),
        (Team(2, 4), 2),
        (Team(1000, 8), 6),  # 6 ** 5 of 8000 ranks; each other radix up to 8 leaves more over
    ],
)
def test_the_radix_leaves_few_ranks_over(team: Team, radix: int) -> None:
    assert team.radix == radix


def test_ranks_that_are_left_over() -> None:
    assert [left_over(ranks, 4) for ranks in (2, 4, 5, 7, 8, 17, 63)] == [0, 0, 1, 3, 0, 1, 15]


@pytest.mark.parametrize(
    ("collective", "size", "ranks", "name"),
    [
        ("allreduce", 128 << 10, 2, "knomial"),
        ("allreduce", (128 << 10) + 1, 2, "sra_knomial"),
        ("allreduce", 4096, 9, "knomial"),
        ("allreduce", 4097, 9, "sra_knomial"),
        ("allgather", MB, 4, "neighbor"),
        ("allgather", MB, 5, "ring"),
        ("alltoall", 128 * 4, 4, "bruck"),
        ("alltoall", 129 * 4, 4, "pairwise"),
        ("bcast", MB, 2, "knomial"),
        ("bcast", MB, 3, "sag_knomial"),
        ("bcast", 64 << 10, 3, "knomial"),
        ("reduce", MB, 4, "srg"),
        ("reduce_scatter", 32 << 10, 64, "knomial"),
        ("reduce_scatter", 32 << 10, 65, "ring"),
    ],
)
def test_the_plan_chooses_the_algorithm_before_ucc_does(
    collective: str, size: int, ranks: int, name: str
) -> None:
    assert algorithm(collective, size, ranks) == name


@pytest.mark.parametrize(
    ("collective", "team", "link", "far", "near"),
    [
        # Halves on the host, then quarters with the other host; and back.
        ("allreduce", Team(2, 2), 1, 2, 2),
        # Ranks 1 and 3 are left over. The others take two rounds: 0 meets 2 first, and 4 meets 5.
        ("allreduce", Team(3, 2), 3 / 2, 4, 2),
        ("allreduce", Team(2, 1), 1, 2, 0),
        ("allreduce", Team(1, 2), 0, 0, 2),
        ("allgather", Team(2, 2), 1, 1, 1),
        ("allgather", Team(4, 1), 3 / 4, 2, 0),
        ("allgather", Team(3, 1), 2 / 3, 2, 0),
        ("alltoall", Team(4, 1), 3 / 4, 1, 0),
        ("alltoall", Team(64, 1), 63 / 64, 63, 0),
        ("bcast", Team(2, 1), 1, 1, 0),
        ("gather", Team(2, 1), 1 / 2, 1, 0),
        # Half of the data when the root gives parts out, and half when the hosts gather them.
        ("bcast", Team(2, 2), 1, 2, 2),
        # All four ranks exchange quarters. Then the root gets two quarters from the other host.
        ("reduce", Team(2, 2), 3 / 2, 2, 0),
        ("reduce_scatter", Team(2, 2), 3 / 4, 3, 0),
        ("barrier", Team(1000, 1), 0, 5, 0),  # 488 ranks are left over, and 8 ** 3 take three rounds
    ],
)
def test_bytes_and_steps_of_large_collectives(
    collective: str, team: Team, link: float, far: int, near: int
) -> None:
    found = traffic.traffic(collective, MB, team)
    assert (found.link, found.far, found.near) == (pytest.approx(link * MB), far, near)


def test_small_collectives() -> None:
    assert traffic.traffic("bcast", 1024, Team(4, 1)).link == 3 * 1024, "the root sends it three times"
    assert traffic.traffic("alltoall", 800, Team(8, 1)).far == 3
    everything = traffic.traffic("allreduce", 1024, Team(2, 2))
    assert (everything.link, everything.inside, everything.far, everything.near) == (2048, 2048, 1, 1)
    gathered = traffic.traffic("allgather", 1024, Team(2, 2))
    assert (gathered.link, gathered.inside) == (2 * 512, 2 * 256), "the second step has twice the bytes"


def test_what_a_rank_sends_at_once() -> None:
    assert traffic.traffic("alltoall", 1000 * 200, Team(8, 1)).messages == 6
    assert traffic.traffic("alltoall", 1000 * 200, Team(64, 1)).messages == 0, "one after the other"


def test_one_rank_needs_nobody() -> None:
    assert traffic.traffic("allreduce", MB, Team(1, 1)).link == 0


@pytest.mark.parametrize("radix", [2, 3, 4, 6, 8])
@pytest.mark.parametrize("ranks", [2, 3, 4, 7, 8, 12, 16, 27, 50])
def test_a_pattern_brings_the_data_of_each_rank_to_all(ranks: int, radix: int) -> None:
    radix = min(radix, ranks)
    members = ranks - left_over(ranks, radix)
    known = [{member} for member in range(members)]
    rounds = 0
    while radix**rounds < members:
        before = [set(each) for each in known]
        for member, peer in traffic._pairs(members, radix, radix**rounds):
            known[peer] |= before[member]
        rounds += 1
    assert all(each == set(range(members)) for each in known)
    assert len(traffic._pattern(Team(ranks, 1), radix).rounds) == rounds


@pytest.mark.parametrize("collective", ["allreduce", "allgather", "bcast", "reduce", "reduce_scatter"])
@pytest.mark.parametrize("team", [Team(2, 2), Team(3, 2), Team(4, 8), Team(5, 3), Team(100, 4)])
@pytest.mark.parametrize("size", [1024, 100 << 10, MB])
def test_no_collective_sends_less_than_it_must(collective: str, team: Team, size: int) -> None:
    found = traffic.traffic(collective, size, team)
    least = size * (team.hosts - 1) / team.hosts * (2 if collective == "allreduce" else 1)
    if collective in ("bcast", "reduce"):
        least = size
    assert found.link >= least * 0.999
    assert found.inside >= 0 and found.far > 0
