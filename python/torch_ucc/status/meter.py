"""Numbers for Prometheus, from the operations of the ranks of one host as they are read."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from torch_ucc.tracing.clocks import TOGETHER
from torch_ucc.tracing.records import Group, Record

BOUNDS_S = (1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0)
SIZES = ((4 << 10, "4K"), (64 << 10, "64K"), (1 << 20, "1M"), (16 << 20, "16M"))
"""An operation counts to the first size that it does not exceed; a larger one to "more"."""
_KEPT = 4096
"""Collectives that not all ranks of the host were seen in."""


@dataclass
class _Times:
    buckets: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS_S) + 1))
    seconds: float = 0.0
    bytes: int = 0
    failed: int = 0


class Meter:
    """Counts what see() is given. `ranks` are those of this host."""

    def __init__(self, ranks: Iterable[int]) -> None:
        self._ranks = frozenset(ranks)
        self._times: dict[tuple[int, str, str, str], _Times] = defaultdict(_Times)
        self._came: dict[tuple[str, int], dict[int, tuple[int, int]]] = {}
        """When each rank called it, and began to wait for it."""
        self._kept_waiting: dict[int, float] = defaultdict(float)

    def see(self, rank: int, groups: Mapping[int, Group], records: Iterable[Record]) -> None:
        """Operations of a rank that have ended, each once."""
        for record in records:
            group = groups.get(record.group)
            if group is None or record.route == "none" or not record.over:
                continue
            times = self._times[rank, group.name, record.op, _size_class(record.bytes)]
            took = (record.ended_ns - record.issued_ns) / 1e9
            times.buckets[bisect_left(BOUNDS_S, took)] += 1
            times.seconds += took
            times.bytes += record.bytes
            times.failed += record.state == "failed"
            if record.op in TOGETHER:
                self._arrived(rank, group, record)

    def _arrived(self, rank: int, group: Group, record: Record) -> None:
        came = self._came.setdefault((group.name, record.seq), {})
        came[rank] = record.issued_ns, record.awaited_ns
        if len(came) == len(self._ranks.intersection(group.ranks)):
            del self._came[group.name, record.seq]
            last = max(came, key=lambda each: came[each][0])
            waits = (came[last][0] - waits for _, waits in came.values() if waits)
            self._kept_waiting[last] += sum(max(0, ns) for ns in waits) / 1e9
        while len(self._came) > _KEPT:
            del self._came[next(iter(self._came))]

    def text(self) -> str:
        lines = []
        for name, kind, what in (
            ("operation_seconds", "histogram", "Time from the call of an operation to its end."),
            ("operation_bytes_total", "counter", "Bytes of its tensors, of the larger of input and output."),
            ("operation_failures_total", "counter", "Operations that failed."),
        ):
            lines += [f"# HELP torch_ucc_{name} {what}", f"# TYPE torch_ucc_{name} {kind}"]
            for (rank, group, op, size), times in sorted(self._times.items()):
                labels = f'rank="{rank}",group="{group.translate(_ESCAPES)}",op="{op}",size="{size}"'
                if name == "operation_bytes_total":
                    lines.append(f"torch_ucc_{name}{{{labels}}} {times.bytes}")
                elif name == "operation_failures_total":
                    lines.append(f"torch_ucc_{name}{{{labels}}} {times.failed}")
                else:
                    lines += _histogram(f"torch_ucc_{name}", labels, times)
        name = "torch_ucc_kept_waiting_seconds_total"
        lines.append(
            f"# HELP {name} How long the other ranks of the host waited for this one, in sum over them."
        )
        lines.append(f"# TYPE {name} counter")
        lines += [f'{name}{{rank="{rank}"}} {self._kept_waiting[rank]:.6f}' for rank in sorted(self._ranks)]
        return "\n".join(lines) + "\n"

    def write(self, path: Path) -> None:
        """A reader of the file never sees half of it."""
        partial = path.with_name(path.name + ".partial")
        partial.write_text(self.text())
        partial.replace(path)


def _size_class(count: int) -> str:
    return next((name for limit, name in SIZES if count <= limit), "more")


def _histogram(name: str, labels: str, times: _Times) -> list[str]:
    lines, below = [], 0
    for bound, count in zip((*BOUNDS_S, None), times.buckets, strict=True):
        below += count
        edge = "+Inf" if bound is None else f"{bound:g}"
        lines.append(f'{name}_bucket{{{labels},le="{edge}"}} {below}')
    return [*lines, f"{name}_sum{{{labels}}} {times.seconds:.9f}", f"{name}_count{{{labels}}} {below}"]


_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})
