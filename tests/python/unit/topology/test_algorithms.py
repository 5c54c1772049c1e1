"""Rules for UCC's algorithms: ours, and ours beside those of a user."""

from __future__ import annotations

import pytest
from torch_ucc.topology.algorithms import CROWDED, ONE_HOST, OVER_TCP, SMALLEST_CROWD, beside, one_host

OURS = "allreduce:0-16k:host:[2]:@knomial#reduce:0-512k:host:[2]:@knomial"
REDUCE = "reduce:0-512k:host:[2]:@knomial"


@pytest.mark.parametrize(
    ("theirs", "left"),
    [
        ("bcast:0-4k:@dbt", OURS),
        ("alltoall:16", OURS),
        ("allreduce:0-16k:@ring", REDUCE),
        ("allreduce:@ring", REDUCE),
        ("ALLREDUCE:0-INF:@ring", REDUCE),
        ("@ring:bcast,allreduce:host", REDUCE),
        ("allreduce:0-4k:@ring", f"allreduce:4k-16k:host:[2]:@knomial#{REDUCE}"),
        ("allreduce:4K-1MB:[4-inf]:@1", f"allreduce:0-4k:host:[2]:@knomial#{REDUCE}"),
        ("allreduce:16k-inf:@1", OURS),
        ("allreduce:1024-2048,8k-12k:@ring", f"allreduce:0-1024,2048-8k,12k-16k:host:[2]:@knomial#{REDUCE}"),
        ("allreduce:0-4k:@0#allreduce:4k-inf:@1", REDUCE),
        ("reduce_scatter:0-inf:@ring", OURS),
        ("inf", ""),
        ("", ""),
        ("allreduce:cuda-managed:0-4k:@ring", f"allreduce:4k-16k:host:[2]:@knomial#{REDUCE}"),
        ("allreduce:[3-8]:@ring", REDUCE),
        ("0-64k:cuda:0", "reduce:64k-512k:host:[2]:@knomial"),
    ],
)
def test_theirs_decide_where_they_say_something(theirs: str, left: str) -> None:
    assert beside(OURS, theirs) == "#".join(filter(None, [left, theirs]))


def test_what_they_leave_of_several_ranges() -> None:
    ours = "allreduce:0-8k,16k-64k:host:[3-8]:@knomial"
    assert beside(ours, "allreduce:4k-32k:@1").startswith("allreduce:0-4k,32k-64k:host:")


def numbers_of_ranks(rules: str) -> dict[str, list[int]]:
    """By collective, as often as there is a rule for them."""
    found: dict[str, list[int]] = {}
    for rule in rules.split("#"):
        collective, _, _, counts, _ = rule.split(":")
        low, _, high = counts.strip("[]").partition("-")
        found.setdefault(collective, []).extend(range(int(low), int(high or low) + 1))
    return found


@pytest.mark.parametrize("rules", [ONE_HOST, one_host(crowded=True), OVER_TCP])
def test_no_two_of_ours_are_for_one_collective_and_number_of_ranks(rules: str) -> None:
    """Whatever the sizes: UCC would refuse those that meet."""
    for numbers in numbers_of_ranks(rules).values():
        assert numbers and len(numbers) == len(set(numbers))


def test_where_ranks_share_cores_some_more_are_for_groups_that_can() -> None:
    assert one_host(crowded=False) == ONE_HOST and one_host(crowded=True) == f"{ONE_HOST}#{CROWDED}"
    assert min(min(numbers) for numbers in numbers_of_ranks(CROWDED).values()) == SMALLEST_CROWD
