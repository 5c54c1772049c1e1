"""A job on one screen, however many ranks it has.

On a terminal, tables have frames as wide as the terminal at most, and what is wrong is red.
"""

from __future__ import annotations

import shutil
import textwrap
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

from torch_ucc._style import bold, green, is_styled, red, table, yellow
from torch_ucc.status import stacks
from torch_ucc.status.findings import Finding, elsewhere
from torch_ucc.status.job import Job, Rank, shown
from torch_ucc.tracing.records import Record
from torch_ucc.tracing.text import duration, size

ROWS = 16
"""Rows of a table; the rest is counted."""
LAST = 10
"""Operations of one rank that are shown."""


_NARROWEST = 12
"""Columns of the terminal that a cell keeps if its table is too wide."""


@dataclass(frozen=True)
class Table:
    head: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    styles: Mapping[int, Callable[[str], str]] = field(default_factory=dict)
    """Of rows that do not look like the others."""

    def text(self) -> str:
        rows = self.rows[:ROWS]
        drawn = self._framed(rows) if is_styled() else [table(self.head, rows)]
        if len(self.rows) > ROWS:
            drawn.append(f"... and {len(self.rows) - ROWS} more rows")
        return "\n".join(drawn)

    def _framed(self, rows: Sequence[tuple[str, ...]]) -> list[str]:
        widths = [max(map(len, column)) for column in zip(self.head, *rows, strict=True)]
        room = _width() - 3 * len(widths) - 1
        while sum(widths) > room and max(widths) > _NARROWEST:
            widths[widths.index(max(widths))] -= 1
        bar = "+" + "+".join("-" * (width + 2) for width in widths) + "+"
        lines = [
            "| " + " | ".join(style(_cut(c, w)) for c, w in zip(row, widths, strict=True)) + " |"
            for row, style in [(self.head, bold), *((row, self._style(i)) for i, row in enumerate(rows))]
        ]
        return [bar, lines[0], bar, *lines[1:], bar]

    def _style(self, row: int) -> Callable[[str], str]:
        return self.styles.get(row, str)


def _cut(cell: str, width: int) -> str:
    return cell.ljust(width) if len(cell) <= width else cell[: width - 1] + "…"


def _width() -> int:
    return shutil.get_terminal_size().columns


def screen(job: Job, found: Sequence[Finding]) -> str:
    parts = [bold(_head(job)), _verdict(found), *(each.text() for each in tables(job, found))]
    return "\n\n".join(part for part in parts if part)


def tables(job: Job, found: Sequence[Finding] = ()) -> list[Table]:
    accused = {rank for each in found for rank in each.ranks}
    return [each for each in (_doing(job, accused), _groups(job)) if each.rows]


def page(job: Job, found: Sequence[Finding]) -> str:
    """The same as a page for a browser. It needs nothing else."""
    parts = [f"<h1>{escape(_head(job))}</h1>"]
    parts += [f'<p class="wrong">{escape(each.text)}</p>' for each in found[:ROWS]]
    if len(found) > ROWS:
        parts.append(f'<p class="wrong">and {len(found) - ROWS} more</p>')
    if not found:
        parts.append('<p class="well">Nothing is wrong that can be seen.</p>')
    for each in tables(job):
        head = "".join(f"<th>{escape(cell)}</th>" for cell in each.head)
        rows = "".join(
            "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in each.rows
        )
        parts.append(f'<div class="wide"><table><tr>{head}</tr>{rows}</table></div>')
    return _PAGE.replace("BODY", "\n".join(parts))


_PAGE = """<!DOCTYPE html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>torch-ucc status</title>
<style>
:root { color-scheme: light dark; font: 15px/1.5 system-ui, sans-serif; }
body { margin: 2em auto; max-width: 75em; padding: 0 1em; }
h1 { font-size: 1.2em; }
p { padding: .5em .8em; border-left: .3em solid; }
.wrong { border-color: #c62828; background: #c6282818; }
.well { border-color: #2e7d32; background: #2e7d3218; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; margin: 1.5em 0; }
th, td { text-align: left; padding: .3em .9em .3em 0; border-bottom: 1px solid #8884; white-space: nowrap; }
td:first-child { min-width: 6em; max-width: 24em; white-space: normal; overflow-wrap: anywhere; }
</style>
BODY
</html>
"""


