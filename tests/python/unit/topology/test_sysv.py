"""`torch_ucc.topology.sysv`: against a kernel that has memory of System V, and one that has none left."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from torch_ucc.topology import sysv


def segments() -> int:
    return len(Path("/proc/sysvipc/shm").read_text().splitlines())


def test_it_is_tried_and_nothing_is_left() -> None:
    before = segments()
    assert sysv.works()
    assert segments() == before


def test_where_there_is_none() -> None:
    limited = ["unshare", "--ipc", "sh", "-ec", 'echo 0 >/proc/sys/kernel/shmmni; exec "$@"', "sh"]
    if subprocess.run([*limited, "true"], stderr=subprocess.DEVNULL).returncode:
        pytest.skip("namespaces are not allowed here")
    code = "from torch_ucc.topology import sysv; print(sysv.works())"
    told = subprocess.run(
        [*limited, sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True
    )
    assert told.stdout == "False\n"
