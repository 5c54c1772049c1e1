"""PyTorch collectives over UCC and UCX.

Nothing needs to be imported from here to use the backend: `import torch` registers it, and
`torch.distributed.init_process_group("ucc")` creates a group. `import torch` runs this file: it stays light.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch_ucc._autoload import autoload

if TYPE_CHECKING:
    from torch_ucc._describe import describe as describe
    from torch_ucc._monitored_barrier import monitored_barrier as monitored_barrier

    Options: type[Any]
    """What init_process_group() and new_group() take as pg_options of a ucc group."""

__all__ = ["Options", "describe", "monitored_barrier"]

autoload()


def __getattr__(name: str) -> Any:
    if name == "describe":
        from torch_ucc._describe import describe

        return describe
    if name == "monitored_barrier":
        from torch_ucc._monitored_barrier import monitored_barrier

        return monitored_barrier
    if name == "Options":
        from torch_ucc import _extension

        return _extension.core().Options
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
