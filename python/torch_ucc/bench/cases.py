"""What is measured: ops, sizes, and the sets of both that a plain run takes."""

from __future__ import annotations

import re
from dataclasses import dataclass

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
FEW_OPS = ("all_reduce", "broadcast", "all_gather_into_tensor", "barrier", "ping_pong")
SIZES = (4, 1 << 10, 64 << 10, 1 << 20, 64 << 20)
FEW_SIZES = (4, 64 << 10, 1 << 20)
MORE_LARGE = (16 << 20, 256 << 20)  # of an all_reduce, in a report
UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20}


@dataclass(frozen=True, order=True)
class Case:
    """`nbytes` is a tensor's size or, of ops that have a part for each rank, one part's; 0 for a barrier."""

    op: str
    nbytes: int

    def __str__(self) -> str:
        return f"{self.op}:{self.nbytes}"


def parse_size(text: str) -> int:
    """Bytes of "4", "64K" or "1M". Float32 is what is sent, so a multiple of four."""
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


def make_cases(ops: list[str], sizes: list[int] | None) -> list[Case]:
    """Every op at every size; where none are given, all_reduce at all usual ones and others at few."""
    cases = []
    for op in ops:
        if op not in OPS:
            raise ValueError(f"unknown op {op!r}; there are {', '.join(OPS)}")
        usual = SIZES if op == "all_reduce" else FEW_SIZES
        cases += [Case(op, 0)] if op == "barrier" else [Case(op, size) for size in sizes or usual]
    return cases
