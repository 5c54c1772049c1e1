"""Whether a training ended the same: `compare.py NAME OURS GLOOS`, results of one program; status 1 if not.

OURS ran over ucc, by its name or in place of gloo.

With two ranks a sum has one order, so the same bits are expected; the tolerance leaves room for a framework
that sums in pieces of its own.
"""

from __future__ import annotations

import sys
from typing import Any

import torch

TOLERANCE = 1e-6
RANKS = 2


def largest_difference(one: dict[str, Any], other: dict[str, Any]) -> float:
    """Over all losses and weights, relative where they are above 1. Raises if they cannot be compared."""
    if one["weights"].keys() != other["weights"].keys() or len(one["losses"]) != len(other["losses"]):
        raise ValueError("the two trainings have other weights, or another number of steps")
    pairs = [(torch.tensor(one["losses"]), torch.tensor(other["losses"]))] if one["losses"] else []
    pairs += [(one["weights"][name], other["weights"][name]) for name in one["weights"]]
    return max(float(((a - b).abs() / b.abs().clamp(min=1)).max()) for a, b in pairs)


def what_is_wrong(ours: dict[str, Any], theirs: dict[str, Any]) -> list[str]:
    wrong = []
    for result, maker in ((ours, "UccBackend"), (theirs, "ProcessGroupGloo")):
        backend = result["backend"]
        if (result["made_by"], result["ranks"]) != (maker, RANKS):
            wrong.append(f"{result['ranks']} ranks ran over {result['made_by']}, not {RANKS} over {maker}")
        quarter = max(1, len(result["losses"]) // 4)
        first, last = sum(result["losses"][:quarter]), sum(result["losses"][-quarter:])
        if result["losses"] and not last < 0.8 * first:
            wrong.append(f"nothing was learned over {backend}: the losses are {result['losses']}")
    difference = largest_difference(ours, theirs)
    if not difference <= TOLERANCE:  # a NaN is no agreement
        wrong.append(f"losses or weights differ by {difference:.1e}, more than {TOLERANCE:.0e}")
    return wrong


def main() -> int:
    name, *paths = sys.argv[1:]
    ours, theirs = (torch.load(path) for path in paths)
    wrong = what_is_wrong(ours, theirs)
    for line in wrong:
        print(f"{name}: {line}")
    if not wrong:
        losses = ours["losses"]
        ran = (
            f"{len(losses)} steps on {RANKS} ranks, loss {losses[0]:.4f} to {losses[-1]:.4f}"
            if losses
            else ""
        )
        print(
            f"{name}: {ran or f'{RANKS} ranks without training'}, "
            f"backend {ours['backend']} made by {ours['made_by']}, "
            f"largest difference to gloo {largest_difference(ours, theirs):.1e}"
        )
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
