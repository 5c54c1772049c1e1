"""Plans: golden ones for whole jobs, and each rule by itself."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from jobs import HERE, JOBS, job, planned
from torch_ucc.topology.algorithms import CROWDED, ONE_HOST, OVER_TCP
from torch_ucc.topology.devices import reachable, shared_networks, tcp
from torch_ucc.topology.explain import differences, plan_text
from torch_ucc.topology.inventory import Interface, Inventory, RdmaPort, from_json
from torch_ucc.topology.job import Crowd, Job, copies, decode, encode, own_gpu, uniform
from torch_ucc.topology.pci import distance
from torch_ucc.topology.plan import OTHER_HOST, SAME_HOST, make_plan
from torch_ucc.topology.transports import allowed
from torch_ucc.topology.user import PROFILE, TUNE, tls


def machine(name: str) -> Inventory:
    return from_json((HERE / "machines" / f"{name}.json").read_text())


@pytest.mark.parametrize("name", JOBS)
def test_a_plan_is_the_golden_one(name: str) -> None:
    """To renew them: `python tests/python/unit/topology/renew.py`; then read the difference as an expert
    would."""
    assert planned(name) == (HERE / "plans" / f"{name}.txt").read_text()


def test_there_is_no_golden_plan_without_a_job() -> None:
    assert {path.stem for path in (HERE / "plans").iterdir()} == set(JOBS)


BUFFERS = ("SYSV_RX_BUFS_GROW", "257")
WITHOUT_CMA = [("TLS", "^cma,posix"), BUFFERS]
LONG_SEGMENTS = [("TCP_RX_SEG_SIZE", "256k"), ("TCP_TX_SEG_SIZE", "64k")]


def test_only_what_the_plan_decides_is_told_to_ucx() -> None:
    assert make_plan(job("dgx_h100-2x8")).ucx_settings(9) == [*WITHOUT_CMA, ("NET_DEVICES", "mlx5_3:1")]
    assert make_plan(job("two_ethernets-3x4")).ucx_settings(0) == [
        *WITHOUT_CMA,
        *LONG_SEGMENTS,
        ("NET_DEVICES", "ens1f0"),
    ]
    assert make_plan(job("dgx_h100-1x8")).ucx_settings(0) == [
        ("TLS", "^cma,posix,tcp"),
        BUFFERS,
        ("NET_DEVICES", "lo"),
    ]
    assert make_plan(job("dgx_h100-2x8-storage")).ucx_settings(0) == WITHOUT_CMA
    assert make_plan(job("efa_vm-2x8")).ucx_settings(0) == [*WITHOUT_CMA, *LONG_SEGMENTS]
    assert make_plan(job("small_vm-2x1")).ucx_settings(0) == LONG_SEGMENTS


@pytest.mark.parametrize("name", ["UCX_TCP_RX_SEG_SIZE", "UCX_TCP_TX_SEG_SIZE"])
def test_segments_of_tcp_are_left_alone_on_all_ranks_where_one_sets_them(name: str) -> None:
    made = job("small_vm-2x1")
    ranks = (made.ranks[0], made.ranks[1]._replace(settings={name: "32k"}))
    plan = make_plan(Job(made.hosts, ranks))
    assert plan.ucx_settings(0) == plan.ucx_settings(1) == []
    choice = plan.about("segments of TCP")
    assert choice and (choice.value, choice.by) == ("32k", f"{name}=32k")


@pytest.mark.parametrize("name", ["UCX_SYSV_RX_BUFS_GROW", "UCX_MM_RX_BUFS_GROW"])
def test_buffers_of_shared_memory_are_left_alone_where_one_is_set(name: str) -> None:
    made = job("small_vm-1x4")
    ranks = (*made.ranks[:3], made.ranks[3]._replace(settings={name: "32"}))
    assert [told for told, _ in make_plan(Job(made.hosts, ranks)).ucx_settings(0)] == ["TLS", "NET_DEVICES"]


@pytest.mark.parametrize(
    ("name", "rules"),
    [
        ("small_vm-1x4", f"{ONE_HOST}#{CROWDED}"),
        ("dgx_h100-1x8", ONE_HOST),
        ("small_vm-2x1", OVER_TCP),
        ("dgx_h100-2x8-tcp", OVER_TCP),
        ("dgx_h100-2x8", None),
    ],
)
def test_which_algorithms_ucc_is_told(name: str, rules: str | None) -> None:
    assert dict(make_plan(job(name)).ucc_settings(0)).get("TL_UCP_TUNE") == rules


def test_ranks_that_share_the_cores_of_several_hosts_have_the_algorithms_of_any() -> None:
    crowd = uniform(copies(machine("small_vm"), 2), 3)
    assert crowd.crowd() and dict(make_plan(crowd).ucc_settings(0))["TL_UCP_TUNE"] == OVER_TCP


@pytest.mark.parametrize("name", TUNE)
def test_what_somebody_set_for_an_algorithm_is_told_with_ours(name: str) -> None:
    theirs = "bcast:0-4k:@dbt"
    plan = make_plan(uniform([machine("small_vm")], 2, {name: theirs}))
    assert dict(plan.ucc_settings(0))["TL_UCP_TUNE"] == f"{ONE_HOST}#{theirs}"
    choice = plan.about("algorithms")
    assert choice and choice.reason.startswith(f"{name.removeprefix(PROFILE)}={theirs} decides for the cases")


@pytest.mark.parametrize("theirs", ["", "0", "reduce,allreduce,reduce_scatter:@0"])
def test_what_somebody_set_for_all_of_ours_is_all_that_ucc_is_told(theirs: str) -> None:
    plan = make_plan(uniform([machine("small_vm")], 2, {"UCC_TL_UCP_TUNE": theirs}))
    choice = plan.about("algorithms")
    assert choice and (choice.value, choice.by) == (theirs, f"UCC_TL_UCP_TUNE={theirs}")
    assert "TL_UCP_TUNE" not in dict(plan.ucc_settings(0)), "it reads that itself"


def test_what_somebody_set_for_an_algorithm_is_left_alone_where_the_plan_says_nothing() -> None:
    made = uniform(copies(machine("dgx_h100"), 2), 8, {"UCC_TL_UCP_TUNE": "bcast:@dbt"})
    choice = make_plan(made).about("algorithms")
    assert choice and (choice.value, choice.by) == ("bcast:@dbt", "UCC_TL_UCP_TUNE=bcast:@dbt")
    assert "TL_UCP_TUNE" not in dict(make_plan(made).ucc_settings(0))


@pytest.mark.parametrize(("ranks", "told"), [(512, LONG_SEGMENTS), (513, [])])
def test_segments_of_tcp_are_left_to_ucx_in_jobs_whose_ranks_would_hold_too_many(
    ranks: int, told: list[tuple[str, str]]
) -> None:
    plan = make_plan(uniform(copies(machine("small_vm"), 2), ranks))
    assert [each for each in plan.ucx_settings(0) if each in LONG_SEGMENTS] == told


@pytest.mark.parametrize(
    ("hosts", "ranks", "told"),
    [(1, 2, "^cma,posix,tcp"), (1, 3, "^posix,tcp"), (2, 2, "^cma,posix"), (2, 3, "^posix"), (1, 1, None)],
)
def test_cma_is_for_hosts_with_more_ranks_than_cores_and_tcp_for_several_hosts(
    hosts: int, ranks: int, told: str | None
) -> None:
    plan = make_plan(uniform(copies(machine("small_vm"), hosts), ranks))
    assert [value for name, value in plan.ucx_settings(0) if name == "TLS"] == ([told] if told else [])
    if choice := plan.about(SAME_HOST):
        assert ("cma" in choice.transports) is (ranks > 2)


def test_posix_serves_where_a_host_has_no_memory_of_system_v() -> None:
    with_it = machine("small_vm")
    without = with_it._replace(host_id="other", limits=with_it.limits._replace(sysv=False))
    choice = make_plan(uniform([with_it, without], 2)).about(SAME_HOST)
    assert choice and choice.told == (("TLS", "^cma,sysv"), ("POSIX_RX_BUFS_GROW", "257"))
    assert "posix" in choice.transports
    assert "sysv is left out, because a host has none" in choice.reason


def test_what_one_rank_of_a_host_has_not_the_host_has_not() -> None:
    with_it = machine("small_vm")
    without = with_it._replace(limits=with_it.limits._replace(sysv=False))
    for records in ([with_it, without], [without, with_it]):
        made = decode([encode(each, {}, None) for each in records])
        assert len(made.hosts) == 1 and not made.has_sysv()


def test_tls() -> None:
    assert tls(cma=True, tcp=True) == ("TLS", "all")
    assert tls(cma=False, tcp=True) == ("TLS", "^cma")
    assert tls(cma=True, tcp=False, sysv=True) == ("TLS", "^posix,tcp")


def with_interfaces(host: Inventory, *interfaces: Interface) -> Inventory:
    return host._replace(interfaces=interfaces)


def card(name: str, address: str, **other: object) -> Interface:
    values = {"kind": "port", "up": True, "mtu": 1500, "speed_mbps": None, "default_route": False, **other}
    return Interface(name=name, addresses=(address,), **values)  # type: ignore[arg-type]


def chosen_interfaces(*hosts: list[Interface]) -> list[tuple[str, ...]]:
    host = machine("small_vm")
    machines = [with_interfaces(host, *each)._replace(host_id=str(i)) for i, each in enumerate(hosts)]
    return [each.names for each in make_plan(uniform(machines, 1)).devices]


def test_the_interface_that_reaches_the_others_is_chosen() -> None:
    assert chosen_interfaces(
        [card("a0", "192.168.5.1/24", default_route=True), card("a1", "10.0.0.1/24")],
        [card("b0", "192.168.6.1/24", default_route=True), card("b1", "10.0.0.2/24")],
    ) == [("a1",), ("b1",)]


def test_a_network_inside_each_host_is_none_that_they_share() -> None:
    """Both have the same address there. The faster one it would be otherwise."""
    assert chosen_interfaces(
        [card("a0", "10.0.0.1/24", speed_mbps=1000), card("usb0", "169.254.3.1/24", speed_mbps=10000)],
        [card("b0", "10.0.0.2/24", speed_mbps=1000), card("usb0", "169.254.3.1/24", speed_mbps=10000)],
    ) == [("a0",), ("b0",)]


def test_speed_decides_before_the_default_route_does() -> None:
    two = [
        [
            card("eno1", f"192.168.0.{i}/24", speed_mbps=1000, default_route=True),
            card("ens1", f"10.0.0.{i}/24", speed_mbps=25000),
        ]
        for i in (1, 2)
    ]
    assert chosen_interfaces(*two) == [("ens1",)] * 2
    unknown = [[each._replace(speed_mbps=None) for each in host] for host in two]
    assert chosen_interfaces(*unknown) == [("eno1",)] * 2
    level = [[each._replace(speed_mbps=1000) for each in host] for host in two]
    assert chosen_interfaces(*level) == [("eno1", "ens1")] * 2


def test_hosts_of_different_networks_use_their_default_routes() -> None:
    assert chosen_interfaces(
        [card("a0", "192.168.5.1/24"), card("a1", "10.0.1.1/24", default_route=True)],
        [card("b0", "10.0.2.1/24", default_route=True)],
    ) == [("a1",), ("b0",)]


@pytest.mark.parametrize(
    ("address", "count"), [("10.0.0.14/28", 3), ("10.0.0.1/24", 300), ("2001:db8::1/64", 3)]
)
def test_hosts_that_are_made_up_are_on_one_network(address: str, count: int) -> None:
    hosts = copies(with_interfaces(machine("small_vm"), card("a", address), card("b", "10.9.0.1/16")), count)
    assert len({each.interfaces[0].addresses for each in hosts}) == count
    assert len(shared_networks(hosts)) == 2


def test_an_interface_is_named_where_ucx_would_use_a_tunnel_as_well() -> None:
    tunnel = card("tun0", "10.8.0.1/24", kind="tunnel")
    hosts = copies(with_interfaces(machine("small_vm"), card("eth0", "10.0.0.1/24"), tunnel), 2)
    assert [each.names for each in tcp(hosts)] == [("eth0",)] * 2


def test_what_joins_containers_of_a_host_reaches_nobody() -> None:
    host = with_interfaces(
        machine("small_vm"),
        card("docker0", "172.17.0.1/16", kind="bridge"),
        card("lo", "127.0.0.1/8", kind="loopback"),
        card("down0", "10.0.0.1/8", up=False),
        card("br0", "10.1.0.1/16", kind="bridge", default_route=True),
        card("eth0", "10.2.0.1/16", kind="virtual"),
    )
    assert [each.name for each in reachable(host)] == ["br0", "eth0"]


def test_ranks_without_gpus_use_the_ports_of_their_numa_node() -> None:
    hosts = [each._replace(gpus=()) for each in copies(machine("dgx_h100"), 2)]
    free = uniform(hosts, 2)
    bound = Job(
        free.hosts,
        tuple(rank._replace(usable=hosts[0].numa[rank.local].cpus) for rank in free.ranks),
    )
    names = [each.names for each in make_plan(bound).devices]
    assert names[0] == ("mlx5_0:1", "mlx5_1:1", "mlx5_3:1", "mlx5_4:1", "mlx5_5:1") == names[2]
    assert names[1] == ("mlx5_6:1", "mlx5_7:1", "mlx5_9:1", "mlx5_10:1", "mlx5_11:1") == names[3]


def test_ranks_that_are_kept_to_a_core_each_have_one_each() -> None:
    free = uniform(copies(machine("small_vm"), 2), 3)  # of two cores each
    assert free.crowd() == Crowd(host=0, ranks=3, cores=2)
    assert "cma" not in dict(make_plan(free).ucx_settings(0))["TLS"]
    kept = Job(free.hosts, tuple(rank._replace(usable=str(rank.local)) for rank in free.ranks))
    assert kept.crowd() is None
    assert "cma" in dict(make_plan(kept).ucx_settings(0))["TLS"]  # left out
    doubled = Job(free.hosts, tuple(rank._replace(usable=str(rank.rank // 5)) for rank in free.ranks))
    assert doubled.crowd() == Crowd(host=0, ranks=3, cores=1)


@pytest.mark.parametrize("name", ["dgx_h100-2x8", "dgx_h100-2x16"])
def test_rails_are_shared_evenly(name: str) -> None:
    made = job(name)
    used = [
        each.names for rank, each in zip(made.ranks, make_plan(made).devices, strict=True) if rank.host == 0
    ]
    assert len(set(used)) == 8 and {used.count(each) for each in used} == {len(used) // 8}


def test_a_dead_port_is_not_chosen() -> None:
    hosts = copies(machine("pcie_4gpu"), 2)
    cut = hosts[1]._replace(rdma=(hosts[1].rdma[0]._replace(active=False),))
    plan = make_plan(uniform([hosts[0], cut], 1))
    choice = plan.about(OTHER_HOST)
    assert choice and choice.value == "TCP" and choice.reason == "no RDMA port of host gpu02 is connected"


def roce(name: str, elsewhere: bool) -> RdmaPort:
    return RdmaPort(name, 1, "Ethernet", True, 10.0, None, (), ("RoCE v2",), elsewhere)


def test_a_port_of_another_network_namespace_is_not_chosen() -> None:
    """Two network namespaces of one kernel both see rxe0 and rxe1."""
    first, second = copies(machine("pcie_4gpu")._replace(gpus=()), 2)
    hosts = [
        first._replace(rdma=(roce("rxe0", False), roce("rxe1", True))),
        second._replace(rdma=(roce("rxe0", True), roce("rxe1", False))),
    ]
    both = uniform(hosts, 1)
    plan = make_plan(both)
    choice = plan.about(OTHER_HOST)
    assert choice and choice.value == "RoCE"
    assert [each.names for each in plan.devices] == [("rxe0:1",), ("rxe1:1",)]
    text = plan_text(both, plan)
    assert re.findall(r"\d +gpu0\d +(\S+) +the only usable port", text) == ["rxe0:1", "rxe1:1"]
    assert plan.left_out == (
        "rxe1:1 of gpu01: of another network namespace",
        "rxe0:1 of gpu02: of another network namespace",
    )


def test_a_host_with_ports_of_another_network_namespace_only() -> None:
    first, second = copies(machine("pcie_4gpu"), 2)
    hosts = [first._replace(rdma=(roce("rxe0", False),)), second._replace(rdma=(roce("rxe0", True),))]
    choice = make_plan(uniform(hosts, 1)).about(OTHER_HOST)
    assert choice and choice.value == "TCP"
    assert choice.reason == "the connected RDMA ports of host gpu02 belong to another network namespace"


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        (
            {"UCX_TLS": "sm,self"},
            r"UCX_TLS=sm,self on rank 0 \(host node01\) leaves no way to rank 3 \(host node02\)",
        ),
        ({"UCX_TLS": "tcp", "UCC_UCX_TLS": "posix"}, "UCC_UCX_TLS=posix on rank 0 .* no way to rank 3"),
        ({"UCX_TLS": "self"}, "no way to rank 1 .host node01.. Allow one of posix, sysv, tcp, xpmem in"),
        ({"UCX_TLS": "rc,sm,self"}, "no way to rank 3 .*. Allow tcp in UCX_TLS, or unset UCX_TLS"),
        ({"UCX_TLS": "^tcp"}, "no way to rank 3"),
        ({"UCX_TLS": "cma,self"}, "no way to rank 1"),
        (
            {"UCX_NET_DEVICES": "eth7"},
            "UCX_NET_DEVICES=eth7 on rank 0 .* no way to rank 3 .*The devices docker0, eno1",
        ),
        ({"UCX_NET_DEVICES": "ens1f1"}, "names no device that is up"),
    ],
)
def test_a_setting_that_leaves_no_way_is_a_problem_that_names_the_peer(
    settings: dict[str, str], problem: str
) -> None:
    found = make_plan(uniform(copies(machine("two_ethernets"), 2), 2, settings)).problems
    assert len(found) == 4
    assert re.search(problem, found[0])


@pytest.mark.parametrize(
    "settings",
    [
        {"UCX_TLS": "tcp"},
        {"UCX_TLS": "all"},
        {"UCX_TLS": "^ib"},
        {"UCX_TLS": "sm,tcp"},
        {"UCX_NET_DEVICES": "all"},
        {"UCX_NET_DEVICES": "eno1"},
        {"UCX_NET_DEVICES": "ens1f0,nothing"},
    ],
)
def test_a_setting_that_leaves_a_way_is_none(settings: dict[str, str]) -> None:
    assert make_plan(uniform(copies(machine("two_ethernets"), 2), 2, settings)).problems == ()


def test_shared_memory_alone_does_for_one_host() -> None:
    assert make_plan(uniform([machine("small_vm")], 2, {"UCX_TLS": "sm,self"})).problems == ()


def test_aliases() -> None:
    assert allowed("sm,self") == {"posix", "sysv", "xpmem", "cma", "knem", "self"}
    assert allowed("^tcp") >= {"posix", "rc_mlx5"} and "tcp" not in allowed("^tcp")


def test_distances() -> None:
    gpus = {gpu.device.pci: gpu.device for gpu in machine("pcie_4gpu").gpus}
    first, second, third, fourth = gpus.values()
    assert distance(first, second) == "PIX"
    assert distance(third, fourth) == "NODE" and distance(first, third) == "SYS"
    above = second._replace(path=(*first.path[:2], "0000:09:00.0", "0000:0a:00.0", second.pci))
    assert distance(first, above) == "PXB"
    beside = second._replace(path=(first.path[0], "0000:00:02.0", second.pci))
    assert distance(first, beside) == "PHB"


@pytest.mark.parametrize(
    ("visible", "local", "slot"),
    [
        (None, 0, 0),
        (None, 5, 1),
        ("2,3", 1, 3),
        ("3", 1, 3),
        ("", 0, None),
        ("GPU-8c1b", 0, None),
        ("9", 0, None),
    ],
)
def test_the_gpu_of_a_rank(visible: str | None, local: int, slot: int | None) -> None:
    gpus = machine("pcie_4gpu").gpus
    environment = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert own_gpu(gpus, local, environment) == ("" if slot is None else gpus[slot].device.pci)


def test_ranks_tell_each_other_where_they_are() -> None:
    one, two = copies(machine("pcie_4gpu"), 2)
    records = [
        encode(host, {"UCX_TLS": "tcp"}, visible) for host, visible in [(one, "3"), (two, None), (one, None)]
    ]
    made = decode(records)
    assert [each.host for each in made.hosts] == [one.host, two.host]
    assert made.hosts[1].limits == two.limits._replace(shm_free=0), "which changes all the time"
    assert made.hosts[1]._replace(limits=two.limits) == two
    assert [(rank.host, rank.local) for rank in made.ranks] == [(0, 0), (1, 0), (0, 1)]
    assert [rank.gpu[5:7] for rank in made.ranks] == ["a1", "03", "04"]
    assert made.ranks[0].settings == {"UCX_TLS": "tcp"}
    with pytest.raises(ValueError, match="rank 1 published a record of its host that cannot be read"):
        decode([records[0], b"torn"])


def test_containers_of_one_machine_that_share_no_memory_are_hosts() -> None:
    one = machine("container")
    other = one._replace(limits=one.limits._replace(ipc_namespace="ipc:[1]", pid_namespace="pid:[2]"))
    assert len(decode([encode(each, {}, None) for each in (one, other, one)]).hosts) == 2


def test_differences_between_plan_and_truth() -> None:
    plan = make_plan(job("two_ethernets-3x4"))
    right = {SAME_HOST: ["sysv/memory", "cma/memory"], OTHER_HOST: ["tcp/ens1f0"]}
    assert differences(plan, 0, right) == []
    wrong = differences(plan, 0, {SAME_HOST: ["tcp/lo"], OTHER_HOST: ["tcp/eno1"]})
    assert wrong == [
        "same host: the plan expects sysv or xpmem, and UCX chose tcp/lo",
        "other host: the plan says ens1f0, and UCX chose tcp/eno1",
    ]
    verbs = make_plan(job("dgx_h100-2x8"))
    assert differences(verbs, 9, {OTHER_HOST: ["rc_mlx5/mlx5_3:1", "ud_mlx5/mlx5_3:1"]}) == []
    assert differences(verbs, 9, {OTHER_HOST: ["rc_mlx5/mlx5_4:1", "tcp/eno3"]}) == [
        "other host: the plan says mlx5_3:1, and UCX chose rc_mlx5/mlx5_4:1, tcp/eno3"
    ]
    assert differences(verbs, 9, {SAME_HOST: ["sysv/memory", "rc_mlx5/mlx5_3:1"]}) == [], "one more is none"
    by_the_user = make_plan(job("dgx_h100-2x8-storage"))
    assert differences(by_the_user, 9, {OTHER_HOST: ["rc_mlx5/mlx5_4:1"]}) == [], "nothing said"


def test_what_only_some_ranks_set_is_expected_of_some() -> None:
    made = job("two_ethernets-2x4-hier")
    ranks = [rank._replace(settings={"UCX_TLS": "tcp"}) for rank in made.ranks[:2]]
    choice = make_plan(Job(made.hosts, (*ranks, *made.ranks[2:]))).about(SAME_HOST)
    assert choice and {"tcp", "sysv"} <= set(choice.transports) and choice.by == "UCX_TLS=tcp"


def test_a_plan_for_many_ranks_takes_no_square_of_time() -> None:
    """Counted in what is asked about peers, since time says nothing on a loaded machine."""
    asked = 0

    class Counted(Job):
        def peers(self, rank):  # type: ignore[no-untyped-def]
            nonlocal asked
            found = super().peers(rank)
            asked += len(found)
            return found

    made = uniform(copies(machine("dgx_h100"), 64), 8)
    make_plan(Counted(made.hosts, made.ranks))
    assert asked == 2 * 512


def test_golden_files_are_beside_this_one() -> None:
    assert Path(__file__).parent == HERE
