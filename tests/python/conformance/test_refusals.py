"""What means nothing is refused before anything is sent, by name; the group stays usable."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import pytest
import torch
import torch.distributed as dist
from calls import (
    CPU,
    all_gather,
    all_gather_coalesced,
    all_gather_into,
    all_gather_into_coalesced,
    all_reduce,
    all_reduce_coalesced,
    all_to_all,
    all_to_all_single,
    broadcast,
    gather,
    gather_single,
    recv,
    recv_any_source,
    reduce,
    reduce_scatter,
    reduce_scatter_tensor,
    reduce_scatter_tensor_coalesced,
    refusal,
    scatter,
    send,
    usable,
)
from reductions import REDUCTIONS
from reference import REFUSED_PAIRS, bits
from torch_ucc._torch import HAS_2_14, all_gather_single, reduce_scatter_single
from torch_ucc.testing import run_ranks

pytestmark = pytest.mark.multirank

Refusal = tuple[str, str] | None  # type and text of an exception
Tensors = list[torch.Tensor]

REDUCING: dict[str, Callable[[Tensors, str, dist.ProcessGroup], dist.Work]] = {
    "all_reduce": lambda t, op, group: all_reduce(t[0], op, group),
    "all_reduce_coalesced": lambda t, op, group: all_reduce_coalesced(t, op, group),
    "reduce": lambda t, op, group: reduce(t[0], 0, op, group),
    "reduce_scatter": lambda t, op, group: reduce_scatter(t[0], t[1:], op, group),
    "reduce_scatter_tensor": lambda t, op, group: reduce_scatter_tensor(t[0][:2], t[1], op, group),
    "reduce_scatter_tensor_coalesced": lambda t, op, group: reduce_scatter_tensor_coalesced(
        [t[0][:2]], [t[1]], op, group
    ),
}


def pairs() -> list[tuple[str, torch.dtype, str, bool, int, Refusal]]:
    """Each is tried on one rank only: had it sent anything, the next call of the group would go wrong."""
    found = []
    group = dist.group.WORLD
    for i, (dtype, op) in enumerate(REFUSED_PAIRS):
        for name, call in REDUCING.items() if i % 2 == dist.get_rank() else ():
            tensors = [torch.ones(4).to(dtype) for _ in range(3)]
            before = [bits(tensor).clone() for tensor in tensors]
            seq = group._get_backend(CPU)._get_sequence_number_for_group()
            raised = refusal(lambda call=call, tensors=tensors, op=op: call(tensors, op, group))
            kept = all(map(torch.equal, map(bits, tensors), before))
            found.append((name, dtype, op, kept, seq, raised))
        assert usable()
    return found


def test_reductions_without_a_meaning() -> None:
    assert {*REDUCING, "sparse_all_reduce"} == REDUCTIONS.keys()
    by_rank = run_ranks(pairs, 2)
    assert sum(len(found) for found in by_rank) == len(REFUSED_PAIRS) * len(REDUCING)
    for rank, found in enumerate(by_rank):
        for name, dtype, op, kept, seq, raised in found:
            case = (name, dtype, op, raised)
            assert kept, case
            assert raised is not None, f"{case} was accepted"
            kind, text = raised
            assert kind == "NotImplementedError", case
            # Numbered like the call that it was not: one more than those that went well.
            assert re.match(rf"{name} seq {seq + 1} of group '.+' on rank {rank} of 2", text), case
            assert op in text and str(dtype).removeprefix("torch.").removeprefix("complex") in text, case


@dataclass(frozen=True)
class Case:
    kind: str
    part: str  # of the text
    call: Callable[[], object]


value = partial(Case, "ValueError")
dtype = partial(Case, "TypeError")
never = partial(Case, "NotImplementedError")


def cases() -> dict[str, Case]:
    """By the operation's name and what is wrong. Rank 0 of 2 tries them."""
    group = dist.group.WORLD
    backend = group._get_backend(CPU)
    four, five, double = torch.ones(4), torch.ones(5), torch.ones(4, dtype=torch.float64)
    spread = torch.ones(1).expand(4)
    freed, short = torch.ones(4), torch.ones(4)
    freed.untyped_storage().resize_(0)
    short.untyped_storage().resize_(12)
    a_column = torch.ones(4, 2)[:, 1]
    a_column.untyped_storage().resize_(28)
    sparse = torch.eye(3).to_sparse()
    quantized = torch.quantize_per_tensor(four, 0.1, 0, torch.qint8)
    by_op: dict[str, dict[str, Case]] = {
        "all_reduce": {
            "csr": never("to_dense", lambda: backend.allreduce([torch.eye(3).to_sparse_csr()])),
            "quantized": never("quantized", lambda: backend.allreduce([quantized])),
            "meta": never("meta", lambda: backend.allreduce([torch.ones(4, device="meta")])),
            "two tensors": value("exactly one", lambda: backend.allreduce([four, four.clone()])),
            "no tensor": value("exactly one", lambda: backend.allreduce([])),
            "shared elements": value("share", lambda: all_reduce(spread, "SUM", group)),
            "freed storage": value("has 0", lambda: all_reduce(freed, "SUM", group)),
            "short storage": value("has 12", lambda: all_reduce(short, "SUM", group)),
            "short storage of a view": value("has 28", lambda: all_reduce(a_column, "SUM", group)),
        },
        "all_reduce_coalesced": {
            "no tensor": value("at least one", lambda: backend.allreduce_coalesced([])),
            "one without a meaning": never(
                "int32[4]", lambda: all_reduce_coalesced([four.clone(), four.int()], "PREMUL_SUM", group)
            ),
            "shared elements": value("share", lambda: all_reduce_coalesced([four, spread], "SUM", group)),
        },
        "sparse_all_reduce": {
            "MAX": never("MAX", lambda: all_reduce(sparse, "MAX", group)),
            "bitwise": never("BOR", lambda: all_reduce(sparse.int(), "BOR", group)),
        },
        "reduce": {
            "root too large": value("root 2", lambda: reduce(four, 2, "SUM", group)),
            "root negative": value("root -1", lambda: reduce(four, -1, "SUM", group)),
            "sparse": never("to_dense", lambda: backend.reduce([sparse])),
            "two tensors": value("exactly one", lambda: backend.reduce([four, four])),
            "shared elements": value("share", lambda: reduce(spread, 0, "SUM", group)),
        },
        "reduce_scatter": {
            "short list": value("2 ranks, not 1", lambda: reduce_scatter(four, [four], "SUM", group)),
            "own part of another size": value(
                "float32[5]", lambda: reduce_scatter(four.clone(), [five, four], "SUM", group)
            ),
            "another dtype": dtype(
                "float64[4]", lambda: reduce_scatter(four.clone(), [four, double], "SUM", group)
            ),
            "shared elements": value("share", lambda: reduce_scatter(spread, [four, four], "SUM", group)),
        },
        "reduce_scatter_tensor": {
            "another size": value("float32[4]", lambda: reduce_scatter_tensor(five, four, "SUM", group)),
            "another dtype": dtype(
                "float64[4]", lambda: reduce_scatter_tensor(torch.empty(2), double, "SUM", group)
            ),
            "shared elements": value(
                "share", lambda: reduce_scatter_tensor(spread, torch.ones(8), "SUM", group)
            ),
        },
        "reduce_scatter_tensor_coalesced": {
            "lists of two lengths": value(
                "2 outputs and 1 inputs",
                lambda: reduce_scatter_tensor_coalesced([torch.empty(2)] * 2, [four], "SUM", group),
            ),
            "one of another size": value(
                "float32[5]",
                lambda: reduce_scatter_tensor_coalesced([torch.empty(2)] * 2, [four, five], "SUM", group),
            ),
        },
        "broadcast": {
            "root too large": value("root 2", lambda: broadcast(four, 2, group)),
            "root negative": value("root -1", lambda: broadcast(four, -1, group)),
            "freed storage": value("has 0", lambda: broadcast(freed, 0, group)),
            "sparse": never("to_dense", lambda: backend.broadcast([sparse])),
            "shared elements": value("share", lambda: broadcast(spread, 1, group)),
        },
        "all_gather": {
            "short list": value("2 ranks, not 1", lambda: all_gather([four.clone()], four, group)),
            "own part of another size": value(
                "float32[5]", lambda: all_gather([five, four.clone()], four, group)
            ),
            "another dtype": dtype("float64[4]", lambda: all_gather([five, double], five, group)),
            "shared elements": value("share", lambda: all_gather([four.clone(), spread], four, group)),
        },
        "all_gather_into_tensor": {
            "another size": value("float32[9]", lambda: all_gather_into(torch.empty(9), four, group)),
            "another dtype": dtype(
                "int32[8]", lambda: all_gather_into(torch.empty(8, dtype=torch.int32), four, group)
            ),
            "shared elements": value("share", lambda: all_gather_into(spread, torch.ones(2), group)),
        },
        "all_gather_coalesced": {
            "a list too few": value("2 ranks, not 1", lambda: all_gather_coalesced([[four]], [four], group)),
            "lists of two lengths": value(
                "2 outputs and 1 inputs", lambda: all_gather_coalesced([[four], [four, four]], [five], group)
            ),
            "own part of another size": value(
                "float32[4]", lambda: all_gather_coalesced([[four], [five]], [five], group)
            ),
        },
        "all_gather_into_tensor_coalesced": {
            "lists of two lengths": value(
                "2 outputs and 1 inputs",
                lambda: all_gather_into_coalesced([torch.empty(8)] * 2, [four], group),
            ),
            "one of another size": value(
                "float32[5]", lambda: all_gather_into_coalesced([torch.empty(8)] * 2, [four, five], group)
            ),
        },
        "gather": {
            "root too large": value("root 2", lambda: gather([], four, 2, group)),
            "root negative": value("root -1", lambda: gather([], four, -1, group)),
            "no outputs on the root": value("outputs", lambda: gather([], four, 0, group)),
            "short list": value("2 ranks, not 1", lambda: gather([four.clone()], four, 0, group)),
            "outputs of another rank": value(
                "only the root", lambda: gather([four.clone(), five], four, 1, group)
            ),
            "own part of another size": value("float32[5]", lambda: gather([five, four], four, 0, group)),
            "another dtype": dtype("float64[4]", lambda: gather([four.clone(), double], four, 0, group)),
            "shared elements": value("share", lambda: gather([four.clone(), spread], four, 0, group)),
        },
        "scatter": {
            "root too large": value("root 2", lambda: scatter(four, [], 2, group)),
            "root negative": value("root -1", lambda: scatter(four, [], -1, group)),
            "no inputs on the root": value("inputs", lambda: scatter(four, [], 0, group)),
            "short list": value("2 ranks, not 1", lambda: scatter(four, [four], 0, group)),
            "inputs of another rank": value("only the root", lambda: scatter(four, [four, four], 1, group)),
            "own part of another size": value("float32[5]", lambda: scatter(four, [five, four], 0, group)),
            "another dtype": dtype("float64[4]", lambda: scatter(five, [five, double], 0, group)),
            "shared elements": value("share", lambda: scatter(spread, [], 1, group)),
        },
        "all_to_all": {
            "short list of outputs": value(
                "2 ranks, not 1", lambda: all_to_all([four.clone()], [four, four], group)
            ),
            "short list of inputs": value(
                "2 ranks, not 1", lambda: all_to_all([four.clone()] * 2, [five], group)
            ),
            "own part of another size": value(
                "float32[5]", lambda: all_to_all([five, four.clone()], [four, four], group)
            ),
            "another dtype": dtype(
                "float64[4]", lambda: all_to_all([four.clone(), five], [four, double], group)
            ),
            "shared elements": value(
                "share", lambda: all_to_all([four.clone(), spread], [four, four], group)
            ),
        },
        "all_to_all_single": {
            "uneven without splits": value("split", lambda: all_to_all_single(five, five.clone(), group)),
            "no dimension": value("split", lambda: all_to_all_single(torch.ones(()), torch.ones(()), group)),
            "input splits of another sum": value(
                "input split sizes add up to 3",
                lambda: all_to_all_single(four, four.clone(), group, splits=([2, 2], [2, 1])),
            ),
            "output splits of another sum": value(
                "output split sizes add up to 5",
                lambda: all_to_all_single(four, four.clone(), group, splits=([3, 2], [2, 2])),
            ),
            "too few splits": value(
                "2 ranks, not 1", lambda: all_to_all_single(four, four.clone(), group, splits=([4], [2, 2]))
            ),
            "negative split": value(
                "-1", lambda: all_to_all_single(four, four.clone(), group, splits=([2, 2], [5, -1]))
            ),
            "own part of another size": value(
                "itself", lambda: all_to_all_single(four, four.clone(), group, splits=([1, 3], [2, 2]))
            ),
            "another dtype": dtype("float64[4]", lambda: all_to_all_single(four, double, group)),
            "shared elements": value("share", lambda: all_to_all_single(spread, four, group)),
        },
        "send to rank 2 tag 5": {"peer too large": value("rank 2", lambda: send(four, 2, group, 5))},
        "send to rank -1 tag 5": {"peer negative": value("rank -1", lambda: send(four, -1, group, 5))},
        "send to rank 1 tag -1": {"tag negative": value("negative", lambda: send(four, 1, group, -1))},
        "send to rank 1 tag 5": {
            "sparse": never("to_dense", lambda: backend.send([sparse], 1, 5)),
            "two tensors": value("exactly one", lambda: backend.send([four, four], 1, 5)),
            "no tensor": value("exactly one", lambda: backend.send([], 1, 5)),
        },
        "recv from rank 2 tag 5": {"peer too large": value("rank 2", lambda: recv(four, 2, group, 5))},
        "recv from rank -1 tag 5": {"peer negative": value("rank -1", lambda: recv(four, -1, group, 5))},
        "recv from rank 1 tag -1": {"tag negative": value("negative", lambda: recv(four, 1, group, -1))},
        "recv from rank 1 tag 5": {
            "two tensors": value("exactly one", lambda: backend.recv([four, four], 1, 5)),
            "shared elements": value("share", lambda: recv(spread, 1, group, 5)),
        },
        "recv_any_source tag -1": {
            "tag negative": value("negative", lambda: recv_any_source(four, group, -1))
        },
        "recv_any_source tag 5": {
            "quantized": never("quantized", lambda: backend.recv_anysource([quantized], 5)),
            "shared elements": value("share", lambda: recv_any_source(spread, group, 5)),
        },
    }
    if HAS_2_14:
        doubles = torch.empty(8, dtype=torch.float64)
        by_op["gather_single"] = {
            "root too large": value("root 2", lambda: gather_single(torch.empty(8), four, 2, group)),
            "another size": value("2 times the 4", lambda: gather_single(torch.empty(7), four, 0, group)),
            "not contiguous": value(
                "contiguous", lambda: gather_single(torch.empty(16)[::2], four, 0, group)
            ),
            "another dtype": dtype("float64[4]", lambda: gather_single(doubles, four, 0, group)),
        }
    return {f"{op}: {what}": case for op, of_op in by_op.items() for what, case in of_op.items()}


