"""Hosts whose steady clocks differ, as those of real ones do: a trace lays their operations side by side."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch_ucc
from torch_ucc.testing.hosts import hosts
from torch_ucc.tracing import records, timeline
from torch_ucc.tracing.__main__ import main
from torch_ucc.tracing.clocks import offsets

pytestmark = [
    pytest.mark.multirank,
    pytest.mark.skipif(
        not Path("/proc/self/ns/time_for_children").exists(), reason="the kernel has no clocks for namespaces"
    ),
]

SECOND = 1_000_000_000
AHEAD = (1000, 6000)
WALL_WRONG_BY = 3600 * SECOND


def traced(folder: Path) -> None:
    tensor = torch.ones(4)
    with torch_ucc.trace(folder):
        for _ in range(50):
            dist.all_reduce(tensor)


def test_a_trace_of_hosts_with_other_clocks_is_put_right(
    hosts_allowed: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with hosts(2, AHEAD) as pair:
        pair.run(traced, tmp_path, per_host=2)
    dumps = records.load(tmp_path)
    assert len({dump.boot_id for dump in dumps}) == 2
    assert dumps[2].steady_ns - dumps[0].steady_ns > 4000 * SECOND

    # The clocks of the wall agree here: if they were believed, it would be seen.
    wrong = [
        dataclasses.replace(dump, wall_ns=dump.wall_ns + WALL_WRONG_BY * (dump.rank > 1)) for dump in dumps
    ]
    found = offsets(wrong)
    truth = (AHEAD[0] - AHEAD[1]) * SECOND
    took = defaultdict(list)
    for dump in dumps:
        for record in dump.records:
            took[record.seq].append(record.ended_ns - record.issued_ns)
    quickest = min(map(max, took.values()))
    assert found[0] == found[1] == 0 and found[2] == found[3]
    assert abs(found[2] - truth) <= quickest

    operations = defaultdict(list)
    for entry in timeline.merge(wrong):
        operations[entry.record.seq].append(entry)
    assert len(operations) == 50
    for each in operations.values():
        assert len(each) == 4 and min(e.end_ns for e in each) >= max(e.start_ns for e in each)

    assert main(["show", str(tmp_path)]) == 0
    assert "200 operations of 4 ranks in 1 group," in capsys.readouterr().out
