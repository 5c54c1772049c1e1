"""Ranks that never come, differ, leave early or die: the others are told which operation it was, and end.

The limits of the groups are short because the tests must wait for them to pass; no test fails for being slow.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from deaths import GRACE, meet
from torch_ucc._torch import all_gather_single
from torch_ucc.testing import RankError, run_ranks, run_script

pytestmark = pytest.mark.multirank

LIMIT = 2.0
"""Of a group, in seconds."""

SOON = {"TORCH_UCC_CLOSE_TIMEOUT": "500ms"}
"""For groups that cannot close well: the ranks need not wait for each other long."""


def store() -> dist.Store:
    return dist.distributed_c10d._get_default_store()


def failure(call: Callable[[], object]) -> tuple[str, str]:
    try:
        call()
    except Exception as error:
        return type(error).__name__, str(error)
    return "nothing", ""


OPS: dict[str, Callable[[], object]] = {
    "all_reduce": lambda: dist.all_reduce(torch.ones(4)),
    "broadcast": lambda: dist.broadcast(torch.ones(4), 1),
    "all_gather_into_tensor": lambda: all_gather_single(torch.empty(8), torch.ones(4)),
    "all_gather": lambda: dist.all_gather([torch.empty(4), torch.empty(4)], torch.ones(4)),
    "barrier": lambda: dist.barrier(),
}


def left_alone(op: str) -> list[tuple[str, str]]:
    """Rank 1 takes part in two calls and never comes to the third, though it lives on."""
    dist.barrier()
    dist.all_reduce(torch.ones(1))
    if dist.get_rank() == 1:
        store().wait(["test/failed"], timedelta(seconds=60))
        return []
    first = failure(OPS[op])
    again = failure(lambda: dist.all_reduce(torch.ones(2)))
    store().set("test/failed", "1")
    return [first, again]


@pytest.mark.parametrize("op", OPS)
def test_a_rank_that_never_comes(op: str) -> None:
    """The error names the call; later calls give the same reason at once; the group can be destroyed."""
    found, _ = run_ranks(left_alone, 2, op, group_timeout=LIMIT, env=SOON)
    (kind, text), (later_kind, later_text) = found
    assert kind == "DistBackendError", (kind, text)
    assert re.search(rf"{op} seq 3 of group '.+' on rank 0 of 2.* timed out", text), text
    assert later_kind == "DistBackendError"
    assert "all_reduce seq 4" in later_text and f"{op} seq 3" in later_text and "timed out" in later_text, (
        later_text
    )


def works_in_flight() -> list[tuple[str, str]]:
    """Every Work and future in flight ends with its own error and the first one's reason."""
    if dist.get_rank() == 1:
        store().wait(["test/failed"], timedelta(seconds=60))
        return []
    works = [dist.all_reduce(torch.ones(numel), async_op=True) for numel in (1, 1000, 600_000)]
    future = works[2].get_future()
    found = [failure(work.wait) for work in works]
    found.append(failure(future.wait))
    assert all(work.is_completed() for work in works)
    assert not works[0].is_success()
    found.append((type(works[0].exception()).__name__, str(works[0].exception())))
    found.append(failure(works[1].wait))
    store().set("test/failed", "1")
    return found


def test_works_in_flight_end_with_an_error_each() -> None:
    found, _ = run_ranks(works_in_flight, 2, group_timeout=LIMIT, env=SOON)
    for i, (kind, text) in zip((1, 2, 3, 3, 1, 2), found, strict=True):
        assert f"all_reduce seq {i} of group" in text, (i, kind, text)
        assert "timed out" in text, text
    assert {kind for kind, _ in found[:3]} == {"DistBackendError"}


MORE = {
    "all_reduce": lambda n: dist.all_reduce(torch.ones(n)),
    "broadcast": lambda n: dist.broadcast(torch.ones(n), 0),
    "all_gather_into_tensor": lambda n: all_gather_single(torch.empty(2 * n), torch.ones(n)),
}


