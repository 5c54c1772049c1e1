"""Estimates of operations beside values computed by hand, and how `torch-ucc plan` shows them."""

from __future__ import annotations

import dataclasses
import itertools
import json
from typing import Any

import pytest
from torch_ucc import cli
from torch_ucc.cli.estimate import amount_text, number, rate, seconds, time_text
from torch_ucc.config import Config
from torch_ucc.topology.estimate import (
    CALL,
    IN_LEVELS,
    IN_MEMORY,
    LINK_SHARE,
    ONE_TEAM,
    OPS,
    Estimate,
    Host,
    Network,
    estimates,
    slot_bytes,
)
from torch_ucc.topology.traffic import Team

MB = 1 << 20
HOST = Host(cores=2, copy=1e10, reduce=2e10, tcp=4e9, step=1e-6)
NETWORK = Network(bandwidth=1e8 / LINK_SHARE, latency=10e-6)
"""Of which 100 MB/s are left for data."""
GIVEN = ["--copy", "10g", "--reduce", "10g", "--tcp", "5g", "--step", "1us", "--cores", "2"]


def estimate(op: str, size: int, team: Team, way: str, **constants: Any) -> Estimate:
    host, network = constants.pop("host", HOST), constants.pop("network", NETWORK)
    found = estimates(op, size, team, host, network, **constants)
    return next(each for each in found if each.way == way)


def test_an_all_reduce_on_one_host() -> None:
    """Two ranks copy their halves of 1 MiB, and both read the result. The slots have 128 KiB."""
    found = estimate("all_reduce", MB, Team(1, 2), IN_MEMORY)
    assert found.memory == pytest.approx(3 * MB / 1e10 + 2 * MB / 2e10)
    assert (found.network, found.link_bytes, found.step_count) == (0, 0, 9)
    assert found.seconds == pytest.approx(found.memory + CALL + 9e-6) and found.is_taken
    assert found.rank_bytes == 4 * (128 << 10)


def test_a_small_all_reduce_on_one_host_takes_one_step() -> None:
    found = estimate("all_reduce", 1024, Team(1, 8), IN_MEMORY)
    assert found.step_count == 1 and found.memory == pytest.approx(8 * 1024 / 1e10 + 64 * 1024 / 2e10)


def test_an_all_reduce_in_levels_of_one_piece() -> None:
    """The data is copied 1 + 3 times on the host, and once before and once after it is sent."""
    found = estimate("all_reduce", 2 * MB, Team(2, 2), IN_LEVELS)
    assert (found.pieces, found.step_count, found.link_bytes) == (1, 8 + 8 + 1, 2 * MB)
    assert found.memory == pytest.approx((4 + 2) * 2 * MB / 1e10 + (2 + 2) * 2 * MB / 2e10 + 2 * 2 * MB / 4e9)
    assert found.network == pytest.approx(2 * MB / 1e8)
    assert found.steps == pytest.approx(CALL + 16e-6 + 11e-6)
    assert found.seconds == pytest.approx(found.memory + found.network + found.steps)
    assert found.by == "allgather by neighbor"
    assert found.rank_bytes == 2 * MB + 4 * (128 << 10), "the shares of both hosts, and the slots"


def test_an_all_reduce_of_three_hosts_is_reduced_by_ucc() -> None:
    """Each rank of a row sends thirds of its share to both others, and then its third of the sum."""
    found = estimate("all_reduce", 2 * MB, Team(3, 2), IN_LEVELS)
    assert found.by == "allreduce by sra_knomial"
    assert (found.link_bytes, found.step_count) == (pytest.approx(4 / 3 * 2 * MB), 8 + 8 + 2)
    assert found.rank_bytes == 2 * MB + 4 * (128 << 10), "the share, what UCC allocates, and the slots"


def test_a_reduce_of_two_hosts_is_added_up_by_the_root_s_host() -> None:
    """The rank beside the root copies its share of the result once, and the root copies both."""
    found = estimate("reduce", 2 * MB, Team(2, 2), IN_LEVELS)
    assert (found.by, found.link_bytes, found.step_count) == ("gather by knomial", 2 * MB, 8 + 8 + 1)
    copied = (1 + 1.5 + 2) * 2 * MB
    assert found.memory == pytest.approx(copied / 1e10 + (2 + 2) * 2 * MB / 2e10 + 2 * 2 * MB / 4e9)
    assert found.rank_bytes == 2 * MB + 4 * (128 << 10)
    assert estimate("reduce", 2 * MB, Team(3, 2), IN_LEVELS).by == "reduce by srg"


