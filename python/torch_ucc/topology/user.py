"""What users set that decides over the plan."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

TLS = ("UCC_UCX_TLS", "UCX_TLS")
NET_DEVICES = ("UCC_TL_UCP_NET_DEVICES", "UCC_NET_DEVICES", "UCC_UCX_NET_DEVICES", "UCX_NET_DEVICES")
PPN = ("UCC_ESTIMATED_NUM_PPN",)
CLS = ("UCC_CLS",)
"""Variables for one thing: of those that are set, the first decides."""

LOOPBACK = "lo"
"""The network device of ranks that are all on one host."""

WITHOUT_CMA = ("TLS", "^cma")
"""For ranks of one host that have a core each: see plan.py."""

SETTINGS = (*TLS, *NET_DEVICES, *PPN, *CLS)


def settings_here(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Those of SETTINGS that are set."""
    return {name: environment[name] for name in SETTINGS if name in environment}


def chosen(settings: Mapping[str, str], names: Sequence[str]) -> tuple[str, str] | None:
    """Of these variables the one that decides, and its value."""
    return next(((name, settings[name]) for name in names if name in settings), None)
