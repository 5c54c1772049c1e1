"""Every block of the documentation is run here, unless the table says who runs it, or why nobody can.

`test_shown.py` runs the blocks that show a command and what it prints."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pages
import pytest
import shown
from pages import REPOSITORY, Block
from torch_ucc.testing import run_script

BLOCKS = {block.name: block for block in pages.blocks()}
LIMIT = 300
"""Seconds for a command: where it would be stuck, not how long it takes."""

# The block: the test that runs it, or holds it against what is printed.
RUN_BY = {
    "README.md: ci/demo": "integration/test_newcomer.py",
    "README.md: import torch": "integration/test_readme.py",
    "README.md: $ .venv/bin/torchrun --standalone --npro": "integration/test_newcomer.py",
    "docs/install.md: ci/demo": "integration/test_readme.py",
    "docs/performance.md: python -m torch_ucc.bench.pages --into d": "unit/test_bench_pages.py",
    "docs/frameworks.md: TORCH_UCC_REPLACE_GLOO=1 torchrun --stan": "integration/test_replace_gloo.py",
    "docs/first-program.md: $ torchrun --standalone --nproc-per-node": "docs/test_first_program.py",
    "docs/first-program.md: torchrun --nnodes=2 --node-rank=0 --mast": "docs/test_first_program.py",
    "docs/first-program.md: torch-ucc hosts 2 torchrun --nproc-per-n": "docs/test_first_program.py",
    "docs/first-program.md: torchrun --standalone --nproc-per-node=2": "launchers/test_examples.py",
    "docs/devices.md: ci/gpu --pack DIR": "unit/test_gpu_pack.py",
    "docs/packaging.md: ci/wheel": "unit/test_release.py",
    "docs/packaging.md: pip wheel --no-build-isolation --no-deps": "unit/test_release.py",
    "docs/clusters.md: mpirun -n 2 -x MASTER_ADDR=127.0.0.1 -x": "launchers/test_mpirun.py",
    "CONTRIBUTING.md: .venv/bin/python -m pytest tests/python/": "docs/test_blocks.py",
    "docs/trace.md: torch-ucc record DIR": "tracing/test_record.py",
}
# The block: why it is not run. If it is of commands, the files that they name must be there.
NOT_RUN = {
    "docs/packaging.md: TRY_TORCH=2.14.1 TRY_FROM=build/lane-2.1": "needs a wheel, and takes minutes",
    "docs/packaging.md: pip install --only-binary torch-ucc --fi": "needs a wheel, and a node of a cluster",
    "docs/packaging.md: ci/wheels build 3.11 3.13 3.14": "takes minutes for each Python, and needs root",
    "cpp/ARCHITECTURE.md: piece 1:  board  row    board": "a drawing",
    "CONTRIBUTING.md: cmake -S . -B build/cpp-tests -G Ninja -": "ci/test compiles and runs these",
    "docs/frameworks.md: ci/integration": "a gigabyte of downloads for each framework",
    "docs/frameworks.md: .deps/integration/vllm/bin/python tests/": "needs vLLM: ci/integration",
    "docs/frameworks.md: ValueError: Your assigned backend ucc is": "an output",
    "docs/frameworks.md: import torch.distributed as dist": "needs Accelerate, which ci/integration installs",
    "docs/performance.md: ci/figures FOLDER": "takes 45 minutes of a quiet machine",
    "docs/packaging.md: ci/upstream ~/pytorch/test/distributed": "needs a checkout of PyTorch",
    'docs/packaging.md: dist.init_process_group("ucc", enable_re': "torch 2.14: test_reconfigure.py",
    'docs/packaging.md: cpu = torch.device("cpu")': "torch 2.14: test_windows.py",
    "docs/tuning.md: format = 1": "a part of a profile",
    "docs/tuning.md: this group cannot be created: TORCH_UCC_": "an output",
    "docs/clusters.md: sbatch --nodes=2 --ntasks-per-node=4 exa": "no SLURM; test_cluster.py runs the file",
    "docs/clusters.md: kubectl apply -f examples/cluster/pytorc": "no cluster; test_cluster.py reads it",
}
# Their exit status is an answer: 1 says that something was found.
ANSWERS = re.compile(r"torch[-_]ucc (doctor|trace diagnose)\b")

# What a fragment of a program may take for granted, and what it leaves for the commands of its page.
AROUND_A_FRAGMENT = """
import torch, torch.distributed as dist, torch_ucc
dist.init_process_group("ucc")
def train():
    dist.all_reduce(torch.ones(4))
{fragment}
dist.destroy_process_group()
"""
LEAVE_TRACES = """
import pathlib, torch, torch.distributed as dist, torch_ucc
dist.init_process_group("ucc")
with torch_ucc.trace("run.json"):
    dist.all_reduce(torch.ones(4))
