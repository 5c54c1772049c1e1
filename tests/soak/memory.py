"""Whether a process stops growing.

What counts is what the process holds: its resident memory after garbage was collected and the allocator has
returned what it only kept at hand. The second half of the run is cut into windows of equal length, each of
which counts with the median of its samples: no single moment decides.

The allocator is told to keep to one arena and to map large blocks on their own. Otherwise tensors of random
sizes from several threads leave holes in many arenas, and resident memory swings by a tenth while bytes in
use stay the same.
"""

from __future__ import annotations

import ctypes
import gc
import os
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

WINDOWS = 10
TOLERANCE = 0.01

SHORTEST_S = 300.0
"""A shorter run is not judged: pools of UCX and UCC are still filling up."""

M_MMAP_THRESHOLD, M_ARENA_MAX = -3, -8  # of malloc.h


@dataclass(frozen=True)
class Sample:
    seconds: float  # since the start of the run
    held: int  # bytes
    in_use: int = 0  # bytes of these that were allocated: the rest is holes between them, and code


def keep_tight() -> None:
    """For this process, from now on."""
    libc = ctypes.CDLL(None)
    for option, value in ((M_ARENA_MAX, 1), (M_MMAP_THRESHOLD, 256 << 10)):
        if libc.mallopt(option, value) != 1:
            raise OSError(f"mallopt({option}, {value}) was refused")


def held() -> int:
    """What this process holds, in bytes."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class _MallInfo2(ctypes.Structure):
    """Of malloc.h."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keepcost",
        )
    ]


def in_use() -> int:
    """How many bytes the allocator has given out, in this process."""
    ask = ctypes.CDLL(None).mallinfo2
    ask.restype = _MallInfo2
    told = ask()
    return int(told.uordblks + told.hblkhd)


def windows(
    samples: list[Sample], count: int = WINDOWS, what: Callable[[Sample], int] = lambda sample: sample.held
) -> list[float]:
    """The medians of the windows of the second half, in bytes; windows without a sample are left out."""
    start, end = samples[0].seconds, samples[-1].seconds
    middle = (start + end) / 2
    length = (end - middle) / count
    found: list[list[int]] = [[] for _ in range(count)]
    for sample in samples:
        if sample.seconds >= middle and length > 0:
            found[min(count - 1, int((sample.seconds - middle) / length))].append(what(sample))
    return [statistics.median(each) for each in found if each]


def grown(samples: list[Sample], tolerance: float = TOLERANCE) -> str | None:
    """What is wrong, if anything: a window further than the tolerance from the median of all, or too few."""
    medians = windows(samples)
    if len(medians) < 3:
        return f"only {len(medians)} windows with samples"
    level = statistics.median(medians)
    if max(abs(each - level) for each in medians) <= tolerance * level:
        return None
    shown = ", ".join(f"{each / 2**20:.1f}" for each in medians)
    return f"resident memory is not within {tolerance:.0%} of {level / 2**20:.1f} MB: {shown} MB"
