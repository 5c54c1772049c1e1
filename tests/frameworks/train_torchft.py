"""torchft: DDP of two replicas with one process each, which the group that its Manager is given connects.

First both replicas train all steps: this is the result. Then, over ucc, each replica in turn is killed in a
step and comes back while the other one goes on. The weights of both replicas must then have the same bits.
Over gloo the other one ends with an AssertionError in torchft's DDP, because wait() of the group raises.

`PROGRAM BACKEND RESULT` starts the lighthouse and the replicas; `PROGRAM BACKEND RESULT REPLICA LIFE VICTIM`
is one replica. LIFE counts its starts; VICTIM is the replica that dies, or -1.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import problem
import torch
import torch.distributed as dist
from torch import nn
from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo
from torchft.coordination import LighthouseServer

REPLICAS = 2
STEPS = problem.EPOCHS * problem.SAMPLES // (problem.BATCH * REPLICAS)
DIES_AFTER = 5  # steps that both replicas were in
GOES_ON_FOR = 5  # steps that both replicas are in, after the return
LIMIT = timedelta(seconds=120)


def new_group(backend: str) -> Any:
    if backend == "gloo":
        return ProcessGroupGloo(timeout=LIMIT)
    from torch_ucc.contrib.torchft import ProcessGroupUCC

    return ProcessGroupUCC(timeout=LIMIT)


class Training:
    def __init__(self, group: Any, min_replicas: int, replica: int) -> None:
        self.replica = replica
        # A replica is a job of its own, with a store of its own.
        self.store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self.network = problem.network()
        self.inner = torch.optim.SGD(self.network.parameters(), lr=problem.LEARNING_RATE, momentum=0.9)
        self.manager = Manager(
            pg=group,
            load_state_dict=self.load,
            state_dict=lambda: {"network": self.network.state_dict(), "optimizer": self.inner.state_dict()},
            min_replica_size=min_replicas,
            init_sync=False,  # every replica begins with the same weights
            timeout=LIMIT,
            quorum_timeout=LIMIT,
            rank=0,
            world_size=1,
            store_addr="127.0.0.1",
            store_port=self.store.port,
            replica_id=f"replica_{replica}",
        )
        self.model = DistributedDataParallel(self.manager, self.network)
        self.optimizer = Optimizer(self.manager, self.inner)

    def load(self, state: dict[str, Any]) -> None:
        self.network.load_state_dict(state["network"])
        self.inner.load_state_dict(state["optimizer"])

    def steps(
        self, dies_in: int | None = None, wants_to_end_after: int | None = None
    ) -> Iterator[list[float]]:
        """Yields the loss of each step that was committed, and the number of replicas that want to end.

        Both are means over the replicas. The steps of the arguments are those that both replicas were in.
        """
        inputs, targets = problem.data().tensors
        together = 0
        while True:
            self.optimizer.zero_grad()
            step = self.manager.current_step()
            if together == dies_in:
                os.kill(os.getpid(), signal.SIGKILL)  # the other replica waits for this one's gradients
            start = (step * REPLICAS + self.replica) * problem.BATCH % problem.SAMPLES
            mine = slice(start, start + problem.BATCH)
            loss = nn.functional.mse_loss(self.model(inputs[mine]), targets[mine])
            loss.backward()
            wants_to_end = wants_to_end_after is not None and together >= wants_to_end_after
            told = torch.tensor([loss.item(), float(wants_to_end)])
            self.manager.allreduce(told).wait()
            self.optimizer.step()
            if self.manager.current_step() == step + 1:
                together += self.manager.num_participants() == REPLICAS
                yield told.tolist()
            if self.manager.num_participants() < REPLICAS:
                time.sleep(0.02)  # until the other one is there, there is no need for many steps


def replica(backend: str, result: Path, number: int, life: int, victim: int) -> None:
    group = new_group(backend)
    losses = []
    if victim < 0:
        training = Training(group, REPLICAS, number)
        for loss, _ in training.steps():
            losses.append(loss)
            if len(losses) == STEPS:
                break
    else:
        training = Training(group, 1, number)
        dies_in = DIES_AFTER if (number, life) == (victim, 0) else None
        end_after = GOES_ON_FOR if (number, life) == (victim, 1) else None
        for loss, wants_to_end in training.steps(dies_in, end_after):
            losses.append(loss)
            if wants_to_end > 0:
                break
    ranks, maker = group.size(), problem.made_by(group.parent)
    problem.write(result, losses, problem.weights_of(training.network), backend, maker, ranks)
    training.manager.shutdown(wait=False)
    group.shutdown()


def run_replicas(backend: str, folder: Path, victim: int = -1) -> list[dict[str, Any]]:
    """Returns what the replicas leave."""
    lighthouse = LighthouseServer(
        bind="[::]:0",
        min_replicas=REPLICAS if victim < 0 else 1,
        join_timeout_ms=1000,
        heartbeat_timeout_ms=5000,
    )

    def start(number: int, life: int) -> subprocess.Popen[bytes]:
        arguments = [backend, str(folder / str(number)), str(number), str(life), str(victim)]
        environment = {**os.environ, "TORCHFT_LIGHTHOUSE": lighthouse.address(), "RUST_LOG": "warn"}
        return subprocess.Popen([sys.executable, __file__, *arguments], env=environment)

    running = [start(number, 0) for number in range(REPLICAS)]
    try:
        if victim >= 0:
            status = running[victim].wait()
            assert status == -signal.SIGKILL, f"replica {victim} was to be killed, but ended with {status}"
            running[victim] = start(victim, 1)
        for number, process in enumerate(running):
            assert process.wait() == 0, f"replica {number} failed with {process.returncode}"
    finally:
        for process in running:
            process.kill()
            process.wait()
        lighthouse.shutdown()
    return [torch.load(folder / str(number)) for number in range(REPLICAS)]


def main() -> None:
    if len(sys.argv) > 3:
        backend, path, *numbers = sys.argv[1:]
        number, life, victim = map(int, numbers)
        replica(backend, Path(path), number, life, victim)
        return
    backend, result = problem.arguments()
    for victim in (-1, 0, 1) if backend == "ucc" else (-1,):
        with tempfile.TemporaryDirectory() as folder:
            first, second = run_replicas(backend, Path(folder), victim)
        for name, weight in first["weights"].items():
            assert torch.equal(weight, second["weights"][name]), f"{name} differs, victim {victim}"
        if victim < 0:
            assert first["losses"] == second["losses"]
            torch.save(first, result)
        steps = [len(each["losses"]) for each in (first, second)]
        print(f"victim {victim}: the replicas have the same weights after {steps} steps")


if __name__ == "__main__":
    main()
