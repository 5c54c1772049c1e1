"""A profile reaches UCX and UCC, or is refused; and `tune` writes one that is right for its job."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch_ucc
from torch.distributed.rendezvous import rendezvous
from torch_ucc import config
from torch_ucc.bench.cases import Case
from torch_ucc.bench.driver import MeasureError
from torch_ucc.cli.topo import machine
from torch_ucc.testing import RankError, run_ranks
from torch_ucc.topology.cores import usable_here
from torch_ucc.topology.job import uniform
from torch_ucc.tuning.profile import Profile, Values, as_toml, read, refusal, topology_of
from torch_ucc.tuning.turns import Turns

pytestmark = pytest.mark.multirank

TUNE = "allreduce:0-inf:@ring#bcast:0-inf:@knomial"
TOLD: Values = {
    "settings": {"segment_bytes": "256k"},
    "ucx": {"TLS": "tcp,self"},
    "ucc": {"TL_UCP_TUNE": TUNE},
}


def profile(folder: Path, ranks: int, values: Values = TOLD) -> str:
    path = folder / "tuned.toml"
    path.write_text(as_toml(Profile("", topology_of(uniform([machine(None)], ranks)), values), [], {}))
    return str(path)


def use_and_describe() -> tuple[list[float], dict[str, Any], list[str]]:
    data = torch.full((1 << 18,), dist.get_rank() + 1.0)
    dist.all_reduce(data)
    about = torch_ucc.describe()
    left = [name for name in os.environ if name.startswith(("UCC_", "UCX_"))]
    return [float(data[0]), float(data[-1])], about, left


def test_what_a_profile_says_reaches_the_libraries(tmp_path: Path) -> None:
    path = profile(tmp_path, 2)
    log = tmp_path / "ucc.log"  # of rank 0, which logs what UCC takes for each operation
    own = [{"UCC_LOG_LEVEL": "debug", "UCC_LOG_FILE": str(each)} for each in (log, "/dev/null")]
    environment = {"TORCH_UCC_PROFILE": path, "TORCH_UCC_HOST_PATH": "0"}
    told = run_ranks(use_and_describe, 2, env=environment, rank_env=own, timeout=300.0)
    for data, about, left in told:
        assert data == [3.0, 3.0]
        assert all(text.startswith("tcp/") for text in about["transports"]["same host"])
        assert about["settings"]["segment_bytes"] == {"value": str(256 << 10), "source": f"profile {path}"}
        (same_host,) = [each for each in about["plan"]["choices"] if each["about"] == "same host"]
        assert (same_host["by"], same_host["reason"]) == ("UCC_UCX_TLS=tcp,self", "set by the profile")
        assert sorted(left) == ["UCC_LOG_FILE", "UCC_LOG_LEVEL"], "the environment is as it was"
    logged = log.read_text()
    assert "allreduce_ring_init" in logged and "allreduce_sra" not in logged, logged


def test_what_is_set_decides_over_it(tmp_path: Path) -> None:
    environment = {"TORCH_UCC_PROFILE": profile(tmp_path, 2), "UCX_TLS": "sm,self"}
    for data, about, _ in run_ranks(use_and_describe, 2, env=environment, timeout=300.0):
        assert data == [3.0, 3.0]
        assert not any(text.startswith("tcp/") for text in about["transports"]["same host"])


def test_a_profile_of_another_topology_is_refused(tmp_path: Path) -> None:
    environment = {"TORCH_UCC_PROFILE": profile(tmp_path, 3)}
    with pytest.raises(RankError) as raised:
        run_ranks(use_and_describe, 2, env=environment, timeout=300.0)
    assert raised.value.errors.keys() == {0, 1}, raised.value
    for error in raised.value.errors.values():
        assert "was made for another topology (ranks per host: 3 in the profile, 2 in this job)" in error


def test_ranks_with_different_profiles_are_refused(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    paths = [profile(tmp_path, 2), profile(tmp_path / "other", 2, {"ucc": {"TL_UCP_TUNE": "bcast:@dbt"}})]
    with pytest.raises(RankError, match="TL_UCP_TUNE"):
        run_ranks(
            use_and_describe, 2, rank_env=[{"TORCH_UCC_PROFILE": path} for path in paths], timeout=300.0
        )


def take_turns() -> tuple[list[float], str]:
    """On rank 0: seconds by the defaults and by a profile, and why a third turn failed."""
    store, rank, size = next(rendezvous("env://"))
    turns = Turns(store, rank, size, topology_of(uniform([machine(None)], size)), crowded=False)
    if rank != 0:
        turns.follow()
        return [], ""
    case = Case("all_reduce", 1 << 20)
    seconds = [turns.measure(values, [case])[case] for values in ({}, TOLD)]
    with pytest.raises(MeasureError) as raised:
        turns.measure({"ucx": {"TLS": "rc"}}, [case])
    turns.end()
    return seconds, str(raised.value)


def test_turns_are_measured_by_the_profile_that_is_asked_for() -> None:
    (seconds, why), _ = run_ranks(take_turns, 2, init=False, timeout=500.0)
    assert len(seconds) == 2 and min(seconds) > 0
    assert why.startswith("rank 0: ") and "profile UCC_UCX_TLS=rc on rank 0" in why and "no way" in why


def launch(*program: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", *program],
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
        timeout=600,
    )


def tune(output: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return launch("-m", "torch_ucc", "tune", "--output", str(output), *arguments)


def test_a_tuning_writes_a_profile_that_fits_its_job(tmp_path: Path) -> None:
    output = tmp_path / "tuned.toml"
    run = tune(output, "--budget", "20s")
    assert run.returncode == 0, run.stderr
    assert f"The profile was written to {output}." in run.stdout
    written = read(str(output))
    assert refusal(written, uniform([machine(None)], 2)) == ""
    environment = {"TORCH_UCC_PROFILE": str(output)}
    assert config.from_environment(environment).tuned == written
    for data, _, _ in run_ranks(use_and_describe, 2, env=environment, timeout=300.0):
        assert data == [3.0, 3.0]


ON_ONE_CORE = """
import os, runpy, sys
cores = sorted(os.sched_getaffinity(os.getppid()))
os.sched_setaffinity(0, {cores[int(os.environ["LOCAL_RANK"]) % len(cores)]})
sys.argv = sys.argv[1:]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""


def test_a_profile_fits_ranks_that_are_kept_to_cores_of_their_own(tmp_path: Path) -> None:
    output, pinned = tmp_path / "tuned.toml", tmp_path / "pinned.py"
    pinned.write_text(ON_ONE_CORE)
    (tmp_path / "job.py").write_text(
        "import torch, torch.distributed as dist\n"
        "dist.init_process_group('ucc')\n"
        "data = torch.ones(4)\n"
        "dist.all_reduce(data)\n"
        "assert data[0].item() == 2\n"
        "dist.destroy_process_group()\n"
    )
    run = launch(str(pinned), "torch_ucc", "tune", "--output", str(output), "--budget", "1s")
    assert run.returncode == 0, run.stderr
    assert read(str(output)).topology["cores"] == usable_here()
    used = launch(str(pinned), "job", TORCH_UCC_PROFILE=str(output))
    assert used.returncode == 0, used.stderr


def test_without_a_job_there_is_nothing_to_tune(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "torch_ucc", "tune", "--output", str(tmp_path / "tuned.toml")]
    run = subprocess.run(command, env=os.environ, capture_output=True, text=True, timeout=120)
    assert run.returncode == 2 and "start it as `torchrun" in run.stderr
