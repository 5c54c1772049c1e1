"""Every finding of the doctor is provoked by a machine that has it, and not by one that has it not."""

from __future__ import annotations

import inspect
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from jobs import HERE
from machines import MACHINES
from torch_ucc import cli
from torch_ucc._native import extension
from torch_ucc.cli import doctor as cli_doctor
from torch_ucc.topology import doctor as checks
from torch_ucc.topology.doctor import BROKEN, COSTLY, NOTE, Patient, examine, status
from torch_ucc.topology.inventory import Inventory, from_json
from torch_ucc.topology.reach import collisions


def machine(name: str, **changes: Any) -> Inventory:
    return from_json((HERE / "machines" / f"{name}.json").read_text())._replace(**changes)


def limited(name: str, **limits: Any) -> Inventory:
    host = machine(name)
    return host._replace(limits=host.limits._replace(**limits))


def with_port(name: str, **changes: Any) -> Inventory:
    host = machine(name)
    return host._replace(rdma=(host.rdma[0]._replace(**changes),))


HEALTHY = Patient(machine("small_vm"))

PROVOKED = {
    "extension": (Patient(HEALTHY.host, extension_error="No UCC was found"), BROKEN, "No UCC was found"),
    "settings": (Patient(HEALTHY.host, settings_error="TORCH_UCC_SPIN='x' is not"), BROKEN, "TORCH_UCC_SPIN"),
    "old-setting": (
        Patient(HEALTHY.host, old_settings={"TORCH_UCC_X": "why"}),
        NOTE,
        "TORCH_UCC_X has no effect",
    ),
    "no-way": (Patient(HEALTHY.host, {"UCX_TLS": "rc"}), BROKEN, "UCX_TLS=rc on rank 0 .* no way to rank 1"),
    "shadowed": (Patient(HEALTHY.host, torch_has_ucc=True), COSTLY, 'has its own "ucc" backend'),
    "no-driver": (Patient(machine("efa_vm")), COSTLY, r"rdmap0s21:1 \(EFA\) cannot be used: UCX 1.22.0"),
    "port-down": (Patient(machine("dgx_h100")), NOTE, "mlx5_8:1 is not connected"),
    "roce-gid": (
        Patient(with_port("pcie_4gpu", link_layer="Ethernet", gid_types=("IB/RoCE v1",))),
        COSTLY,
        r"mlx5_0:1 has no RoCE v2 address \(IB/RoCE v1\)",
    ),
    "other-namespace": (
        Patient(with_port("pcie_4gpu", link_layer="Ethernet", gid_types=("RoCE v2",), elsewhere=True)),
        NOTE,
        "mlx5_0:1 cannot be used: .* in another network namespace",
    ),
    "older-library": (
        Patient(HEALTHY.host, built_with={"UCC": "1.9.0", "UCX": "1.23"}),
        COSTLY,
        r"UCX 1\.22\.0 from \S+ is older than UCX 1\.23",
    ),
    "memlock": (Patient(limited("pcie_4gpu", memlock_bytes=65536)), COSTLY, "only 64 KiB"),
    "no-cma": (
        Patient(machine("container")),
        COSTLY,
        "ptrace_scope is 2, and this process lacks CAP_SYS_PTRACE",
    ),
    "small-shm": (Patient(machine("container")), COSTLY, "/dev/shm has only 64 MiB, .* DataLoader workers$"),
    "few-files": (Patient(limited("small_vm", open_files=256)), COSTLY, "only 256 files"),
    "pid-namespace": (Patient(machine("container")), NOTE, "take both for one process"),
    "no-network": (Patient(machine("small_vm", interfaces=())), NOTE, "no network interface"),
}


def test_ucx_needs_dev_shm_where_it_has_no_other_memory() -> None:
    found = {each.name: each.what for each in examine(Patient(limited("container", sysv=False)))}
    assert found["small-shm"].endswith("for UCX, because there is no System V shared memory")


@pytest.mark.parametrize("name", PROVOKED)
def test_a_finding_is_provoked(name: str) -> None:
    patient, grade, what = PROVOKED[name]
    found = {each.name: each for each in examine(patient)}
    assert name in found and found[name].grade == grade and found[name].cure
    assert re.search(what, found[name].what)
    assert name not in {each.name for each in examine(HEALTHY)}


def test_every_finding_has_a_machine_that_provokes_it() -> None:
    written = set(re.findall(r'Finding\(\s*"([\w-]+)"', inspect.getsource(checks)))
    assert written == set(PROVOKED)