def listing(jobs: Sequence[Job], found: Sequence[Sequence[Finding]]) -> str:
    """A row for each job. Those that have processes in common are of one program."""
    rows: list[tuple[str, ...]] = []
    sharing = {job.name: [o.name for o in jobs if o is not job and _pids(o) & _pids(job)] for job in jobs}
    for job, told in zip(jobs, found, strict=True):
        pids = shown(rank.pid for rank in job.ranks.values() if rank.process.here)
        others = ", ".join(sharing[job.name])
        state = "something is wrong" if told else "well"
        rows.append((job.name, str(job.size), str(len(job.hosts)), job.program(), pids, others, state))
    styles = {i: red for i, told in enumerate(found) if told}
    head = ("job", "ranks", "hosts", "program", "processes here", "shares them with", "state")
    note = (
        "\n\nJobs that share processes are one program: it has a job for each set of ranks that it started "
        "with a store of its own, such as a replica group."
    )
    return Table(head, rows, styles).text() + (note if any(sharing.values()) else "")


def _pids(job: Job) -> set[tuple[str, int]]:
    return {(rank.host, rank.pid) for rank in job.ranks.values()}


def _head(job: Job) -> str:
    facts: dict[str, Any] = next(
        (r.process.facts["process"] for r in job.ranks.values() if "process" in r.process.facts), {}
    )
    versions = ", ".join(
        f"{name} {facts[key]}"
        for key, name in (("torch_ucc", "torch-ucc"), ("torch", "torch"))
        if key in facts
    )
    hosts = f"{len(job.hosts)} hosts" if len(job.hosts) > 1 else "one host"
    return f"Job {job.name}: {job.program() or 'a program'}, {job.size} ranks on {hosts} ({versions})"


def _verdict(found: Sequence[Finding]) -> str:
    if not found:
        return green("Nothing is wrong that can be seen.")
    lines = [red(_wrapped(f"! {each.text}")) for each in found[:ROWS]]
    if len(found) > ROWS:
        lines.append(f"! and {len(found) - ROWS} more")
    return "\n".join(lines)


def _wrapped(text: str) -> str:
    """For a terminal; a program that reads the text gets one line."""
    return textwrap.fill(text, _width(), subsequent_indent="  ") if is_styled() else text


def _doing(job: Job, accused: Collection[int]) -> Table:
    """Ranks that do the same share a row; the largest rows first."""
    alike: dict[tuple[str, ...], list[Rank]] = defaultdict(list)
    for rank in job.ranks.values():
        alike[_activity(rank)].append(rank)
    rows: list[tuple[str, ...]] = []
    styles: dict[int, Callable[[str], str]] = {}
    for (what, group, how), ranks in sorted(alike.items(), key=lambda row: -len(row[1])):
        if any(rank.rank in accused for rank in ranks):
            styles[len(rows)] = red
        times = [_since(rank) for rank in ranks]
        longest = duration(max(times)) if times else ""
        hosts = sorted({rank.host for rank in ranks})
        where = hosts[0] if len(hosts) == 1 else f"{len(hosts)} hosts"
        rows.append((shown(rank.rank for rank in ranks), where, what, group, longest, how, _cpu(ranks)))
    if job.gone:
        styles[len(rows)] = red
        rows.append((shown(job.gone), "", "has ended", "", "", "", ""))
    if unseen := job.unseen():
        styles[len(rows)] = yellow
        rows.append((shown(unseen), "", "not seen", "", "", "", ""))
    return Table(("ranks", "host", "doing", "group", "since", "state", "cores"), rows, styles)


def _activity(rank: Rank) -> tuple[str, str, str]:
    state = {"T": "stopped", "t": "stopped", "R": "", "S": "", "D": ""}.get(rank.state, rank.state)
    if rank.open:
        record = rank.open[0]
        waits = len(rank.open) - 1
        more = f" and {waits} more" if waits else ""
        how = "queued" if record.state == "issued" else f"in flight, {record.route}"
        return (
            f"{record.describe()}, seq {record.seq}{more}",
            rank.groups[record.group].name,
            ", ".join(filter(None, (state, how))),
        )
    if not rank.records:
        return "has called nothing yet", "", state
    return (
        "not in torch-ucc",
        "",
        state or {"R": "running", "D": "waits for a device"}.get(rank.state, "sleeping"),
    )


def _since(rank: Rank) -> int:
    if rank.open:
        return rank.now_ns - rank.open[0].issued_ns
    return rank.now_ns - max((each.ended_ns for each in rank.records), default=rank.now_ns)


def _cpu(ranks: Sequence[Rank]) -> str:
    known = [rank.cpu for rank in ranks if rank.cpu is not None]
    return f"{sum(known) / len(known):.2f}" if known else ""


