"""Writes the golden files anew. Read the difference before you commit it: they are what a test believes."""

from __future__ import annotations

import tempfile
from pathlib import Path

from jobs import JOBS, planned
from machines import MACHINES, build
from torch_ucc.topology.drawing import svg
from torch_ucc.topology.inventory import from_json, to_json

HERE = Path(__file__).parent
DRAWN = "dgx_h100"


def main() -> None:
    for name in MACHINES:
        with tempfile.TemporaryDirectory() as folder:
            (HERE / "machines" / f"{name}.json").write_text(to_json(build(name, Path(folder))))
    (HERE / "drawn.svg").write_text(svg(from_json((HERE / "machines" / f"{DRAWN}.json").read_text())))
    for name in JOBS:
        (HERE / "plans" / f"{name}.txt").write_text(planned(name))


if __name__ == "__main__":
    main()
