"""broadcast, all_gather and all_gather_into_tensor: bytes are moved, whatever they mean, in every layout."""

import itertools

import pytest
import torch
import torch.distributed as dist
from calls import COMPLETIONS, Failures, all_gather, all_gather_into, assert_all_well, broadcast, sizes_of
from layouts import contiguous, layouts_of, strided
from reference import DTYPES, bits, exactly, sample
from torch_ucc.testing import run_ranks

pytestmark = pytest.mark.multirank


def broadcasts() -> tuple[int, int, list[str]]:
    group, rank, size = dist.group.WORLD, dist.get_rank(), dist.get_world_size()
    failures = Failures()
    completions, roots = itertools.cycle(COMPLETIONS), itertools.cycle(range(size))
    salt = 0
    for dtype in DTYPES:
        for numel in sizes_of(dtype):
            for layout in layouts_of(dtype, numel):
                root, complete = next(roots), next(completions)
                tensor = layout(sample(dtype, rank, salt, numel))
                complete(broadcast(tensor, root, group))
                case = (dtype, numel, layout.__name__, f"root {root}", complete.__name__)
                failures.note(case, exactly(sample(dtype, root, salt, numel)).wrong(tensor))
                salt += 1
    return failures.report()


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_broadcast(world_size: int) -> None:
    assert_all_well(run_ranks(broadcasts, world_size, timeout=120.0), at_least=len(DTYPES) * 30)


def broadcasts_between_layouts() -> tuple[int, int, list[str]]:
    """The ranks need not lay their tensors out alike."""
    group, rank = dist.group.WORLD, dist.get_rank()
    failures = Failures()
    for root, dtype in itertools.product((0, 1), (torch.float32, torch.int8, torch.complex64)):
        for numel in sizes_of(dtype):
            layout = contiguous if rank == 0 else strided
            tensor = layout(sample(dtype, rank, 1, numel))
            broadcast(tensor, root, group).wait()
            failures.note((dtype, numel, root), exactly(sample(dtype, root, 1, numel)).wrong(tensor))
    return failures.report()


def test_broadcast_between_layouts() -> None:
    assert_all_well(run_ranks(broadcasts_between_layouts, 2), at_least=36)


def gathers() -> tuple[int, int, list[str]]:
    group, rank, size = dist.group.WORLD, dist.get_rank(), dist.get_world_size()
    failures = Failures()
    completions = itertools.cycle(COMPLETIONS)
    salt = 0
    for dtype in DTYPES:
        for numel in sizes_of(dtype):
            parts = [sample(dtype, each, salt, numel) for each in range(size)]
            layouts = layouts_of(dtype, numel)
            if size > 2:  # what a layout changes is each rank's own affair
                layouts = [contiguous, layouts[salt % len(layouts)]]
            for layout, out_layout in zip(layouts, layouts[1:] + layouts[:1], strict=True):
                complete = next(completions)
                mine = layout(parts[rank])
                case = (dtype, numel, layout.__name__, out_layout.__name__, complete.__name__)

                outputs = [out_layout(torch.zeros(numel, dtype=dtype)) for _ in range(size)]
                complete(all_gather(outputs, mine, group))
                for each, part in zip(outputs, parts, strict=True):
                    failures.note(("all_gather", *case), exactly(part).wrong(each))
                failures.note(("all_gather's input", *case), exactly(parts[rank]).wrong(mine))

                if out_layout.__name__ == "zero_dim":
                    out_layout = contiguous
                output = out_layout(torch.zeros(numel * size, dtype=dtype))
                complete(all_gather_into(output, mine, group))
                failures.note(("all_gather_into", *case), exactly(torch.cat(parts)).wrong(output))
                failures.note(("all_gather_into's input", *case), exactly(parts[rank]).wrong(mine))
            salt += 1
    return failures.report()


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_gather(world_size: int) -> None:
    assert_all_well(run_ranks(gathers, world_size, timeout=120.0), at_least=len(DTYPES) * 48)


def gathers_within_the_output() -> tuple[int, int, list[str]]:
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
            failures.note((numel, start), exactly(torch.cat(parts)).wrong(output))
        whole = torch.zeros(numel * size)
        outputs = list(whole.chunk(size))
        outputs[rank].copy_(parts[rank])
        all_gather(outputs, outputs[rank], group).wait()
        failures.note((numel, "list"), exactly(torch.cat(parts)).wrong(whole))
    return failures.report()


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_gather_from_within_the_output(world_size: int) -> None:
    assert_all_well(run_ranks(gathers_within_the_output, world_size), at_least=6)


def through_the_front_end() -> tuple[int, int, list[str]]:
    """As users call it, where torch itself rewrites some tensors."""
    rank, size = dist.get_rank(), dist.get_world_size()
    failures = Failures()
    for dtype in DTYPES:
        parts = [sample(dtype, each, 3, 1000).view(10, 100) for each in range(size)]
        for root in range(size):
            tensor = parts[rank].clone()
            dist.broadcast(tensor, root)
            failures.note(("broadcast", dtype, root), exactly(parts[root].reshape(-1)).wrong(tensor))
        outputs = [torch.empty_like(parts[0]) for _ in range(size)]
        dist.all_gather(outputs, parts[rank])
        for got, part in zip(outputs, parts, strict=True):
            failures.note(("all_gather", dtype), exactly(part.reshape(-1)).wrong(got))
        for shape in ((size * 10, 100), (size, 10, 100)):
            output = torch.empty(shape, dtype=dtype)
            dist.all_gather_into_tensor(output, parts[rank])
            failures.note(
                ("all_gather_into_tensor", dtype, shape), exactly(torch.cat(parts).reshape(-1)).wrong(output)
            )
    return failures.report()


def test_through_the_front_end() -> None:
    assert_all_well(run_ranks(through_the_front_end, 2), at_least=len(DTYPES) * 6)


def objects() -> tuple[list[object], object]:
    rank = dist.get_rank()
    found: list[object] = [None] * dist.get_world_size()
    dist.all_gather_object(found, {"rank": rank, "text": "x" * (rank * 1000)})
    box = [("from", rank)]
    dist.broadcast_object_list(box, src=1)
    return found, box[0]


def test_objects() -> None:
    for found, box in run_ranks(objects, 3):
        assert found == [{"rank": rank, "text": "x" * (rank * 1000)} for rank in range(3)]
        assert box == ("from", 1)


def every_byte(dtype: torch.dtype) -> bool:
    """Bit patterns survive, of values that are not numbers too."""
    patterns = torch.arange(256, dtype=torch.uint8).repeat(16)
    tensor = (patterns if dist.get_rank() == 0 else torch.zeros_like(patterns)).view(dtype)
    broadcast(tensor, 0, dist.group.WORLD).wait()
    return torch.equal(bits(tensor), bits(patterns.view(dtype)))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64, torch.float8_e5m2], ids=str)
def test_every_bit_pattern_survives(dtype: torch.dtype) -> None:
    assert run_ranks(every_byte, 2, dtype) == [True, True]
