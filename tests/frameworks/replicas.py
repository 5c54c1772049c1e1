"""Replicas of torchft, as jobs of one process or more, connected by the group that the Manager is given.

First both replicas train all steps: this is the result. Then, over ucc, each replica in turn is killed in a
step and comes back while the other one goes on. The weights of both replicas must then have the same bits.

`PROGRAM BACKEND RESULT` starts the lighthouse and the replicas. `PROGRAM BACKEND RESULT REPLICA RANK LIFE
VICTIM` is one process: rank RANK of REPLICA. LIFE counts the starts of the replica. VICTIM is the number of
the replica that dies, or -1.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import problem
import torch
import torch.distributed as dist
from torch import nn
from torchft import Manager, Optimizer, ProcessGroupGloo
from torchft.coordination import LighthouseServer

REPLICAS = 2
STEPS = 24 * problem.LONGER
DIES_AFTER = 5  # steps that both replicas were in
GOES_ON_FOR = 5  # steps that both replicas are in, after the return
LIMIT = timedelta(seconds=120)

Parallel = Callable[[Manager, nn.Module], nn.Module]
"""Makes the network a part of a replica, and has the Manager average its gradients over the replicas."""


def new_group(backend: str) -> Any:
    if backend == "gloo":
        return ProcessGroupGloo(timeout=LIMIT)
    from torch_ucc.contrib.torchft import ProcessGroupUCC

    return ProcessGroupUCC(timeout=LIMIT)


def store_of_replica(rank: int) -> dist.TCPStore:
    """A replica is a job of its own, with a store that ends with its rank 0."""
    listener = {"master_listen_fd": int(os.environ["LISTENER"])} if rank == 0 else {}
    port = int(os.environ["STORE_PORT"])
    return dist.TCPStore("127.0.0.1", port, is_master=rank == 0, wait_for_workers=False, **listener)


class Training:
    """The training of one process. With several processes in a replica, it needs torch's default group."""

    def __init__(
        self,
        parallel: Parallel,
        group: Any,
        min_replicas: int,
        store: dist.TCPStore,
        replica: int,
        rank: int,
        ranks: int,
    ) -> None:
        self.rank = rank
        self.ranks = ranks
        self.place = replica * ranks + rank  # among all processes
        self.network = problem.network()
        self.manager = Manager(
            pg=group,
            load_state_dict=self.load,
            state_dict=self.state,
            min_replica_size=min_replicas,
            init_sync=False,  # every replica begins with the same weights
            timeout=LIMIT,
            quorum_timeout=LIMIT,
            rank=rank,
            world_size=ranks,
            store_addr="127.0.0.1",
            store_port=store.port,
            replica_id=f"replica_{replica}",
        )
        self.model = parallel(self.manager, self.network)
        self.inner = torch.optim.SGD(self.network.parameters(), lr=problem.LEARNING_RATE, momentum=0.9)
        self.optimizer = Optimizer(self.manager, self.inner)

    def state(self) -> dict[str, Any]:
        return {"network": self.network.state_dict(), "optimizer": self.inner.state_dict()}

    def load(self, state: dict[str, Any]) -> None:
        self.network.load_state_dict(state["network"])
        self.inner.load_state_dict(state["optimizer"])

    def steps(
        self, dies_in: int | None = None, wants_to_end_after: int | None = None
    ) -> Iterator[list[float]]:
        """Yields the loss of each step that was committed, and the number of replicas that want to end.

        Both are means over all processes. The steps of the arguments are those that both replicas were in.
        """
        inputs, targets = problem.data().tensors
        together = 0
        while True:
            self.optimizer.zero_grad()
            step = self.manager.current_step()
            if together == dies_in and self.rank == 0:
                os.kill(os.getpid(), signal.SIGKILL)  # all other processes wait for this one's part
            start = (step * REPLICAS * self.ranks + self.place) * problem.BATCH % problem.SAMPLES
            mine = slice(start, start + problem.BATCH)
            loss = nn.functional.mse_loss(self.model(inputs[mine]), targets[mine])
            loss.backward()
            wants_to_end = wants_to_end_after is not None and together >= wants_to_end_after
            told = torch.tensor([loss.item(), float(wants_to_end)])
            if self.ranks > 1:
                dist.all_reduce(told)
                told /= self.ranks
            self.manager.allreduce(told).wait()
            self.optimizer.step()
            if self.manager.current_step() == step + 1:
                together += self.manager.num_participants() == REPLICAS
                yield told.tolist()
            if self.manager.num_participants() < REPLICAS:
                time.sleep(0.02)  # until the other one is there, there is no need for many steps


