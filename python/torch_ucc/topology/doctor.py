"""What goes wrong in practice, looked for on one host: pure functions of what is known, each with the
cure."""

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
"""It cannot work; it works, slower or at a risk; it is worth knowing."""

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
    """What is looked at. The errors are the words of whoever met them, empty if nobody did."""

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
    """The worst first."""
    found = [finding for check in CHECKS for finding in check(patient)]
    return sorted(found, key=lambda finding: (BROKEN, COSTLY, NOTE).index(finding.grade))


def status(findings: list[Finding]) -> int:
    """Of the command: 0 healthy, 1 something costly, 2 something broken."""
    grades = {finding.grade for finding in findings}
    return 2 if BROKEN in grades else 1 if COSTLY in grades else 0


def _extension(patient: Patient) -> Iterator[Finding]:
    if patient.extension_error:
        yield Finding(
            "extension",
            BROKEN,
            patient.extension_error,
            "do what the message says; until then no ucc group can be created",
        )


def _older(patient: Patient) -> Iterator[Finding]:
    for name, running in (("UCC", patient.host.ucc), ("UCX", patient.host.ucx)):
        built = patient.built_with.get(name, "")
        if running.version and _release(running.version) < _release(built):
            yield Finding(
                "older-library",
                COSTLY,
                f"{name} {running.version} of {running.path} is older than {name} {built}, which torch_ucc "
                "was built with: it may lack what is called",
                f"set {name}_HOME to a newer one, or build torch_ucc with this one",
            )


def _release(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2] if part.isdigit())


def _settings(patient: Patient) -> Iterator[Finding]:
    if patient.settings_error:
        yield Finding("settings", BROKEN, patient.settings_error, "correct or unset it")
    for name, why in patient.old_settings.items():
        yield Finding("old-setting", NOTE, f"{name} has no effect any more: {why}", f"unset {name}")


def _no_way(patient: Patient) -> Iterator[Finding]:
    job = uniform([patient.host], 2, settings_here(patient.environment))
    for problem in make_plan(job).problems[:1]:
        yield Finding("no-way", BROKEN, f"on one host: {problem}", "do what the message says")


def _shadowed(patient: Patient) -> Iterator[Finding]:
    if patient.torch_has_ucc:
        yield Finding(
            "shadowed",
            COSTLY,
            'this torch has a "ucc" backend of its own, and prefers it',
            'use the other name of this backend: init_process_group("torch_ucc")',
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
                f"{specs} ({layer}) cannot be used: UCX {host.ucx.version} of {host.ucx.path} has only "
                f"{', '.join(host.ucx.modules) or 'shared memory and TCP'}",
                "set UCX_HOME and UCC_HOME to those of the cluster, such as HPC-X",
            )
    for port in host.rdma:
        if not port.active:
            yield Finding(
                "port-down",
                NOTE,
                f"{port.spec} is not connected",
                "check its cable and its switch, if it should be connected",
            )
        elif port.elsewhere:
            yield Finding(
                "other-namespace",
                NOTE,
                f"{port.spec} cannot be used: its network interface is in another network namespace",
                "if it should be used, run the ranks in the namespace of this interface (for docker "
                "--network=host, for Kubernetes hostNetwork: true), or give the interface to their namespace",
            )
        elif port.link_layer == "Ethernet" and "RoCE v2" not in port.gid_types:
            has = ", ".join(port.gid_types) or "none that leads out of its link"
            yield Finding(
                "roce-gid",
                COSTLY,
                f"{port.spec} has no RoCE v2 address ({has}): it does not reach beyond its own network",
                "give its network interface an IP address, or choose an address with UCX_IB_GID_INDEX",
            )
    limit = host.limits.memlock_bytes
    if connected and limit is not None and limit < _ENOUGH_MEMLOCK:
        yield Finding(
            "memlock",
            COSTLY,
            f"only {limit // 1024} KiB of memory may be locked, and RDMA locks what it sends",
            "`ulimit -l unlimited`; for a service LimitMEMLOCK=infinity; for a container --ulimit memlock=-1",
        )


def _memory(patient: Patient) -> Iterator[Finding]:
    host = patient.host
    if why := why_no_cma(host) if host.ucx.version else "":
        yield Finding(
            "no-cma",
            COSTLY,
            f"large messages on this host are copied twice: {why}",
            "`sysctl kernel.yama.ptrace_scope=1`; for a container --cap-add=SYS_PTRACE",
        )
    if 0 < host.limits.shm_bytes < _ENOUGH_SHM:
        yield Finding(
            "small-shm",
            COSTLY,
            f"/dev/shm has {host.limits.shm_bytes >> 20} MiB, which DataLoader's workers need"
            + ("" if host.limits.sysv else ", and UCX if there is no memory of System V"),
            "for docker --shm-size or --ipc=host; for Kubernetes an emptyDir of medium Memory at /dev/shm",
        )


def _limits(patient: Patient) -> Iterator[Finding]:
    limits = patient.host.limits
    if limits.open_files is not None and limits.open_files < _ENOUGH_FILES:
        yield Finding(
            "few-files",
            COSTLY,
            f"a process may have only {limits.open_files} files open; connections to many ranks need more",
            f"`ulimit -n {_ENOUGH_FILES * 64}`",
        )
    if limits.pid_namespace and limits.pid_namespace != INITIAL_PID_NAMESPACE:
        yield Finding(
            "pid-namespace",
            NOTE,
            "process ids are those of a container: a rank in another container of this machine may have "
            "the same one, and UCC would take both for one process",
            "run the ranks of a machine in one container, or in its pid namespace (--pid=host, "
            "hostPID: true)",
        )


def _network(patient: Patient) -> Iterator[Finding]:
    if not reachable(patient.host):
        yield Finding(
            "no-network",
            NOTE,
            "no network interface is up that another host could reach",
            "none is needed for a job on one host",
        )


CHECKS: tuple[Check, ...] = (
    _extension,
    _older,
    _settings,
    _no_way,
    _shadowed,
    _rdma,
    _memory,
    _limits,
    _network,
)
