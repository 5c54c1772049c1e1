"""Every operation of c10d over ucc between the ranks that torchrun starts, with results that are checked.

The package, its UCC and its UCX must come from the environment that runs this program; with the argument
"system", UCC and UCX must come from the system.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

CASES: list[Callable[[int, int], None]] = []


def case(call: Callable[[int, int], None]) -> Callable[[int, int], None]:
    """Adds a function of the rank and the number of ranks to those that main() calls."""
    CASES.append(call)
    return call


def same(got: torch.Tensor | list[torch.Tensor], wanted: torch.Tensor | list[torch.Tensor]) -> None:
    torch.testing.assert_close(got, wanted, rtol=0, atol=0)


def filled(value: float, numel: int = 5) -> torch.Tensor:
    return torch.full((numel,), float(value))


@case
def all_reduce(rank: int, size: int) -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.int64):
        tensor = torch.full((1000,), rank + 1).to(dtype)
        dist.all_reduce(tensor, async_op=True).wait()
        same(tensor, torch.full((1000,), size * (size + 1) // 2).to(dtype))
    large = filled(rank, 1_000_000)
    dist.all_reduce(large, dist.ReduceOp.MAX)
    same(large, filled(size - 1, 1_000_000))


@case
def all_reduce_coalesced(rank: int, size: int) -> None:
    tensors = [filled(rank), filled(1)]
    with dist._coalescing_manager():
        for tensor in tensors:
            dist.all_reduce(tensor)
    same(tensors, [filled(size * (size - 1) / 2), filled(size)])


@case
def broadcast(rank: int, size: int) -> None:
    tensor = filled(rank)
    dist.broadcast(tensor, size - 1)
    same(tensor, filled(size - 1))


@case
def reduce(rank: int, size: int) -> None:
    tensor = filled(rank + 1)
    dist.reduce(tensor, 1)
    if rank == 1:
        same(tensor, filled(size * (size + 1) / 2))


@case
def all_gather(rank: int, size: int) -> None:
    # Each rank's part has another size.
    parts = [filled(-1, peer + 1) for peer in range(size)]
    dist.all_gather(parts, filled(rank, rank + 1))
    same(parts, [filled(peer, peer + 1) for peer in range(size)])


@case
def all_gather_into_tensor(rank: int, size: int) -> None:
    whole = filled(-1, 5 * size)
    dist.all_gather_into_tensor(whole, filled(rank))
    same(whole, torch.arange(size).repeat_interleave(5).float())


@case
def gather(rank: int, size: int) -> None:
    parts = [filled(-1) for _ in range(size)] if rank == 0 else None
    dist.gather(filled(rank), parts, 0)
    if parts is not None:
        same(parts, [filled(peer) for peer in range(size)])


@case
def scatter(rank: int, size: int) -> None:
    part = filled(-1)
    dist.scatter(part, [filled(peer) for peer in range(size)] if rank == 0 else None, 0)
    same(part, filled(rank))


@case
def reduce_scatter(rank: int, size: int) -> None:
    part = filled(-1)
    dist.reduce_scatter(part, [filled(peer + rank) for peer in range(size)])
    same(part, filled(size * rank + size * (size - 1) / 2))


@case
def reduce_scatter_tensor(rank: int, size: int) -> None:
    part = filled(-1)
    dist.reduce_scatter_tensor(part, filled(rank, 5 * size))
    same(part, filled(size * (size - 1) / 2))


@case
def all_to_all(rank: int, size: int) -> None:
    received = [filled(-1, rank + 1) for _ in range(size)]
    dist.all_to_all(received, [filled(rank, peer + 1) for peer in range(size)])
    same(received, [filled(peer, rank + 1) for peer in range(size)])


@case
def all_to_all_single(rank: int, size: int) -> None:
    received = filled(-1, size)
    dist.all_to_all_single(received, torch.full((size,), float(rank)))
    same(received, torch.arange(size).float())


@case
def send_and_recv(rank: int, size: int) -> None:
    after, before = (rank + 1) % size, (rank - 1) % size
    received, others = filled(-1), filled(-1)
    sent = dist.isend(filled(rank), after)
    assert dist.recv(received) == before  # from any rank
    sent.wait()
    same(received, filled(before))
    batch = [dist.P2POp(dist.isend, filled(rank), after), dist.P2POp(dist.irecv, others, before)]
    for work in dist.batch_isend_irecv(batch):
        work.wait()
    same(others, filled(before))


@case
def barrier(rank: int, size: int) -> None:
    dist.barrier()


@case
def objects_and_groups(rank: int, size: int) -> None:
    everyone: list[object] = [None] * size
    dist.all_gather_object(everyone, {"rank": rank})
    assert everyone == [{"rank": peer} for peer in range(size)], everyone
    group = dist.new_group([0, size - 1])
    assert isinstance(group, dist.ProcessGroup)
    tensor = filled(1)
    dist.all_reduce(tensor, group=group)
    same(tensor, filled(2))


def main() -> None:
    dist.init_process_group("ucc")
    rank, size = dist.get_rank(), dist.get_world_size()
    for call in CASES:
        call(rank, size)
    import torch_ucc

    package = Path(torch_ucc.__file__).resolve().parent
    assert package.is_relative_to(Path(sys.prefix).resolve()), package
    maps = Path("/proc/self/maps").read_text()
    mapped = set(re.findall(r"(/\S*/(?:lib(?:ucc|ucp)\.so|_core\.torch)\S*)", maps))
    inside = {path for path in mapped if Path(path).resolve().is_relative_to(Path(sys.prefix).resolve())}
    if rank == 0:
        versions = f"Python {sys.version.split()[0]}, torch {torch.__version__}"
        libraries = " ".join(sorted(Path(path).name for path in mapped))
        print(f"tried: {versions}, {len(CASES)} cases; {libraries}", flush=True)
    assert len(mapped) == 3 and len(inside) == (1 if sys.argv[1:] == ["system"] else 3), mapped
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
