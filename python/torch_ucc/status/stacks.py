"""What the threads of a rank do, from outside."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path

from torch_ucc import _style
from torch_ucc.status import doors
from torch_ucc.status.announce import MEMORY
from torch_ucc.status.job import Job, Rank, shown
from torch_ucc.status.segment import Process

LIMIT_S = 1.0
"""For a process to write its Python stack."""
DEBUGGER_LIMIT_S = 60.0
"""For a program that reads the stacks of all threads."""
NO_ANSWER = "no answer: the process is stopped, or the kernel has not let it run"

_GDB = ("-iex", "set debuginfod enabled off", "-iex", "set auto-load off", "-ex", "thread apply all bt 40")
_PROGRAMS = {
    "py-spy": (("dump", "--native", "--pid"), "Python and C frames of the Python threads"),
    "eu-stack": (("-p",), "C frames of all threads"),
    "gdb": (("-batch", "-nx", *_GDB, "-p"), "C frames of all threads"),
}
"""What reads stacks from outside: its options, which the pid follows, and what it shows."""


def python_stack(process: Process) -> str:
    """Of its main thread, the innermost frame first; or why there is none."""
    asked = process.facts.get("stacks")
    if asked is None:
        return "the process does not offer its stacks"
    number, descriptor = asked
    try:
        caught = int(status_of(Path(f"/proc/{process.pid}"))["SigCgt"], 16)
        if not caught >> (number - 1) & 1:
            return "the process no longer offers its stacks"
        path = Path(f"/proc/{process.pid}/fd/{descriptor}")
        if not str(path.readlink()).startswith(f"/memfd:{MEMORY}"):
            return "the process no longer offers its stacks"
        with path.open("r+b") as file:
            file.truncate()
            os.kill(process.pid, number)

            def text() -> bytes:
                file.seek(0)
                return file.read()

            return settled(text) or NO_ANSWER
    except OSError as error:
        return f"the process cannot be asked for its stacks: {error.strerror}"


def stack_of_other_host(job: Job, rank: Rank) -> str | None:
    """The same, through a rank of that host; None if none there gives an answer."""
    host = list(job.hosts).index(rank.host)
    ways = {door for door in job.ways_in() if door.host == host}
    # The rank itself may be stopped.
    for door in sorted(ways, key=lambda door: (door.rank == rank.rank, door.rank))[: doors.AT_ONCE]:
        if (answer := _through(door, doors.Question.ASK_STACK, rank)) is None:
            continue
        if not answer:
            return "the process does not offer its stacks"
        return settled(partial(_through, door, doors.Question.STACK, rank)) or NO_ANSWER
    return None


def _through(door: doors.Door, what: doors.Question, rank: Rank) -> bytes | None:
    answer = doors.ask({door.host: [door]}, what, rank.rank)[door.host]
    return answer if isinstance(answer, bytes) else None


def settled(read: Callable[[], bytes | None]) -> str:
    """The text once it has stopped growing; empty if there is none in time."""
    deadline = time.monotonic() + LIMIT_S
    before: bytes | None = None
    while time.monotonic() < deadline:
        time.sleep(0.05)
        now = read()
        if now and now == before:
            return now.decode(errors="replace").strip()
        before = now
    return ""


def threads(pid: int) -> str:
    """A table of the threads of a process. Those that do the same share a row."""
    alike: dict[tuple[str, str, str], list[Path]] = defaultdict(list)
    for task in Path(f"/proc/{pid}/task").glob("*"):
        try:
            status = status_of(task)
        except OSError:
            continue  # it has ended
        alike[status["Name"], status["State"], _in_kernel(task)].append(task)
    rows = [
        (shown(int(task.name) for task in tasks), *what, f"{sum(map(_seconds, tasks)):.2f} s")
        for what, tasks in sorted(alike.items(), key=lambda row: min(int(task.name) for task in row[1]))
    ]
    return _style.table(("thread", "name", "state", "in kernel function", "CPU time"), rows)


def status_of(folder: Path) -> dict[str, str]:
    """What the kernel says of a process or thread. Raises OSError if there is none."""
    lines = (folder / "status").read_text(errors="replace").splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def _in_kernel(task: Path) -> str:
    """The function in which it sleeps or, if the kernel does not tell, the number of the system call."""
    try:
        function = (task / "wchan").read_text().strip()
        if function not in ("", "0"):
            return function
        number = (task / "syscall").read_text().split()[0]
    except (OSError, IndexError):
        return "?"
    return "" if number in ("running", "-1") else f"system call {number}"


def _seconds(task: Path) -> float:
    try:
        fields = (task / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def all_stacks(pid: int) -> str:
    """Of all threads, by programs that are installed. They stop the process while they read its stacks."""
    programs = {name: path for name in _PROGRAMS if (path := _installed(name))}
    if "eu-stack" in programs:
        programs.pop("gdb", None)
    parts = [_output(name, path, pid) for name, path in programs.items()]
    if "py-spy" not in programs:
        parts.append("For Python stacks of all threads, install py-spy (pip install py-spy).")
    if not {"eu-stack", "gdb"} & programs.keys():
        parts.append("For C stacks of all threads, install eu-stack (package elfutils) or gdb.")
    return "\n\n".join(parts)


def _installed(name: str) -> str | None:
    """A package of this Python may be installed although it is not on the path."""
    return shutil.which(name) or shutil.which(name, path=str(Path(sys.executable).parent))


def _output(name: str, path: str, pid: int) -> str:
    options, what = _PROGRAMS[name]
    head = _style.bold(f"{what}, by {name}:")
    try:
        ran = subprocess.run(
            [path, *options, str(pid)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=DEBUGGER_LIMIT_S,
            text=True,
            errors="replace",
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"{head}\nno answer in {DEBUGGER_LIMIT_S:.0f} s"
    return f"{head}\n{ran.stdout.strip() or f'{name} ended with status {ran.returncode}'}"
