"""Collectives for regions that torch.compile compiles as a whole, for which torch has no functional form.

    from torch_ucc import functional

    @torch.compile(fullgraph=True)
    def step(x):
        return functional.all_gather_into_tensor_uneven(model(x), rows_of_each_rank)

The functions use torch's functional all_to_all_single. The compiler knows this operation: it keeps
collectives in the same order on all ranks, even if the shapes differ between ranks, it overlaps them with
computation, and it computes their gradients. A rank sends no more than in a ring of all ranks. The functions
work over any backend, and also without torch.compile. There, `dist.all_gather` and `dist.reduce_scatter` do
the same in place.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol

__all__ = [
    "all_gather_into_tensor_uneven",
    "all_to_all",
    "broadcast",
    "reduce_scatter_tensor_uneven",
    "teach_compiler",
]

_REDUCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "sum": lambda parts: parts.sum(0, dtype=parts.dtype),
    "avg": lambda parts: parts.mean(0),
    "product": lambda parts: parts.prod(0, dtype=parts.dtype),
    "min": lambda parts: parts.amin(0),
    "max": lambda parts: parts.amax(0),
}


def all_gather_into_tensor_uneven(
    input: torch.Tensor, sizes: Sequence[int], group: dist.ProcessGroup | None = None
) -> torch.Tensor:
    """Return the rows of all ranks, in the order of ranks. Rank i contributes `sizes[i]` rows.

    Raises ValueError, before data is sent, if `sizes` does not fit the group or the `input` of this rank.
    """
    gathered: torch.Tensor = torch.ops.torch_ucc.all_gather_into_tensor_uneven(input, sizes, _name(group))
    return gathered


def reduce_scatter_tensor_uneven(
    input: torch.Tensor, reduce_op: str, sizes: Sequence[int], group: dist.ProcessGroup | None = None
) -> torch.Tensor:
    """Return the reduced rows of this rank. Rank i gets `sizes[i]` rows, after those of the ranks before it.

    `reduce_op` is "sum", "avg" (for floating-point and complex numbers), "product", "min" or "max". The
    reduction is in the order of ranks. Raises ValueError, before data is sent, if `sizes` does not fit the
    group or `input`.
    """
    scattered: torch.Tensor = torch.ops.torch_ucc.reduce_scatter_tensor_uneven(
        input, reduce_op, sizes, _name(group)
    )
    return scattered


def all_to_all(
    outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor], group: dist.ProcessGroup | None = None
) -> None:
    """Do what `dist.all_to_all` does, which torch.compile of torch 2.13 cannot trace."""
    given = [each.numel() for each in inputs]
    taken = [each.numel() for each in outputs]
    flat = torch.cat([each.reshape(-1) for each in inputs])
    received = _exchange(flat, taken, given, _name(group))
    for output, part in zip(outputs, torch.split(received, taken), strict=True):
        output.copy_(part.view(output.shape))


def broadcast(
    tensor: torch.Tensor,
    src: int | None = None,
    group: dist.ProcessGroup | None = None,
    group_src: int | None = None,
) -> None:
    """Do what `dist.broadcast` does, which torch.compile of torch 2.13 cannot trace."""
    if src is not None:
        group_src = src if group is None else dist.get_process_group_ranks(group).index(src)
    if group_src is None:
        raise ValueError("broadcast: src or group_src must name the rank that has the data")
    ops = torch.ops._c10d_functional
    tensor.copy_(ops.wait_tensor(ops.broadcast(tensor, group_src, _name(group))))


@functools.cache
def teach_compiler() -> None:
    """Let torch.compile trace `dist.all_to_all` and `dist.broadcast` from now on, for any backend.

    Use it for code that cannot be changed. A call with `async_op=True` still ends the graph.
    """

    @torch.compiler.substitute_in_graph(dist.all_to_all)
    def _(output_tensor_list, input_tensor_list, group=None, async_op=False):  # type: ignore[no-untyped-def]
        if async_op:
            torch._dynamo.graph_break()
        return all_to_all(output_tensor_list, input_tensor_list, group)

    @torch.compiler.substitute_in_graph(dist.broadcast)
    def _(tensor, src=None, group=None, async_op=False, group_src=None):  # type: ignore[no-untyped-def]
        if async_op:
            torch._dynamo.graph_break()
        return broadcast(tensor, src, group, group_src)


def _name(group: dist.ProcessGroup | None) -> str:
    group = group or dist.group.WORLD
    if group is None:
        raise ValueError("there is no process group yet: call init_process_group() first")
    return funcol._resolve_group_name(group)


def _exchange(input: torch.Tensor, taken: list[int], given: list[int], group_name: str) -> torch.Tensor:
    ops = torch.ops._c10d_functional
    received: torch.Tensor = ops.wait_tensor(ops.all_to_all_single(input, taken, given, group_name))
    return received


def _rank_and_size(op: str, sizes: Sequence[int], group_name: str) -> tuple[int, int]:
    group = dist.distributed_c10d._resolve_process_group(group_name)  # type: ignore[attr-defined, arg-type]
    if len(sizes) != group.size():
        raise ValueError(f"{op}: there are {len(sizes)} sizes for a group of {group.size()} ranks")
    return group.rank(), group.size()


def _all_gather(input: torch.Tensor, sizes: Sequence[int], group_name: str) -> torch.Tensor:
    op = "all_gather_into_tensor_uneven"
    rank, ranks = _rank_and_size(op, sizes, group_name)
    if input.dim() == 0 or input.size(0) != sizes[rank]:
        shape = list(input.shape)
        raise ValueError(
            f"{op}: sizes[{rank}] is {sizes[rank]}, but the tensor of rank {rank} has shape {shape}"
        )
    return _exchange(torch.cat([input] * ranks), [*sizes], [input.size(0)] * ranks, group_name)


def _reduce_scatter(
    input: torch.Tensor, reduce_op: str, sizes: Sequence[int], group_name: str
) -> torch.Tensor:
    op = "reduce_scatter_tensor_uneven"
    rank, ranks = _rank_and_size(op, sizes, group_name)
    if input.dim() == 0 or input.size(0) != sum(sizes):
        shape = list(input.shape)
        raise ValueError(
            f"{op}: the sizes add up to {sum(sizes)}, but the tensor of rank {rank} has shape {shape}"
        )
    if reduce_op not in _REDUCTIONS:
        raise ValueError(f"{op}: reduce_op is {reduce_op!r}, not one of {', '.join(_REDUCTIONS)}")
    received = _exchange(input.contiguous(), [sizes[rank]] * ranks, [*sizes], group_name)
    return _REDUCTIONS[reduce_op](received.view(ranks, sizes[rank], *input.shape[1:]))


# Registered, so that a graph names them. Their kernels, for real and meta tensors, with gradients or without,
# follow from what they are made of.
_library = torch.library.Library("torch_ucc", "DEF")  # type: ignore[no-untyped-call]
for _schema, _kernel in (
    ("all_gather_into_tensor_uneven(Tensor input, SymInt[] sizes, str group_name) -> Tensor", _all_gather),
    (
        "reduce_scatter_tensor_uneven(Tensor input, str reduce_op, SymInt[] sizes, str group_name) -> Tensor",
        _reduce_scatter,
    ),
):
    _op = _library.define(_schema)  # type: ignore[no-untyped-call]
    _library.impl(_op, _kernel, "CompositeImplicitAutograd")  # type: ignore[no-untyped-call]
