"""`torch-ucc plan --op`: what it says of a call is what UCC and UCX log of one in another run, and follows
what is set."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch_ucc import cli, testing
from torch_ucc._group import planning
from torch_ucc.topology import ask_routes
from torch_ucc.topology.routes import BY_MEMORY, BY_MESSAGES, BY_UCC, Route, ways

pytestmark = pytest.mark.multirank


def routes(*asked: tuple[str, int]) -> list[Route]:
    with tempfile.TemporaryDirectory() as folder:
        ask_routes.listen(Path(folder))
        dist.init_process_group("ucc")
        return [ask_routes.ask(op, size, Path(folder)) for op, size in asked]


def on(ranks: int, *asked: tuple[str, int], **env: str) -> list[Route]:
    """By UCC, unless `env` says something else."""
    env = {"TORCH_UCC_HOST_PATH": "0", **env}
    return testing.run_ranks(routes, ranks, *asked, init=False, timeout=240, env=env)[0]


def test_in_shared_memory_neither_library_is_asked() -> None:
    for route in on(2, *[(op, 4096) for op in ask_routes.CALLS], TORCH_UCC_HOST_PATH="1"):
        assert route.way == ways(in_memory=True)[route.op] == BY_MEMORY
        assert not route.collectives and not route.protocols, route


def test_what_serves_an_operation_is_what_its_call_used() -> None:
    every = [(op, 4096) for op in ask_routes.CALLS]
    for route in on(2, *every):
        assert ways(in_memory=False)[route.op] == route.way
        assert bool(route.collectives) == (route.way == BY_UCC), route
        assert (route.message_bytes is None) == (route.way == BY_UCC)
        assert route.protocols, "UCX said how it sends"
        if route.way == BY_MESSAGES:
            assert all(row.covers(route.message_bytes or 0) for row in route.protocols)


def test_a_large_all_reduce_goes_in_pieces() -> None:
    whole, cut = on(2, ("all_reduce", 64 << 10), ("all_reduce", 200 << 10), TORCH_UCC_SEGMENT_BYTES="64k")
    assert [each.bytes for each in whole.collectives] == [64 << 10]
    assert [each.bytes for each in cut.collectives] == [64 << 10] * 3 + [8 << 10]


def test_an_algorithm_follows_what_is_set() -> None:
    """By default the small and the large have two; where UCC is told to take a third one, it is said."""
    small, larger, large = on(2, ("all_reduce", 64), ("all_reduce", 12 << 10), ("all_reduce", 256 << 10))
    algorithms = [route.collectives[0].algorithm for route in (small, large)]
    assert len(set(algorithms)) == 2 and all(each.startswith("allreduce_") for each in algorithms)
    assert larger.collectives[0].algorithm == "allreduce_knomial", "by the plan"
    tuned = on(2, ("all_reduce", 64), UCC_TL_UCP_TUNE="allreduce:0-inf:@ring")[0]
    assert tuned.collectives[0].algorithm == "allreduce_ring" and "allreduce_ring" not in algorithms
    asked = [("all_reduce", 2 << 10), ("all_reduce", 12 << 10)]
    rings, still = on(2, *asked, UCC_TL_UCP_TUNE="allreduce:0-4k:@ring")
    assert rings.collectives[0].algorithm == "allreduce_ring"
    assert still.collectives[0].algorithm == "allreduce_knomial"


def broadcast_among(cores: list[int]) -> tuple[Route, str]:
    """Where each rank sees so many; and the rules that UCC was told."""
    planning.usable_to_launcher = lambda: cores[int(os.environ["RANK"])]
    route = routes(("broadcast", 64 << 10))[0]
    (chosen,) = planning._of_contexts.values()
    return route, dict(chosen.ucc)["TL_UCP_TUNE"]


def test_ranks_that_share_cores_go_by_other_algorithms_and_all_by_the_same() -> None:
    few, enough, different = (
        testing.run_ranks(
            broadcast_among, 3, cores, init=False, timeout=240, env={"TORCH_UCC_HOST_PATH": "0"}
        )
        for cores in ([2, 2, 2], [3, 3, 3], [2, 3, 3])
    )
    assert [each[0][0].collectives[0].algorithm == "bcast_knomial" for each in (few, enough)] == [True, False]
    assert all(len({rules for _, rules in each}) == 1 for each in (few, enough, different))


@pytest.mark.parametrize(("threshold", "how"), [("1k", "rendezvous"), ("inf", "eager")])
def test_a_protocol_follows_what_is_set(threshold: str, how: str) -> None:
    sent = on(2, ("send", 100_000), UCX_RNDV_THRESH=threshold)[0]
    assert sent.protocols and all(how in row.how for row in sent.protocols), sent


def all_reduce_and_send() -> None:
    dist.init_process_group("ucc")
    dist.all_reduce(torch.zeros(100_000, dtype=torch.uint8))
    tensor = torch.zeros(100_000, dtype=torch.uint8)
    dist.send(tensor, 1) if dist.get_rank() == 0 else dist.recv(tensor, 0)
    dist.destroy_process_group()


def test_it_tells_what_the_libraries_log(tmp_path: Path) -> None:
    """Of the same calls in processes that know nothing of the command."""
    env = {
        "TORCH_UCC_HOST_PATH": "0",
        "UCC_COLL_TRACE": "info",
        "UCC_LOG_FILE": str(tmp_path / "ucc-%p"),
        "UCX_PROTO_INFO": "y",
        "UCX_LOG_FILE": str(tmp_path / "ucx-%p"),
    }
    testing.run_ranks(all_reduce_and_send, 2, init=False, timeout=240, env=env)
    ucc, ucx = ("".join(each.read_text() for each in tmp_path.glob(f"{name}-*")) for name in ("ucc", "ucx"))
    reduced, sent = on(2, ("all_reduce", 100_000), ("send", 100_000))
    by = reduced.collectives[0].by
    assert re.search(rf"coll_init: Allreduce .*, 100000, uint8, .*; {re.escape(by)}, team_id", ucc), ucc
    assert sent.protocols
    for row in {*sent.protocols, *reduced.protocols}:
        assert re.search(rf"\| (\(\?\) )?{re.escape(row.how)} +\| {re.escape(row.over)} *\|", ucx), (row, ucx)


def plan(*arguments: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "torch_ucc", "plan", *arguments]
    run = subprocess.run(
        command,
        env={**os.environ, "TORCH_UCC_HOST_PATH": "0"},
        stdout=subprocess.PIPE,
        text=True,
        timeout=300,
    )
    return run.returncode, run.stdout


def test_the_command_starts_ranks_of_its_own() -> None:
    status, said = plan("--op", "all_reduce", "--bytes", "4m", "--ranks-per-host", "3", "--json")
    route: dict[str, Any] = json.loads(said)
    assert status == 0 and route["ranks"] == 3 and route["bytes"] == 4 << 20
    assert len(route["collectives"]) == 4
    status, said = plan("--op", "all_to_all_single", "--bytes", "64k")
    assert status == 0 and "all_to_all_single of 64 KiB on 2 ranks" in said
    assert "messages, 32 KiB each" in said
    assert re.search(r"^UCX, same host +messages of \d+\.\.(\d+|inf) bytes ", said, re.MULTILINE)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--op", "all_reduce"], "--op all_reduce needs --bytes"),
        (["--op", "all_sum", "--bytes", "4"], "--op is one of all_reduce, "),
        (["--bytes", "4"], "--op is one of all_reduce, "),
        (["--op", "all_reduce", "--bytes", "many"], "'many' is not a size in bytes above 0"),
        (["--op", "all_reduce", "--bytes", "4", "--hosts", "2"], "start torchrun on them"),
    ],
)
def test_what_cannot_be_asked(arguments: list[str], why: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["plan", *arguments])
    assert why in capsys.readouterr().err
