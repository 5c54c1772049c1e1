"""The Markdown tables that are made of what `ci/bench --json` wrote."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from torch_ucc.bench import pages

TIMES = {"ucc": 2e-6, "gloo": 1e-4, "openmpi": 4e-6, "mpich": 3e-6, "alone+fake": 1e-6}


def written(folder: Path, name: str, *, peers: tuple[str, ...] = tuple(TIMES), **changes: Any) -> Path:
    """A file of a run with three turns of an all_reduce of 4 bytes."""
    about = {
        "cpu": changes.get("cpu", "Abacus"),
        "cores": 2,
        "torch": "2.13.0",
        "date": "2026-11-29T03:44:18Z",
    }
    target = {
        "name": "all_reduce 4 B, 2 ranks",
        "wanted": "openmpi|mpich/ucc >= 1",
        "measured": {"median": 1.5, "low": 1.4, "high": 1.6, "samples": 3},
        "verdict": "met",
        "unit": "ratio",
        "beside": None,
        "floor": None,
    }
    samples = [
        {
            "peer": peer,
            "ranks": 2,
            "case": {"op": "all_reduce", "bytes": 4, "dtype": changes.get("dtype", "float32")},
            "repetition": turn,
            "seconds": TIMES[peer] * changes.get("slower", 1),
            "hosts": changes.get("hosts", 1),
            "busy": 0,
        }
        for turn in range(3)
        for peer in peers
    ]
    path = folder / f"{name}.json"
    path.write_text(
        json.dumps(
            {
                "machine": {**about, "settings": changes.get("settings", {}), "foreign_load_cores": 0.02},
                "settings": {"rate": changes.get("rate", "")},
                "samples": samples,
                "occasions": changes.get("occasions", {}),
                "targets": [target, {**target, "measured": None, "verdict": "not measured"}],
            }
        )
    )
    return path


def test_a_table_has_each_peer_and_the_ratios_that_matter(tmp_path: Path) -> None:
    text = pages.page([pages.Run.of(written(tmp_path, "a"))])
    assert text.startswith("## Abacus, 2 cores, torch 2.13.0, 2026-11-29\n")
    assert "### 2 ranks on one host\n" in text
    assert "| operation | size | ucc | gloo | openmpi | mpich | gloo / ucc | best MPI / ucc |" in text
    assert "| all_reduce | 4 B | 2 µs | 0.1 ms | 4 µs | 3 µs | 50x | 1.5x |" in text
    assert "Other processes used 0.02 cores meanwhile." in text


def test_targets_that_were_measured_are_shown(tmp_path: Path) -> None:
    text = pages.page([pages.Run.of(written(tmp_path, "a"))])
    assert "| all_reduce 4 B, 2 ranks | openmpi\\|mpich/ucc >= 1 | 1.5x |  | met |" in text
    assert "not measured" not in text


def test_each_place_has_a_heading(tmp_path: Path) -> None:
    runs = [
        pages.Run.of(written(tmp_path, "a")),
        pages.Run.of(written(tmp_path, "b", hosts=2, rate="1gbit")),
    ]
    text = pages.page(runs)
    assert text.index("## 2 ranks on one host") < text.index(
        "## 2 ranks on 2 simulated hosts, each link limited to 1gbit"
    )


def test_a_run_with_other_settings_is_a_column(tmp_path: Path) -> None:
    settings = {"TORCH_UCC_HOST_PATH": "0"}
    runs = [
        pages.Run.of(written(tmp_path, "a")),
        pages.Run.of(written(tmp_path, "b", peers=("ucc",), slower=3, settings=settings)),
    ]
    text = pages.page(runs)
    assert text.count("### 2 ranks") == 1
    assert "| ucc | ucc, TORCH_UCC_HOST_PATH=0 | gloo |" in text
    assert "| all_reduce | 4 B | 2 µs | 6 µs | 0.1 ms |" in text


def test_a_table_of_other_cases_has_no_such_column(tmp_path: Path) -> None:
    runs = [
        pages.Run.of(written(tmp_path, "a", dtype="bfloat16")),
        pages.Run.of(written(tmp_path, "b", peers=("ucc",), settings={"TORCH_UCC_HOST_PATH": "0"})),
    ]
    assert "HOST_PATH" not in pages.page(runs)


def test_what_a_start_takes_has_a_table(tmp_path: Path) -> None:
    occasions = {
        "ucc": {"start": [0.02, 0.03, 0.04]},
        "gloo": {"start": [0.002, 0.003, 0.004], "group": [1e-5]},
    }
    text = pages.page([pages.Run.of(written(tmp_path, "a", occasions=occasions))])
    assert "### Start, training and idling\n\n| | ucc | gloo |\n|---|---|---|\n" in text
    assert "| first group and all_reduce | 30.000 ms | 3.000 ms |" in text
    assert "| a further group |  | 10.00 µs |" in text


def test_a_page_is_of_one_machine(tmp_path: Path) -> None:
    runs = [pages.Run.of(written(tmp_path, "a")), pages.Run.of(written(tmp_path, "b", cpu="Slide rule"))]
    with pytest.raises(ValueError, match="not of Abacus and Slide rule"):
        pages.page(runs)


def test_it_prints_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert pages.main([str(written(tmp_path, "a"))]) == 0
    assert "## 2 ranks on one host" in capsys.readouterr().out
    assert pages.main([]) == 2


def test_a_section_takes_the_place_of_the_same_processor(tmp_path: Path) -> None:
    shown = tmp_path / "page.md"
    shown.write_text("# Performance\n\nA text.\n")
    for name, cpu, slower in (("a", "Abacus", 1), ("b", "Slide rule", 2), ("c", "Abacus", 3)):
        file = written(tmp_path, name, cpu=cpu, slower=slower)
        assert pages.main(["--into", str(shown), str(file)]) == 0
    text = shown.read_text()
    assert text.startswith("# Performance\n\nA text.\n\n## Slide rule, 2 cores, torch 2.13.0")
    assert text.count("## Abacus") == 1
    assert "| all_reduce | 4 B | 4 µs |" in text
    assert "| all_reduce | 4 B | 6 µs |" in text
    assert "| all_reduce | 4 B | 2 µs |" not in text
