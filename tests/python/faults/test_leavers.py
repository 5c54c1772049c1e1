"""Ranks that end as soon as they have done their part: the others still finish what they were sent."""

from __future__ import annotations

import os
import time
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from deaths import GRACE, failure, note, only_these_die, wait_for
from torch_ucc.testing import run_ranks

pytestmark = pytest.mark.multirank


def _ends(folder: str) -> None:
    """Without a word, as the children of multiprocessing do."""
    Path(folder, f"{dist.get_rank()}.ended").touch()
    os._exit(0)


def behind(folder: str, numel: int) -> None:
    """Rank 0 is some operations behind when all others are done with all of them."""
    rank, size = dist.get_rank(), dist.get_world_size()
    tensors = [torch.full((numel,), float(i)) for i in range(20)]
    if rank == 0:
        works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
        time.sleep(0.2)  # beside a caller that is elsewhere what has arrived is taken, perhaps not to the end
        wait_for(*(Path(folder, f"{other}.ended") for other in range(1, size)))
        wrong = [failure(work.wait)[1] for work in works if failure(work.wait)[0] != "nothing"]
        wrong += [
            f"{i}: {tensor.unique().tolist()}"
            for i, tensor in enumerate(tensors)
            if not bool((tensor == size * i).all())
        ]
        note(folder, wrong)
        return
    for tensor in tensors:
        dist.all_reduce(tensor)
    _ends(folder)


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("numel", [1, 5_000])
def test_collectives_that_others_have_ended(ranks: int, numel: int, tmp_path: Path) -> None:
    with only_these_die(*range(1, ranks)):
        run_ranks(behind, ranks, str(tmp_path), numel, group_timeout=60.0, grace=GRACE)
    assert (tmp_path / "0").read_text() == "[]"


def broadcasts(folder: str) -> None:
    """Rank 1 has sent all that it sends, and ended, before rank 0 calls the first operation.

    On one host a rank can be three operations ahead of one that reads from it.
    """
    dist.all_reduce(torch.ones(1))
    tensors = [torch.full((numel,), float(dist.get_rank())) for numel in (1, 100, 1000)]
    if dist.get_rank() == 1:
        for tensor in tensors:
            dist.broadcast(tensor, 1)
        _ends(folder)
    wait_for(Path(folder, "1.ended"))
    time.sleep(0.1)
    found = [failure(lambda tensor=tensor: dist.broadcast(tensor, 1))[:2] for tensor in tensors]  # type: ignore[misc]
    wrong = [each for each in found if each[0] != "nothing"]
    note(folder, wrong or [i for i, tensor in enumerate(tensors) if not bool((tensor == 1).all())])


def test_collectives_that_are_called_after_their_root_has_ended(tmp_path: Path) -> None:
    with only_these_die(1):
        run_ranks(broadcasts, 2, str(tmp_path), group_timeout=60.0, grace=GRACE)
    assert (tmp_path / "0").read_text() == "[]"


def messages_that_are_there(folder: str) -> None:
    """Received only after their sender has ended, by receives that were not yet called then."""
    rank = dist.get_rank()
    dist.all_reduce(torch.ones(1))
    if rank == 1:
        for i in range(10):
            dist.send(torch.full((100,), float(i)), 0)
        _ends(folder)
    wait_for(Path(folder, "1.ended"))
    time.sleep(0.1)
    wrong = []
    for i in range(10):
        tensor = torch.empty(100)
        kind, text, _ = failure(lambda tensor=tensor, i=i: dist.recv(tensor, 1 if i % 2 else None))  # type: ignore[misc]
        if kind != "nothing" or tensor.unique().tolist() != [float(i)]:
            wrong.append((i, kind, text, tensor[:2].tolist()))
    kind, text, _ = failure(lambda: dist.recv(torch.empty(100), 1))
    if kind != "DistBackendError" or "rank 1 (host " not in text or "has died" not in text:
        wrong.append((10, kind, text, []))
    note(folder, wrong)


def test_messages_that_were_sent_are_received(tmp_path: Path) -> None:
    with only_these_die(1):
        run_ranks(messages_that_are_there, 2, str(tmp_path), group_timeout=60.0, grace=GRACE)
    assert (tmp_path / "0").read_text() == "[]"


def among_the_others(folder: str) -> None:
    """In a group with a rank that has ended, messages between the others go on."""
    rank = dist.get_rank()
    dist.all_reduce(torch.ones(1))
    if rank == 2:
        _ends(folder)
    wait_for(Path(folder, "2.ended"))
    time.sleep(1.0)
    tensor = torch.full((1000,), float(rank))
    wrong = []
    for _ in range(3):
        received = torch.empty(1000)
        sent = dist.isend(tensor, 1 - rank)
        kind, text, _ = failure(lambda received=received: dist.recv(received, 1 - rank))  # type: ignore[misc]
        assert sent is not None
        if kind != "nothing" or received.unique().tolist() != [1.0 - rank]:
            wrong.append((kind, text))
        sent.wait()
    began = time.monotonic()
    kind, text, when = failure(lambda: dist.all_reduce(torch.ones(1)))
    if kind != "DistBackendError" or "rank 2 (host " not in text:
        wrong.append((kind, text))
    if when - began > 30:
        wrong.append(("late", str(when - began)))
    note(folder, wrong)


def test_messages_between_the_others_go_on(tmp_path: Path) -> None:
    with only_these_die(2):
        run_ranks(among_the_others, 3, str(tmp_path), group_timeout=60.0, grace=GRACE)
    assert [(tmp_path / str(rank)).read_text() for rank in (0, 1)] == ["[]", "[]"]


def sends_to_the_dead(folder: str) -> None:
    """What nobody can receive any more is not reported as sent."""
    rank = dist.get_rank()
    dist.all_reduce(torch.ones(1))
    group = dist.new_group([0, 1], timeout=timedelta(seconds=60))
    dist.all_reduce(torch.ones(1), group=group)
    if rank == 1:
        _ends(folder)
    wait_for(Path(folder, "1.ended"))
    time.sleep(1.0)
    found = [failure(lambda: dist.send(torch.ones(1), 1))[0], failure(lambda: dist.barrier(group=group))[0]]
    note(folder, found)


def test_a_message_to_a_rank_that_has_ended_is_an_error(tmp_path: Path) -> None:
    with only_these_die(1):
        run_ranks(sends_to_the_dead, 2, str(tmp_path), group_timeout=60.0, grace=GRACE)
    assert (tmp_path / "0").read_text() == '["DistBackendError", "DistBackendError"]'
