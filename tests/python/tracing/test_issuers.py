"""Who issued an operation, from the stack of the thread that called the backend."""

from __future__ import annotations

import pytest
from torch_ucc.tracing.issuers import Issuer, issuer

TORCH = "/venv/lib/python3.11/site-packages/torch"
MINE = "/home/me/train.py:12 step"


@pytest.mark.parametrize(
    ("stack", "expected"),
    [
        (
            [
                f"{TORCH}/distributed/distributed_c10d.py:9 all_reduce",
                f"{TORCH}/distributed/c10d_logger.py:8 wrapper",
                MINE,
            ],
            Issuer("Python", "dist.all_reduce", MINE),
        ),
        (
            [
                f"{TORCH}/distributed/distributed_c10d.py:9 all_gather",
                f"{TORCH}/distributed/c10d_logger.py:8 wrapper",
                f"{TORCH}/distributed/distributed_c10d.py:7 all_gather_object",
                f"{TORCH}/distributed/c10d_logger.py:8 wrapper",
                MINE,
            ],
            Issuer("Python", "dist.all_gather_object", MINE),
        ),
        (
            [
                f"{TORCH}/_ops.py:5 __call__",
                f"{TORCH}/distributed/_functional_collectives.py:3 all_reduce",
                MINE,
            ],
            Issuer("Python", "funcol.all_reduce", MINE),
        ),
        (
            [
                f"{TORCH}/autograd/graph.py:5 _engine_run_backward",
                f"{TORCH}/_tensor.py:5 backward",
                MINE,
            ],
            Issuer("C++", "backward pass: gradient bucket of DDP's reducer", MINE),
        ),
        ([f"{TORCH}/nn/thing.py:5 new", MINE], Issuer("C++", "below new() of thing.py", MINE)),
        (["thread pt_autograd_0"], Issuer("C++", "thread pt_autograd_0", "")),
        ([], Issuer("unknown", "unknown", "")),
    ],
)
def test_issuer(stack: list[str], expected: Issuer) -> None:
    assert issuer("\n".join(stack)) == expected