def arguments() -> dict[str, tuple[str, str, Refusal]]:
    """Only rank 0 tries them: had one sent anything, the next call of the group would go wrong."""
    found = {}
    for name, case in cases().items():
        if dist.get_rank() == 0:
            found[name] = (case.kind, case.part, refusal(case.call))
        assert usable(), name
    return found


def test_arguments() -> None:
    found, _ = run_ranks(arguments, 2)
    wrong = {}
    for name, (kind, part, raised) in found.items():
        op = name.split(":")[0]
        if raised is None:
            wrong[name] = "accepted"
        elif raised[0] != kind or part not in raised[1]:
            wrong[name] = f"{raised} instead of {kind} with {part!r}"
        elif not re.match(rf"{op} seq \d+ of group '.+' on rank 0 of 2: ", raised[1]):
            wrong[name] = raised[1]
    assert not wrong, "\n".join(f"{name}: {what}" for name, what in wrong.items())
    assert len(found) > 80


# --- tensors that torch replaces by a copy ----------------------------------------------------------------


def written_in_name_only() -> list[str]:
    """A negated view as the output of every operation whose result would be written to a copy of it."""
    rank, size = dist.get_rank(), dist.get_world_size()
    group = dist.group.WORLD
    plain = torch.ones(4)

    def negated(numel: int = 4) -> torch.Tensor:
        view = torch.ones(numel, dtype=torch.complex64).conj().imag
        assert view.is_neg()
        return view

    calls: dict[str, Callable[[], object]] = {
        "allreduce_": lambda: dist.all_reduce(negated()),
        "allreduce_coalesced_": lambda: dist.all_reduce_coalesced([plain, negated()]),
        "broadcast_": lambda: dist.broadcast(negated(), 1 - rank),
        "reduce_": lambda: dist.reduce(negated(), rank),
        "_allgather_base_": lambda: all_gather_single(negated(4 * size), plain),
        "_reduce_scatter_base_": lambda: reduce_scatter_single(negated(), torch.ones(4 * size)),
        "reduce_scatter_": lambda: dist.reduce_scatter(negated(), [plain] * size),
        "scatter_": lambda: dist.scatter(negated(), [plain] * size, rank),
        "alltoall_base_": lambda: dist.all_to_all_single(negated(4), torch.ones(4)),
        "alltoall_": lambda: dist.all_to_all([negated()] * size, [plain] * size),
        "recv_": lambda: dist.recv(negated(), 1 - rank),
        "recv_any_source_": lambda: dist.recv(negated()),
    }
    wrong = []
    for name, call in calls.items():
        raised = refusal(call)
        if raised is None or raised[0] != "ValueError":
            wrong.append(f"{name}: {raised}")
        elif not re.search(
            rf"{name} seq \d+ of group '.+' on rank {rank} of {size}: .*resolve_neg", raised[1]
        ):
            wrong.append(f"{name}: {raised[1]}")
    gathered = torch.zeros(4 * size)
    all_gather_single(gathered, negated())  # only read
    if gathered.unique().tolist() != [0.0]:
        wrong.append(f"a negated input was sent as {gathered.tolist()}")
    dist.broadcast(negated() if rank == 0 else plain, 0)  # the root only reads
    if not usable():
        wrong.append("the group is not usable")
    assert group is not None
    return wrong


def test_a_result_that_would_be_written_to_a_copy_is_refused() -> None:
    assert run_ranks(written_in_name_only, 2) == [[], []]


def of_gloo_beside_ours() -> list[float]:
    """Calls of other backends go on as torch has it."""
    other = dist.new_group([0, 1], backend="gloo")
    view = torch.full((4,), 1 + 2j).conj().imag
    dist.all_reduce(view, group=other)
    gathered = torch.zeros(8)
    all_gather_single(gathered, view, group=other)
    return [*view.unique().tolist(), *gathered.unique().tolist()]


def test_other_backends_are_left_alone() -> None:
    assert run_ranks(of_gloo_beside_ours, 2) == [[-2.0, -2.0]] * 2
