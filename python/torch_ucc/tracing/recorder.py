"""The flight recorder of this process."""

from __future__ import annotations

import atexit
import json
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from torch_ucc import _extension
from torch_ucc.config import Config
from torch_ucc.tracing import tracer


def dump(path: Path | str | None = None) -> dict[str, Any]:
    """What this process recorded of its last 8192 operations, of all groups; also written to `path` as JSON.

    May be called at any time, from any thread, whatever state the groups are in.
    """
    text = _extension.core().flight_recorder()
    if path is not None:
        Path(path).write_text(text)
    data: dict[str, Any] = json.loads(text)
    return data


def stats(group: dist.ProcessGroup | None = None) -> dict[str, Any]:
    """What this rank did in a group so far: calls, bytes, errors and seconds waited, by operation and in sum.

    `waited_s` is the time that threads spent in wait(), or in calls that are not asynchronous, before the
    operation was over. Raises ValueError if the group has no ucc backend.
    """
    backend = _backend(group)
    recorded = json.loads(_extension.core().flight_recorder(since=1 << 63))["groups"]
    errors: dict[str, int] = next(
        (each["errors"] for each in recorded if each["number"] == backend.number), {}
    )
    operations = {
        op: {"calls": calls, "bytes": size, "errors": errors.get(op, 0), "waited_s": waited / 1e9}
        for op, (calls, size, waited) in backend.counters().items()
    }
    keys = ("calls", "bytes", "errors", "waited_s")
    return {
        **{key: sum(each[key] for each in operations.values()) for key in keys},
        "operations": operations,
    }


def _backend(group: dist.ProcessGroup | None) -> Any:
    group = group or dist.distributed_c10d._get_default_group()
    for device in group._device_types:
        backend = group._get_backend(torch.device(device))
        if isinstance(backend, _extension.core().UccBackend):
            return backend
    raise ValueError(f"group {group.group_name!r} has no ucc backend")


def arm(config: Config) -> None:
    """Has the recorder do what the settings ask for. At the first group of the process."""
    core = _extension.core()
    if config.trace_dump:
        core.dump_on_failure(config.trace_dump)
    if config.trace_signal:
        core.dump_at_signal()
    if config.trace_sites:
        core.record_sites(True)
    if config.trace:
        trace = tracer.Tracer(Path(config.trace))
        trace.start()
        atexit.register(trace.stop)
