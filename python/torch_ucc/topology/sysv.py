"""System V's shared memory: a container may refuse it, or have no segment left."""

from __future__ import annotations

import ctypes

_PRIVATE = 0
_CREATE = 0o1000
_OWN = 0o600
_REMOVE = 0
_SIZE = 16 << 20  # more than a rank has, but none of it is touched


def works() -> bool:
    """Tried, and given back."""
    libc = ctypes.CDLL(None)
    segment = libc.shmget(_PRIVATE, ctypes.c_size_t(_SIZE), _CREATE | _OWN)
    return bool(segment >= 0 and libc.shmctl(segment, _REMOVE, None) == 0)
