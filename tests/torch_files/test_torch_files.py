"""The driver of PyTorch's own test files: on a file made up here, which has one test of each kind."""

from __future__ import annotations

from pathlib import Path

import pytest

from torch_files import __main__ as driver

MADE_UP = """# Owner(s): ["nobody"]
import os
import unittest

import torch
import torch.distributed as dist
from torch.testing._internal.common_utils import TestCase


class Made(TestCase):
    def test_passes(self):
        store = dist.HashStore()
        dist.init_process_group("gloo", store=store, rank=0, world_size=1)
        tensor = torch.ones(2)
        dist.all_reduce(tensor)
        self.assertIn("ucc", dist.get_backend())
        self.assertEqual(tensor.tolist(), [1, 1])

    def test_fails(self):
        self.assertEqual(1, 2)

    def test_ends_its_process(self):
        os._exit(3)

    @unittest.skip("it is a test")
    def test_is_skipped(self):
        pass
"""


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> dict[str, driver.Row]:
    folder = tmp_path_factory.mktemp("checkout")
    (folder / "test_c10d_gloo.py").write_text(MADE_UP)
    return {row["test"].rpartition("_")[2]: row for row in driver.run(folder, "test_c10d_gloo", "", 60.0)}


def test_each_outcome_is_told(rows: dict[str, driver.Row]) -> None:
    outcomes = {name: row["outcome"] for name, row in rows.items()}
    assert outcomes == {"passes": "passed", "fails": "failed", "process": "failed", "skipped": "skipped"}
    assert rows["passes"]["ucc"] and not rows["fails"]["ucc"]
    assert "it is a test" in rows["skipped"]["reason"]


def test_what_fails_is_a_problem_unless_it_is_known(rows: dict[str, driver.Row], tmp_path: Path) -> None:
    expected = tmp_path / "expected.toml"
    expected.write_text("")
    assert len(driver.problems(list(rows.values()), expected)) == 2
    expected.write_text(
        '[[fails]]\nfile = "*"\ntests = ["Made.test_fails", "Made.test_passes"]\nreason = "It is made up."\n'
    )
    problems = driver.problems(list(rows.values()), expected)
    assert len(problems) == 2
    assert any("test_passes passed: take it out" in each for each in problems)
    assert any("test_ends_its_process" in each for each in problems)


def test_no_test_is_a_problem() -> None:
    assert driver.problems([]) == ["no test was run"]


def test_the_table_counts_every_test(rows: dict[str, driver.Row]) -> None:
    told = driver.report(list(rows.values()), ["test_pg_wrapper"])
    assert "| `test_c10d_gloo` | 1 | 0 | 0 | 2 | 1 |" in told, told
    assert "Not in this checkout: test_pg_wrapper." in told
