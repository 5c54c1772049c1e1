"""The page of the first program: its program and its commands print what it shows, on one host and on two."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys

import pages
import pytest
from pages import REPOSITORY
from torch_ucc.testing.hosts import hosts, why_not

PAGE = "docs/first-program.md"
BLOCKS = [block for block in pages.blocks() if block.page == PAGE]
EXAMPLE = "examples/all_reduce.py"
LIMIT = 120
"""Seconds until a command is stuck, not how long it takes."""


def torchrun(command: str) -> list[str]:
    launcher, *words = shlex.split(command)
    assert launcher == "torchrun"
    return [sys.executable, "-m", "torch.distributed.run", *words]


def torch_ucc_hosts(command: str) -> list[str]:
    program, *words = shlex.split(command)
    at = words.index("torchrun")
    assert program == "torch-ucc"
    return [sys.executable, "-m", "torch_ucc", *words[:at], *torchrun(shlex.join(words[at:]))]


def started(command: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        ["timeout", "--kill-after=10", str(LIMIT), *command],
        cwd=REPOSITORY,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def lines_of_ranks(printed: str) -> list[str]:
    """All ranks write to one file, so a line may follow another one without a break."""
    return sorted(re.findall(r"rank \d of \d: \[[^\]]*\]", printed))


def test_the_program_is_the_example() -> None:
    (program,) = [block.text for block in BLOCKS if block.language == "python"]
    assert (REPOSITORY / EXAMPLE).read_text().endswith(f'"""\n\n{program}')


@pytest.mark.multirank
def test_the_laptop_prints_what_is_shown() -> None:
    (shown,) = [block.text for block in BLOCKS if block.text.startswith("$ ")]
    command, *lines = shown.removeprefix("$ ").splitlines()
    process = started(torchrun(command))
    printed, _ = process.communicate()
    assert process.returncode == 0, printed
    assert lines_of_ranks(printed) == lines


@pytest.mark.multirank
def test_two_hosts_print_what_is_said() -> None:
    """On simulated hosts, which have the names of the page."""
    if reason := why_not():
        pytest.skip(reason)
    (block,) = [block for block in BLOCKS if "--nnodes=2" in block.text]
    first = re.search(r"`(rank 0 of 4: [^`]*)`", (REPOSITORY / PAGE).read_text())
    assert first is not None
    with hosts(2) as pair:
        here = ["env", f"--chdir={REPOSITORY}"]  # a command on a host starts in the root folder
        processes = [started([*pair.at(i), *here, *torchrun(line)]) for i, line in enumerate(block.lines())]
        printed = [process.communicate()[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], printed
    told = [first[1].replace("rank 0", f"rank {rank}") for rank in range(4)]
    assert [lines_of_ranks(each) for each in printed] == [told[:2], told[2:]]


@pytest.mark.multirank
def test_the_command_makes_a_job_of_simulated_hosts() -> None:
    if reason := why_not():
        pytest.skip(reason)
    (block,) = [block for block in BLOCKS if block.text.startswith("torch-ucc hosts ")]
    process = started(torch_ucc_hosts(block.text))
    printed, _ = process.communicate()
    assert process.returncode == 0, printed
    assert len(lines_of_ranks(printed)) == 4
    sent = re.findall(r"^host(\d) +([\d.]+) KB$", printed, re.MULTILINE)
    assert [host for host, _ in sent] == ["0", "1"], printed


@pytest.mark.multirank
def test_the_first_failure_on_a_host_is_the_status() -> None:
    if reason := why_not():
        pytest.skip(reason)
    fails_on_host_1 = ["sh", "-c", "test $(hostname) = host0 || exit 5"]
    process = started([sys.executable, "-m", "torch_ucc", "hosts", "--rate", "1gbit", "3", *fails_on_host_1])
    printed, _ = process.communicate()
    assert process.returncode == 5, printed
