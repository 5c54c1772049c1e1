"""Short programs over c10d, drawn by a seed: what they are made of, and what makes them legal.

A program has threads. Each thread has tensors of its own (bases) and groups of its own, and its steps are the
same on all ranks; a rank skips the steps of groups that it is no member of. Steps work on views of the bases,
so tensors alias at random.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import torch

DTYPES = {
    "float32": torch.float32,
    "int64": torch.int64,
    "bfloat16": torch.bfloat16,
    "uint8": torch.uint8,
    "bool": torch.bool,
}
EXACT = {"float32": 1 << 23, "bfloat16": 1 << 8}
"""Whole numbers below this are exact. Integers wrap, which is exact as well."""

FILLED = 5
"""Values that a program writes are below this."""

BASES = 2
"""Tensors of a thread."""


@dataclass(frozen=True)
class View:
    base: int
    offset: int
    numel: int
    kind: str = "flat"  # or "strided", every second element; or "matrix", transposed

    def of(self, bases: list[torch.Tensor]) -> torch.Tensor:
        base = bases[self.base]
        if self.kind == "strided":
            return base[self.offset : self.offset + 2 * self.numel : 2]
        part = base[self.offset : self.offset + self.numel]
        rows = next((n for n in (2, 3, 5, 7) if self.numel % n == 0 and self.numel > n), 1)
        return part.view(rows, -1).t() if self.kind == "matrix" and rows > 1 else part


@dataclass(frozen=True)
class Step:
    op: str
    group: int = 0
    views: tuple[View, ...] = ()  # first what is written, then what is only read
    written: int = 0  # how many of the views
    is_async: bool = False
    reduce: str = "SUM"
    root: int = 0  # position in the group; of a message, who sends
    peer: int = 0  # position: who receives a message, who is late
    tag: int = 0
    how: str = ""

    @property
    def bases(self) -> set[int]:
        return {view.base for view in self.views}

    def __str__(self) -> str:
        views = ", ".join(f"{v.kind} {v.base}[{v.offset}+{v.numel}]" for v in self.views)
        extra = {
            "all_reduce": self.reduce,
            "message": f"{self.root} to {self.peer} tag {self.tag}",
        }.get(self.op, f"{self.reduce} root {self.root} peer {self.peer}")
        return " ".join(
            word
            for word in (
                "async" if self.is_async else "",
                self.op,
                self.how,
                f"group {self.group}",
                extra,
                f"({views})",
            )
            if word
        )


@dataclass(frozen=True)
class Thread:
    steps: tuple[Step, ...]


@dataclass(frozen=True)
class Program:
    dtype: str
    unit: int  # elements that a rank contributes
    ranks: int
    groups: tuple[tuple[int, ...], ...]
    short: frozenset[int] = frozenset()  # groups in which an operation times out soon
    threads: tuple[Thread, ...] = field(default=())

    @property
    def base_numel(self) -> int:
        return 3 * self.unit * self.ranks + 8

    @property
    def size(self) -> int:
        return sum(len(each.steps) for each in self.threads)

    def smaller(self) -> Iterator[Program]:
        threads = self.threads
        if len(threads) > 1:
            for i in range(len(threads)):
                yield replace(self, threads=threads[:i] + threads[i + 1 :])
        for i, thread in enumerate(threads):
            steps = thread.steps
            for size in (len(steps) // 2, len(steps) // 4, 1):
                for at in range(0, len(steps), max(size, 1)):
                    kept = Thread(steps[:at] + steps[at + max(size, 1) :])
                    yield legal(replace(self, threads=(*threads[:i], kept, *threads[i + 1 :])))

    def __str__(self) -> str:
        lines = [f"{self.dtype}, unit {self.unit}, {self.ranks} ranks, groups {list(self.groups)}"]
        for number, thread in enumerate(self.threads):
            lines += [f"thread {number}", *(f"  {i}: {step}" for i, step in enumerate(thread.steps))]
        return "\n".join(lines)


LOCAL = ("fill", "limit", "wait")
REDUCING = (
    "all_reduce",
    "reduce",
    "reduce_scatter_tensor",
    "reduce_scatter",
    "coalesced",
    "together",
    "mixed",
)


def legal(program: Program) -> Program:
    """With what a right program does in between: it waits before it touches a tensor itself or uses it in
    another group, and keeps values so small that they are exact."""
    return replace(program, threads=tuple(Thread(tuple(_legal(program, each))) for each in program.threads))


def _legal(program: Program, thread: Thread) -> Iterator[Step]:
    flying: dict[int, int] = {}  # group by base
    most = dict.fromkeys(range(BASES), FILLED - 1)
    exact = EXACT.get(program.dtype, 1 << 62)
    for step in thread.steps:
        if step.op == "wait":
            flying.clear()
            yield step
            continue
        if step.op == "limit":
            continue
        after = _most_after(program, step, most)
        too_large = program.dtype != "bool" and any(after[base] >= exact for base in step.bases)
        is_own = step.op in LOCAL or step.op == "late"
        if too_large or any(base in flying and (is_own or flying[base] != step.group) for base in step.bases):
            if flying:
                yield Step("wait")
            flying.clear()
        if too_large:
            for base in sorted(step.bases):
                yield Step("limit", views=(View(base, 0, program.base_numel),))
                most[base] = FILLED - 1
            after = _most_after(program, step, most)
        yield step
        most = after
        if step.reduce == "AVG" and step.op in REDUCING:
            most.update(dict.fromkeys(step.bases, exact))  # to be made whole before it is used again
        if step.op == "fill":
            most[step.views[0].base] = FILLED - 1
        if step.op == "late":
            most.update(dict.fromkeys(step.bases, FILLED - 1))
        if step.is_async:
            flying.update(dict.fromkeys(step.bases, step.group))
    yield Step("wait")


def _most_after(program: Program, step: Step, most: dict[int, int]) -> dict[int, int]:
    """The largest value that a base may hold after a step."""
    highest = max((most[base] for base in step.bases), default=0)
    if step.op in REDUCING:
        size = len(program.groups[step.group])
        highest = highest**size if step.reduce == "PRODUCT" else highest * size
    return {**most, **dict.fromkeys(step.bases, highest)}


class Draw:
    """Draws programs. `plain`: only what gloo can do as well."""

    def __init__(self, seed: str, ranks: int, *, plain: bool = False) -> None:
        self._draw = random.Random(seed)
        self._ranks = ranks
        self._plain = plain
        self._tags = 0

    def program(self) -> Program:
        draw = self._draw
        dtype = draw.choice([name for name in DTYPES if not self._plain or name != "bool"])
        threads = draw.choice((1, 1, 1, 2, 3))
        sizes = (1, 7, 40, 1000, 1000, 70_000, *((300_000,) if threads == 1 else ()))
        unit = draw.choice(sizes)
        if threads == 1 and draw.random() < 0.02:
            unit = 2_000_000
        groups: list[tuple[int, ...]] = []
        short: set[int] = set()
        made = []
        for _ in range(threads):
            everybody = tuple(range(self._ranks))
            mine = []
            for _ in range(draw.choice((1, 2, 3))):
                size = draw.choice((self._ranks, self._ranks, 2))
                mine.append(len(groups))
                groups.append(tuple(sorted(draw.sample(everybody, size))))
            program = Program(dtype, unit, self._ranks, tuple(groups))
            steps = [self.step(program, draw.choice(mine)) for _ in range(draw.randint(4, 20))]
            if not self._plain and draw.random() < 0.08:
                short.add(len(groups))
                groups.append(everybody)
                program = Program(dtype, unit, self._ranks, tuple(groups))
                steps.insert(draw.randrange(len(steps)), self._late(program, len(groups) - 1))
            made.append(Thread(tuple(steps)))
        return legal(Program(dtype, unit, self._ranks, tuple(groups), frozenset(short), tuple(made)))

    def _places(self, program: Program, numels: list[int], *, matrices: bool = True) -> tuple[View, ...]:
        """Views that do not meet each other."""
        draw = self._draw
        cursor = [draw.randrange(4) for _ in range(BASES)]
        views: dict[int, View] = {}
        order = list(range(len(numels)))
        draw.shuffle(order)
        for i in order:
            numel = numels[i]
            free = [each for each in range(BASES) if cursor[each] + numel <= program.base_numel]
            where = draw.choice(free) if free else min(range(BASES), key=lambda each: cursor[each])
            kinds = ["flat", "flat"]
            if not self._plain and matrices:
                kinds.append("matrix")
            if not self._plain and cursor[where] + 2 * numel <= program.base_numel and numel <= program.unit:
                kinds.append("strided")
            kind = draw.choice(kinds)
            views[i] = View(where, cursor[where], numel, kind)
            cursor[where] += numel * (2 if kind == "strided" else 1)
            if cursor[where] > program.base_numel:
                raise AssertionError("the bases are too small")
        return tuple(views[i] for i in range(len(numels)))

    def _reduce(self, program: Program) -> str:
        if self._plain:
            return self._draw.choice(("SUM", "MAX", "MIN", "PRODUCT"))
        if program.dtype == "bool":
            return self._draw.choice(("SUM", "MAX", "PRODUCT"))
        return self._draw.choice(("SUM", "SUM", "MAX", "MIN", "PRODUCT", "AVG"))

    def _late(self, program: Program, group: int) -> Step:
        views = self._places(program, [program.unit])
        draw = self._draw
        op = draw.choice(("all_reduce", "broadcast", "message", "reduce_scatter_tensor"))
        return Step(
            "late",
            group,
            views,
            1,
            peer=draw.randrange(len(program.groups[group])),
            how=f"{op} {draw.choice(('written', 'freed'))}",
        )

    def step(self, program: Program, group: int) -> Step:
        draw, unit = self._draw, program.unit
        size = len(program.groups[group])
        root, peer = draw.randrange(size), draw.randrange(size)
        is_async = draw.random() < 0.6 and not self._plain
        common = {"group": group, "is_async": is_async, "root": root, "peer": peer}
        ops = [
            *("all_reduce",) * 5,
            *("message",) * 4,
            *("broadcast", "all_gather", "all_gather_into_tensor", "reduce_scatter_tensor"),
            *("reduce_scatter", "gather", "scatter", "all_to_all_single", "uneven", "barrier", "ring"),
            *("fill", "wait", "wait"),
        ]
        if not self._plain:
            ops += [
                "reduce",
                "coalesced",
                "together",
                "mixed",
                "all_to_all",
                "refused",
                "refused",
                "refused batch",
            ]
        op = draw.choice(ops)
        if op in ("wait", "barrier"):
            return Step(op, group, is_async=op == "barrier" and is_async)
        if op == "fill":
            base = draw.randrange(BASES)
            return Step(op, views=(View(base, 0, program.base_numel),), written=1, tag=draw.randrange(100))
        if op in ("all_reduce", "broadcast", "reduce"):
            views = self._places(program, [draw.choice((unit, unit * size))])
            return Step(op, views=views, written=1, reduce=self._reduce(program), **common)
        if op in ("coalesced", "together", "mixed"):
            count = draw.randint(2, 3)
            views = self._places(program, [unit] * count)
            if op == "together" and draw.random() < 0.3:
                views = (*views[:-1], views[0])  # twice the same
            return Step(op, views=views, written=count, reduce=self._reduce(program), **common)
        if op in ("message", "ring"):
            self._tags += 1
            if size == 1 or root == peer:
                common["peer"] = (root + 1) % size
            views = self._places(program, [unit, unit])
            how = draw.choice(("", "", "any source")) if op == "message" else ""
            return Step(op, views=views, written=1, tag=self._tags, how=how, **common)
        if op in ("refused", "refused batch"):
            views = self._places(program, [unit])
            return Step(op, group, views, 1, how=draw.choice(("sizes", "negative", "splits")))
        whole, parts = [unit * size], [unit] * size
        shapes: dict[str, tuple[list[int], int]] = {
            "all_gather": ([*parts, unit], size),
            "all_gather_into_tensor": ([*whole, unit], 1),
            "reduce_scatter_tensor": ([unit, *whole], 1),
            "reduce_scatter": ([unit, *parts], 1),
            "gather": ([*parts, unit], size),
            "scatter": ([unit, *parts], 1),
            "all_to_all_single": ([*whole, *whole], 1),
            "uneven": ([*whole, *whole], 1),
            "all_to_all": ([*parts, *parts], size),
        }
        numels, written = shapes[op]
        views = self._places(program, numels, matrices=False)
        return Step(op, views=views, written=written, reduce=self._reduce(program), **common)
