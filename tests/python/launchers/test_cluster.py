"""The files under examples/cluster. Nothing here is SLURM or Kubernetes: the script meets a srun made up."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from processes import run

REPOSITORY = Path(__file__).resolve().parents[3]
CLUSTER = REPOSITORY / "examples" / "cluster"

SCONTROL = """#!/bin/sh
[ "$*" = "show hostnames vm[1-2]" ] && printf '127.0.0.1\\n127.0.0.2\\n'
"""

# Two tasks of one node with the variables of srun, and its exit status: that of the first task which failed.
SRUN = """#!/usr/bin/env bash
[[ $1 == --kill-on-bad-exit=1 ]] || exit 64
shift
for task in 0 1; do
  SLURM_PROCID=$task SLURM_LOCALID=$task SLURM_NTASKS=2 "$@" &
done
wait -n && wait -n
"""


def on_path(folder: Path, **scripts: str) -> str:
    for name, text in scripts.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    return f"{folder}:{Path(sys.executable).parent}:/usr/bin:/bin"


@pytest.mark.multirank
def test_the_slurm_script_starts_ranks_that_find_each_other(tmp_path: Path) -> None:
    job = {
        "PATH": on_path(tmp_path, scontrol=SCONTROL, srun=SRUN),
        "PYTHON": sys.executable,
        "SLURM_JOB_NODELIST": "vm[1-2]",
        "SLURM_JOB_ID": str(os.getpid()),  # of which the script makes a port
        "SLURM_CPUS_PER_TASK": "1",
    }
    printed = run(tmp_path, "bash", CLUSTER / "slurm.sh", REPOSITORY / "examples" / "all_reduce.py", env=job)
    for rank in range(2):
        assert f"rank {rank} of 2: [2.0, 2.0, 2.0, 2.0]" in printed


@pytest.mark.parametrize("script", sorted(CLUSTER.glob("*.sh")), ids=lambda path: path.name)
def test_scripts_pass_shellcheck(script: Path) -> None:
    if shutil.which("shellcheck") is None:
        pytest.skip("there is no shellcheck; bash alone has read the script, in the test above")
    checked = subprocess.run(["shellcheck", script], capture_output=True, text=True, timeout=60)
    assert checked.returncode == 0, checked.stdout


def test_the_job_is_what_the_operator_reads() -> None:
    job = yaml.safe_load((CLUSTER / "pytorchjob.yaml").read_text())
    assert (job["apiVersion"], job["kind"]) == ("kubeflow.org/v1", "PyTorchJob")
    replicas = job["spec"]["pytorchReplicaSpecs"]
    assert {name: each["replicas"] for name, each in replicas.items()} == {"Master": 1, "Worker": 3}
    for each in replicas.values():
        pod = each["template"]["spec"]
        assert pod["hostPID"] is True
        (container,) = pod["containers"]
        assert container["name"] == "pytorch"
        interpreter, program, *_ = container["command"]
        assert interpreter == "python"
        assert (REPOSITORY / Path(program).relative_to("/workspace")).is_file()
        volumes = {volume["name"] for volume in pod["volumes"]}
        assert {mount["name"] for mount in container["volumeMounts"]} <= volumes
        assert all(isinstance(entry["value"], str) for entry in container["env"])
