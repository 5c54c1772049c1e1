"""What commands print, as the pages show it: blocks whose first line is `$ COMMAND`.

`python tests/python/docs/shown.py` runs the commands and writes what they print into the pages. With names of
pages as arguments, it does this for these pages. `test_shown.py` compares the forms of the lines.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pages
from pages import REPOSITORY, Block

LIMIT = 300
"""Seconds until a command is stuck, not how long it takes."""

HOST = "vm"
"""The host on which the outputs were made."""

COLUMNS = 100
"""Width of a terminal whose lines fit into a page."""

COMMANDS = {"torchrun": " -m torch.distributed.run", "torch-ucc": " -m torch_ucc", "python": ""}
"""What the pages call them, and with which arguments Python is each."""

# The command: the job that has to run beside it, or that has to have ended before it.
RUNNING = {
    "torch-ucc status": """
import os, pathlib, torch, torch.distributed as dist
dist.init_process_group("ucc")
for step in range(20):
    dist.all_reduce(torch.ones(1000))
if dist.get_rank() == 1:
    pathlib.Path("pid").write_text(str(os.getpid()))
    pathlib.Path("late").touch()
    while True:
        pass
dist.all_reduce(torch.ones(1000))
"""
}
ENDED = {
    "torch-ucc trace show run.json": """
import torch, torch.distributed as dist, torch_ucc
dist.init_process_group("ucc")
with torch_ucc.trace("run.json"):
    for step in range(3):
        dist.all_reduce(torch.ones(1 << 20))
    dist.barrier()
dist.destroy_process_group()
"""
}
# Lines that a command may print or not, by the machine and its load. They have other tests.
MAY_VARY = re.compile(
    r"Other processes used|\?: the spread|"  # ci/bench
    r"There was no time|No measured setting|All choices were measured|  \w+ .* noise |"  # torch-ucc tune
    r"rank \d+ +\d+ of "  # torch-ucc trace show: one line for each rank that came last
)
_NUMBER = re.compile(r"(?<![A-Za-z_])\d[\d.,]*( ?([kKMG]i?B(/s)?|B|ns|us|µs|ms|s|x|%)\b)?")
_PROCESSOR = re.compile(r"^.+(?=, \d+ of \d+ cores, torch )")
_NOISE = re.compile(r" ±\d+%\??")
_VERDICT = re.compile(r"\b(met|missed(, by the floor too)?|too noisy to tell)$")


def outputs() -> list[Block]:
    """The blocks of the folder docs that show one command and what it prints."""
    return [
        block for block in pages.blocks() if block.page.startswith("docs/") and block.text.startswith("$ ")
    ]


def command_of(block: Block) -> str:
    return block.text.splitlines()[0].removeprefix("$ ")


def form(line: str) -> str:
    """A line without what changes from one run to the next, or from one machine to the next."""
    line = re.sub(rf"\b({re.escape(HOST)}|{re.escape(socket.gethostname())})\b", "HOST", line)
    line = _PROCESSOR.sub("PROCESSOR", line)
    line = _VERDICT.sub("VERDICT", _NUMBER.sub("#", _NOISE.sub("", line)))
    return re.sub(r"-{3,}", "---", " ".join(line.split()))


def forms(lines: Sequence[str]) -> list[str]:
    return [form(line) for line in lines if line.strip() and not MAY_VARY.match(line)]


@contextlib.contextmanager
def desk() -> Iterator[Path]:
    """A folder in which the commands of the pages can be typed."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "bin").mkdir()
        for command, means in COMMANDS.items():
            script = folder / "bin" / command
            script.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)}{means} "$@"\n')
            script.chmod(0o755)
        for each in ("examples", "tests", "ci"):
            (folder / each).symlink_to(REPOSITORY / each)
        yield folder


def environment(folder: Path) -> dict[str, str]:
    path = f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "OMP_NUM_THREADS": "1", "COLUMNS": str(COLUMNS)}


def job(program: str, folder: Path, ranks: int = 2) -> subprocess.Popen[bytes]:
    (folder / "train.py").write_text(program)
    command = ["torchrun", "--standalone", f"--nproc-per-node={ranks}", "train.py"]
    log = (folder / "log").open("wb")
    return subprocess.Popen(command, cwd=folder, env=environment(folder), stdout=log, stderr=log)


def wait_until_late(process: subprocess.Popen[bytes], folder: Path) -> None:
    """Until rank 1 is outside of torch-ucc, and rank 0 has had time to wait for it."""
    end = time.monotonic() + LIMIT
    while not (folder / "late").exists():
        assert process.poll() is None and time.monotonic() < end, (folder / "log").read_text()
        time.sleep(0.1)
    time.sleep(3)


def printed_by(command: str) -> list[str]:
    """The lines that the command prints on stdout."""
    with desk() as folder, contextlib.ExitStack() as ending:
        if command in ENDED:
            assert job(ENDED[command], folder).wait(LIMIT) == 0, (folder / "log").read_text()
        if command in RUNNING:
            process = job(RUNNING[command], folder, ranks=4)
            ending.callback(process.wait)
            ending.callback(process.terminate)
            wait_until_late(process, folder)
            command += f" {(folder / 'pid').read_text()}"  # there may be other jobs on this host
        done = subprocess.run(
            ["timeout", "--kill-after=10", str(LIMIT), "bash", "-c", command],
            cwd=folder,
            env=environment(folder),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        assert done.returncode in (0, 1), done.stderr
        return [line.rstrip() for line in done.stdout.strip().splitlines()]


def main(names: Sequence[str]) -> None:
    for block in outputs():
        if names and block.page not in names:
            continue
        command = command_of(block)
        print(f"{block.page}: {command}", flush=True)
        page = REPOSITORY / block.page
        text = "\n".join([f"$ {command}", *printed_by(command)]) + "\n"
        page.write_text(page.read_text().replace(block.text, text))


if __name__ == "__main__":
    main(sys.argv[1:])
