"""This machine, with the UCX and UCC that this process runs or would run."""

from __future__ import annotations

from torch_ucc._native import loading
from torch_ucc.topology.inventory import Inventory, Software
from torch_ucc.topology.probe import probe, software
from torch_ucc.topology.root import Root

_PARTS = {"UCX": "libuct_", "UCC": "libucc_"}


def this_host() -> Inventory:
    """What is known of libraries is what `loading.preload` found; nothing, before it was called."""
    found = {each.name: software(each.path, each.version, _PARTS[each.name]) for each in loading.loaded()}
    return probe(Root(), found.get("UCX", Software()), found.get("UCC", Software()))
