"""Who has the README and a fresh clone: all of its commands, in order, and what it says of them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

LIMIT = 1800.0
"""Seconds for each command: setting up downloads a torch, and compiles what ccache does not have."""

pytestmark = [pytest.mark.slow, pytest.mark.multirank]

LEFT_OUT = {"ci/test": "this is a part of it"}


def environment() -> dict[str, str]:
    """The caller's, without what leads to this checkout."""
    ours = str(Path(sys.prefix) / "bin")
    path = os.pathsep.join(each for each in os.environ["PATH"].split(os.pathsep) if each != ours)
    leads_here = ("PYTHON", "VIRTUAL_ENV", "TORCH_UCC_", "CMAKE_ARGS")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(leads_here)}
    return {**kept, "PATH": path, "OMP_NUM_THREADS": "1"}


def obey(command: str, folder: Path) -> str:
    done = subprocess.run(
        ["timeout", "--kill-after=10", str(LIMIT), "bash", "-c", command],
        cwd=folder,
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, f"{command} ended with {done.returncode}:\n{done.stdout}"
    return done.stdout


def commands(readme: str) -> Iterator[tuple[str, list[str]]]:
    """Each command of a block without a language, and the lines that the block shows it to print."""
    for language, block in re.findall(r"^```(\w*)\n(.*?)^```$", readme, re.MULTILINE | re.DOTALL):
        if language:
            continue
        lines = [re.sub(r"\s+#.*", "", line) for line in block.splitlines()]
        if lines[0].startswith("$ "):
            yield lines[0].removeprefix("$ "), lines[1:]
        else:
            yield from ((line, []) for line in lines)


def test_from_the_readme_alone(repository: Path, tmp_path: Path) -> None:
    obey(f"git clone --quiet '{repository}' torch-ucc", tmp_path)
    clone = tmp_path / "torch-ucc"
    printed = {}
    for command, shown in commands((clone / "README.md").read_text()):
        if command in LEFT_OUT:
            assert os.access(clone / command, os.X_OK)
            continue
        printed[command] = obey(command, clone)
        # Two ranks write to one file, so a line may follow another's without a break.
        assert [line for line in shown if line not in printed[command]] == [], printed[command]

    over_ucc, over_gloo = printed["ci/demo"].split("== the same over gloo ==")
    assert "import torch finds the backend" in over_ucc
    assert "2 ranks over ucc" in over_ucc.split("== training over ucc ==")[1]
    assert "2 ranks over gloo" in over_gloo
    assert [*(clone / "dist").glob("torch_ucc-*.whl")]
    assert obey("git status --porcelain", clone) == ""
