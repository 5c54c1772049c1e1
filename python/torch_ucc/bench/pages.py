"""Markdown tables of what `ci/bench --json` wrote: `python -m torch_ucc.bench.pages FILE ...` prints them.

`--into PAGE` writes them into a page instead of printing them. They replace the section of the page that has
the tables of this processor, or they become its last section.

Files that were measured in the same place, with the same peers, make one table. A file that was measured with
other settings of torch-ucc is not a table of its own: its times of ucc are a further column of the tables
that have the same cases.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from torch_ucc.bench.cases import Case, format_size
from torch_ucc.bench.figures import Figure, Sample, Samples, behind_dispatch
from torch_ucc.bench.report import BASE, NOISY_SPREAD, format_ratio, format_seconds, occasion_rows
from torch_ucc.bench.targets import ALL_MPIS, Occasions, Unit, Verdict

READ = "Written by `ci/figures`; [how to read the tables](#how-to-read-the-tables)."


class Place(NamedTuple):
    """Where samples were taken."""

    hosts: int
    rate: str
    busy: int
    ranks: int

    def __str__(self) -> str:
        text = f"{self.ranks} ranks"
        text += f" on {self.hosts} simulated hosts" if self.hosts > 1 else " on one host"
        text += f", each link limited to {self.rate}" if self.rate else ""
        return text + (f", beside {self.busy} busy processes" if self.busy else "")


@dataclass(frozen=True)
class Run:
    """One file. `settings` are the settings of torch-ucc that the run's environment had."""

    machine: dict[str, Any]
    settings: dict[str, str]
    rate: str
    samples: list[Sample]
    targets: list[dict[str, Any]]
    occasions: Occasions

    @staticmethod
    def of(path: Path) -> Run:
        data = json.loads(path.read_text())
        samples = [
            Sample(
                **{
                    **each,
                    "case": Case(each["case"]["op"], each["case"]["bytes"], each["case"]["dtype"]),
                }
            )
            for each in data["samples"]
        ]
        about = data["machine"]
        settings = about.get("settings", {})
        return Run(about, settings, data["settings"]["rate"], samples, data["targets"], data["occasions"])

    def places(self) -> list[Place]:
        return list(dict.fromkeys(self._place(sample) for sample in self.samples))

    def at(self, place: Place) -> Samples:
        return Samples([sample for sample in self.samples if self._place(sample) == place])

    def _place(self, sample: Sample) -> Place:
        return Place(sample.hosts, self.rate, sample.busy, sample.ranks)


def page(runs: Sequence[Run]) -> str:
    """All tables of one machine, with a heading for each place. Raises ValueError for two machines."""
    processors = {str(run.machine["cpu"]) for run in runs}
    if len(processors) > 1:
        raise ValueError(f"a page is of one machine, not of {' and '.join(sorted(processors))}")
    plain = [run for run in runs if not run.settings]
    others = [run for run in runs if run.settings]
    lines = [f"## {_machine(plain[0])}", "", READ, ""]
    for place in dict.fromkeys(place for run in plain for place in run.places()):
        lines += [f"### {place}", ""]
        for run in plain:
            if place in run.places():
                lines += [*_cases(run.at(place), place.ranks, others, place), "", *_load(run, place)]
    for occasions in (run.occasions for run in plain if run.occasions):
        lines += ["### Start, training and idling", "", *_occasions(occasions), ""]
    if judged := [target for run in plain for target in run.targets if target["measured"]]:
        lines += ["### Targets", "", *_targets(judged)]
    return "\n".join(lines).replace(" us ", " µs ")


def put_into(text: str, section: str) -> str:
    """The text of a page with this section, in place of the one of the same processor if there is one."""
    machine = section.partition("\n")[0].partition(", torch ")[0]
    before, *sections = re.split(r"(?m)^(?=## )", text)
    kept = [each for each in sections if not each.startswith(f"{machine},")]
    return "".join([before, *kept]).rstrip() + f"\n\n{section.rstrip()}\n"