def test_a_broadcast_in_levels() -> None:
    """The root's host copies 1.5 times the data to scatter it and 2 times to broadcast it, and the other
    host 3 times to gather it. If there are several pieces, both hosts work at the same time."""
    one = estimate("broadcast", 2 * MB, Team(2, 2), IN_LEVELS)
    assert (one.by, one.link_bytes) == ("bcast by knomial", 2 * MB)
    assert one.step_count == 9 + 16 + 8 + 1, "each slot of a scatter begins with a table"
    assert one.memory == pytest.approx((1.5 + 2 + 3 + 2) * 2 * MB / 1e10 + 2 * 2 * MB / 4e9)
    assert one.rank_bytes == MB + 4 * (128 << 10)
    fast = Network(1e12, 1e-6)
    one, three = (
        estimate("broadcast", size, Team(2, 2), IN_LEVELS, network=fast) for size in (2 * MB, 6 * MB)
    )
    assert three.seconds == pytest.approx(one.seconds + 2 * (one.memory + 33e-6) / 2)


def test_little_data_goes_through_few_rows() -> None:
    """With 100 KiB, 64 go through the first row and 36 through the second one. Two of the eight ranks
    reduce and send."""
    few, all_at_once = (
        estimate("all_reduce", size << 10, Team(2, 8), IN_LEVELS, host=Host(8, 1e10, 2e10, 4e9, 1e-6))
        for size in (100, 800)
    )
    assert (few.pieces, few.link_bytes) == (1, 100 << 10)
    assert few.memory == pytest.approx(
        (7 + 9 + 2 * 8 / 2) * (100 << 10) / 1e10
        + (8 + 2) * 8 / 2 * (100 << 10) / 2e10
        + 2 * 8 / 2 * (100 << 10) / 4e9
    )
    assert few.rank_bytes == 2 * (64 << 10) + 4 * (256 << 10)
    assert all_at_once.memory < 8 * few.memory
    one_row = estimate("all_reduce", 40 << 10, Team(2, 8), IN_LEVELS)
    assert (one_row.link_bytes, one_row.rank_bytes) == (40 << 10, 2 * (40 << 10) + 4 * (256 << 10))


def test_pieces_overlap() -> None:
    one = estimate("all_reduce", 2 * MB, Team(2, 2), IN_LEVELS)
    four = estimate("all_reduce", 8 * MB, Team(2, 2), IN_LEVELS)
    assert four.pieces == 4 and four.memory == pytest.approx(4 * one.memory)
    assert four.seconds == pytest.approx(one.seconds + 3 * one.network), "the network is the slowest part"
    fast = Network(1e12, 1e-6)
    one, four = (
        estimate("all_reduce", size, Team(2, 2), IN_LEVELS, network=fast) for size in (2 * MB, 8 * MB)
    )
    on_board = one.memory + 16e-6
    assert four.seconds == pytest.approx(one.seconds + 3 * on_board), "the memory is"
    far = Network(1e12, 1.0)
    one, four = (
        estimate("all_reduce", size, Team(2, 2), IN_LEVELS, network=far) for size in (2 * MB, 8 * MB)
    )
    assert four.seconds == pytest.approx(one.seconds * 2, rel=1e-4), "three pieces are under way at once"


def test_the_other_operations_in_levels() -> None:
    def link(op: str, hosts: int = 4) -> float:
        return estimate(op, 8 * MB, Team(hosts, 2), IN_LEVELS).link_bytes / (8 * MB)

    assert link("all_reduce", 2) == pytest.approx(1) and link("all_reduce") == pytest.approx(3 / 2)
    assert link("reduce", 2) == pytest.approx(1) and link("reduce") == pytest.approx(3 / 2)
    assert link("all_gather") == pytest.approx(3 / 4) == link("reduce_scatter")
    assert link("broadcast", 2) == pytest.approx(1)
    barrier = estimate("barrier", 0, Team(4, 2), IN_LEVELS)
    assert barrier.step_count == 3 and barrier.link_bytes == 0
    assert barrier.seconds == pytest.approx(CALL + 2e-6 + 11e-6 + 2 * 0.25 * 10e-6)


