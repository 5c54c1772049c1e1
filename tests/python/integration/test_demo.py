"""The demo's training: it learns over either backend, and to the same weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch_ucc.testing import run_script

REPOSITORY = Path(__file__).resolve().parents[3]
EXAMPLE = REPOSITORY / "examples" / "train_digits_ddp.py"
LIMIT = 120.0

pytestmark = [pytest.mark.multirank, pytest.mark.slow]


def run_example(*options: str) -> str:
    return run_script(EXAMPLE, 2, *options, timeout=LIMIT)


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
    told = runs["ucc"][0].split("transports in use:")[1]
    assert "UCC 1." in told
    assert "to a peer on the same host: " in told
    comparison = runs["gloo"][0].split("transports in use:")[1].splitlines()
    assert ["ucc", "gloo"] in [line.split() for line in comparison]


def test_needs_no_import_of_torch_ucc_to_train() -> None:
    before_training_ends = EXAMPLE.read_text().split("def transports()")[0]
    assert "import torch_ucc" not in before_training_ends
