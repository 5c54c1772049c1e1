"""Probing a host, and what is saved of it: the golden machines, and files that are not what they should
be."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fake_root import GIB, FakeRoot
from machines import MACHINES, build
from torch_ucc.topology import inventory
from torch_ucc.topology.inventory import Cpu, cpus_in, from_json, to_json, usable_cores
from torch_ucc.topology.probe import probe, software
from torch_ucc.topology.root import Root

GOLDEN = Path(__file__).parent / "machines"


@pytest.mark.parametrize("name", MACHINES)
def test_a_probed_machine_is_the_saved_one(name: str, tmp_path: Path) -> None:
    """To renew the files after a change of what is read: `python tests/python/unit/topology/renew.py`."""
    assert to_json(build(name, tmp_path)) == (GOLDEN / f"{name}.json").read_text()


@pytest.mark.parametrize("name", MACHINES)
def test_a_saved_machine_is_read_back(name: str) -> None:
    saved = (GOLDEN / f"{name}.json").read_text()
    assert to_json(from_json(saved)) == saved


def test_an_empty_root_is_a_machine_of_which_nothing_is_known(tmp_path: Path) -> None:
    made = probe(FakeRoot(tmp_path).root())
    assert (made.gpus, made.rdma, made.interfaces, made.numa) == ((), (), (), ())
    assert made.cpu == Cpu(model="", sockets=1, cores=0, usable="")
    assert made.limits.memlock_bytes is None and made.limits.ptrace_scope is None


@pytest.mark.parametrize(
    ("gid", "types"), [("", ()), ("0000:0000:0000:0000:0000:ffff:0a00:0001", ("RoCE v2",))]
)
def test_an_address_of_the_link_alone_is_none_for_roce(
    gid: str, types: tuple[str, ...], tmp_path: Path
) -> None:
    fake = FakeRoot(tmp_path)
    at = fake.pci("pci0000:00/00:01.0", 0x15B3, 0x1021, 0x020000, 0)
    fake.rdma("mlx5_0", at, "100 Gb/sec (4X EDR)", "Ethernet", gid=gid)
    (port,) = probe(fake.root()).rdma
    assert port.active and port.gid_types == types


@pytest.mark.parametrize(
    ("link_layer", "gid", "elsewhere"),
    [
        ("Ethernet", "0000:0000:0000:0000:0000:ffff:0a4d:0001", False),
        ("Ethernet", "0000:0000:0000:0000:0000:ffff:0a4d:0002", True),
        ("Ethernet", "fd00:0000:0000:0000:0000:0000:0000:0001", False),
        ("Ethernet", "fd00:0000:0000:0000:0000:0000:0000:0002", True),
        ("Ethernet", "", False),
        ("InfiniBand", "", False),
    ],
)
def test_a_roce_port_of_another_network_namespace(
    link_layer: str, gid: str, elsewhere: bool, tmp_path: Path
) -> None:
    """Its addresses tell: rxe0 of the one host was seen on the other host, too."""
    fake = FakeRoot(tmp_path)
    at = fake.pci("pci0000:00/00:01.0", 0x15B3, 0x1021, 0x020000, 0)
    fake.rdma("mlx5_0", at, "100 Gb/sec (4X EDR)", link_layer, gid=gid)
    fake.interface("eth0", at, addresses=["10.77.0.1/24", "fd00::1/64"])
    (port,) = probe(fake.root()).rdma
    assert port.active and port.elsewhere == elsewhere


def test_this_machine_is_probed() -> None:
    made = probe(Root())
    assert made.host_id == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert "loopback" in {each.kind for each in made.interfaces} and made.limits.shm_bytes > 0
    assert from_json(to_json(made)) == made


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({"/sys/fs/cgroup/cpu.max": "150000 100000"}, 1.5),
        ({"/sys/fs/cgroup/cpu.max": "max 100000"}, None),
        (
            {
                "/sys/fs/cgroup/cpu/cpu.cfs_quota_us": "200000",
                "/sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
            },
            2.0,
        ),
        (
            {"/sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1", "/sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000"},
            None,
        ),
        ({}, None),
    ],
)
def test_the_quota_of_a_container(files: dict[str, str], quota: float | None, tmp_path: Path) -> None:
    fake = FakeRoot(tmp_path)
    for path, text in files.items():
        fake.file(path, text)
    assert probe(fake.root()).cpu.quota == quota


@pytest.mark.parametrize(
    ("usable", "quota", "cores"),
    [
        ("0-3", None, 4),
        ("0-31", 4.0, 4),
        ("0-1", 64.0, 2),
        ("0,2,8-9", None, 4),
        ("", None, 1),
        ("0-3", 0.5, 1),
    ],
)
def test_usable_cores(usable: str, quota: float | None, cores: int) -> None:
    assert usable_cores(Cpu("", 1, 1, usable, quota)) == cores


def test_lists_of_cpus() -> None:
    assert cpus_in("0-2,5") == [0, 1, 2, 5] and cpus_in("") == []


def test_addresses_go_to_the_interface_that_is_on_their_network(tmp_path: Path) -> None:
    fake = FakeRoot(tmp_path)
    fake.interface("eth0", addresses=["10.0.0.5/24"], gateway="10.0.0.1")
    fake.interface("eth1", addresses=["10.0.1.5/24", "2001:db8::5/64"])
    fake.interface("eth2", addresses=["10.0.2.5/24"], gateway="10.0.2.1", metric=100)
    eth0, eth1, eth2 = probe(fake.root()).interfaces
    assert eth0.addresses == ("10.0.0.5/24",) and eth0.default_route
    assert eth1.addresses == ("10.0.1.5/24", "2001:db8::5/64") and not eth1.default_route
    assert eth2.addresses == ("10.0.2.5/24",) and not eth2.default_route, "the lesser metric wins"


def test_a_processor_of_arm(tmp_path: Path) -> None:
    fake = FakeRoot(tmp_path)
    fake.file(
        "/proc/cpuinfo",
        "\n".join(
            f"processor\t: {cpu}\nCPU implementer\t: 0x41\nCPU architecture: 8\nCPU part\t: 0xd40\n"
            for cpu in range(4)
        ),
    )
    for cpu in range(4):
        at = f"/sys/devices/system/cpu/cpu{cpu}/topology"
        fake.file(f"{at}/physical_package_id", str(cpu // 2))
        fake.file(f"{at}/core_id", str(cpu % 2))
    made = probe(fake.root()).cpu
    assert (made.model, made.sockets, made.cores) == ("implementer 0x41, part 0xd40", 2, 4)


@pytest.mark.parametrize("gateway", ["10.128.0.1", "169.254.1.1"])
def test_an_address_on_no_network_is_that_of_the_default_route(gateway: str, tmp_path: Path) -> None:
    """Of a virtual machine in a cloud, and of a container in a cluster."""
    fake = FakeRoot(tmp_path)
    fake.interface("lo", addresses=["127.0.0.1/8"])
    fake.interface("ens4", gateway=gateway)
    fake.route("ens4", f"{gateway}/32")
    fake.lone_address("10.128.0.5")
    fake.interface("docker0", addresses=["172.17.0.1/16"], kind="bridge")
    found = {each.name: each.addresses for each in probe(fake.root()).interfaces}
    assert found["ens4"] == ("10.128.0.5/32",) and found["docker0"] == ("172.17.0.1/16",)


def test_default_routes_of_a_host_without_ipv4(tmp_path: Path) -> None:
    fake = FakeRoot(tmp_path)
    fake.interface("lo")
    fake.interface("br0", addresses=["2001:db8::5/64"], kind="bridge")
    zero = "0" * 32
    fake.file(
        "/proc/net/ipv6_route",
        f"{zero} 00 {zero} 00 20010db8000000000000000000000001 00000400 00000001 00000000 00000003 br0\n"
        f"{zero} 00 {zero} 00 {zero} ffffffff 00000001 00000000 00200200 lo",
    )
    found = probe(fake.root()).interfaces
    assert [each.name for each in found if each.default_route] == ["br0"]


def test_modules_are_those_beside_the_library(tmp_path: Path) -> None:
    (tmp_path / "ucx").mkdir()
    for name in ("libuct_cma.so", "libuct_cma.so.0", "libuct_ib.so.0.0.0", "libucm_cuda.so", "libuct_cuda.a"):
        (tmp_path / "ucx" / name).touch()
    assert software(tmp_path / "libucp.so.0", "1.22.0", "libuct_").modules == ("cma", "ib")


def damaged(**changes: object) -> str:
    return json.dumps({**json.loads((GOLDEN / "small_vm.json").read_text()), **changes})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "a saved machine is JSON"),
        ("[]", "not a machine that `torch-ucc topo --save`"),
        (damaged(format=99), "not a machine that `torch-ucc topo --save`"),
        (damaged(cpu=None), "cpu: None is not an object"),
        (damaged(gpus=[{"name": 3}]), r"gpus\[0\].name: 3 is not str"),
        (damaged(host=5), "host: 5 is not str"),
        (damaged(surprise=1), "the machine has no 'surprise'"),
        (damaged(gpus=[{"name": "x"}]), r"gpus\[0\].*missing.*device"),
    ],
)
def test_what_is_no_machine_is_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        from_json(text)


def test_every_field_survives_saving(tmp_path: Path) -> None:
    """Also those that no golden machine fills."""
    made = build("small_vm", tmp_path)
    assert inventory.from_json(inventory.to_json(made)).limits.shm_bytes == 23 * GIB
