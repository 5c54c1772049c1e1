"""How much faster a training steps over ucc: `times.py TITLE GLOO UCC [GLOO UCC]...`, results of turns.

A turn is a training over gloo and one over ucc; its times are the medians of their steps. Prints a row of a
table: the median, the least and the most of the turns. Status 1 if the results of a turn differ in more than
their time.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence

import torch
from compare import differences, wrong_ways


def span(values: Sequence[float], digits: int) -> str:
    median, least, most = statistics.median(values), min(values), max(values)
    return f"{median:.{digits}f} ({least:.{digits}f} to {most:.{digits}f})"


def main() -> int:
    title, *paths = sys.argv[1:]
    results = [torch.load(path) for path in paths]
    turns = [*zip(results[::2], results[1::2], strict=True)]
    wrong = [line for gloo, ucc in turns for line in wrong_ways(ucc, gloo) + differences(ucc, gloo)]
    for line in wrong:
        print(f"{title}: {line}")
    if wrong:
        return 1
    medians = [[statistics.median(each["steps"]) for each in turn] for turn in turns]
    over_gloo, over_ucc = (
        span([1000 * each for each in of_turns], 1) for of_turns in zip(*medians, strict=True)
    )
    faster = span([gloo / ucc for gloo, ucc in medians], 2)
    print("|", " | ".join([title, over_gloo, over_ucc, faster]), "|")
    return 0


if __name__ == "__main__":
    sys.exit(main())
