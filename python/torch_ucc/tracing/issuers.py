"""Who issued an operation: a call of torch.distributed in Python, or C++ below it.

The recorder keeps the Python stack of the thread that called the backend. A function of torch.distributed on
top of it made the call itself. Any other frame on top called into C++, which made it: DDP's reducer in a
backward pass, or the checks and broadcasts of its construction.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_FRAME = re.compile(r"(.*):(\d+) (.*)")

# Frames that only pass a call on: they are neither its issuer nor its caller.
_PASSED_ON = ("torch/distributed/c10d_logger.py", "torch/_ops.py", "torch/utils/_contextlib.py")

# Where Python calls a backend itself, and what a call from there is called.
_PYTHON = {
    "torch/distributed/distributed_c10d.py": "dist",
    "torch/distributed/_functional_collectives.py": "funcol",
    "torch/distributed/nn/functional.py": "dist.nn",
    "torch_ucc/_group/monitored_barrier.py": "torch_ucc",
}

_BACKWARD = "backward pass: gradient bucket of DDP's reducer"

# The Python function below which C++ makes a call, and what it does it for.
_CPP = {
    ("torch/distributed/utils.py", "_verify_param_shape_across_processes"): "DDP: compare parameter shapes",
    ("torch/distributed/utils.py", "_sync_params_and_buffers"): "DDP: broadcast parameters and buffers",
    ("torch/nn/parallel/distributed.py", "_distributed_broadcast_coalesced"): "DDP: broadcast buffers",
    ("torch/nn/parallel/distributed.py", "_pre_forward"): "DDP reducer: agree on its buckets",
    ("torch/autograd/graph.py", "_engine_run_backward"): _BACKWARD,
}


@dataclass(frozen=True)
class Issuer:
    kind: str
    """`Python`, `C++`, or `unknown` where the trace did not record who called."""
    what: str
    """`dist.all_reduce`, `DDP: broadcast buffers`."""
    where: str
    """FILE:LINE FUNCTION of the user's program, as far as it is on the stack."""

    @property
    def backward(self) -> bool:
        """Whether autograd issued it: in the caller's thread, or for devices in one of its own."""
        return self.kind == "C++" and self.what.startswith((_BACKWARD, "thread pt_autograd"))


def issuer(site: str) -> Issuer:
    frames = [
        (match[1], match[2], match[3]) for line in site.splitlines() if (match := _FRAME.fullmatch(line))
    ]
    if not frames:
        return Issuer("C++", site, "") if site else Issuer("unknown", "unknown", "")
    where = next((_text(frame) for frame in frames if not _is_torch(frame[0])), "")
    frames = [frame for frame in frames if not frame[0].endswith(_PASSED_ON)] or frames
    file, _, function = frames[0]
    module = next((name for path, name in _PYTHON.items() if file.endswith(path)), None)
    if module is None:
        return Issuer("C++", _cpp(file, function), where)
    for outer_file, _, outer in frames[1:]:  # all_gather_object() is what was called, not its all_gather()
        if outer_file != file:
            break
        function = outer
    return Issuer("Python", f"{module}.{function}", where)


def _cpp(file: str, function: str) -> str:
    for (path, name), what in _CPP.items():
        if file.endswith(path) and function == name:
            return what
    return f"below {function}() of {file.rpartition('/')[2]}"


def _is_torch(file: str) -> bool:
    return "/torch/" in file or "/torch_ucc/" in file or file.startswith("<")


def _text(frame: tuple[str, str, str]) -> str:
    return f"{frame[0]}:{frame[1]} {frame[2]}"