def process(
    parallel: Parallel,
    ranks: int,
    backend: str,
    result: Path,
    replica: int,
    rank: int,
    life: int,
    victim: int,
) -> None:
    """What one process of a replica does; its rank 0 writes `result`."""
    store = store_of_replica(rank)
    if ranks > 1:
        own = dist.PrefixStore("default_group", store)
        dist.init_process_group(backend, store=own, rank=rank, world_size=ranks, timeout=LIMIT)
    group = new_group(backend)
    losses = []
    if victim < 0:
        training = Training(parallel, group, REPLICAS, store, replica, rank, ranks)
        for loss, _ in training.steps():
            losses.append(loss)
            if len(losses) == STEPS:
                break
    else:
        training = Training(parallel, group, 1, store, replica, rank, ranks)
        dies_in = DIES_AFTER if (replica, life) == (victim, 0) else None
        end_after = GOES_ON_FOR if (replica, life) == (victim, 1) else None
        for loss, wants_to_end in training.steps(dies_in, end_after):
            losses.append(loss)
            if wants_to_end > 0:
                break
    maker = problem.made_by(group.parent)
    if ranks > 1:
        assert problem.made_by() == maker, f"the groups are of {problem.made_by()} and {maker}"
    weights = problem.weights_of(training.network)
    if rank == 0:
        problem.write(result, losses, weights, backend, maker, ranks * group.size())
    training.manager.shutdown(wait=False)
    group.shutdown()
    if ranks > 1:
        dist.destroy_process_group()


def start(program: str, ranks: int, lighthouse: str, arguments: list[str]) -> list[subprocess.Popen[bytes]]:
    """The processes of one replica; `arguments` lack the rank, which is their fourth."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        environment = {
            **os.environ,
            "TORCHFT_LIGHTHOUSE": lighthouse,
            "RUST_LOG": "warn",
            "LISTENER": str(listener.fileno()),
            "STORE_PORT": str(listener.getsockname()[1]),
        }
        return [
            subprocess.Popen(
                [sys.executable, program, *arguments[:3], str(rank), *arguments[3:]],
                env=environment,
                pass_fds=[listener.fileno()] if rank == 0 else [],
            )
            for rank in range(ranks)
        ]


def run_replicas(
    program: str, ranks: int, backend: str, folder: Path, victim: int = -1
) -> list[dict[str, Any]]:
    """Returns what the replicas leave."""
    lighthouse = LighthouseServer(
        bind="[::]:0",
        min_replicas=REPLICAS if victim < 0 else 1,
        join_timeout_ms=1000,
        heartbeat_timeout_ms=5000,
    )

    def start_replica(number: int, life: int) -> list[subprocess.Popen[bytes]]:
        arguments = [backend, str(folder / str(number)), str(number), str(life), str(victim)]
        return start(program, ranks, lighthouse.address(), arguments)

    running = [start_replica(number, 0) for number in range(REPLICAS)]
    try:
        if victim >= 0:
            killed, *others = (each.wait() for each in running[victim])
            assert killed == -signal.SIGKILL, f"replica {victim} was to be killed, but ended with {killed}"
            assert all(others), f"processes of replica {victim} outlived its rank 0 and ended with {others}"
            running[victim] = start_replica(victim, 1)
        for number, replica in enumerate(running):
            statuses = [each.wait() for each in replica]
            assert not any(statuses), f"the processes of replica {number} ended with {statuses}"
    finally:
        for each in (process for replica in running for process in replica):
            each.kill()
            each.wait()
        lighthouse.shutdown()
    return [torch.load(folder / str(number)) for number in range(REPLICAS)]


def main(program: str, ranks: int, parallel: Parallel) -> None:
    """`ranks`: how many processes a replica has."""
    if len(sys.argv) > 3:
        backend, path, *numbers = sys.argv[1:]
        replica, rank, life, victim = map(int, numbers)
        process(parallel, ranks, backend, Path(path), replica, rank, life, victim)
        return
    backend, result = problem.arguments()
    for victim in (-1, 0, 1) if backend == "ucc" and not problem.TIMED else (-1,):
        with tempfile.TemporaryDirectory() as folder:
            first, second = run_replicas(program, ranks, backend, Path(folder), victim)
        for name, weight in first["weights"].items():
            assert torch.equal(weight, second["weights"][name]), f"{name} differs, victim {victim}"
        if victim < 0:
            assert first["losses"] == second["losses"]
            torch.save(first, result)
        steps = [len(each["losses"]) for each in (first, second)]
        print(f"victim {victim}: the replicas have the same weights after {steps} steps")
