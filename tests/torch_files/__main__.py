"""Run PyTorch's own test files over ucc. They are read from a checkout, and are no part of this project.

    python -m torch_files FOLDER                      all of FILES; FOLDER is its test/distributed
    python -m torch_files FOLDER test_pg_wrapper -v   one file, a line for each test
    python -m torch_files FOLDER -k allgather         the tests whose name "Class.test" matches the regex

Each file is adapted while it is read (`adapt.py`): the name of the backend, CPU tensors for those on GPUs,
and what torch has moved since. `host.py` runs each test in a process group of its own under a limit, and
prints the stacks of every process of a test that did not end.

The table at the end counts the tests of each file. A test that passed without making a group of ucc is
counted apart. The exit status is 0 if every test passed or was skipped, but for those that `expected.toml`
names with a reason; a test that it names as failing and that passes is an error too.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch_files import adapt

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

HERE = Path(__file__).resolve().parent
EXPECTED = HERE / "expected.toml"
BUILD = HERE.parents[1] / "build"
LOGS = BUILD / "torch_files"
REPORT = BUILD / "upstream.md"

FILES = [
    "test_c10d_common",
    "test_c10d_gloo",
    "test_c10d_ucc",
    "test_c10d_spawn_gloo",
    "test_c10d_spawn_ucc",
    "test_c10d_object_collectives",
    "test_c10d_backend_collectives",
    "test_pg_wrapper",
    "test_functional_api",
    "test_c10d_functional_native",
    "test_inductor_collectives",
]
IMPORTED = ["test_c10d_spawn"]
"""Files that the others import and that have no tests of their own."""

Row = dict[str, Any]


@dataclass(frozen=True)
class Known:
    """What `expected.toml` says of the tests of one file."""

    fails: list[tuple[str, str]] = field(default_factory=list)
    """Patterns of tests that do not pass, with the reason."""
    skips: list[tuple[str, str]] = field(default_factory=list)
    """Patterns of tests that are not run, with the reason."""

    def reason(self, test: str) -> str | None:
        return next((why for pattern, why in self.fails if fnmatch.fnmatchcase(test, pattern)), None)


def known(file: str, expected: Path = EXPECTED) -> Known:
    table = tomllib.loads(expected.read_text())
    kinds = {}
    for kind in ("fails", "skips"):
        entries = [each for each in table.get(kind, []) if fnmatch.fnmatchcase(file, each["file"])]
        kinds[kind] = [(test, each["reason"]) for each in entries for test in each["tests"]]
    return Known(**kinds)


def problems(rows: list[Row], expected: Path = EXPECTED) -> list[str]:
    """What makes the run fail."""
    found = []
    for row in rows:
        expected_to_fail = known(row["file"], expected).reason(row["test"])
        if row["outcome"] == "failed" and expected_to_fail is None:
            found.append(f"{row['file']} {row['test']}: {last_line(row['reason'])}")
        elif row["outcome"] == "passed" and expected_to_fail is not None:
            found.append(f"{row['file']} {row['test']} passed: take it out of {expected.name}")
    return found if rows else ["no test was run"]


def last_line(text: str) -> str:
    """The line that says most: of a traceback, the first that names an error of a rank."""
    lines = text.strip().splitlines() or [""]
    named = [
        line for line in lines if re.search(r"(Error|Exception): (?!Process \d+ (exited|terminated))", line)
    ]
    return (named or lines)[0].strip()[:200]


def run(
    folder: Path, file: str, pattern: str, limit_s: float, *, backend: str = "ucc", verbose: bool = False
) -> list[Row]:
    """Run the tests of one file and return their rows."""
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as temp:
        for name in [*FILES, *IMPORTED]:
            if (folder / f"{name}.py").exists():
                Path(temp, f"{name}.py").write_text(adapt.text_of(folder / f"{name}.py"))
        environment = {
            **os.environ,
            "BACKEND": backend,
            "PYTHONPATH": os.pathsep.join([temp, str(HERE.parent)]),
            "PYTHONDONTWRITEBYTECODE": "1",
            "OMP_NUM_THREADS": "1",
            "CUDA_VISIBLE_DEVICES": "",
            "GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME", "lo"),
            "TORCHINDUCTOR_COMPILE_THREADS": "1",
            "TORCHINDUCTOR_CACHE_DIR": str(Path(temp, "inductor")),
            "TMPDIR": temp,
        }
        job = {"file": file, "pattern": pattern, "limit_s": limit_s, "logs": str(LOGS / file)}
        with subprocess.Popen(
            [sys.executable, str(HERE / "host.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        ) as host:
            assert host.stdin and host.stdout, "asked for"
            with host.stdin as stdin:
                json.dump({**job, "skips": known(file).skips}, stdin)
            for line in host.stdout:
                row = json.loads(line)
                rows.append(row)
                if verbose:
                    shown = f"{row['outcome']:8} {row['seconds']:6.2f} s  {file} {row['test']}"
                    print(f"{shown}  {last_line(row['reason'])}".rstrip(), flush=True)
                if row["stacks"]:
                    print(f"{file} {row['test']}: {row['reason']}\n{row['stacks']}", flush=True)
        if host.returncode != 0:
            rows.append({**rows[-1], "test": "(host)"} if rows else {"file": file, "test": "(host)"})
            rows[-1].update(outcome="failed", reason=f"the host ended with {host.returncode}", ucc=False)
    return rows


def report(rows: list[Row], absent: list[str]) -> str:
    """The tables, in Markdown."""
    import torch

    lines = [
        "# PyTorch's own test files over ucc",
        "",
        "`ci/upstream` ran these files of a checkout of PyTorch "
        f"over torch {torch.__version__}, with CPU tensors.",
        "",
        "| file | passed over ucc | passed without a group of ucc | failed as expected | failed | skipped |",
        "|---|---|---|---|---|---|",
    ]
    total: Counter[str] = Counter()
    for file in dict.fromkeys(row["file"] for row in rows):
        count = Counter(_column(row) for row in rows if row["file"] == file)
        total += count
        lines.append(_line(f"`{file}`", count))
    lines.append(_line("all", total))
    lines += [f"\nNot in this checkout: {', '.join(absent)}."] if absent else []
    for outcome, title in (("skipped", "Skipped"), ("failed", "Failed")):
        reasons = Counter(_why(row) for row in rows if row["outcome"] == outcome)
        if reasons:
            lines += ["", f"| {title} because | tests |", "|---|---|"]
            lines += [f"| {why} | {count} |" for why, count in reasons.most_common()]
    return "\n".join(lines) + "\n"


COLUMNS = ("ucc", "without", "expected", "failed", "skipped")


def _line(name: str, count: Counter[str]) -> str:
    return f"| {name} | " + " | ".join(str(count[column]) for column in COLUMNS) + " |"


def _column(row: Row) -> str:
    if row["outcome"] == "passed":
        return "ucc" if row["ucc"] else "without"
    if row["outcome"] == "failed" and known(row["file"]).reason(row["test"]) is not None:
        return "expected"
    return str(row["outcome"])


def _why(row: Row) -> str:
    reason = row["reason"]
    if row["outcome"] == "failed":
        reason = known(row["file"]).reason(row["test"]) or f"not expected: {row['test']}"
    return str(reason).strip().splitlines()[0].replace("|", "\\|")


def main() -> int:
    about, _, usage = (__doc__ or "").partition("\n\n")
    parser = argparse.ArgumentParser(
        prog="ci/upstream",
        description=about,
        epilog=usage,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "folder", type=Path, metavar="FOLDER", help="test/distributed of a checkout of PyTorch"
    )
    parser.add_argument("files", nargs="*", metavar="FILE", help=f"of {', '.join(FILES)} (default: all)")
    parser.add_argument("-k", dest="pattern", default="", help="only tests that match this regex")
    parser.add_argument("-v", dest="verbose", action="store_true", help="a line for each test")
    parser.add_argument("--backend", default="ucc", choices=("ucc", "gloo"), help="gloo is for comparison")
    parser.add_argument(
        "--replace-gloo", action="store_true", help="leave the tests the name gloo, and have ucc replace it"
    )
    parser.add_argument(
        "--limit", type=float, default=120.0, help="seconds for a test (default: %(default)s)"
    )
    parser.add_argument("--write", action="store_true", help="write the tables to build/upstream.md")
    options = parser.parse_args()

    if options.replace_gloo:
        options.backend = "gloo"
        os.environ["TORCH_UCC_REPLACE_GLOO"] = "1"
    wanted = [name.removesuffix(".py") for name in options.files] or FILES
    if unknown := sorted(set(wanted) - set(FILES)):
        parser.error(f"there is no adaptation for {', '.join(unknown)}")
    absent = [name for name in wanted if not (options.folder / f"{name}.py").exists()]
    if options.files and absent:
        parser.error(f"{options.folder} has no {', '.join(absent)}")
    began = time.monotonic()
    rows: list[Row] = []
    LOGS.mkdir(parents=True, exist_ok=True)
    for file in [name for name in wanted if name not in absent]:
        rows += run(
            options.folder,
            file,
            options.pattern,
            options.limit,
            backend=options.backend,
            verbose=options.verbose,
        )
        (LOGS / "results.json").write_text(json.dumps(rows, indent=1))
    text = report(rows, absent)
    if options.write:
        REPORT.write_text(text)
    print(text)
    wrong = problems(rows)
    for problem in wrong:
        print(f"PROBLEM  {problem}")
    count = Counter(row["outcome"] for row in rows)
    summary = ", ".join(f"{count[outcome]} {outcome}" for outcome in ("passed", "failed", "skipped"))
    print(f"{summary}, {len(wrong)} problems in {time.monotonic() - began:.0f} s")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
