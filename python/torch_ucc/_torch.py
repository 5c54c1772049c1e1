"""What differs between the releases of torch, for the rest of the package and for tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.distributed as dist

HAS_2_14 = hasattr(dist, "gather_single")
"""Whether torch is 2.14 or later."""

all_gather_single = dist.all_gather_single if HAS_2_14 else dist.all_gather_into_tensor
reduce_scatter_single = dist.reduce_scatter_single if HAS_2_14 else dist.reduce_scatter_tensor
"""Since 2.14 the former names are deprecated."""

_FORMER_FUNCTIONAL = {
    "all_gather_single": "all_gather_tensor",
    "all_gather_single_autograd": "all_gather_tensor_autograd",
    "all_gather_single_coalesced": "all_gather_into_tensor_coalesced",
    "reduce_scatter_single": "reduce_scatter_tensor",
    "reduce_scatter_single_autograd": "reduce_scatter_tensor_autograd",
    "reduce_scatter_single_coalesced": "reduce_scatter_tensor_coalesced",
}


def functional(name: str) -> Callable[..., Any]:
    """A functional collective by the name that it has since 2.14."""
    import torch.distributed._functional_collectives as funcol

    found: Callable[..., Any] = getattr(funcol, name if HAS_2_14 else _FORMER_FUNCTIONAL[name])
    return found
