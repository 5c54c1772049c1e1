#!/usr/bin/env python3
"""Run the suite that ships inside torch against a backend.

The suite is `torch.testing._internal.distributed.distributed_test`, some 285 tests of everything c10d and DDP
promise. Its tests run unchanged, on real processes, at world sizes 2, 3 and 4:

    tests/upstream/run.py                                 all tests over ucc, CPU tensors
    tests/upstream/run.py --tier                          those that need no more than the operations we have
    tests/upstream/run.py --backend gloo                  the baseline
    tests/upstream/run.py --world-size 2 -k all_reduce -v some
    tests/upstream/run.py --resume                        go on where the last run was ended
    tests/upstream/run.py --env TORCH_DISTRIBUTED_DEBUG=DETAIL

It leaves `results.jsonl` (one line for each test and world size) and what each rank printed under --out, and
prints a summary. It succeeds when every test passed or was skipped, but for those that `expected.toml` names;
an entry there that is not needed any more is an error too.

`_lifts.py` is the table of the suite's own skips that do not apply here, `_host.py` runs the tests of a world
size, `expected.toml` holds what is known not to pass, and `ops.json` the c10d operations that each test uses,
measured over gloo by `--backend gloo --record`. Over gloo, with torch 2.13 on two cores, the whole takes two
and a half minutes: 340 passed, 11 failed, all of them all_to_all with tensors of different sizes, and 504
skipped, nearly all of them for want of GPUs.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

HERE = Path(__file__).resolve().parent
OPS = HERE / "ops.json"
EXPECTED = HERE / "expected.toml"

Row = dict[str, Any]


@dataclass
class Verdict:
    """What a run comes to. `problems` is empty when it succeeded."""

    rows: list[Row]
    unexpected: list[Row] = field(default_factory=list)
    known: list[Row] = field(default_factory=list)
    unneeded: list[str] = field(default_factory=list)

    @property
    def problems(self) -> list[str]:
        failed = [
            f"{row['test']} at {row['world_size']} ranks: {last_line(row['reason'])}"
            for row in self.unexpected
        ]
        return failed + self.unneeded + ([] if self.rows else ["no test was run"])


def tier(world_size: int, expected: Path = EXPECTED, ops: Path = OPS) -> list[str]:
    """The tests that pass over gloo at this world size and use no operation beyond the ones we have."""
    available = set(tomllib.loads(expected.read_text())["ops"])
    used: dict[str, list[str]] = json.loads(ops.read_text())[str(world_size)]
    return sorted(test for test, needs in used.items() if available.issuperset(needs))


def run(
    backend: str,
    world_size: int,
    out: Path,
    *,
    tests: list[str] | None = None,
    pattern: str = "",
    done: Iterable[str] = (),
    limit_s: float = 120.0,
    record: bool = False,
    gpu: bool = False,
    env: dict[str, str] | None = None,
    verbose: bool = False,
) -> list[Row]:
    """Run tests at one world size, append their rows to `out`/results.jsonl and return them."""
    logs = out / f"{backend}-{world_size}"
    logs.mkdir(parents=True, exist_ok=True)
    job = {
        "tests": tests,
        "pattern": pattern,
        "done": list(done),
        "logs": str(logs.resolve()),
        "limit_s": limit_s,
        "record": record,
    }
    environment = {
        **os.environ,
        "BACKEND": backend,
        "WORLD_SIZE": str(world_size),
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME", "lo"),
        **({} if gpu else {"CUDA_VISIBLE_DEVICES": ""}),
        **(env or {}),
    }
    rows: list[Row] = []
    closing: Row | None = None
    with (
        (out / "results.jsonl").open("a") as results,
        (logs / "host.log").open("w") as log,
        subprocess.Popen(
            [sys.executable, str(HERE / "_host.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=environment,
        ) as host,
    ):
        assert host.stdin and host.stdout, "asked for"
        with host.stdin as stdin:
            json.dump(job, stdin)
        for line in host.stdout:
            row = json.loads(line)
            if "test" not in row:
                closing = row
                continue
            rows.append(row)
            print(json.dumps(row), file=results, flush=True)
            if verbose:
                reason = last_line(row["reason"])
                print(f"{row['outcome']:8} {row['seconds']:6.2f} s  {row['test']}  {reason}", flush=True)
    if host.returncode != 0 or closing is None:
        raise RuntimeError(f"the host at {world_size} ranks ended early:\n{(logs / 'host.log').read_text()}")
    if closing["unknown"]:
        raise ValueError(f"the suite of this torch has no such tests: {', '.join(closing['unknown'])}")
    return rows


def known_failures(backend: str, expected: Path = EXPECTED) -> dict[tuple[str, int], str]:
    """The reason of each test and world size that is known not to pass."""
    return {
        (entry["test"], world_size): entry["reason"]
        for entry in tomllib.loads(expected.read_text()).get("fails", {}).get(backend, [])
        for world_size in entry["world_sizes"]
    }


def judge(rows: list[Row], backend: str, expected: Path = EXPECTED) -> Verdict:
    """Set the rows against what is known not to pass."""
    known = known_failures(backend, expected)
    verdict = Verdict(rows)
    for row in rows:
        is_known = (row["test"], row["world_size"]) in known
        if row["outcome"] == "failed":
            (verdict.known if is_known else verdict.unexpected).append(row)
        elif is_known:
            verdict.unneeded.append(
                f"{row['test']} at {row['world_size']} ranks {row['outcome']}: take it out of {expected.name}"
            )
    return verdict


def last_line(text: str) -> str:
    """The line that says most: of a traceback, the first that names an error."""
    lines = text.strip().splitlines() or [""]
    named = [line for line in lines if "Error: " in line or "Exception: " in line]
    return (named or lines)[0][:200]


def summary(verdict: Verdict, backend: str, elapsed_s: float) -> str:
    rows = verdict.rows
    lines = []
    for world_size in sorted({row["world_size"] for row in rows}):
        count = Counter(row["outcome"] for row in rows if row["world_size"] == world_size)
        each = ", ".join(f"{count[outcome]} {outcome}" for outcome in ("passed", "failed", "skipped"))
        lines.append(f"{backend} at {world_size} ranks: {each}")
    lines += [
        f"  skipped {count:4}  {why}"
        for why, count in Counter(row["reason"] for row in rows if row["outcome"] == "skipped").most_common()
    ]
    lines += [f"  known to fail  {row['test']} at {row['world_size']} ranks" for row in verdict.known]
    lines += [f"  PROBLEM  {problem}" for problem in verdict.problems]
    count = Counter(row["outcome"] for row in rows)
    lines.append(
        f"upstream suite over {backend}: {count['passed']} passed, {count['failed']} failed "
        f"({len(verdict.known)} known), {count['skipped']} skipped, {len(verdict.problems)} problems "
        f"in {elapsed_s:.0f} s"
    )
    return "\n".join(lines)


def main() -> int:
    about, _, usage = (__doc__ or "").partition("\n\n")
    parser = argparse.ArgumentParser(
        description=about, epilog=usage, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--backend", default="ucc")
    parser.add_argument(
        "--world-size", type=int, action="append", help="may be repeated (default: 2, 3 and 4)"
    )
    parser.add_argument("-k", dest="pattern", default="", help="only tests whose name matches this regex")
    parser.add_argument(
        "--tier", action="store_true", help="only tests that need no more than the ops we have"
    )
    parser.add_argument(
        "--limit", type=float, default=120.0, help="seconds for one test (default: %(default)s)"
    )
    parser.add_argument("--out", type=Path, default=Path("build/upstream"), help="default: %(default)s")
    parser.add_argument("--resume", action="store_true", help="leave out tests that have a result in --out")
    parser.add_argument(
        "--record", action="store_true", help="measure the ops of each test, rewrite ops.json"
    )
    parser.add_argument("--gpu", action="store_true", help="let the ranks see GPUs")
    parser.add_argument("--env", action="append", default=[], metavar="NAME=VALUE", help="for all ranks")
    parser.add_argument("-v", dest="verbose", action="store_true", help="a line for each test")
    options = parser.parse_args()

    started = time.monotonic()
    options.out.mkdir(parents=True, exist_ok=True)
    results = options.out / "results.jsonl"
    before = [json.loads(line) for line in results.open()] if options.resume and results.exists() else []
    before = [row for row in before if row["backend"] == options.backend]
    if not options.resume:
        results.unlink(missing_ok=True)
    rows = list(before)
    for world_size in options.world_size or (2, 3, 4):
        rows += run(
            options.backend,
            world_size,
            options.out,
            tests=tier(world_size) if options.tier else None,
            pattern=options.pattern,
            done=[row["test"] for row in before if row["world_size"] == world_size],
            limit_s=options.limit,
            record=options.record,
            gpu=options.gpu,
            env=dict(item.split("=", 1) for item in options.env),
            verbose=options.verbose,
        )
    if options.record:
        write_ops(rows)
    verdict = judge(rows, options.backend)
    print(summary(verdict, options.backend, time.monotonic() - started))
    return 1 if verdict.problems else 0


def write_ops(rows: list[Row]) -> None:
    """Rewrite the record for the world sizes that were run. Only a test that passed used all it needs."""
    ops: dict[str, dict[str, list[str]]] = json.loads(OPS.read_text()) if OPS.exists() else {}
    for world_size in {row["world_size"] for row in rows}:
        passed = [row for row in rows if row["world_size"] == world_size and row["outcome"] == "passed"]
        ops[str(world_size)] = {row["test"]: row["ops"] for row in passed}
    OPS.write_text(json.dumps(ops, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    sys.exit(main())
