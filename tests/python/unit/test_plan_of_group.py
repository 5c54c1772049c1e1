"""`torch_ucc._plan`: when ranks ask each other, what they agree on, and what is kept of it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from torch_ucc import _plan

MINUTE = timedelta(minutes=1)


class Core:
    """Answers an exchange with our own record, for every rank."""

    def __init__(self) -> None:
        self.asked = 0

    def exchange(self, store: Any, rank: int, size: int, timeout: timedelta, mine: bytes) -> list[bytes]:
        self.asked += 1
        return [mine] * size


@pytest.fixture
def core(monkeypatch: pytest.MonkeyPatch) -> Iterator[Core]:
    for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(_plan, "_agreed", {})
    yield Core()


@pytest.mark.parametrize(
    ("environment", "size", "here"),
    [
        ({"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "4"}, 4, True),
        ({"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"}, 4, False),
        ({"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "4"}, 2, False),
        ({"WORLD_SIZE": "4"}, 4, False),
        ({}, 1, False),
    ],
)
def test_whether_all_are_here(environment: dict[str, str], size: int, here: bool) -> None:
    assert _plan.all_here(size, environment) is here


def test_ranks_of_one_host_do_not_ask(core: Core, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "3")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "3")
    agreed = _plan.agree(core, None, 1, [0, 1, 2], MINUTE)
    assert core.asked == 0 and agreed.assumed and agreed.plan.ucc_settings(1) == [("ESTIMATED_NUM_PPN", "3")]
    learned = _plan.learn(agreed, 1, [0, 1, 2], [_plan.record_here()] * 3)
    assert not learned.assumed and learned.plan == agreed.plan and _plan.of([2]) is learned


def test_others_ask_and_agree(core: Core) -> None:
    agreed = _plan.agree(core, None, 0, [4, 7], MINUTE)
    assert core.asked == 1 and not agreed.assumed and agreed.host_of(7) == 0
    assert _plan.learn(agreed, 0, [4, 7], []) is agreed
    assert _plan.of([7]) is agreed and _plan.of([7, 4]) is agreed and _plan.of([0]) is None


def test_the_latest_counts_and_replaces_its_like(core: Core) -> None:
    _plan.agree(core, None, 0, [0, 1], MINUTE)
    small = _plan.agree(core, None, 0, [0], MINUTE)
    assert _plan.of([0]) is small
    again = _plan.agree(core, None, 0, [0, 1], MINUTE)
    assert _plan.of([0]) is again and len(_plan._agreed) == 2, "a process that recovers does not grow"


def test_what_cannot_work_is_an_error_that_counts_the_rest(
    core: Core, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UCX_TLS", "rc")
    with pytest.raises(
        ValueError, match=r"^this group cannot work: UCX_TLS=rc on rank 0 .* So on 2 more ranks\.$"
    ):
        _plan.agree(core, None, 0, range(6), MINUTE)
    assert _plan._agreed == {}
