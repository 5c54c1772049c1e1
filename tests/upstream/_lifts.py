"""Which of the suite's built-in skips are lifted, and why.

The suite carries the limitations of the backends it was written for. A skip is lifted when its reason is one
of those; it stays when the reason is the machine (GPUs, world size), another library (NCCL's own features,
torchvision) or a defect of the test itself (the ones that name an issue of torch). A lifted test still passes
through its other decorators: one that needs a GPU goes on needing it.

Lifting happens before the suite is imported, by replacing the decorators it imports; torch's files stay as
they are.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Decorator = Callable[[Any], Any]


@dataclass
class Lift:
    reason: str
    """Matches the text of the skip, from its start."""
    why: str
    """Why it does not apply."""
    gpu: bool = False
    """Lifted only where each rank has a GPU: not every test behind it checks for one."""
    used: int = 0


LIFTS = [
    # Limitations of the in-tree UCC backend.
    Lift("CPU tensor ops not supported by UCP TL", "we run every operation on CPU tensors"),
    Lift("Skipped internally", "an exception for ucc in one company's CI"),
    Lift("Test requires backend ucc to be available", "asks for the in-tree one; ours is a plugin"),
    Lift(
        "Test requires backend ucc to be one of {'gloo'}", "coalesced forms and monitoredBarrier are c10d's"
    ),
    Lift("(ucc|gloo|mpi) does not support all_gather_coalesced", "c10d's interface has it"),
    Lift("(ucc|gloo|mpi) does not support reduce$", "c10d's interface has it"),
    Lift("(ucc|gloo|mpi) does not support send/recv from any source", "c10d's interface has it"),
    Lift("(ucc|gloo|mpi) does not support CPU barrier", "c10d's interface has it"),
    Lift("The (ucc|gloo|mpi) backend does not support", "DDP, subgroups and hooks need c10d only"),
    # "Only X has it", where X is a peer and the operation is part of c10d's interface.
    Lift("Only gloo backend supports timeouts", "a timeout is part of the contract of Work"),
    Lift("Only Gloo backend supports sparse all reduce", "ours takes sparse tensors through allreduce too"),
    Lift("Only Nccl & Gloo backend support DistributedDataParallel", "DDP needs c10d only"),
    Lift("GLOO Batch Send Recv CPU", "batch_isend_irecv is c10d's"),
    Lift("get_future is only supported on mpi, nccl and gloo", "every Work of ours has a future"),
    Lift("Only MPI supports (CPU )?all_to_all", "all_to_all is c10d's; gloo has it by now"),
    # The same on GPUs.
    Lift("Only Gloo and NCCL backends will have CUDA allReduce tested", "device-neutral", gpu=True),
    Lift("Only Gloo and Nccl backends support CUDA allReduce", "device-neutral", gpu=True),
    Lift("Only (Nccl|NCCL) supports CUDA", "device-neutral", gpu=True),
    Lift("Only Nccl supports (all_gather_v|reduce_scatter_v)", "our table has the uneven forms", gpu=True),
    Lift("MPI doesn't support GPU barrier", "a limitation of MPI", gpu=True),
    Lift("Coalescing manager currently tests with NCCL only", "startCoalescing is c10d's", gpu=True),
    # The driver gives the suite a file:// method.
    Lift("Requires file:// initialization method", "the driver gives it one"),
]

SMALL_WORLD = 3
"""`skip_if_small_worldsize` skips below 8 ranks, on all backends but mpi. The tests behind it use the group
of the ranks 1 and 2, or three ranks, so it is lifted from 3 ranks on."""


def apply(backend: str, world_size: int) -> None:
    """Replace the skips of torch's test helpers. To be called before the suite is imported."""
    import torch
    from torch.testing._internal import common_distributed, common_utils

    skip_if: Callable[[bool, str], Decorator] = common_utils.skip_but_pass_in_sandcastle_if
    skip: Callable[[str], Decorator] = common_utils.skip_but_pass_in_sandcastle
    gpus = torch.cuda.device_count() >= world_size

    def lifted(reason: str) -> bool:
        matching = [lift for lift in LIFTS if re.match(lift.reason, reason) and (gpus or not lift.gpu)]
        for lift in matching:
            lift.used += 1
        return bool(matching)

    def patched_skip_if(condition: bool, reason: str) -> Decorator:
        return _identity if condition and lifted(reason) else skip_if(condition, reason)

    def patched_skip(reason: str) -> Decorator:
        return _identity if lifted(reason) else skip(reason)

    helpers: tuple[Any, ...] = (common_utils, common_distributed)
    for module in helpers:
        module.skip_but_pass_in_sandcastle_if = patched_skip_if
        module.skip_but_pass_in_sandcastle = patched_skip
    if world_size >= SMALL_WORLD:
        common_distributed.skip_if_small_worldsize = _identity
    if backend in ("ucc", "torch_ucc"):
        # torch's front end insists on the name "gloo"; ours is that front end without the question.
        from torch_ucc import monitored_barrier

        setattr(torch.distributed, "monitored_barrier", monitored_barrier)  # noqa: B010  # mypy: another signature


def _identity(function: Any) -> Any:
    return function