def gets_more(op: str, more: int, less: int) -> tuple[str, str]:
    """Rank 1 has room for less than rank 0 sends."""
    found = failure(lambda: MORE[op](less if dist.get_rank() else more))
    if dist.get_rank() == 1:
        store().set("test/failed", "1")
        return found
    store().wait(["test/failed"], timedelta(seconds=60))
    return "", ""


@pytest.mark.parametrize("host_path", [True, False], ids=["memory", "ucc"])
@pytest.mark.parametrize("op", MORE)
@pytest.mark.parametrize("more", [100, 5000])
def test_a_rank_that_gets_more_than_it_has_room_for(op: str, more: int, host_path: bool) -> None:
    """UCC reports success there, and the truth in its log only."""
    env = SOON | {"TORCH_UCC_HOST_PATH": str(int(host_path))}
    _, (kind, text) = run_ranks(gets_more, 2, op, more, 50, group_timeout=60.0, env=env)
    assert kind == "DistBackendError" and f"{op} seq 1 of group" in text, (kind, text)


def timeout_of_a_call() -> tuple[str, str]:
    """Shorter than the group's."""
    if dist.get_rank() == 1:
        store().wait(["test/failed"], timedelta(seconds=60))
        return "", ""
    found = failure(lambda: _allreduce_within(timedelta(milliseconds=300)))
    store().set("test/failed", "1")
    return found


def _allreduce_within(limit: timedelta) -> None:
    options = dist.AllreduceOptions()
    options.timeout = limit
    dist.group.WORLD.allreduce([torch.ones(1)], options).wait()


def test_timeout_of_one_call() -> None:
    (kind, text), _ = run_ranks(timeout_of_a_call, 2, group_timeout=600.0, env=SOON)
    assert kind == "DistBackendError" and "all_reduce seq 1" in text and "timed out" in text, (kind, text)


def timeout_set_later() -> tuple[str, str]:
    dist.all_reduce(torch.ones(1))
    dist.group.WORLD._get_backend(torch.device("cpu")).set_timeout(timedelta(milliseconds=300))
    if dist.get_rank() == 1:
        store().wait(["test/failed"], timedelta(seconds=60))
        return "", ""
    found = failure(OPS["all_reduce"])
    store().set("test/failed", "1")
    return found


def test_timeout_set_on_a_living_group() -> None:
    (kind, text), _ = run_ranks(timeout_set_later, 2, group_timeout=600.0, env=SOON)
    assert kind == "DistBackendError" and "all_reduce seq 2" in text, (kind, text)


def start_over() -> float:
    """After a failure: destroy, initialise under other keys of the same store, go on."""
    rank = int(os.environ["RANK"])
    shared = dist.TCPStore(
        os.environ["MASTER_ADDR"],
        int(os.environ["MASTER_PORT"]),
        is_master=False,
        timeout=timedelta(seconds=60),
    )
    dist.init_process_group(
        "ucc",
        store=dist.PrefixStore("first", shared),
        rank=rank,
        world_size=2,
        timeout=timedelta(seconds=LIMIT),
    )
    dist.barrier()
    if rank == 0:
        assert failure(OPS["all_reduce"])[0] == "DistBackendError"
        shared.set("test/failed", "1")
    else:
        shared.wait(["test/failed"], timedelta(seconds=60))
    dist.destroy_process_group()
    dist.init_process_group(
        "ucc",
        store=dist.PrefixStore("second", shared),
        rank=rank,
        world_size=2,
        timeout=timedelta(seconds=60),
    )
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    dist.destroy_process_group()
    return float(tensor)


def test_initialised_again_after_a_failure() -> None:
    assert run_ranks(start_over, 2, init=False, env=SOON) == [2.0, 2.0]


def init_alone(limit: float) -> tuple[str, str]:
    def init() -> None:
        dist.init_process_group("ucc", timeout=timedelta(seconds=limit))
        dist.barrier()

    return failure(init)


