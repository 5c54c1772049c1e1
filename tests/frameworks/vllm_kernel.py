"""The all_reduce of vLLM's kernel for shared memory, for `ci/bench --vs vllm_kernel:vllm`.

Only the kernel is loaded, not vLLM. It lies where `ci/integration vllm` installs vLLM, or in VLLM_HOME.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist

REPOSITORY = Path(__file__).resolve().parents[2]


def kernel() -> Path:
    """The library that vLLM takes for this processor. Raises FileNotFoundError if there is none."""
    home = os.environ.get("VLLM_HOME") or REPOSITORY / ".deps" / "integration" / "vllm"
    name = "_C" if torch.cpu._is_avx512_bf16_supported() else "_C_AVX512"
    for found in Path(home).glob(f"lib/python*/site-packages/vllm/{name}.abi3.so"):
        return found
    raise FileNotFoundError(f"{home} has no vLLM with {name}: run ci/integration vllm")


def vllm(rank: int, size: int) -> Callable[[torch.Tensor], object]:
    torch.ops.load_library(kernel())
    named = [f"torch-ucc-bench-{os.getpid()}"]
    dist.broadcast_object_list(named)
    handle = torch.ops._C.init_shm_manager(named[0], size, rank, torch.get_num_threads())
    dist.barrier()
    torch.ops._C.join_shm_manager(handle, named[0])
    dist.barrier()
    return partial(torch.ops._C.shm_allreduce, handle)
