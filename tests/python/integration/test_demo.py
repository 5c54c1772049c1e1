"""The demo's training: it learns over either backend, and to the same weights."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

REPOSITORY = Path(__file__).resolve().parents[3]
EXAMPLE = REPOSITORY / "examples" / "train_digits_ddp.py"
LIMIT = 120.0

pytestmark = [pytest.mark.multirank, pytest.mark.slow]


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def run_example(*options: str) -> str:
    """What two ranks under torchrun printed. Past LIMIT each of them prints its stack and is ended."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    environment = {**os.environ, "PYTHONFAULTHANDLER": "1", "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [*command, str(EXAMPLE), *options],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        printed, _ = process.communicate(timeout=LIMIT)
    except subprocess.TimeoutExpired:
        for rank in children(process.pid):
            os.kill(rank, signal.SIGABRT)  # faulthandler prints the stack
        time.sleep(1)
        process.kill()
        printed, _ = process.communicate()
        pytest.fail(f"no end after {LIMIT:.0f} s\n{printed}")
    assert process.returncode == 0, printed
    return printed


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, dict[str, Any]]]:
    """(printed, saved) by backend; gloo's run is shown beside ucc's, as in ci/demo."""
    folder = tmp_path_factory.mktemp("demo")
    found = {}
    for backend, beside in (("ucc", []), ("gloo", ["--beside", str(folder / "ucc.pt")])):
        saved = folder / f"{backend}.pt"
        printed = run_example("--backend", backend, "--save", str(saved), *beside)
        found[backend] = printed, torch.load(saved)
    return found


@pytest.mark.parametrize("backend", ["ucc", "gloo"])
def test_learns(runs: dict[str, tuple[str, dict[str, Any]]], backend: str) -> None:
    printed, result = runs[backend]
    assert f"2 ranks over {backend}" in printed
    assert result["accuracy"] > 0.95, printed


def test_both_backends_end_at_the_same_weights(runs: dict[str, tuple[str, dict[str, Any]]]) -> None:
    over_ucc, over_gloo = (runs[backend][1]["weights"] for backend in ("ucc", "gloo"))
    torch.testing.assert_close(over_ucc, over_gloo)


def test_shows_transports_and_comparison(runs: dict[str, tuple[str, dict[str, Any]]]) -> None:
    assert "transports in use: " in runs["ucc"][0]
    heading = runs["gloo"][0].split("transports in use: ")[1].splitlines()[2]
    assert heading.split() == ["ucc", "gloo"]


def test_needs_no_import_of_torch_ucc_to_train() -> None:
    before_training_ends = EXAMPLE.read_text().split("def transports()")[0]
    assert "import torch_ucc" not in before_training_ends
