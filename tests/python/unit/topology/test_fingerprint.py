"""`torch_ucc.topology.fingerprint`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from torch_ucc.topology import fingerprint


def test_it_tells_host_memory_and_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    words = fingerprint.host_fingerprint().decode().split()
    assert Path("/proc/sys/kernel/random/boot_id").read_text().strip() in words
    assert str(Path("/proc/self/ns/ipc").readlink()) in words
    monkeypatch.setattr(fingerprint, "usable_here", lambda: 1 + (os.cpu_count() or 1))
    assert fingerprint.host_fingerprint().decode().split() != words


def test_ranks_that_are_kept_to_different_cores_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fingerprint, "usable_here", lambda: 1)
    seen = set()
    for cpu in (0, 1, 200):
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid, cpu=cpu: {cpu})
        seen.add(fingerprint.host_fingerprint())
    assert len(seen) == 3 and b"" not in seen


def test_it_is_silent_where_something_cannot_be_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(fingerprint, "_MACHINE", str(tmp_path / "none"))
    assert fingerprint.host_fingerprint() == b""
