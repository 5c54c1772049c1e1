"""The random programs themselves: that they can fail, that a seed draws the same ones, and a short run."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
import torch
from torch_ucc.testing import run_ranks

from random_programs import rank as ranks
from random_programs.__main__ import first_found, smaller
from random_programs.program import Draw, Program, Step, Thread, View, legal
from random_programs.reference import Reference, reduced

pytestmark = pytest.mark.multirank


def program_of(*steps: Step) -> Program:
    return legal(Program("float32", 10, 2, ((0, 1),), threads=(Thread(steps),)))


ALL_REDUCE = Step("all_reduce", views=(View(0, 1, 20),), written=1, is_async=True)


def falsely(program: Program) -> str:
    """With a model that is wrong in one element."""
    right = Reference.step

    def wrong(self: Reference, step: Step) -> None:
        right(self, step)
        if step.op == "all_reduce":
            self.bases[torch.distributed.get_rank()][0][7] += 1

    Reference.step = wrong  # type: ignore[method-assign]
    return ranks.play(program, "false")


def test_a_difference_is_found() -> None:
    for found in run_ranks(falsely, 2, program_of(ALL_REDUCE)):
        assert "1 of 68 elements differ, at [7]" in found, found


def test_what_is_not_refused_is_found() -> None:
    program = program_of(Step("refused", views=(View(0, 0, 4),), how="sizes"), ALL_REDUCE)
    with tempfile.TemporaryDirectory() as folder:
        run_ranks(ranks.repeat, 2, program, 2, folder)
        assert first_found(folder) == (0, "")
    for found in run_ranks(passes_what_is_wrong, 2, program):
        assert "what is wrong was not refused" in found, found


def passes_what_is_wrong(program: Program) -> str:
    torch.distributed.all_gather_into_tensor = lambda *_: None
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
    assert any(sum(len(thread.steps) for thread in each.threads) < size for each in smaller(program))


@pytest.mark.parametrize(("count", "backend"), [(2, "ucc"), (3, "ucc"), (3, "gloo")])
def test_some_programs(count: int, backend: str, tmp_path: Path) -> None:
    done = run_ranks(
        ranks.run, count, 5, 0, 8.0, 1000, backend != "ucc", str(tmp_path), backend=backend, timeout=300
    )
    assert first_found(str(tmp_path))[1] == ""
    assert len(set(done)) == 1 and done[0] > 5
