"""What this process tells `torch-ucc status` of itself, and how it can be asked for its Python stacks."""

from __future__ import annotations

import contextlib
import faulthandler
import fcntl
import json
import os
import signal
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

MEMORY = "torch-ucc-stacks"

_open: list[Any] = []
"""What must stay open for the life of the process."""


def announce(compiled: Any) -> None:
    """At the first group of the process. Must not fail: the group does not need it."""
    with contextlib.suppress(Exception):
        compiled.tell("process", json.dumps(_facts()))
        compiled.tell("stacks", json.dumps(_stacks()))


def _facts() -> dict[str, Any]:
    import torch

    return {
        "program": Path(sys.argv[0] or "python").name,
        "python": sys.version.split()[0],
        "torch": torch.__version__,
        "torch_ucc": version("torch-ucc"),
        "boot_id": _boot_id(),
        "wall_minus_steady_ns": time.time_ns() - time.monotonic_ns(),
    }


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _stacks() -> tuple[int, int] | None:
    """How to ask for the Python stack of the main thread: a signal, and the descriptor of the memory that the
    stack goes to. C++ reads it, too (cpp/liveness/stack_offer.h).

    The handler is C code that reads the frames of the thread that it interrupts. That is the main thread,
    unless it blocks the signal. Other threads may run meanwhile, so their frames cannot be read safely. None
    if the program uses all signals that would do.
    """
    used = _used_signals()
    free = [each for each in range(signal.SIGRTMAX - 1, signal.SIGRTMIN, -1) if not used >> (each - 1) & 1]
    if not free:
        return None
    memory = os.memfd_create(MEMORY)
    try:
        fcntl.fcntl(memory, fcntl.F_SETFL, os.O_APPEND)  # so that a reader may empty it
        faulthandler.register(free[0], file=memory, all_threads=False)
    except (RuntimeError, ValueError, OSError):
        os.close(memory)
        return None
    _open.append(memory)
    return int(free[0]), memory


def _used_signals() -> int:
    """A bit for each signal that is handled, ignored or blocked, also by C code."""
    used = 0
    for line in Path("/proc/self/status").read_text().splitlines():
        name, _, mask = line.partition(":")
        if name in ("SigCgt", "SigIgn", "SigBlk"):
            used |= int(mask, 16)
    return used
