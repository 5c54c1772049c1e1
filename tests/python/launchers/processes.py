"""Commands that run side by side, each with its output in a file, and that never outlive the test."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from torch_ucc.testing import stacks

LIMIT = 120.0
"""Seconds until something is stuck, not how long it takes."""


@dataclass(frozen=True)
class Running:
    process: subprocess.Popen[bytes]
    output: Path

    def text(self) -> str:
        return self.output.read_text(errors="replace")

    def finish(self, status: int | None = 0, limit: float = LIMIT) -> str:
        """Wait for the end; return what was printed. `status`: the one it must end with, None for any."""
        try:
            ended_with = self.process.wait(limit)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"not ended after {limit:g} s:\n{self.text()}") from None
        assert status is None or ended_with == status, f"exit status {ended_with}:\n{self.text()}"
        return self.text()


@contextlib.contextmanager
def running(folder: Path, *command: str | Path, env: Mapping[str, str] | None = None) -> Iterator[Running]:
    """Start a command in `folder`; kill it and all that it started when the block is left."""
    output = folder / f"output-{time.monotonic_ns()}"
    with output.open("wb") as sink:  # a file: a pipe would wait for every process that holds it
        process = subprocess.Popen(
            [str(word) for word in command],
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
            env={**os.environ, "OMP_NUM_THREADS": "1", **(env or {})},
            cwd=folder,
        )
    try:
        yield Running(process, output)
    finally:
        if process.poll() is None:
            stacks.kill([*stacks.descendants(process.pid), process.pid])
            process.wait()


def run(folder: Path, *command: str | Path, env: Mapping[str, str] | None = None) -> str:
    """What a command prints that ends with status 0, run in `folder`."""
    with running(folder, *command, env=env) as started:
        return started.finish()


def wait_until(there: Callable[[], bool], what: str, *beside: Running) -> None:
    """Fails with the output of `beside` if `what` is not there in time."""
    deadline = time.monotonic() + LIMIT
    while not there():
        if time.monotonic() > deadline:
            told = "\n".join(each.text() for each in beside)
            raise AssertionError(f"no {what} after {LIMIT:g} s:\n{told}")
        time.sleep(0.05)


def free_port() -> int:
    """A port that was free a moment ago, for launchers that want to be told one."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
