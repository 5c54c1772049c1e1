"""Under torchrun: operations whose inputs, outputs and Works are dropped at once, for a tool that watches.

`--planted` does nothing but write to memory that was freed, which such a tool must find.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import torch
import torch.distributed as dist

sys.path.extend(str(Path(__file__).parents[1] / "python" / name) for name in ("devices", "conformance"))
import accelerators
import test_staged_operations as staged


def plant() -> None:
    tensor = torch.ones(1000, device="cuda")
    alias = torch.as_tensor(
        SimpleNamespace(__cuda_array_interface__=tensor.__cuda_array_interface__), device="cuda"
    )
    assert alias.data_ptr() == tensor.data_ptr()
    del tensor
    alias.fill_(2)
    torch.cuda.synchronize()


def main() -> None:
    if "--planted" in sys.argv:
        plant()
        return
    dist.init_process_group("ucc")
    checked = 0
    for way in (staged.inputs_dropped, staged.all_dropped):
        reported, count, first = way()
        assert count == 0, first
        checked += reported
    assert accelerators.memory_faults() == 0
    if dist.get_rank() == 0:
        print(f"{checked} results were right", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
