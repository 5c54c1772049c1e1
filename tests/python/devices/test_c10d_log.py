"""What c10d's own logging hears: the logger that a cluster registers, and the one of Python."""

from __future__ import annotations

import logging
from datetime import timedelta
from pathlib import Path

import accelerators
import pytest
import torch
import torch.distributed as dist
from torch.distributed.c10d_logger import _c10d_logger
from torch_ucc.testing import run_ranks

pytestmark = [
    pytest.mark.multirank,
    pytest.mark.skipif(not accelerators.IS_FAKE, reason="the logger is built with the fake accelerator"),
]


class Kept(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.said: list[dict[str, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        assert isinstance(record.msg, dict)
        self.said.append(record.msg)


def left_alone(folder: Path) -> None:
    path = folder / f"rank{dist.get_rank()}"
    library = accelerators.load()
    assert library is not None
    library.register_file_logger(str(path).encode())
    dist.all_reduce(torch.ones(3))
    assert not path.exists()
    store = dist.distributed_c10d._get_default_store()
    if dist.get_rank() == 1:
        store.wait(["test/failed"], timedelta(seconds=60))
        return

    kept = Kept()
    _c10d_logger.addHandler(kept)
    with pytest.raises(dist.DistBackendError) as failed:
        dist.all_reduce(torch.ones(3))
    store.set("test/failed", "1")
    (python,) = kept.said
    assert (python["func_name"], python["backend"], python["group_size"]) == ("all_reduce", "ucc", "2")
    assert python["error"] == str(failed.value)

    heard = dict(line.split("=", 1) for line in path.read_text().splitlines() if "=" in line)
    assert heard["pg_backend"] == "ucc" and heard["status"] == "timeout"
    assert (heard["rank"], heard["global_rank"], heard["world_size"]) == ("0", "0", "2")
    assert (heard["work_name"], heard["work_seq"]) == ("all_reduce", "2")
    assert str(failed.value).startswith(heard["work_ucc_exception"])


def test_a_failure_reaches_the_loggers_of_c10d(tmp_path: Path) -> None:
    run_ranks(left_alone, 2, tmp_path, group_timeout=2.0)
