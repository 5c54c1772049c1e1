"""Lists all settings with their values in this environment, and where each value comes from."""

from __future__ import annotations

import argparse
import json
import sys

from torch_ucc import config
from torch_ucc._style import table


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="torch-ucc config", description=__doc__)
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--json", action="store_true", help="print JSON")
    how.add_argument(
        "--reference",
        action="store_true",
        help="print the page docs/settings.md, which has the defaults instead of the values",
    )
    asked = parser.parse_args(arguments)
    if asked.reference:
        print(config.reference(), end="")
        return 0
    try:
        rows = config.listing()
    except ValueError as error:
        print(f"torch-ucc config: {error}", file=sys.stderr)
        return 1
    if asked.json:
        print(json.dumps([row._asdict() for row in rows], indent=1))
        return 0
    print(table(("setting", "value", "source"), [(row.variable, row.value, row.source) for row in rows]))
    return 0
