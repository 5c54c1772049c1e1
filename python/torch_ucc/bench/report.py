"""Tables for the terminal, and the same as data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict

from torch_ucc._style import bold
from torch_ucc.bench.cases import format_size
from torch_ucc.bench.figures import Figure, Sample, Samples, figure
from torch_ucc.bench.targets import OCCASION_TARGETS, Judgement, Occasions, Unit

NOISY_SPREAD = 0.25  # a cell whose median is less sure than this is marked
BASE = "ucc"  # ratios are over its times


def table(rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """Columns in line, the first `left` of them to the left, a rule under the first row."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(
            cell.ljust(width) if index < left else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
    return "\n".join([bold(lines[0]), "-" * max(map(len, lines)), *lines[1:]])


def format_seconds(seconds: float) -> str:
    for limit, scale, unit in ((1e-4, 1e6, "us"), (1e-1, 1e3, "ms")):
        if seconds < limit:
            return f"{seconds * scale:.3g} {unit}"
    return f"{seconds:.3g} s"


def format_time(value: Figure | None) -> str:
    if value is None:
        return "-"
    spread = f"±{value.spread:.0%}" if value.spread < 10 else f"±{value.spread:.0f}x"
    return f"{format_seconds(value.median)} {spread}{'?' if value.spread > NOISY_SPREAD else ' '}"


def format_ratio(value: Figure | None) -> str:
    return f"{value.median:.3g}x" if value else "-"


def cases_table(samples: Samples, ranks: int, peers: Sequence[str], where: str = "") -> str:
    """One row a case: each peer's time, then each other peer's over ours. The rows name their dtype if any of
    them is not of float32. `where` follows the number of ranks in the first row."""
    cases = list(dict.fromkeys(sample.case for sample in samples.all if sample.ranks == ranks))
    others = [peer for peer in peers if peer != BASE] if BASE in peers else []
    ratio_heads = [f"{peer}/{BASE}" for peer in others]
    has_dtypes = any(case.dtype != "float32" for case in cases)
    rows = [[f"{ranks} ranks{where}", *["dtype"] * has_dtypes, "size", *(f"{peer}  " for peer in peers)]]
    rows[0] += ratio_heads
    for case in cases:
        times = [format_time(samples.cell(peer, ranks, case)) for peer in peers]
        ratios = [format_ratio(samples.ratio(peer, BASE, ranks, case)) for peer in others]
        dtype = [case.dtype if case.nbytes else "-"] * has_dtypes
        rows.append([case.op, *dtype, format_size(case.nbytes), *times, *ratios])
    doubtful = any("?" in cell for row in rows for cell in row)
    note = f"\n?: the spread is above {NOISY_SPREAD:.0%}, so the time is uncertain" if doubtful else ""
    return table(rows, left=1 + has_dtypes) + note


def occasions_table(occasions: Occasions) -> str:
    """One row a figure, one column a peer."""
    rows = [["", *occasions]]
    for name, unit, found in occasion_rows(occasions):
        cells = (f"{unit.show(each.median)} ±{each.spread:.0%}" if each else "-" for each in found)
        rows.append([name, *cells])
    return table(rows)


def occasion_rows(occasions: Occasions) -> Iterator[tuple[str, Unit, list[Figure | None]]]:
    """The name and the unit of each figure that any peer has, and the figures by peer."""
    for target in OCCASION_TARGETS:
        values = [of_peer.get(target.what) for of_peer in occasions.values()]
        if any(values):
            unit = Unit.SECONDS if target.unit is Unit.RATIO else target.unit
            yield target.name, unit, [figure(each) if each else None for each in values]


def targets_table(judgements: Sequence[Judgement]) -> str:
    rows = [["target", "wanted", "measured", "range", "floor", "gloo", "verdict"]]
    for item in judgements:
        show, value = item.unit.show, item.measured
        measured, between = (
            (show(value.median), f"{show(value.low)} .. {show(value.high)}") if value else ("-", "-")
        )
        floor, gloo = (show(each.median) if each else "-" for each in (item.floor, item.beside))
        rows.append([item.name, item.wanted, measured, between, floor, gloo, item.verdict.value])
    return table(rows, left=2)


def as_data(
    machine: dict[str, object],
    settings: dict[str, object],
    samples: Sequence[Sample],
    occasions: Occasions,
    judgements: Sequence[Judgement],
    failures: Sequence[str],
    left_out: Sequence[str],
) -> dict[str, object]:
    return {
        "machine": machine,
        "settings": settings,
        "samples": [
            {
                **asdict(sample),
                "case": {"op": sample.case.op, "bytes": sample.case.nbytes, "dtype": sample.case.dtype},
            }
            for sample in samples
        ],
        "occasions": occasions,
        "targets": [
            {**asdict(item), "unit": item.unit.value, "verdict": item.verdict.value} for item in judgements
        ],
        "failures": list(failures),
        "left_out": list(left_out),
    }
