"""Processes that compute on the cores of the ranks, while these are measured.

If every core is busy, a rank that waits without giving up its core delays the rank that it waits for. So
these processes show how well a library waits.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator

# The neighbour ends by itself if the process that started it has ended.
COMPUTES = """
import os
parent = os.getppid()
while os.getppid() == parent:
    for _ in range(1000000):
        pass
"""


@contextlib.contextmanager
def neighbour() -> Iterator[subprocess.Popen[bytes]]:
    """A process that computes for as long as the context lasts, on the cores that the caller may use."""
    process = subprocess.Popen([sys.executable, "-c", COMPUTES])
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@contextlib.contextmanager
def neighbours(count: int) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for _ in range(count):
            stack.enter_context(neighbour())
        yield
