"""What a program leaves in the tensors of each rank, computed in one process."""

from __future__ import annotations

import torch

from random_programs.program import BASES, DTYPES, FILLED, Program, Step, View

MINE = 3
"""What a program writes into a tensor after an operation of it failed."""


def value(rank: int, base: int, tag: int, numel: int, dtype: torch.dtype) -> torch.Tensor:
    """What rank writes into a base."""
    numbers = torch.arange(numel) * 7 + rank * 3 + base + tag
    return (numbers % (2 if dtype == torch.bool else FILLED)).to(dtype)


def reduced(op: str, inputs: list[torch.Tensor], dtype: torch.dtype) -> torch.Tensor:
    if dtype == torch.bool:
        some = torch.stack(inputs)
        return some.all(0) if op == "PRODUCT" else some.any(0)
    wide = torch.float64 if dtype.is_floating_point else torch.int64
    some = torch.stack([each.to(wide) for each in inputs])
    if op == "AVG":
        total = some.sum(0)
        if not dtype.is_floating_point:
            return torch.div(total, len(inputs), rounding_mode="trunc").to(dtype)
        return (total.to(torch.float32) / len(inputs)).to(dtype)
    result = {
        "SUM": lambda: some.sum(0),
        "PRODUCT": lambda: some.prod(0),
        "MAX": lambda: some.amax(0),
        "MIN": lambda: some.amin(0),
    }[op]()
    return result.to(dtype)


def split(numel: int, sender: int, receiver: int, size: int) -> int:
    """Elements that go from one to another in an uneven all_to_all, of `numel` for an even one."""
    shares = [(sender + receiver + i) % size for i in range(size)]
    most = numel // size
    return most * (1 + shares[0]) // size if size > 1 else numel


def limited(base: torch.Tensor) -> torch.Tensor:
    if base.dtype == torch.bool:
        return base
    return (base.round() if base.dtype.is_floating_point else base).remainder(FILLED)


class Reference:
    """The bases of one thread, on all ranks."""

    def __init__(self, program: Program, thread: int) -> None:
        self.program = program
        self.dtype = DTYPES[program.dtype]
        self.bases = [
            [value(rank, base, thread, program.base_numel, self.dtype) for base in range(BASES)]
            for rank in range(program.ranks)
        ]

    def get(self, rank: int, view: View) -> torch.Tensor:
        return view.of(self.bases[rank]).clone()

    def put(self, rank: int, view: View, values: torch.Tensor) -> None:
        target = view.of(self.bases[rank])
        target.copy_(values.reshape(target.shape))

    def step(self, step: Step) -> None:
        if step.op in ("wait", "barrier") or step.op.startswith("refused"):
            return
        if step.op == "fill":
            base = step.views[0].base
            for rank, bases in enumerate(self.bases):
                bases[base] = value(rank, base, step.tag, self.program.base_numel, self.dtype)
            return
        if step.op == "limit":
            for bases in self.bases:
                bases[step.views[0].base] = limited(bases[step.views[0].base])
            return
        getattr(self, "_" + step.op)(step, self.program.groups[step.group])

    def _all_reduce(self, step: Step, members: tuple[int, ...]) -> None:
        inputs = [[self.get(rank, view) for view in step.views] for rank in members]
        for i, view in enumerate(step.views):
            total = reduced(step.reduce, [each[i] for each in inputs], self.dtype)
            for rank in members:
                self.put(rank, view, total)

    _coalesced = _together = _mixed = _all_reduce

    def _reduce(self, step: Step, members: tuple[int, ...]) -> None:
        (view,) = step.views
        self.put(
            members[step.root], view, reduced(step.reduce, [self.get(r, view) for r in members], self.dtype)
        )

    def _broadcast(self, step: Step, members: tuple[int, ...]) -> None:
        values = self.get(members[step.root], step.views[0])
        for rank in members:
            self.put(rank, step.views[0], values)

    def _gathered(self, step: Step, members: tuple[int, ...], receivers: tuple[int, ...]) -> None:
        *outputs, source = step.views
        parts = [self.get(rank, source).reshape(-1) for rank in members]
        for rank in receivers:
            if len(outputs) == 1:
                self.put(rank, outputs[0], torch.cat(parts))
            else:
                for view, part in zip(outputs, parts, strict=True):
                    self.put(rank, view, part)

    def _all_gather(self, step: Step, members: tuple[int, ...]) -> None:
        self._gathered(step, members, members)

    _all_gather_into_tensor = _all_gather

    def _gather(self, step: Step, members: tuple[int, ...]) -> None:
        self._gathered(step, members, (members[step.root],))

    def _parts(self, rank: int, views: tuple[View, ...], size: int) -> list[torch.Tensor]:
        if len(views) == 1 and size > 1:
            return list(self.get(rank, views[0]).reshape(-1).split(views[0].numel // size))
        return [self.get(rank, view).reshape(-1) for view in views]

    def _reduce_scatter(self, step: Step, members: tuple[int, ...]) -> None:
        output, *sources = step.views
        parts = [self._parts(rank, tuple(sources), len(members)) for rank in members]
        for i, rank in enumerate(members):
            self.put(rank, output, reduced(step.reduce, [each[i] for each in parts], self.dtype))

    _reduce_scatter_tensor = _reduce_scatter

    def _scatter(self, step: Step, members: tuple[int, ...]) -> None:
        output, *sources = step.views
        parts = self._parts(members[step.root], tuple(sources), len(members))
        for rank, part in zip(members, parts, strict=True):
            self.put(rank, output, part)

    def _all_to_all(self, step: Step, members: tuple[int, ...]) -> None:
        half = len(step.views) // 2
        outputs, sources = step.views[:half], step.views[half:]
        parts = [self._parts(rank, sources, len(members)) for rank in members]
        for i, rank in enumerate(members):
            mine = [each[i] for each in parts]
            if half == 1:
                self.put(rank, outputs[0], torch.cat(mine))
            else:
                for view, part in zip(outputs, mine, strict=True):
                    self.put(rank, view, part)

    _all_to_all_single = _all_to_all

    def _uneven(self, step: Step, members: tuple[int, ...]) -> None:
        output, source = step.views
        size = len(members)
        data = [self.get(rank, source).reshape(-1) for rank in members]
        for to, rank in enumerate(members):
            got = []
            for i in range(size):
                at = sum(split(source.numel, i, j, size) for j in range(to))
                got.append(data[i][at : at + split(source.numel, i, to, size)])
            target = self.get(rank, output)
            flat = target.reshape(-1)
            came = torch.cat(got)
            flat[: came.numel()] = came
            self.put(rank, output, flat)

    def _message(self, step: Step, members: tuple[int, ...]) -> None:
        if len(members) > 1:
            self.put(members[step.peer], step.views[0], self.get(members[step.root], step.views[1]))

    def _ring(self, step: Step, members: tuple[int, ...]) -> None:
        sent = [self.get(rank, step.views[1]) for rank in members]
        for i, rank in enumerate(members):
            self.put(rank, step.views[0], sent[i - 1])

    def _late(self, step: Step, members: tuple[int, ...]) -> None:
        """The rank that is late writes its tensor anew, the others wrote theirs after the error."""
        for rank in members:
            base = self.bases[rank][step.views[0].base]
            base.fill_(MINE % 2 if self.dtype == torch.bool else MINE)
