"""How many threads can run at once: what decides how ranks wait and how they copy."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

QUOTA_FILES = (
    ("/sys/fs/cgroup/cpu.max",),
    ("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "/sys/fs/cgroup/cpu/cpu.cfs_period_us"),
)
"""Of control groups, in their second version and in their first."""


def quota(text: Callable[[str], str]) -> float | None:
    """How many CPUs' time the control group may use; None for all. `text` reads a file, or gives nothing."""
    for files in QUOTA_FILES:
        words = [word for each in files for word in text(each).split()]
        if words:
            limited = len(words) == 2 and all(word.isdigit() for word in words)  # else "max", or "-1"
            return round(int(words[0]) / int(words[1]), 2) if limited else None
    return None


def usable(cpus: int, limit: float | None) -> int:
    """At least one."""
    return max(1, cpus if limit is None else min(cpus, int(limit)))


def usable_here() -> int:
    return usable(len(os.sched_getaffinity(0)), quota(_text))


def of_launcher() -> set[int]:
    """The CPUs of the process that started this one, which may keep each of its ranks to some of them."""
    mine = os.sched_getaffinity(0)
    try:
        return mine | os.sched_getaffinity(os.getppid())
    except OSError:
        return mine


def usable_to_launcher() -> int:
    return usable(len(of_launcher()), quota(_text))


def _text(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""
