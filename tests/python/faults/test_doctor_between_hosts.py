"""What the doctor finds between hosts: a forbidden connection, an address that leads nowhere, clocks that
differ."""

from __future__ import annotations

import os
import time
from datetime import timedelta

import pytest
from torch.distributed.rendezvous import rendezvous
from torch_ucc.testing.hosts import Hosts
from torch_ucc.topology.doctor import BROKEN, COSTLY, Finding
from torch_ucc.topology.probe import probe
from torch_ucc.topology.reach import survey
from torch_ucc.topology.root import Root

pytestmark = pytest.mark.multirank


def findings(fast_rank: int = -1) -> list[Finding]:
    store, rank, size = next(rendezvous("env://"))
    ahead = 3600.0 if int(os.environ["RANK"]) == fast_rank else 0.0
    return survey(store, rank, size, probe(Root()), timedelta(seconds=60), lambda: time.time() + ahead)


def test_nothing_is_found_where_nothing_is_wrong(pair: Hosts) -> None:
    assert pair.run(findings, per_host=2, init=False) == [[]] * 4


def test_a_connection_that_is_forbidden(pair: Hosts) -> None:
    pair.forbid(0, 1)
    here, there = pair.run(findings, init=False)
    assert [(each.name, each.grade) for each in here] == [("cut-off", BROKEN)]
    assert "host0 cannot connect to host1: 10.77.0.2 (" in here[0].what
    assert all(each.name == "cut-off" for each in there), "its answers are forbidden too"


def test_an_address_that_leads_nowhere(pair: Hosts) -> None:
    pair.add_dead_end(1, "10.99.0.1")
    here, there = pair.run(findings, init=False)
    assert [(each.name, each.grade) for each in here] == [("partly-cut-off", COSTLY)]
    assert "not to 10.99.0.1 (" in here[0].what and there == []


def test_clocks_that_differ(pair: Hosts) -> None:
    slow, fast = pair.run(findings, 1, init=False)
    assert [(each.name, each.grade) for each in slow] == [("clocks", COSTLY)] and fast == []
    assert "the clock of host1 is 3" in slow[0].what and "ahead of the clock of host0" in slow[0].what
