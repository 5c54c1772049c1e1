"""The random programs themselves: that they can fail, that a seed draws the same ones, and a short run."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch_ucc.testing import run_ranks

from random_programs import ending
from random_programs import rank as ranks
from random_programs.__main__ import Where, last_of, tried
from random_programs.ending import Ending
from random_programs.program import Draw, Program, Step, Thread, View, legal
from random_programs.reference import Reference, reduced

pytestmark = pytest.mark.multirank


def program_of(*steps: Step) -> Program:
    return legal(Program("float32", 10, 2, ((0, 1),), threads=(Thread(steps),)))


ALL_REDUCE = Step("all_reduce", views=(View(0, 1, 20),), written=1, is_async=True)


def with_a_wrong_model() -> None:
    """Wrong in one element."""
    right = Reference.step

    def wrong(self: Reference, step: Step) -> None:
        right(self, step)
        if step.op == "all_reduce":
            self.bases[torch.distributed.get_rank()][0][7] += 1

    Reference.step = wrong  # type: ignore[method-assign]


def falsely(program: Program) -> str:
    with_a_wrong_model()
    return ranks.play(program, "false")


def falsely_ended(case: Ending) -> str:
    with_a_wrong_model()
    return ending.play(case, "false")


def test_a_difference_is_found() -> None:
    for found in run_ranks(falsely, 2, program_of(ALL_REDUCE)):
        assert "1 of 68 elements differ, at [7]" in found, found


def test_what_is_not_refused_is_found() -> None:
    program = program_of(Step("refused", views=(View(0, 0, 4),), how="sizes"), ALL_REDUCE)
    with tempfile.TemporaryDirectory() as folder:
        run_ranks(ranks.repeat, 2, program, 2, folder)
        assert last_of(folder).found == ""
    for found in run_ranks(passes_what_is_wrong, 2, program):
        assert "what is wrong was not refused" in found, found


def passes_what_is_wrong(program: Program) -> str:
    ranks.all_gather_single = lambda *_: None
    return ranks.play(program, "false")


def test_a_seed_draws_the_same_programs() -> None:
    some = [str(Draw(f"7 {number}", 3).program()) for number in range(50)]
    assert some == [str(Draw(f"7 {number}", 3).program()) for number in range(50)]
    assert len(set(some)) == 50
    drawn = "\n".join(some)
    for op in ("all_reduce", "message", "ring", "refused", "refused batch", "late", "together", "mixed"):
        assert f" {op} " in drawn, op


def test_a_program_waits_before_another_group_has_its_tensor() -> None:
    other = Step("all_reduce", 1, (View(0, 0, 5),), 1)
    program = legal(
        Program("float32", 10, 2, ((0, 1), (0, 1)), threads=(Thread((ALL_REDUCE, ALL_REDUCE, other)),))
    )
    assert [step.op for step in program.threads[0].steps] == ["all_reduce"] * 2 + [
        "wait",
        "all_reduce",
        "wait",
    ]


def test_values_stay_exact() -> None:
    steps = [Step("all_reduce", views=(View(0, 0, 5),), written=1)] * 20
    program = legal(Program("bfloat16", 10, 3, ((0, 1, 2),), threads=(Thread(tuple(steps)),)))
    reference = Reference(program, 0)
    for step in program.threads[0].steps:
        reference.step(step)
        assert all(float(base.float().max()) < 256 for bases in reference.bases for base in bases)


def test_reductions_of_the_model() -> None:
    some = [torch.tensor([-7, 2]), torch.tensor([2, 2]), torch.tensor([1, 4])]
    expected = {"SUM": [-4, 8], "PRODUCT": [-14, 16], "MAX": [2, 4], "MIN": [-7, 2], "AVG": [-1, 2]}
    assert {op: reduced(op, some, torch.int64).tolist() for op in expected} == expected


def test_smaller_programs_are_smaller() -> None:
    program = Draw("7 3", 3).program()
    size = sum(len(thread.steps) for thread in program.threads)
    assert any(sum(len(thread.steps) for thread in each.threads) < size for each in program.smaller())


@pytest.mark.parametrize(("count", "backend"), [(2, "ucc"), (3, "ucc"), (3, "gloo")])
def test_some_programs(count: int, backend: str, tmp_path: Path) -> None:
    done = run_ranks(
        ranks.run, count, 5, 0, 8.0, 1000, backend != "ucc", str(tmp_path), backend=backend, timeout=300
    )
    assert last_of(str(tmp_path)).found == ""
    assert len(set(done)) == 1 and done[0][0] > 5


UNIT = 300_000
SUM = Step("mixed", views=(View(0, 1, UNIT), View(1, 3, UNIT, "strided")), written=2, is_async=True)
PART = Step("message", 2, (View(0, 2, UNIT), View(1, 0, UNIT)), 1, is_async=True, root=0, peer=1, tag=1)


def ending_of(how: str, called: int) -> Ending:
    """Rank 0 ends with two large all_reduces and a message in flight. The other two go on."""
    program = Program("int64", UNIT, 3, ((0, 1, 2), (0, 1), (0, 2), (1, 2)))
    last = Thread(tuple(replace(ALL_REDUCE, group=3, views=(View(i % 2, 3, UNIT),)) for i in range(6)))
    return Ending(
        replace(program, threads=(Thread((SUM,)), Thread((PART,)))),
        legal(replace(program, threads=(last,))),
        victim=0,
        called=called,
        how=how,
    )


def test_memory_of_what_failed_is_not_written_to() -> None:
    """UCC ends what it sends to a rank that died as a success, and its messages come later."""
    assert tried(ending_of("killed", 2), 8, Where()) == ""


@pytest.mark.parametrize(("how", "called"), [("left", 2), ("left", 1), ("killed when done", 2)])
def test_an_ending(how: str, called: int) -> None:
    assert tried(ending_of(how, called), 1, Where()) == ""


def test_a_difference_after_an_ending_is_found() -> None:
    for found in run_ranks(falsely_ended, 3, ending_of("left", 2))[1:]:
        assert "steps of those that are left: DifferenceError: base " in found, found
