"""One release of this checkout for all tests that look at one."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="session")
def epoch() -> int:
    """The time that all files of the release are to bear."""
    return 1_700_000_000


@pytest.fixture(scope="session")
def released(epoch: int, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with what ci/wheel makes: the first of pytest-xdist's workers makes it for all."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "released"
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            release(folder, epoch)
    return folder


def release(folder: Path, epoch: int) -> None:
    made = folder.with_suffix(".part")
    done = subprocess.run(
        ["timeout", "--kill-after=10", "1800", CHECKOUT / "ci" / "wheel", made],
        env={**os.environ, "SOURCE_DATE_EPOCH": str(epoch), "TORCH_UCC_PYTHON": sys.executable},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    made.rename(folder)


@pytest.fixture(scope="session")
def sdist(released: Path) -> Path:
    (made,) = released.glob("torch_ucc-*.tar.gz")
    return made


@pytest.fixture(scope="session")
def wheel(released: Path) -> Path:
    (made,) = released.glob("torch_ucc-*.whl")
    return made
