"""One release of this checkout for all tests that look at one."""

from __future__ import annotations

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
    """The folder with what ci/wheel makes."""
    folder = tmp_path_factory.mktemp("released")
    done = subprocess.run(
        ["timeout", "--kill-after=10", "1800", CHECKOUT / "ci" / "wheel", folder],
        env={**os.environ, "SOURCE_DATE_EPOCH": str(epoch), "TORCH_UCC_PYTHON": sys.executable},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    return folder


@pytest.fixture(scope="session")
def sdist(released: Path) -> Path:
    (made,) = released.glob("torch_ucc-*.tar.gz")
    return made


@pytest.fixture(scope="session")
def wheel(released: Path) -> Path:
    (made,) = released.glob("torch_ucc-*.whl")
    return made
