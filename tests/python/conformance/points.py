"""What a call can vary in, and what a case of an operation is made of: see table.py for the cases."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from types import ModuleType

import calls
import torch
import torch.distributed as dist
from layouts import Layout, contiguous, fitting, moved, sliceable
from reference import Expected, exactly, reduction, sample

Pair = tuple[torch.dtype, str]  # dtype and reduce op
SLOTS = 16  # samples that a call may take of a rank


@dataclass(frozen=True)
class Point:
    """One choice of all that a call can vary in, the same on every rank of the group."""

    group: dist.ProcessGroup
    members: Sequence[int]  # whose samples the ranks of the group have
    dtype: torch.dtype
    reduce: str = "SUM"  # of no meaning to what only moves
    numel: int = 1000
    layout: Layout = contiguous  # of inputs
    out_layout: Layout = contiguous  # of outputs, and of what is both
    in_place: bool = False  # an input is the own part of the output, or the other way round
    one_storage: bool = False  # lists are views of one tensor
    root: int = 0
    salt: int = 0
    calls: ModuleType = calls  # by whose functions: calls or front
    device: str = "cpu"

    @property
    def rank(self) -> int:
        return self.group.rank()

    @property
    def size(self) -> int:
        return self.group.size()

    @property
    def ranks(self) -> range:
        return range(self.size)

    @property
    def is_root(self) -> bool:
        return self.rank == self.root

    def label(self) -> tuple[object, ...]:
        flags = [name for name in ("in_place", "one_storage") if getattr(self, name)]
        layouts = f"{self.layout.__name__} to {self.out_layout.__name__}"
        return (self.dtype, self.reduce, self.numel, layouts, *flags, f"root {self.root}")

    def lengths(self, shift: int = 0) -> list[int]:
        """A number of elements for each rank: some none, some `numel`."""
        return [self.numel * ((rank + shift + self.salt) % 3) // 2 for rank in self.ranks]

    def values(self, rank: int, slot: int = 0, numel: int | None = None) -> torch.Tensor:
        """What `rank` puts in: another for each slot."""
        return sample(
            self.dtype, self.members[rank], self.salt * SLOTS + slot, self.numel if numel is None else numel
        )

    def reduced(self, slot: int = 0, numel: int | None = None) -> Expected:
        """The reduction of everybody's `values(rank, slot, numel)`."""
        salt = self.salt * SLOTS + slot
        return reduction(
            self.dtype, self.reduce, list(self.members), salt, self.numel if numel is None else numel
        )

    def blank(self, numel: int | None = None) -> torch.Tensor:
        return torch.zeros(self.numel if numel is None else numel, dtype=self.dtype)

    def there(self, tensor: torch.Tensor) -> torch.Tensor:
        """What is made on the CPU, on the device of the point."""
        return moved(tensor, self.device)

    def input(self, values: torch.Tensor) -> torch.Tensor:
        return self.there(fitting(self.layout, values.numel())(values))

    def output(self, values: torch.Tensor) -> torch.Tensor:
        """A tensor to be written to, that holds `values` before."""
        return self.there(fitting(self.out_layout, values.numel())(values))

    def inputs(self, values: list[torch.Tensor]) -> list[torch.Tensor]:
        if self.one_storage:
            return _views(self.there(sliceable(self.layout)(torch.cat(values))), values)
        return [self.input(each) for each in values]

    def outputs(self, values: list[torch.Tensor]) -> list[torch.Tensor]:
        if self.one_storage:
            return _views(self.there(sliceable(self.out_layout)(torch.cat(values))), values)
        return [self.output(each) for each in values]

    def row(self, values: torch.Tensor) -> torch.Tensor:
        """An output of which parts can be cut."""
        return self.there(sliceable(self.out_layout)(values))

    def part(self, whole: torch.Tensor, rank: int) -> torch.Tensor:
        return whole[rank * self.numel : (rank + 1) * self.numel]


def _views(whole: torch.Tensor, parts: list[torch.Tensor]) -> list[torch.Tensor]:
    return list(whole.split([part.numel() for part in parts]))


@dataclass(frozen=True)
class Claim:
    """What must be true once a call has ended. `wrong` says what is not, or None."""

    what: str
    wrong: Callable[[], str | None]


def holds(what: str, tensor: torch.Tensor, values: torch.Tensor) -> Claim:
    """Bit for bit."""
    return Claim(what, lambda: exactly(values).wrong(tensor))


def hold(what: str, tensors: Iterable[torch.Tensor], values: Iterable[torch.Tensor]) -> list[Claim]:
    pairs = zip(tensors, values, strict=True)
    return [holds(f"{what} {i}", *pair) for i, pair in enumerate(pairs)]


def is_reduced(what: str, tensor: torch.Tensor, expected: Callable[[], Expected]) -> Claim:
    return Claim(what, lambda: expected().wrong(tensor))


@dataclass
class Attempt:
    """A call about to be made on all ranks. The tensors are found here alone: who drops it, drops them."""

    start: Callable[[bool], list[calls.Started]]  # given async_op
    outputs: list[Claim]
    inputs: list[Claim] = field(default_factory=list)  # of tensors that are only read

    def wrongs(self) -> Iterator[tuple[str, str | None]]:
        for claim in itertools.chain(self.outputs, self.inputs):
            yield claim.what, claim.wrong()


@dataclass(frozen=True)
class Case:
    """One way to call an operation, for each of `pairs`."""

    build: Callable[[Point], Attempt]
    pairs: tuple[Pair, ...]
    every_layout: bool = False  # at every size, too

    @property
    def name(self) -> str:
        return self.build.__name__
