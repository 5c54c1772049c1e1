"""Pictures of the times: a panel for each operation, dtype and number of ranks, a line for each library."""

from __future__ import annotations

import html
import io
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch_ucc.bench.cases import UNITS, Case, format_case
from torch_ucc.bench.figures import Samples

COLUMNS = 4
TIMES = {
    1e-7: "100 ns",
    1e-6: "1 µs",
    1e-5: "10 µs",
    1e-4: "100 µs",
    1e-3: "1 ms",
    1e-2: "10 ms",
    1e-1: "100 ms",
    1.0: "1 s",
}
COLOURS = {
    "ucc": "#d1495b",
    "ucc+profile": "#8f2d56",
    "gloo": "#66666e",
    "fake": "#c9c9c9",
    "openmpi": "#00798c",
    "mpich": "#edae49",
    "intel-mpi": "#0071c5",
    "oneccl": "#b5651d",
    "ucxx": "#6a4c93",
    "vllm": "#6a4c93",
    "alone": "#66a182",
    "floor": "#2f4b26",
}
PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>torch-ucc bench</title>
<style>body {{ font: 15px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 1500px; color: #222 }}
svg {{ width: 100%; height: auto }}</style></head>
<body><h1>Seconds a call</h1><p>{title}. Medians; the band holds the true one with 95 % confidence.</p>
{picture}</body></html>
"""


def check(path: Path) -> None:
    """Raises ImportError that says what to install, or ValueError if there is no plot with this suffix."""
    if path.suffix not in (".png", ".svg", ".html"):
        raise ValueError(f"a plot is a .png, .svg or .html file, not {path.name}")
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        raise ImportError("a plot needs matplotlib: pip install torch-ucc[bench]") from error


def draw(samples: Samples, peers: Sequence[str], title: str, path: Path) -> None:
    """By the file's suffix. Draws nothing if no operation has a size. Raises what check() raises."""
    check(path)
    if not any(each.case.nbytes for each in samples.all):
        return
    figure = _figure(samples, peers, title if path.suffix != ".html" else "")
    if path.suffix == ".html":
        picture = io.StringIO()
        figure.savefig(picture, format="svg")
        drawn = picture.getvalue()
        page = PAGE.format(title=html.escape(title), picture=drawn[drawn.index("<svg") :])
        path.write_text(page)
    else:
        figure.savefig(path, dpi=110)


def _figure(samples: Samples, peers: Sequence[str], title: str) -> Any:
    from matplotlib.figure import Figure

    panels = list(
        dict.fromkeys((each.ranks, each.case.op, each.case.dtype) for each in samples.all if each.case.nbytes)
    )
    columns = min(COLUMNS, len(panels))
    rows = -(-len(panels) // columns)
    size = (7, 4.2) if len(panels) == 1 else (4 * columns, 3 * rows + 0.8)
    figure = Figure(figsize=size, layout="constrained")
    figure.suptitle(title, fontsize=10)
    axes = figure.subplots(rows, columns, squeeze=False).flatten()
    for (ranks, op, dtype), axis in zip(panels, axes, strict=False):
        cases = {each.case for each in samples.all if each.ranks == ranks}
        _panel(
            axis,
            samples,
            peers,
            ranks,
            sorted(case for case in cases if (case.op, case.dtype) == (op, dtype)),
        )
    for axis in axes[len(panels) :]:
        axis.axis("off")
    _name_lines(axes)
    return figure


def _name_lines(axes: Any) -> None:
    """Each in the first panel that has it."""
    named: set[str] = set()
    for axis in axes:
        new = {label: line for line, label in zip(*axis.get_legend_handles_labels(), strict=True)}
        for label in named & new.keys():
            del new[label]
        if new:
            axis.legend(new.values(), new.keys(), frameon=False, fontsize=8)
            named |= new.keys()


def _panel(axis: Any, samples: Samples, peers: Sequence[str], ranks: int, cases: Sequence[Case]) -> None:
    """`cases` are those of one op and one dtype, by size."""
    for peer in peers:
        cells = {case.nbytes: cell for case in cases if (cell := samples.cell(peer, ranks, case))}
        if not cells:
            continue
        colour, width = COLOURS.get(peer), 2.0 if peer == "ucc" else 1.2
        sizes, figures = list(cells), list(cells.values())
        axis.plot(
            sizes, [each.median for each in figures], color=colour, label=peer, linewidth=width, marker="."
        )
        axis.fill_between(
            sizes, [each.low for each in figures], [each.high for each in figures], color=colour, alpha=0.2
        )
    what = format_case(replace(cases[0], nbytes=0))
    axis.set(xscale="log", yscale="log", title=f"{what}, {ranks} ranks", ylabel="time of a call")
    ticks = {4: "4 B", **{UNITS[unit]: f"1 {unit}B" for unit in "KM"}}
    axis.set_xticks(list(ticks), list(ticks.values()))
    low, high = axis.get_ylim()
    powers = [power for power in TIMES if low <= power <= high]
    axis.set_yticks(powers, [TIMES[power] for power in powers])
    axis.minorticks_off()
    axis.grid(alpha=0.25)
    axis.spines[["top", "right"]].set_visible(False)
