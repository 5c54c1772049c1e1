"""The constants of this host. Load can stretch every figure, so none is compared with a fixed one."""

from __future__ import annotations

import os
from typing import Any

import pytest
from torch_ucc.topology import cores, measure


def test_a_host_has_constants() -> None:
    usable = cores.usable_here()
    found = measure.host_here(2, 1 << 20)
    assert found.cores == usable and 0 < found.step < 1
    assert min(found.copy, found.reduce, found.tcp) > 1e6


def test_cores_that_are_not_here_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "_rate", lambda _context, _work, processes, _size: 10.0 * processes)
    monkeypatch.setattr(measure, "_notification", lambda _context, crowded: 2.0 if crowded else 1.0)
    monkeypatch.setattr(measure, "_tcp", lambda _context: 3.0)
    monkeypatch.setattr(cores, "usable_here", lambda: 4)
    wide = measure.host_here(16, 1, cores=32)
    assert (wide.copy, wide.reduce, wide.tcp, wide.step) == (160, 160, 48, 1)
    alone = measure.host_here(1, 1)
    assert (alone.copy, alone.step) == (10, 1)
    shared = measure.host_here(2, 1, cores=0.5)
    assert (shared.copy, shared.tcp, shared.step) == (5, 1.5, 8), "four ranks for each core take turns"


def end(_: Any) -> None:
    os._exit(3)


def test_a_process_that_fails_is_named() -> None:
    with pytest.raises(RuntimeError, match="gave no result: one ended with status 3"):
        measure._measured(measure._context(), [(end, ())], 1)
