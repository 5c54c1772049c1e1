"""Counts operations of the ranks of one host as they are read, and publishes the counts."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from torch_ucc.tracing.clocks import TOGETHER
from torch_ucc.tracing.records import Group, Record

BOUNDS_S = (1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0)
SIZES = ((4 << 10, "4K"), (64 << 10, "64K"), (1 << 20, "1M"), (16 << 20, "16M"))
"""An operation counts to the first size that it does not exceed; a larger one to "more"."""
_KEPT = 4096
"""Collectives that not all ranks of the host were seen in."""

SECONDS, BYTES = "torch_ucc_operation_seconds", "torch_ucc_operation_bytes"
FAILURES, KEPT_WAITING = "torch_ucc_operation_failures", "torch_ucc_kept_waiting_seconds"
HELP = {
    SECONDS: "Time from the call of an operation to its end.",
    BYTES: "Bytes of its tensors, of the larger of input and output.",
    FAILURES: "Operations that failed.",
    KEPT_WAITING: "How long the other ranks of the host waited for this one, in sum over them.",
}

Key = tuple[int, str, str, str]
"""Rank, group, operation and class of size."""
Labels = dict[str, str]


@dataclass
class Times:
    """Of operations with the same labels."""

    buckets: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS_S) + 1))
    seconds: float = 0.0
    bytes: int = 0
    failed: int = 0


class Meter:
    """Counts what see() is given. A derived class publishes it."""

    def __init__(self) -> None:
        self._here: dict[str, set[int]] = defaultdict(set)
        self._times: dict[Key, Times] = defaultdict(Times)
        self._came: dict[tuple[str, str, int], dict[int, tuple[int, int]]] = {}
        """When each rank called it, and began to wait for it."""
        self._kept_waiting: dict[int, float] = {}

    def joins(self, world: str, rank: int) -> None:
        """From now on operations of this rank will be seen."""
        self._here[world].add(rank)
        self._kept_waiting.setdefault(rank, 0.0)

    def see(self, world: str, rank: int, groups: Mapping[int, Group], records: Iterable[Record]) -> None:
        """Operations of a rank that have ended, each once. Those of other groups than these do not count."""
        for record in records:
            group = groups.get(record.group)
            if group is None or record.route == "none" or not record.over:
                continue
            key = rank, group.name, record.op, _size_class(record.bytes)
            times = self._times[key]
            took = (record.ended_ns - record.issued_ns) / 1e9
            times.buckets[bisect_left(BOUNDS_S, took)] += 1
            times.seconds += took
            times.bytes += record.bytes
            times.failed += record.state == "failed"
            self._took(key, took)
            if record.op in TOGETHER:
                self._arrived(world, rank, group, record)

    def publish(self) -> None:
        """Is called every few seconds."""

    def close(self) -> None:
        """Publishes the last counts."""
        self.publish()

    def _took(self, key: Key, seconds: float) -> None:
        """One operation."""

    def _arrived(self, world: str, rank: int, group: Group, record: Record) -> None:
        key = world, group.name, record.seq
        came = self._came.setdefault(key, {})
        came[rank] = record.issued_ns, record.awaited_ns
        if len(came) == len(self._here[world].intersection(group.ranks)):
            del self._came[key]
            last = max(came, key=lambda each: came[each][0])
            waits = (came[last][0] - waits for _, waits in came.values() if waits)
            self._kept_waiting[last] += sum(max(0, ns) for ns in waits) / 1e9
        while len(self._came) > _KEPT:
            del self._came[next(iter(self._came))]

    def times(self) -> list[tuple[Labels, Times]]:
        return [(labels_of(key), self._times[key]) for key in sorted(self._times)]

    def kept_waiting(self) -> list[tuple[Labels, float]]:
        return [({"rank": str(rank)}, self._kept_waiting[rank]) for rank in sorted(self._kept_waiting)]


class PrometheusFile(Meter):
    """Publishes in a file in Prometheus' text format."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path

    def publish(self) -> None:
        """A reader of the file never sees half of it."""
        partial = self._path.with_name(self._path.name + ".partial")
        partial.write_text(self.text())
        partial.replace(self._path)

    def text(self) -> str:
        times = self.times()
        lines = [*_head(SECONDS, "histogram")]
        for labels, each in times:
            lines += _histogram(SECONDS, _text(labels), each)
        lines += _counter(BYTES, ((labels, str(each.bytes)) for labels, each in times))
        lines += _counter(FAILURES, ((labels, str(each.failed)) for labels, each in times))
        lines += _counter(KEPT_WAITING, ((labels, f"{each:.6f}") for labels, each in self.kept_waiting()))
        return "\n".join(lines) + "\n"


def labels_of(key: Key) -> Labels:
    rank, group, op, size = key
    return {"rank": str(rank), "group": group, "op": op, "size": size}


def _size_class(count: int) -> str:
    return next((name for limit, name in SIZES if count <= limit), "more")


def _head(name: str, kind: str) -> tuple[str, str]:
    full = name if kind == "histogram" else f"{name}_total"
    return f"# HELP {full} {HELP[name]}", f"# TYPE {full} {kind}"


def _counter(name: str, values: Iterable[tuple[Labels, str]]) -> Iterator[str]:
    yield from _head(name, "counter")
    for labels, value in values:
        yield f"{name}_total{{{_text(labels)}}} {value}"


def _histogram(name: str, labels: str, times: Times) -> list[str]:
    lines, below = [], 0
    for bound, count in zip((*BOUNDS_S, None), times.buckets, strict=True):
        below += count
        edge = "+Inf" if bound is None else f"{bound:g}"
        lines.append(f'{name}_bucket{{{labels},le="{edge}"}} {below}')
    return [*lines, f"{name}_sum{{{labels}}} {times.seconds:.9f}", f"{name}_count{{{labels}}} {below}"]


def _text(labels: Labels) -> str:
    return ",".join(f'{name}="{value.translate(_ESCAPES)}"' for name, value in labels.items())


_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})
