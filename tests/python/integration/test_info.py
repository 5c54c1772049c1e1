"""`torchrun ... -m torch_ucc info`: what it says is what UCX itself logs; and what a different choice looks
like."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest
from torch_ucc.cli.info import truth

pytestmark = pytest.mark.multirank


def info(*arguments: str, ranks: int = 2, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "torch_ucc", "info", *arguments]
    if ranks > 1:
        run = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
        command = [sys.executable, *run, "-m", "torch_ucc", "info", *arguments]
    return subprocess.run(
        command,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_it_tells_what_ucx_logs() -> None:
    """UCX logs the configuration of each endpoint of UCC's worker at this level."""
    run = info("--json", UCX_LOG_LEVEL="info", UCX_LOG_FILE="/dev/stderr")
    assert run.returncode == 0, run.stderr
    about = json.loads(run.stdout[run.stdout.index("{") :])
    logged = re.findall(r"intra-node cfg#\d+ (?:\S+ )*?tag\(([^)]*)\)", run.stdout + run.stderr)
    assert logged, run.stderr
    for each in about["chosen"]:
        told = each["transports"]["same host"]
        assert each["differences"] == [] and set(logged[0].split()) <= set(told), (told, logged)


def test_it_shows_libraries_settings_plan_and_truth() -> None:
    run = info(TORCH_UCC_SPIN="90us", UCX_TLS="tcp,self")
    assert run.returncode == 0, run.stderr
    assert re.search(r"^UCC [\d.]+ from /.*\(.*\)$", run.stdout, re.MULTILINE)
    assert re.search(r"^UCX [\d.]+ from /.*\(.*\)$", run.stdout, re.MULTILINE)
    assert "TORCH_UCC_SPIN=90us (environment variable TORCH_UCC_SPIN)" in run.stdout
    assert "2 ranks on 1 host:" in run.stdout and "Set by the user: UCX_TLS=tcp,self." in run.stdout
    assert re.search(r"^0-1 +same host +tcp/\S+(, tcp/\S+)*$", run.stdout, re.MULTILINE), run.stdout


def test_one_process_says_what_it_would_run_on() -> None:
    run = info(ranks=1)
    assert run.returncode == 0 and "1 rank on 1 host:" in run.stdout, run.stderr


def test_a_difference_is_shown_beside_its_rank() -> None:
    same = {"transports": {"same host": ["sysv/memory"]}, "differences": []}
    other = {"transports": {"same host": ["tcp/lo"]}, "differences": ["same host: not so"]}
    assert "\n".join(truth([same, same, other])).splitlines()[2:] == [
        "rank  peers      transports",
        "0-1   same host  sysv/memory",
        "2     same host  tcp/lo",
        "Not as planned on rank 2: same host: not so",
    ]
