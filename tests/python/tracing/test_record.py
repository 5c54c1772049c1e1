"""`torch-ucc record` keeps every operation of a running job, from outside."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch_ucc
from torch_ucc.status import history
from torch_ucc.testing import run_ranks
from torch_ucc.tracing import records
from torch_ucc.tracing.diagnosis import diagnose

pytestmark = pytest.mark.multirank

CALLS = 3000
LIMIT = 300.0
"""Seconds until a step of a test must be over, for a machine under load."""


def recording(folder: Path, *options: str) -> list[str]:
    """The command that records the job of this process."""
    return [sys.executable, "-m", "torch_ucc", "record", str(folder), str(os.getpid()), *options]


def watched(folder: Path, limit: str) -> None:
    """Rank 0 starts the recorder; the ranks call when it has begun."""
    dist.barrier()
    recorder = None
    if dist.get_rank() == 0:
        recorder = subprocess.Popen(recording(folder, "--seconds", "60", *limit.split()))
        deadline = time.monotonic() + 60
        while len(list(folder.glob("rank?.history"))) < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
    dist.barrier()
    for i in range(CALLS):
        dist.all_reduce(torch.ones(1 + i % 7))
        if i % 100 == 0:
            time.sleep(0.05)  # so that the recorder, which has no core, comes before the ring is full
    if recorder is not None:
        time.sleep(1.5)
        recorder.terminate()
        recorder.wait(timeout=30)


def test_every_operation_is_kept(tmp_path: Path) -> None:
    run_ranks(watched, 2, tmp_path, "--limit 64")
    dumps = records.load(tmp_path)
    assert [dump.rank for dump in dumps] == [0, 1]
    for dump in dumps:
        reduces = [each for each in dump.records if each.op == "all_reduce"]
        assert [each.seq for each in reduces] == list(range(reduces[0].seq, reduces[0].seq + CALLS))
        assert [each.bytes for each in reduces] == [4 * (1 + i % 7) for i in range(CALLS)]
        assert all(each.state == "completed" for each in reduces)


def left_open(folder: Path) -> None:
    """Rank 1 does not call the last operation while it is recorded."""
    dist.barrier()
    if dist.get_rank() == 0:
        early = dist.irecv(torch.empty(1), 1)
        for _ in range(5):
            dist.all_reduce(torch.ones(1), group=dist.group.WORLD)
        subprocess.run(recording(folder, "--seconds", "1"), check=True, timeout=60)
        dist.barrier()
        assert early is not None
        early.wait()
    else:
        for _ in range(5):
            dist.all_reduce(torch.ones(1), group=dist.group.WORLD)
        dist.barrier()
        dist.send(torch.ones(1), 0)


def test_an_operation_that_stays_open_hides_none_behind_it(tmp_path: Path) -> None:
    run_ranks(left_open, 2, tmp_path)
    for dump in records.load(tmp_path):
        assert [each.op for each in dump.records if each.over].count("all_reduce") == 5
        assert dump.steady_ns >= max(each.issued_ns for each in dump.records)
    assert [each.state for each in records.load(tmp_path)[0].records if each.op == "recv"] == ["posted"]
    told = diagnose(records.load(tmp_path))
    # The barrier of rank 1 may have begun too shortly before the end; the receive of rank 0 has not.
    assert "Rank 0 did not call this operation" in told or "has not called send for rank 0" in told, told


def test_a_file_that_was_cut_off_is_read_to_its_end(tmp_path: Path) -> None:
    run_ranks(watched, 2, tmp_path, "--limit 64")
    file = tmp_path / "rank0.history"
    whole = len(history.read(file).records)
    file.write_bytes(file.read_bytes()[:-60])
    assert 0 < len(history.read(file).records) < whole
    file.write_bytes(b"something else, which is no history at all")
    with pytest.raises(ValueError, match="the file is not a history"):
        history.read(file)


RESTARTED = """
import os, pathlib, sys, time
import torch, torch.distributed as dist

folder = pathlib.Path(sys.argv[1])
again = os.environ["TORCHELASTIC_RESTART_COUNT"] == "1"
dist.init_process_group("ucc")
dist.all_reduce(torch.ones(1))
if dist.get_rank() == 0 and not again:
    (folder / "pid.partial").write_text(str(os.getpid()))
    (folder / "pid.partial").rename(folder / "pid")
while not (folder / "run" / ("2" if again else ".") / f"rank{dist.get_rank()}.history").exists():
    time.sleep(0.05)
for _ in range(7 if again else 4):
    dist.all_reduce(torch.ones(1))
dist.barrier()
if not again:
    sys.exit(1)
"""


def test_a_job_that_torchrun_starts_again_is_recorded_to_its_end(tmp_path: Path) -> None:
    """The ranks of each start call only when they are recorded."""
    (tmp_path / "program.py").write_text(RESTARTED)
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    launch += ["--max-restarts=1", str(tmp_path / "program.py"), str(tmp_path)]
    torchrun = subprocess.Popen(launch, env={**os.environ, "OMP_NUM_THREADS": "1"})
    recorder = None
    try:
        deadline = time.monotonic() + LIMIT
        while not (tmp_path / "pid").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        pid = (tmp_path / "pid").read_text()
        recorder = subprocess.Popen([sys.executable, "-m", "torch_ucc", "record", str(tmp_path / "run"), pid])
        assert torchrun.wait(timeout=LIMIT) == 0
        assert recorder.wait(timeout=LIMIT) == 0
    finally:
        for each in filter(None, (recorder, torchrun)):
            each.terminate()
            each.wait()
    for folder, calls in ((tmp_path / "run", 5), (tmp_path / "run" / "2", 8)):
        dumps = records.load(folder)
        assert [dump.rank for dump in dumps] == [0, 1]
        for dump in dumps:
            assert [each.op for each in dump.records].count("all_reduce") == calls


def in_two_contexts(folder: Path) -> None:
    """A group with settings of its own has its own context."""
    apart = dist.new_group(pg_options=torch_ucc.Options(ucx={"RNDV_THRESH": "64k"}))
    for group, calls in ((dist.group.WORLD, 2), (apart, 3)):
        for _ in range(calls):
            dist.all_reduce(torch.ones(1), group=group)
    if dist.get_rank() == 0:
        subprocess.run(recording(folder, "--seconds", "0.1"), check=True, timeout=LIMIT)
    dist.barrier()


def test_both_contexts_of_a_process_are_recorded(tmp_path: Path) -> None:
    run_ranks(in_two_contexts, 2, tmp_path)
    for dump in records.load(tmp_path):
        assert len({group.context for group in dump.groups.values()}) == 2
        reduces = Counter(dump.group_name(each) for each in dump.records if each.op == "all_reduce")
        assert sorted(reduces.values()) == [2, 3]
