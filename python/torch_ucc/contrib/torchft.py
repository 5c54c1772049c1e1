"""Fault-tolerant training with torchft over ucc: pass `ProcessGroupUCC()` to the Manager of torchft as `pg`.

This needs torchft 0.2, which torch-ucc does not install.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Store
from torchft.process_group import ProcessGroupWrapper  # type: ignore[import-not-found]

from torch_ucc import _register


class ProcessGroupUCC(ProcessGroupWrapper):  # type: ignore[misc]
    """A ucc group that the Manager of torchft creates again whenever the replicas change.

    It replaces ProcessGroupGloo of torchft and takes the same arguments: `timeout` limits each operation and
    the creation of the group. If an allreduce fails, wait() of its work returns False instead of raising. The
    future of the work has the exception, and after wait() `errored` returns it until the Manager creates the
    group again. The Manager discards the step. This class does not raise, because DistributedDataParallel of
    torchft ends with an AssertionError if wait() raises.
    """

    _pg: dist.ProcessGroup | None
    _error: Exception | None = None

    def errored(self) -> Exception | None:
        return self._error

    def allreduce(self, tensors: list[torch.Tensor], opts: Any) -> dist.Work:
        return _AllReduce(self, super().allreduce(tensors, opts))

    def _create_pg(self, store: Store, rank: int, world_size: int) -> dist.ProcessGroup:
        """Called by `configure`, which has aborted the former group. `store` is for this group only."""
        self._error = None
        name = f"torchft_quorum_{self._quorum_id}_rank_{self._group_rank or 0}"
        backend = _register.member_of_new_world(None, store, rank, world_size, name, self._timeout)

        kind = dist.ProcessGroup.BackendType.UCC
        group = dist.ProcessGroup(store, rank, world_size)
        group._set_default_backend(kind)
        for device in _devices():
            group._register_backend(device, kind, backend)
        return group

    def shutdown(self) -> None:
        """Close the group and its connections. The base class of torchft only drops its reference to it."""
        group, self._pg = self._pg, None
        if group is not None:
            group.shutdown()

    def getBackendName(self) -> str:  # noqa: N802
        return "torchft-ucc"


class _AllReduce(dist.Work):
    def __init__(self, group: ProcessGroupUCC, work: dist.Work) -> None:
        super().__init__()
        self._group = group
        self._work = work

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:  # 0: that of the group
        try:
            return self._work.wait(timeout)
        except Exception as error:
            self._group._error = error
            return False

    def get_future(self) -> torch.futures.Future[Any]:
        return self._work.get_future()

    def block_current_stream(self) -> None:
        self._work.block_current_stream()


def _devices() -> list[torch.device]:
    """The CPU, and the accelerator that torch has here if ucc takes its tensors."""
    accelerator: Any = torch.accelerator.current_accelerator()
    served = accelerator is not None and accelerator.type in _register.DEVICES
    return [torch.device("cpu"), *([torch.device(accelerator.type)] if served else [])]
