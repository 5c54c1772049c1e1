"""The command line: `torch-ucc COMMAND`, or `python -m torch_ucc COMMAND` where torchrun starts it.

Presentation only: what a command shows comes from functions that return data. A command's module is imported
when it is called, so that none waits for torch that does not need it.
"""

from __future__ import annotations

import importlib
import os
import sys

from torch_ucc._autoload import autoload

# Name: the module whose main(arguments) runs it and returns the exit status, and what it does.
COMMANDS = {
    "topo": (
        "torch_ucc.cli.topo",
        "show the processors, memory and devices of this machine, and the distances between them",
    ),
    "plan": ("torch_ucc.cli.plan", "show how the ranks of a job would communicate, and why"),
    "info": (
        "torch_ucc.cli.info",
        "show the versions, settings and plan of this process or, under torchrun, of a job",
    ),
    "doctor": ("torch_ucc.cli.doctor", "find problems of this machine or job, and say how to solve them"),
    "config": ("torch_ucc.cli.config", "list all settings with their values and where they come from"),
    "bench": ("torch_ucc.bench.__main__", "measure operations and compare them with other libraries"),
    "hosts": ("torch_ucc.cli.hosts", "run a command on several simulated hosts of this machine"),
    "tune": ("torch_ucc.tuning.__main__", "find faster settings for a job by measuring, under torchrun"),
    "status": (
        "torch_ucc.status.__main__",
        "show what the ranks of a running job do, and which rank is late",
    ),
    "record": ("torch_ucc.status.history", "record every operation of a running job in files"),
    "trace": (
        "torch_ucc.tracing.__main__",
        "show recorded operations, compare two runs, or find out what went wrong",
    ),
    "replay": ("torch_ucc.tracing.replay", "run the operations of a recorded job again, under torchrun"),
}

WITHOUT_TORCH = {"record", "status", "trace"}


def usage() -> str:
    width = max(map(len, COMMANDS))
    rows = "\n".join(f"  {name:<{width}}  {does}" for name, (_, does) in COMMANDS.items())
    return f"usage: torch-ucc COMMAND ...\n\n{rows}\n\nHelp on a command: torch-ucc COMMAND --help"


def main(arguments: list[str] | None = None) -> int:
    name, *rest = (sys.argv[1:] if arguments is None else arguments) or ["--help"]
    if name in ("-h", "--help"):
        print(usage())
        return 0
    if name not in COMMANDS:
        print(f"torch-ucc: there is no command {name!r}\n\n{usage()}", file=sys.stderr)
        return 2
    if name not in WITHOUT_TORCH:
        import torch  # noqa: F401

        autoload()
    try:
        status: int = importlib.import_module(COMMANDS[name][0]).main(rest)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader has gone, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the flush at exit
        return 1
    return status
