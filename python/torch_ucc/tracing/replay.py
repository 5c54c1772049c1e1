"""Runs the operations of a recorded job again, on the hosts and with the settings of this command.

Start it with as many ranks as the recorded job had:

    torchrun --nproc-per-node=4 -m torch_ucc replay run.json
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from torch_ucc._style import table
from torch_ucc._torch import all_gather_single, reduce_scatter_single
from torch_ucc.tracing import records
from torch_ucc.tracing.calls import Step, shared, steps
from torch_ucc.tracing.records import Dump, Record
from torch_ucc.tracing.text import duration, size

TIMEOUT = timedelta(minutes=2)


@dataclass
class Use:
    """Operations that are alike: how long they took then, and now."""

    op: str
    dtype: str
    bytes: int
    calls: int = 0
    then_ns: int = 0
    now_ns: list[int] = field(default_factory=list)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="torch-ucc replay", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("path", type=Path, help=records.PATH_HELP)
    parser.add_argument(
        "--backend",
        default="ucc",
        help="the backend that runs the operations, for example gloo for a comparison; default: %(default)s",
    )
    parser.add_argument(
        "--times",
        type=int,
        default=3,
        help="how many times to run all operations; the report shows the medians; default: %(default)s",
    )
    parser.add_argument(
        "--gaps",
        action="store_true",
        help="keep the core busy between operations, for as long as the recorded program did other work",
    )
    asked = parser.parse_args(arguments)
    try:
        dumps = records.load(asked.path)
    except ValueError as error:
        print(f"torch-ucc replay: {error}", file=sys.stderr)
        return 2
    dist.init_process_group(asked.backend, timeout=TIMEOUT)
    try:
        if dist.get_world_size() != len(dumps):
            if dist.get_rank() == 0:
                print(
                    f"torch-ucc replay: {asked.path} was recorded with {len(dumps)} ranks, but this replay "
                    f"has {dist.get_world_size()}. Start it with {len(dumps)} ranks.",
                    file=sys.stderr,
                )
            return 2
        used, total = replay(dumps, asked.times, asked.gaps)
        if dist.get_rank() == 0:
            print(report(used, total, dumps[0]))
    finally:
        dist.destroy_process_group()
    return 0


def replay(dumps: Sequence[Dump], times: int, gaps: bool) -> tuple[list[Use], int]:
    """Calls what the dump of this rank says. Returns what it used, and the median of its time as a whole."""
    mine = dumps[dist.get_rank()]
    groups = _groups(dumps)
    names = {number: group.name for number, group in mine.groups.items()}
    kept = shared(dumps)[mine.rank]
    planned = [each for each in steps(mine, kept) if names.get(each.record.group) in groups]
    uses: dict[tuple[str, str, int], Use] = {}
    for step in planned:
        record = step.record
        if not step.waits:
            use = uses.setdefault(
                (record.op, record.dtype, record.bytes), Use(record.op, record.dtype, record.bytes)
            )
            use.calls += 1
            use.then_ns += record.ended_ns - record.issued_ns if record.ended_ns else 0
    buffers = _Buffers()
    whole = []
    for _ in range(times):
        dist.barrier()
        began = time.perf_counter_ns()
        took = _once(planned, names, groups, buffers, gaps)
        whole.append(time.perf_counter_ns() - began)
        for key, ns in took.items():
            uses[key].now_ns.append(ns)
    used = sorted(uses.values(), key=lambda use: -use.then_ns)
    return used, sorted(whole)[len(whole) // 2]


def report(used: Sequence[Use], total_ns: int, dump: Dump) -> str:
    """What rank 0 measured."""
    rows = []
    for use in used:
        now = sorted(use.now_ns)[len(use.now_ns) // 2] if use.now_ns else 0
        rows.append(
            (
                use.op,
                use.dtype,
                size(use.bytes),
                str(use.calls),
                duration(use.then_ns / use.calls),
                duration(now / use.calls),
                f"{use.then_ns / now:.2f}x" if now and use.then_ns else "",
            )
        )
    calls = [each for each in dump.records if each.route != "none"]
    span = max(each.ended_ns for each in calls) - calls[0].issued_ns if calls else 0
    head = (
        f"Rank {dump.rank} called {len(calls)} operations. They took {duration(span)} in the recorded job, "
        f"including the time between operations, and {duration(total_ns)} in the replay."
    )
    return (
        f"{head}\n\n{table(('operation', 'dtype', 'size', 'calls', 'recorded', 'replayed', 'speedup'), rows)}"
    )


def _groups(dumps: Sequence[Dump]) -> dict[str, dist.ProcessGroup]:
    """A group for each that was recorded, by name. All ranks make all of them, in one order."""
    members: dict[str, tuple[int, ...]] = {}
    for dump in dumps:
        for group in dump.groups.values():
            members.setdefault(group.name, group.ranks)
    made = {}
    for name, ranks in members.items():
        if max(ranks) < dist.get_world_size():
            made[name] = dist.new_group(list(ranks))
    return {name: group for name, group in made.items() if dist.get_rank() in members[name]}


def _once(
    planned: Sequence[Step],
    names: dict[int, str],
    groups: dict[str, dist.ProcessGroup],
    buffers: _Buffers,
    gaps: bool,
) -> dict[tuple[str, str, int], int]:
    """Nanoseconds from the call to the end of the wait, by kind of operation."""
    open_: dict[int, tuple[Any, int]] = {}
    took: dict[tuple[str, str, int], int] = defaultdict(int)
    for step in planned:
        record = step.record
        if step.waits:
            work, began = open_.pop(record.id)
        else:
            if gaps:
                _compute(step.gap_ns)
            began = time.perf_counter_ns()
            work = CALLS[record.op](record, groups[names[record.group]], buffers)
        if not (step.waits or step.blocks):
            open_[record.id] = work, began
            continue
        if work is not None:
            work.wait()
        took[record.op, record.dtype, record.bytes] += time.perf_counter_ns() - began
    return took


def _compute(ns: int) -> None:
    until = time.perf_counter_ns() + ns
    while time.perf_counter_ns() < until:
        pass


class _Buffers:
    """Tensors for the operations. Operations that are alike use the same ones, as in an iteration."""

    def __init__(self) -> None:
        self._made: dict[tuple[str, int, int], torch.Tensor] = {}

    def of(self, record: Record, elements: int, which: int) -> torch.Tensor:
        """`which`: 0 for what is sent, 1 for what is received."""
        key = record.dtype, elements, which
        if key not in self._made:
            self._made[key] = torch.zeros(elements, dtype=getattr(torch, record.dtype))
        return self._made[key]

    def sent(self, record: Record) -> torch.Tensor:
        return self.of(record, record.input_elements, 0)

    def received(self, record: Record) -> torch.Tensor:
        return self.of(record, record.output_elements, 1)


def _parts(tensor: torch.Tensor, group: dist.ProcessGroup) -> list[torch.Tensor]:
    return [each.clone() for each in tensor.view(group.size(), -1)] if tensor.numel() else []


def _even(record: Record, elements: int, group: dist.ProcessGroup) -> int:
    """Sizes of parts are not recorded: all are taken to be as long."""
    return elements - elements % group.size()


def _root(record: Record, group: dist.ProcessGroup) -> int:
    return dist.get_global_rank(group, max(record.root, 0))


def _peer(record: Record, group: dist.ProcessGroup) -> int:
    return dist.get_global_rank(group, record.peer)


def _op(record: Record) -> Any:
    return (
        getattr(dist.ReduceOp, record.reduce_op, dist.ReduceOp.SUM) if record.reduce_op else dist.ReduceOp.SUM
    )


def _all_reduce(r: Record, g: dist.ProcessGroup, b: _Buffers) -> Any:
    return dist.all_reduce(b.received(r), _op(r), group=g, async_op=True)


def _broadcast(r: Record, g: dist.ProcessGroup, b: _Buffers) -> Any:
    return dist.broadcast(b.received(r), _root(r, g), group=g, async_op=True)


def _reduce(r: Record, g: dist.ProcessGroup, b: _Buffers) -> Any:
    return dist.reduce(b.sent(r), _root(r, g), _op(r), group=g, async_op=True)


def _all_gather_single(r: Record, g: dist.ProcessGroup, b: _Buffers) -> Any:
    sent = b.of(r, r.output_elements // g.size(), 0)
    return all_gather_single(b.of(r, sent.numel() * g.size(), 1), sent, group=g, async_op=True)


def _all_gather(r: Record, g: dist.ProcessGroup, b: _Buffers) -> Any:
    sent = b.of(r, r.output_elements // g.size(), 0)
    return dist.all_gather([torch.empty_like(sent) for _ in range(g.size())], sent, group=g, async_op=True)


def _reduce_scatter_single(r: Record, g: dist.ProcessGroup, b: _Buffers) -> Any:
    received = b.of(r, r.input_elements // g.size(), 1)
    sent = b.of(r, received.numel() * g.size(), 0)
    return reduce_scatter_single(received, sent, _op(r), group=g, async_op=True)


def _reduce_scatter(r: Record, g: dist.ProcessGroup, b: _Buffers) -> Any:
    received = b.of(r, r.input_elements // g.size(), 1)
    return dist.reduce_scatter(
        received, [received.clone() for _ in range(g.size())], _op(r), group=g, async_op=True
    )


def _all_to_all_single(r: Record, g: dist.ProcessGroup, b: _Buffers) -> Any:
    elements = _even(r, min(r.input_elements, r.output_elements), g)
    return dist.all_to_all_single(b.of(r, elements, 1), b.of(r, elements, 0), group=g, async_op=True)


def _all_to_all(r: Record, g: dist.ProcessGroup, b: _Buffers) -> Any:
    elements = _even(r, min(r.input_elements, r.output_elements), g)
    sent, received = b.of(r, elements, 0), b.of(r, elements, 1)
    return dist.all_to_all(_parts(received, g), _parts(sent, g), group=g, async_op=True)


def _gather(r: Record, g: dist.ProcessGroup, b: _Buffers) -> Any:
    is_root = g.rank() == r.root
    sent = b.of(r, r.input_elements, 0)
    parts = [torch.empty_like(sent) for _ in range(g.size())] if is_root else None
    return dist.gather(sent, parts, _root(r, g), group=g, async_op=True)


def _scatter(r: Record, g: dist.ProcessGroup, b: _Buffers) -> Any:
    is_root = g.rank() == r.root
    received = b.of(r, r.output_elements, 1)
    parts = [received.clone() for _ in range(g.size())] if is_root else None
    return dist.scatter(received, parts, _root(r, g), group=g, async_op=True)


def _barrier(r: Record, g: dist.ProcessGroup, b: _Buffers) -> Any:
    return dist.barrier(group=g, async_op=True)


def _send(r: Record, g: dist.ProcessGroup, b: _Buffers) -> Any:
    return dist.isend(b.sent(r), _peer(r, g), group=g, tag=r.tag)


def _recv(r: Record, g: dist.ProcessGroup, b: _Buffers) -> Any:
    return dist.irecv(b.received(r), None if r.peer < 0 else _peer(r, g), group=g, tag=r.tag)


CALLS: dict[str, Callable[[Record, dist.ProcessGroup, _Buffers], Any]] = {
    "all_gather": _all_gather,
    "all_gather_coalesced": _all_gather,
    "all_gather_into_tensor": _all_gather_single,
    "all_gather_into_tensor_coalesced": _all_gather_single,
    "all_reduce": _all_reduce,
    "all_reduce_coalesced": _all_reduce,
    "all_to_all": _all_to_all,
    "all_to_all_single": _all_to_all_single,
    "barrier": _barrier,
    "broadcast": _broadcast,
    "gather": _gather,
    "gather_single": _gather,
    "monitored_barrier": _barrier,
    "recv": _recv,
    "recv_any_source": _recv,
    "reduce": _reduce,
    "reduce_scatter": _reduce_scatter,
    "reduce_scatter_tensor": _reduce_scatter_single,
    "reduce_scatter_tensor_coalesced": _reduce_scatter_single,
    "scatter": _scatter,
    "send": _send,
    "sparse_all_reduce": _all_reduce,
}
