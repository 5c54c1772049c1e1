"""What processes hold, and what they leave in the system."""

from __future__ import annotations

import contextlib
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

KEPT = 18
"""Descriptors that a rank may keep for each generation that failed: its transports are left behind with it,
since a peer that is not known to be dead may still write there."""

SLACK = 8
"""What may come and go."""


@dataclass(frozen=True)
class Held:
    """By a process after a generation."""

    failures: int  # generations of its life that ended in a fault
    descriptors: int
    threads: int


def held(failures: int) -> Held:
    me = Path("/proc/self")
    return Held(failures, len(list((me / "fd").iterdir())), len(list((me / "task").iterdir())))


def grown(samples: list[Held]) -> str | None:
    """What is wrong, if anything, with what one process held after each generation of its life."""
    first, last = samples[0], samples[-1]
    allowed = KEPT * (last.failures - first.failures) + SLACK
    if last.descriptors - first.descriptors <= allowed and last.threads - first.threads <= SLACK:
        return None
    return (
        f"{first.descriptors} descriptors and {first.threads} threads became {last.descriptors} and "
        f"{last.threads} in {len(samples)} generations, {last.failures - first.failures} of which failed"
    )


def shared_memory() -> set[str]:
    return {each.name for each in Path("/dev/shm").iterdir()}


def abandoned(names: Collection[str]) -> list[str]:
    """Those of these entries of /dev/shm that still exist and that no process has mapped."""
    missing = {name for name in names if Path("/dev/shm", name).exists()}
    for process in Path("/proc").glob("[0-9]*") if missing else ():
        with contextlib.suppress(OSError):  # ended, or not ours to look at
            used = (process / "maps").read_text()
            missing = {name for name in missing if f"/dev/shm/{name}" not in used}
    return sorted(missing)


def segments(pids: Collection[int]) -> list[str]:
    """System V segments that one of these processes created."""
    lines = Path("/proc/sysvipc/shm").read_text().splitlines()
    creator = lines[0].split().index("cpid")
    return [f"System V {line.split()[1]}" for line in lines[1:] if int(line.split()[creator]) in pids]
