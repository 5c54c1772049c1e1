"""What UCX and UCC call the memory of torch's devices."""

from __future__ import annotations

import torch

OF_DEVICES = {"cuda": "rocm" if torch.version.hip else "cuda"}
"""By type of device: those in whose memory they may work."""
