"""Shows recorded operations, compares two runs, and finds out what went wrong."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from torch_ucc.tracing import (
    chakra,
    chrome,
    compare,
    diagnosis,
    fr_trace,
    iterations,
    page,
    records,
    text,
    timeline,
)


def main(arguments: list[str]) -> int:
    options = _parser().parse_args(arguments)
    try:
        dumps = records.load(options.path)
    except ValueError as error:
        print(f"torch-ucc trace: {error}", file=sys.stderr)
        return 2
    if options.command == "diagnose":
        found = diagnosis.diagnose(dumps)
        print(found or f"Nothing is wrong: the calls of all ranks match, and {_ended(dumps)}.")
        return 1 if found else 0
    if options.command == "compare":
        try:
            print(compare.report(dumps, records.load(options.other)))
        except ValueError as error:
            print(f"torch-ucc trace: {error}", file=sys.stderr)
            return 2
        return 0
    if options.command == "chakra":
        chakra.save(dumps, options.folder)
        return 0
    if options.command == "fr":
        if left_out := fr_trace.save(dumps, options.folder):
            print(f"{left_out} messages were left out, because their partners are not certain.")
        return 0
    entries = timeline.merge(dumps)
    lost = sum(dump.lost for dump in dumps)
    turns = iterations.iterations(dumps, entries)
    print(text.report(entries, lost, turns))
    if options.chrome:
        options.chrome.write_text(json.dumps(chrome.convert(entries)))
    if options.html:
        options.html.write_text(page.render(entries, lost, turns))
    return 0


def _ended(dumps: list[records.Dump]) -> str:
    open_calls = sum(not record.over for dump in dumps for record in dump.records)
    return f"all but {open_calls} calls have ended" if open_calls else "all calls have ended"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="torch-ucc trace", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    show = commands.add_parser(
        "show",
        help="show which code called which operation, how often and with how much data, and how long the "
        "operations took",
    )
    show.add_argument(
        "--chrome",
        type=Path,
        metavar="FILE",
        help="also write the trace to FILE, for chrome://tracing and Perfetto",
    )
    show.add_argument(
        "--html", type=Path, metavar="FILE", help="also write an HTML page with a timeline to FILE"
    )
    diagnose = commands.add_parser("diagnose", help="find out what went wrong, from the dumps of all ranks")
    convert = commands.add_parser("fr", help="convert dumps for PyTorch's flight recorder analyser")
    chakra_command = commands.add_parser(
        "chakra", help="convert traces to the format of MLCommons Chakra, which PARAM can replay"
    )
    compare_command = commands.add_parser(
        "compare", help="compare two runs: show which operations take longer in the second run"
    )
    for command in (show, diagnose, convert, chakra_command, compare_command):
        command.add_argument("path", type=Path, help=records.PATH_HELP)
    for command in (convert, chakra_command):
        command.add_argument("folder", type=Path, help="the folder to write to")
    compare_command.add_argument("other", type=Path, help="the folder or path of the second run")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
