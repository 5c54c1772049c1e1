"""What only moves data: bytes arrive, whatever they mean, in every layout."""

import itertools

import pytest
import torch
import torch.distributed as dist
from calls import (
    Failures,
    Report,
    all_gather,
    all_gather_into,
    all_to_all,
    all_to_all_single,
    assert_all_well,
    broadcast,
    gather,
    hear,
    say,
    scatter,
)
from layouts import contiguous, strided
from movement import MOVEMENT
from reference import bits, exactly, sample
from table import MEDIUM, SMALL, try_all
from torch_ucc.testing import run_ranks

pytestmark = pytest.mark.multirank


@pytest.fixture(scope="module", params=[1, 2, 3, 4], ids="{} ranks".format)
def reports(request: pytest.FixtureRequest) -> list[dict[str, Report]]:
    return run_ranks(try_all, request.param, list(MOVEMENT), timeout=180.0)


@pytest.mark.parametrize("name", MOVEMENT)
def test_every_case(reports: list[dict[str, Report]], name: str) -> None:
    cases = MOVEMENT[name]
    assert_all_well([report[name] for report in reports], at_least=sum(5 * len(case.pairs) for case in cases))


def between_layouts() -> Report:
    """The ranks need not lay their tensors out alike."""
    group, rank = dist.group.WORLD, dist.get_rank()
    layout, other = (contiguous, strided) if rank == 0 else (strided, contiguous)
    failures = Failures()
    for root, dtype in itertools.product((0, 1), (torch.float32, torch.int8, torch.complex64)):
        for numel in (*SMALL, MEDIUM, 300_000):
            case = (dtype, numel, root)
            tensor = layout(sample(dtype, rank, 1, numel))
            broadcast(tensor, root, group).wait()
            failures.note(("broadcast", *case), exactly(sample(dtype, root, 1, numel)).wrong(tensor))
            outputs = [other(torch.zeros(numel, dtype=dtype)) for _ in range(2)]
            gather(outputs if rank == root else [], layout(sample(dtype, rank, 2, numel)), root, group).wait()
            for each, output in enumerate(outputs if rank == root else []):
                failures.note(("gather", *case), exactly(sample(dtype, each, 2, numel)).wrong(output))
            inputs = [layout(sample(dtype, root, 3 + each, numel)) for each in range(2)]
            scatter(outputs[0], inputs if rank == root else [], root, group).wait()
            expected = exactly(sample(dtype, root, 3 + rank, numel))
            failures.note(("scatter", *case), expected.wrong(outputs[0]))
    return failures.report()


def test_between_layouts() -> None:
    assert_all_well(run_ranks(between_layouts, 2), at_least=100)


