"""Shows the processors, memory and devices of this machine, and the distances between the devices."""

from __future__ import annotations

import argparse
import contextlib
import sys
from pathlib import Path

from torch_ucc.topology.drawing import svg
from torch_ucc.topology.inventory import Inventory, from_json, to_json
from torch_ucc.topology.picture import matrix, tree


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="torch-ucc topo", description=__doc__)
    parser.add_argument(
        "--save",
        type=Path,
        metavar="FILE",
        help="write a description of the machine to FILE, for a report or for --replay, and print nothing",
    )
    parser.add_argument("--svg", type=Path, metavar="FILE", help="draw the machine to FILE and print nothing")
    parser.add_argument(
        "--replay", type=Path, metavar="FILE", help="show the machine that FILE describes instead of this one"
    )
    asked = parser.parse_args(arguments)
    try:
        host = machine(asked.replay)
        if asked.save:
            asked.save.write_text(to_json(host))
        if asked.svg:
            asked.svg.write_text(svg(host))
        if asked.save or asked.svg:
            return 0
    except (OSError, ValueError) as error:
        print(f"torch-ucc topo: {error}", file=sys.stderr)
        return 2
    print(tree(host))
    print(matrix(host), end="")
    return 0


def machine(saved: Path | None) -> Inventory:
    """The saved one, or this one with its libraries. Raises OSError, or ValueError that names the file."""
    if saved is not None:
        try:
            return from_json(saved.read_text())
        except ValueError as error:
            raise ValueError(f"{saved}: {error}") from None
    from torch_ucc.topology.here import this_host

    load_libraries()
    return this_host()


def load_libraries() -> None:
    """Where they cannot be, the machine is shown without: `torch-ucc doctor` says why."""
    from torch_ucc._native import extension

    with contextlib.suppress(ImportError):
        extension.load_libraries()
