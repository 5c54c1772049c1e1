"""torch.distributed.monitored_barrier for ucc groups: torch's own front end lets gloo's through only."""

from __future__ import annotations

from datetime import timedelta

import torch.distributed as dist


def monitored_barrier(
    group: dist.ProcessGroup | None = None,
    timeout: timedelta | float | None = None,
    wait_all_ranks: bool = False,
) -> None:
    """Wait for all ranks of the group; past the timeout, say which did not come.

    Rank 0 raises DistBackendError with the first rank that is missing, or with `wait_all_ranks` with all of
    them; the ranks that came learn it from there. `timeout`, in seconds if it is a number, is the group's by
    default. It goes over the job's store, so it answers whatever state the group's other operations are in.
    """
    if dist.get_rank(group) < 0:
        return  # no member: as torch's own
    target = group if group is not None else dist.group.WORLD
    if timeout is None:
        timeout = timedelta(milliseconds=-1)  # torch's way of saying: unset
    elif not isinstance(timeout, timedelta):
        timeout = timedelta(seconds=timeout)
    target.monitored_barrier(timeout, wait_all_ranks)  # type: ignore[union-attr]  # its stubs lack it