def _machine(run: Run) -> str:
    about = run.machine
    return f"{about['cpu']}, {about['cores']} cores, torch {about['torch']}, {about['date'][:10]}"


def _load(run: Run, place: Place) -> list[str]:
    """Ranks on simulated hosts cannot be told from other processes."""
    load = run.machine["foreign_load_cores"]
    return [f"Other processes used {load:.2f} cores meanwhile.", ""] if place.hosts == 1 else []


def _cases(samples: Samples, ranks: int, others: Sequence[Run], place: Place) -> list[str]:
    """One row a case: the time of each peer, then the two ratios that matter most."""
    cases = list(dict.fromkeys(sample.case for sample in samples.all))
    measured = dict.fromkeys(sample.peer for sample in samples.all)
    peers = [peer for peer in measured if not peer.endswith(behind_dispatch(""))]
    mpis = [peer for peer in peers if peer in ALL_MPIS]
    further = {_label(run): run.at(place) for run in others if place in run.places()}
    further = {
        name: found for name, found in further.items() if any(found.cell(BASE, ranks, case) for case in cases)
    }
    dtypes = len({case.dtype for case in cases}) > 1
    head = ["operation", *["type"] * dtypes, "size", BASE, *further]
    head += [peer for peer in peers if peer != BASE]
    head += ["gloo / ucc"] * ("gloo" in peers) + ["best MPI / ucc"] * bool(mpis)
    rows = [head, ["---"] * len(head)]
    for case in cases:
        row = [case.op, *[case.dtype] * dtypes, format_size(case.nbytes)]
        row.append(_time(samples.cell(BASE, ranks, case)))
        row += [_time(found.cell(BASE, ranks, case)) for found in further.values()]
        row += [_time(samples.cell(peer, ranks, case)) for peer in peers if peer != BASE]
        for rivals in ["gloo"] if "gloo" in peers else [], mpis:
            if rivals:
                best = samples.fastest(rivals, ranks, case)
                row.append(format_ratio(samples.ratio(best, BASE, ranks, case) if best else None))
        rows.append(row)
    return [f"| {' | '.join(row)} |" for row in rows]


def _label(run: Run) -> str:
    return "ucc, " + " ".join(f"{name}={value}" for name, value in run.settings.items())


def _time(value: Figure | None) -> str:
    if value is None:
        return ""
    return format_seconds(value.median) + " ~" * (value.spread > NOISY_SPREAD)


def _occasions(occasions: Occasions) -> list[str]:
    """One row a figure, one column a peer."""
    lines = [f"| | {' | '.join(occasions)} |", "|---" * (1 + len(occasions)) + "|"]
    for name, unit, found in occasion_rows(occasions):
        cells = [unit.show(each.median) if each else "" for each in found]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def _targets(judged: Sequence[dict[str, Any]]) -> list[str]:
    lines = ["| target | wanted | measured | floor | verdict |", "|---|---|---|---|---|"]
    for each in judged:
        show = Unit(each["unit"]).show
        measured, floor = (
            show(value["median"]) if value else "" for value in (each["measured"], each["floor"])
        )
        verdict = Verdict(each["verdict"]).value
        wanted = each["wanted"].replace("|", "\\|")
        lines.append(f"| {each['name']} | {wanted} | {measured} | {floor} | {verdict} |")
    return lines


def main(paths: list[str]) -> int:
    into = Path(paths[1]) if paths[:1] == ["--into"] and len(paths) > 1 else None
    files = paths[2:] if into else paths
    if not files:
        print("usage: python -m torch_ucc.bench.pages [--into PAGE] FILE ...", file=sys.stderr)
        return 2
    tables = page([Run.of(Path(path)) for path in files])
    if into:
        into.write_text(put_into(into.read_text(), tables))
    else:
        print(tables)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
