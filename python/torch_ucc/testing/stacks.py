"""Shows what a stuck process does: reads the stacks of its Python and native threads from another process.

After `register` has run in a process, its stacks can be read even if its main thread or its GIL is stuck.
Each step has a time limit, and a step without a result says so.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

SIGNAL = signal.SIGUSR2
"""The signal at which a registered process writes its Python stacks."""


def register(path: Path) -> None:
    """Make this process append its Python stacks to `path` whenever it receives `SIGNAL`. Empties the file.

    The handler is C code that reads the interpreter's frames without the GIL.
    """
    stream = path.open("w")  # stays open for the life of the process: the handler owns the descriptor
    faulthandler.register(SIGNAL, file=stream, all_threads=True, chain=False)


def python_stacks(files: Mapping[int, Path], limit_s: float = 5.0) -> dict[int, str]:
    """Return the Python stacks of registered processes. `files` has the path of each pid.

    A process that does not answer within `limit_s` seconds gets the text "(no answer)".
    """
    for pid, path in files.items():
        if path.exists():  # else it has not registered yet, and the signal would end it
            _send(pid, SIGNAL)
    return {pid: _settled_text(path, limit_s) or "(no answer)\n" for pid, path in files.items()}


def native_stacks(pids: Iterable[int], limit_s: float = 60.0) -> dict[int, str]:
    """Return the C stacks of all threads of each process.

    They come from gdb, or from py-spy if gdb gives none. If neither gives any, the text says in which
    function of the kernel each thread is. The debuggers run at the same time, and `limit_s` limits all of
    them together.
    """
    pids = list(pids)
    deadline = time.monotonic() + limit_s
    found: dict[int, str] = {}
    for tool in (_gdb, _py_spy):
        missing = [pid for pid in pids if pid not in found]
        running = {pid: _start(command) for pid in missing if (command := tool(pid)) is not None}
        for pid, process in running.items():
            text = _output(process, max(0.1, deadline - time.monotonic()))
            if "#0" in text or "Thread" in text:
                found[pid] = text
    return {pid: found.get(pid) or _kernel_view(pid) for pid in pids}


def descendants(pid: int) -> list[int]:
    """Return the ids of all living descendants of `pid`, parents before their children."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        child = int(stat.parent.name)
        state, parent = _state_and_parent(child)
        if state not in "ZX":
            children.setdefault(parent, []).append(child)
    found = list(children.get(pid, ()))
    for parent in found:  # grows while it is walked
        found.extend(children.get(parent, ()))
    return found


def ended(pid: int) -> bool:
    """Return whether the process has ended. A zombie has ended, too."""
    return _state_and_parent(pid)[0] in "ZX"


def kill(pids: Iterable[int], which: signal.Signals = signal.SIGKILL) -> None:
    """Send `which` to each process that still exists."""
    for pid in pids:
        _send(pid, which)


def _state_and_parent(pid: int) -> tuple[str, int]:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return "X", 0
    return fields[0], int(fields[1])


def _send(pid: int, which: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, which)


def _settled_text(path: Path, limit_s: float) -> str:
    """The file's text once it has stopped growing: a dump has no end mark, but is written in one go."""
    deadline = time.monotonic() + limit_s
    size = 0
    while time.monotonic() < deadline:
        time.sleep(0.1)
        now = path.stat().st_size if path.exists() else 0
        if now and now == size:
            break
        size = now
    return path.read_text(errors="replace") if size else ""


def _gdb(pid: int) -> list[str] | None:
    gdb = shutil.which("gdb")
    quiet = ["-batch", "-nx", "-iex", "set debuginfod enabled off", "-ex", "set pagination off"]
    return [gdb, "-p", str(pid), *quiet, "-ex", "thread apply all bt 40"] if gdb else None


def _py_spy(pid: int) -> list[str] | None:
    py_spy = shutil.which("py-spy")
    return [py_spy, "dump", "--native", "--pid", str(pid)] if py_spy else None


def _start(command: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )


def _output(process: subprocess.Popen[str], limit_s: float) -> str:
    try:
        return process.communicate(timeout=limit_s)[0]
    except subprocess.TimeoutExpired:
        process.kill()
        return process.communicate()[0]


def _kernel_view(pid: int) -> str:
    """Where each thread sleeps in the kernel: little, but always there."""
    lines = ["(no debugger could attach; the kernel's view)"]
    for task in sorted(Path(f"/proc/{pid}/task").glob("*")):
        facts = []
        for name in ("comm", "wchan", "syscall", "stack"):
            try:
                facts.append(f"{name}: {(task / name).read_text().strip()}")
            except OSError as error:
                facts.append(f"{name}: {error.strerror}")
        lines.append(f"thread {task.name}: " + "; ".join(facts))
    return "\n".join(lines) + "\n"
