"""Two jobs, as in reinforcement learning: one trains a small Llama, the other one infers with vLLM.

Each job has two ranks, a default group and a numbering of its own. A third group connects the jobs: rank 0
of the trainers is its rank 0, and the ranks of vLLM are its ranks 1 and 2. The trainer broadcasts its
weights over this group, and vLLM reloads them. After some updates the group is destroyed and made anew:
first it has a store of its own, as in OpenRLHF and similar trainers, then the store of vLLM's
StatelessProcessGroup.

The result has the losses, the tokens and log-probabilities that vLLM generates after each update, and the
weights of the last update. Each rank of vLLM must have received the bits that the trainer sent.

`PROGRAM BACKEND RESULT` starts the jobs; `PROGRAM BACKEND FOLDER trainers|inferrers` is one rank of a job.
"""

from __future__ import annotations

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
from torch.distributed.distributed_c10d import _new_process_group_helper, _world

JOBS = ("trainers", "inferrers")
RANKS = 2  # of each job
SIZE = 1 + RANKS  # of the group between the jobs
UPDATES = 2  # over one group
STEPS = 5  # of the training, before each update
NAME = "weight_update"
LIMIT = timedelta(seconds=120)

Weights = dict[str, torch.Tensor]


def group_over(backend: str, store: dist.Store, rank: int) -> dist.ProcessGroup:
    """A group beside the default group, with a numbering of its own.

    torch.distributed has no public function for this. The trainers use a copy of the part of
    init_process_group() that makes the default group.
    """
    group, _ = _new_process_group_helper(
        SIZE,
        rank,
        [],  # as for a default group: these ranks have no others
        dist.Backend(backend),
        dist.PrefixStore(NAME, store),
        group_name=NAME,
        timeout=LIMIT,
    )
    _world.pg_group_ranks[group] = {each: each for each in range(SIZE)}
    return group


def own_store(rank: int, port: int, listener: socket.socket | None) -> dist.Store:
    # Not by rendezvous("tcp://..."), which below torchrun expects that torchrun serves the store.
    serves = {"master_listen_fd": listener.detach()} if listener else {}
    return dist.TCPStore("127.0.0.1", port, SIZE, is_master=rank == 0, timeout=LIMIT, **serves)


def store_of_vllm(rank: int, port: int, listener: socket.socket | None) -> dist.Store:
    from vllm.distributed.utils import StatelessProcessGroup

    stateless = StatelessProcessGroup.create("127.0.0.1", port, rank, SIZE, listen_socket=listener)
    assert stateless.all_gather_obj(rank) == [*range(SIZE)]
    return stateless.store


STORES: tuple[Callable[[int, int, socket.socket | None], dist.Store], ...] = (own_store, store_of_vllm)


def groups(backend: str, folder: Path, rank: int) -> Iterator[dist.ProcessGroup]:
    """Makes each group, and destroys it after its use. `rank` is the rank in it; rank 0 serves the store."""
    for number, make_store in enumerate(STORES):
        address = folder / f"port-{number}"
        listener = None
        if rank == 0:
            listener = socket.create_server(("127.0.0.1", 0))
            written = address.with_suffix(".new")
            written.write_text(str(listener.getsockname()[1]))
            written.rename(address)
        while not address.exists():
            time.sleep(0.01)
        group = group_over(backend, make_store(rank, int(address.read_text()), listener), rank)
        yield group
        dist.destroy_process_group(group)


def send(weights: Weights, group: dist.ProcessGroup) -> None:
    described = [(name, weight.shape, weight.dtype) for name, weight in weights.items()]
    dist.broadcast_object_list([described], src=0, group=group)
    for weight in weights.values():
        dist.broadcast(weight, src=0, group=group)


def receive(group: dist.ProcessGroup) -> Iterator[tuple[str, torch.Tensor]]:
    described: list[Any] = [None]
    dist.broadcast_object_list(described, src=0, group=group)
    for name, shape, dtype in described[0]:
        weight = torch.empty(shape, dtype=dtype)
        dist.broadcast(weight, src=0, group=group)
        yield name, weight


