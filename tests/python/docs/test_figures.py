"""The front page shows figures of the tables that `ci/figures` wrote, and no others."""

from __future__ import annotations

import re

import pages

README = pages.prose(pages.REPOSITORY / "README.md")
PERFORMANCE = pages.prose(pages.REPOSITORY / "docs" / "performance.md")
PLACE = "2 ranks on one host"
MPIS = ("openmpi", "mpich", "intel-mpi")
OPS = {"all_gather": "all_gather_into_tensor", "reduce_scatter": "reduce_scatter_tensor"}
UNITS = {"µs": 1e-6, "ms": 1e-3, "s": 1.0}


def rows(text: str) -> list[dict[str, str]]:
    """Every row of every table, by the heads of its columns."""
    found = []
    for table in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        head, _, *lines = ([cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines())
        found += [dict(zip(head, line, strict=True)) for line in lines]
    return found


def section(text: str, heading: str) -> str:
    return text.partition(f"{heading}\n")[2].partition("\n#")[0]


def seconds(cell: str) -> float:
    value, unit = cell.split()[:2]
    return float(value) * UNITS[unit]


def measured() -> set[tuple[str, str, str, str, str]]:
    """What each row says: operation and size, type, and the times of ucc, of gloo and of the best MPI."""
    found = set()
    tables = PERFORMANCE.split(f"### {PLACE}\n")[1:]  # one part for each machine
    for row in (row for part in tables for row in rows(part.partition("\n#")[0])):
        of_mpis = [row[mpi] for mpi in MPIS if row.get(mpi)]
        best = min(of_mpis, key=seconds, default="")
        what = f"{row['operation']} of {row['size']}"
        found.add((what, row.get("type", "float32"), row["ucc"], row["gloo"], best))
    return found


def test_the_front_page_shows_rows_of_the_tables() -> None:
    shown = rows(section(README, "## Figures"))
    assert 4 <= len(shown) <= 6
    for row in shown:
        name, ucc, gloo, mpi = row.values()
        op, of, rest = name.partition(" of ")
        size, _, dtype = rest.replace(" a rank", "").partition(", ")
        wanted = (OPS.get(op, op) + of + size, dtype or "float32", ucc, gloo, mpi)
        assert wanted in measured(), wanted


def test_the_front_page_names_the_machine_that_was_measured() -> None:
    machines = re.findall(r"^## (.*), \d+ cores, torch (\d+\.\d+)", PERFORMANCE, re.MULTILINE)
    assert machines
    said = section(README, "## Figures")
    assert any(machine in said and f"PyTorch {torch}" in said for machine, torch in machines)
