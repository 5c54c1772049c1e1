"""Removes what a killed process left in /dev/shm.

UCX makes a named segment, maps it and takes the name away, all within a moment. A process that is killed
just then leaves it for ever. Whoever starts next takes it away, if it is provably nobody's: of this
user, far older than that, and mapped in no process that could have it. Where not all processes can be
seen, in a pid namespace of its own, it stays.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

PREFIX = "ucx_shm_posix_"
MIN_AGE = 60.0  # seconds, of which UCX needs microseconds
INITIAL_PID_NAMESPACE = "pid:[4026531836]"


def remove(shm: Path = Path("/dev/shm"), proc: Path = Path("/proc"), min_age: float = MIN_AGE) -> list[str]:
    """Returns the names of what it removed. Never raises: to leave something is no reason not to start."""
    try:
        left = dict(_candidates(shm, min_age))
        if not left or str((proc / "self/ns/pid").readlink()) != INITIAL_PID_NAMESPACE:
            return []
        processes = set(proc.glob("[0-9]*")) - {proc / "1"}  # init is no rank, and not everywhere to be seen
        used = {file for process in processes for file in _files_of(process)}
        removed = [name for name, file in left.items() if file not in used]
        for name in removed:
            (shm / name).unlink(missing_ok=True)
        return removed
    except OSError:  # something could not be looked at, and might have it
        return []


File = tuple[int, int]
"""Device and inode: paths differ between mount namespaces."""


def _candidates(shm: Path, min_age: float) -> Iterator[tuple[str, File]]:
    """Old segments of this user."""
    with os.scandir(shm) as entries:
        for entry in entries:
            if entry.name.startswith(PREFIX):
                about = entry.stat(follow_symlinks=False)
                if about.st_uid == os.getuid() and time.time() - about.st_mtime >= min_age:
                    yield entry.name, (about.st_dev, about.st_ino)


def _files_of(process: Path) -> Iterator[File]:
    """What it has mapped, if it is of this user: nobody else could have opened what is ours alone."""
    try:
        if process.stat().st_uid != os.getuid():
            return
        for line in (process / "maps").read_text(errors="replace").splitlines():
            device, inode = line.split(maxsplit=5)[3:5]
            major, minor = (int(part, 16) for part in device.split(":"))
            yield os.makedev(major, minor), int(inode)
    except (FileNotFoundError, ProcessLookupError):  # it ended meanwhile
        return
