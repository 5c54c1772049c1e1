"""How the doctor tries the addresses of other hosts."""

from __future__ import annotations

import socket
import time

import pytest
from torch_ucc.topology import reach
from torch_ucc.topology.doctor import BROKEN, COSTLY, NOTE


def other(*addresses: str) -> dict[str, object]:
    return {"host": "there", "port": 1, "addresses": list(addresses)}


class Connection:
    def close(self) -> None:
        pass


def connect(to: tuple[str, int], timeout: float) -> Connection:
    """An address that begins with 9 does not answer."""
    if to[0].startswith("9"):
        time.sleep(0.5)
        raise TimeoutError("timed out")
    return Connection()


def grades(*others: dict[str, object]) -> list[tuple[str, str]]:
    return [(each.name, each.grade) for each in reach._try_to_connect("here", others)]


def test_every_host_is_judged_by_its_own_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "create_connection", connect)
    assert grades(other("1.1", "1.2"), other("9.1"), other("1.3", "9.2"), other()) == [
        ("cut-off", BROKEN),
        ("partly-cut-off", COSTLY),
        ("not-tried", NOTE),
    ]


def test_addresses_that_do_not_answer_are_tried_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "create_connection", connect)
    began = time.monotonic()
    found = grades(*(other(f"9.{i}") for i in range(reach._AT_ONCE)))
    assert len(found) == reach._AT_ONCE
    assert time.monotonic() - began < 0.5 * reach._AT_ONCE / 2
