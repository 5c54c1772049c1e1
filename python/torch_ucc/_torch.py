"""Under its new name, each function of torch.distributed that torch 2.14 renamed. Works with any torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.distributed as dist

_FORMER = {
    "all_gather_single": "all_gather_into_tensor",
    "reduce_scatter_single": "reduce_scatter_tensor",
}
_FORMER_FUNCTIONAL = {
    "all_gather_single": "all_gather_tensor",
    "all_gather_single_autograd": "all_gather_tensor_autograd",
    "all_gather_single_coalesced": "all_gather_into_tensor_coalesced",
    "reduce_scatter_single": "reduce_scatter_tensor",
    "reduce_scatter_single_autograd": "reduce_scatter_tensor_autograd",
    "reduce_scatter_single_coalesced": "reduce_scatter_tensor_coalesced",
}

all_gather_single, reduce_scatter_single = (
    getattr(dist, name, None) or getattr(dist, former) for name, former in _FORMER.items()
)


def functional(name: str) -> Callable[..., Any]:
    """A functional collective by its new name."""
    import torch.distributed._functional_collectives as funcol

    found: Callable[..., Any] = getattr(funcol, name, None) or getattr(funcol, _FORMER_FUNCTIONAL[name])
    return found