pathlib.Path("DIR").mkdir(exist_ok=True)
torch_ucc.dump(f"DIR/rank{dist.get_rank()}.json")
dist.destroy_process_group()
"""
LEFT_BEFORE = {"docs/trace.md": LEAVE_TRACES}


def is_commands(block: Block) -> bool:
    return block.language in ("", "sh", "bash")


def run_here() -> list[str]:
    elsewhere = RUN_BY.keys() | NOT_RUN.keys() | {block.name for block in shown.outputs()}
    return [name for name in BLOCKS if name not in elsewhere]


def test_the_table_is_of_blocks_that_are_there_and_of_tests_that_run_them() -> None:
    assert len(BLOCKS) == len(pages.blocks()), "two blocks have one name"
    assert (RUN_BY.keys() | NOT_RUN.keys()) - BLOCKS.keys() == set()
    for test in set(RUN_BY.values()):
        assert (REPOSITORY / "tests" / "python" / test).is_file(), test


@pytest.mark.parametrize("name", sorted(RUN_BY.keys() | NOT_RUN.keys()))
def test_what_is_not_run_here_names_files_that_are_there(name: str) -> None:
    block = BLOCKS[name]
    if block.language == "python":
        compile(block.text, name, "exec")
        return
    for word in " ".join(block.lines()).split():
        if re.match(r"(examples|ci|docs|tests)/", word):
            assert (REPOSITORY / word).exists(), word


def test_the_command_for_one_test_selects_some() -> None:
    """It runs in ci/test anyway."""
    (command,) = BLOCKS["CONTRIBUTING.md: .venv/bin/python -m pytest tests/python/"].lines()
    words = command.removeprefix(".venv/bin/python ").split()
    asked = [sys.executable, *words, "--collect-only", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(asked, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True)
    assert done.returncode == 0, done.stdout


@pytest.fixture
def desk() -> Iterator[Path]:
    """A folder where the commands of the pages can be typed."""
    with shown.desk() as folder:
        yield folder


@pytest.mark.multirank
@pytest.mark.slow
@pytest.mark.parametrize("name", run_here())
def test_block(name: str, desk: Path) -> None:
    block = BLOCKS[name]
    if block.page in LEFT_BEFORE:
        run_script(LEFT_BEFORE[block.page], 2, cwd=desk)
    if block.language == "python":
        whole = "init_process_group" in block.text
        run_script(block.text if whole else AROUND_A_FRAGMENT.format(fragment=block.text), 2, cwd=desk)
        return
    assert is_commands(block), f"nothing is known of a block of {block.language}: add it to a table here"
    for line in block.lines():
        done = subprocess.run(
            ["timeout", "--kill-after=10", str(LIMIT), "bash", "-c", f"PATH=$PWD/bin:$PATH; {line}"],
            cwd=desk,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        may_be = (0, 1) if ANSWERS.search(line) else (0,)
        assert done.returncode in may_be, f"{line} ended with {done.returncode}:\n{done.stdout}"
