"""PyTorch collectives over UCC and UCX.

A program need not import this package to use the backend: `import torch` registers it, and
`torch.distributed.init_process_group("ucc")` creates a group. `import torch` runs this file, so it imports as
little as possible.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from torch_ucc._autoload import autoload

if TYPE_CHECKING:
    from torch_ucc._group.describe import describe as describe
    from torch_ucc._group.monitored_barrier import monitored_barrier as monitored_barrier
    from torch_ucc._register import use_as_default as use_as_default
    from torch_ucc._replace_gloo import replace_gloo as replace_gloo
    from torch_ucc._replace_gloo import restore_gloo as restore_gloo
    from torch_ucc.tracing.metrics import metrics as metrics
    from torch_ucc.tracing.metrics import stats as stats
    from torch_ucc.tracing.recorder import dump as dump
    from torch_ucc.tracing.tracer import mark_step as mark_step
    from torch_ucc.tracing.tracer import trace as trace

    Options: type[Any]
    """The `pg_options` of a ucc group, for init_process_group() and new_group()."""

_HOMES = {
    "describe": "torch_ucc._group.describe",
    "dump": "torch_ucc.tracing.recorder",
    "mark_step": "torch_ucc.tracing.tracer",
    "metrics": "torch_ucc.tracing.metrics",
    "monitored_barrier": "torch_ucc._group.monitored_barrier",
    "replace_gloo": "torch_ucc._replace_gloo",
    "restore_gloo": "torch_ucc._replace_gloo",
    "stats": "torch_ucc.tracing.metrics",
    "trace": "torch_ucc.tracing.tracer",
    "use_as_default": "torch_ucc._register",
}
__all__ = [
    "Options",
    "describe",
    "dump",
    "mark_step",
    "metrics",
    "monitored_barrier",
    "replace_gloo",
    "restore_gloo",
    "stats",
    "trace",
    "use_as_default",
]

autoload()


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    if name == "Options":
        from torch_ucc._native import extension

        return extension.compiled().Options
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
