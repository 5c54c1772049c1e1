"""Hosts for the tests here that want some."""

from collections.abc import Iterator

import pytest
from torch_ucc.testing.hosts import Hosts, hosts, why_not


@pytest.fixture(scope="session")
def hosts_allowed() -> None:
    if reason := why_not():
        pytest.skip(reason)


@pytest.fixture
def pair(hosts_allowed: None) -> Iterator[Hosts]:
    with hosts(2) as made:
        yield made
