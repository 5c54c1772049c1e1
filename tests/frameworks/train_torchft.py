"""torchft: DDP of two replicas with one process each, which the group that its Manager is given connects.

replicas.py has the training, and says which replicas are killed. Over gloo the other replica then ends with
an AssertionError in torchft's DDP, because wait() of the group raises.
"""

from __future__ import annotations

import replicas
from torchft import DistributedDataParallel

if __name__ == "__main__":
    replicas.main(__file__, 1, DistributedDataParallel)
