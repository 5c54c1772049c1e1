"""Finds what goes wrong in practice on one host, and names the cure. The checks are pure functions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from torch_ucc._native.leftovers import INITIAL_PID_NAMESPACE
from torch_ucc.topology.devices import reachable
from torch_ucc.topology.inventory import Inventory
from torch_ucc.topology.job import uniform
from torch_ucc.topology.plan import make_plan
from torch_ucc.topology.transports import connected_ports, has_driver, why_no_cma
from torch_ucc.topology.user import settings_here

BROKEN, COSTLY, NOTE = "broken", "costly", "note"
"""BROKEN: something cannot work. COSTLY: it works, but is slow or a risk. NOTE: it is worth knowing."""

_ENOUGH_MEMLOCK = 1 << 30
_ENOUGH_SHM = 256 << 20
_ENOUGH_FILES = 1024


@dataclass(frozen=True)
class Finding:
    name: str
    grade: str
    what: str
    cure: str


@dataclass(frozen=True)
class Patient:
    """What the checks look at. The errors are the messages of what failed, or empty."""

    host: Inventory
    environment: Mapping[str, str] = field(default_factory=dict)
    extension_error: str = ""
    settings_error: str = ""
    old_settings: Mapping[str, str] = field(default_factory=dict)
    torch_has_ucc: bool = False
    built_with: Mapping[str, str] = field(default_factory=dict)
    """The version of "UCC" and of "UCX" that the extension was built with, if it was."""


Check = Callable[[Patient], Iterator[Finding]]


def examine(patient: Patient) -> list[Finding]:
    """The findings of all checks, the worst first."""
    found = [finding for check in CHECKS.values() for finding in check(patient)]
    return sorted(found, key=lambda finding: (BROKEN, COSTLY, NOTE).index(finding.grade))


def passed(patient: Patient, checks: Mapping[str, Check]) -> list[str]:
    """The names of the checks that find nothing."""
    return [name for name, check in checks.items() if not list(check(patient))]


def status(findings: list[Finding]) -> int:
    """The exit status of the command: 2 if something is broken, 1 if something is costly, otherwise 0."""
    grades = {finding.grade for finding in findings}
    return 2 if BROKEN in grades else 1 if COSTLY in grades else 0


def _extension(patient: Patient) -> Iterator[Finding]:
    if patient.extension_error:
        yield Finding(
            "extension",
            BROKEN,
            patient.extension_error,
            "do what this message says; without the extension, no ucc group can be created",
        )


def _older(patient: Patient) -> Iterator[Finding]:
    for name, running in (("UCC", patient.host.ucc), ("UCX", patient.host.ucx)):
        built = patient.built_with.get(name, "")
        if running.version and _release(running.version) < _release(built):
            yield Finding(
                "older-library",
                COSTLY,
                f"{name} {running.version} from {running.path} is older than {name} {built}, with which "
                "torch-ucc was built: it may lack functions that torch-ucc calls",
                f"set {name}_HOME to a newer {name}, or build torch-ucc with this one",
            )


def _release(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2] if part.isdigit())


def _settings(patient: Patient) -> Iterator[Finding]:
    if patient.settings_error:
        yield Finding("settings", BROKEN, patient.settings_error, "correct or unset this variable")
    for name, why in patient.old_settings.items():
        yield Finding("old-setting", NOTE, f"{name} has no effect any more: {why}", f"unset {name}")


def _no_way(patient: Patient) -> Iterator[Finding]:
    job = uniform([patient.host], 2, settings_here(patient.environment))
    for problem in make_plan(job).problems[:1]:
        yield Finding("no-way", BROKEN, f"ranks of one host: {problem}", "do what this message says")


def _shadowed(patient: Patient) -> Iterator[Finding]:
    if patient.torch_has_ucc:
        yield Finding(
            "shadowed",
            COSTLY,
            'this build of PyTorch has its own "ucc" backend, so init_process_group("ucc") does not use '
            "torch-ucc",
            'use the other name of torch-ucc: init_process_group("torch_ucc")',
        )


def _rdma(patient: Patient) -> Iterator[Finding]:
    host = patient.host
    connected = connected_ports(host)
    for layer in sorted({port.link_layer for port in connected}):
        if not has_driver(host, layer):
            specs = ", ".join(port.spec for port in connected if port.link_layer == layer)
            yield Finding(
                "no-driver",
                COSTLY,
                f"{specs} ({layer}) cannot be used: UCX {host.ucx.version} from {host.ucx.path} has no "
                f"transport for it, only {', '.join(('shared memory', 'TCP', *host.ucx.modules))}",
                "set UCX_HOME and UCC_HOME to the UCX and UCC of the cluster, for example those of HPC-X",
            )
    for port in host.rdma:
        if not port.active:
            yield Finding(
                "port-down",
                NOTE,
                f"{port.spec} is not connected",
                "if it should be connected, check its cable and its switch",
            )
        elif port.elsewhere:
            yield Finding(
                "other-namespace",
                NOTE,
                f"{port.spec} cannot be used: its network interface is in another network namespace",
                "if it should be used, run the ranks in the namespace of this interface (docker: "
                "--network=host; Kubernetes: hostNetwork: true), or move the interface to their namespace",
            )
        elif port.link_layer == "Ethernet" and "RoCE v2" not in port.gid_types:
            has = ", ".join(port.gid_types) or "only link-local addresses"
            yield Finding(
                "roce-gid",
                COSTLY,
                f"{port.spec} has no RoCE v2 address ({has}), so it cannot reach hosts on other IP networks",
                "give its network interface an IP address, or choose an address with UCX_IB_GID_INDEX",
            )
    limit = host.limits.memlock_bytes
    if connected and limit is not None and limit < _ENOUGH_MEMLOCK:
        yield Finding(
            "memlock",
            COSTLY,
            f"this process may lock only {limit // 1024} KiB of memory, and RDMA locks the memory that it "
            "uses",
            "`ulimit -l unlimited`; for a systemd service: LimitMEMLOCK=infinity; for a container: "
            "--ulimit memlock=-1",
        )


def _memory(patient: Patient) -> Iterator[Finding]:
    host = patient.host
    if why := why_no_cma(host) if host.ucx.version else "":
        yield Finding(
            "no-cma",
            COSTLY,
            f"UCX copies large messages between ranks of this host twice: {why}",
            "`sysctl kernel.yama.ptrace_scope=1`; for a container: --cap-add=SYS_PTRACE",
        )
    if 0 < host.limits.shm_bytes < _ENOUGH_SHM:
        yield Finding(
            "small-shm",
            COSTLY,
            f"/dev/shm has only {host.limits.shm_bytes >> 20} MiB, which can be too little for DataLoader "
            "workers"
            + ("" if host.limits.sysv else " and for UCX, because there is no System V shared memory"),
            "for docker: --shm-size=8g or --ipc=host; for Kubernetes: an emptyDir with `medium: Memory` at "
            "/dev/shm",
        )


def _limits(patient: Patient) -> Iterator[Finding]:
    limits = patient.host.limits
    if limits.open_files is not None and limits.open_files < _ENOUGH_FILES:
        yield Finding(
            "few-files",
            COSTLY,
            f"this process may open only {limits.open_files} files; connections to many ranks need more",
            f"`ulimit -n {_ENOUGH_FILES * 64}`",
        )
    if limits.pid_namespace and limits.pid_namespace != INITIAL_PID_NAMESPACE:
        yield Finding(
            "pid-namespace",
            NOTE,
            "this process is in a container with its own PID namespace: a rank in another container of this "
            "machine may have the same PID, and UCC would then take both for one process",
            "run all ranks of a machine in one container, or in the PID namespace of the machine "
            "(docker: --pid=host; Kubernetes: hostPID: true)",
        )


def _network(patient: Patient) -> Iterator[Finding]:
    if not reachable(patient.host):
        yield Finding(
            "no-network",
            NOTE,
            "no network interface that other hosts could reach is up",
            "a job on one host needs none; for a job on several hosts, bring an interface up",
        )


OF_PROCESS: dict[str, Check] = {
    "extension and libraries": _extension,
    "versions of UCC and UCX": _older,
    "settings": _settings,
    'backend name "ucc"': _shadowed,
}
OF_MACHINE: dict[str, Check] = {
    "transports on this host": _no_way,
    "RDMA devices": _rdma,
    "shared memory": _memory,
    "process limits": _limits,
    "network interfaces": _network,
}
CHECKS = {**OF_PROCESS, **OF_MACHINE}
"""By the name under which a check without findings is shown."""
