"""`torch_ucc.trace()`, TORCH_UCC_TRACE and `torch-ucc trace show` over real runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch_ucc
from ranks import healthy
from torch_ucc.testing import run_ranks, run_script
from torch_ucc.tracing import records
from torch_ucc.tracing.__main__ import main

pytestmark = pytest.mark.multirank

EXAMPLE = Path(__file__).parents[3] / "examples" / "what_does_ddp_call.py"


def traced(path: Path) -> None:
    dist.barrier()
    with torch_ucc.trace(path):
        healthy()
    dist.barrier()  # not in the trace


def test_a_trace_holds_what_was_called_in_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_ranks(traced, 2, tmp_path / "run.json")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run.rank0.json", "run.rank1.json"]
    for dump in records.load(tmp_path / "run.json"):
        assert [record.op for record in dump.records][:4] == ["all_reduce"] * 3 + ["broadcast"]
        assert len(dump.records) == 7 and all(record.over for record in dump.records)
    capsys.readouterr()
    html, events = tmp_path / "page.html", tmp_path / "events.json"
    assert main(["show", str(tmp_path / "run.json"), "--html", str(html), "--chrome", str(events)]) == 0
    told = capsys.readouterr().out
    assert "14 operations of 2 ranks in 1 group," in told
    assert any(line.split()[:3] == ["dist.all_reduce", "Python", "all_reduce"] for line in told.splitlines())
    assert "dist.all_reduce" in html.read_text()
    assert len(json.loads(events.read_text())["traceEvents"]) == 2 * 14 + 4


def many(_: int = 0) -> None:
    tensor = torch.ones(1)
    for _ in range(20000):
        dist.all_reduce(tensor)


def test_all_of_a_program_is_traced_by_a_setting_and_what_is_lost_is_counted(tmp_path: Path) -> None:
    run_ranks(many, 2, env={"TORCH_UCC_TRACE": str(tmp_path)})
    for rank in range(2):
        data = json.loads((tmp_path / f"rank{rank}.json").read_text())
        assert len(data["records"]) + data["lost"] == 20000
        # A loaded machine may keep the thread that collects from its work for a while, never for good.
        assert len(data["records"]) >= 8192


def test_what_ddp_calls() -> None:
    output = run_script(EXAMPLE, 2)
    phases = dict(part.split("\n", 1) for part in output.strip().split("\n\n") if "\n" in part)
    construction = phases["construction: DistributedDataParallel(network)"]
    assert "C++       1 x broadcast of float32" in construction
    assert "DDP: broadcast parameters and buffers" in construction
    assert "Python" not in construction
    for step in range(3):
        assert "all_reduce of float32" in phases[f"step {step}, backward: loss.backward()"]
        assert "DDP's reducer" in phases[f"step {step}, backward: loss.backward()"]
        assert "DDP: broadcast buffers" in phases[f"step {step}, forward: model(inputs)"]
        assert phases[f"step {step}, optimizer.step()"].strip() == "nothing"
    assert "Python    1 x all_reduce" in phases["evaluation, forward and a sum over the ranks"]
