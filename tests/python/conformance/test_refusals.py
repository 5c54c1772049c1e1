"""What means nothing is refused before anything is sent, by name; the group stays usable."""

import re
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from calls import all_gather, all_gather_into, all_reduce, broadcast
from reference import REFUSED_PAIRS
from torch_ucc.testing import run_ranks

pytestmark = pytest.mark.multirank

Refusal = tuple[str, str]  # type and text of an exception


def refusal(call: Callable[[], object]) -> Refusal | None:
    try:
        call()
    except Exception as error:
        return type(error).__name__, str(error)
    return None


def usable() -> bool:
    tensor = torch.ones(3)
    dist.all_reduce(tensor)
    return bool((tensor == dist.get_world_size()).all())


def pairs() -> list[tuple[str, bool, Refusal | None]]:
    """Each is tried on one rank only: had it sent anything, the next call of the group would go wrong."""
    found = []
    group = dist.group.WORLD
    for i, (dtype, op) in enumerate(REFUSED_PAIRS):
        if i % dist.get_world_size() == dist.get_rank():
            tensor = torch.ones(4).to(dtype)
            before = tensor.clone().view(torch.uint8)
            raised = refusal(lambda tensor=tensor, op=op: all_reduce(tensor, op, group))
            kept = torch.equal(tensor.view(torch.uint8), before)
            found.append((f"{dtype} {op}", kept, raised))
        assert usable()
    return found


def test_reductions_without_a_meaning() -> None:
    by_rank = run_ranks(pairs, 2)
    assert sum(len(found) for found in by_rank) == len(REFUSED_PAIRS)
    for rank, found in enumerate(by_rank):
        for i, (pair, kept, raised) in enumerate(found):
            dtype, op = pair.removeprefix("torch.").split()
            assert kept, pair
            assert raised is not None, f"{pair} was accepted"
            kind, text = raised
            assert kind == "NotImplementedError", (pair, raised)
            assert re.search(rf"all_reduce seq \d+ of group '.+' on rank {rank} of 2", text), (pair, text)
            # Numbered like the call that it was not: one more for each that went well.
            assert f"seq {i * 2 + rank + 1} " in text, (pair, text)
            assert op in text and dtype.removeprefix("complex") in text, (pair, text)


def arguments() -> dict[str, Refusal | None]:
    """Only rank 0 tries them."""
    group = dist.group.WORLD
    found: dict[str, Refusal | None] = {}
    ones = torch.ones(4)
    sparse = torch.eye(3).to_sparse()
    backend = group._get_backend(torch.device("cpu"))
    cases: dict[str, Callable[[], object]] = {
        "sparse": lambda: backend.allreduce([sparse], dist.AllreduceOptions()),
        "sparse broadcast": lambda: backend.broadcast([sparse], dist.BroadcastOptions()),
        "csr": lambda: backend.allreduce([torch.eye(3).to_sparse_csr()], dist.AllreduceOptions()),
        "quantized": lambda: backend.allreduce(
            [torch.quantize_per_tensor(ones, 0.1, 0, torch.qint8)], dist.AllreduceOptions()
        ),
        "meta": lambda: backend.allreduce([torch.ones(4, device="meta")], dist.AllreduceOptions()),
        "two tensors": lambda: backend.allreduce([ones, ones.clone()], dist.AllreduceOptions()),
        "no tensor": lambda: backend.allreduce([], dist.AllreduceOptions()),
        "root too large": lambda: broadcast(ones.clone(), 2, group),
        "root negative": lambda: broadcast(ones.clone(), -1, group),
        "short list": lambda: all_gather([ones.clone()], ones, group),
        "list of another size": lambda: all_gather([ones.clone(), torch.ones(5)], ones, group),
        "list of another dtype": lambda: all_gather([ones.clone(), ones.double()], ones, group),
        "output of another size": lambda: all_gather_into(torch.empty(9), ones, group),
        "output of another dtype": lambda: all_gather_into(torch.empty(8, dtype=torch.int32), ones, group),
    }
    for name, call in cases.items():
        if dist.get_rank() == 0:
            found[name] = refusal(call)
        assert usable(), name
    return found


ARGUMENT_ERRORS = {
    "sparse": ("NotImplementedError", "to_dense"),
    "sparse broadcast": ("NotImplementedError", "to_dense"),
    "csr": ("NotImplementedError", "to_dense"),
    "quantized": ("NotImplementedError", "quantized"),
    "meta": ("NotImplementedError", "meta"),
    "two tensors": ("ValueError", "exactly one tensor"),
    "no tensor": ("ValueError", "exactly one tensor"),
    "root too large": ("ValueError", "root 2"),
    "root negative": ("ValueError", "root -1"),
    "short list": ("ValueError", "2, not 1"),
    "list of another size": ("ValueError", "float32[5]"),
    "list of another dtype": ("TypeError", "float64[4]"),
    "output of another size": ("ValueError", "float32[9]"),
    "output of another dtype": ("TypeError", "int32[8]"),
}


def test_arguments() -> None:
    found, _ = run_ranks(arguments, 2)
    assert found.keys() == ARGUMENT_ERRORS.keys()
    for name, (kind, part) in ARGUMENT_ERRORS.items():
        assert found[name] is not None, f"{name} was accepted"
        got_kind, text = found[name]
        assert (got_kind, part in text) == (kind, True), (name, found[name])
        assert re.search(r"seq \d+ of group '.+' on rank 0 of 2", text), (name, text)


def overlapping(op: str) -> Refusal | None:
    """On both ranks, so that an accepted call has somebody to meet."""
    group = dist.group.WORLD
    tensor = torch.ones(1).expand(4)
    by_op: dict[str, Callable[[], dist.Work]] = {
        "all_reduce": lambda: all_reduce(tensor, "SUM", group),
        "broadcast": lambda: broadcast(tensor, 0, group),
        "all_gather_into": lambda: all_gather_into(tensor, torch.ones(tensor.numel() // 2), group),
        "all_gather": lambda: all_gather([tensor, tensor.clone()], torch.ones(tensor.shape), group),
    }
    works: list[dist.Work] = []
    raised = refusal(lambda: works.append(by_op[op]()))
    for work in works:
        refusal(work.wait)  # too late to count
    return raised


@pytest.mark.parametrize("op", ["all_reduce", "all_gather_into", "all_gather", "broadcast"])
def test_output_whose_elements_share_memory(op: str) -> None:
    """There is no place for the result; to find out once it has come would be too late."""
    for rank, raised in enumerate(run_ranks(overlapping, 2, op)):
        if op == "broadcast" and rank == 0:
            continue  # the root's tensor is only read
        assert raised is not None, f"accepted on rank {rank}"
        assert raised[0] == "ValueError", raised


def premul_by_tensor() -> list[float]:
    tensor = torch.tensor([1.0, 2.0])
    dist.all_reduce(tensor, dist._make_nccl_premul_sum(torch.tensor([3.0 + dist.get_rank()])))
    return tensor.tolist()


def test_premul_sum_by_a_factor_of_each_rank() -> None:
    assert run_ranks(premul_by_tensor, 2) == [[7.0, 14.0]] * 2
