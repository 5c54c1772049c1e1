"""What PyTorch's own tools ask of a backend: profiles, completion hooks, durations, NaN checks, handlers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d
from torch_ucc._torch import all_gather_single
from torch_ucc.testing import run_ranks

pytestmark = pytest.mark.multirank


def profiled(path: str) -> list[dict]:
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True
    ) as profile:
        dist.all_reduce(torch.ones(12))
        all_gather_single(torch.empty(6), torch.ones(3))
        if dist.get_rank() == 0:
            dist.send(torch.ones(5), 1)
        else:
            dist.recv(torch.ones(5), 0)
        dist.barrier()
    profile.export_chrome_trace(f"{path}{dist.get_rank()}")
    events = json.loads(Path(f"{path}{dist.get_rank()}").read_text())["traceEvents"]
    return [event for event in events if event.get("name") in ("record_param_comms", "ucc:all_reduce")]


def test_profiles_show_operations_with_their_sizes(tmp_path: Path) -> None:
    for rank, events in enumerate(run_ranks(profiled, 2, str(tmp_path / "profile"))):
        told = [
            (args["Collective name"], args["In msg nelems"], args["Out msg nelems"], args["dtype"])
            for event in events
            if "Collective name" in (args := event.get("args", {}))
        ]
        message = "send" if rank == 0 else "recv"
        assert told[:3] == [
            ("all_reduce", 12, 12, "Float"),
            ("all_gather_into_tensor", 3, 6, "Float"),
            (message, 5, 5, "Float"),
        ]
        assert any(event["name"] == "ucc:all_reduce" for event in events)


def hooked() -> list[tuple[str, int, bool]]:
    told: list[tuple[str, int, bool]] = []
    group = dist.distributed_c10d._get_default_group()

    def hook(info: object) -> None:
        told.append((str(info.op_type), info.seq, info.time_finished >= info.time_started))  # type: ignore[attr-defined]

    group._register_on_completion_hook(hook)
    dist.all_reduce(torch.ones(4))
    works = [dist.all_reduce(torch.ones(4), async_op=True) for _ in range(3)]
    group._wait_for_pending_works()
    assert all(work.is_completed() for work in works)
    with pytest.raises(Exception, match="already has a completion hook"):
        group._register_on_completion_hook(hook)
    return told


def test_a_completion_hook_hears_of_every_operation() -> None:
    for told in run_ranks(hooked, 2):
        assert sorted(seq for _, seq, _ in told) == [1, 2, 3, 4]
        assert all("ALLREDUCE" in op and in_order for op, _, in_order in told)


def timed() -> tuple[float, str]:
    dist.distributed_c10d._get_default_group()._enable_collectives_timing()
    work = dist.all_reduce(torch.ones(4), async_op=True)
    work.wait()
    early = ""
    if dist.get_rank() == 0:
        pending = dist.irecv(torch.ones(1), 1)
        try:
            pending._get_duration()
        except Exception as error:
            early = str(error)
        dist.barrier()
        pending.wait()
    else:
        dist.barrier()
        dist.send(torch.ones(1), 0)
    return work._get_duration(), early


def test_the_duration_of_an_operation_is_known_at_its_end() -> None:
    (first, early), (second, _) = run_ranks(timed, 2)
    assert 0 < first < 60_000 and 0 < second < 60_000
    assert "not known before its end" in early


def with_nan(dtype: torch.dtype) -> str:
    healthy, sick = torch.ones(4, dtype=dtype), torch.ones(4, dtype=dtype)
    sick[2] = float("nan")
    message = ""
    try:
        dist.all_reduce(sick)
    except ValueError as error:
        message = str(error)
    dist.broadcast(
        sick if dist.get_rank() == 1 else healthy, 0
    )  # where it is overwritten, it is nobody's business
    dist.all_reduce(torch.ones(4, dtype=torch.int32))
    return message


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64], ids=str)
def test_a_nan_is_refused_where_that_is_asked_for(dtype: torch.dtype) -> None:
    for rank, message in enumerate(run_ranks(with_nan, 2, dtype, env={"TORCH_UCC_NAN_CHECK": "1"})):
        assert "all_reduce seq 1" in message and f"on rank {rank} of 2" in message and "has a NaN" in message


def with_nan_on_one_rank() -> float:
    """What only one rank refuses leaves the later calls of all ranks matched."""
    tensors = [torch.ones(4), torch.ones(4)]
    if dist.get_rank() == 0:
        sick = [torch.ones(4), torch.full((4,), float("nan"))]
        with pytest.raises(ValueError, match="has a NaN"):
            dist.all_reduce_coalesced(sick)
    dist.all_reduce_coalesced(tensors)
    gathered = [torch.zeros(1) for _ in range(2)] if dist.get_rank() == 0 else None
    dist.gather(torch.full((1,), 7.0), gathered, 0)  # its messages are told apart by the sequence number
    return tensors[1].sum().item() + (gathered[1].item() if gathered else 0)


def test_a_nan_on_one_rank_shifts_nothing() -> None:
    env = {"TORCH_UCC_NAN_CHECK": "1"}
    assert run_ranks(with_nan_on_one_rank, 2, env=env, group_timeout=20.0) == [15.0, 8.0]


def test_a_nan_is_data_else() -> None:
    assert run_ranks(with_nan, 2, torch.float32) == ["", ""]


class Answer(c10d._Response):
    def __init__(self) -> None:
        super().__init__()
        self.content = ""

    def set_content(self, content: str, content_type: str) -> None:
        self.content = content

    def set_status(self, status: int) -> None:
        raise AssertionError(status)


class Question(c10d._Request):
    def body(self) -> bytes:
        return b""

    def get_param(self, name: str) -> str:
        return ""


def handled() -> str:
    dist.all_reduce(torch.ones(4))
    answer = Answer()
    c10d._get_handler("torch_ucc_dump")(Question(), answer)
    return answer.content


def test_the_debug_server_can_ask_for_a_dump() -> None:
    for content in run_ranks(handled, 2):
        assert [each["op"] for each in json.loads(content)["records"]] == ["all_reduce"]
