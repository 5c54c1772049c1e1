"""The flight recorder of this process."""

from __future__ import annotations

import atexit
import json
from pathlib import Path
from typing import Any

from torch_ucc._native import extension
from torch_ucc.config import Config


def dump(path: Path | str | None = None) -> dict[str, Any]:
    """Return the records of the last 8192 operations of this process, of all groups.

    If `path` is given, also write them to this file as JSON. The call works at any time, from any thread,
    even if groups have failed or hang.
    """
    text = extension.compiled().flight_recorder()
    if path is not None:
        Path(path).write_text(text)
    data: dict[str, Any] = json.loads(text)
    return data


def arm(config: Config) -> None:
    """Has the recorder do what the settings ask for. At the first group of the process."""
    compiled = extension.compiled()
    if config.trace_dump:
        compiled.dump_on_failure(config.trace_dump)
    if config.trace_signal:
        compiled.dump_at_signal()
    if config.trace_sites:
        compiled.record_sites(True)
    if config.trace:
        from torch_ucc.tracing import tracer

        trace = tracer.Tracer(Path(config.trace))
        trace.start()
        atexit.register(trace.stop)
