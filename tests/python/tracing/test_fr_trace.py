"""PyTorch's own analyser reads our dumps: silent on a healthy run, and it finds a mismatch."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from ranks import LIMIT, SOON, failure, gather_dumps, healthy
from torch.distributed.flight_recorder.components.config_manager import JobConfig
from torch.distributed.flight_recorder.components.loader import read_dir
from torch.distributed.flight_recorder.components.types import MatchState
from torch.distributed.flight_recorder.fr_trace import build_db
from torch_ucc.testing import run_ranks
from torch_ucc.tracing import fr_trace, records

pytestmark = pytest.mark.multirank


def analysed(folder: Path) -> list:
    """The collectives in the analyser's database."""
    fr_trace.save(records.load(folder), folder / "fr")
    args = JobConfig().parse_args([str(folder / "fr")])
    details, version = read_dir(args)
    assert version == "2.10"
    return build_db(details, args, version).collectives


def run_healthy(folder: Path) -> None:
    healthy()
    gather_dumps(folder)


def test_a_healthy_run_matches(tmp_path: Path) -> None:
    run_ranks(run_healthy, 2, tmp_path)
    found = analysed(tmp_path)
    assert [each.collective_name for each in found] == [
        "gloo:all_reduce",
        "gloo:all_reduce",
        "gloo:all_reduce",
        "gloo:broadcast",
        "gloo:_all_gather_base",
        "gloo:barrier",
    ]
    assert all(each.pass_check for each in found)


def run_mismatch(folder: Path) -> None:
    dist.all_reduce(torch.ones(4))
    if dist.get_rank() == 0:
        failure(lambda: dist.all_reduce(torch.ones(4)))
    else:
        failure(lambda: dist.all_gather_into_tensor(torch.empty(8), torch.ones(4)))
    gather_dumps(folder)


def test_a_mismatch_is_found(tmp_path: Path) -> None:
    run_ranks(run_mismatch, 2, tmp_path, group_timeout=LIMIT, env=SOON)
    first, second = analysed(tmp_path)
    assert first.pass_check and not second.pass_check
    assert second.collective_seq_id == 2
    assert second.mismatch_collectives[1].collective_name == "gloo:_all_gather_base"
    assert second.mismatch_collectives[1].type_of_mismatch.state == MatchState.COLLECTIVE_TYPE_MISMATCH