def train(backend: str, folder: Path) -> None:
    from small_vllm import MODEL
    from torch.nn.parallel import DistributedDataParallel
    from transformers import LlamaForCausalLM

    dist.init_process_group(backend)
    torch.manual_seed(1)
    network = LlamaForCausalLM(MODEL)
    model = DistributedDataParallel(network)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3)
    random = torch.Generator().manual_seed(dist.get_rank())
    texts = torch.randint(MODEL.vocab_size, (problem.BATCH, 32), generator=random)
    losses, sent, makers = [], [], {problem.made_by()}

    def steps() -> None:
        for _ in range(STEPS):
            optimizer.zero_grad()
            loss = model(input_ids=texts, labels=texts).loss
            loss.backward()
            optimizer.step()
            losses.append(problem.mean_over_ranks(loss))

    updates = groups(backend, folder, 0) if dist.get_rank() == 0 else [None] * len(STORES)
    for group in updates:
        for _ in range(UPDATES):
            steps()
            if group is not None:
                sent.append(problem.weights_of(network))
                send(sent[-1], group)
                makers.add(problem.made_by(group))
    if dist.get_rank() == 0:
        torch.save({"losses": losses, "weights": sent, "makers": makers}, folder / "trainers-0")
    dist.destroy_process_group()


def infer(backend: str, folder: Path) -> None:
    import small_vllm
    from vllm import LLM

    small_vllm.turn_kernel_off()
    with tempfile.TemporaryDirectory() as files:
        small_vllm.save_model(Path(files))  # before there is a group: then only rank 0 would write
        dist.init_process_group(backend)
        rank = dist.get_rank()
        model = LLM(**small_vllm.options(Path(files), tensor_parallel_size=RANKS))
    makers = {problem.made_by()}
    if backend == "gloo":  # vLLM asks gloo for the groups of its ranks, whatever the default group is
        makers.add(small_vllm.makers())
    generated, received = [small_vllm.generate(model)], []
    for group in groups(backend, folder, 1 + rank):
        makers.add(problem.made_by(group))
        for _ in range(UPDATES):
            weights: Weights = {}

            def arriving(group: dist.ProcessGroup = group, weights: Weights = weights) -> Iterator[Any]:
                for name, weight in receive(group):
                    weights[name] = weight.clone()
                    yield name, weight

            model.collective_rpc(
                lambda worker, which: worker.model_runner.reload_weights(which()), args=(arriving,)
            )
            received.append(weights)
            generated.append(small_vllm.generate(model))
    torch.save({"generated": generated, "weights": received, "makers": makers}, folder / f"inferrers-{rank}")


def run_jobs(backend: str, folder: Path) -> None:
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}"]
    jobs = [subprocess.Popen([*launch, __file__, backend, str(folder), job]) for job in JOBS]
    try:
        while None in (statuses := [job.poll() for job in jobs]) and not any(statuses):
            time.sleep(0.1)
    finally:
        for job in jobs:
            job.terminate()
            job.wait()
    assert statuses == [0, 0], f"{JOBS} ended with {statuses}"


def same(one: Weights, other: Weights) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def check_and_merge(backend: str, folder: Path, result: Path) -> None:
    trainer = torch.load(folder / "trainers-0")
    inferrers = [torch.load(folder / f"inferrers-{rank}") for rank in range(RANKS)]
    updates = len(STORES) * UPDATES
    assert len(trainer["weights"]) == updates
    for rank, inferrer in enumerate(inferrers):
        assert len(inferrer["weights"]) == updates
        for number in range(updates):
            sent, received = trainer["weights"][number], inferrer["weights"][number]
            assert same(sent, received), f"rank {rank} of vLLM received other weights in update {number}"
        for number, generated in enumerate(inferrer["generated"]):
            assert same(generated, inferrers[0]["generated"][number]), "the ranks of vLLM differ"
            assert number == 0 or not same(generated, inferrer["generated"][number - 1]), (
                f"update {number - 1} changed nothing that vLLM generates"
            )
    outcome = dict(trainer["weights"][-1])
    for number, generated in enumerate(inferrers[0]["generated"]):
        outcome |= {f"{name} after {number} updates": value for name, value in generated.items()}
    makers = {maker for each in (trainer, *inferrers) for maker in each["makers"]}
    problem.write(result, trainer["losses"], outcome, backend, ",".join(sorted(makers)), SIZE)


def main() -> None:
    if len(sys.argv) > 3:
        backend, folder, job = sys.argv[1:]
        {"trainers": train, "inferrers": infer}[job](backend, Path(folder))
        return
    backend, result = problem.arguments()
    with tempfile.TemporaryDirectory() as name:
        run_jobs(backend, Path(name))
        check_and_merge(backend, Path(name), result)


if __name__ == "__main__":
    main()
