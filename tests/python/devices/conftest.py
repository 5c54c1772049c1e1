"""The cases and the oracle are those of the conformance tests."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "conformance"))

import accelerators  # found beside this file


@pytest.fixture(scope="session", autouse=True)
def accelerator() -> None:
    accelerators.prepare()