def init_of_rank_zero() -> tuple[str, str]:
    if os.environ["RANK"] == "1":
        shared = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
        shared.wait(["test/failed"], timedelta(seconds=60))
        return "", ""
    shared = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)

    def init() -> None:
        used = dist.PrefixStore("job", shared)
        dist.init_process_group("ucc", store=used, rank=0, world_size=2, timeout=timedelta(seconds=LIMIT))
        dist.barrier()

    found = failure(init)
    shared.set("test/failed", "1")
    return found


def test_a_rank_that_never_creates_its_group() -> None:
    """The error names it."""
    (kind, text), _ = run_ranks(init_of_rank_zero, 2, init=False)
    assert kind == "DistBackendError", (kind, text)
    assert "rank(s) 1 of 2" in text and "create the group" in text, text


@pytest.mark.parametrize(
    ("name", "values", "told"),
    [
        ("TORCH_UCC_SEGMENT_BYTES", ("1m", "2m"), ("segment_bytes", "1048576", "2097152")),
        ("UCC_TL_UCP_TUNE", (None, "allreduce:@1"), ("UCC_TL_UCP_TUNE", "not set", "allreduce:@1")),
        ("UCX_TLS", (None, "tcp"), ("UCX_TLS", "not set", "tcp")),
        ("UCX_TLS", ("tcp", None), ("UCX_TLS", "not set", "tcp")),
        ("UCC_UCX_TLS", ("tcp", "sm,self"), ("UCC_UCX_TLS", "'tcp'", "sm,self")),
        ("UCX_RNDV_THRESH", (None, "1k"), ("UCX_RNDV_THRESH", "not set", "1k")),
    ],
)
def test_different_settings(
    name: str, values: tuple[str | None, str | None], told: tuple[str, str, str]
) -> None:
    """All ranks are told what differs, and which value is whose, also one that is like rank 0."""
    rank_env = [{name: value} if value is not None else {} for value in (values[0], *values)]
    for kind, text in run_ranks(init_alone, 3, 60.0, init=False, rank_env=rank_env):
        assert kind == "ValueError", (kind, text)
        assert all(part in text for part in told), text
        assert "on rank 0" in text and "on rank 2" in text, text


def test_settings_that_may_differ() -> None:
    mine = {"TORCH_UCC_SPIN": "0us", "UCC_LOG_LEVEL": "warn", "UCX_LOG_LEVEL": "warn"}
    rank_env = [{**mine, "UCX_NET_DEVICES": "lo", "UCX_IB_GID_INDEX": "3", "UCX_HANDLE_ERRORS": "none"}, {}]
    assert run_ranks(init_alone, 2, 60.0, init=False, rank_env=rank_env) == [("nothing", "")] * 2


def test_unknown_setting() -> None:
    for kind, text in run_ranks(init_alone, 2, 60.0, init=False, env={"TORCH_UCC_SEGMENT_BYTE": "1m"}):
        assert kind == "ValueError" and "did you mean TORCH_UCC_SEGMENT_BYTES?" in text, (kind, text)


LEAVES = """
import os, sys, torch, torch.distributed as dist
BEFORE
dist.init_process_group("ucc")
x = torch.ones(1000)
dist.all_reduce(x)
works = [dist.all_reduce(x.clone(), async_op=True) for _ in range(3)]
sys.stdout.write(f"used {dist.get_rank()}\\n")
sys.stdout.flush()
HOW
"""


@pytest.mark.parametrize(
    "how",
    [
        "",
        "[work.wait() for work in works]",
        "works[0].get_future().then(lambda done: done.value())",
        "sys.exit(0)",
        "work = dist.all_reduce(torch.ones(1 << 22), async_op=True)",
        "works.append(dist.all_reduce(x, async_op=True)) if dist.get_rank() else None",
        "group = dist.new_group([0, 1]); dist.all_reduce(x, group=group); dist.destroy_process_group(group)",
        "dist.destroy_process_group()",
        "dist.distributed_c10d._abort_process_group() if dist.get_rank() else dist.destroy_process_group()",
    ],
)
def test_exit(how: str) -> None:
    """With or without destroy_process_group a script ends by itself, with status 0 and nothing to say."""
    leave(before="", how=how)


