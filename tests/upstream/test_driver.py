"""The driver itself: its verdict, its selection, its limit, its lifts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import run

KNOWN = """
ops = ["allreduce_", "barrier"]
[[fails.ucc]]
test = "test_known"
world_sizes = [2, 3]
reason = "because"
"""


@pytest.fixture
def expected(tmp_path: Path) -> Path:
    path = tmp_path / "expected.toml"
    path.write_text(KNOWN)
    return path


def row(test: str, outcome: str, world_size: int = 2) -> run.Row:
    return {"test": test, "world_size": world_size, "outcome": outcome, "reason": "why", "seconds": 0.0}


def test_what_passes_or_is_skipped_is_no_problem(expected: Path) -> None:
    rows = [row("test_a", "passed"), row("test_b", "skipped"), row("test_known", "failed")]
    assert run.judge(rows, "ucc", expected).problems == []


def test_an_unknown_failure_is_a_problem(expected: Path) -> None:
    problems = run.judge([row("test_a", "failed"), row("test_known", "failed", 4)], "ucc", expected).problems
    assert problems == ["test_a at 2 ranks: why", "test_known at 4 ranks: why"]


def test_a_failure_is_known_for_its_backend_only(expected: Path) -> None:
    assert run.judge([row("test_known", "failed")], "gloo", expected).problems


@pytest.mark.parametrize("outcome", ["passed", "skipped"])
def test_an_entry_that_is_not_needed_is_a_problem(expected: Path, outcome: str) -> None:
    (problem,) = run.judge([row("test_known", outcome)], "ucc", expected).problems
    assert "take it out" in problem


def test_no_tests_is_a_problem(expected: Path) -> None:
    assert run.judge([], "ucc", expected).problems == ["no test was run"]


def test_the_tier_holds_what_needs_no_other_operations(expected: Path, tmp_path: Path) -> None:
    ops = tmp_path / "ops.json"
    used = {
        "test_a": ["allreduce_"],
        "test_b": ["allreduce_", "send"],
        "test_c": [],
        "test_d": ["allreduce_:sparse"],
    }
    ops.write_text(json.dumps({"2": used}))
    assert run.tier(2, expected, ops) == ["test_a", "test_c"]


def test_every_expected_failure_has_a_reason() -> None:
    for backend in ("ucc", "gloo"):
        assert all(run.known_failures(backend).values())


def test_a_test_that_does_not_end_is_shown_and_killed(tmp_path: Path) -> None:
    (result,) = run.run("gloo", 2, tmp_path, tests=["test_barrier"], limit_s=0.0)
    assert result["outcome"] == "failed"
    assert "rank 0: not ended after 0 s" in result["reason"]
    assert "==== rank 1" in (tmp_path / "gloo-2" / "test_barrier" / "stacks.txt").read_text()


def test_a_backend_that_is_not_there_is_a_failure(tmp_path: Path) -> None:
    (result,) = run.run("nosuch", 2, tmp_path, tests=["test_barrier"])
    assert result["outcome"] == "failed"
    assert "nosuch" in result["reason"].lower()


def test_a_test_the_suite_does_not_have_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no such tests: test_of_nothing"):
        run.run("gloo", 2, tmp_path, tests=["test_of_nothing"])


def test_resume_runs_what_has_no_result_yet(tmp_path: Path) -> None:
    command = [sys.executable, run.__file__, "--backend=gloo", "--world-size=2", f"--out={tmp_path}"]
    subprocess.run([*command, "-k", "test_get_rank$"], check=True, stdout=subprocess.PIPE)
    subprocess.run(
        [*command, "-k", "test_get_(rank|backend)$", "--resume"], check=True, stdout=subprocess.PIPE
    )
    tests = [json.loads(line)["test"] for line in (tmp_path / "results.jsonl").open()]
    assert tests == ["test_get_rank", "test_get_backend"]


def test_no_skip_for_another_backend_is_left_over_ucc() -> None:
    """The text of a skip names what lacks, so that what is left over ucc can be read without running it."""
    code = (
        "import _host, pathlib; s = _host.load_suite(pathlib.Path('x'), False);"
        "print('\\n'.join({w for n in dir(s) if n.startswith('test')"
        " and (w := getattr(getattr(s, n), '__unittest_skip_why__', None))}))"
    )
    environment = {**os.environ, "BACKEND": "ucc", "WORLD_SIZE": "4", "CUDA_VISIBLE_DEVICES": ""}
    here = Path(run.__file__).parent
    found = subprocess.run(
        [sys.executable, "-c", code], cwd=here, env=environment, capture_output=True, text=True, check=True
    )
    others = (
        "nccl",
        "cuda",
        "coalescing manager",
        "torchvision",
        "github.com",
        "flakiness",
        "gpu",
        "all_gather_v",
    )
    left = [why for why in found.stdout.splitlines() if not any(word in why.lower() for word in others)]
    assert left == []
