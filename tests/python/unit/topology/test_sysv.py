"""`torch_ucc.topology.sysv`: against a kernel that has memory of System V, and one that has little."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from torch_ucc.topology import sysv


def test_it_is_tried_and_nothing_is_left() -> None:
    sysv.works.cache_clear()
    assert sysv.works() is Path("/proc/sysvipc/shm").exists()
    creators = [line.split()[4] for line in Path("/proc/sysvipc/shm").read_text().splitlines()]
    assert creators[0] == "cpid" and str(os.getpid()) not in creators


@pytest.mark.parametrize(
    ("limit", "works"),
    [
        ("echo 0 >/proc/sys/kernel/shmmni", False),
        ("echo 1000 >/proc/sys/kernel/shmall", False),
        ("echo 1 >/proc/sys/kernel/shmmni; ipcmk --shmem 1 >/dev/null", True),  # as all others here are told
    ],
)
def test_where_there_is_too_little(limit: str, works: bool) -> None:
    limited = ["unshare", "--ipc", "sh", "-ec", f'{limit}; exec "$@"', "sh"]
    if subprocess.run([*limited, "true"], stderr=subprocess.DEVNULL).returncode:
        pytest.skip("namespaces are not allowed here")
    code = "from torch_ucc.topology import sysv; print(sysv.works())"
    told = subprocess.run(
        [*limited, sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=True
    )
    assert told.stdout == f"{works}\n"
