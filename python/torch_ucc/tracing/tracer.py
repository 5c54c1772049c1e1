"""Every operation of this process while a trace is on, not only the last ones that the recorder holds."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

from torch_ucc import config
from torch_ucc._native import extension
from torch_ucc.tracing.records import path_for
from torch_ucc.tracing.steps import Steps

PERIOD = 0.01
"""Seconds between two looks at the recorder: its ring must not go round meanwhile."""


@contextlib.contextmanager
def trace(path: Path | str) -> Iterator[None]:
    """Record all operations of this rank within the `with` block, with the code that called each of them.

    At the end of the block, each rank writes a file: `run.rank0.json` if `path` is `run.json`, and
    `run/rank0.json` if `path` is `run`. `torch-ucc trace show` reads the files of all ranks together.
    """
    tracer = Tracer(Path(path))
    tracer.start()
    try:
        yield
    finally:
        tracer.stop()


def mark_step() -> None:
    """Mark the end of an iteration of this program in the trace. Without a trace, this has no effect.

    `torch-ucc trace show` shows how each iteration spent its time. A program that uses torch.optim need not
    call this: there, each step() of the optimizer that steps first ends an iteration. A step() that
    torch.compile compiles does not. After the first call of mark_step(), only its calls end iterations.
    """
    for tracer in list(Tracer._on):
        tracer.steps.mark()


class Tracer:
    """Takes new records out of the recorder in a thread, until stop() writes them."""

    _on: ClassVar[set[Tracer]] = set()
    """Several may be at once: who called is recorded as long as one is."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._compiled = extension.compiled()
        self._records: dict[int, dict[str, Any]] = {}
        self._since = 1
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ucc-trace", daemon=True)

    def start(self) -> None:
        self._since = json.loads(self._compiled.flight_recorder(since=1 << 63))["last_id"] + 1
        self._first = self._since
        self.steps = Steps()
        self._on.add(self)
        self._compiled.record_sites(True)
        self._thread.start()

    def stop(self) -> None:
        """Writes the file, with what is still in flight as it is. A second call does nothing."""
        if self._stopping.is_set():
            return
        self._stopping.set()
        self._thread.join()
        self._on.discard(self)
        self.steps.close()
        self._compiled.record_sites(bool(self._on) or config.in_force().trace_sites)
        data = self._take()
        data["records"] = [self._records[number] for number in sorted(self._records)]
        data["steps"] = self.steps.times
        data["lost"] = sum(number not in self._records for number in range(self._first, data["last_id"] + 1))
        file = path_for(self._path, data["rank"])
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(data))

    def _run(self) -> None:
        while not self._stopping.wait(PERIOD):
            self._take()

    def _take(self) -> dict[str, Any]:
        data: dict[str, Any] = json.loads(self._compiled.flight_recorder("trace", self._since))
        self._records.update((each["id"], each) for each in data["records"])
        over = {each["id"] for each in data["records"] if each["ended_ns"]}
        seen_last = data["last_id"] + 1
        held = range(max(self._since, data["first_id"]), seen_last)
        self._since = next((number for number in held if number not in over), seen_last)
        return data
