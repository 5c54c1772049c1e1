"""What is measured: ops, sizes and dtypes, and the sets of these that a plain run takes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from torch_ucc.bench.libraries.library import ITEM_BYTES

# In the names of torch, and four of our own: messages there and back (half of it counts),
# from a known and from any source, both ways at once, and sixteen all_reduces in flight (one counts).
OPS = (
    "all_reduce",
    "broadcast",
    "all_gather_into_tensor",
    "reduce_scatter_tensor",
    "all_to_all_single",
    "reduce",
    "gather",
    "scatter",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "barrier",
    "ping_pong",
    "any_source",
    "both_ways",
    "all_reduce_async",
)
OF_LISTS = frozenset({"all_gather", "reduce_scatter", "all_to_all"})  # a tensor a rank: torch's alone
MESSAGES = frozenset({"ping_pong", "both_ways"})
COLLECTIVES = tuple(op for op in OPS if op not in {*MESSAGES, "any_source", "all_reduce_async"})
FEW_OPS = ("all_reduce", "broadcast", "all_gather_into_tensor", "barrier", "ping_pong")
SIZES = (4, 1 << 10, 64 << 10, 1 << 20, 64 << 20)
FEW_SIZES = (4, 64 << 10, 1 << 20)
HALVES = ("bfloat16", "float16")  # of an all_reduce, in a report
MORE_LARGE = (16 << 20, 256 << 20)  # of an all_reduce, in a report
UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20}
# What is timed beside busy processes if the command line names neither ops nor sizes.
BUSY_CASES = (
    ("all_reduce", 4),
    ("all_reduce", 64 << 10),
    ("all_reduce", 64 << 20),
    ("broadcast", 64 << 20),
    ("ping_pong", 64 << 10),
    ("ping_pong", 64 << 20),
)


@dataclass(frozen=True, order=True)
class Case:
    """One op on tensors of one size and dtype.

    `nbytes` is the size of a tensor. For an op that has a part for each rank, it is the size of one part, and
    for a barrier 0.
    """

    op: str
    nbytes: int
    dtype: str = "float32"

    def __str__(self) -> str:
        return f"{self.op}:{self.nbytes}:{self.dtype}"

    @property
    def is_whole(self) -> bool:
        """Whether `nbytes` hold a whole number of items."""
        return self.nbytes % ITEM_BYTES[self.dtype] == 0


def parse_size(text: str) -> int:
    """Bytes of "4", "64K" or "1M". A size is a multiple of 4 bytes, so that it fits float32."""
    match = re.fullmatch(r"(\d+)([KM]?)B?", text.strip().upper())
    if match is None:
        raise ValueError(f"not a size: {text!r} (like 4, 64K, 1M)")
    nbytes = int(match[1]) * UNITS[match[2]]
    if nbytes == 0 or nbytes % 4:
        raise ValueError(f"not a positive multiple of 4 bytes: {text!r}")
    return nbytes


def format_size(nbytes: int) -> str:
    for unit in ("M", "K"):
        if nbytes >= UNITS[unit] and nbytes % UNITS[unit] == 0:
            return f"{nbytes // UNITS[unit]} {unit}B"
    return f"{nbytes} B" if nbytes else "-"


def format_case(case: Case) -> str:
    """The op, the size unless it is 0, and the dtype unless it is float32."""
    words = [case.op, format_size(case.nbytes) if case.nbytes else ""]
    words += [case.dtype if case.dtype != "float32" else ""]
    return " ".join(word for word in words if word)


def make_cases(
    ops: Sequence[str], sizes: Sequence[int] | None, dtypes: Sequence[str] = ("float32",)
) -> list[Case]:
    """Every op at every size with every dtype.

    If no sizes are given, all_reduce has all usual ones and the other ops have few. A barrier has one case.
    """
    for dtype in dtypes:
        if dtype not in ITEM_BYTES:
            raise ValueError(f"unknown dtype {dtype!r}; there are {', '.join(ITEM_BYTES)}")
    cases = []
    for op in ops:
        if op not in OPS:
            raise ValueError(f"unknown op {op!r}; there are {', '.join(OPS)}")
        if op == "barrier":
            cases.append(Case(op, 0))
            continue
        usual = SIZES if op == "all_reduce" else FEW_SIZES
        cases += [Case(op, size, dtype) for dtype in dtypes for size in sizes or usual]
    return cases
