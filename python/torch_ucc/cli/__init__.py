"""The command line: `torch-ucc COMMAND`, or `python -m torch_ucc COMMAND` where torchrun starts it.

Presentation only: what a command shows comes from functions that return data. A command's module is imported
when it is called, so that none waits for torch that does not need it.
"""

from __future__ import annotations

import importlib
import sys

from torch_ucc._autoload import autoload

# Name: the module whose main(arguments) runs it and returns the exit status, and what it does.
COMMANDS = {
    "topo": ("torch_ucc.cli.topo", "show what this machine has, and how far its devices are apart"),
    "plan": ("torch_ucc.cli.plan", "say how a job would talk, and why"),
    "info": ("torch_ucc.cli.info", "say what this process, or under torchrun this job, runs on"),
    "doctor": ("torch_ucc.cli.doctor", "look for what goes wrong in practice, and name the cure"),
    "config": ("torch_ucc.cli.config", "list every setting with its value and source"),
    "bench": ("torch_ucc.bench.__main__", "time collectives beside those of other libraries"),
    "tune": ("torch_ucc.tuning.__main__", "measure what is faster than the defaults, under torchrun"),
    "status": ("torch_ucc.status.__main__", "show what the ranks of a running job do, and who is late"),
    "record": ("torch_ucc.status.history", "keep every operation of a running job in files"),
    "trace": ("torch_ucc.tracing.__main__", "show what the ranks of a job did, or say what went wrong"),
    "replay": ("torch_ucc.tracing.replay", "call the operations of a recorded job again, under torchrun"),
}

WITHOUT_TORCH = {"record", "status", "trace"}


def usage() -> str:
    width = max(map(len, COMMANDS))
    rows = "\n".join(f"  {name:<{width}}  {does}" for name, (_, does) in COMMANDS.items())
    return f"usage: torch-ucc COMMAND ...\n\n{rows}\n\ntorch-ucc COMMAND --help tells more."


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
    status: int = importlib.import_module(COMMANDS[name][0]).main(rest)
    return status
