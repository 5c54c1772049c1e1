"""`torch-ucc topo`, `plan` and `config`: what they print, write and refuse."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from jobs import HERE, planned
from torch_ucc import cli
from torch_ucc.topology.inventory import from_json
from torch_ucc.topology.picture import matrix, tree

DGX = HERE / "machines" / "dgx_h100.json"


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    status = cli.main(list(arguments))
    told = capsys.readouterr()
    return status, told.out, told.err


def test_a_machine_is_saved_and_shown_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "here.json"
    assert run(capsys, "topo", "--save", str(file)) == (0, "", "")
    saved = from_json(file.read_text())
    assert saved.ucx.version and saved.ucc.version, "with the libraries that a job would use"
    assert run(capsys, "topo", "--replay", str(file)) == (0, f"{tree(saved)}\n{matrix(saved)}", "")


def test_distances_are_those_that_nvidia_smi_tells(capsys: pytest.CaptureFixture[str]) -> None:
    lines = run(capsys, "topo", "--replay", str(DGX))[1].splitlines()
    rows = {line.split()[0]: line.split()[1:] for line in lines if line.startswith(("GPU", "mlx5"))}
    columns = next(
        line.split() for line in lines if line.startswith("    ") and "GPU0" in line and "NUMA" in line
    )
    assert rows["GPU0"][columns.index("GPU7")] == "NV18" and rows["GPU0"][columns.index("GPU0")] == "X"
    assert rows["GPU5"][columns.index("mlx5_9")] == "PIX" == rows["mlx5_9"][columns.index("GPU5")]
    assert rows["GPU5"][columns.index("mlx5_6")] == "NODE" and rows["GPU5"][columns.index("mlx5_0")] == "SYS"
    assert any(line.startswith("  NV# ") for line in lines) and not any(
        line.startswith("  PXB") for line in lines
    )


def test_a_tree_names_everything(capsys: pytest.CaptureFixture[str]) -> None:
    text = run(capsys, "topo", "--replay", str(HERE / "machines" / "container.json"))[1]
    shown = [" ".join(line.split()) for line in text.splitlines()]
    assert "usable 32 CPUs, 0-31; the cgroup allows the time of 4 CPUs" in shown
    assert "interface eth0 up, virtual, 10 Gb/s, 10.244.1.7/24, default route" in shown
    assert "/dev/shm 64 MiB, 64 MiB free" in shown and "locked memory at most 64 KiB" in shown
    assert "fewer than two GPUs and RDMA devices" in text
    dgx = run(capsys, "topo", "--replay", str(DGX))[1]
    assert dgx.count("NVIDIA H100") == 8 and dgx.count(", 18 NVLinks") == 8 and "not connected" in dgx


def test_a_plan_is_replayed(capsys: pytest.CaptureFixture[str]) -> None:
    """On copies of a machine it is that of the job which they make."""
    told = run(capsys, "plan", "--replay", str(DGX), "--hosts", "2", "--ranks-per-host", "8")
    assert told == (0, planned("dgx_h100-2x8"), "")
    both = ["--replay", str(DGX), "--replay", str(HERE / "machines" / "pcie_4gpu.json")]
    assert run(capsys, "plan", *both, "--ranks-per-host", "4")[1] == planned("dgx_h100-and-pcie_4gpu-4")


def test_a_plan_counts_what_is_set(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("UCX_TLS", "sm,self")
    status, told, _ = run(capsys, "plan", "--hosts", "2")
    assert status == 1 and "This cannot work:" in told and "Set by the user: UCX_TLS=sm,self." in told
    status, told, _ = run(capsys, "plan", "--hosts", "2", "--json")
    assert status == 1 and "no way to rank 1" in json.loads(told)["problems"][0]


@pytest.mark.parametrize("command", ["topo", "plan"])
def test_what_is_no_saved_machine_is_named(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "other.json"
    status, _, error = run(capsys, command, "--replay", str(file))
    assert status == 2 and str(file) in error
    file.write_text("{}")
    status, _, error = run(capsys, command, "--replay", str(file))
    assert status == 2 and f"{file}: not a machine" in error


@pytest.mark.parametrize("arguments", [["--hosts", "0"], ["--ranks-per-host", "x"]])
def test_counts_that_are_none(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["plan", *arguments])
    assert "is not a number above 0" in capsys.readouterr().err


def test_settings_are_listed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("TORCH_UCC_SPIN", "7us")
    status, told, _ = run(capsys, "config")
    assert status == 0 and "TORCH_UCC_SPIN" in told and "7us" in told
    rows = json.loads(run(capsys, "config", "--json")[1])
    assert {row["variable"]: row["value"] for row in rows}["TORCH_UCC_SPIN"] == "7us"
    monkeypatch.setenv("TORCH_UCC_SPIN", "soon")
    status, _, error = run(capsys, "config")
    assert status == 1 and "TORCH_UCC_SPIN='soon' is not a duration" in error
