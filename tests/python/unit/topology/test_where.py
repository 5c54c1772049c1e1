"""`torch_ucc.topology.where`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from torch_ucc.topology import where


def test_it_tells_host_memory_and_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    words = where.here().decode().split()
    assert Path("/proc/sys/kernel/random/boot_id").read_text().strip() in words
    assert str(Path("/proc/self/ns/ipc").readlink()) in words
    monkeypatch.setattr(where, "usable_here", lambda: 1 + (os.cpu_count() or 1))
    assert where.here().decode().split() != words


def test_ranks_that_are_kept_to_different_cores_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(where, "usable_here", lambda: 1)
    seen = set()
    for cpu in (0, 1, 200):
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid, cpu=cpu: {cpu})
        seen.add(where.here())
    assert len(seen) == 3 and b"" not in seen


def test_it_is_silent_where_something_cannot_be_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(where, "_MACHINE", str(tmp_path / "none"))
    assert where.here() == b""
