"""A rank's part in a step: what it puts in, and what must be in its tensors when the step has ended."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.distributed as dist
from calls import COMPLETIONS, Failures
from layouts import contiguous, inference, shifted, strided, transposed
from reference import Expected, exactly, reduction, sample

from soak.schedule import Step

FLAT = (contiguous, shifted, strided)
"""Layouts of one dimension, for tensors that are cut into parts along it."""
ANY = (*FLAT, transposed, inference)

SALTS = 64  # of a step: room for the parts of its input


@dataclass(frozen=True)
class Result:
    """A tensor and what must be in it, found out when it is checked."""

    step: Step
    tensor: torch.Tensor
    expected: Callable[[], Expected]


@dataclass(frozen=True)
class Sources:
    """Receives from any, and the ranks of the group of which each must be the source of one."""

    step: Step
    works: list[dist.Work]
    expected: list[int]

    def wrong(self) -> str | None:
        named = sorted(work._source_rank() for work in self.works)
        return None if named == self.expected else f"sources {named} instead of {self.expected}"


@dataclass(frozen=True)
class Started:
    step: Step
    works: list[dist.Work]
    results: list[Result]
    sources: list[Sources]

    def complete(self, failures: Failures) -> None:
        for work in self.works:
            COMPLETIONS[self.step.completion](work)
        for result in self.results:
            failures.note(result.step, result.expected().wrong(result.tensor.to_dense()))
        for sources in self.sources:
            failures.note(sources.step, sources.wrong())


class Part:
    """This rank's part in one step."""

    host_of: ClassVar[list[int]] = []
    """The host of each rank of the job."""

    def __init__(self, step: Step, group: dist.ProcessGroup, members: list[int]) -> None:
        self.step = step
        self.group = group
        self.members = members  # global ranks
        self.rank, self.size = group.rank(), group.size()
        self.root = step.root % self.size
        self.peer = step.peer % self.size
        self.async_op = step.held or step.completion != 0
        self.flat = FLAT[step.layout % len(FLAT)]
        self.any = ANY[step.layout % len(ANY)]
        self.works: list[dist.Work] = []
        self.results: list[Result] = []
        self.sources: list[Sources] = []

    def values(self, rank: int, part: int = 0, numel: int | None = None) -> torch.Tensor:
        """A part of the input of a rank of the group."""
        step = self.step
        salt = SALTS * step.number + part
        return sample(step.dtype, self.members[rank], salt, step.numel if numel is None else numel)

    def mine(self, part: int = 0, numel: int | None = None) -> torch.Tensor:
        return self.any(self.values(self.rank, part, numel))

    def empty(self, numel: int | None = None) -> torch.Tensor:
        return self.any(torch.zeros(self.step.numel if numel is None else numel, dtype=self.step.dtype))

    def sizes(self) -> list[int]:
        """How many elements each rank has."""
        return [self.step.numel + rank * self.step.uneven for rank in range(self.size)]

    def pieces(self) -> list[int]:
        """Of a coalesced call: the sizes of its tensors."""
        return [self.step.numel // (1 + 2 * piece) for piece in range(self.step.pieces)]

    def expect(self, tensor: torch.Tensor, expected: Callable[[], Expected]) -> None:
        self.results.append(Result(self.step, tensor, expected))

    def moved(self, tensor: torch.Tensor, rank: int, part: int = 0, numel: int | None = None) -> None:
        """Expect the input of a rank."""
        self.expect(tensor, lambda: exactly(self.values(rank, part, numel)))

    def joined(self, tensor: torch.Tensor, parts: list[tuple[int, int, int]]) -> None:
        """Expect inputs one after the other, each given by rank, part and size."""
        self.expect(tensor, lambda: exactly(torch.cat([self.values(*each) for each in parts])))

    def reduced(self, tensor: torch.Tensor, part: int = 0, numel: int | None = None) -> None:
        """Expect the reduction of a part of all ranks' inputs."""
        step, count = self.step, self.step.numel if numel is None else numel
        salt = SALTS * step.number + part
        hosts = len({self.host_of[rank] for rank in self.members})
        self.expect(tensor, lambda: reduction(step.dtype, step.reduce, self.members, salt, count, hosts))
