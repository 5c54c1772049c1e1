"""Buffers of numpy, for the libraries that are measured in an environment without torch."""

from __future__ import annotations

import importlib
import os
from typing import Any

from .library import Library


class NumpyLibrary(Library):
    """A library that sends arrays of numpy.

    numpy asks for huge pages from 4 MB on and torch does not. That is worth more than the choice of a library
    (64 MB both ways by CMA: 10 ms, with huge pages 4 ms), so numpy is kept from it.
    """

    def __init__(self) -> None:
        os.environ["NUMPY_MADVISE_HUGEPAGE"] = "0"  # read when numpy is imported
        self.numpy: Any = importlib.import_module("numpy")

    def _numpy_type(self) -> Any:
        """The type of numpy for `dtype`. The package ml_dtypes has bfloat16, which numpy lacks."""
        if hasattr(self.numpy, self.dtype):
            return getattr(self.numpy, self.dtype)
        return getattr(importlib.import_module("ml_dtypes"), self.dtype)

    def _own(self, count: int) -> Any:
        return self.numpy.full(count, self.rank + 1, dtype=self._numpy_type())

    def _empty(self, count: int) -> Any:
        return self.numpy.zeros(count, dtype=self._numpy_type())
