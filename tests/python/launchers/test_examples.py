"""Examples run by the commands in their docstrings, and say what their own assertions found."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import pytest
from processes import run
from torch_ucc._torch import HAS_2_14

REPOSITORY = Path(__file__).resolve().parents[3]
EXAMPLES = REPOSITORY / "examples"

SAYS = {
    "checkpoint_reshard": "3 ranks, .*: loaded, and trained on as if it had never been saved",
    "ddp_checkpoint": r"20 steps, loss \d\S* to \d",
    "expert_parallel": "outputs and gradients are those of one process with all experts",
    "fsdp_transformer": "all parameters are those of one process",
    "llm_inference": "times as fast; the words are those of one process",
    "pipeline": "all parameters are those of one process",
    "rpc_parameter_server": "the server's parameters are those of one process",
    "rpc_pipeline": "the parameters of all stages are those of one process",
    "tensor_parallel": "outputs and gradients are those of one process",
    "zero": "all parameters are, to the bit, those of a plain optimizer",
}
RUN_BY = {
    "all_reduce": "integration/test_readme.py",
    "replace_members": "launchers/test_examples.py",
    "train_digits_ddp": "integration/test_demo.py",
    "under_mpirun": "launchers/test_mpirun.py",
    "what_does_ddp_call": "tracing/test_trace.py",
}

pytestmark = [pytest.mark.multirank, pytest.mark.slow]


def commands(text: str) -> list[str]:
    return re.findall(r"^ *(torchrun .*)$", text, re.MULTILINE)


def obey(command: str, folder: Path) -> str:
    """Run a torchrun command as it stands, except that what it writes goes below `folder`."""
    launcher, *words = shlex.split(command)
    assert launcher == "torchrun"
    words = [str(REPOSITORY / word) if word.startswith("examples/") else word for word in words]
    return run(folder, sys.executable, "-m", "torch.distributed.run", *words)


@pytest.mark.parametrize("example", SAYS)
def test_example(example: str, tmp_path: Path) -> None:
    printed = [obey(command, tmp_path) for command in commands((EXAMPLES / f"{example}.py").read_text())]
    assert printed, "there is no command in the docstring"
    assert re.search(SAYS[example], printed[-1]), printed[-1]


@pytest.mark.skipif(not HAS_2_14, reason="torch before 2.14 has no reconfigure")
def test_members_are_replaced(tmp_path: Path) -> None:
    printed = run(tmp_path, sys.executable, EXAMPLES / "replace_members.py")
    assert re.search("rank 1 of 2 from step [89] on", printed), printed
    assert "worker 3: rank 2 of 3" in printed, printed
    assert "to the bit, those of one undisturbed process" in printed, printed


def test_every_example_is_run() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == SAYS.keys() | RUN_BY.keys()
    for example, test in RUN_BY.items():
        assert f"{example}.py" in (REPOSITORY / "tests" / "python" / test).read_text()


def test_the_page_of_examples_shows_their_commands() -> None:
    told = [command for example in SAYS for command in commands((EXAMPLES / f"{example}.py").read_text())]
    page = (REPOSITORY / "docs" / "first-program.md").read_text()
    assert sorted(commands(page[page.index("## What each example shows") :])) == sorted(told)
