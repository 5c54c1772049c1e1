"""torchrun: with a fixed address, elastic, with a worker that is killed, with a node that leaves."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from processes import free_port, run, running, wait_until

REPOSITORY = Path(__file__).resolve().parents[3]
TRAINING = REPOSITORY / "examples" / "ddp_checkpoint.py"
TORCHRUN = (sys.executable, "-m", "torch.distributed.run")
TWO_RANKS = ("--nnodes=1", "--nproc-per-node=2")

pytestmark = pytest.mark.multirank


def static() -> tuple[str, ...]:
    return "--node-rank=0", "--master-addr=127.0.0.1", f"--master-port={free_port()}"


def elastic() -> tuple[str, ...]:
    return "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{free_port()}", "--rdzv-id=job"


@pytest.mark.parametrize("rendezvous", [static, elastic])
def test_starts_ranks_that_find_each_other(rendezvous: Callable[[], tuple[str, ...]], tmp_path: Path) -> None:
    printed = run(tmp_path, *TORCHRUN, *TWO_RANKS, *rendezvous(), REPOSITORY / "examples" / "all_reduce.py")
    for rank in range(2):
        assert f"rank {rank} of 2: [2.0, 2.0, 2.0, 2.0]" in printed


def test_goes_on_from_the_checkpoint_when_a_worker_was_killed(tmp_path: Path) -> None:
    """... and ends with the same bits as a training that nobody disturbed."""
    steps, killed_at = 12, 5

    def train(name: str, *options: str) -> tuple[str, dict[str, object]]:
        checkpoint = tmp_path / name
        arguments = ("--checkpoint", str(checkpoint), "--steps", str(steps), *options)
        launch = (*TORCHRUN, *TWO_RANKS, *elastic(), "--max-restarts=1")
        return run(tmp_path, *launch, TRAINING, *arguments), torch.load(checkpoint)

    calm, expected = train("calm")
    assert "going on" not in calm
    disturbed, found = train("disturbed", "--die-at", str(killed_at))
    assert f"attempt 1: going on at step {killed_at}" in disturbed
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_the_world_grows_when_a_node_comes_and_shrinks_when_it_leaves(tmp_path: Path) -> None:
    """Two agents of one job: the first serves the rendezvous, the second comes later and is told to end."""
    steps = tmp_path / "steps"
    rendezvous = (*elastic(), "--rdzv-conf=last_call_timeout=1,keep_alive_interval=2")
    nodes = ("--nnodes=1:2", "--nproc-per-node=1", "--max-restarts=5", "--monitor-interval=0.2")
    agent = (*TORCHRUN, *nodes, *rendezvous, Path(__file__).with_name("until_alone.py"), steps)
    # Torch 2.13 otherwise tells the address of its store in the first round: who joins later waits in vain.
    env = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}

    def seen(world_size: int) -> int:
        return steps.read_text().split().count(str(world_size)) if steps.exists() else 0

    with running(tmp_path, *agent, env=env) as stays:
        wait_until(lambda: seen(1) > 0, "step alone", stays)
        with running(tmp_path, *agent, env=env) as leaves:
            wait_until(lambda: seen(2) >= 3, "step of two", stays, leaves)
            leaves.process.send_signal(signal.SIGTERM)
            leaves.finish(status=None)
            stays.finish()
    assert steps.read_text().split()[-5:] == ["1"] * 5
