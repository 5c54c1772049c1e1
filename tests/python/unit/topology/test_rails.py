"""Which TCP interfaces are used together, and which networks are found not to lead."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from fake_root import FakeRoot
from jobs import HERE, job
from torch_ucc.topology import rails
from torch_ucc.topology.inventory import Interface, Inventory, from_json
from torch_ucc.topology.job import Job, uniform
from torch_ucc.topology.network import interfaces
from torch_ucc.topology.plan import make_plan, networks_for_tcp
from torch_ucc.topology.user import PROFILE


def card(name: str, *addresses: str, **other: object) -> Interface:
    values = {"kind": "port", "up": True, "mtu": 1500, "speed_mbps": 25000, "default_route": False, **other}
    return Interface(name=name, addresses=addresses, **values)  # type: ignore[arg-type]


def host(number: int, *cards: Interface) -> Inventory:
    one = from_json((HERE / "machines" / "small_vm.json").read_text())
    return one._replace(host=f"host{number}", host_id=str(number), interfaces=cards)


def job_of(make: Callable[[int], Sequence[Interface]], ranks: int = 1, count: int = 2) -> Job:
    """Hosts that have the interfaces that `make` gives for the number of each, from 1 on."""
    return uniform([host(i, *make(i)) for i in range(1, count + 1)], ranks)


def chosen(made: Job) -> list[tuple[str, ...]]:
    return [each.names for each in make_plan(made).devices]


def two(i: int) -> list[Interface]:
    return [card("a", f"10.0.0.{i}/24"), card("b", f"10.0.1.{i}/24")]


def test_equally_fast_interfaces_on_networks_that_all_hosts_share_are_rails() -> None:
    plan = make_plan(job_of(two))
    assert [each.names for each in plan.devices] == [("a", "b")] * 2
    assert plan.devices[0].reason.startswith("every host is on 10.0.0.0/24, 10.0.1.0/24: 25 Gb/s each.")
    told = dict(plan.ucx_settings(1))
    assert [told[name] for name in ("NET_DEVICES", "MAX_EAGER_RAILS", "MAX_RNDV_RAILS")] == ["a,b", "2", "2"]
    assert dict(plan.ucc_settings(1))["NET_DEVICES"] == "a,b"


def test_the_rails_of_each_host_follow_the_order_of_the_networks() -> None:
    """Their names may be others."""

    def make(i: int) -> list[Interface]:
        return two(1) if i == 1 else [card("a", "10.0.1.2/24"), card("c", "10.0.0.2/24")]

    assert chosen(job_of(make)) == [("a", "b"), ("c", "a")]


@pytest.mark.parametrize(
    "second",
    [
        pytest.param(lambda i: card("b", f"10.0.{i}.1/24"), id="another network on each host"),
        pytest.param(lambda i: card("b", "10.0.1.1/24"), id="the same address on both hosts"),
        pytest.param(lambda i: card("b", f"10.0.1.{i}/24", up=i == 1), id="down on one host"),
        pytest.param(lambda i: card("b" if i == 1 else "c", *[f"10.0.1.{i}/24"][: 2 - i]), id="on one host"),
        pytest.param(lambda i: card("b", f"10.0.1.{i}/24", speed_mbps=10000), id="slower"),
        pytest.param(lambda i: card("b", f"10.0.1.{i}/24", speed_mbps=25000 // i), id="slower on one host"),
        pytest.param(lambda i: card("b", f"10.0.1.{i}/24", speed_mbps=None), id="of unknown speed"),
        pytest.param(lambda i: card("b", f"10.0.1.{i}/24", kind="bridge"), id="a bridge"),
        pytest.param(lambda i: card("b", f"10.0.1.{i}/24", kind="tunnel"), id="a tunnel"),
        pytest.param(lambda i: card("b", f"10.0.0.{i + 8}/24"), id="the same network"),
        pytest.param(
            lambda i: card("a.100", f"10.0.1.{i}/24", kind="virtual", over=("a",)),
            id="a VLAN of the same card",
        ),
        pytest.param(
            lambda i: card("b", f"10.9.{i}.1/24", f"fd01::{i}/64"), id="UCX would use an address elsewhere"
        ),
    ],
)
def test_no_rail_is(second: Callable[[int], Interface]) -> None:
    slow = [card("slow", f"192.168.0.{i}/24", speed_mbps=1000) for i in (1, 2)]
    made = job_of(lambda i: [card("a", f"10.0.0.{i}/24"), second(i), slow[i - 1]])
    assert chosen(made) == [("a",)] * 2
    assert make_plan(made).about("rails of TCP") is None


def test_interfaces_of_unknown_speed_are_no_rails() -> None:
    made = job_of(lambda i: [each._replace(speed_mbps=None) for each in two(i)])
    assert chosen(made) == [("a",)] * 2


def test_two_vlans_of_one_card_are_one_link() -> None:
    def make(i: int) -> list[Interface]:
        return [
            card(f"eth0.{vlan}", f"10.0.{vlan}.{i}/24", kind="virtual", over=("eth0",)) for vlan in (1, 2)
        ]

    assert chosen(job_of(make)) == [("eth0.1",)] * 2


def test_both_addresses_of_a_dual_stack_are_on_one_link() -> None:
    def make(i: int) -> list[Interface]:
        return [card(n, f"10.0.{k}.{i}/24", f"fd00:{k}::{i}/64") for k, n in enumerate("ab", 1)]

    made = job_of(make)
    assert chosen(made) == [("a", "b")] * 2
    assert [str(each.network) for each in networks_for_tcp(made)] == ["10.0.1.0/24", "10.0.2.0/24"]


def test_there_are_at_most_four_rails() -> None:
    made = job_of(lambda i: [card(f"e{k}", f"10.0.{k}.{i}/24") for k in range(6)])
    assert chosen(made) == [("e0", "e1", "e2", "e3")] * 2
    assert dict(make_plan(made).ucx_settings(0))["MAX_RNDV_RAILS"] == "4"


def test_a_network_that_does_not_lead_is_not_used() -> None:
    made = job_of(two)
    plan = make_plan(Job(made.hosts, made.ranks, {"10.0.0.0/24"}))
    assert [each.names for each in plan.devices] == [("b",)] * 2
    assert plan.devices[0].reason.endswith("A host could not connect to the next one over 10.0.0.0/24")
    assert "MAX_EAGER_RAILS" not in dict(plan.ucx_settings(0))


def test_if_no_network_leads_the_best_one_is_used_alone() -> None:
    """What was tried is then no proof: UCX says what does not work."""
    made = job_of(two)
    assert chosen(Job(made.hosts, made.ranks, {"10.0.0.0/24", "10.0.1.0/24"})) == [("a",)] * 2


@pytest.mark.parametrize(
    "name",
    [
        "UCX_MAX_EAGER_RAILS",
        "UCX_MAX_RNDV_RAILS",
        "UCC_UCX_MAX_EAGER_RAILS",
        f"{PROFILE}UCC_UCX_MAX_RNDV_RAILS",
    ],
)
def test_the_number_of_rails_that_somebody_set_is_left_alone(name: str) -> None:
    made = job_of(two)
    ranks = (made.ranks[0], made.ranks[1]._replace(settings={name: "1"}))
    plan = make_plan(Job(made.hosts, ranks))
    choice = plan.about("rails of TCP")
    assert choice and choice.by == f"{name.removeprefix(PROFILE)}=1"
    assert {"MAX_EAGER_RAILS", "MAX_RNDV_RAILS"}.isdisjoint(dict(plan.ucx_settings(0)))


def test_a_device_that_somebody_names_is_the_only_one() -> None:
    made = job_of(two)
    ranks = tuple(rank._replace(settings={"UCX_NET_DEVICES": "b"}) for rank in made.ranks)
    plan = make_plan(Job(made.hosts, ranks))
    assert [each.names for each in plan.devices] == [("b",)] * 2 and not plan.about("rails of TCP")
    assert networks_for_tcp(Job(made.hosts, ranks)) == [], "nothing is tried"


def test_what_carries_an_interface_is_read_from_sysfs(tmp_path: Path) -> None:
    fake = FakeRoot(tmp_path)
    fake.interface("eth0", addresses=["10.0.0.1/24"])
    fake.interface("eth0.7", addresses=["10.0.7.1/24"])
    fake.file("/sys/devices/virtual/net/eth0.7/lower_eth0", "")
    assert {each.name: each.over for each in interfaces(fake.root())} == {"eth0": (), "eth0.7": ("eth0",)}


class Meeting:
    """Where the ranks of a job, which are threads here, exchange what they say."""

    def __init__(self, size: int) -> None:
        self.rounds = 0
        self._said: list[bytes] = [b""] * size
        self._barrier = threading.Barrier(size, action=self._end)

    def _end(self) -> None:
        self.rounds += 1
        self.heard = list(self._said)

    def exchange(self, rank: int, mine: bytes) -> list[bytes]:
        self._said[rank] = mine
        self._barrier.wait(60)
        return self.heard


def found_cut(made: Job) -> tuple[list[frozenset[str]], int]:
    """What each rank finds, and how often they exchanged something."""
    meeting = Meeting(len(made.ranks))

    def of(rank: int) -> frozenset[str]:
        return rails.cut(made, rank, lambda mine: meeting.exchange(rank, mine))

    with ThreadPoolExecutor(len(made.ranks)) as threads:
        return list(threads.map(of, range(len(made.ranks)))), meeting.rounds


@pytest.mark.parametrize(("hosts", "ranks"), [(2, 1), (3, 2)])
def test_networks_that_lead_are_found_to(hosts: int, ranks: int) -> None:
    """All of 127.0.0.0/8 is this machine."""
    made = job_of(lambda i: [card("a", f"127.1.0.{i}/24"), card("b", f"127.2.0.{i}/24")], ranks, hosts)
    assert found_cut(made) == ([frozenset()] * hosts * ranks, 2)


def test_a_network_over_which_a_host_cannot_connect_is_cut_on_all_ranks() -> None:
    """192.0.2.0/24 is for examples: no machine has such an address."""
    made = job_of(lambda i: [card("a", f"127.1.0.{i}/24"), card("b", f"192.0.2.{i}/24")], ranks=2)
    assert found_cut(made) == ([frozenset({"192.0.2.0/24"})] * 4, 2)


def test_nothing_is_tried_where_there_is_no_choice() -> None:
    assert found_cut(job_of(lambda i: [card("a", f"127.1.0.{i}/24")])) == ([frozenset()] * 2, 0)
    assert found_cut(job("dgx_h100-2x8")) == ([frozenset()] * 16, 0), "RDMA"


def test_a_port_is_one_that_ucx_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    ports: list[int] = []
    connects = rails._connects

    def seen(network: rails.Shared, here: int, there: int, port: int) -> bool:
        ports.append(port)
        return connects(network, here, there, port)

    monkeypatch.setattr(rails, "_connects", seen)
    monkeypatch.setenv("UCX_TCP_PORT_RANGE", "21000-21999")
    made = job_of(lambda i: [card("a", f"127.1.0.{i}/24"), card("b", f"127.2.0.{i}/24")])
    assert found_cut(made)[0] == [frozenset()] * 2
    assert len(ports) == 4 and all(21000 <= port <= 21999 for port in ports)


def test_addresses_of_both_kinds() -> None:
    assert [rails._family(text).name for text in ("10.0.0.1", "fd00::1")] == ["AF_INET", "AF_INET6"]
