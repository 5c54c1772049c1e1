"""Writes the result of a tuning in words, for the terminal and for the profile."""

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
        f"`torch-ucc tune` {made_by} wrote this profile on {date}, after {seconds:.0f} s of measuring.",
        "It applies only to jobs with the topology below.",
        f"To apply it, set {VARIABLE} to the path of this file.",
        "Variables in the environment have priority over this profile.",
        "A gain is the time with the default divided by the time with the value: the median, then the range.",
        "",
    ]


def summary(tuning: Tuning) -> list[str]:
    remarks = [f"{remark[0].upper()}{remark[1:]}." for remark in tuning.remarks]
    if not tuning.choices:
        return ["No measured setting is faster than the defaults on these hosts.", *remarks]
    count = Counter(gain.outcome for gain in tuning.proof)
    return [
        f"All choices were measured together against the defaults: of {len(tuning.proof)} cells, "
        f"{count[Outcome.WON]} became faster and {count[Outcome.LOST]} became slower, and the mean gain is "
        f"{mean_gain(tuning.proof):.2f}x. A cell is one operation at one size.",
        *(f"  {gain}" for gain in tuning.proof if gain.outcome is Outcome.WON),
        *remarks,
    ]


def notes(tuning: Tuning) -> dict[tuple[str, str], list[str]]:
    """Return, by section and option, the gains because of which each value was chosen."""
    found: dict[tuple[str, str], list[str]] = {}
    for choice in tuning.choices:
        for section, values in choice.values.items():
            for name, value in values.items():
                lines = found.setdefault((section, name), [])
                lines += [f"{value}: {gain}" for gain in choice.wins()]
    return found
