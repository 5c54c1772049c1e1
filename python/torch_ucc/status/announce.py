"""What this process tells `torch-ucc status` of itself, and how it can be asked for its Python stacks."""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

_open: list[Any] = []
"""What must stay open for the life of the process."""


def announce(compiled: Any) -> None:
    """At the first group of the process."""
    import torch

    compiled.tell(
        "process",
        json.dumps(
            {
                "program": Path(sys.argv[0] or "python").name,
                "python": sys.version.split()[0],
                "torch": torch.__version__,
                "torch_ucc": version("torch-ucc"),
                "boot_id": _boot_id(),
                "wall_minus_steady_ns": time.time_ns() - time.monotonic_ns(),
                "stacks": _stacks(),
            }
        ),
    )


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _stacks() -> dict[str, int] | None:
    """How to ask for the stacks of the Python threads: a signal, and the descriptor of the memory they go to.

    The handler is C code that reads the frames without the GIL. None if the program uses all signals that
    would do.
    """
    for number in range(signal.SIGRTMAX - 1, signal.SIGRTMIN, -1):
        if signal.getsignal(number) == signal.SIG_DFL:
            break
    else:
        return None
    memory = os.memfd_create("torch-ucc-stacks")
    try:
        faulthandler.register(number, file=memory, all_threads=True)
    except (RuntimeError, ValueError, OSError):
        os.close(memory)
        return None
    _open.append(memory)
    return {"signal": int(number), "descriptor": memory}
