"""Each operation of the table: how a rank takes part in a step of it, and what must have come of it."""

from __future__ import annotations

from collections.abc import Callable

import calls
import torch
import torch.distributed as dist
from calls import CPU, Failures
from reference import exactly
from torch_ucc._torch import HAS_2_14

from soak.part import SALTS, Part, Sources, Started
from soak.schedule import BATCH, REFUSED, Step


def all_reduce(part: Part) -> dist.Work:
    tensor = part.mine()
    part.reduced(tensor)
    return calls.all_reduce(tensor, part.step.reduce, part.group, part.async_op)


def all_reduce_coalesced(part: Part) -> dist.Work:
    tensors = [part.mine(piece, numel) for piece, numel in enumerate(part.pieces())]
    for piece, tensor in enumerate(tensors):
        part.reduced(tensor, piece, tensor.numel())
    return calls.all_reduce_coalesced(tensors, part.step.reduce, part.group, part.async_op)


def sparse_all_reduce(part: Part) -> dist.Work:
    """Rank r has r + 2 entries, some of them in the same place as those of others, or twice."""
    places, width = 11, 1 + part.step.numel % 50

    def dense(rank: int) -> torch.Tensor:
        return sparse(rank).to_dense()

    def sparse(rank: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(SALTS * part.step.number + rank)
        where = torch.randint(places, (1, rank + 2), generator=generator)
        values = torch.randint(-1000, 1000, (rank + 2, width), generator=generator)
        return torch.sparse_coo_tensor(where, values, (places, width))

    tensor = sparse(part.rank)
    total = torch.stack([dense(rank) for rank in range(part.size)]).sum(0)
    part.expect(tensor, lambda: exactly(total))
    return calls.all_reduce(tensor, "SUM", part.group, part.async_op)


def reduce(part: Part) -> dist.Work:
    tensor = part.mine()
    if part.rank == part.root:
        part.reduced(tensor)
    else:
        part.moved(tensor, part.rank)  # stays what it was
    return calls.reduce(tensor, part.root, part.step.reduce, part.group, part.async_op)


def reduce_scatter(part: Part) -> dist.Work:
    inputs = [part.mine(rank, numel) for rank, numel in enumerate(part.sizes())]
    output = part.empty(part.sizes()[part.rank])
    part.reduced(output, part.rank, output.numel())
    return calls.reduce_scatter(output, inputs, part.step.reduce, part.group, part.async_op)


def reduce_scatter_tensor(part: Part) -> dist.Work:
    whole = part.flat(torch.cat([part.values(part.rank, rank) for rank in range(part.size)]))
    output = part.flat(part.empty().reshape(-1))
    part.reduced(output, part.rank)
    return calls.reduce_scatter_tensor(output, whole, part.step.reduce, part.group, part.async_op)


def reduce_scatter_tensor_coalesced(part: Part) -> dist.Work:
    inputs, outputs = [], []
    for piece, numel in enumerate(part.pieces()):
        salts = [piece * part.size + rank for rank in range(part.size)]
        inputs.append(part.flat(torch.cat([part.values(part.rank, salt, numel) for salt in salts])))
        outputs.append(part.flat(torch.zeros(numel, dtype=part.step.dtype)))
        part.reduced(outputs[-1], salts[part.rank], numel)
    return calls.reduce_scatter_tensor_coalesced(outputs, inputs, part.step.reduce, part.group, part.async_op)


def broadcast(part: Part) -> dist.Work:
    tensor = part.mine()
    part.moved(tensor, part.root)
    return calls.broadcast(tensor, part.root, part.group, part.async_op)


def all_gather(part: Part) -> dist.Work:
    sizes = part.sizes()
    outputs = [part.empty(numel) for numel in sizes]
    for rank, output in enumerate(outputs):
        part.moved(output, rank, 0, sizes[rank])
    return calls.all_gather(outputs, part.mine(0, sizes[part.rank]), part.group, part.async_op)


def all_gather_coalesced(part: Part) -> dist.Work:
    inputs = [part.mine(piece, numel) for piece, numel in enumerate(part.pieces())]
    outputs = [[part.empty(numel) for numel in part.pieces()] for _ in range(part.size)]
    for rank, of_rank in enumerate(outputs):
        for piece, output in enumerate(of_rank):
            part.moved(output, rank, piece, output.numel())
    return calls.all_gather_coalesced(outputs, inputs, part.group, part.async_op)


def all_gather_into_tensor(part: Part) -> dist.Work:
    numel = part.step.numel
    output = part.flat(torch.zeros(numel * part.size, dtype=part.step.dtype))
    part.joined(output, [(rank, 0, numel) for rank in range(part.size)])
    return calls.all_gather_into(output, part.flat(part.values(part.rank)), part.group, part.async_op)


def all_gather_into_tensor_coalesced(part: Part) -> dist.Work:
    inputs, outputs = [], []
    for piece, numel in enumerate(part.pieces()):
        inputs.append(part.flat(part.values(part.rank, piece, numel)))
        outputs.append(part.flat(torch.zeros(numel * part.size, dtype=part.step.dtype)))
        part.joined(outputs[-1], [(rank, piece, numel) for rank in range(part.size)])
    return calls.all_gather_into_coalesced(outputs, inputs, part.group, part.async_op)


def gather(part: Part) -> dist.Work:
    sizes = part.sizes()
    outputs = [part.empty(numel) for numel in sizes] if part.rank == part.root else []
    for rank, output in enumerate(outputs):
        part.moved(output, rank, 0, sizes[rank])
    mine = part.mine(0, sizes[part.rank])
    return calls.gather(outputs, mine, part.root, part.group, part.async_op)


def gather_single(part: Part) -> dist.Work:
    """Of torch 2.14 and later."""
    numel = part.step.numel
    output = torch.empty(0, dtype=part.step.dtype)
    if part.rank == part.root:
        output = torch.zeros(numel * part.size, dtype=part.step.dtype)
        part.joined(output, [(rank, 0, numel) for rank in range(part.size)])
    return calls.gather_single(output, part.mine(0, numel), part.root, part.group, part.async_op)


def scatter(part: Part) -> dist.Work:
    sizes = part.sizes()
    inputs = [part.mine(rank, sizes[rank]) for rank in range(part.size)] if part.rank == part.root else []
    output = part.empty(sizes[part.rank])
    part.moved(output, part.root, part.rank, sizes[part.rank])
    return calls.scatter(output, inputs, part.root, part.group, part.async_op)


def exchanged(part: Part) -> list[list[int]]:
    """How many elements go from each rank to each; where that is uneven, some send nothing to some."""
    few, uneven = part.step.numel // part.size, part.step.uneven

    def count(source: int, to: int) -> int:
        if not uneven:
            return few
        return few + (source + 2 * to) * uneven % 7 if (source + to) % 3 else 0

    return [[count(source, to) for to in range(part.size)] for source in range(part.size)]


def all_to_all(part: Part) -> dist.Work:
    counts = exchanged(part)
    inputs = [part.mine(to, counts[part.rank][to]) for to in range(part.size)]
    outputs = [part.empty(counts[source][part.rank]) for source in range(part.size)]
    for source, output in enumerate(outputs):
        part.moved(output, source, part.rank, output.numel())
    return calls.all_to_all(outputs, inputs, part.group, part.async_op)


def all_to_all_single(part: Part) -> dist.Work:
    counts = exchanged(part)
    given, taken = counts[part.rank], [row[part.rank] for row in counts]
    whole = part.flat(torch.cat([part.values(part.rank, to, numel) for to, numel in enumerate(given)]))
    output = part.flat(torch.zeros(sum(taken), dtype=part.step.dtype))
    part.joined(output, [(source, part.rank, numel) for source, numel in enumerate(taken)])
    splits = (taken, given) if part.step.uneven else ((), ())
    return calls.all_to_all_single(output, whole, part.group, part.async_op, splits)


def barrier(part: Part) -> dist.Work:
    return calls.barrier(part.group, part.async_op)


def monitored_barrier(part: Part) -> None:
    calls.monitored_barrier(part.group)


def send(part: Part) -> None:
    """Several messages from one rank to another, or to itself, under one tag: they arrive in their order."""
    for message, numel in enumerate(part.pieces()):
        if part.rank == part.root:
            part.works.append(calls.send(part.mine(message, numel), part.peer, part.group, part.step.tag))
        if part.rank == part.peer:
            tensor = part.empty(numel)
            part.moved(tensor, part.root, message, numel)
            part.works.append(calls.recv(tensor, part.root, part.group, part.step.tag))


def recv(part: Part) -> None:
    """Every rank to the next one, received before it is sent, under two tags in the opposite order."""
    after, before = (part.rank + 1) % part.size, (part.rank - 1) % part.size
    tags = (part.step.tag, part.step.tag ^ 1)
    for which in (1, 0):
        tensor = part.empty()
        part.moved(tensor, before, which)
        part.works.append(calls.recv(tensor, before, part.group, tags[which]))
    for which in (0, 1):
        part.works.append(calls.send(part.mine(which), after, part.group, tags[which]))


def recv_any_source(part: Part) -> None:
    """All others to one. Under a tag of no other step: any message that has it would do."""
    tag = 2**20 + part.step.number % 2**20
    if part.rank != part.root:
        part.works.append(calls.send(part.mine(), part.root, part.group, tag))
        return
    for _ in range(part.size - 1):
        tensor = part.empty()
        work = calls.recv_any_source(tensor, part.group, tag)
        part.works.append(work)
        part.expect(tensor, lambda work=work: exactly(part.values(work._source_rank())))
    others = [rank for rank in range(part.size) if rank != part.root]
    part.sources.append(Sources(part.step, list(part.works), others))


TABLE: dict[str, Callable[[Part], dist.Work | None]] = {
    each.__name__: each
    for each in (
        all_gather,
        all_gather_coalesced,
        all_gather_into_tensor,
        all_gather_into_tensor_coalesced,
        all_reduce,
        all_reduce_coalesced,
        all_to_all,
        all_to_all_single,
        barrier,
        broadcast,
        gather,
        gather_single,
        monitored_barrier,
        recv,
        recv_any_source,
        reduce,
        reduce_scatter,
        reduce_scatter_tensor,
        reduce_scatter_tensor_coalesced,
        scatter,
        send,
        sparse_all_reduce,
    )
    if each is not gather_single or HAS_2_14
}


def start(step: Step, group: dist.ProcessGroup, members: list[int], failures: Failures) -> Started | None:
    """Make the call or calls of a step. None: there is nothing to complete."""
    part = Part(step, group, members)
    if step.op == REFUSED:
        try:
            all_reduce(part)
        except NotImplementedError:
            failures.note(step, None)
        else:
            failures.note(step, "accepted")
        return None
    if step.op == BATCH:
        return _start_batch(part)
    work = TABLE[step.op](part)
    return Started(step, [work] if work is not None else part.works, part.results, part.sources)


def _start_batch(part: Part) -> Started:
    """Several operations between the start and the end of coalescing: one Work is theirs."""
    part.group._start_coalescing(CPU)
    for step in part.step.batch:
        within = Part(step, part.group, part.members)
        TABLE[step.op](within)
        part.results += within.results
        part.sources += within.sources
    work = part.group._end_coalescing(CPU)
    return Started(part.step, [work] if work is not None else [], part.results, part.sources)
