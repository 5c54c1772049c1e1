"""UCX's transports: which a user allows, and which of them lead where."""

from __future__ import annotations

from torch_ucc.topology.inventory import Inventory, RdmaPort

SHARED_MEMORY = ("posix", "sysv", "xpmem")
"""Each leads to a process of the same host by itself. Not so cma, which only copies what another one
announced."""

VERBS = ("rc_verbs", "rc_mlx5", "dc_mlx5", "ud_verbs", "ud_mlx5")
OF_LINK_LAYER = {"InfiniBand": VERBS, "Ethernet": VERBS, "EFA": ("srd", "ud_verbs")}

# What UCX_TLS may say for several.
_ALIASES = {
    "all": (*SHARED_MEMORY, "cma", "knem", "tcp", *VERBS, "srd"),
    "mm": SHARED_MEMORY,
    "sm": (*SHARED_MEMORY, "cma", "knem"),
    "shm": (*SHARED_MEMORY, "cma", "knem"),
    "ib": VERBS,
    "rc": ("rc_verbs", "rc_mlx5", "ud_verbs", "ud_mlx5"),  # ud connects what rc then uses
    "rc_v": ("rc_verbs",),
    "rc_x": ("rc_mlx5",),
    "dc": ("dc_mlx5",),
    "dc_x": ("dc_mlx5",),
    "ud": ("ud_verbs", "ud_mlx5"),
    "ud_v": ("ud_verbs",),
    "ud_x": ("ud_mlx5",),
}


def allowed(text: str) -> set[str]:
    """What UCX_TLS lets pass; a text that starts with ^ forbids."""
    named: set[str] = set()
    for word in text.removeprefix("^").split(","):
        plain = word.strip().partition(":")[0].lstrip("\\")
        named.update(_ALIASES.get(plain, (plain,)))
    return set(_ALIASES["all"]) - named if text.startswith("^") else named


def usable_ports(host: Inventory) -> list[RdmaPort]:
    """Those that are connected, not of another network namespace, and that this host's UCX can drive."""
    return [port for port in connected_ports(host) if has_driver(host, port.link_layer)]


def connected_ports(host: Inventory) -> list[RdmaPort]:
    """Those that a UCX with their driver could use."""
    return [port for port in host.rdma if port.active and not port.elsewhere]


def has_driver(host: Inventory, link_layer: str) -> bool:
    wanted = ("efa", "ib_efa") if link_layer == "EFA" else ("ib", "ib_mlx5", "mlx5")
    return any(module in wanted for module in host.ucx.modules)


def of_network(host: Inventory) -> set[str]:
    """Those by which the host can reach another one."""
    found = {"tcp"}
    for port in usable_ports(host):
        found.update(OF_LINK_LAYER.get(port.link_layer, ()))
    return found


def why_no_cma(host: Inventory) -> str:
    """Why one process of the host may not copy from another's memory, or empty."""
    limits = host.limits
    if "cma" not in host.ucx.modules:
        return "this UCX was built without cma"
    if limits.ptrace_scope == 3:
        return (
            "/proc/sys/kernel/yama/ptrace_scope is 3, which forbids every process to read the memory of "
            "another one"
        )
    if limits.ptrace_scope == 2 and not limits.may_ptrace_any:
        return "/proc/sys/kernel/yama/ptrace_scope is 2, and this process lacks CAP_SYS_PTRACE"
    return ""
