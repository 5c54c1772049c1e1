"""What is measured: ops, sizes, and the sets of both that a plain run takes."""

from __future__ import annotations

import re
from dataclasses import dataclass

OPS = ("all_reduce", "broadcast", "all_gather_into_tensor", "barrier")
ALL_REDUCE_SIZES = (4, 1 << 10, 64 << 10, 1 << 20, 64 << 20)
OTHER_SIZES = (4, 64 << 10, 1 << 20)
UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20}


@dataclass(frozen=True, order=True)
class Case:
    """`nbytes` is what each rank contributes; 0 for a barrier."""

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
    """Every op at every size; at its own usual sizes where none are given."""
    cases = []
    for op in ops:
        if op not in OPS:
            raise ValueError(f"unknown op {op!r}; there are {', '.join(OPS)}")
        usual = ALL_REDUCE_SIZES if op == "all_reduce" else OTHER_SIZES
        cases += [Case(op, 0)] if op == "barrier" else [Case(op, size) for size in sizes or usual]
    return cases