def test_a_link_of_1_gbit_decides() -> None:
    """16 MiB between two hosts: 134 ms for the data, and 141 with the headers."""
    network = Network(1e9 / 8, 10e-6)
    for way in (IN_LEVELS, ONE_TEAM):
        found = estimate("all_reduce", 16 * MB, Team(2, 2), way, network=network)
        assert found.network == pytest.approx(0.1413, rel=1e-3)
        assert found.network < found.seconds < 1.1 * found.network


@pytest.mark.parametrize("op", ["all_reduce", "reduce", "reduce_scatter", "all_gather"])
def test_levels_send_as_much_with_any_number_of_ranks(op: str) -> None:
    sent = [estimate(op, 64 * MB, Team(4, ranks), IN_LEVELS).link_bytes for ranks in (2, 3, 4, 8, 16)]
    assert sent == pytest.approx([sent[0]] * 5)


@pytest.mark.parametrize("op", [op for op in OPS if op != "barrier"])
@pytest.mark.parametrize("team", [Team(1, 4), Team(2, 2), Team(3, 2), Team(16, 8), Team(1000, 8), Team(5, 1)])
def test_more_bytes_take_longer_and_a_better_machine_does_not(op: str, team: Team) -> None:
    def times(size: int, host: Host = HOST, network: Network = NETWORK) -> list[float]:
        return [each.seconds for each in estimates(op, size, team, host, network)]

    sizes = [times(MB << (2 * i)) for i in range(5)]
    for smaller, larger in itertools.pairwise(sizes):
        assert all(a < b for a, b in zip(smaller, larger, strict=True))
    better = [
        times(MB, host=dataclasses.replace(HOST, copy=2e10)),
        times(MB, host=dataclasses.replace(HOST, reduce=4e10)),
        times(MB, host=dataclasses.replace(HOST, tcp=8e9)),
        times(MB, host=dataclasses.replace(HOST, step=1e-7)),
        times(MB, host=dataclasses.replace(HOST, cores=4)),
        times(MB, network=dataclasses.replace(NETWORK, bandwidth=1e10)),
        times(MB, network=dataclasses.replace(NETWORK, latency=1e-6)),
    ]
    for each in better:
        assert all(a <= b for a, b in zip(each, sizes[0], strict=True))


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("team", [Team(1, 2), Team(2, 1), Team(2, 2), Team(7, 3)])
def test_every_operation_has_an_estimate(op: str, team: Team) -> None:
    found = estimates(op, 4, team, HOST, NETWORK)
    assert sum(each.is_taken for each in found) == 1
    for each in found:
        assert each.seconds > 0 and each.rank_bytes >= 0
        assert each.seconds <= each.memory + each.network + each.steps + 1e-12


@pytest.mark.parametrize(
    ("op", "size", "team", "settings", "way"),
    [
        ("all_reduce", 4, Team(2, 2), Config(), IN_LEVELS),
        ("all_reduce", 64, Team(2, 2), Config(levels_from=64), IN_LEVELS),
        ("all_reduce", 63, Team(2, 2), Config(levels_from=64), ONE_TEAM),
        ("barrier", 0, Team(2, 2), Config(levels_from=64), ONE_TEAM),
        ("all_reduce", MB, Team(2, 2), Config(host_path=False), ONE_TEAM),
        ("all_reduce", MB, Team(2, 1), Config(), ONE_TEAM),
        ("all_reduce", 4, Team(1, 2), Config(), IN_MEMORY),
        ("all_reduce", 4, Team(1, 2), Config(host_path=False), ONE_TEAM),
        ("barrier", 0, Team(2, 2), Config(), IN_LEVELS),
    ],
)
def test_which_way_is_taken(op: str, size: int, team: Team, settings: Config, way: str) -> None:
    found = estimates(op, size, team, HOST, NETWORK, settings)
    assert [each.way for each in found if each.is_taken] == [way]


