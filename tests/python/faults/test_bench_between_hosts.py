"""The bench between simulated hosts: real processes, real TCP, and nothing left behind."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from torch_ucc.bench.__main__ import main

pytestmark = pytest.mark.multirank


@pytest.fixture
def cores_given_back() -> Iterator[None]:
    """The bench keeps its process to two cores; other tests need not."""
    cores = os.sched_getaffinity(0)
    yield
    os.sched_setaffinity(0, cores)


@pytest.mark.usefixtures("cores_given_back", "hosts_allowed")
def test_ranks_are_on_two_hosts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "figures.json"
    arguments = ["--hosts", "2", "--peers", "ucc,gloo", "--ranks", "2", "--ops", "all_reduce,barrier"]
    arguments += ["--sizes", "1K", "--repetitions", "1", "--case-seconds", "0.01", "--json", str(output)]
    assert main(arguments) == 0
    assert "2 ranks on 2 hosts" in capsys.readouterr().out
    data = json.loads(output.read_text())
    assert {(sample["peer"], sample["hosts"]) for sample in data["samples"]} == {("ucc", 2), ("gloo", 2)}
    assert data["failures"] == []
    # Open MPI, beside which both targets are, too, was not asked for.
    found = [(target["name"], target["verdict"]) for target in data["targets"]]
    assert found == [("every operation, 2 ranks on 2 hosts", "not measured")] * 2
