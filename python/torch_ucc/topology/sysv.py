"""System V's shared memory, which a container may refuse."""

from __future__ import annotations

import ctypes
import errno
import functools
import mmap
from pathlib import Path

_PRIVATE = 0
_CREATE = 0o1000
_OWN = 0o600
_REMOVE = 0
_SIZE = 16 << 20  # more than a rank has, but none of it is touched
_LIMITS = Path("/proc/sys/kernel")


@functools.cache
def works() -> bool:
    """Tried, and given back. The same for all processes that share it: where it has only run out it works."""
    libc = ctypes.CDLL(None, use_errno=True)
    segment = libc.shmget(_PRIVATE, ctypes.c_size_t(_SIZE), _CREATE | _OWN)
    if segment >= 0:
        return bool(libc.shmctl(segment, _REMOVE, None) == 0)
    return ctypes.get_errno() in (errno.ENOSPC, errno.ENOMEM) and _is_allowed()


def _is_allowed() -> bool:
    try:
        segments, pages = (int((_LIMITS / name).read_text()) for name in ("shmmni", "shmall"))
    except (OSError, ValueError):
        return False
    return segments > 0 and pages * mmap.PAGESIZE >= _SIZE
