"""Which of UCC's algorithms serve small groups of a job, where UCC's own choice was measured to be slower.

In the words of its option TL_UCP_TUNE: rules joined by "#", each for a collective, from one size of a message
to below another, in teams of so many. What no rule speaks of is as UCC has it.
"""

from __future__ import annotations

import math
import re

from torch_ucc import config

# A knomial tree takes the fewest steps. UCC's own choices take more from 4 or 32 KB on, with less in each;
# its ring for a reduce_scatter takes one for each rank at any size, with as many bytes in all. The tree needs
# memory for the parts of all ranks, so it is for 2 MB of them at most.
ONE_HOST = "#".join(
    (
        "allreduce:0-16k:host:[2]:@knomial",
        "allreduce:0-8k:host:[3-8]:@knomial",
        "reduce:0-512k:host:[2]:@knomial",
        "reduce_scatter:0-128k:host:[3-8]:@knomial",
        "reduce_scatter:0-32k:host:[9-64]:@knomial",
    )
)
# Where ranks share cores on it, these too: each step waits for another rank to get a core, and what UCC's own
# choices save is copies at once, for which there are none.
CROWDED = "#".join(
    (
        "allgather:8k-4m:host:[3-16]:@knomial",
        "bcast:32k-16m:host:[3-16]:@knomial",
        "reduce:32k-256k:host:[3-16]:@knomial",
    )
)
SMALLEST_CROWD = 3
"""Ranks: for fewer it makes no difference."""
OVER_TCP = "#".join(
    (
        "allreduce:0-128k:host:[2]:@knomial",
        "allreduce:0-64k:host:[3-8]:@knomial",
        "bcast:0-64k:host:[3-8]:@knomial",
        "reduce:0-512k:host:[2]:@knomial",
        "reduce:0-64k:host:[3-8]:@knomial",
        "reduce_scatter:0-128k:host:[2-8]:@knomial",
        "reduce_scatter:0-32k:host:[9-64]:@knomial",
    )
)


def one_host(crowded: bool) -> str:
    """`crowded`: ranks outnumber their cores, which is the same for all, or a collective would not end."""
    return f"{ONE_HOST}#{CROWDED}" if crowded else ONE_HOST


# Compiled where somebody set rules: every start imports this.
_COLLECTIVE = "all(gatherv?|reduce|toallv?)|barrier|bcast|fan(in|out)|gatherv?|reduce(_scatterv?)?|scatterv?"
_RANGE = r"(\d\w*)-(\w+)"
Range = tuple[str, str]


def beside(ours: str, theirs: str) -> str:
    """Both; but of `ours` only what `theirs` leave open, since UCC wants one rule at most for each size. None
    are left beside an empty text: what was set to nothing is for UCC."""
    rules = [left for rule in ours.split("#") if (left := _what_is_left(rule, theirs.split("#")))]
    return "#".join([*rules, theirs])


def _what_is_left(rule: str, theirs: list[str]) -> str:
    collective, sizes, *others = rule.split(":")
    ranges = _ranges(sizes)
    for other in theirs:
        parts = other.lower().split(":")
        named = [name for part in parts for name in part.split(",") if re.fullmatch(_COLLECTIVE, name)]
        if not named or collective in named:
            for taken in next(filter(None, map(_ranges, parts)), [("0", "inf")]):
                ranges = [left for each in ranges for left in _without(each, taken)]
    return ":".join([collective, ",".join(map("-".join, ranges)), *others]) if ranges else ""


def _ranges(sizes: str) -> list[Range]:
    """Of "0-4k,16k-inf"; none of what is no such text."""
    found = [re.fullmatch(_RANGE, each) for each in sizes.split(",")]
    return [(each[1], each[2]) for each in found if each] if all(found) else []


def _without(whole: Range, taken: Range) -> list[Range]:
    (low, high), (start, end) = whole, taken
    parts = ((low, min(high, start, key=_bytes)), (max(low, end, key=_bytes), high))
    return [part for part in parts if _bytes(part[0]) < _bytes(part[1])]


def _bytes(text: str) -> float:
    """Of "inf", and of what UCC would not understand, which is for it to refuse: more than of any number."""
    if not text.strip("0"):
        return 0
    try:
        return config.size(text)
    except ValueError:
        return math.inf
