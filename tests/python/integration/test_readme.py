"""What the README says, and the page of all pages."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from torch_ucc.testing import run_script

REPOSITORY = Path(__file__).resolve().parents[3]
README = (REPOSITORY / "README.md").read_text()
PAGES = (REPOSITORY / "docs" / "README.md").read_text()
INSTALL = (REPOSITORY / "docs" / "install.md").read_text()

pytestmark = pytest.mark.multirank


def blocks(language: str) -> list[str]:
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    return [text for name, text in fenced if name == language]


def test_the_program_prints_what_the_readme_shows() -> None:
    program = blocks("python")[0]
    shown = next(block for block in blocks("") if block.startswith("$ "))
    # Both ranks write to one file, so a line may follow another's without a break.
    printed = run_script(program, 2)
    assert sorted(re.findall(r"rank \d of \d: \[[^\]]*\]", printed)) == shown.splitlines()[1:]


def test_the_example_is_that_program() -> None:
    code = (REPOSITORY / "examples" / "all_reduce.py").read_text().split('"""\n\n', 1)[1]
    assert code == blocks("python")[0]


def test_the_page_of_installing_has_the_same_commands() -> None:
    commands = blocks("")[0]
    assert commands.startswith("ci/demo")
    assert f"```\n{commands}```" in INSTALL


def test_every_command_is_told() -> None:
    from torch_ucc.cli import COMMANDS

    told = PAGES[PAGES.index("## Commands") :]
    for name in COMMANDS:
        assert f"`{name}" in told


def test_the_readme_is_short() -> None:
    assert len(README.split()) < 900
