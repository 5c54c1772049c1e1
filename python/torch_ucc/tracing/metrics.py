"""What the groups of this process did so far, in numbers: for programs, and for Prometheus."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist

from torch_ucc._native import extension

CONTENT_TYPE = "text/plain; version=0.0.4"
"""The Content-Type of an HTTP answer with the text of metrics()."""


def stats(group: dist.ProcessGroup | None = None) -> dict[str, Any]:
    """Return counts of what this rank did in a group: calls, bytes, errors and seconds waited.

    - The counts at the top are sums over all operations.
    - `operations`: the counts of each operation.
    - `paths`: the counts of each path, without errors: `memory` (shared by the ranks of one host), `levels`
      (shared memory on each host and UCC between hosts), `ucc`, `native` (UCC in the memory of a device),
      `messages`, `store` or `none`.
    - `waited_s`: the seconds that threads spent in wait(), or in calls that are not asynchronous.
    - `in_flight`: the number of operations that have not ended, and `sleeps`: how often a thread slept
      meanwhile. Both count all groups that share connections with this group.

    Raises ValueError if the group has no ucc backend.
    """
    group = group or dist.distributed_c10d._get_default_group()
    backend = extension.backend_of(group)
    if backend is None:
        raise ValueError(f"group {group.group_name!r} has no ucc backend")
    counted = _counted(backend)
    errors = _errors().get(backend.number, {})
    operations = {
        op: {**_sum(each for each in counted if each.op == op), "errors": errors.get(op, 0)}
        for op in sorted({each.op for each in counted} | errors.keys())
    }
    paths = sorted({each.path for each in counted})
    _, in_flight, sleeps = backend.engine()
    return {
        **_sum(counted),
        "errors": sum(errors.values()),
        "in_flight": in_flight,
        "sleeps": sleeps,
        "operations": operations,
        "paths": {path: _sum(each for each in counted if each.path == path) for path in paths},
    }


def metrics() -> str:
    """Return the counts of all ucc groups of this process in the text format of Prometheus.

    Groups that share connections have a common count of sleeps and of operations in flight, with the label
    `engine`.
    """
    rank = str(dist.get_rank()) if dist.is_initialized() else ""
    errors = _errors()
    rows: dict[str, list[tuple[dict[str, str], float]]] = {name: [] for name in _HELP}
    engines: dict[int, str] = {}
    for group in list(dist.distributed_c10d._world.pg_map):
        if (backend := extension.backend_of(group)) is None:
            continue
        whose = {"rank": rank, "group": group.group_name}
        for each in _counted(backend):
            labels = {**whose, "op": each.op, "path": each.path}
            rows["calls_total"].append((labels, each.calls))
            rows["bytes_total"].append((labels, each.bytes))
            rows["waited_seconds_total"].append((labels, each.waited_ns / 1e9))
        for op, count in errors.get(backend.number, {}).items():
            rows["errors_total"].append(({**whose, "op": op}, count))
        engine, in_flight, sleeps = backend.engine()
        if engine not in engines:
            engines[engine] = str(len(engines))
            labels = {"rank": rank, "engine": engines[engine]}
            rows["in_flight"].append((labels, in_flight))
            rows["sleeps_total"].append((labels, sleeps))
    return "".join(_lines(name, values) for name, values in rows.items())


@dataclass(frozen=True)
class _Counted:
    op: str
    path: str
    calls: int
    bytes: int
    waited_ns: int


_HELP = {
    "calls_total": "Operations that were called.",
    "bytes_total": "Bytes of their tensors, of the larger of input and output.",
    "waited_seconds_total": "Seconds that threads waited for them.",
    "errors_total": "Operations that failed.",
    "in_flight": "Operations that are not over.",
    "sleeps_total": "How often a thread slept while operations were not over.",
}


def _counted(backend: Any) -> list[_Counted]:
    return [_Counted(*row) for row in backend.counters()]


def _sum(counted: Iterable[_Counted]) -> dict[str, Any]:
    rows = list(counted)
    return {
        "calls": sum(each.calls for each in rows),
        "bytes": sum(each.bytes for each in rows),
        "waited_s": sum(each.waited_ns for each in rows) / 1e9,
    }


def _errors() -> dict[int, dict[str, int]]:
    """By number of the group and operation."""
    groups = json.loads(extension.compiled().flight_recorder(since=1 << 63))["groups"]
    return {each["number"]: each["errors"] for each in groups}


def _lines(name: str, values: list[tuple[dict[str, str], float]]) -> str:
    kind = "counter" if name.endswith("_total") else "gauge"
    head = f"# HELP torch_ucc_{name} {_HELP[name]}\n# TYPE torch_ucc_{name} {kind}\n"
    return head + "".join(f"torch_ucc_{name}{_labels(labels)} {value}\n" for labels, value in values)


def _labels(labels: Mapping[str, str]) -> str:
    return "{" + ",".join(f'{name}="{value.translate(_ESCAPES)}"' for name, value in labels.items()) + "}"


_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})
