"""What came out of a tuning, in words: for the terminal, and for the profile."""

from __future__ import annotations

import time
from collections import Counter
from importlib.metadata import version

from torch_ucc.tuning.decisions import Outcome, mean_gain
from torch_ucc.tuning.profile import VARIABLE
from torch_ucc.tuning.tuner import Tuning


def head(seconds: float) -> list[str]:
    date = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    made_by = version("torch-ucc")
    return [
        f"Made by `torch-ucc tune` {made_by} in {seconds:.0f} s on {date}, for the topology below.",
        f"Set {VARIABLE}=FILE to apply it. Variables in the environment have priority over it.",
        "A gain is the time with the default, divided by the time with the value: the median, and the range.",
        "",
    ]


def summary(tuning: Tuning) -> list[str]:
    remarks = [f"{remark[0].upper()}{remark[1:]}." for remark in tuning.remarks]
    if not tuning.choices:
        return ["Nothing that was measured is better than the defaults here.", *remarks]
    count = Counter(gain.outcome for gain in tuning.proof)
    return [
        f"All choices together, measured again: {count[Outcome.WON]} of {len(tuning.proof)} cells faster, "
        f"{count[Outcome.LOST]} slower, {mean_gain(tuning.proof):.2f}x on average.",
        *(f"  {gain}" for gain in tuning.proof if gain.outcome is Outcome.WON),
        *remarks,
    ]


def notes(tuning: Tuning) -> dict[tuple[str, str], list[str]]:
    """For each value of the profile the gains for which it was chosen."""
    found: dict[tuple[str, str], list[str]] = {}
    for choice in tuning.choices:
        for section, values in choice.values.items():
            for name, value in values.items():
                lines = found.setdefault((section, name), [])
                lines += [f"{value}: {gain}" for gain in choice.wins()]
    return found
