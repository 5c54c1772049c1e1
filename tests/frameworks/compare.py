"""Whether trainings ended the same: `compare.py NAME OURS GLOOS...`, results of one program; status 1 if not.

OURS ran over ucc, by its name or in place of gloo. Each of GLOOS ran over gloo: the same training, and, if it
resumed from a checkpoint, also the training without a checkpoint.

With two ranks a sum has one order, so every loss and every weight must have the same bits.
"""

from __future__ import annotations

import sys
from typing import Any

import torch


def tensors(result: dict[str, Any]) -> dict[str, torch.Tensor]:
    """All that is compared: the weights, and the losses in one tensor."""
    return {**result["weights"], "the losses": torch.tensor(result["losses"], dtype=torch.float64)}


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def differences(ours: dict[str, Any], theirs: dict[str, Any]) -> list[str]:
    one, other = tensors(ours), tensors(theirs)
    if one.keys() != other.keys():
        return [f"the weights are {sorted(one)} and {sorted(other)}"]
    found = []
    for name, tensor in one.items():
        counterpart = other[name]
        if (tensor.dtype, tensor.shape) != (counterpart.dtype, counterpart.shape):
            kinds = [f"{[*each.shape]} of {each.dtype}" for each in (tensor, counterpart)]
            found.append(f"{name}: {kinds[0]}, and {kinds[1]} over gloo")
        elif not torch.equal(bits(tensor), bits(counterpart)):
            largest = float((tensor.double() - counterpart.double()).abs().max())
            found.append(f"{name}: differs from gloo by up to {largest:.1e}")
    return found


def wrong_ways(ours: dict[str, Any], theirs: dict[str, Any]) -> list[str]:
    wrong = []
    if not 2 <= ours["ranks"] == theirs["ranks"]:
        wrong.append(f"{ours['ranks']} ranks are compared with {theirs['ranks']} ranks over gloo")
    for result, maker in ((ours, "UccBackend"), (theirs, "ProcessGroupGloo")):
        if result["made_by"] != maker:
            wrong.append(f"the ranks ran over {result['made_by']}, not over {maker}")
    return wrong


def what_is_wrong(ours: dict[str, Any], theirs: dict[str, Any]) -> list[str]:
    wrong = wrong_ways(ours, theirs)
    for result in (ours, theirs):
        quarter = max(1, len(result["losses"]) // 4)
        first, last = sum(result["losses"][:quarter]), sum(result["losses"][-quarter:])
        if result["losses"] and not last < 0.8 * first:
            wrong.append(f"nothing was learned over {result['backend']}: the losses are {result['losses']}")
    return wrong + differences(ours, theirs)


def main() -> int:
    name, *paths = sys.argv[1:]
    ours, *gloos = (torch.load(path) for path in paths)
    wrong = [line for theirs in gloos for line in what_is_wrong(ours, theirs)]
    for line in wrong:
        print(f"{name}: {line}")
    if not wrong:
        losses = ours["losses"]
        ran = (
            f"{len(losses)} steps on {ours['ranks']} ranks, loss {losses[0]:.4f} to {losses[-1]:.4f}"
            if losses
            else f"{ours['ranks']} ranks without training"
        )
        compared = "gloo" if len(gloos) == 1 else "gloo with and without the checkpoint"
        print(f"{name}: {ran}, backend {ours['backend']} made by {ours['made_by']}, same bits as {compared}")
    return bool(wrong) or not gloos


if __name__ == "__main__":
    sys.exit(main())
