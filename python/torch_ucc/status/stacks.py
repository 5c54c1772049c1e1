"""The Python stack of a rank of this host, from outside."""

from __future__ import annotations

import os
import time
from pathlib import Path

from torch_ucc.status.announce import MEMORY
from torch_ucc.status.segment import Process

LIMIT_S = 1.0


def python_stack(process: Process) -> str:
    """Of its main thread, the innermost frame first; or why there is none."""
    asked = process.facts.get("process", {}).get("stacks")
    if asked is None:
        return "the process does not offer its stacks"
    try:
        caught = next(
            int(line.split()[1], 16)
            for line in Path(f"/proc/{process.pid}/status").read_text().splitlines()
            if line.startswith("SigCgt:")
        )
        if not caught >> (asked["signal"] - 1) & 1:
            return "the process no longer offers its stacks"
        path = Path(f"/proc/{process.pid}/fd/{asked['descriptor']}")
        if not str(path.readlink()).startswith(f"/memfd:{MEMORY}"):
            return "the process no longer offers its stacks"
        with path.open("r+b") as file:
            file.truncate()
            os.kill(process.pid, asked["signal"])
            deadline, size = time.monotonic() + LIMIT_S, 0
            while time.monotonic() < deadline:
                time.sleep(0.05)
                now = path.stat().st_size
                if now and now == size:  # it has stopped growing
                    return file.read().decode(errors="replace").strip()
                size = now
    except OSError as error:
        return f"the process cannot be asked for its stacks: {error.strerror}"
    return "no answer: the process is stopped, or the kernel has not let it run"
