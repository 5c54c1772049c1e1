"""A training loses a rank, goes on with the other ranks, and later accepts a new one:

    python examples/replace_members.py

This needs torch 2.14 or later. Three workers train. One worker is killed in the middle of a step. The other
two discard this step, become the only members of the group, and make the step again. Their processes do not
start again. Later a new worker joins and takes over the state. At the end, the parameters must have the same
bits as the parameters of one process that trained alone. This is possible because each step sums the
gradients of the same six shards in the same order, for any number of ranks.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import signal
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn

SHARDS, STEPS, DIES_AT, JOINS_AT = 6, 30, 8, 16
LIMIT = timedelta(seconds=60)


class Training:
    """A model, its optimizer and the number of the next step."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        torch.set_num_threads(1)
        self.model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))
        self.velocity = torch.zeros(sum(each.numel() for each in self.model.parameters()))
        self.step = 0

    def gradient(self, shard: int) -> torch.Tensor:
        random = torch.Generator().manual_seed(self.step * SHARDS + shard)
        inputs = torch.randn(16, 8, generator=random)
        self.model.zero_grad()
        nn.functional.mse_loss(self.model(inputs), inputs.sum(dim=1, keepdim=True)).backward()
        return torch.cat([each.grad.flatten() for each in self.model.parameters()])

    def apply(self, gradients: torch.Tensor) -> None:
        """One row a shard."""
        total = torch.zeros_like(self.velocity)
        for row in gradients:
            total += row
        self.velocity.mul_(0.9).add_(total / SHARDS)
        flat = nn.utils.parameters_to_vector(self.model.parameters()) - 0.05 * self.velocity
        nn.utils.vector_to_parameters(flat.detach(), self.model.parameters())
        self.step += 1

    def digest(self) -> str:
        flat = nn.utils.parameters_to_vector(self.model.parameters()).detach()
        return hashlib.sha256(flat.numpy().tobytes()).hexdigest()

    def take_over(self) -> None:
        """Take the state of the member that is furthest: some may have ended a step that others gave up."""
        steps = [torch.empty(1, dtype=torch.int64) for _ in range(dist.get_world_size())]
        dist.all_gather(steps, torch.tensor([self.step]))
        furthest = max(range(len(steps)), key=lambda rank: int(steps[rank]))
        flat = nn.utils.parameters_to_vector(self.model.parameters()).detach()
        for tensor in (flat, self.velocity):
            dist.broadcast(tensor, group_src=furthest)
        nn.utils.vector_to_parameters(flat, self.model.parameters())
        self.step = int(steps[furthest])


def join(store: dist.Store, me: int, generation: int) -> None:
    """Become a member beside those that main() chose."""
    members = json.loads(store.get(f"members {generation}"))
    store.set(f"handle {generation} {me}", dist._get_reconfigure_handle())
    handles = [store.get(f"handle {generation} {each}").decode() for each in members]
    dist._reconfigure(generation, handles, timeout=LIMIT).wait()


def one_step(training: Training, store: dist.Store, me: int, generation: int) -> int:
    """Returns the generation that there is to join: the present one, once the step is made."""
    if training.step == JOINS_AT:
        store.wait(["newcomer"])  # whose steps may otherwise all end before its process has started
    latest = torch.tensor([store.add("generation", 0)])
    dist.broadcast(latest, group_src=0)
    if latest.item() > generation:
        return int(latest)
    each = SHARDS // dist.get_world_size()
    mine = torch.stack([training.gradient(dist.get_rank() * each + i) for i in range(each)])
    everything = mine.new_empty(SHARDS, mine.size(1))
    work = dist.all_gather_single(everything, mine, async_op=True)
    if me == 2 and training.step == DIES_AT:
        os.kill(os.getpid(), signal.SIGKILL)
    work.wait()
    training.apply(everything)
    store.set("step", str(training.step))
    return generation


def worker(me: int, port: int, generation: int) -> None:
    store = dist.TCPStore("127.0.0.1", port, is_master=False, timeout=LIMIT)
    dist.init_process_group("ucc", store=store, rank=0, world_size=1, enable_reconfigure=True, timeout=LIMIT)
    training = Training()

    def join_as(generation: int) -> None:
        join(store, me, generation)
        training.take_over()
        where = f"rank {dist.get_rank()} of {dist.get_world_size()}"
        print(f"worker {me}: {where} from step {training.step} on", flush=True)

    join_as(generation)
    while training.step < STEPS:
        try:
            next_generation = one_step(training, store, me, generation)
        except dist.DistBackendError as error:
            print(f"worker {me}, step {training.step}: {str(error).splitlines()[0][:150]}", flush=True)
            next_generation = generation + 1
        if next_generation != generation:
            generation = next_generation
            join_as(generation)
    store.set(f"digest {me}", training.digest())
    dist.destroy_process_group()


def main() -> None:
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=LIMIT)
    context = multiprocessing.get_context("spawn")

    def announce(*members: int) -> int:
        """The members of the next generation, and its number."""
        generation = store.add("told", 1)
        store.set(f"members {generation}", json.dumps(members))
        store.add("generation", 1)
        return generation

    def start(me: int, generation: int) -> multiprocessing.process.BaseProcess:
        process = context.Process(target=worker, args=(me, store.port, generation))
        process.start()
        return process

    first = announce(0, 1, 2)
    workers = [start(me, first) for me in range(3)]
    workers[2].join()
    assert workers[2].exitcode == -signal.SIGKILL
    announce(0, 1)
    while int(store.get("step")) < JOINS_AT:
        time.sleep(0.05)
    workers[2] = start(3, announce(0, 1, 3))
    store.set("newcomer", "is announced")

    alone = Training()
    while alone.step < STEPS:
        alone.apply(torch.stack([alone.gradient(shard) for shard in range(SHARDS)]))
    for me in (0, 1, 3):
        assert store.get(f"digest {me}").decode() == alone.digest(), f"worker {me} has other parameters"
    for process in workers:
        process.join()
    assert [process.exitcode for process in workers] == [0, 0, 0]
    print(
        f"{STEPS} steps by 3, 2 and 3 ranks: the parameters are, to the bit, those of one undisturbed process"
    )


if __name__ == "__main__":
    main()