def test_exit_through_a_handler_that_was_registered_before_ours() -> None:
    """It runs after ours, on a group whose context is closed."""
    leave(before="import atexit; atexit.register(dist.destroy_process_group)", how="")


def leave(before: str, how: str) -> None:
    output = run_script(LEAVES.replace("BEFORE", before).replace("HOW", how), 2, timeout=90.0)
    assert sorted(re.findall(r"used (\d)", output)) == ["0", "1"]
    for bad in ("Traceback", "Segmentation", "terminate called", "SIGABRT", "ERROR"):
        assert bad not in output, output


FAILS = """
import datetime, sys, time, torch, torch.distributed as dist
dist.init_process_group("ucc", timeout=datetime.timedelta(seconds=2))
dist.all_reduce(torch.ones(1))
if dist.get_rank() == 0:
    try:
        dist.all_reduce(torch.ones(1))
    except dist.DistBackendError as error:
        sys.stdout.write(f"told: {error}\\n")
        sys.stdout.flush()
    dist.distributed_c10d._get_default_store().set("test/failed", "1")
else:
    dist.distributed_c10d._get_default_store().wait(["test/failed"], datetime.timedelta(seconds=60))
HOW
"""


@pytest.mark.parametrize("how", ["", "dist.destroy_process_group()"])
def test_exit_after_a_failure(how: str) -> None:
    output = run_script(FAILS.replace("HOW", how), 2, timeout=90.0)
    assert "told: all_reduce seq 2" in output
    for bad in ("Traceback", "Segmentation", "terminate called", "SIGABRT"):
        assert bad not in output, output


FORKS = """
import os, sys, torch, torch.distributed as dist
dist.init_process_group("ucc")
dist.all_reduce(torch.ones(1))
child = os.fork()
if child == 0:
    try:
        dist.all_reduce(torch.ones(1))
    except dist.DistBackendError as error:
        sys.stdout.write(f"refused: {error}\\n")
    sys.exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
dist.all_reduce(torch.ones(1))
dist.destroy_process_group()
"""


def test_a_forked_child_is_refused_and_disturbs_nobody() -> None:
    output = run_script(FORKS, 2, timeout=90.0)
    assert output.count("refused: all_reduce") == 2 and "forked" in output, output


def killed(folder: str) -> None:
    meet()
    if dist.get_rank() == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    # 0-byte and small messages may still fit into the dead rank's queue: until one does not come back.
    found = failure(lambda: [dist.all_reduce(torch.ones(1000)) for _ in range(100)])
    Path(folder, str(dist.get_rank())).write_text(" ".join(found))


def test_a_rank_that_is_killed(tmp_path: Path) -> None:
    """The others end with an error, and destroy their group; run_ranks reports the killed one alone."""
    with pytest.raises(RankError) as raised:
        run_ranks(killed, 3, str(tmp_path), group_timeout=60.0, grace=GRACE, env=SOON)
    for rank in range(2):
        told = (tmp_path / str(rank)).read_text()
        assert told.startswith("DistBackendError") and "rank 2 (host" in told and "timed out" not in told, (
            told
        )
    assert raised.value.unended == []
    assert list(raised.value.errors) == [2], raised.value.errors
    assert "SIGKILL" in raised.value.errors[2]


def close_with_late_peer() -> bool:
    """Destroying is no endless barrier: a rank that destroys alone is free within its close timeout."""
    dist.all_reduce(torch.ones(1))
    if dist.get_rank() == 1:
        store().wait(["test/destroyed"], timedelta(seconds=60))
        return True
    kept = store()
    dist.destroy_process_group()
    kept.set("test/destroyed", "1")
    return True


def test_destroyed_alone() -> None:
    assert run_ranks(close_with_late_peer, 2, env=SOON) == [True, True]