def within_the_output() -> Report:
    """The input is part of the output: at its own place, at another rank's, or across two."""
    group, rank, size = dist.group.WORLD, dist.get_rank(), dist.get_world_size()
    failures = Failures()
    for numel in (2, 1000, 300_000):
        parts = [sample(torch.float32, each, numel, numel) for each in range(size)]
        for start in (rank * numel, (rank + 1) % size * numel, numel // 2 if size > 1 else 0, 0):
            output = torch.zeros(numel * size)
            mine = output[start : start + numel]
            mine.copy_(parts[rank])
            all_gather_into(output, mine, group).wait()
            failures.note(("all_gather_into", numel, start), exactly(torch.cat(parts)).wrong(output))

            whole = torch.zeros(numel * size)
            whole[start : start + numel].copy_(parts[rank])
            all_gather(list(whole.chunk(size)), whole[start : start + numel], group).wait()
            failures.note(("all_gather", numel, start), exactly(torch.cat(parts)).wrong(whole))

            whole = torch.zeros(numel * size)
            whole[start : start + numel].copy_(parts[rank])
            root = size - 1
            outputs = list(whole.chunk(size)) if rank == root else []
            gather(outputs, whole[start : start + numel], root, group).wait()
            if rank == root:
                failures.note(("gather", numel, start), exactly(torch.cat(parts)).wrong(whole))

            whole = torch.cat([sample(torch.float32, root, each, numel) for each in range(size)])
            output = whole[start : start + numel]
            scatter(output, list(whole.chunk(size)) if rank == root else [], root, group).wait()
            expected = exactly(sample(torch.float32, root, rank, numel))
            failures.note(("scatter", numel, start), expected.wrong(output))
    return failures.report()


def exchanges_over_themselves() -> Report:
    """What comes goes where what is sent still lies: the same tensor, its parts reversed, or half of it."""
    group, rank, size = dist.group.WORLD, dist.get_rank(), dist.get_world_size()
    failures = Failures()
    for numel in (2, 1000, 300_000):
        sent = [[sample(torch.float32, a, b, numel) for b in range(size)] for a in range(size)]
        expected = exactly(torch.cat([sent[a][rank] for a in range(size)]))

        whole = torch.cat(sent[rank])
        all_to_all_single(whole, whole, group).wait()
        failures.note(("single", numel), expected.wrong(whole))

        memory = torch.cat([*sent[rank], torch.zeros(numel)])
        output = memory[numel:]
        all_to_all_single(output, memory[:-numel], group).wait()
        failures.note(("shifted", numel), expected.wrong(output))

        whole = torch.cat(sent[rank])
        parts = list(whole.chunk(size))
        all_to_all(parts, parts, group).wait()
        failures.note(("list", numel), expected.wrong(whole))

        # The own part is where it is sent from, so that both lists name one tensor there too.
        whole = torch.cat(sent[rank][::-1])
        parts = list(whole.chunk(size))
        all_to_all(parts, parts[::-1], group).wait()
        failures.note(("reversed list", numel), expected.wrong(whole))
    return failures.report()


def overlaps() -> tuple[Report, Report]:
    return within_the_output(), exchanges_over_themselves()


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_input_and_output_overlap(world_size: int) -> None:
    gathers, exchanges = zip(*run_ranks(overlaps, world_size), strict=True)
    assert_all_well(gathers, at_least=36)
    assert_all_well(exchanges, at_least=12)


def waiting_at_barrier() -> bool:
    """It cannot be over while a rank has not come."""
    if dist.get_rank() == 1:
        hear("looked")
        dist.barrier()
        return True
    work = dist.barrier(async_op=True)
    pending = not work.is_completed()
    say("looked")
    work.wait()
    return pending


def test_barrier_waits_for_everybody() -> None:
    assert run_ranks(waiting_at_barrier, 2) == [True, True]


def objects() -> dict[str, object]:
    rank, size = dist.get_rank(), dist.get_world_size()
    mine = {"rank": rank, "text": "x" * (rank * 1000)}
    gathered: list[object] = [None] * size
    dist.all_gather_object(gathered, mine)
    at_root: list[object] = [None] * size
    dist.gather_object(mine, at_root if rank == 1 else None, dst=1)
    box = [("from", rank)]
    dist.broadcast_object_list(box, src=1)
    share: list[object] = [None]
    dist.scatter_object_list(share, [f"for {each}" for each in range(size)] if rank == 2 else None, src=2)
    return {"gathered": gathered, "at root": at_root, "box": box[0], "share": share[0]}


def test_objects() -> None:
    every = [{"rank": rank, "text": "x" * (rank * 1000)} for rank in range(3)]
    for rank, found in enumerate(run_ranks(objects, 3)):
        assert found == {
            "gathered": every,
            "at root": every if rank == 1 else [None] * 3,
            "box": ("from", 1),
            "share": f"for {rank}",
        }


def every_byte(dtypes: list[torch.dtype]) -> list[bool]:
    """Bit patterns survive, of values that are not numbers too."""
    patterns = torch.arange(256, dtype=torch.uint8).repeat(16)
    survived = []
    for dtype in dtypes:
        tensor = (patterns if dist.get_rank() == 0 else torch.zeros_like(patterns)).view(dtype).clone()
        broadcast(tensor, 0, dist.group.WORLD).wait()
        swapped = torch.zeros_like(tensor)
        all_to_all_single(swapped, tensor, dist.group.WORLD).wait()
        both = torch.cat([bits(patterns.view(dtype)).chunk(2)[dist.get_rank()]] * 2)
        survived.append(torch.equal(bits(tensor), bits(patterns.view(dtype))))
        survived.append(torch.equal(bits(swapped), both))
    return survived


def test_every_bit_pattern_survives() -> None:
    dtypes = [torch.float16, torch.float64, torch.float8_e5m2]
    assert run_ranks(every_byte, 2, dtypes) == [[True] * 6] * 2


def written_behind_autograd() -> list[str]:
    """What came of the backward pass of a product with outputs that were written again since."""
    rank, size = dist.get_rank(), dist.get_world_size()
    outcomes = []
    for numel in (1, 300_000):
        outputs = [torch.ones(numel) for _ in range(size)]
        weight = torch.ones(numel, requires_grad=True)
        product = (weight * outputs[1 - rank]).sum()
        dist.all_gather(outputs, torch.full((numel,), 2.0))
        try:
            product.backward()
            outcomes.append("a wrong gradient")
        except RuntimeError as error:
            outcomes.append(str(error))
    return outcomes


def test_autograd_notices_that_a_list_was_written() -> None:
    """As where torch copies to them, which it does unless they are few bytes."""
    for outcomes in run_ranks(written_behind_autograd, 2):
        assert all("modified by an inplace operation" in outcome for outcome in outcomes), outcomes
