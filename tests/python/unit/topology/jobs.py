"""Jobs on the golden machines; `plans/` holds what is planned for each, in words."""

from __future__ import annotations

from pathlib import Path

from torch_ucc.topology.explain import plan_text
from torch_ucc.topology.inventory import Inventory, from_json
from torch_ucc.topology.job import Job, copies, uniform
from torch_ucc.topology.plan import make_plan

HERE = Path(__file__).parent

# Name: the machine of each host, ranks on each, what the user set.
JOBS: dict[str, tuple[list[str], int, dict[str, str]]] = {
    "dgx_h100-1x8": (["dgx_h100"], 8, {}),
    "dgx_h100-1x8-direct": (["dgx_h100"], 8, {"TORCH_UCC_DEVICE_P2P": "direct"}),
    "dgx_h100-1x8-native": (["dgx_h100"], 8, {"TORCH_UCC_DEVICE_COLLECTIVES": "native"}),
    "dgx_h100-2x8": (["dgx_h100", "dgx_h100"], 8, {}),
    "dgx_h100-2x16": (["dgx_h100", "dgx_h100"], 16, {}),
    "dgx_h100-2x8-tcp": (["dgx_h100", "dgx_h100"], 8, {"UCX_TLS": "tcp,sm,self"}),
    "dgx_h100-2x8-storage": (["dgx_h100", "dgx_h100"], 8, {"UCX_NET_DEVICES": "mlx5_1:1"}),
    "dgx_h100-and-pcie_4gpu-4": (["dgx_h100", "pcie_4gpu"], 4, {}),
    "dgx_h100-and-two_ethernets-2": (["dgx_h100", "two_ethernets"], 2, {}),
    "pcie_4gpu-2x4": (["pcie_4gpu", "pcie_4gpu"], 4, {}),
    "two_ethernets-1x32": (["two_ethernets"], 32, {}),
    "two_ethernets-3x4": (["two_ethernets", "two_ethernets", "two_ethernets"], 4, {}),
    "two_ethernets-2x4-hier": (["two_ethernets", "two_ethernets"], 4, {"UCC_CLS": "hier,basic"}),
    "two_ethernets-2x2-sm": (["two_ethernets", "two_ethernets"], 2, {"UCX_TLS": "sm,self"}),
    "two_rails-4x2": (["two_rails", "two_rails", "two_rails", "two_rails"], 2, {}),
    "efa_vm-2x8": (["efa_vm", "efa_vm"], 8, {}),
    "small_vm-1x1": (["small_vm"], 1, {}),
    "small_vm-1x4": (["small_vm"], 4, {}),
    "small_vm-2x1": (["small_vm", "small_vm"], 1, {}),
    "container-1x8": (["container"], 8, {}),
    "container-2x1": (["container", "container"], 1, {}),
}


def job(name: str) -> Job:
    machines, ranks_each, settings = JOBS[name]
    hosts: list[Inventory] = []
    for machine in machines:
        one = from_json((HERE / "machines" / f"{machine}.json").read_text())
        before = machines[: len(hosts)].count(machine)
        hosts.append(copies(one, before + 1)[before])
    return uniform(hosts, ranks_each, settings)


def planned(name: str) -> str:
    made = job(name)
    return plan_text(made, make_plan(made))