def test_this_kind_of_machine_is_healthy() -> None:
    assert examine(HEALTHY) == [] and status([]) == 0


def test_a_good_cluster_has_nothing_costly() -> None:
    for name in ("dgx_h100", "pcie_4gpu", "two_ethernets"):
        assert status(examine(Patient(machine(name)))) == 0, name


@pytest.mark.parametrize("scope", [0, 1, None])
def test_cma_is_allowed(scope: int | None) -> None:
    assert examine(Patient(limited("small_vm", ptrace_scope=scope, may_ptrace_any=False))) == []


def test_ptrace_scope_3_forbids_it_to_everybody() -> None:
    found = examine(Patient(limited("small_vm", ptrace_scope=3, may_ptrace_any=True)))
    assert [each.name for each in found] == ["no-cma"] and status(found) == 1


def test_infiniband_and_a_ucx_without_verbs() -> None:
    """As the wheel of UCX is, on a machine with a connected port."""
    good = machine("pcie_4gpu")
    assert examine(Patient(good)) == []
    (found,) = examine(Patient(good._replace(ucx=HEALTHY.host.ucx)))
    assert found.name == "no-driver" and status([found]) == 1
    assert "mlx5_0:1 (InfiniBand) cannot be used: UCX 1.22.0" in found.what and "UCX_HOME" in found.cure


def test_a_link_local_address_does_not_make_roce_reach_far() -> None:
    port = with_port("pcie_4gpu", link_layer="Ethernet", gid_types=())
    assert ["only link-local addresses" in each.what for each in examine(Patient(port))] == [True]


@pytest.mark.parametrize(
    ("built", "running"), [("1.9.0", "1.9.1"), ("1.22", "1.22.0"), ("1.9", "1.10"), ("", "1.1")]
)
def test_a_library_that_is_not_older(built: str, running: str) -> None:
    host = HEALTHY.host._replace(ucx=HEALTHY.host.ucx._replace(version=running))
    assert examine(Patient(host, built_with={"UCX": built})) == []


def test_another_torch_than_it_was_built_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extension, "built_for", lambda _: {"9.9": Path("_core.so")})
    monkeypatch.setattr(extension, "compiled", extension.compiled.__wrapped__)
    (found,) = [each for each in examine(cli_doctor.patient_here()) if each.name == "extension"]
    assert found.grade == BROKEN and "was built for torch 9.9, but torch " in found.what


def rank(container: str, pid: int, machine: str = "boot") -> dict[str, Any]:
    return {"host": "node1", "id": machine, "pid_namespace": container, "pid": pid}


def test_one_process_id_in_two_containers_of_a_machine() -> None:
    ranks = [rank("a", 7), rank("a", 8), rank("b", 8), rank("b", 9), rank("c", 7, "other boot")]
    for one in (0, 1):
        (found,) = collisions(one, ranks)
        assert found.grade == BROKEN and "ranks 1 and 2 are in two containers" in found.what
    assert len(collisions(2, ranks)) == 1 and collisions(4, ranks) == []
    assert collisions(0, [rank("a", 7), rank("a", 8)]) == []


def test_the_worst_comes_first() -> None:
    found = examine(Patient(machine("container"), settings_error="bad"))
    assert [each.grade for each in found] == [BROKEN, COSTLY, COSTLY, NOTE] and status(found) == 2


@pytest.mark.parametrize("name", MACHINES)
def test_a_saved_machine_is_examined(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    code = cli.main(["doctor", "--json", "--replay", str(HERE / "machines" / f"{name}.json")])
    findings = json.loads(capsys.readouterr().out)
    assert code == status(examine(Patient(machine(name))))
    assert [each["name"] for each in findings] == [each.name for each in examine(Patient(machine(name)))]


def doctor(**environment: str) -> tuple[int, list[dict[str, str]]]:
    run = subprocess.run(
        [sys.executable, "-m", "torch_ucc", "doctor", "--json"],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        text=True,
        timeout=300,
    )
    return run.returncode, json.loads(run.stdout)


def test_what_is_wrong_here_is_found() -> None:
    """In the process that it is wrong in."""
    code, findings = doctor(UCX_TLS="rc", TORCH_UCC_SPIN="soon", TORCH_UCC_USE_FUTURE="1")
    named = {each["name"] for each in findings}
    assert code == 2 and {"no-way", "settings", "old-setting"} <= named and "extension" not in named
    code, findings = doctor(UCC_HOME="/nowhere")
    assert code == 2 and any("UCC_HOME is /nowhere" in each["what"] for each in findings)