def _groups(job: Job) -> Table:
    """What the open groups did lately, by the records that are at hand."""
    rows = []
    members: dict[str, tuple[int, ...]] = {}
    recent: dict[str, list[tuple[Rank, Record]]] = defaultdict(list)
    for rank in job.ranks.values():
        for group in rank.groups.values():
            if not group.closed:
                members[group.name] = group.ranks
        for record in rank.records:
            group = rank.groups[record.group]
            if not group.closed:
                recent[group.name].append((rank, record))
    for name, ranks in members.items():
        rates = [_rate(records) for records in _by_rank(recent[name]).values()]
        calls = max((each.seq for _, each in recent[name] if each.collective), default=0)
        rows.append(
            (
                name,
                str(len(ranks)),
                shown(ranks) if len(ranks) < job.size else "all",
                str(calls),
                f"{max((rate for rate, _ in rates), default=0):.1f}",
                f"{size(max((speed for _, speed in rates), default=0))}/s",
                str(
                    max(
                        (sum(not r.over for r in records) for records in _by_rank(recent[name]).values()),
                        default=0,
                    )
                ),
            )
        )
    return Table(("group", "size", "ranks", "collectives", "calls/s", "data", "in flight"), rows)


def _by_rank(rows: Sequence[tuple[Rank, Record]]) -> dict[int, list[Record]]:
    found: dict[int, list[Record]] = defaultdict(list)
    for rank, record in rows:
        found[rank.rank].append(record)
    return found


def _rate(records: Sequence[Record]) -> tuple[float, float]:
    """Operations and bytes a second, over the recent ones that have ended."""
    ended = sorted((each for each in records if each.over), key=lambda each: each.issued_ns)
    if len(ended) < 2 or ended[-1].ended_ns <= ended[0].issued_ns:
        return 0.0, 0.0
    span = (ended[-1].ended_ns - ended[0].issued_ns) / 1e9
    return len(ended) / span, sum(each.bytes for each in ended) / span


def detail(job: Job, number: int, with_stacks: bool = True, of_all_threads: bool = False) -> str:
    """One rank: what it is in, its last operations, the plan of its connections, and its stacks."""
    rank = job.ranks.get(number)
    if rank is None:
        if number in job.gone:
            return f"Rank {number}: {job.gone[number]}"
        here = {each.host for each in job.ranks.values() if each.process.here}
        hosts = [name for name, ranks in job.hosts.items() if number in ranks and name not in here]
        there = f". It can be looked at on its host: {_command(job, number, hosts[0])}" if hosts else ""
        return f"Rank {number}: nothing was seen of it{there}"
    head = f"Rank {number}, host {rank.host}, pid {rank.pid}: {elsewhere(rank)}"
    rows = [
        (
            str(each.seq),
            each.describe(),
            rank.groups[each.group].name,
            each.route,
            each.state if each.result == "ok" else each.result,
            duration(rank.now_ns - each.issued_ns) + " ago",
            duration(each.ended_ns - each.issued_ns) if each.over else "",
        )
        for each in rank.records[-LAST:]
    ]
    last = Table(("seq", "operation", "group", "route", "state", "called", "took"), rows)
    parts = [bold(head), last.text()]
    for context in rank.process.under("plan/"):
        parts.append("\n".join(f"{name}: {value}" for name, value in context.items()))
    if with_stacks:
        parts += _stacks(job, rank, of_all_threads)
    return "\n\n".join(parts)


def _stacks(job: Job, rank: Rank, of_all_threads: bool) -> Iterator[str]:
    """Of its main thread and, on this host, what is known of all of its threads."""
    title = bold("Python stack of the main thread:")
    if rank.process.here:
        yield f"{title}\n{stacks.python_stack(rank.process)}"
        yield stacks.threads(rank.pid)
        if of_all_threads:
            yield stacks.all_stacks(rank.pid)
        return
    there = _command(job, rank.rank, rank.host)
    text = stacks.stack_of_other_host(job, rank)
    if text is None:
        yield f"{title}\nNo rank of host {rank.host} gives an answer. It can be read there: {there}"
    else:
        yield f"{title}\n{text}"
        yield f"Its threads can be seen on its host: {there}{' --stacks' * of_all_threads}"


def _command(job: Job, rank: int, host: str) -> str:
    return f"ssh {host} torch-ucc status {job.name} --rank {rank}"


def as_data(job: Job, found: Sequence[Finding]) -> dict[str, Any]:
    """The same for programs."""
    return {
        "job": job.name,
        "program": job.program(),
        "size": job.size,
        "hosts": job.hosts,
        "findings": [{"text": each.text, "ranks": list(each.ranks)} for each in found],
        "gone": job.gone,
        "unseen": job.unseen(),
        "silent": job.silent,
        "ranks": [
            {
                "rank": rank.rank,
                "host": rank.host,
                "pid": rank.pid,
                "state": rank.state,
                "cores": rank.cpu,
                "since_s": _since(rank) / 1e9,
                "open": [
                    {
                        "op": each.op,
                        "seq": each.seq,
                        "group": rank.groups[each.group].name,
                        "bytes": each.bytes,
                        "route": each.route,
                        "state": each.state,
                    }
                    for each in rank.open
                ],
            }
            for rank in sorted(job.ranks.values(), key=lambda rank: rank.rank)
        ],
    }
