"""`torch_ucc._group.planning`: when ranks ask each other, what they agree on, and what is kept of it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
from torch_ucc._group import planning
from torch_ucc._native import extension
from torch_ucc.topology import cores, fingerprint, sysv
from torch_ucc.topology.algorithms import ONE_HOST, one_host
from torch_ucc.topology.cores import usable_here
from torch_ucc.topology.user import receive_buffers, tls

LOOPBACK = ("NET_DEVICES", "lo")
ALGORITHMS = ("TL_UCP_TUNE", ONE_HOST)
OF_A_PAIR = [
    tls(cma=usable_here() < 2, tcp=False, sysv=sysv.works()),
    receive_buffers(sysv=sysv.works()),
    LOOPBACK,
]


class Compiled:
    """Answers an exchange with our own record, for every rank; the first otherwise if they are `apart`."""

    def __init__(self) -> None:
        self.asked = 0
        self.apart = False
        self.size = 2

    def exchange(self, mine: bytes) -> list[bytes]:
        self.asked += 1
        if self.apart and self.asked == 1:
            return [mine, *[b"elsewhere"] * (self.size - 1)]
        return [mine] * self.size


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> Iterator[Compiled]:
    for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(planning, "_of_contexts", {})
    extension.compiled()  # and with it UCX, whose modules a plan looks at
    yield Compiled()


@pytest.mark.parametrize(
    ("environment", "size", "told"),
    [
        ({"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "4", "GROUP_WORLD_SIZE": "1"}, 4, True),
        ({"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "4", "GROUP_WORLD_SIZE": "2"}, 4, None),
        ({"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "4"}, 4, None),
        ({"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2"}, 4, False),
        ({"WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "4"}, 2, None),
        ({"WORLD_SIZE": "4"}, 4, None),
        ({}, 1, None),
    ],
)
def test_what_the_launcher_tells(environment: dict[str, str], size: int, told: bool | None) -> None:
    assert planning.told_by_launcher(size, environment) is told


def on_one_host(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setenv("WORLD_SIZE", str(size))
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(size))
    monkeypatch.setenv("GROUP_WORLD_SIZE", "1")


def test_ranks_of_one_host_make_no_plan(compiled: Compiled, monkeypatch: pytest.MonkeyPatch) -> None:
    """But tell the libraries what one would. Three ask each other once."""
    for size in (1, 2, 3, usable_here(), usable_here() + 1):
        ranks = range(size)
        on_one_host(monkeypatch, size)
        compiled.asked, compiled.size = 0, size
        told = planning.choose(compiled.exchange, 0, ranks)
        assert compiled.asked == (size > 2) and told.agreed is None
        plan = planning.agree(0, ranks, [planning.record_here()] * size).plan
        assert told == (plan.ucx_settings(0), plan.ucc_settings(0), None)


@pytest.mark.parametrize("settings", [{}, {"UCC_ESTIMATED_NUM_PPN": "3"}])
def test_ranks_of_one_host_that_see_other_numbers_of_cores_plan(
    compiled: Compiled, monkeypatch: pytest.MonkeyPatch, settings: dict[str, str]
) -> None:
    """Each for itself they would tell UCC different algorithms."""
    on_one_host(monkeypatch, 3)
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    compiled.apart, compiled.size = True, 3
    told = planning.choose(compiled.exchange, 0, range(3))
    agreed = told.agreed
    assert compiled.asked == 2 and agreed
    assert told == (agreed.plan.ucx_settings(0), agreed.plan.ucc_settings(0), agreed)
    assert dict(told.ucc)["TL_UCP_TUNE"] == one_host(crowded=usable_here() < 3)


@pytest.mark.parametrize("settings", [{}, {"UCC_ESTIMATED_NUM_PPN": "2"}])
def test_ranks_that_the_launcher_keeps_to_a_core_each_have_one_each(
    compiled: Compiled, monkeypatch: pytest.MonkeyPatch, settings: dict[str, str]
) -> None:
    monkeypatch.setattr(cores, "quota", lambda text: None)
    on_one_host(monkeypatch, 2)
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    of = {os.getppid(): {0, 1}, 0: {1}}
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: of[pid])
    assert planning.choose(compiled.exchange, 0, [0, 1])[0][0] == tls(cma=False, tcp=False, sysv=sysv.works())
    of[os.getppid()] = {1}
    assert planning.choose(compiled.exchange, 0, [0, 1])[0][0] == tls(cma=True, tcp=False, sysv=sysv.works())


def test_ranks_that_find_themselves_on_one_host_need_no_plan(compiled: Compiled) -> None:
    told = planning.choose(compiled.exchange, 0, [4, 7])
    assert told == (OF_A_PAIR, [ALGORITHMS, ("ESTIMATED_NUM_PPN", "2"), LOOPBACK], None)
    assert compiled.asked == 1


def test_where_a_rank_cannot_tell_they_plan(compiled: Compiled, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fingerprint, "host_fingerprint", lambda: b"")
    assert planning.choose(compiled.exchange, 0, [4, 7]).agreed
    assert compiled.asked == 2


def test_nor_need_they_what_makes_plans() -> None:
    program = (
        "import sys; from torch_ucc._group import planning\n"
        "planning.choose(None, 0, [0, 1])\n"
        "print([name for name in sys.modules if name.startswith('torch_ucc.topology.')])\n"
    )
    environment = {**os.environ, "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "GROUP_WORLD_SIZE": "1"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, timeout=120)
    parts = ("algorithms", "sysv", "cores", "fingerprint", "user")
    wanted = str([f"torch_ucc.topology.{part}" for part in parts])
    assert done.stdout.decode().strip() == wanted, done.stderr


def test_what_is_set_is_checked_also_there(compiled: Compiled, monkeypatch: pytest.MonkeyPatch) -> None:
    on_one_host(monkeypatch, 2)
    monkeypatch.setenv("UCC_ESTIMATED_NUM_PPN", "7")
    assert planning.choose(compiled.exchange, 0, [0, 1]) == (OF_A_PAIR, [ALGORITHMS, LOOPBACK], None)
    monkeypatch.setenv("UCX_TLS", "rc")
    with pytest.raises(ValueError, match=r"^this group cannot work: UCX_TLS=rc on rank 0"):
        planning.choose(compiled.exchange, 0, [0, 1])


def test_others_ask_and_agree(compiled: Compiled) -> None:
    compiled.apart = True
    chosen = planning.choose(compiled.exchange, 0, [4, 7])
    assert (chosen.ucx, chosen.ucc) == (OF_A_PAIR, [ALGORITHMS, ("ESTIMATED_NUM_PPN", "2"), LOOPBACK])
    assert compiled.asked == 2 and chosen.agreed and chosen.agreed.host_of(7) == 0


class Contexts:
    """Those that are open."""

    def __init__(self, *numbers: int) -> None:
        self.numbers = numbers

    def open_contexts(self) -> list[int]:
        return list(self.numbers)


def test_what_was_chosen_is_kept_while_its_context_is_open(compiled: Compiled) -> None:
    """Also of two worlds with the same ranks; and a process that recovers does not grow."""
    first, second, third = (planning.Chosen([("TLS", name)], []) for name in ("a", "b", "c"))
    planning.keep(Contexts(), 1, first)
    planning.keep(Contexts(1), 2, second)
    assert (planning.of(1), planning.of(2), planning.of(3)) == (first, second, ([], [], None))
    planning.keep(Contexts(2), 3, third)
    assert (planning.of(1), planning.of(2), planning.of(3)) == (([], [], None), second, third)


def test_what_cannot_work_is_an_error_that_counts_the_rest(
    compiled: Compiled, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UCX_TLS", "rc")
    compiled.size = 6
    wanted = r"^this group cannot work: UCX_TLS=rc on rank 0 .* 2 more ranks have problems\.$"
    with pytest.raises(ValueError, match=wanted):
        planning.choose(compiled.exchange, 0, range(6))
