"""Machines that stand for their kind. Each function builds one; `machines/` holds what the recorder made of
it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from fake_root import EVERY_CAPABILITY, GIB, FakeRoot
from torch_ucc.topology.inventory import Inventory, Software
from torch_ucc.topology.probe import probe

MELLANOX, INTEL, AMAZON, BROADCOM, VIRTIO = 0x15B3, 0x8086, 0x1D0F, 0x14E4, 0x1AF4
ETHERNET, OTHER_NETWORK = 0x020000, 0x020700

UCC_OF_A_CLUSTER = Software(
    "1.4.4",
    "/opt/hpcx/ucc/lib/libucc.so.1",
    ("cl_basic", "cl_hier", "tl_cuda", "tl_nccl", "tl_self", "tl_ucp"),
)
UCX_OF_A_CLUSTER = Software(
    "1.18.0", "/opt/hpcx/ucx/lib/libucp.so.0", ("cma", "cuda", "gdrcopy", "ib", "ib_mlx5", "rdmacm", "xpmem")
)
UCC_OF_THE_WHEEL = Software(
    "1.9.0",
    "/venv/lib/python3.11/site-packages/torch_ucc/_ucc/lib/libucc.so.1",
    ("cl_basic", "cl_hier", "ec_cpu", "mc_cpu", "tl_self", "tl_ucp"),
)
UCX_OF_THE_WHEEL = Software(
    "1.22.0", "/venv/lib/python3.11/site-packages/libucx/lib/libucp.so.0", ("cma", "cuda")
)


def dgx_h100(fake: FakeRoot, number: int) -> tuple[Software, Software]:
    """Eight H100 on four NVSwitches, a 400 Gb/s InfiniBand port beside each, two cards for storage with one
    port of InfiniBand and one of Ethernet each."""
    fake.host(
        f"dgx{number:02}",
        f"3f0c8a52-9a60-4f43-8f0e-0000000000{number:02}",
        "5.15.0-1053-nvidia",
        usable="0-223",
        ptrace_scope=1,
    )
    fake.cpus("Intel(R) Xeon(R) Platinum 8480C", ["0-55,112-167", "56-111,168-223"], 56, 1008, threads=2)
    fake.shm = (1008 * GIB, 1008 * GIB)
    # Root complex, switch's port upwards and a bus below it for each pair of GPU and network card.
    pairs = [
        ("pci0000:15/15:01.0/16:00.0", "17:00.0", "18:00.0", "17:02.0", "1b:00.0", "mlx5_0", 0),
        ("pci0000:37/37:01.0/3d:00.0", "3e:00.0", "40:00.0", "3e:02.0", "43:00.0", "mlx5_3", 0),
        ("pci0000:48/48:01.0/4c:00.0", "4d:00.0", "4f:00.0", "4d:02.0", "52:00.0", "mlx5_4", 0),
        ("pci0000:59/59:01.0/5b:00.0", "5c:00.0", "5e:00.0", "5c:02.0", "61:00.0", "mlx5_5", 0),
        ("pci0000:97/97:01.0/98:00.0", "99:00.0", "9a:00.0", "99:02.0", "9d:00.0", "mlx5_6", 1),
        ("pci0000:b7/b7:01.0/be:00.0", "bf:00.0", "c0:00.0", "bf:02.0", "c3:00.0", "mlx5_9", 1),
        ("pci0000:c7/c7:01.0/cb:00.0", "cc:00.0", "ce:00.0", "cc:02.0", "d1:00.0", "mlx5_10", 1),
        ("pci0000:d7/d7:01.0/d9:00.0", "da:00.0", "dc:00.0", "da:02.0", "df:00.0", "mlx5_11", 1),
    ]
    for bus, card_port, card, gpu_port, gpu, name, numa in pairs:
        fake.nvidia(f"{bus}/{gpu_port}/{gpu}", 0x2330, numa, "NVIDIA H100 80GB HBM3", {"switch": 18})
        fake.rdma(
            name,
            fake.pci(f"{bus}/{card_port}/{card}", MELLANOX, 0x1021, OTHER_NETWORK, numa),
            "400 Gb/sec (4X NDR)",
        )
    for bus, card, (first, second), interface, numa in [
        ("pci0000:26/26:01.0", "29:00", ("mlx5_1", "mlx5_2"), "ens6f1np1", 0),
        ("pci0000:a7/a7:01.0", "aa:00", ("mlx5_7", "mlx5_8"), "ens8f1np1", 1),
    ]:
        one = fake.pci(f"{bus}/{card}.0", MELLANOX, 0x1021, OTHER_NETWORK, numa, 32.0, 16)
        two = fake.pci(f"{bus}/{card}.1", MELLANOX, 0x1021, ETHERNET, numa, 32.0, 16)
        fake.rdma(first, one, "400 Gb/sec (4X NDR)")
        is_used = numa == 0
        fake.rdma(
            second,
            two,
            "100 Gb/sec (4X EDR)",
            "Ethernet",
            "4: ACTIVE" if is_used else "1: DOWN",
            gid=f"0000:0000:0000:0000:0000:ffff:0a96:{number:04x}",  # 10.150.0.number
        )
        fake.interface(
            interface,
            two,
            addresses=[f"10.150.0.{number}/16"] if is_used else [],
            speed=100000 if is_used else None,
            state="up" if is_used else "down",
        )
    board = fake.pci("pci0000:00/00:1c.0/0b:00.0", INTEL, 0x1563, ETHERNET, 0, 8.0, 4)
    fake.interface("eno3", board, addresses=[f"10.33.0.{number}/24"], gateway="10.33.0.254", speed=10000)
    fake.interface("docker0", addresses=["172.17.0.1/16"], kind="bridge", state="down")
    fake.interface("lo", addresses=["127.0.0.1/8"], state="unknown", mtu=65536)
    return UCX_OF_A_CLUSTER, UCC_OF_A_CLUSTER


def pcie_4gpu(fake: FakeRoot, number: int) -> tuple[Software, Software]:
    """Four L40S without NVLink, two on a switch and two at root ports, one HDR port beside the first pair."""
    fake.host(
        f"gpu{number:02}",
        f"b7d84c10-1b0e-4d0c-9b3f-0000000000{number:02}",
        "6.8.0-45-generic",
        usable="0-63",
        ptrace_scope=1,
    )
    fake.cpus("AMD EPYC 9354 32-Core Processor", ["0-31", "32-63"], 32, 377, threads=1)
    fake.shm = (377 * GIB, 377 * GIB)
    for path, numa in [
        ("pci0000:00/00:01.1/01:00.0/02:00.0/03:00.0", 0),
        ("pci0000:00/00:01.1/01:00.0/02:01.0/04:00.0", 0),
        ("pci0000:80/80:01.1/81:00.0", 1),
        ("pci0000:a0/a0:01.1/a1:00.0", 1),
    ]:
        fake.nvidia(path, 0x26B9, numa, "NVIDIA L40S")
    card = fake.pci(
        "pci0000:00/00:01.1/01:00.0/02:02.0/05:00.0", MELLANOX, 0x101B, OTHER_NETWORK, 0, 16.0, 16
    )
    fake.rdma("mlx5_0", card, "200 Gb/sec (4X HDR)")
    fake.interface("ibp5s0", card, addresses=[f"10.10.0.{number}/16"], mtu=2044)
    board = fake.pci("pci0000:60/60:03.1/61:00.0", BROADCOM, 0x16D8, ETHERNET, 0, 8.0, 8)
    fake.interface("eno1np0", board, addresses=[f"10.1.4.{number}/24"], gateway="10.1.4.1", speed=10000)
    fake.interface("lo", addresses=["127.0.0.1/8"], state="unknown", mtu=65536)
    return UCX_OF_A_CLUSTER, UCC_OF_A_CLUSTER


def two_ethernets(fake: FakeRoot, number: int) -> tuple[Software, Software]:
    """Two sockets, no accelerators: 1 Gb/s with the default route for administration, 25 Gb/s between the
    hosts."""
    fake.host(
        f"node{number:02}",
        f"64aa2b1c-2f7e-4a3b-8f35-0000000000{number:02}",
        "6.1.0-25-amd64",
        usable="0-63",
        ptrace_scope=None,
    )
    fake.cpus("Intel(R) Xeon(R) Gold 6326 CPU @ 2.90GHz", ["0-15,32-47", "16-31,48-63"], 16, 251, threads=2)
    fake.shm = (251 * GIB, 251 * GIB)
    board = fake.pci("pci0000:00/00:1c.0/02:00.0", INTEL, 0x1533, ETHERNET, 0, 2.5, 1)
    fake.interface("eno1", board, addresses=[f"192.168.10.{number}/24"], gateway="192.168.10.1", speed=1000)
    card = fake.pci("pci0000:97/97:02.0/98:00.0", INTEL, 0x159B, ETHERNET, 1, 16.0, 8)
    fake.interface("ens1f0", card, addresses=[f"10.20.0.{number}/24"], speed=25000, mtu=9000)
    second = fake.pci("pci0000:97/97:02.0/98:00.1", INTEL, 0x159B, ETHERNET, 1, 16.0, 8)
    fake.interface("ens1f1", second, state="down", mtu=9000)
    fake.interface("docker0", addresses=["172.17.0.1/16"], kind="bridge")
    fake.interface("lo", addresses=["127.0.0.1/8"], state="unknown", mtu=65536)
    return UCX_OF_THE_WHEEL, UCC_OF_THE_WHEEL


def two_rails(fake: FakeRoot, number: int) -> tuple[Software, Software]:
    """A card with two ports of 25 Gb/s, each on a network of its own, and 1 Gb/s for administration."""
    fake.host(
        f"rail{number:02}",
        f"9c5e0d3a-7b1f-4d62-8a55-0000000000{number:02}",
        "6.1.0-25-amd64",
        usable="0-31",
        ptrace_scope=None,
    )
    fake.cpus("AMD EPYC 7313P 16-Core Processor", ["0-31"], 16, 251, threads=2)
    fake.shm = (126 * GIB, 126 * GIB)
    board = fake.pci("pci0000:c0/c0:01.1/c1:00.0", INTEL, 0x1533, ETHERNET, 0, 2.5, 1)
    fake.interface("eno1", board, addresses=[f"192.168.10.{number}/24"], gateway="192.168.10.1", speed=1000)
    for port in (0, 1):
        card = fake.pci(f"pci0000:40/40:01.1/41:00.{port}", INTEL, 0x159B, ETHERNET, 0, 16.0, 8)
        addresses = [f"10.20.{port}.{number}/24"]
        fake.interface(f"ens1f{port}np{port}", card, addresses=addresses, speed=25000, mtu=9000)
    fake.interface("docker0", addresses=["172.17.0.1/16"], kind="bridge")
    fake.interface("lo", addresses=["127.0.0.1/8"], state="unknown", mtu=65536)
    return UCX_OF_THE_WHEEL, UCC_OF_THE_WHEEL


def efa_vm(fake: FakeRoot, number: int) -> tuple[Software, Software]:
    """A g5.48xlarge of Amazon: eight A10G, one EFA port, and a UCX that knows no EFA."""
    fake.host(
        f"ip-172-31-20-{number}",
        f"0d1be2b4-5f63-4e4a-a0ad-0000000000{number:02}",
        "6.8.0-1016-aws",
        usable="0-191",
        ptrace_scope=1,
        memlock="8388608",
        huge_pages=5128,
    )
    fake.cpus("AMD EPYC 7R32", ["0-47,96-143", "48-95,144-191"], 48, 378, threads=2)
    fake.shm = (378 * GIB, 378 * GIB)
    for slot in range(8):
        fake.nvidia(f"pci0000:00/00:{0x16 + slot:02x}.0", 0x2237, slot // 4, "NVIDIA A10G")
    efa = fake.pci("pci0000:00/00:15.0", AMAZON, 0xEFA1, 0x020000, 0, 16.0, 16)
    fake.rdma("rdmap0s21", efa, "100 Gb/sec (4X EDR)", "Unspecified")
    board = fake.pci("pci0000:00/00:05.0", AMAZON, 0xEC20, ETHERNET, 0, 8.0, 8)
    fake.interface(
        "ens5", board, addresses=[f"172.31.20.{number}/20"], gateway="172.31.16.1", mtu=9001, metric=100
    )
    fake.interface("docker0", addresses=["172.17.0.1/16"], kind="bridge", state="down")
    fake.interface("lo", addresses=["127.0.0.1/8"], state="unknown", mtu=65536)
    return UCX_OF_THE_WHEEL, UCC_OF_THE_WHEEL


def small_vm(fake: FakeRoot, number: int) -> tuple[Software, Software]:
    """Two virtual cores, one virtio interface, no SMBIOS, no Yama."""
    fake.host(
        f"vm{number}",
        f"7ffc4b5a-c78c-409f-885e-0000000000{number:02}",
        "6.18.44",
        capabilities=EVERY_CAPABILITY,
        usable="0-1",
        memlock="8388608",
        open_files="20000",
        ptrace_scope=None,
    )
    fake.cpus("AMD EPYC", ["0-1"], 2, 17, threads=1)
    fake.shm = (23 * GIB, 23 * GIB)
    board = fake.pci("pci0000:00/00:03.0", VIRTIO, 0x1041, ETHERNET, -1, 0.0, 0)
    fake.interface(
        "eth0", board, addresses=[f"192.0.2.{number}/24", f"fd00::{number}/64"], gateway="192.0.2.1", mtu=1400
    )
    fake.interface("ifb0", state="down")
    fake.interface("lo", addresses=["127.0.0.1/8"], state="unknown", mtu=65536)
    return UCX_OF_THE_WHEEL, UCC_OF_THE_WHEEL


def container(fake: FakeRoot, number: int) -> tuple[Software, Software]:
    """A pod: four of 32 cores' time, 64 MB of shared memory, namespaces of its own, no rights, a virtual
    interface."""
    fake.host(
        f"train-worker-{number}",
        f"c95f3b0e-57ae-4f0e-a9a4-0000000000{number:02}",
        "5.10.226-214.880.amzn2.x86_64",
        usable="0-31",
        memlock="65536",
        ptrace_scope=2,
        namespaces={
            "pid": "pid:[4026533210]",
            "user": "user:[4026531837]",
            "ipc": "ipc:[4026533208]",
        },
    )
    fake.file("/sys/fs/cgroup/cpu.max", "400000 100000")
    fake.cpus("Intel(R) Xeon(R) Platinum 8375C CPU @ 2.90GHz", ["0-31"], 16, 124, threads=2)
    fake.shm = (64 << 20, 64 << 20)
    fake.interface(
        "eth0", addresses=[f"10.244.{number}.7/24"], gateway=f"10.244.{number}.1", speed=10000, mtu=8951
    )
    fake.interface("lo", addresses=["127.0.0.1/8"], state="unknown", mtu=65536)
    return UCX_OF_THE_WHEEL, UCC_OF_THE_WHEEL


MACHINES: dict[str, Callable[[FakeRoot, int], tuple[Software, Software]]] = {
    each.__name__: each
    for each in (dgx_h100, pcie_4gpu, two_ethernets, two_rails, efa_vm, small_vm, container)
}


def build(name: str, folder: Path, number: int = 1) -> Inventory:
    """The machine as the probe sees it; machines of one kind differ by number in name and addresses."""
    fake = FakeRoot(folder)
    ucx, ucc = MACHINES[name](fake, number)
    return probe(fake.root(), ucx, ucc)
