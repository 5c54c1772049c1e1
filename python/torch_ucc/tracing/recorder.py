"""The flight recorder of this process."""

from __future__ import annotations

import atexit
import json
from pathlib import Path
from typing import Any

from torch_ucc._native import extension
from torch_ucc.config import Config


def dump(path: Path | str | None = None) -> dict[str, Any]:
    """What this process recorded of its last 8192 operations, of all groups; also written to `path` as JSON.

    May be called at any time, from any thread, whatever state the groups are in.
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
