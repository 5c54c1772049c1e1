"""torch.distributed.monitored_barrier for ucc groups. The function of torch accepts groups of gloo only."""

from __future__ import annotations

from datetime import timedelta

import torch.distributed as dist


def monitored_barrier(
    group: dist.ProcessGroup | None = None,
    timeout: timedelta | float | None = None,
    wait_all_ranks: bool = False,
) -> None:
    """Wait for all ranks of the group, and name the ranks that do not call it within the timeout.

    If ranks are missing, all ranks that called it raise DistBackendError. The error names the first missing
    rank, or all of them if `wait_all_ranks` is true. If rank 0 is missing, it names rank 0 only. `timeout` is
    a timedelta or a number of seconds; the default is the timeout of the group. The barrier uses the store of
    the job, so it also works if other operations of the group hang or have failed. A rank that is not a
    member of the group returns at once.
    """
    if dist.get_rank(group) < 0:
        return  # no member: as torch's own
    target = group if group is not None else dist.group.WORLD
    if timeout is None:
        timeout = timedelta(milliseconds=-1)  # torch's way of saying: unset
    elif not isinstance(timeout, timedelta):
        timeout = timedelta(seconds=timeout)
    target.monitored_barrier(timeout, wait_all_ranks)  # type: ignore[union-attr]  # its stubs lack it