def test_pieces_have_the_size_that_is_set() -> None:
    half = Config(segment_bytes=512 << 10)
    assert estimate("all_reduce", 8 * MB, Team(2, 2), IN_LEVELS, settings=half).pieces == 8
    assert estimate("all_reduce", 8 * MB, Team(2, 2), ONE_TEAM, settings=half).pieces == 16


def test_what_is_no_operation() -> None:
    with pytest.raises(ValueError, match="'send' is not one of all_reduce"):
        estimates("send", 4, Team(2, 2), HOST, NETWORK)


def test_slots_are_those_of_the_arena() -> None:
    assert [slot_bytes(ranks) >> 10 for ranks in (2, 3, 8, 200)] == [128, 192, 256, 400]


def plan(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    status = cli.main(["plan", *arguments])
    return status, capsys.readouterr().out


def test_the_command_prints_both_ways(capsys: pytest.CaptureFixture[str]) -> None:
    job = ["--hosts", "1000", "--ranks-per-host", "8", "--op", "all_reduce", "--size", "64m"]
    status, told = plan(capsys, *job, *GIVEN)
    assert status == 0 and told.startswith("Estimate of all_reduce of 64 MiB on 1000 hosts with 8 ranks each")
    assert "in levels (chosen)" in told and ONE_TEAM in told and "127.9 MiB" in told
    shown = [" ".join(line.split()) for line in told.splitlines()]
    assert "network bandwidth 25 Gbit/s of a host, each way default" in shown
    assert "step on a host 1 us given" in shown


def test_the_command_gives_data(capsys: pytest.CaptureFixture[str]) -> None:
    job = ["--hosts", "2", "--ranks-per-host", "2", "--op", "all_gather", "--size", "1m", "--json"]
    status, told = plan(capsys, *job, *GIVEN, "--bandwidth", "1gbit", "--latency", "5us")
    data = json.loads(told)
    assert status == 0 and (data["hosts"], data["per_host"], data["bytes"]) == (2, 2, MB)
    assert data["network"] == {"bandwidth": 1e9 / 8, "latency": pytest.approx(5e-6)}
    assert [each["way"] for each in data["ways"]] == [IN_LEVELS, ONE_TEAM]


def test_the_command_follows_the_settings(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_UCC_LEVELS_FROM", "1g")
    job = ["--hosts", "2", "--ranks-per-host", "2", "--op", "broadcast", "--size", "1m"]
    assert f"{ONE_TEAM} (chosen)" in plan(capsys, *job, *GIVEN)[1]


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--op", "send", "--size", "4"], "--op of an estimate is one of all_reduce"),
        (["--op", "all_reduce", "--latency", "1us"], "an estimate of all_reduce needs --size"),
        (["--op", "all_reduce", "--size", "4"], "an estimate is for 2 to 1000000 ranks, not 1"),
        (["--op", "all_reduce", "--size", "4", "--bytes", "4"], "neither --bytes nor --replay"),
        (["--op", "barrier", "--bandwidth", "25"], "'25' is not a rate above 0, such as 800mbit"),
        (["--op", "barrier", "--latency", "20"], "'20' is not a duration such as 400ns"),
        (["--op", "barrier", "--cores", "0"], "'0' is not a number above 0"),
    ],
)
def test_what_the_command_refuses(arguments: list[str], why: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["plan", *arguments])
    assert why in capsys.readouterr().err


def test_quantities() -> None:
    assert (rate("800mbit"), rate("25gbit"), rate("1.5 Gbit/s")) == (1e8, 3.125e9, 1.875e8)
    assert [seconds(text) for text in ("400ns", "0.5us", "1.5ms", "2s")] == pytest.approx(
        [4e-7, 5e-7, 1.5e-3, 2]
    )
    assert number("0.5") == 0.5
    assert [time_text(value) for value in (0, 4e-7, 2e-6, 0.0141, 141.3)] == [
        "0",
        "0.40 us",
        "2 us",
        "14.1 ms",
        "141 s",
    ]
    assert [amount_text(value) for value in (0, 1536, 3 << 20, 5 << 30)] == [
        "0 B",
        "1.5 KiB",
        "3.0 MiB",
        "5.0 GiB",
    ]
